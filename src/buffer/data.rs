//! File data as it came from a replica: copied into memory, or as the pages of
//! the replica's page cache themselves.
//!
//! Pages wait in a pipe and go from there into the reply without being copied
//! in user space (splice(2)). A pipe gives its bytes once and in order. Whoever
//! wants them otherwise has all that is left copied into memory first
//! ([`Data::settle`]); what has been taken before is gone then.

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
    Pages(Mutex<Pages>, BufferPool),
}

enum Pages {
    /// Everything before `head` has been taken. The claim pays for the pages.
    Piped { pipe: Pipe, head: usize, claim: Reservation },
    /// Everything from `base` on has been copied.
    Copied { buffer: Buffer, base: usize },
    /// Copying failed.
    Lost,
}

/// The part of a pipe's bytes that is handed on as pages. What is smaller is
/// copied together with the rest of its segment: one copy costs less than three
/// system calls for each of its parts.
const SMALLEST_SPLICE: usize = 32 * 1024;

impl Data {
    /// Bytes in memory.
    pub fn memory(buffer: Buffer) -> Self {
        Self { len: buffer.len(), held: Held::Memory(buffer) }
    }

    /// All that `pipe` holds, paid by `claim`; `buffers` is where it is copied
    /// to if need be.
    pub fn pages(pipe: Pipe, claim: Reservation, buffers: BufferPool) -> Self {
        let len = pipe.holds();
        let pages = Pages::Piped { pipe, head: 0, claim };
        Self { len, held: Held::Pages(Mutex::new(pages), buffers) }
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
            Held::Pages(..) => None,
        }
    }

    /// Whether they can be taken only once.
    pub fn is_piped(&self) -> bool {
        match &self.held {
            Held::Memory(_) => false,
            Held::Pages(pages, _) => matches!(&*pages.lock(), Pages::Piped { .. }),
        }
    }

    /// Whether every byte is still here and stays.
    pub fn is_whole(&self) -> bool {
        match &self.held {
            Held::Memory(_) => true,
            Held::Pages(pages, _) => matches!(&*pages.lock(), Pages::Copied { base: 0, .. }),
        }
    }

    /// Sees to it that what has not been taken stays; returns where that begins.
    pub fn settle(&self) -> usize {
        let Held::Pages(pages, buffers) = &self.held else { return 0 };
        let mut pages = pages.lock();
        copy(&mut pages, self.len, buffers);
        match &*pages {
            Pages::Copied { base, .. } => *base,
            Pages::Piped { .. } | Pages::Lost => self.len,
        }
    }

    /// Gives a part of the bytes to `pipe`, once; as pages where it is next.
    ///
    /// # Errors
    /// Where the part is not here any more, or does not fit.
    pub fn give(&self, part: Range<usize>, to: &mut Pipe) -> io::Result<()> {
        match &self.held {
            Held::Memory(buffer) => to.put(&buffer[part]),
            Held::Pages(pages, buffers) => {
                let mut pages = pages.lock();
                if let Pages::Piped { pipe, head, .. } = &mut *pages
                    && *head == part.start
                    && part.len() >= SMALLEST_SPLICE
                {
                    *head = part.end;
                    return pipe.move_to(to, part.len());
                }
                copy(&mut pages, self.len, buffers);
                to.put(copied(&pages, part)?)
            }
        }
    }

    /// Appends a copy of a part of the bytes to `bytes`.
    ///
    /// # Errors
    /// Where the part is not here any more.
    pub fn append_to(&self, part: Range<usize>, bytes: &mut Vec<u8>) -> io::Result<()> {
        match &self.held {
            Held::Memory(buffer) => bytes.extend_from_slice(&buffer[part]),
            Held::Pages(pages, buffers) => {
                let mut pages = pages.lock();
                copy(&mut pages, self.len, buffers);
                bytes.extend_from_slice(copied(&pages, part)?);
            }
        }
        Ok(())
    }
}

fn copied(pages: &Pages, part: Range<usize>) -> io::Result<&[u8]> {
    match pages {
        Pages::Copied { buffer, base } if *base <= part.start => {
            Ok(&buffer[part.start - base..part.end - base])
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Copies what is left in the pipe.
fn copy(pages: &mut Pages, len: usize, buffers: &BufferPool) {
    if !matches!(pages, Pages::Piped { .. }) {
        return;
    }
    let Pages::Piped { mut pipe, head, claim } = std::mem::replace(pages, Pages::Lost) else {
        return;
    };
    let mut buffer = buffers.buffer(len - head, claim);
    match pipe.copy_out(&mut buffer) {
        Ok(()) => *pages = Pages::Copied { buffer, base: head },
        Err(error) => tracing::error!(%error, "pages in a pipe could not be read"),
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
    fn what_is_taken_in_order_stays_in_pipes() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        let half = LEN / 2;
        assert_eq!(given(&data, 0..half, &pipes).unwrap(), bytes()[..half]);
        assert!(data.is_piped());
        assert_eq!(given(&data, half..LEN, &pipes).unwrap(), bytes()[half..]);
        assert!(given(&data, 0..half, &pipes).is_err(), "a pipe gave the same bytes twice");
    }

    #[test]
    fn out_of_order_the_rest_is_copied_and_stays() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        let quarter = LEN / 4;
        given(&data, 0..quarter, &pipes).unwrap();
        for part in [3 * quarter..LEN, quarter..2 * quarter, quarter..quarter + 5] {
            assert_eq!(given(&data, part.clone(), &pipes).unwrap(), bytes()[part]);
        }
        assert!(given(&data, 0..quarter, &pipes).is_err());
        assert!(!data.is_whole());
    }

    #[test]
    fn settled_at_once_it_is_whole_and_paid_for() {
        let (budget, pipes) = (Budget::new(1 << 20), Pipes::new(1 << 20).unwrap());
        let data = piped(&budget, &pipes);
        assert_eq!(data.settle(), 0);
        assert!(data.is_whole());
        let mut all = Vec::new();
        data.append_to(0..LEN, &mut all).unwrap();
        assert_eq!(all, bytes());
        assert_eq!(budget.used(), size_class(LEN as u64));
        drop(data);
        assert_eq!(budget.used(), 0);
    }
}
