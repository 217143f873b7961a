//! A segment's data from a replica: copied into memory, or as pages of the replica's page cache.
//!
//! Pages wait in a pipe and move from there into the reply without a copy in user space
//! (splice(2)). Each page can be taken once. To take them more often, or in small parts, the rest
//! is copied into memory first ([`SegmentData::materialize`]). Parts may be taken in any order: the
//! pages before a part move to another pipe, or everything is copied if no further pipe can be
//! made.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use parking_lot::Mutex;

use super::pipe::Pipe;
use super::{Buffer, BufferPool, Reservation};

/// The bytes of one segment.
pub struct SegmentData {
    len: usize,
    storage: Storage,
}

enum Storage {
    Memory(Buffer),
    Pages(Box<Mutex<PipedPages>>),
}

/// The remaining pages of a segment.
struct PipedPages {
    /// By first byte, disjoint. Bytes that have been taken are in no piece.
    pieces: BTreeMap<usize, PagePiece>,
    /// As long as the segment; copied pieces lie at their own offsets. Allocated for the first
    /// copy.
    buffer: Option<Buffer>,
    /// Pays for the pages; the buffer takes it over.
    claim: Option<Reservation>,
    buffers: BufferPool,
    len: usize,
}

enum PagePiece {
    /// The whole content of its own pipe.
    Piped(Pipe),
    /// This many bytes in the buffer.
    Copied(usize),
}

/// The smallest part that moves as pages, unless it is the last of its piece. A smaller part is
/// copied together with the rest: one copy costs less than three system calls for each part.
pub const MIN_SPLICE_BYTES: usize = 32 * 1024;

impl SegmentData {
    /// Data in memory.
    pub fn from_buffer(buffer: Buffer) -> Self {
        Self { len: buffer.len(), storage: Storage::Memory(buffer) }
    }

    /// The whole content of `pipe`, paid for by `claim`; copies, if needed, go to `buffers`.
    pub fn from_pipe(pipe: Pipe, claim: Reservation, buffers: BufferPool) -> Self {
        buffers.trim_idle();
        let len = pipe.buffered();
        let pieces = BTreeMap::from([(0, PagePiece::Piped(pipe))]);
        let pages = PipedPages { pieces, buffer: None, claim: Some(claim), buffers, len };
        Self { len, storage: Storage::Pages(Box::new(Mutex::new(pages))) }
    }

    /// Drops the bytes, and keeps the claim that paid for them.
    pub fn into_claim(self) -> Option<Reservation> {
        match self.storage {
            Storage::Memory(buffer) => Some(buffer.into_claim()),
            Storage::Pages(pages) => {
                let PipedPages { buffer, claim, .. } = (*pages).into_inner();
                buffer.map(Buffer::into_claim).or(claim)
            }
        }
    }

    /// The original number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether that number is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, if they were read into memory.
    pub fn as_memory(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Memory(buffer) => Some(buffer),
            Storage::Pages(_) => None,
        }
    }

    /// Whether every byte is in memory and stays there.
    pub fn is_fully_in_memory(&self) -> bool {
        match &self.storage {
            Storage::Memory(_) => true,
            Storage::Pages(pages) => pages.lock().has_copied(0..self.len),
        }
    }

    /// Copies all remaining pages into memory. Returns whether `part` is in memory.
    pub fn materialize(&self, part: Range<usize>) -> bool {
        let Storage::Pages(pages) = &self.storage else { return true };
        let mut pages = pages.lock();
        if let Err(error) = pages.copy_pieces() {
            tracing::error!(%error, "cannot read file data back from a pipe");
        }
        pages.has_copied(part)
    }

    /// Moves a part of the bytes to `pipe`, as pages if it is large enough; these cannot be taken
    /// again.
    ///
    /// # Errors
    /// The part has been taken already, or does not fit.
    pub fn move_to_pipe(&self, part: Range<usize>, to: &mut Pipe) -> io::Result<()> {
        match &self.storage {
            Storage::Memory(buffer) => to.write(&buffer[part]),
            Storage::Pages(pages) => pages.lock().move_to_pipe(part, to),
        }
    }

    /// Appends a copy of a part of the bytes to `bytes`.
    ///
    /// # Errors
    /// The part has been taken already, or there is no memory.
    pub fn append_to(&self, part: Range<usize>, bytes: &mut Vec<u8>) -> io::Result<()> {
        match &self.storage {
            Storage::Memory(buffer) => bytes.extend_from_slice(&buffer[part]),
            Storage::Pages(_) if part.is_empty() => {}
            Storage::Pages(pages) => {
                let mut pages = pages.lock();
                let copied = pages.copy_pieces();
                let part =
                    pages.copied_bytes(part).map_err(|error| copied.err().unwrap_or(error))?;
                bytes.extend_from_slice(part);
            }
        }
        Ok(())
    }
}

