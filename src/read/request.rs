//! One read request: the segments that it needs, and the reply that waits for
//! them.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::ReadError;
use crate::backend::RequestingThread;
use crate::buffer::{Buffer, Pipe, SegmentData};
use crate::replicas::request_deadline::{Deadlines, RequestDeadline};
use crate::sync::{AtomicUsize, Mutex, Ordering};
use crate::volume::ByteRange;

/// Where the answer goes. Called once, on whatever thread brought the last
/// byte or the error.
pub type Sink = Box<dyn FnOnce(Result<ReadData, ReadError>) + Send>;

/// The bytes of an answered read, in order, still where they were read into.
/// Some may be pages in a pipe: those can be taken once.
pub struct ReadData {
    parts: Vec<(Arc<SegmentData>, Range<usize>)>,
}

impl ReadData {
    /// No bytes: the end of the file.
    pub fn empty() -> Self {
        Self { parts: Vec::new() }
    }

    /// The first `len` of these bytes.
    pub fn from_buffer(bytes: Buffer, len: usize) -> Self {
        Self { parts: vec![(Arc::new(SegmentData::from_buffer(bytes)), 0..len)] }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|(_, range)| range.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes where they lie in memory, one slice for each segment; `None`
    /// where some do not.
    pub fn slices(&self) -> Option<Vec<IoSlice<'_>>> {
        let mut slices = Vec::with_capacity(self.parts.len());
        for (data, range) in &self.parts {
            slices.push(IoSlice::new(&data.as_memory()?[range.clone()]));
        }
        Some(slices)
    }

