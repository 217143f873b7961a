//! Where the data of a read goes.

use std::os::fd::BorrowedFd;

/// The room for the data of a read: memory, or a pipe, into which the pages of the network's packets
/// move without a copy (splice(2)).
///
/// A pipe may be too small for a read, as each packet takes one of its slots, however short it is.
/// Nothing can be taken back out of a pipe but from its beginning. So a room with a pipe becomes
/// memory when it must.
pub trait DataRoom: Send {
    /// The bytes that it has room for.
    fn capacity(&self) -> usize;

    /// A reply's data begins. That of an earlier reply to the same call is void.
    fn begin(&mut self) {}

    /// The pipe that takes the data, which never blocks; `None` if memory takes it.
    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// So many bytes were put into the pipe.
    fn add_piped(&mut self, _bytes: usize) {}

    /// The memory that takes the data, and takes it from now on, with the data that was put into the
    /// pipe. `None` if there is no memory.
    fn use_memory(&mut self) -> Option<&mut [u8]>;
}

impl DataRoom for Vec<u8> {
    fn capacity(&self) -> usize {
        self.len()
    }

    fn use_memory(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

/// Puts `bytes` after the first `filled` ones of a reply's data. Returns false if there is no memory.
pub(super) fn put(room: &mut dyn DataRoom, filled: usize, bytes: &[u8]) -> bool {
    // A pipe that is full takes a part, or none.
    let piped = room.pipe().map_or(0, |pipe| rustix::io::write(pipe, bytes).unwrap_or(0));
    room.add_piped(piped);
    let rest = &bytes[piped..];
    if rest.is_empty() {
        return true;
    }
    let Some(memory) = room.use_memory() else { return false };
    memory[filled + piped..][..rest.len()].copy_from_slice(rest);
    true
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod test_room {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    /// The byte of memory that was not written.
    pub(crate) const UNTOUCHED: u8 = 0xee;

    /// Room in memory, or in a pipe.
    pub(crate) struct TestRoom {
        pipe: Option<(OwnedFd, OwnedFd)>,
        piped: usize,
        memory: Vec<u8>,
        has_memory: bool,
    }

    impl TestRoom {
        pub(crate) fn memory(len: usize) -> Self {
            Self { pipe: None, piped: 0, memory: vec![UNTOUCHED; len], has_memory: true }
        }

        pub(crate) fn piped(len: usize, pipe_size: usize) -> Self {
            let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
            fcntl_setpipe_size(&write, pipe_size).unwrap();
            Self { pipe: Some((read, write)), ..Self::memory(len) }
        }

        pub(crate) fn without_memory(mut self) -> Self {
            self.has_memory = false;
            self
        }

        /// The first `len` bytes of data.
        pub(crate) fn taken(&mut self, len: usize) -> Vec<u8> {
            self.leave_pipe();
            self.memory[..len].to_vec()
        }

        /// All of the room.
        pub(crate) fn all(&mut self) -> &[u8] {
            self.leave_pipe();
            &self.memory
        }

        fn leave_pipe(&mut self) {
            let Some((read, _write)) = self.pipe.take() else { return };
            let mut at = 0;
            while at < self.piped {
                at += rustix::io::read(&read, &mut self.memory[at..self.piped]).unwrap();
            }
        }
    }

    impl DataRoom for TestRoom {
        fn capacity(&self) -> usize {
            self.memory.len()
        }

        fn begin(&mut self) {
            if self.piped > 0 {
                self.leave_pipe();
            }
        }

        fn pipe(&self) -> Option<BorrowedFd<'_>> {
            self.pipe.as_ref().map(|(_, write)| write.as_fd())
        }

        fn add_piped(&mut self, bytes: usize) {
            self.piped += bytes;
        }

        fn use_memory(&mut self) -> Option<&mut [u8]> {
            if !self.has_memory {
                return None;
            }
            self.leave_pipe();
            Some(&mut self.memory)
        }
    }
}
