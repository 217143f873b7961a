//! Pipes that hold pages of file data, kept for reuse.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::capabilities;

/// The most pipes kept for reuse: several times as many as the longest window has segments. Each
/// has two descriptors.
const MAX_IDLE: usize = 256;

/// So many pipes are refused after the content of one did not fit into another.
const REFUSALS: usize = 256;

/// A pool of pipes of one size.
#[derive(Clone, Debug)]
pub struct PipePool {
    inner: Arc<PipePoolInner>,
}

#[derive(Debug)]
struct PipePoolInner {
    bytes: usize,
    /// The most pipes in use.
    most: usize,
    in_use: AtomicUsize,
    /// So many pipes are refused.
    refused: AtomicUsize,
    idle: Mutex<Vec<PipeEnds>>,
}

#[derive(Debug)]
struct PipeEnds {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe from the pool, empty at first. It returns to the pool if it is empty when dropped;
/// otherwise it is closed with its data.
#[derive(Debug)]
pub struct Pipe {
    /// `Some` until dropped.
    ends: Option<PipeEnds>,
    /// Bytes that are in the pipe.
    buffered: usize,
    pool: Arc<PipePoolInner>,
}

impl PipePool {
    /// A pool of pipes that hold `bytes`, in whole pages.
    ///
    /// # Errors
    /// EPERM if that exceeds `/proc/sys/fs/pipe-max-size` and this process may not exceed it;
    /// EMFILE without descriptors.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::with_limit(bytes, usize::MAX)
    }

    /// The same, of which at most so many are in use at a time.
    ///
    /// # Errors
    /// As [`PipePool::new`].
    pub fn with_limit(bytes: usize, most: usize) -> io::Result<Self> {
        let bytes = bytes.next_power_of_two();
        let idle = Mutex::new(vec![PipeEnds::new(bytes)?]);
        Ok(Self {
            inner: Arc::new(PipePoolInner {
                bytes,
                most,
                in_use: AtomicUsize::new(0),
                refused: AtomicUsize::new(0),
                idle,
            }),
        })
    }

    /// Bytes that each pipe holds, in whole pages.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// An empty pipe.
    ///
    /// # Errors
    /// EMFILE, ENFILE and other errors of pipe2(2); EMFILE also if too many are in use, and EAGAIN
    /// after the content of one was too large for another pipe.
    pub fn pipe(&self) -> io::Result<Pipe> {
        let pool = Arc::clone(&self.inner);
        let one_less = |left: usize| left.checked_sub(1);
        if pool.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(Errno::AGAIN.into());
        }
        let before = pool.in_use.fetch_add(1, Ordering::Relaxed);
        // From here on it counts, and no longer once it is dropped.
        let mut pipe = Pipe { ends: None, buffered: 0, pool };
        if before >= self.inner.most {
            return Err(Errno::MFILE.into());
        }
        let idle = self.inner.idle.lock().pop();
        pipe.ends = Some(match idle {
            Some(ends) => ends,
            None => PipeEnds::new(self.inner.bytes)?,
        });
        Ok(pipe)
    }
}

impl PipeEnds {
    fn new(bytes: usize) -> io::Result<Self> {
        let _raised = capabilities::raise(capabilities::PIPES);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Above the limit this fails; a size is rounded up, never down.
        fcntl_setpipe_size(&write, bytes)?;
        Ok(Self { read, write })
    }
}

impl Pipe {
    fn ends(&self) -> &PipeEnds {
        self.ends.as_ref().expect("a pipe has its ends until it is dropped")
    }

    /// The same pipe, whose pool can make no further one (for tests).
    #[cfg(test)]
    pub(super) fn without_siblings(mut self) -> Self {
        let ends = self.ends.take();
        let buffered = std::mem::take(&mut self.buffered);
        // More than any pipe holds.
        let in_use = AtomicUsize::new(1);
        let inner = PipePoolInner {
            bytes: usize::MAX,
            most: usize::MAX,
            in_use,
            refused: AtomicUsize::new(0),
            idle: Mutex::default(),
        };
        Self { ends, buffered, pool: Arc::new(inner) }
    }

    /// An empty pipe of the same kind.
    ///
    /// # Errors
    /// As [`PipePool::pipe`].
    pub fn new_sibling(&self) -> io::Result<Pipe> {
        PipePool { inner: Arc::clone(&self.pool) }.pipe()
    }

