//! READ: the data goes into the caller's buffer.

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, sync_channel};

use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::xdr_codec::{self, Pack};

use super::{Caller, Client, procedure, repeat_while_jukebox};
use crate::nfs::attributes::{Attributes, FileHandle};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{
    CallOptions, DataHead, DataReply, DataTarget, ReadBuffer, RpcError, decode_header,
};
use crate::nfs::xdr::{DecodeError, Decoder, Result};

/// What a read has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// The bytes read, at the beginning of the buffer. They may be fewer than there was room for.
    pub bytes: usize,
    /// Whether the file ends after them.
    pub is_end: bool,
    /// The file's attributes after the read, if the server sent them.
    pub attributes: Option<Attributes>,
}

impl Client {
    /// Reads a file from `offset` into `buffer`, and does not wait for the reply. `done` gets the
    /// buffer back; it must not block, because other replies wait for it.
    pub fn submit_read(
        &self,
        caller: Caller<'_>,
        file: FileHandle,
        offset: u64,
        mut buffer: Box<dyn ReadBuffer>,
        done: impl FnOnce(Box<dyn ReadBuffer>, std::result::Result<ReadEnd, NfsError>) + Send + 'static,
    ) {
        let count = buffer.bytes().len();
        let arguments =
            ReadArguments { file, offset, count: u32::try_from(count).unwrap_or(u32::MAX) };
        let options = CallOptions {
            procedure: procedure(NFS_PROGRAM::NFSPROC3_READ),
            identity: Some(caller.identity),
            deadline: caller.deadline,
        };
        let done = move |buffer, reply: std::result::Result<DataReply, RpcError>| {
            let end = reply.map_err(NfsError::from).and_then(|reply| read_end(&reply, count));
            done(buffer, end);
        };
        let target = DataTarget { buffer, decode: decode_data_head, done: Box::new(done) };
        self.transport.call_for_data(&options, &arguments, target);
    }

    /// Reads a file from `offset` into `buffer`, in calls for up to `piece` bytes each, all of which
    /// are made at once.
    ///
    /// # Errors
    /// The server's status, or why there was no reply in time. If only later pieces fail, the result
    /// ends before them.
    pub fn read(
        &self,
        caller: Caller<'_>,
        file: FileHandle,
        offset: u64,
        buffer: &mut [u8],
        piece: NonZeroUsize,
    ) -> std::result::Result<ReadEnd, NfsError> {
        repeat_while_jukebox(caller.deadline, || {
            let pieces = buffer.len().div_ceil(piece.get());
            let (sender, receiver) = sync_channel(pieces);
            let mut reads = LentReads { receiver, left: 0, _buffer: PhantomData };
            // Dropped before `reads`, which waits for the last of its clones.
            let sender = sender;
            let mut at = offset;
            for (index, part) in buffer.chunks_mut(piece.get()).enumerate() {
                let len = part.len() as u64;
                let lent = LentBuffer { start: part.as_mut_ptr(), len: part.len() };
                let sender = sender.clone();
                reads.left += 1;
                self.submit_read(caller, file, at, Box::new(lent), move |lent, end| {
                    drop(lent);
                    let _ = sender.send(PieceEnd { index, end });
                });
                at = at.saturating_add(len);
            }
            drop(sender);
            let mut ends = vec![Err(NfsError::Rpc(RpcError::Stopped)); pieces];
            while let Some(PieceEnd { index, end }) = reads.next_end() {
                ends[index] = end;
            }
            join_pieces(ends, piece.get())
        })
    }
}

/// The end of one of several reads.
struct PieceEnd {
    index: usize,
    end: std::result::Result<ReadEnd, NfsError>,
}

