//! Takes the bytes of one connection apart into replies (record marking, RFC 5531, section 11).
//!
//! A reply is a record of one or more fragments, each with its length in front. Of a reply with
//! data, the bytes before the data are collected first, exactly as many as its decoder asks for.
//! Then the data is received directly into the caller's buffer, and with the same system call the
//! beginning of the next reply into the receiver's own. So data is copied once, by the kernel. If the
//! caller has a pipe, the packets' pages move there instead, without a copy, but for the data that
//! has come with the bytes before it.
//!
//! A reply that no call waits for (its deadline has passed, or there never was a call) is
//! discarded.
//!
//! *Invariant:* a call that the receiver has taken is completed once, or returned by
//! [`Receiver::take_ended`] or [`Receiver::into_unfinished`]. Its buffer is not touched afterwards.

use std::io::{self, IoSliceMut, Read};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::pending::{DataReply, PendingCall, RpcError};
use crate::nfs::data_room::{DataRoom, put};
use crate::nfs::xdr::DecodeError;

/// Room for replies without data, and for the beginning of a reply that follows data. More would
/// copy more data of replies that follow one another; less would take more system calls for small
/// replies.
const INBOX: usize = 8 << 10;

/// The length of a record mark, and of a transaction number.
const WORD: usize = 4;

/// The last fragment of a record has this bit in its mark.
const LAST_FRAGMENT: u32 = 1 << 31;

/// The most bytes that may precede a reply's data: header, verifier, attributes.
const MAX_HEAD: usize = 1024;

/// The calls that wait for replies on this connection.
pub(crate) trait Calls {
    /// Takes the call with this transaction number out; `None` if no call waits for it.
    fn take(&mut self, xid: u32) -> Option<PendingCall>;

    /// A call has completed, or failed because of its reply.
    fn completed(&mut self, load: usize);

    /// A call that has completed is to be made again later.
    fn repeat(&mut self, call: PendingCall);
}

/// Where a connection's bytes come from: a socket that does not block.
pub(crate) trait Source: Read {
    /// Moves up to `len` bytes into `pipe`; `None` if that takes nothing more.
    ///
    /// # Errors
    /// As those of a read.
    fn splice_to(&mut self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Option<usize>>;
}

/// One connection's incoming bytes.
pub(crate) struct Receiver {
    inbox: Box<[u8]>,
    /// The bytes of the inbox that are not taken yet.
    start: usize,
    end: usize,
    mark: Mark,
    record: Record,
}

/// The bytes that one receive has delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// 0 if the server has closed the connection.
    pub(crate) bytes: usize,
    /// Whether the socket gave less than was asked for: it is empty, or a pipe is full.
    pub(crate) is_all: bool,
}

/// Where the fragment ends.
#[derive(Default)]
struct Mark {
    /// The bytes of an incomplete record mark.
    bytes: [u8; WORD],
    len: usize,
    /// The bytes of the fragment that have not come yet.
    left: usize,
    is_last: bool,
}

