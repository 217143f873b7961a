//! Telling whoever listens what becomes of each read and of each segment.
//!
//! Nobody listens most of the time: that is looked at first, and costs one load. Who
//! listens has a queue of bounded length; what does not fit into it is counted and
//! left out, so no read waits for him.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use super::ReadError;
use super::fetch::SegmentFetch;
use super::request::ReadRequest;
use super::{OpenFile, Reader};
use crate::backend::BackendError;
use crate::telemetry::trace::{
    AttemptEnd, DropRecord, ReadPart, ReadRecord, SegmentRecord, TraceLine,
};
use crate::volume::{ByteRange, ReplicaId, ReplicaMap};

/// Lines that wait for one listener: some MiB, and a tenth of a second of the most that
/// a daemon answers.
const QUEUE_LEN: usize = 16 * 1024;

/// Files that a listener is taken to remember; he is told their names again after so
/// many others.
const MAX_NAMED_FILES: usize = 1 << 20;

/// Whoever listens.
#[derive(Default)]
pub(super) struct Tracer {
    /// The names of the replicas.
    names: ReplicaMap<String>,
    is_on: AtomicBool,
    subscribers: Mutex<Vec<TraceSubscriber>>,
}

struct TraceSubscriber {
    since: Instant,
    lines: Sender<TraceLine>,
    /// Files that he has been told of.
    named_files: std::collections::HashSet<u64>,
    dropped_lines: Arc<AtomicU64>,
}

/// Where the lines come.
pub struct TraceStream {
    lines: Receiver<TraceLine>,
    dropped_lines: Arc<AtomicU64>,
}

impl TraceStream {
    /// The next line; none where the volume is going away.
    pub async fn next(&mut self) -> Option<TraceLine> {
        match self.dropped_lines.swap(0, Ordering::Relaxed) {
            0 => self.lines.recv().await,
            lines => Some(TraceLine::Lost { lines }),
        }
    }
}

/// An attempt that has ended.
pub(super) struct AttemptTrace<'a> {
    pub(super) fetch: &'a SegmentFetch,
    pub(super) replica: ReplicaId,
    pub(super) took: Duration,
    pub(super) is_readahead: bool,
    pub(super) is_hedge: bool,
    /// Whether it came first.
    pub(super) result: Result<bool, BackendError>,
}

impl Tracer {
    pub(super) fn new(names: ReplicaMap<String>) -> Self {
        Self { names, ..Self::default() }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn subscribe(&self, first: TraceLine) -> TraceStream {
        let (send, lines) = channel(QUEUE_LEN);
        let lost = Arc::new(AtomicU64::new(0));
        let listener = TraceSubscriber {
            since: Instant::now(),
            lines: send,
            named_files: std::collections::HashSet::new(),
            dropped_lines: Arc::clone(&lost),
        };
        listener.try_send(first);
        let mut listeners = self.subscribers.lock();
        listeners.push(listener);
        self.is_on.store(true, Ordering::Relaxed);
        TraceStream { lines, dropped_lines: lost }
    }

    /// Nobody is told anything any more.
    pub(super) fn close_all(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.subscribers.lock().clear();
    }

    fn emit(&self, file: &OpenFile, line: impl Fn(Instant) -> TraceLine) {
        let mut listeners = self.subscribers.lock();
        listeners.retain_mut(|listener| {
            if listener.named_files.len() >= MAX_NAMED_FILES {
                listener.named_files.clear();
            }
            if listener.named_files.insert(file.file_number()) {
                let named = listener.try_send(file_line(file));
                // He has not heard of it, so he is told again.
                if named == SendOutcome::QueueFull {
                    listener.named_files.remove(&file.file_number());
                }
            }
            listener.try_send(line(listener.since)) != SendOutcome::Closed
        });
        if listeners.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
        }
    }
}

#[derive(PartialEq, Eq)]
enum SendOutcome {
    Sent,
    QueueFull,
    Closed,
}

impl TraceSubscriber {
    fn try_send(&self, line: TraceLine) -> SendOutcome {
        match self.lines.try_send(line) {
            Ok(()) => SendOutcome::Sent,
            Err(TrySendError::Closed(_)) => SendOutcome::Closed,
            Err(TrySendError::Full(_)) => {
                self.dropped_lines.fetch_add(1, Ordering::Relaxed);
                SendOutcome::QueueFull
            }
        }
    }
}