/// What all pieces of a buffer together have read: up to the first that is not full.
fn join_pieces(
    ends: Vec<std::result::Result<ReadEnd, NfsError>>,
    piece: usize,
) -> std::result::Result<ReadEnd, NfsError> {
    let mut all = ReadEnd { bytes: 0, is_end: false, attributes: None };
    for (index, end) in ends.into_iter().enumerate() {
        let end = match end {
            Err(error) if index == 0 => return Err(error),
            Err(_) => break,
            Ok(end) => end,
        };
        all.bytes += end.bytes;
        all.is_end = end.is_end;
        all.attributes = end.attributes.or(all.attributes);
        if end.is_end || end.bytes < piece {
            break;
        }
    }
    Ok(all)
}

/// Reads into parts of a caller's buffer, which stays borrowed as long as one of them may be
/// written.
struct LentReads<'a> {
    receiver: Receiver<PieceEnd>,
    left: usize,
    _buffer: PhantomData<&'a mut [u8]>,
}

impl LentReads<'_> {
    /// Waits for the end of a read. `None` after the last one.
    fn next_end(&mut self) -> Option<PieceEnd> {
        self.left = self.left.checked_sub(1)?;
        match self.receiver.recv() {
            Ok(end) => Some(end),
            // The transport has dropped all other calls, and the buffers with them.
            Err(_) => {
                self.left = 0;
                None
            }
        }
    }
}

impl Drop for LentReads<'_> {
    fn drop(&mut self) {
        while self.next_end().is_some() {}
    }
}

/// A blocked caller's buffer, which the transport has to itself until the call has completed.
struct LentBuffer {
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes belong to the caller of `Client::read`, which borrows them mutably and waits
// (`LentReads`) until the completion has dropped this value, or was itself dropped after it. The
// parts of a buffer do not overlap. So there is one user at a time, on whatever thread.
unsafe impl Send for LentBuffer {}

impl ReadBuffer for LentBuffer {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `start` and `len` are those of a live mutable slice, see above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// `READ3args`, without a copy of the handle.
struct ReadArguments {
    file: FileHandle,
    offset: u64,
    count: u32,
}

impl Pack for ReadArguments {
    fn packed_size(&self) -> usize {
        self.file.packed_size() + self.offset.packed_size() + self.count.packed_size()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> xdr_codec::Result<usize> {
        Ok(self.file.pack(out)? + self.offset.pack(out)? + self.count.pack(out)?)
    }
}

/// The results before the data, or those of a read that failed.
enum ReadHead {
    Data { attributes: Option<Attributes>, is_end: bool, data: usize },
    Failed(NfsError),
}

/// Decodes all bytes of a reply before its data.
fn decode_head(bytes: &[u8]) -> Result<ReadHead> {
    let mut bytes = Decoder::new(bytes);
    if let Err(refusal) = decode_header(&mut bytes)? {
        return Ok(ReadHead::Failed(RpcError::from(refusal).into()));
    }
    if let Err(error) = Status::check(bytes.u32()?) {
        return Ok(ReadHead::Failed(error));
    }
    let attributes = Attributes::decode_optional(&mut bytes)?;
    let count = bytes.u32()?;
    let is_end = bytes.bool()?;
    match bytes.u32()? == count {
        true => Ok(ReadHead::Data { attributes, is_end, data: count as usize }),
        false => Err(DecodeError::Invalid("two lengths of the data that differ")),
    }
}

fn decode_data_head(bytes: &[u8]) -> Result<DataHead> {
    decode_head(bytes).map(|head| match head {
        ReadHead::Data { data, .. } => DataHead { data },
        ReadHead::Failed(_) => DataHead { data: 0 },
    })
}

fn read_end(reply: &DataReply, wanted: usize) -> std::result::Result<ReadEnd, NfsError> {
    match decode_head(&reply.head)? {
        ReadHead::Failed(error) => Err(error),
        // A reader would ask for the same bytes for ever.
        ReadHead::Data { data: 0, is_end: false, .. } if wanted > 0 => {
            Err(RpcError::Malformed("no data, and not the end of the file").into())
        }
        ReadHead::Data { attributes, is_end, .. } => {
            Ok(ReadEnd { bytes: reply.data, is_end, attributes })
        }
    }
}
