//! Where a segment that comes from an export's server is put.

use std::os::fd::BorrowedFd;

use crate::buffer::{Buffer, BufferPool, Pipe, Reservation, SegmentData};

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
    /// Whether a pipe was too small.
    has_overflowed: bool,
}

enum Place {
    /// No data has come.
    Untaken(Reservation),
    Memory(Buffer),
    Pipe(Pipe, Reservation),
    /// There was no memory. `None` only while another place is made.
    Failed(Option<Reservation>),
}

impl SegmentRoom {
    /// Room for `len` bytes, paid for by `claim`.
    pub(super) fn new(len: usize, claim: Reservation, buffers: &BufferPool) -> Self {
        let place = Place::Untaken(claim);
        Self { place, len, filled: 0, buffers: buffers.clone(), has_overflowed: false }
    }

    pub(super) fn capacity(&self) -> usize {
        self.len - self.filled
    }

    /// The data of a reply begins. It goes into the pipe that `pipe` gives, if it gives one.
    pub(super) fn begin(&mut self, pipe: impl FnOnce() -> Option<Pipe>) {
        self.place = match self.take_place() {
            Place::Pipe(pipe, claim) if pipe.buffered() == self.filled => Place::Pipe(pipe, claim),
            // The bytes of a reply that was lost stand at its end.
            Place::Pipe(pipe, claim) if self.filled > 0 => self.copy(pipe, claim),
            Place::Pipe(lost, claim) => {
                drop(lost);
                self.new_place(pipe(), claim)
            }
            Place::Untaken(claim) => self.new_place(pipe(), claim),
            Place::Failed(Some(claim)) if self.filled == 0 => self.new_place(pipe(), claim),
            other => other,
        };
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::Pipe(pipe, _) => Some(pipe.write_end()),
            Place::Untaken(_) | Place::Memory(_) | Place::Failed(_) => None,
        }
    }

    pub(super) fn add_piped(&mut self, bytes: usize) {
        if let Place::Pipe(pipe, _) = &mut self.place {
            pipe.add_buffered(bytes);
        }
    }

    /// The memory beyond the bytes that have come, also if they have come into a pipe.
    pub(super) fn use_memory(&mut self) -> Option<&mut [u8]> {
        self.place = match self.take_place() {
            Place::Pipe(pipe, claim) => {
                self.has_overflowed = true;
                self.copy(pipe, claim)
            }
            Place::Untaken(claim) => self.new_place(None, claim),
            other => other,
        };
        match &mut self.place {
            Place::Memory(buffer) => Some(&mut buffer[self.filled..]),
            Place::Pipe(..) | Place::Untaken(_) | Place::Failed(_) => None,
        }
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

    /// Whether a pipe was too small.
    pub(super) fn has_overflowed(&self) -> bool {
        self.has_overflowed
    }

    pub(super) fn into_claim(self) -> Option<Reservation> {
        match self.place {
            Place::Memory(buffer) => Some(buffer.into_claim()),
            Place::Pipe(_, claim) | Place::Untaken(claim) => Some(claim),
            Place::Failed(claim) => claim,
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

    fn take_place(&mut self) -> Place {
        std::mem::replace(&mut self.place, Place::Failed(None))
    }

    /// The pipe, or else memory.
    fn new_place(&self, pipe: Option<Pipe>, claim: Reservation) -> Place {
        match pipe {
            Some(pipe) => Place::Pipe(pipe, claim),
            None => match self.buffers.allocate(self.len, claim) {
                Ok(buffer) => Place::Memory(buffer),
                Err(claim) => Place::Failed(Some(claim)),
            },
        }
    }

    /// Memory that begins with the bytes of `pipe`.
    fn copy(&self, mut pipe: Pipe, claim: Reservation) -> Place {
        let mut buffer = match self.buffers.allocate(self.len, claim) {
            Ok(buffer) => buffer,
            Err(claim) => return Place::Failed(Some(claim)),
        };
        let piped = pipe.buffered();
        match pipe.copy_out(&mut buffer[..piped]) {
            Ok(()) => Place::Memory(buffer),
            Err(_) => Place::Failed(Some(buffer.into_claim())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Budget, PipePool, size_class};

    const LEN: usize = 20_000;

    fn bytes() -> Vec<u8> {
        (0..LEN).map(|i| (i / 7) as u8).collect()
    }

    fn new_room(buffers: &BufferPool) -> SegmentRoom {
        let claim = buffers.budget().claim(size_class(LEN as u64)).unwrap();
        SegmentRoom::new(LEN, claim, buffers)
    }

    fn pipe() -> Option<Pipe> {
        PipePool::new(1 << 20).unwrap().pipe().ok()
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
        let mut room = new_room(&buffers);
        for part in bytes().chunks(7000) {
            room.begin(pipe);
            put(&mut room, part);
            room.add_filled(part.len());
        }
        assert_eq!(buffers.allocated_bytes(), 0, "something was copied");
        assert!(taken(room) == bytes());
    }

    #[test]
    fn bytes_of_a_lost_reply_are_no_part_of_the_segment() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        for filled in [0, 7000] {
            let mut room = new_room(&buffers);
            room.begin(pipe);
            put(&mut room, &bytes()[..filled]);
            room.add_filled(filled);
            room.begin(pipe);
            put(&mut room, &[0xee; 5000]);
            room.begin(pipe);
            assert_eq!(room.capacity(), LEN - filled);
            // A pipe gives its bytes from its beginning only.
            assert_eq!(room.pipe().is_some(), filled == 0);
            assert!(!room.has_overflowed());
            match filled {
                0 => put(&mut room, &bytes()),
                _ => room.use_memory().unwrap().copy_from_slice(&bytes()[filled..]),
            }
            room.add_filled(LEN - filled);
            assert!(taken(room) == bytes(), "after {filled} bytes");
        }
    }

    #[test]
    fn a_full_pipe_leaves_its_bytes_to_memory() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = new_room(&buffers);
        room.begin(pipe);
        put(&mut room, &bytes()[..5000]);
        room.use_memory().unwrap()[5000..].copy_from_slice(&bytes()[5000..]);
        room.add_filled(LEN);
        assert!(room.has_overflowed());
        assert!(taken(room) == bytes());
    }

    #[test]
    fn nothing_is_held_before_data_comes() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = new_room(&buffers);
        assert!(room.pipe().is_none() && buffers.allocated_bytes() == 0);
        room.begin(|| None);
        assert!(room.use_memory().is_some() && !room.has_overflowed());
    }

    #[test]
    fn an_incomplete_segment_gives_its_claim_back() {
        let buffers = BufferPool::new(Budget::new(1 << 20));
        let mut room = new_room(&buffers);
        room.begin(pipe);
        put(&mut room, &bytes()[..5000]);
        room.add_filled(LEN);
        assert!(room.into_data().err().unwrap().is_some());
        assert_eq!(buffers.budget().used(), 0);
    }
}
