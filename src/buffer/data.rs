//! File data as it came from a replica: copied into memory, or as the pages of
//! the replica's page cache themselves.
//!
//! Pages wait in a pipe and go from there into the reply without being copied
//! in user space (splice(2)). Each can be taken once. Whoever wants them more
//! often, or in small parts, has what is left copied into memory first
//! ([`Data::settle`]). Parts may be taken in any order: what lies before one is
//! moved to a pipe of its own, or all is copied where no further pipe can be made.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use parking_lot::Mutex;

use super::pipe::Pipe;
use super::{Buffer, BufferPool, Reservation};

/// The bytes of one segment.
pub struct Data {
    len: usize,
    held: Held,
}

enum Held {
    Memory(Buffer),
    Pages(Box<Mutex<Pages>>),
}

/// What is left of a segment's pages.
struct Pages {
    /// By first byte, disjoint; what has been taken is in none.
    pieces: BTreeMap<usize, Piece>,
    /// As long as the segment; its copied pieces lie where they belong. Made
    /// when the first one is copied.
    buffer: Option<Buffer>,
    /// Pays for the pages, and for the buffer once there is one.
    claim: Option<Reservation>,
    buffers: BufferPool,
    len: usize,
}

enum Piece {
    /// In a pipe of its own, all that it holds.
    Piped(Pipe),
    /// In the buffer, so many bytes.
    Copied(usize),
}

/// The least that is handed on as pages, unless it is the last of its piece.
/// What is smaller is copied together with the rest: one copy costs less than
/// three system calls for each of its parts.
const SMALLEST_SPLICE: usize = 32 * 1024;

impl Data {
    /// Bytes in memory.
    pub fn memory(buffer: Buffer) -> Self {
        Self { len: buffer.len(), held: Held::Memory(buffer) }
    }

    /// All that `pipe` holds, paid by `claim`; `buffers` is where it is copied
    /// to if need be.
    pub fn pages(pipe: Pipe, claim: Reservation, buffers: BufferPool) -> Self {
        buffers.make_room();
        let len = pipe.holds();
        let pieces = BTreeMap::from([(0, Piece::Piped(pipe))]);
        let pages = Pages { pieces, buffer: None, claim: Some(claim), buffers, len };
        Self { len, held: Held::Pages(Box::new(Mutex::new(pages))) }
    }

    /// Number of bytes that there were at first.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, if they were read into memory.
    pub fn as_memory(&self) -> Option<&[u8]> {
        match &self.held {
            Held::Memory(buffer) => Some(buffer),
            Held::Pages(_) => None,
        }
    }

    /// Whether every byte is still here and stays.
    pub fn is_whole(&self) -> bool {
        match &self.held {
            Held::Memory(_) => true,
            Held::Pages(pages) => pages.lock().has_copied(0..self.len),
        }
    }

    /// Sees to it that what has not been taken stays; whether `part` is among it.
    pub fn settle(&self, part: Range<usize>) -> bool {
        let Held::Pages(pages) = &self.held else { return true };
        let mut pages = pages.lock();
        let piped: Vec<usize> = pages.pieces.keys().copied().collect();
        for start in piped {
            if let Err(error) = pages.copy(start) {
                tracing::error!(%error, "pages in a pipe could not be read");
            }
        }
        pages.has_copied(part)
    }

    /// Gives a part of the bytes to `pipe`, as pages where it is large enough;
    /// those are gone then.
    ///
    /// # Errors
    /// Where the part is not here any more, or does not fit.
    pub fn give(&self, part: Range<usize>, to: &mut Pipe) -> io::Result<()> {
        match &self.held {
            Held::Memory(buffer) => to.put(&buffer[part]),
            Held::Pages(pages) => pages.lock().give(part, to),
        }
    }