/// The record that is being received.
enum Record {
    /// None of its bytes have come.
    Begins,
    /// Its transaction number is incomplete.
    Number(Vec<u8>),
    /// A reply without data.
    Message { call: PendingCall, bytes: Vec<u8> },
    /// A reply with data, of which the decoder wants `needed` bytes before the data.
    Head { call: PendingCall, head: Vec<u8>, needed: usize },
    /// Data, which goes into the call's buffer.
    Data { call: PendingCall, head: Vec<u8>, filled: usize, len: usize },
    /// Bytes that no call wants.
    Discarded,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            inbox: vec![0; INBOX].into_boxed_slice(),
            start: 0,
            end: 0,
            mark: Mark::default(),
            record: Record::Begins,
        }
    }

    /// Receives once, and completes the calls whose replies are there.
    ///
    /// # Errors
    /// The socket's; `WouldBlock` if no bytes are there.
    pub(crate) fn receive(
        &mut self,
        source: &mut impl Source,
        calls: &mut impl Calls,
    ) -> io::Result<Received> {
        let received = self.fill(source, calls)?;
        while self.step(calls) {}
        Ok(received)
    }

    /// The data of the current reply that has not come yet: so many bytes follow before anything
    /// else.
    pub(super) fn missing_data(&self) -> usize {
        match &self.record {
            Record::Data { filled, len, .. } => (len - filled).min(self.mark.left),
            _ => 0,
        }
    }

    /// The call whose reply is being received, if it is over ([`PendingCall::is_over`]). The rest of
    /// the reply will be discarded.
    pub(super) fn take_ended(&mut self, now: Instant) -> Option<PendingCall> {
        let call = match &self.record {
            Record::Message { call, .. }
            | Record::Head { call, .. }
            | Record::Data { call, .. } => call,
            Record::Begins | Record::Number(_) | Record::Discarded => return None,
        };
        match call.is_over(now) {
            true => std::mem::replace(&mut self.record, Record::Discarded).into_call(),
            false => None,
        }
    }

    /// The call whose reply was being received when the connection ended.
    pub(crate) fn into_unfinished(self) -> Option<PendingCall> {
        self.record.into_call()
    }

    /// Receives into the room of the call, as far as the fragment goes, and into the inbox.
    fn fill(&mut self, source: &mut impl Source, calls: &mut impl Calls) -> io::Result<Received> {
        debug_assert_eq!(self.start, self.end, "every step takes all that it can");
        self.start = 0;
        self.end = 0;
        let wanted = self.missing_data();
        if wanted > 0
            && let Record::Data { call, filled, .. } = &mut self.record
            && let Some(target) = call.data_target()
        {
            match receive_data(source, target.sink.room(), *filled, wanted, &mut self.inbox)? {
                RoomFilled::Some { data, inbox, received } => {
                    *filled += data;
                    self.mark.left -= data;
                    self.end = inbox;
                    return Ok(received);
                }
                RoomFilled::NoMemory => {
                    let record = std::mem::replace(&mut self.record, Record::Discarded);
                    if let Some(call) = record.into_call() {
                        fail_without_memory(call, calls);
                    }
                }
            }
        }
        self.end = source.read(&mut self.inbox)?;
        Ok(Received { bytes: self.end, is_all: self.end < INBOX })
    }

    /// Takes some bytes out of the inbox, or ends a record. Returns false if it needs more bytes.
    fn step(&mut self, calls: &mut impl Calls) -> bool {
        if let Record::Data { filled, len, .. } = &self.record
            && filled == len
        {
            let record = std::mem::replace(&mut self.record, Record::Discarded);
            complete_data(record, calls);
            return true;
        }
        if self.mark.left == 0 {
            return self.step_mark(calls);
        }
        let wanted = self.mark.left.min(self.record.wanted());
        let taken = wanted.min(self.end - self.start);
        if taken == 0 {
            return false;
        }
        let bytes = &self.inbox[self.start..self.start + taken];
        self.start += taken;
        self.mark.left -= taken;
        let record = std::mem::replace(&mut self.record, Record::Begins);
        self.record = record.with(bytes, calls);
        true
    }

    /// At the end of a fragment: ends the record, or reads the next mark.
    fn step_mark(&mut self, calls: &mut impl Calls) -> bool {
        if self.mark.is_last {
            self.mark.is_last = false;
            std::mem::replace(&mut self.record, Record::Begins).end(calls);
            return true;
        }
        let Mark { bytes, len, left, is_last } = &mut self.mark;
        let taken = (WORD - *len).min(self.end - self.start);
        bytes[*len..*len + taken].copy_from_slice(&self.inbox[self.start..self.start + taken]);
        self.start += taken;
        *len += taken;
        if *len < WORD {
            return false;
        }
        *len = 0;
        let mark = u32::from_be_bytes(*bytes);
        *is_last = mark & LAST_FRAGMENT != 0;
        *left = (mark & !LAST_FRAGMENT) as usize;
        true
    }
}

impl Record {
    /// The number of bytes that it takes next, at most.
    fn wanted(&self) -> usize {
        match self {
            Self::Begins => WORD,
            Self::Number(bytes) => WORD - bytes.len(),
            Self::Head { head, needed, .. } => needed - head.len(),
            Self::Data { filled, len, .. } => len - filled,
            Self::Message { .. } | Self::Discarded => usize::MAX,
        }
    }

    /// Takes the bytes.
    fn with(self, bytes: &[u8], calls: &mut impl Calls) -> Self {
        match self {
            Self::Begins => Self::Number(bytes.to_vec()).examined(calls),
            Self::Number(mut number) => {
                number.extend_from_slice(bytes);
                Self::Number(number).examined(calls)
            }
            Self::Message { call, bytes: mut message } => {
                if call.max_message().is_none_or(|max| message.len() + bytes.len() > max) {
                    return fail(call, RpcError::Malformed("it is too long"), calls);
                }
                message.extend_from_slice(bytes);
                Self::Message { call, bytes: message }
            }
            Self::Head { call, mut head, needed } => {
                head.extend_from_slice(bytes);
                Self::Head { call, head, needed }.examined(calls)
            }
            Self::Data { mut call, head, filled, len } => {
                let target = call.data_target();
                if target.is_none_or(|target| put(target.sink.room(), filled, bytes)) {
                    Self::Data { call, head, filled: filled + bytes.len(), len }
                } else {
                    fail_without_memory(call, calls)
                }
            }
            Self::Discarded => Self::Discarded,
        }
    }

