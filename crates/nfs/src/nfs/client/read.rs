//! READ: the data goes into the caller's buffer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::xdr_codec::{self, Pack};
use parking_lot::Mutex;

use super::{Caller, Client, FIRST_JUKEBOX_WAIT, MAX_JUKEBOX_WAIT, procedure};
use crate::nfs::attributes::{Attributes, FileHandle};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{
    self, Again, CallOptions, DataHead, DataReply, DataSink, DataTarget, IsUnwanted, RpcError,
    decode_header,
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

/// The result of a read.
pub type ReadResult = std::result::Result<ReadEnd, NfsError>;

/// The caller of a read that blocks no thread. The client has it to itself until the read has ended.
pub trait ReadSink: Send {
    /// The room for the data.
    fn bytes(&mut self) -> &mut [u8];

    /// The read has ended. This must not block, because other replies wait for it.
    fn end(self: Box<Self>, result: ReadResult);
}

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
    /// `is_unwanted` says so. A server that cannot read yet (`NFS3ERR_JUKEBOX`) is asked again.
    pub fn submit_read(
        &self,
        caller: Caller<'_>,
        range: ReadRange,
        mut sink: Box<dyn ReadSink>,
        is_unwanted: Option<IsUnwanted>,
    ) {
        let wanted = sink.bytes().len();
        if wanted <= range.piece.get() {
            return self.submit_piece(
                caller,
                range,
                Box::new(WholeRead { sink, wanted, wait: FIRST_JUKEBOX_WAIT }),
                is_unwanted,
            );
        }
        let pieces = wanted.div_ceil(range.piece.get());
        let parts: Vec<LentBuffer> =
            sink.bytes().chunks_mut(range.piece.get()).map(LentBuffer::new).collect();
        let ends =
            PieceEnds { sink, piece: range.piece.get(), left: pieces, ends: vec![None; pieces] };
        let ends = Arc::new(Mutex::new(Some(ends)));
        let mut offset = range.offset;
        for (index, buffer) in parts.into_iter().enumerate() {
            let part = ReadRange { offset, ..range };
            offset = offset.saturating_add(buffer.len as u64);
            let piece =
                PieceRead { buffer, index, ends: Arc::clone(&ends), wait: FIRST_JUKEBOX_WAIT };
            self.submit_piece(caller, part, Box::new(piece), is_unwanted.clone());
        }
    }

    fn submit_piece(
        &self,
        caller: Caller<'_>,
        range: ReadRange,
        mut sink: Box<dyn DataSink>,
        is_unwanted: Option<IsUnwanted>,
    ) {
        let count = u32::try_from(sink.bytes().len()).unwrap_or(u32::MAX);
        let arguments = ReadArguments { file: range.file, offset: range.offset, count };
        let options = CallOptions {
            procedure: procedure(NFS_PROGRAM::NFSPROC3_READ),
            identity: Some(caller.identity),
            deadline: caller.deadline,
        };
        let target = DataTarget { sink, decode: decode_data_head };
        self.transport.call_for_data(&options, &arguments, target, is_unwanted);
    }

    /// Reads a file into `buffer`.
    ///
    /// # Errors
    /// The server's status, or why there was no reply in time. If only later pieces fail, the result
    /// ends before them.
    pub fn read(&self, caller: Caller<'_>, range: ReadRange, buffer: &mut [u8]) -> ReadResult {
        rpc::check_may_block()?;
        let (sender, receiver) = sync_channel(1);
        let lent = BlockedRead { buffer: LentBuffer::new(buffer), sender };
        let read = LentRead(receiver);
        self.submit_read(caller, range, Box::new(lent), None);
        read.wait()
    }
}

/// A read that one call makes.
struct WholeRead {
    sink: Box<dyn ReadSink>,
    wanted: usize,
    /// How long it waits if the server cannot read yet.
    wait: Duration,
}

impl DataSink for WholeRead {
    fn bytes(&mut self) -> &mut [u8] {
        self.sink.bytes()
    }

    fn end(mut self: Box<Self>, reply: std::result::Result<DataReply, RpcError>) -> Option<Again> {
        match read_end(reply, self.wanted) {
            Err(error) if error.is_jukebox() => {
                let after = take_wait(&mut self.wait);
                Some(Again { sink: self, after })
            }
            result => {
                self.sink.end(result);
                None
            }
        }
    }
}

/// One of several calls that make a read.
struct PieceRead {
    buffer: LentBuffer,
    index: usize,
    ends: Arc<Mutex<Option<PieceEnds>>>,
    /// How long it waits if the server cannot read yet.
    wait: Duration,
}

/// The next wait for a server that cannot read yet; each one is twice as long as the one before.
fn take_wait(wait: &mut Duration) -> Duration {
    std::mem::replace(wait, (*wait * 2).min(MAX_JUKEBOX_WAIT))
}

/// How the calls of a read have ended.
struct PieceEnds {
    sink: Box<dyn ReadSink>,
    piece: usize,
    left: usize,
    ends: Vec<Option<ReadResult>>,
}

impl DataSink for PieceRead {
    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes()
    }

    fn end(mut self: Box<Self>, reply: std::result::Result<DataReply, RpcError>) -> Option<Again> {
        let end = read_end(reply, self.buffer.len);
        if end.as_ref().is_err_and(NfsError::is_jukebox) {
            let after = take_wait(&mut self.wait);
            return Some(Again { sink: self, after });
        }
        // The buffer is not used any more.
        let Self { index, ends, .. } = *self;
        let mut shared = ends.lock();
        let is_last = shared.as_mut().is_some_and(|all| {
            all.ends[index] = Some(end);
            all.left -= 1;
            all.left == 0
        });
        let all = if is_last { shared.take() } else { None };
        drop(shared);
        if let Some(PieceEnds { sink, piece, ends, .. }) = all {
            sink.end(join_pieces(ends.into_iter().flatten(), piece));
        }
        None
    }
}

/// What all pieces of a buffer together have read: up to the first that is not full.
fn join_pieces(ends: impl Iterator<Item = ReadResult>, piece: usize) -> ReadResult {
    let mut all = ReadEnd { bytes: 0, is_end: false, attributes: None };
    for (index, end) in ends.enumerate() {
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

/// A read whose caller is blocked.
struct BlockedRead {
    buffer: LentBuffer,
    sender: SyncSender<ReadResult>,
}

impl ReadSink for BlockedRead {
    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes()
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

pub(in crate::nfs) fn decode_data_head(bytes: &[u8]) -> Result<DataHead> {
    decode_head(bytes).map(|head| match head {
        ReadHead::Data { data, .. } => DataHead { data },
        ReadHead::Failed(_) => DataHead { data: 0 },
    })
}

pub(in crate::nfs) fn read_end(
    reply: std::result::Result<DataReply, RpcError>,
    wanted: usize,
) -> ReadResult {
    let reply = reply?;
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