    /// Gives the bytes to `pipe`, once.
    ///
    /// # Errors
    /// Where they do not fit, or have been given before.
    pub fn move_to_pipe(&self, pipe: &mut Pipe) -> io::Result<()> {
        self.parts.iter().try_for_each(|(data, range)| data.move_to_pipe(range.clone(), pipe))
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// Where they have been given to a pipe, or there is no memory.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len())?;
        for (data, range) in &self.parts {
            data.append_to(range.clone(), &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub struct ReadParams {
    /// Bytes of the file.
    pub range: ByteRange,
    /// When the application asked; the deadline counts from then.
    pub since: Instant,
    /// Whether who asks looks what there is now when he is told that the file is
    /// another one. He is told then without waiting for replicas that are late.
    pub fails_fast_on_stale: bool,
    /// Who asks.
    pub origin: RequestOrigin,
}

/// Who asks for a read, as a trace shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    /// The open handle.
    pub handle: u64,
    /// The process or thread, as the kernel numbers it for the daemon; 0 where it
    /// does not say.
    pub process: u32,
}

/// A part of a request: a range of the file that is on its way, or here.
pub(super) trait RequestPart {
    /// Its bytes of the file.
    fn range(&self) -> ByteRange;

    /// The bytes, if they are here.
    fn data(&self) -> Option<Arc<SegmentData>>;

    /// Whether it is not here, and a replica has said that the file is another one.
    fn has_version_mismatch(&self) -> bool;
}

/// A request whose bytes are not all here yet.
pub(super) struct ReadRequest<P> {
    pub(super) range: ByteRange,
    /// Who asked.
    pub(super) origin: RequestOrigin,
    /// When the request came.
    pub(super) since: Instant,
    /// As [`ReadParams::fails_fast_on_stale`].
    pub(super) fails_fast_on_stale: bool,
    missing_count: AtomicUsize,
    state: Mutex<RequestState<P>>,
}

struct RequestState<P> {
    parts: Vec<Arc<P>>,
    /// How long it may wait.
    deadline: RequestDeadline,
    /// Until it has been answered.
    sink: Option<Sink>,
}

impl<P: RequestPart> ReadRequest<P> {
    pub(super) fn new(asked: ReadParams, deadlines: Deadlines, sink: Sink) -> Self {
        let ReadParams { range, since, fails_fast_on_stale: looks, origin: by } = asked;
        let term = RequestDeadline::new(since, deadlines);
        let state =
            Mutex::new(RequestState { parts: Vec::new(), deadline: term, sink: Some(sink) });
        // One more than there are parts, so that nothing is answered while the
        // parts are still being collected; `collected` takes it away.
        Self {
            range,
            origin: by,
            since,
            fails_fast_on_stale: looks,
            missing_count: AtomicUsize::new(1),
            state,
        }
    }

    /// Adds the next part; `awaited` where its bytes are not here yet.
    pub(super) fn add_part(&self, fetch: Arc<P>) {
        self.missing_count.fetch_add(1, Ordering::Relaxed);
        self.state.lock().parts.push(fetch);
    }

    /// One part is here, or all parts have been collected. True for the last:
    /// the caller then answers.
    pub(super) fn part_arrived(&self) -> bool {
        self.missing_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether the answer has been given.
    pub(super) fn is_answered(&self) -> bool {
        self.state.lock().sink.is_none()
    }

    /// Answers with the bytes; returns the segments that they came from, with
    /// the number of bytes taken of each. Nothing where it was answered before.
    /// `before` is told of the bytes first: whoever has his answer may look at
    /// the counters at once.
    pub(super) fn reply_data(&self, before: impl FnOnce(u64)) -> Vec<(Arc<P>, u64)> {
        let (parts, sink) = {
            let mut state = self.state.lock();
            let Some(sink) = state.sink.take() else { return Vec::new() };
            (std::mem::take(&mut state.parts), sink)
        };
        let mut data = ReadData { parts: Vec::with_capacity(parts.len()) };
        let mut taken = Vec::with_capacity(parts.len());
        for fetch in parts {
            let bytes = fetch.data().expect("a part that arrived has its bytes");
            let part = fetch.range().intersect(self.range);
            let from = (part.start - fetch.range().start) as usize;
            data.parts.push((bytes, from..from + part.len() as usize));
            taken.push((fetch, part.len()));
        }
        before(data.len() as u64);
        self.requesting_thread().scope(|| sink(Ok(data)));
        taken
    }

    /// Whether somebody has said of a part that is missing that the file is another
    /// one by now.
    pub(super) fn has_version_mismatch(&self) -> bool {
        self.parts().iter().any(|fetch| fetch.has_version_mismatch())
    }

    /// The segments that it lacks came nearer at `at`.
    pub(super) fn record_progress(&self, at: Option<Instant>) {
        self.with_deadline(|term| term.record_progress(at));
    }

    /// Looks at, or changes, how long it may wait.
    pub(super) fn with_deadline<T>(&self, of: impl FnOnce(&mut RequestDeadline) -> T) -> T {
        of(&mut self.state.lock().deadline)
    }

    /// The thread that waits for it.
    fn requesting_thread(&self) -> RequestingThread {
        RequestingThread::from_tid(self.origin.process)
    }

    /// Whether that thread has been killed; looked at now and then.
    pub(super) fn is_killed(&self, now: Instant) -> bool {
        self.with_deadline(|term| term.take_due_kill_check(now))
            && self.requesting_thread().is_killed()
    }

    /// Its segments, where they are known.
    pub(super) fn parts(&self) -> Vec<Arc<P>> {
        self.state.lock().parts.clone()
    }

    /// One of the parts of a request that has not been answered.
    pub(super) fn first_part(&self) -> Option<Arc<P>> {
        self.state.lock().parts.first().map(Arc::clone)
    }

    /// The segments of a request that has not been answered that are not here.
    pub(super) fn missing_parts(&self) -> Vec<ByteRange> {
        let parts = self.parts();
        let missing = parts.iter().filter(|fetch| fetch.data().is_none());
        missing.map(|fetch| fetch.range()).collect()
    }

    /// Answers with an error, unless it has been answered; returns the parts
    /// that it had, for those that have not arrived to be given up.
    pub(super) fn reply_error(&self, error: ReadError) -> Option<Vec<Arc<P>>> {
        let (parts, sink) = {
            let mut state = self.state.lock();
            let sink = state.sink.take()?;
            (std::mem::take(&mut state.parts), sink)
        };
        self.requesting_thread().scope(|| sink(Err(error)));
        Some(parts)
    }
}