    /// The end that takes pages. Report the bytes that you put in with [`Pipe::add_buffered`].
    pub fn write_end(&self) -> BorrowedFd<'_> {
        self.ends().write.as_fd()
    }

    /// Records that `bytes` were put in.
    pub fn add_buffered(&mut self, bytes: usize) {
        self.buffered += bytes;
    }

    /// Bytes in it.
    pub fn buffered(&self) -> usize {
        self.buffered
    }

    /// Copies `bytes` into the pipe.
    ///
    /// # Errors
    /// `WouldBlock` if they do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = rustix::io::write(&self.ends().write, bytes)?;
        self.buffered += written;
        if written < bytes.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Moves the next `bytes` to another pipe.
    ///
    /// # Errors
    /// `WouldBlock` if they do not fit there. Copying them costs more than no pipe does, so the pool
    /// then refuses the next [`REFUSALS`] pipes.
    pub fn splice_to(&mut self, other: &mut Pipe, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let from = &self.ends().read;
            let to = &other.ends().write;
            let moved = match splice(from, None, to, None, left, SpliceFlags::NONBLOCK) {
                Err(Errno::AGAIN) => {
                    self.pool.refused.store(REFUSALS, Ordering::Relaxed);
                    return Err(Errno::AGAIN.into());
                }
                moved => moved?,
            };
            if moved == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffered -= moved;
            other.buffered += moved;
            left -= moved;
        }
        Ok(())
    }

    /// Moves the whole content to `device` in one call.
    ///
    /// # Errors
    /// The device's error. The pipe cannot be used after that.
    pub fn splice_to_device(&mut self, device: BorrowedFd<'_>) -> io::Result<()> {
        let all = self.buffered;
        let taken = splice(&self.ends().read, None, device, None, all, SpliceFlags::MOVE)?;
        self.buffered -= taken;
        if taken < all { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Fills `bytes` with the next bytes of the pipe.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are not enough.
    pub fn copy_out(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() && self.buffered > 0 {
            match rustix::io::read(&self.ends().read, &mut *bytes) {
                Ok(0) => break,
                Ok(read) => {
                    self.buffered -= read;
                    bytes = &mut bytes[read..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if bytes.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
        if self.buffered == 0
            && let Some(ends) = self.ends.take()
        {
            let mut idle = self.pool.idle.lock();
            if idle.len() < MAX_IDLE {
                idle.push(ends);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_returns_the_bytes_written_to_it() {
        let pipes = PipePool::new(8192).unwrap();
        let mut first = pipes.pipe().unwrap();
        let mut second = pipes.pipe().unwrap();
        first.write(b"header").unwrap();
        second.write(b"data and more").unwrap();
        second.splice_to(&mut first, 4).unwrap();
        assert_eq!((first.buffered(), second.buffered()), (10, 9));
        let mut bytes = [0; 10];
        first.copy_out(&mut bytes).unwrap();
        assert_eq!(&bytes, b"headerdata");
        assert!(first.copy_out(&mut bytes).is_err());
    }

    #[test]
    fn no_more_pipes_are_in_use_than_the_limit() {
        let pipes = PipePool::with_limit(4096, 2).unwrap();
        let mut first = pipes.pipe().unwrap();
        let second = pipes.pipe().unwrap();
        assert!(pipes.pipe().is_err() && first.new_sibling().is_err());
        first.write(b"left behind").unwrap();
        drop(first);
        let third = pipes.pipe().unwrap();
        assert!(pipes.pipe().is_err());
        drop((second, third));
        assert_eq!(pipes.inner.in_use.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn pipes_are_refused_after_one_did_not_fit_into_another() {
        let pipes = PipePool::new(1 << 20).unwrap();
        let mut small = PipePool::new(4096).unwrap().pipe().unwrap();
        let mut large = pipes.pipe().unwrap();
        large.write(&[0; 10_000]).unwrap();
        assert_eq!(
            large.splice_to(&mut small, 10_000).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        for _ in 0..REFUSALS {
            assert!(pipes.pipe().is_err());
        }
        assert!(pipes.pipe().is_ok());
    }

    #[test]
    fn only_an_empty_pipe_is_reused() {
        let pipes = PipePool::new(4096).unwrap();
        let idle = |pipes: &PipePool| pipes.inner.idle.lock().len();
        let mut pipe = pipes.pipe().unwrap();
        pipe.write(b"left behind").unwrap();
        drop(pipe);
        assert_eq!(idle(&pipes), 0);
        drop(pipes.pipe().unwrap());
        assert_eq!(idle(&pipes), 1);
    }
}
