//! The trace subscribers, and the lines that are sent to them.
//!
//! Each subscriber has a bounded queue. Lines that do not fit are counted and dropped, so no read
//! waits for a subscriber.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::telemetry::trace::TraceLine;
use crate::volume::{ReplicaId, ReplicaMap};

/// Lines that wait for one subscriber: a few MiB, and a tenth of a second at the highest rate of a
/// daemon.
const QUEUE_LEN: usize = 16 * 1024;

/// Files that a subscriber is assumed to remember. After this many, it gets all file names again.
const MAX_NAMED_FILES: usize = 1 << 20;

/// The subscribers of a volume's trace.
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
    /// Files whose names the subscriber has received.
    named_files: HashSet<u64>,
    dropped_lines: Arc<AtomicU64>,
}

/// A subscriber's end of the trace.
pub struct TraceStream {
    lines: Receiver<TraceLine>,
    dropped_lines: Arc<AtomicU64>,
}

impl TraceStream {
    /// The next line; `None` when the volume stops.
    pub async fn next(&mut self) -> Option<TraceLine> {
        match self.dropped_lines.swap(0, Ordering::Relaxed) {
            0 => self.lines.recv().await,
            lines => Some(TraceLine::Lost { lines }),
        }
    }
}

impl Tracer {
    pub(super) fn new(names: ReplicaMap<String>) -> Self {
        Self { names, ..Self::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn subscribe(&self, first: TraceLine) -> TraceStream {
        let (send, lines) = channel(QUEUE_LEN);
        let lost = Arc::new(AtomicU64::new(0));
        let listener = TraceSubscriber {
            since: Instant::now(),
            lines: send,
            named_files: HashSet::new(),
            dropped_lines: Arc::clone(&lost),
        };
        listener.try_send(first);
        let mut listeners = self.subscribers.lock();
        listeners.push(listener);
        self.is_on.store(true, Ordering::Relaxed);
        TraceStream { lines, dropped_lines: lost }
    }

    /// Ends all subscriptions.
    pub(super) fn close_all(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.subscribers.lock().clear();
    }

    /// The name of a replica.
    pub(super) fn replica_name(&self, id: ReplicaId) -> &str {
        &self.names[id]
    }

    /// Sends `line` to all subscribers, preceded by the file's line for those that do not know the
    /// file. `line` takes the time when the subscription began.
    pub(super) fn emit(
        &self,
        file_number: u64,
        file_line: impl Fn() -> TraceLine,
        line: impl Fn(Instant) -> TraceLine,
    ) {
        let mut listeners = self.subscribers.lock();
        listeners.retain_mut(|listener| {
            if listener.named_files.len() >= MAX_NAMED_FILES {
                listener.named_files.clear();
            }
            if listener.named_files.insert(file_number) {
                let named = listener.try_send(file_line());
                // The file's line was dropped, so send it again next time.
                if named == SendOutcome::QueueFull {
                    listener.named_files.remove(&file_number);
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
