//! Whoever listens to what becomes of each read, and what is sent to them.
//!
//! Who listens has a queue of bounded length; what does not fit into it is counted and left
//! out, so no read waits for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::telemetry::trace::TraceLine;
use crate::volume::{ReplicaId, ReplicaMap};

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
    named_files: HashSet<u64>,
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

    /// Nobody is told anything any more.
    pub(super) fn close_all(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.subscribers.lock().clear();
    }

    /// The name of a replica.
    pub(super) fn replica_name(&self, id: ReplicaId) -> &str {
        &self.names[id]
    }

    /// Sends `line` to all, after the line that names the file, where it is new to them.
    /// `line` gets the time when they began to listen.
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
                // He has not heard of it, so he is told again.
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
