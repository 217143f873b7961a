//! Reads: the data goes into the caller's buffer. A long read is made by several calls.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use super::Client;
use crate::nfs::attributes::FileHandle;
use crate::nfs::data_room::DataRoom;
use crate::nfs::error::NfsError;
use crate::nfs::procedures::{Caller, PieceToRead, ReadEnd, ReadResult, ReadSink};
use crate::nfs::rpc::{self, IsUnwanted, RpcError};

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRange {
    /// The file.
    pub file: FileHandle,
    /// The first byte.
    pub offset: u64,
    /// The longest read that one call makes. Longer ones are made by several calls at once.
    pub piece: NonZeroUsize,
}

impl Client {
    /// Reads a file into `sink`, and does not wait for the reply. The read also ends when
    /// `is_unwanted` says so. A server that cannot read yet (`NFS3ERR_JUKEBOX`, `NFS4ERR_DELAY`) is asked
    /// again.
    pub fn submit_read(
        &self,
        caller: Caller<'_>,
        range: ReadRange,
        mut sink: Box<dyn ReadSink>,
        is_unwanted: Option<IsUnwanted>,
    ) {
        let ReadRange { file, offset, piece } = range;
        let wanted = sink.room().capacity();
        if wanted <= piece.get() {
            return self.0.submit_read(caller, PieceToRead { file, offset, sink }, is_unwanted);
        }
        // Several replies come at once, and a pipe takes one after the other.
        let Some(memory) = sink.room().use_memory() else {
            return sink.end(Err(RpcError::NoMemory.into()));
        };
        let pieces = wanted.div_ceil(piece.get());
        let parts: Vec<LentBuffer> = memory.chunks_mut(piece.get()).map(LentBuffer::new).collect();
        let ends = PieceEnds { sink, piece: piece.get(), left: pieces, ends: vec![None; pieces] };
        let ends = Arc::new(Mutex::new(Some(ends)));
        let mut offset = offset;
        for (index, buffer) in parts.into_iter().enumerate() {
            let len = buffer.len as u64;
            let sink = Box::new(PieceRead { buffer, index, ends: Arc::clone(&ends) });
            let part = PieceToRead { file, offset, sink };
            self.0.submit_read(caller, part, is_unwanted.clone());
            offset = offset.saturating_add(len);
        }
    }

    /// Reads a file into `buffer`.
    ///
    /// # Errors
    /// The server's status, or why there was no reply in time. If only later pieces fail, the result
    /// ends before them.
    pub fn read(&self, caller: Caller<'_>, range: ReadRange, buffer: &mut [u8]) -> ReadResult {
        rpc::check_may_block()?;
        loop {
            let (sender, receiver) = sync_channel(1);
            let lent = BlockedRead { buffer: LentBuffer::new(buffer), sender };
            let read = LentRead(receiver);
            self.submit_read(caller, range, Box::new(lent), None);
            match read.wait() {
                Err(NfsError::NoSession) => self.0.wait_for_read(caller)?,
                answer => return answer,
            }
        }
    }
}

/// One of several calls that make a read.
struct PieceRead {
    buffer: LentBuffer,
    index: usize,
    ends: Arc<Mutex<Option<PieceEnds>>>,
}

/// How the calls of a read have ended.
struct PieceEnds {
    sink: Box<dyn ReadSink>,
    piece: usize,
    left: usize,
    ends: Vec<Option<ReadResult>>,
}

impl ReadSink for PieceRead {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.buffer
    }

    fn end(self: Box<Self>, result: ReadResult) {
        // The buffer is not used any more.
        let Self { index, ends, .. } = *self;
        let mut shared = ends.lock();
        let is_last = shared.as_mut().is_some_and(|all| {
            all.ends[index] = Some(result);
            all.left -= 1;
            all.left == 0
        });
        let all = if is_last { shared.take() } else { None };
        drop(shared);
        if let Some(PieceEnds { sink, piece, ends, .. }) = all {
            sink.end(join_pieces(ends.into_iter().flatten(), piece));
        }
    }
}

/// What all pieces of a buffer together have read: up to the first that is not full.
fn join_pieces(ends: impl Iterator<Item = ReadResult>, piece: usize) -> ReadResult {
    let mut all = ReadEnd { bytes: 0, is_end: false };
    for (index, end) in ends.enumerate() {
        let end = match end {
            Err(error) if index == 0 => return Err(error),
            Err(_) => break,
            Ok(end) => end,
        };
        all.bytes += end.bytes;
        all.is_end = end.is_end;
        if end.is_end || end.bytes < piece {
            break;
        }
    }
    Ok(all)
}

/// A read whose caller is blocked.
struct BlockedRead {
    buffer: LentBuffer,
    sender: SyncSender<ReadResult>,
}

impl ReadSink for BlockedRead {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.buffer
    }

    fn end(self: Box<Self>, result: ReadResult) {
        let _ = self.sender.send(result);
    }
}

/// Keeps a caller's buffer borrowed until the read into it has ended.
struct LentRead(Receiver<ReadResult>);

impl LentRead {
    fn wait(self) -> ReadResult {
        // Without a result, the transport has dropped the sink.
        self.0.recv().unwrap_or(Err(RpcError::Stopped.into()))
    }
}

impl Drop for LentRead {
    fn drop(&mut self) {
        // Also if this thread panics. After the result, or without the sink, this returns at once.
        let _ = self.0.recv();
    }
}

/// Room in memory that another value owns, for the transport.
struct LentBuffer {
    start: *mut u8,
    len: usize,
}

// The owner of the bytes does not touch them while this value exists:
// - `Client::read` borrows its caller's buffer mutably, and `LentRead` waits until the sink has sent
//   the result, which is the last that it does, or was dropped.
// - `PieceEnds` has the sink that owns the bytes, and uses it only after all pieces have ended. The
//   parts do not overlap.
// SAFETY: so there is one user of the bytes at a time, on whatever thread.
unsafe impl Send for LentBuffer {}

impl LentBuffer {
    fn new(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

impl DataRoom for LentBuffer {
    fn capacity(&self) -> usize {
        self.len
    }

    fn use_memory(&mut self) -> Option<&mut [u8]> {
        // SAFETY: `start` and `len` are those of a live mutable slice, see above.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start, self.len) })
    }
}