    /// Decides what the record is, once its bytes say so.
    fn examined(self, calls: &mut impl Calls) -> Self {
        match self {
            Self::Number(bytes) => {
                let Ok(number) = <[u8; WORD]>::try_from(&*bytes) else {
                    return Self::Number(bytes);
                };
                let Some(call) = calls.take(u32::from_be_bytes(number)) else {
                    return Self::Discarded;
                };
                match call.max_message() {
                    Some(_) => Self::Message { call, bytes },
                    None => Self::Head { call, head: bytes, needed: WORD }.examined(calls),
                }
            }
            Self::Head { mut call, head, needed } if head.len() == needed => {
                let Some(target) = call.data_target() else { return Self::Discarded };
                match (target.decode)(&head) {
                    Ok(found) if found.data > target.sink.room().capacity() => {
                        fail(call, RpcError::Malformed("more data than was asked for"), calls)
                    }
                    Ok(found) => {
                        // Without data, it is an error, or the call is made again.
                        if found.data > 0 {
                            target.sink.room().begin();
                        }
                        Self::Data { call, head, filled: 0, len: found.data }
                    }
                    Err(DecodeError::Short(more)) if more > needed && more <= MAX_HEAD => {
                        Self::Head { call, head, needed: more }
                    }
                    Err(DecodeError::Short(_)) => {
                        fail(call, RpcError::Malformed("too much before the data"), calls)
                    }
                    Err(error) => fail(call, error.into(), calls),
                }
            }
            other => other,
        }
    }

    /// Its last byte has come.
    fn end(self, calls: &mut impl Calls) {
        match self {
            Self::Begins | Self::Number(_) | Self::Discarded => {}
            Self::Message { call, bytes } => {
                calls.completed(call.load);
                call.complete_message(bytes);
            }
            Self::Head { call, .. } | Self::Data { call, .. } => {
                fail(call, RpcError::Malformed("it ends early"), calls);
            }
        }
    }

    fn into_call(self) -> Option<PendingCall> {
        match self {
            Self::Message { call, .. } | Self::Head { call, .. } | Self::Data { call, .. } => {
                Some(call)
            }
            Self::Begins | Self::Number(_) | Self::Discarded => None,
        }
    }
}

/// The result of [`receive_data`].
enum RoomFilled {
    /// So many bytes came into the room, and into the inbox.
    Some { data: usize, inbox: usize, received: Received },
    /// Nothing was received.
    NoMemory,
}

/// Receives up to `wanted` bytes of data into the room, after its first `filled`. What follows them
/// goes into the inbox.
fn receive_data(
    source: &mut impl Source,
    room: &mut dyn DataRoom,
    filled: usize,
    wanted: usize,
    inbox: &mut [u8],
) -> io::Result<RoomFilled> {
    if let Some(pipe) = room.pipe()
        && let Some(piped) = source.splice_to(pipe, wanted)?
    {
        room.add_piped(piped);
        let received = Received { bytes: piped, is_all: piped < wanted };
        return Ok(RoomFilled::Some { data: piped, inbox: 0, received });
    }
    let Some(memory) = room.use_memory() else { return Ok(RoomFilled::NoMemory) };
    let mut parts = [IoSliceMut::new(&mut memory[filled..filled + wanted]), IoSliceMut::new(inbox)];
    let bytes = source.read_vectored(&mut parts)?;
    let data = bytes.min(wanted);
    let received = Received { bytes, is_all: bytes < wanted + INBOX };
    Ok(RoomFilled::Some { data, inbox: bytes - data, received })
}

/// Fails a call for whose data there is no memory. The server has executed it.
fn fail_without_memory(call: PendingCall, calls: &mut impl Calls) -> Record {
    if let Some(receipt) = &call.receipt {
        receipt.record_late_reply();
    }
    fail(call, RpcError::NoMemory, calls)
}

/// Fails a call because of its reply, whose rest is discarded.
fn fail(call: PendingCall, error: RpcError, calls: &mut impl Calls) -> Record {
    calls.completed(call.load);
    call.fail(error);
    Record::Discarded
}

/// Completes the call of a reply whose data has all come.
fn complete_data(record: Record, calls: &mut impl Calls) {
    if let Record::Data { call, head, len, .. } = record {
        calls.completed(call.load);
        if let Some(again) = call.complete_data(DataReply { head, data: len }) {
            calls.repeat(again);
        }
    }
}

#[cfg(test)]
mod tests;
