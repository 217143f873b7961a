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
use super::fetch::Fetch;
use super::gather::Gather;
use super::{OpenFile, Reader};
use crate::backend::BackendError;
use crate::telemetry::trace::{Dropped, End, Line, Part, Read, Segment};
use crate::volume::{ByteRange, ReplicaId, ReplicaMap};

/// Lines that wait for one listener: some MiB, and a tenth of a second of the most that
/// a daemon answers.
const QUEUE: usize = 16 * 1024;

/// Files that a listener is taken to remember; he is told their names again after so
/// many others.
const NAMED: usize = 1 << 20;

/// Whoever listens.
#[derive(Default)]
pub(super) struct Tracer {
    /// The names of the replicas.
    names: ReplicaMap<String>,
    is_on: AtomicBool,
    listeners: Mutex<Vec<Listener>>,
}

struct Listener {
    since: Instant,
    lines: Sender<Line>,
    /// Files that he has been told of.
    named: std::collections::HashSet<u64>,
    lost: Arc<AtomicU64>,
}

/// Where the lines come.
pub struct Trace {
    lines: Receiver<Line>,
    lost: Arc<AtomicU64>,
}

impl Trace {
    /// The next line; none where the volume is going away.
    pub async fn next(&mut self) -> Option<Line> {
        match self.lost.swap(0, Ordering::Relaxed) {
            0 => self.lines.recv().await,
            lines => Some(Line::Lost { lines }),
        }
    }
}

/// An attempt that has ended.
pub(super) struct Attempted<'a> {
    pub(super) fetch: &'a Fetch,
    pub(super) replica: ReplicaId,
    pub(super) took: Duration,
    pub(super) ahead: bool,
    pub(super) hedge: bool,
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

    fn listen(&self, first: Line) -> Trace {
        let (send, lines) = channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let (since, named) = (Instant::now(), std::collections::HashSet::new());
        let listener = Listener { since, lines: send, named, lost: Arc::clone(&lost) };
        listener.tell(first);
        let mut listeners = self.listeners.lock();
        listeners.push(listener);
        self.is_on.store(true, Ordering::Relaxed);
        Trace { lines, lost }
    }

    /// Nobody is told anything any more.
    pub(super) fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.listeners.lock().clear();
    }

    fn tell(&self, file: &OpenFile, line: impl Fn(Instant) -> Line) {
        let mut listeners = self.listeners.lock();
        listeners.retain_mut(|listener| {
            if listener.named.len() >= NAMED {
                listener.named.clear();
            }
            if listener.named.insert(file.stream()) {
                let named = listener.tell(name(file));
                // He has not heard of it, so he is told again.
                if named == Told::Lost {
                    listener.named.remove(&file.stream());
                }
            }
            listener.tell(line(listener.since)) != Told::Gone
        });
        if listeners.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Told {
    Heard,
    Lost,
    Gone,
}

impl Listener {
    fn tell(&self, line: Line) -> Told {
        match self.lines.try_send(line) {
            Ok(()) => Told::Heard,
            Err(TrySendError::Closed(_)) => Told::Gone,
            Err(TrySendError::Full(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                Told::Lost
            }
        }
    }
}

fn name(file: &OpenFile) -> Line {
    let path = Path::new("/").join(file.path()).to_string_lossy().into_owned();
    Line::File { file: file.stream(), path, size: file.version().size }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Reader {
    /// What becomes of each read from now on, after `first`.
    pub fn trace(&self, first: Line) -> Trace {
        self.tracer.listen(first)
    }

    /// Whoever listens has heard all that there is to hear.
    pub fn end_traces(&self) {
        self.tracer.stop();
    }

    fn part(&self, fetch: &Fetch, part: ByteRange, since: Instant) -> Part {
        let brought = fetch.state.lock().brought;
        Part {
            offset: part.start,
            length: part.len(),
            replica: brought.map(|brought| self.replicas[brought.by].name.clone()),
            took_us: brought.map_or(0, |brought| micros(brought.took)),
            waited_us: brought.map_or(0, |b| micros(b.at.saturating_duration_since(since))),
        }
    }

    /// A request was answered, from these segments.
    pub(super) fn trace_answer<'a>(
        &self,
        gather: &Gather,
        parts: impl Iterator<Item = &'a Arc<Fetch>> + Clone,
        error: Option<ReadError>,
    ) {
        if !self.tracer.is_on() {
            return;
        }
        let now = Instant::now();
        let Some(file) = parts.clone().next().map(|fetch| &fetch.file) else { return };
        self.tracer.tell(file, |since| {
            let part = |fetch: &Arc<Fetch>| {
                self.part(fetch, fetch.range.intersect(gather.range), gather.since)
            };
            Line::Read(Read {
                t_us: micros(gather.since.saturating_duration_since(since)),
                took_us: micros(now.saturating_duration_since(gather.since)),
                file: file.stream(),
                handle: gather.by.handle,
                pid: gather.by.process,
                offset: gather.range.start,
                length: gather.range.len(),
                error: error.map(|error| error.to_string()),
                parts: parts.clone().map(part).collect(),
            })
        });
    }

    /// An attempt has ended.
    pub(super) fn trace_attempt(&self, attempted: &Attempted<'_>, now: Instant) {
        if !self.tracer.is_on() {
            return;
        }
        let Attempted { fetch, replica, took, ahead, hedge, result } = attempted;
        self.tracer.tell(&fetch.file, |since| {
            let sent = now.checked_sub(*took).unwrap_or(now);
            Line::Segment(Segment {
                t_us: micros(sent.saturating_duration_since(since)),
                took_us: micros(*took),
                file: fetch.file.stream(),
                offset: fetch.range.start,
                length: fetch.range.len(),
                replica: self.replicas[*replica].name.clone(),
                ahead: *ahead,
                hedge: *hedge,
                end: match result {
                    Ok(true) => End::Delivered,
                    Ok(false) => End::Wasted,
                    Err(_) => End::Failed,
                },
                error: result.err().map(|error| error.to_string()),
            })
        });
    }
}

impl OpenFile {
    /// Has `tracer` hear of its segments that are dropped unread.
    #[must_use]
    pub(super) fn traced(mut self, tracer: &Arc<Tracer>) -> Self {
        self.tracer = Arc::clone(tracer);
        self
    }
}

/// Readahead is dropped where its file is closed or memory is short. All ways lead here.
impl Drop for Fetch {
    fn drop(&mut self) {
        let tracer = &self.file.tracer;
        if !tracer.is_on() {
            return;
        }
        let Some((unread, brought)) = self.unread() else { return };
        let now = Instant::now();
        tracer.tell(&self.file, |since| {
            Line::Dropped(Dropped {
                t_us: micros(now.saturating_duration_since(since)),
                file: self.file.stream(),
                offset: self.range.start,
                length: self.range.len(),
                unread,
                replica: tracer.names[brought.by].clone(),
                took_us: micros(brought.took),
            })
        });
    }
}