fn file_line(file: &OpenFile) -> TraceLine {
    let path = Path::new("/").join(file.path()).to_string_lossy().into_owned();
    TraceLine::File { file: file.file_number(), path, size: file.version().size }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Reader {
    /// What becomes of each read from now on, after `first`.
    pub fn subscribe_trace(&self, first: TraceLine) -> TraceStream {
        self.tracer.subscribe(first)
    }

    /// Whoever listens has heard all that there is to hear.
    pub fn end_traces(&self) {
        self.tracer.close_all();
    }

    fn trace_part(&self, fetch: &SegmentFetch, part: ByteRange, since: Instant) -> ReadPart {
        let brought = fetch.state.lock().delivered_by;
        ReadPart {
            offset: part.start,
            length: part.len(),
            replica: brought.map(|brought| self.replicas[brought.replica].name.clone()),
            took_us: brought.map_or(0, |brought| micros(brought.took)),
            waited_us: brought.map_or(0, |b| micros(b.at.saturating_duration_since(since))),
        }
    }

    /// A request was answered, from these segments.
    pub(super) fn trace_request<'a>(
        &self,
        gather: &ReadRequest,
        parts: impl Iterator<Item = &'a Arc<SegmentFetch>> + Clone,
        error: Option<ReadError>,
    ) {
        if !self.tracer.is_on() {
            return;
        }
        let now = Instant::now();
        let Some(file) = parts.clone().next().map(|fetch| &fetch.file) else { return };
        self.tracer.emit(file, |since| {
            let part = |fetch: &Arc<SegmentFetch>| {
                self.trace_part(fetch, fetch.range.intersect(gather.range), gather.since)
            };
            TraceLine::Read(ReadRecord {
                t_us: micros(gather.since.saturating_duration_since(since)),
                took_us: micros(now.saturating_duration_since(gather.since)),
                file: file.file_number(),
                handle: gather.origin.handle,
                pid: gather.origin.process,
                offset: gather.range.start,
                length: gather.range.len(),
                error: error.map(|error| error.to_string()),
                parts: parts.clone().map(part).collect(),
            })
        });
    }

    /// An attempt has ended.
    pub(super) fn trace_attempt(&self, attempted: &AttemptTrace<'_>, now: Instant) {
        if !self.tracer.is_on() {
            return;
        }
        let AttemptTrace { fetch, replica, took, is_readahead: ahead, is_hedge: hedge, result } =
            attempted;
        self.tracer.emit(&fetch.file, |since| {
            let sent = now.checked_sub(*took).unwrap_or(now);
            TraceLine::Segment(SegmentRecord {
                t_us: micros(sent.saturating_duration_since(since)),
                took_us: micros(*took),
                file: fetch.file.file_number(),
                offset: fetch.range.start,
                length: fetch.range.len(),
                replica: self.replicas[*replica].name.clone(),
                ahead: *ahead,
                hedge: *hedge,
                end: match result {
                    Ok(true) => AttemptEnd::Delivered,
                    Ok(false) => AttemptEnd::Wasted,
                    Err(_) => AttemptEnd::Failed,
                },
                error: result.err().map(|error| error.to_string()),
            })
        });
    }
}

impl OpenFile {
    /// Has `tracer` hear of its segments that are dropped unread.
    #[must_use]
    pub(super) fn with_tracer(mut self, tracer: &Arc<Tracer>) -> Self {
        self.tracer = Arc::clone(tracer);
        self
    }
}

/// Readahead is dropped where its file is closed or memory is short. All ways lead here.
impl Drop for SegmentFetch {
    fn drop(&mut self) {
        let tracer = &self.file.tracer;
        if !tracer.is_on() {
            return;
        }
        let Some((unread, brought)) = self.unread_bytes() else { return };
        let now = Instant::now();
        tracer.emit(&self.file, |since| {
            TraceLine::Dropped(DropRecord {
                t_us: micros(now.saturating_duration_since(since)),
                file: self.file.file_number(),
                offset: self.range.start,
                length: self.range.len(),
                unread,
                replica: tracer.names[brought.replica].clone(),
                took_us: micros(brought.took),
            })
        });
    }
}