    /// Appends a copy of a part of the bytes to `bytes`.
    ///
    /// # Errors
    /// Where the part is not here any more.
    pub fn append_to(&self, part: Range<usize>, bytes: &mut Vec<u8>) -> io::Result<()> {
        if !self.settle(part.clone()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &self.held {
            Held::Memory(buffer) => bytes.extend_from_slice(&buffer[part]),
            Held::Pages(pages) => bytes.extend_from_slice(pages.lock().copied(part)?),
        }
        Ok(())
    }
}

impl Pages {
    /// The piece that `at` lies in.
    fn piece(&self, at: usize) -> io::Result<(usize, usize)> {
        let (start, piece) = self.pieces.range(..=at).next_back().ok_or(io::ErrorKind::NotFound)?;
        let end = start + piece.len();
        if at < end { Ok((*start, end)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn give(&mut self, part: Range<usize>, to: &mut Pipe) -> io::Result<()> {
        let mut at = part.start;
        while at < part.end {
            let (start, end) = self.piece(at)?;
            let next = end.min(part.end);
            let is_last = next == end;
            if next - at < SMALLEST_SPLICE && !is_last {
                self.copy(start)?;
            }
            if matches!(self.pieces.get(&start), Some(Piece::Copied(_))) {
                to.put(self.copied(at..next)?)?;
                at = next;
                continue;
            }
            // Who wants what lies before is late; it waits in a pipe of its own.
            let front = match self.pieces.get(&start) {
                Some(Piece::Piped(pipe)) if start < at => match pipe.another() {
                    Ok(front) => Some(front),
                    // Without descriptors, or pipes: the next round takes the copy.
                    Err(_) => {
                        self.copy(start)?;
                        continue;
                    }
                },
                _ => None,
            };
            if let Some(Piece::Piped(mut pipe)) = self.pieces.remove(&start) {
                if let Some(mut front) = front {
                    pipe.move_to(&mut front, at - start)?;
                    self.pieces.insert(start, Piece::Piped(front));
                }
                pipe.move_to(to, next - at)?;
                if !is_last {
                    self.pieces.insert(next, Piece::Piped(pipe));
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Copies the piece that begins at `start`, if it is in a pipe.
    fn copy(&mut self, start: usize) -> io::Result<()> {
        let Some(Piece::Piped(pipe)) = self.pieces.get_mut(&start) else { return Ok(()) };
        let end = start + pipe.holds();
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => {
                let claim = self.claim.take().ok_or(io::ErrorKind::OutOfMemory)?;
                match self.buffers.buffer(self.len, claim) {
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
            Ok(()) => self.pieces.insert(start, Piece::Copied(end - start)),
            Err(_) => self.pieces.remove(&start),
        };
        copied
    }

    fn copied(&self, part: Range<usize>) -> io::Result<&[u8]> {
        match &self.buffer {
            Some(buffer) if self.has_copied(part.clone()) => Ok(&buffer[part]),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn has_copied(&self, part: Range<usize>) -> bool {
        let mut at = part.start;
        while at < part.end {
            match self.piece(at) {
                Ok((start, end)) if matches!(self.pieces[&start], Piece::Copied(_)) => at = end,
                _ => return false,
            }
        }
        true
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Piped(pipe) => pipe.holds(),
            Piece::Copied(len) => *len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, Pipes, size_class};
    use super::*;

    const LEN: usize = 256 * 1024;

    fn bytes() -> Vec<u8> {
        (0..LEN).map(|i| (i / 7) as u8).collect()
    }

    fn piped(budget: &Budget, pipes: &Pipes) -> Data {
        let buffers = BufferPool::new(budget.clone());
        let mut pipe = pipes.pipe().unwrap();
        pipe.put(&bytes()).unwrap();
        let claim = budget.claim(size_class(LEN as u64)).unwrap();
        Data::pages(pipe, claim, buffers)
    }

    fn given(data: &Data, part: Range<usize>, pipes: &Pipes) -> io::Result<Vec<u8>> {
        let mut pipe = pipes.pipe().unwrap();
        data.give(part.clone(), &mut pipe)?;
        let mut bytes = vec![0; part.len()];
        pipe.copy_out(&mut bytes).map(|()| bytes)
    }

    #[test]
    fn parts_are_taken_as_pages_in_any_order_and_once() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        let (page, half) = (4096, LEN / 2);
        for part in [LEN - page..LEN, half..LEN - page, 0..half] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part.clone()]);
            assert!(given(&data, part, &pipes).is_err(), "a pipe gave the same bytes twice");
        }
        let Held::Pages(pages) = &data.held else { panic!("not pages") };
        assert!(pages.lock().buffer.is_none(), "something was copied");
    }

    #[test]
    fn who_takes_a_small_part_has_the_rest_copied_and_it_stays() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        let quarter = LEN / 4;
        given(&data, 0..quarter, &pipes).unwrap();
        for part in [quarter..quarter + 5, 3 * quarter..LEN, quarter..2 * quarter] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part]);
        }
        assert!(data.settle(quarter..LEN));
        assert!(!data.settle(0..quarter) && !data.is_whole());
        assert!(given(&data, quarter - 1..quarter + 1, &pipes).is_err());
    }

    #[test]
    fn what_lies_before_is_copied_where_no_further_pipe_can_be_made() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let mut pipe = pipes.pipe().unwrap().last_of_its_kind();
        pipe.put(&bytes()).unwrap();
        assert!(pipe.another().is_err());
        let claim = budget.claim(size_class(LEN as u64)).unwrap();
        let data = Data::pages(pipe, claim, BufferPool::new(budget));
        let (quarter, half) = (LEN / 4, LEN / 2);
        for part in [half..LEN, quarter..half, 0..quarter] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part]);
        }
    }

    #[test]
    fn settled_at_once_it_is_whole_and_paid_for() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        assert!(data.settle(0..LEN));
        assert!(data.is_whole());
        let mut all = Vec::new();
        data.append_to(0..LEN, &mut all).unwrap();
        assert_eq!(all, bytes());
        assert_eq!(budget.used(), size_class(LEN as u64));
        drop(data);
        assert_eq!(budget.used(), 0);
    }
}