impl PipedPages {
    /// The piece that contains `at`.
    fn piece_bounds(&self, at: usize) -> io::Result<Range<usize>> {
        let (start, piece) = self.pieces.range(..=at).next_back().ok_or(io::ErrorKind::NotFound)?;
        let bounds = *start..start + piece.len();
        if bounds.contains(&at) { Ok(bounds) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn move_to_pipe(&mut self, part: Range<usize>, to: &mut Pipe) -> io::Result<()> {
        let mut at = part.start;
        while at < part.end {
            let Range { start, end } = self.piece_bounds(at)?;
            let next = end.min(part.end);
            let is_last = next == end;
            if next - at < MIN_SPLICE_BYTES && !is_last {
                self.copy_piece(start)?;
            }
            if matches!(self.pieces.get(&start), Some(PagePiece::Copied(_))) {
                to.write(self.copied_bytes(at..next)?)?;
                at = next;
                continue;
            }
            // A request for the pages before this part comes later; they wait in another pipe.
            let front = match self.pieces.get(&start) {
                Some(PagePiece::Piped(pipe)) if start < at => match pipe.new_sibling() {
                    Ok(front) => Some(front),
                    // Without a descriptor or a pipe: copy the piece, and the next round uses the
                    // copy.
                    Err(_) => {
                        self.copy_piece(start)?;
                        continue;
                    }
                },
                _ => None,
            };
            if let Some(PagePiece::Piped(mut pipe)) = self.pieces.remove(&start) {
                if let Some(mut front) = front {
                    let moved = pipe.splice_to(&mut front, at - start);
                    let rest = start + front.buffered();
                    self.pieces.insert(start, PagePiece::Piped(front));
                    if let Err(error) = moved {
                        self.pieces.insert(rest, PagePiece::Piped(pipe));
                        return Err(error);
                    }
                }
                let moved = pipe.splice_to(to, next - at);
                // Without room for all of it, the rest can still be taken.
                let rest = end - pipe.buffered();
                if rest < end {
                    self.pieces.insert(rest, PagePiece::Piped(pipe));
                }
                moved?;
            }
            at = next;
        }
        Ok(())
    }

    /// Copies all pieces that are in pipes, and returns the last error.
    fn copy_pieces(&mut self) -> io::Result<()> {
        let starts: Vec<usize> = self.pieces.keys().copied().collect();
        let mut result = Ok(());
        for start in starts {
            result = self.copy_piece(start).and(result);
        }
        result
    }

    /// Copies the piece that starts at `start`, if it is in a pipe.
    fn copy_piece(&mut self, start: usize) -> io::Result<()> {
        let Some(PagePiece::Piped(pipe)) = self.pieces.get_mut(&start) else { return Ok(()) };
        let end = start + pipe.buffered();
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => {
                let claim = self.claim.take().ok_or(io::ErrorKind::OutOfMemory)?;
                match self.buffers.allocate(self.len, claim) {
                    Ok(buffer) => none.insert(buffer),
                    Err(claim) => {
                        self.claim = Some(claim);
                        return Err(io::ErrorKind::OutOfMemory.into());
                    }
                }
            }
        };
        let copied = pipe.copy_out(&mut buffer[start..end]);
        match copied {
            Ok(()) => self.pieces.insert(start, PagePiece::Copied(end - start)),
            Err(_) => self.pieces.remove(&start),
        };
        copied
    }

    fn copied_bytes(&self, part: Range<usize>) -> io::Result<&[u8]> {
        match &self.buffer {
            Some(buffer) if self.has_copied(part.clone()) => Ok(&buffer[part]),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn has_copied(&self, part: Range<usize>) -> bool {
        let mut at = part.start;
        while at < part.end {
            match self.piece_bounds(at) {
                Ok(piece) if matches!(self.pieces[&piece.start], PagePiece::Copied(_)) => {
                    at = piece.end;
                }
                _ => return false,
            }
        }
        true
    }
}

impl PagePiece {
    fn len(&self) -> usize {
        match self {
            PagePiece::Piped(pipe) => pipe.buffered(),
            PagePiece::Copied(len) => *len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, PipePool, size_class};
    use super::*;

    const LEN: usize = 256 * 1024;

    fn bytes() -> Vec<u8> {
        (0..LEN).map(|i| (i / 7) as u8).collect()
    }

    fn piped(budget: &Budget, pipes: &PipePool) -> SegmentData {
        let buffers = BufferPool::new(budget.clone());
        let mut pipe = pipes.pipe().unwrap();
        pipe.write(&bytes()).unwrap();
        let claim = budget.claim(size_class(LEN as u64)).unwrap();
        SegmentData::from_pipe(pipe, claim, buffers)
    }

    fn given(data: &SegmentData, part: Range<usize>, pipes: &PipePool) -> io::Result<Vec<u8>> {
        let mut pipe = pipes.pipe().unwrap();
        data.move_to_pipe(part.clone(), &mut pipe)?;
        let mut bytes = vec![0; part.len()];
        pipe.copy_out(&mut bytes).map(|()| bytes)
    }

    #[test]
    fn each_part_is_taken_as_pages_once_in_any_order() {
        let budget = Budget::new(1 << 20);
        let pipes = PipePool::new(1 << 20).unwrap();
        let data = piped(&budget, &pipes);
        let page = 4096;
        let half = LEN / 2;
        for part in [LEN - page..LEN, half..LEN - page, 0..half] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part.clone()]);
            assert!(given(&data, part, &pipes).is_err(), "a pipe gave the same bytes twice");
        }
        let Storage::Pages(pages) = &data.storage else { panic!("not pages") };
        assert!(pages.lock().buffer.is_none(), "something was copied");
    }

    #[test]
    fn taking_a_small_part_copies_the_rest_to_memory() {
        let budget = Budget::new(1 << 20);
        let pipes = PipePool::new(1 << 20).unwrap();
        let data = piped(&budget, &pipes);
        let quarter = LEN / 4;
        given(&data, 0..quarter, &pipes).unwrap();
        for part in [quarter..quarter + 5, 3 * quarter..LEN, quarter..2 * quarter] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part]);
        }
        assert!(data.materialize(quarter..LEN));
        assert!(!data.materialize(0..quarter) && !data.is_fully_in_memory());
        assert!(given(&data, quarter - 1..quarter + 1, &pipes).is_err());
    }

    #[test]
    fn without_another_pipe_the_preceding_bytes_are_copied() {
        let budget = Budget::new(1 << 20);
        let pipes = PipePool::new(1 << 20).unwrap();
        let mut pipe = pipes.pipe().unwrap().without_siblings();
        pipe.write(&bytes()).unwrap();
        assert!(pipe.new_sibling().is_err());
        let claim = budget.claim(size_class(LEN as u64)).unwrap();
        let data = SegmentData::from_pipe(pipe, claim, BufferPool::new(budget));
        let quarter = LEN / 4;
        let half = LEN / 2;
        for part in [half..LEN, quarter..half, 0..quarter] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part]);
        }
    }

    #[test]
    fn bytes_that_do_not_fit_into_a_pipe_can_still_be_taken() {
        let budget = Budget::new(1 << 20);
        for copied in [false, true] {
            let data = piped(&budget, &PipePool::new(1 << 20).unwrap());
            assert!(!copied || data.materialize(0..LEN));
            let mut small = PipePool::new(LEN / 4).unwrap().pipe().unwrap();
            let error = data.move_to_pipe(0..LEN, &mut small).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let mut all = vec![0; small.buffered()];
            assert!(!all.is_empty());
            small.copy_out(&mut all).unwrap();
            data.append_to(all.len()..LEN, &mut all).unwrap();
            assert!(all == bytes(), "copied: {copied}");
        }
    }

    #[test]
    fn materialized_data_is_complete_and_claimed() {
        let budget = Budget::new(1 << 20);
        let pipes = PipePool::new(1 << 20).unwrap();
        let data = piped(&budget, &pipes);
        assert!(data.materialize(0..LEN));
        assert!(data.is_fully_in_memory());
        let mut all = Vec::new();
        data.append_to(0..LEN, &mut all).unwrap();
        assert_eq!(all, bytes());
        assert_eq!(budget.used(), size_class(LEN as u64));
        drop(data);
        assert_eq!(budget.used(), 0);
    }
}
