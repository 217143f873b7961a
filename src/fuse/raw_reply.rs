//! Replies to READ.
//!
//! fuser's own reply takes one slice. This one writes several segments with one system call
//! from where they are, and moves pages from pipes into the reply. So user space copies no data
//! for a reply, unless there are too many segments or no pipes.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fuser::{ReplyData, RequestId};

use super::convert::errno;
use super::device_fd;
use crate::buffer::{Pipe, PipePool};
use crate::fs::{FsResult, Ino, KernelPages, ReadBytes, ReadData, ReadReply};
use crate::volume::ByteRange;

/// Length of the header before a reply's data: `struct fuse_out_header` of the
/// FUSE protocol.
const HEADER_BYTES: usize = 16;

/// The most slices that writev(2) takes (IOV_MAX), the header included.
const MAX_SLICES: usize = 1024;

/// Answers READ without fuser.
pub(super) struct RawReplies {
    /// The device. A reply must go to the device that the request was read from, so all session
    /// threads must share it. This is not the session's own descriptor, which may refer to
    /// something else for a while ([`super::session_pause`]).
    pub(super) device: Arc<OwnedFd>,
    /// Pipes in which replies with pages are assembled.
    pub(super) pipes: Option<PipePool>,
}

/// The page cache of the kernel behind the device.
pub(super) struct DevicePages(Arc<OwnedFd>);

impl KernelPages for DevicePages {
    fn drop_pages(&self, ino: Ino, range: ByteRange) {
        if let Err(error) = device_fd::drop_pages(self.0.as_fd(), ino.0, range) {
            tracing::debug!(%error, "the kernel did not drop cached pages of a file");
        }
    }

    fn store(&self, ino: Ino, bytes: &[u8]) -> bool {
        let stored = device_fd::store_pages(self.0.as_fd(), ino.0, bytes);
        if let Err(error) = &stored {
            tracing::debug!(%error, "the kernel did not take the bytes of a file");
        }
        stored.is_ok()
    }
}

/// The reply to one READ.
pub(super) struct RawReadReply {
    replies: Arc<RawReplies>,
    id: RequestId,
    /// fuser's own reply to the same request.
    reply: ReplyData,
}

impl ReadReply for RawReadReply {
    fn send(self, answer: FsResult<ReadBytes<'_>>) {
        let Self { replies, id, reply } = self;
        let sent = match answer {
            Ok(ReadBytes::Slice(bytes)) => replies.send_slice(id, bytes),
            Ok(ReadBytes::Segments(data)) => replies.send_data(id, &data),
            Err(error) => return reply.error(errno(error)),
        };
        match sent {
            // The kernel has its reply; dropping `reply` would send another one. Forgetting it
            // leaks a reference to the device, which a daemon has open as long as it runs.
            Ok(()) => std::mem::forget(reply),
            Err(error) => {
                tracing::debug!(%error, "the kernel rejected a reply to a read");
                reply.error(match error.kind() {
                    io::ErrorKind::OutOfMemory => fuser::Errno::ENOMEM,
                    _ => fuser::Errno::EIO,
                });
            }
        }
    }
}

impl RawReplies {
    /// The reply to the request `id`, to which `reply` belongs.
    pub(super) fn to_read(self: Arc<Self>, id: RequestId, reply: ReplyData) -> RawReadReply {
        RawReadReply { replies: self, id, reply }
    }

    fn send_slice(&self, id: RequestId, bytes: &[u8]) -> io::Result<()> {
        let header = out_header(id, bytes.len());
        rustix::io::writev(&self.device, &[IoSlice::new(&header), IoSlice::new(bytes)])?;
        Ok(())
    }

    fn send_data(&self, id: RequestId, data: &ReadData) -> io::Result<()> {
        match data.slices().as_deref() {
            Some(slices) if slices.len() < MAX_SLICES => self.write_reply(id, data.len(), slices),
            Some(_) => self.send_copied(id, data),
            // Nothing has been taken from the data's pipes yet.
            None => match self.reply_pipe() {
                Some(pipe) => self.splice(pipe, id, data),
                None => self.send_copied(id, data),
            },
        }
    }

