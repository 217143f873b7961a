//! A call that waits for its reply, and where the reply goes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::reply::Refusal;
use crate::nfs::data_room::DataRoom;
use crate::nfs::xdr::DecodeError;

/// How many connections a call may lose before it fails. A server that ends the connection at
/// every reply would otherwise get the call again until its deadline.
pub(super) const MAX_LOST_CONNECTIONS: u32 = 3;

/// A proxy in front of a server that restarts accepts connections and ends them for this long.
const RESTART: Duration = Duration::from_secs(10);

/// Connections that end within this time may have ended for one reason.
const TOGETHER: Duration = Duration::from_secs(1);

/// Where the number of a call is in its record, after the record mark.
const XID_AT: usize = 4;

/// A call without results.
#[derive(Clone, Debug, Error)]
pub enum RpcError {
    /// The deadline passed. The server was connected, and has not replied.
    #[error("the server has not replied in time")]
    Late,
    /// Nothing waited for the reply any more.
    #[error("the call was given up")]
    Unwanted,
    /// The deadline passed while no connection could be made.
    #[error("no connection to {server}: {error}")]
    Unreachable {
        /// The address that was tried last.
        server: String,
        /// Why it failed.
        error: Arc<io::Error>,
    },
    /// Each connection that the call was sent on was lost before the reply.
    #[error("the server ends the connection before it replies")]
    Lost,
    /// The server did not execute the call.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The reply does not follow the protocol.
    #[error("the server's reply is malformed: {0}")]
    Malformed(&'static str),
    /// There is no memory for the data of the reply.
    #[error("there is no memory for the data")]
    NoMemory,
    /// The transport was stopped.
    #[error("the connection was closed")]
    Stopped,
}

impl From<DecodeError> for RpcError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Short(_) => Self::Malformed("it ends early"),
            DecodeError::Invalid(what) => Self::Malformed(what),
        }
    }
}

/// Where a reply with data goes. The transport has it to itself until the call has completed.
pub(crate) trait DataSink: Send {
    /// The room for the data.
    fn room(&mut self) -> &mut dyn DataRoom;

    /// The call has completed. After a reply, the sink may ask for the call to be made again.
    fn end(self: Box<Self>, reply: Result<DataReply, RpcError>) -> Option<Again>;

    /// The call is due to be made again. The sink may change its record, as it is sent.
    fn renew(&mut self, _record: &mut [u8]) -> Renewal {
        Renewal::Ready(None)
    }
}

/// Whether a call can be made again now.
pub(crate) enum Renewal {
    /// Yes, with this receipt.
    Ready(Option<Arc<dyn Receipt>>),
    /// Not yet.
    Later,
    /// It ends instead. The error that the sink gets means nothing.
    Never,
}

/// Learns how a call went on that has ended before its reply. Dropped without that, it stays unknown
/// whether the server has executed the call.
pub(crate) trait Receipt: Send + Sync {
    /// The server has replied after all.
    fn record_late_reply(&self);

    /// No byte of the call was sent since it got this receipt.
    fn record_unsent(&self);
}

/// A call is to be made again after this time.
pub(crate) struct Again {
    pub(crate) sink: Box<dyn DataSink>,
    pub(crate) after: Duration,
}

/// Whether nothing waits for a call's reply any more. The call then ends soon, with
/// [`RpcError::Unwanted`].
pub type IsUnwanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// The part of a reply that precedes its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHead {
    /// The bytes of data that follow.
    pub(crate) data: usize,
}

/// Decodes the bytes of a reply until its data begins. [`DecodeError::Short`] asks for more bytes.
pub(crate) type DecodeHead = fn(&[u8]) -> Result<DataHead, DecodeError>;

/// A reply with data.
#[derive(Clone)]
pub(crate) struct DataReply {
    /// All bytes before the data.
    pub(crate) head: Vec<u8>,
    /// The number of bytes of data, which are at the beginning of the sink's room.
    pub(crate) data: usize,
}

/// Gets a whole reply, header included.
pub(crate) type MessageDone = Box<dyn FnOnce(Result<Vec<u8>, RpcError>) + Send>;

/// A reply whose data is received into a buffer.
pub(crate) struct DataTarget {
    pub(crate) sink: Box<dyn DataSink>,
    pub(crate) decode: DecodeHead,
}

/// Where a reply goes.
pub(crate) enum ReplyTarget {
    /// Replies of at most this many bytes.
    Message {
        max: usize,
        done: MessageDone,
    },
    Data(DataTarget),
}

/// The connections that a call has lost. Those that end together count once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    count: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    last_counted: Option<Instant>,
}

impl Losses {
    /// Records the loss, at `now`, of a connection that was made at `since`.
    pub(super) fn record(&mut self, since: Instant, now: Instant) {
        let age = |at: Instant| now.saturating_duration_since(at);
        let is_together = self.last.is_some_and(|last| last >= since)
            && self.last_counted.is_some_and(|counted| age(counted) < TOGETHER);
        if !is_together {
            self.count += 1;
            self.last_counted = Some(now);
        }
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Whether any connection was lost.
    pub(super) fn any(&self) -> bool {
        self.last.is_some()
    }

    /// Whether the call is to be given up. A patient caller waits as long as a restart takes.
    pub(super) fn are_too_many(&self, is_patient: bool, now: Instant) -> bool {
        let is_restart = |first: Instant| now.saturating_duration_since(first) < RESTART;
        self.count > MAX_LOST_CONNECTIONS && !(is_patient && self.first.is_some_and(is_restart))
    }
}

/// Whether a call was prepared for being made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    Ready,
    Later,
    /// It is to end.
    Never,
}

