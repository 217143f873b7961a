//! Where a segment that comes from an export's server is put.

use std::os::fd::BorrowedFd;

use crate::backend::DataRoom;
use crate::buffer::{Buffer, BufferPool, Pipe, PipePool, Reservation, SegmentData};

/// The room for a segment, in a pipe or in memory. It is taken when the first data comes, so that a
/// server that hangs holds neither.
///
/// *Invariant:* the first `filled` bytes are the segment's. Beyond them are those of a reply that is
/// not complete.
pub(super) struct SegmentRoom {
    place: Place,
    len: usize,
    filled: usize,
    buffers: BufferPool,
    /// Whether it had a pipe, which did not suffice.
    has_copied: bool,
}

enum Place {
    /// Nothing has come.
    Open(Option<PipePool>, Reservation),
    Memory(Buffer),
    Pipe(Pipe, Reservation),
    /// There is no memory.
    Nowhere(Option<Reservation>),
}

impl SegmentRoom {
    /// Room for `len` bytes, in a pipe of `pipes` if that can be had, paid for by `claim`.
    pub(super) fn new(
        len: usize,
        pipes: Option<PipePool>,
        claim: Reservation,
        buffers: &BufferPool,
    ) -> Self {
        let place = Place::Open(pipes, claim);
        Self { place, len, filled: 0, buffers: buffers.clone(), has_copied: false }
    }

    /// How much of the segment has come.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The next `bytes` of the segment have come.
    pub(super) fn add_filled(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled >= self.len
    }

    /// Whether it had a pipe, which did not suffice.
    pub(super) fn has_copied(&self) -> bool {
        self.has_copied
    }

    pub(super) fn into_claim(self) -> Option<Reservation> {
        match self.place {
            Place::Memory(buffer) => Some(buffer.into_claim()),
            Place::Open(_, claim) | Place::Pipe(_, claim) => Some(claim),
            Place::Nowhere(claim) => claim,
        }
    }

    /// The segment.
    ///
    /// # Errors
    /// The claim, if it is not complete.
    pub(super) fn into_data(self) -> Result<SegmentData, Option<Reservation>> {
        let is_full = self.is_full();
        match self.place {
            Place::Memory(buffer) if is_full => Ok(SegmentData::from_buffer(buffer)),
            Place::Pipe(pipe, claim) if is_full && pipe.buffered() == self.len => {
                Ok(SegmentData::from_pipe(pipe, claim, self.buffers))
            }
            _ => Err(self.into_claim()),
        }
    }

    /// Takes the pipe, or else memory.
    fn use_pipe(&mut self, pipe: Option<Pipe>) {
        let Some(pipe) = pipe else { return self.use_memory() };
        self.place = match std::mem::replace(&mut self.place, Place::Nowhere(None)) {
            Place::Open(_, claim) => Place::Pipe(pipe, claim),
            other => other,
        };
    }

    /// Takes memory, and copies the pipe's bytes there.
    fn use_memory(&mut self) {
        let (pipe, claim) = match std::mem::replace(&mut self.place, Place::Nowhere(None)) {
            Place::Open(_, claim) => (None, claim),
            Place::Pipe(pipe, claim) => (Some(pipe), claim),
            other => {
                self.place = other;
                return;
            }
        };
        self.has_copied = pipe.is_some();
        self.place = match self.buffers.allocate(self.len, claim) {
            Err(claim) => Place::Nowhere(Some(claim)),
            Ok(buffer) => match pipe {
                Some(pipe) => copy_out(pipe, buffer),
                None => Place::Memory(buffer),
            },
        };
    }
}

/// Moves the bytes in `pipe` to the beginning of `buffer`.
fn copy_out(mut pipe: Pipe, mut buffer: Buffer) -> Place {
    let piped = pipe.buffered();
    match pipe.copy_out(&mut buffer[..piped]) {
        Ok(()) => Place::Memory(buffer),
        Err(_) => Place::Nowhere(Some(buffer.into_claim())),
    }
}

impl DataRoom for SegmentRoom {
    fn capacity(&self) -> usize {
        self.len - self.filled
    }