    /// The kernel's page cache. Its notifications bypass the session's descriptor, which
    /// forwards them late while the session is paused.
    pub(super) fn kernel_pages(&self) -> DevicePages {
        DevicePages(Arc::clone(&self.device))
    }

    /// Answers the request `id` with a listing that fuser cannot assemble. Returns false if the
    /// device refused it.
    pub(super) fn reply_listing(&self, id: RequestId, bytes: &[u8]) -> bool {
        self.write_reply(id, bytes.len(), &[IoSlice::new(bytes)]).is_ok()
    }

    fn write_reply(&self, id: RequestId, len: usize, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let header = out_header(id, len);
        let mut all = Vec::with_capacity(slices.len() + 1);
        all.push(IoSlice::new(&header));
        all.extend_from_slice(slices);
        rustix::io::writev(&self.device, &all)?;
        Ok(())
    }

    /// Answers with a copy.
    fn send_copied(&self, id: RequestId, data: &ReadData) -> io::Result<()> {
        let bytes = data.to_vec()?;
        self.write_reply(id, bytes.len(), &[IoSlice::new(&bytes)])
    }

    /// A pipe for a reply; `None` if there are no free descriptors or pipes.
    fn reply_pipe(&self) -> Option<Pipe> {
        self.pipes.as_ref()?.pipe().ok()
    }

    fn splice(&self, mut pipe: Pipe, id: RequestId, data: &ReadData) -> io::Result<()> {
        pipe.write(&out_header(id, data.len()))?;
        match data.move_to_pipe(&mut pipe) {
            // Short packets take more slots than the pipe has.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let bytes = copy_back(&mut pipe, data)?;
                self.write_reply(id, bytes.len(), &[IoSlice::new(&bytes)])
            }
            moved => {
                moved?;
                pipe.splice_to_device(self.device.as_fd())
            }
        }
    }
}

/// A copy of the data, of which a part has moved to `pipe`, after the header.
fn copy_back(pipe: &mut Pipe, data: &ReadData) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(data.len())?;
    pipe.copy_out(&mut [0; HEADER_BYTES])?;
    bytes.resize(pipe.buffered(), 0);
    pipe.copy_out(&mut bytes)?;
    data.append_from(bytes.len(), &mut bytes)?;
    Ok(bytes)
}

/// A `struct fuse_out_header`: length, errno, the request's number.
fn out_header(id: RequestId, len: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    // The kernel asks for no more than its own limit, far below 4 GiB.
    header[..4].copy_from_slice(&((HEADER_BYTES + len) as u32).to_ne_bytes());
    header[8..].copy_from_slice(&id.0.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Budget, BufferPool, SegmentData, size_class};

    #[test]
    fn a_reply_that_does_not_fit_into_a_pipe_is_copied_whole() {
        const LEN: usize = 100_000;
        let bytes: Vec<u8> = (0..2 * LEN).map(|i| (i / 7) as u8).collect();
        let budget = Budget::new(1 << 20);
        let buffers = BufferPool::new(budget.clone());
        let pipes = PipePool::new(1 << 20).unwrap();
        let segment = |part: &[u8]| {
            let mut pipe = pipes.pipe().unwrap();
            pipe.write(part).unwrap();
            let claim = budget.claim(size_class(LEN as u64)).unwrap();
            SegmentData::from_pipe(pipe, claim, buffers.clone())
        };
        // The pipe becomes full within the first segment, or the second.
        for size in [8 << 10, 128 << 10] {
            let parts = bytes.chunks(LEN).map(segment).map(|data| (data, 0..LEN));
            let data = ReadData::from_segments(parts);
            let mut pipe = PipePool::new(size).unwrap().pipe().unwrap();
            pipe.write(&[1; HEADER_BYTES]).unwrap();
            let error = data.move_to_pipe(&mut pipe).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(pipe.buffered() > HEADER_BYTES);
            assert!(copy_back(&mut pipe, &data).unwrap() == bytes, "{size}");
            drop((0..256).map(|_| pipes.pipe()).collect::<Vec<_>>());
        }
    }
}