/// A call that waits for its reply.
///
/// *Invariant:* it completes once. One that is dropped completes with [`RpcError::Stopped`].
pub(crate) struct PendingCall {
    pub(super) xid: u32,
    /// When its present connection got it, or was made.
    pub(super) entered: Instant,
    pub(super) deadline: Instant,
    /// When it is made again, after a reply that asks for it.
    pub(super) not_before: Option<Instant>,
    is_unwanted: Option<IsUnwanted>,
    /// Kept until the reply comes, if the call ends before it, or until the connection ends.
    pub(super) receipt: Option<Arc<dyn Receipt>>,
    /// Whether a connection has begun to send it since it got the receipt.
    pub(super) was_sent: bool,
    /// As it is sent.
    pub(super) record: Arc<[u8]>,
    pub(super) losses: Losses,
    /// What a connection has to carry for it, bytes: the call, and the data of its reply.
    pub(super) load: usize,
    /// `None` once it has completed.
    target: Option<ReplyTarget>,
}

impl PendingCall {
    /// A call that was not sent yet.
    pub(crate) fn new(xid: u32, record: Vec<u8>, deadline: Instant, target: ReplyTarget) -> Self {
        let mut call = Self {
            xid,
            entered: Instant::now(),
            deadline,
            not_before: None,
            is_unwanted: None,
            receipt: None,
            was_sent: false,
            load: record.len(),
            record: record.into(),
            losses: Losses::default(),
            target: Some(target),
        };
        if let Some(target) = call.data_target() {
            call.load += target.sink.room().capacity();
        }
        call
    }

    /// The same call, which also ends when nothing waits for it any more.
    pub(super) fn while_wanted(mut self, is_unwanted: Option<IsUnwanted>) -> Self {
        self.is_unwanted = is_unwanted;
        self
    }

    /// The same call, whose reply matters even if it comes late.
    pub(super) fn with_receipt(mut self, receipt: Option<Arc<dyn Receipt>>) -> Self {
        self.receipt = receipt;
        self
    }

    /// Whether its deadline has passed, or nothing waits for it any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now || self.is_unwanted.as_ref().is_some_and(|is_unwanted| is_unwanted())
    }

    /// Prepares it for being made again, with another number: a server may repeat its reply to the
    /// old one.
    pub(super) fn renew(&mut self, xid: u32) -> Renewed {
        let mut record = self.record.to_vec();
        record[XID_AT..XID_AT + 4].copy_from_slice(&xid.to_be_bytes());
        let renewal = match self.data_target() {
            Some(target) => contain_panic(|| target.sink.renew(&mut record)),
            None => None,
        };
        match renewal {
            Some(Renewal::Ready(receipt)) => self.receipt = receipt,
            Some(Renewal::Later) => return Renewed::Later,
            Some(Renewal::Never) | None => return Renewed::Never,
        }
        self.was_sent = false;
        self.record = record.into();
        self.xid = xid;
        self.not_before = None;
        self.losses = Losses::default();
        Renewed::Ready
    }

    /// The sink and decoder of a reply with data.
    pub(super) fn data_target(&mut self) -> Option<&mut DataTarget> {
        match &mut self.target {
            Some(ReplyTarget::Data(target)) => Some(target),
            _ => None,
        }
    }

    /// The longest reply without data.
    pub(super) fn max_message(&self) -> Option<usize> {
        match &self.target {
            Some(ReplyTarget::Message { max, .. }) => Some(*max),
            _ => None,
        }
    }

    /// Completes it with a reply without data.
    pub(super) fn complete_message(mut self, message: Vec<u8>) {
        if let Some(ReplyTarget::Message { done, .. }) = self.target.take() {
            contain_panic(|| done(Ok(message)));
        }
    }

    /// Completes it with a reply whose data is in its sink. Returns it if it is to be made again.
    pub(super) fn complete_data(mut self, reply: DataReply) -> Option<Self> {
        let Some(ReplyTarget::Data(DataTarget { sink, decode })) = self.target.take() else {
            return None;
        };
        let Again { sink, after } = contain_panic(|| sink.end(Ok(reply))).flatten()?;
        self.receipt = None;
        self.target = Some(ReplyTarget::Data(DataTarget { sink, decode }));
        self.not_before = Some(Instant::now() + after);
        Some(self)
    }

    /// Completes it without results.
    pub(super) fn fail(mut self, error: RpcError) {
        self.end(error);
    }

    fn end(&mut self, error: RpcError) {
        match self.target.take() {
            Some(ReplyTarget::Message { done, .. }) => {
                contain_panic(|| done(Err(error)));
            }
            Some(ReplyTarget::Data(DataTarget { sink, .. })) => {
                contain_panic(|| sink.end(Err(error)));
            }
            None => {}
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.end(RpcError::Stopped);
    }
}

/// One caller's panic must not end the others' calls.
fn contain_panic<T>(done: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(done));
    if result.is_err() {
        tracing::error!("the completion of a call has panicked");
    }
    result.ok()
}