    fn begin(&mut self) {
        match &mut self.place {
            Place::Open(pipes, _) => {
                let pipe = pipes.take().and_then(|pipes| pipes.pipe().ok());
                self.use_pipe(pipe);
            }
            Place::Pipe(pipe, _) if pipe.buffered() != self.filled => self.use_memory(),
            Place::Pipe(..) | Place::Memory(_) | Place::Nowhere(_) => {}
        }
    }

    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::Pipe(pipe, _) => Some(pipe.write_end()),
            Place::Open(..) | Place::Memory(_) | Place::Nowhere(_) => None,
        }
    }

    fn add_piped(&mut self, bytes: usize) {
        if let Place::Pipe(pipe, _) = &mut self.place {
            pipe.add_buffered(bytes);
        }
    }

    fn memory(&mut self) -> Option<&mut [u8]> {
        self.use_memory();
        match &mut self.place {
            Place::Memory(buffer) => Some(&mut buffer[self.filled..]),
            Place::Open(..) | Place::Pipe(..) | Place::Nowhere(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Budget, size_class};

    const LEN: usize = 20_000;

    fn bytes() -> Vec<u8> {
        (0..LEN).map(|i| (i / 7) as u8).collect()
    }

    fn room(buffers: &BufferPool) -> SegmentRoom {
        let pipes = PipePool::new(1 << 20).unwrap();
        let claim = buffers.budget().claim(size_class(LEN as u64)).unwrap();
        SegmentRoom::new(LEN, Some(pipes), claim, buffers)
    }

    fn put(room: &mut SegmentRoom, bytes: &[u8]) {
        assert_eq!(rustix::io::write(room.pipe().unwrap(), bytes), Ok(bytes.len()));
        room.add_piped(bytes.len());
    }

    fn taken(room: SegmentRoom) -> Vec<u8> {
        let mut all = Vec::new();
        room.into_data().ok().unwrap().append_to(0..LEN, &mut all).unwrap();
        all
    }

    #[test]
    fn a_segment_comes_in_several_replies() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = room(&buffers);
        for part in bytes().chunks(7000) {
            room.begin();
            put(&mut room, part);
            room.add_filled(part.len());
        }
        assert_eq!(buffers.allocated_bytes(), 0, "something was copied");
        assert!(!room.has_copied());
        assert!(taken(room) == bytes());
    }

    #[test]
    fn bytes_of_a_lost_reply_are_no_part_of_the_segment() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        for filled in [0, 7000] {
            let mut room = room(&buffers);
            room.begin();
            put(&mut room, &bytes()[..filled]);
            room.add_filled(filled);
            room.begin();
            put(&mut room, &[0xee; 5000]);
            room.begin();
            assert!(room.has_copied() && room.pipe().is_none());
            assert_eq!(room.capacity(), LEN - filled);
            room.memory().unwrap().copy_from_slice(&bytes()[filled..]);
            room.add_filled(LEN - filled);
            assert!(taken(room) == bytes(), "after {filled} bytes");
        }
    }

    #[test]
    fn a_full_pipe_leaves_its_bytes_to_memory() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = room(&buffers);
        room.begin();
        put(&mut room, &bytes()[..5000]);
        room.memory().unwrap()[5000..].copy_from_slice(&bytes()[5000..]);
        room.add_filled(LEN);
        assert!(taken(room) == bytes());
    }

    #[test]
    fn nothing_is_held_before_data_comes() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let claim = buffers.budget().claim(size_class(LEN as u64)).unwrap();
        let pipes = PipePool::with_limit(1 << 20, 1).unwrap();
        let mut first = SegmentRoom::new(LEN, Some(pipes.clone()), claim, &buffers);
        assert!(pipes.pipe().is_ok() && buffers.allocated_bytes() == 0);
        first.begin();
        let claim = buffers.budget().claim(size_class(LEN as u64)).unwrap();
        let mut second = SegmentRoom::new(LEN, Some(pipes.clone()), claim, &buffers);
        second.begin();
        assert!(first.pipe().is_some() && second.pipe().is_none());
        assert!(second.memory().is_some() && !second.has_copied());
    }

    #[test]
    fn an_incomplete_segment_gives_its_claim_back() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = room(&buffers);
        room.begin();
        put(&mut room, &bytes()[..5000]);
        room.add_filled(LEN);
        assert!(room.into_data().err().unwrap().is_some());
        assert_eq!(buffers.budget().used(), 0);
    }
}
