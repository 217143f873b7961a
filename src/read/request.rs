//! One read request: the segments that it needs, and the waiting reply.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::ReadError;
use crate::backend::RequestingThread;
use crate::buffer::{Buffer, Pipe, SegmentData};
use crate::replicas::request_deadline::{Deadlines, RequestDeadline};
use crate::sync::{AtomicUsize, LockRank, Mutex, Ordering, RankedMutex, RankedMutexGuard};
use crate::volume::ByteRange;

/// The bytes that answer a read.
pub enum ReadBytes<'a> {
    /// In a buffer that is used again after the answer.
    Slice(&'a [u8]),
    /// In the segments that they were read into.
    Segments(ReadData),
}

impl ReadBytes<'_> {
    /// A copy of the bytes.
    ///
    /// # Errors
    /// As [`ReadData::to_vec`].
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Slice(bytes) => Ok(bytes.to_vec()),
            Self::Segments(data) => data.to_vec(),
        }
    }
}

/// Receives the answer to a read.
pub trait ReadCompletion: Send + 'static {
    /// Called once, on the thread that delivers the last byte or the error.
    fn complete(self, answer: Result<ReadBytes<'_>, ReadError>);
}

impl<F: FnOnce(Result<ReadBytes<'_>, ReadError>) + Send + 'static> ReadCompletion for F {
    fn complete(self, answer: Result<ReadBytes<'_>, ReadError>) {
        self(answer);
    }
}

/// Receives the answer to a request. Called once, on the thread that delivers the last byte or the error.
pub(super) type Sink = Box<dyn FnOnce(Result<ReadData, ReadError>) + Send>;

/// The bytes of an answered read, in order, still in the buffers into which they were read. Some
/// may be pages in a pipe, which can be taken once.
pub struct ReadData {
    parts: Vec<(Arc<SegmentData>, Range<usize>)>,
}

impl ReadData {
    /// No bytes: the end of the file.
    pub fn empty() -> Self {
        Self { parts: Vec::new() }
    }

    /// The first `len` bytes of a buffer.
    pub fn from_buffer(bytes: Buffer, len: usize) -> Self {
        Self { parts: vec![(Arc::new(SegmentData::from_buffer(bytes)), 0..len)] }
    }

    /// These parts of segments, in order.
    #[cfg(test)]
    pub(crate) fn from_segments(
        parts: impl Iterator<Item = (SegmentData, std::ops::Range<usize>)>,
    ) -> Self {
        Self { parts: parts.map(|(data, part)| (Arc::new(data), part)).collect() }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|(_, range)| range.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in memory, one slice for each segment; `None` if some are in a pipe.
    pub fn slices(&self) -> Option<Vec<IoSlice<'_>>> {
        let mut slices = Vec::with_capacity(self.parts.len());
        for (data, range) in &self.parts {
            slices.push(IoSlice::new(&data.as_memory()?[range.clone()]));
        }
        Some(slices)
    }

    /// Moves the bytes to `pipe`; works once.
    ///
    /// # Errors
    /// They do not fit, or have been moved before.
    pub fn move_to_pipe(&self, pipe: &mut Pipe) -> io::Result<()> {
        self.parts.iter().try_for_each(|(data, range)| data.move_to_pipe(range.clone(), pipe))
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// They have been moved to a pipe, or there is no memory.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len())?;
        self.append_from(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends a copy of the bytes after the first `at` to `bytes`.
    ///
    /// # Errors
    /// As [`ReadData::to_vec`].
    pub fn append_from(&self, at: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut passed = 0;
        for (data, range) in &self.parts {
            let skipped = at.saturating_sub(passed).min(range.len());
            passed += range.len();
            if skipped < range.len() {
                data.append_to(range.start + skipped..range.end, bytes)?;
            }
        }
        Ok(())
    }
}

/// The parameters of a read.
#[derive(Clone, Copy, Debug)]
pub struct ReadParams {
    /// Bytes of the file.
    pub range: ByteRange,
    /// When the application made the request; the deadline counts from then.
    pub since: Instant,
    /// Whether the caller looks for the current version after a version mismatch. It then gets that
    /// error without waiting for late replicas.
    pub fails_fast_on_stale: bool,
    /// The origin of the request.
    pub origin: RequestOrigin,
}

/// The origin of a read, as shown in traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    /// The open handle.
    pub handle: u64,
    /// The thread id that the kernel reports to the daemon; 0 if it reports none.
    pub process: u32,
}

/// A part of a request: a range of the file, pending or delivered.
pub(super) trait RequestPart {
    /// Its bytes of the file.
    fn range(&self) -> ByteRange;

    /// Its data, if delivered.
    fn data(&self) -> Option<Arc<SegmentData>>;

    /// Whether it is pending and a replica has reported another version of the file.
    fn has_version_mismatch(&self) -> bool;
}

/// A request whose bytes have not all arrived yet.
pub(super) struct ReadRequest<P> {
    pub(super) range: ByteRange,
    pub(super) origin: RequestOrigin,
    /// When the application made the request.
    pub(super) since: Instant,
    /// As [`ReadParams::fails_fast_on_stale`].
    pub(super) fails_fast_on_stale: bool,
    missing_count: AtomicUsize,
    /// Held while parts are added, and while the request ends without an answer. So a part that has
    /// been added is either answered from or left.
    collection: RankedMutex<()>,
    state: Mutex<RequestState<P>>,
}

struct RequestState<P> {
    parts: Vec<Arc<P>>,
    /// How long it may wait.
    deadline: RequestDeadline,
    /// `Some` until the request is answered.
    sink: Option<Sink>,
}

impl<P: RequestPart> ReadRequest<P> {
    /// A request whose parts are to be collected.
    pub(super) fn new(asked: ReadParams, deadlines: Deadlines, sink: Sink) -> Self {
        // One part counts as missing, so that no part answers the request before all are known. The
        // end of the collection takes it away.
        Self::with_parts(asked, deadlines, sink, Vec::new())
    }

    /// A request that waits for one part.
    pub(super) fn of_part(
        asked: ReadParams,
        deadlines: Deadlines,
        sink: Sink,
        part: Arc<P>,
    ) -> Self {
        Self::with_parts(asked, deadlines, sink, vec![part])
    }

    /// With one missing part.
    fn with_parts(asked: ReadParams, deadlines: Deadlines, sink: Sink, parts: Vec<Arc<P>>) -> Self {
        let ReadParams { range, since, fails_fast_on_stale, origin } = asked;
        let deadline = RequestDeadline::new(since, deadlines);
        Self {
            range,
            origin,
            since,
            fails_fast_on_stale,
            missing_count: AtomicUsize::new(1),
            collection: RankedMutex::new(LockRank::PartCollection, ()),
            state: Mutex::new(RequestState { parts, deadline, sink: Some(sink) }),
        }
    }

    /// Begins to collect parts, which keeps the request from ending. `None` if it has ended.
    pub(super) fn begin_collection(&self) -> Option<PartCollection<'_, P>> {
        let open = self.collection.lock();
        (!self.is_answered()).then_some(PartCollection { request: self, _open: open })
    }

    /// Counts an arrived part. True for the last one: the caller then answers.
    pub(super) fn part_arrived(&self) -> bool {
        self.missing_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether the request has been answered.
    pub(super) fn is_answered(&self) -> bool {
        self.state.lock().sink.is_none()
    }

    /// Answers with the bytes. Returns the segments that they came from, with the number of bytes
    /// taken from each; empty if it was already answered. Calls `before` with the number of bytes
    /// first, because a caller with its answer may read the counters at once.
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

    /// Whether a replica has reported another version of the file for a pending part.
    pub(super) fn has_version_mismatch(&self) -> bool {
        self.parts().iter().any(|fetch| fetch.has_version_mismatch())
    }

    /// Records that the missing segments came nearer at `at`.
    pub(super) fn record_progress(&self, at: Option<Instant>) {
        self.with_deadline(|term| term.record_progress(at));
    }

    /// Reads or changes its deadline.
    pub(super) fn with_deadline<T>(&self, of: impl FnOnce(&mut RequestDeadline) -> T) -> T {
        of(&mut self.state.lock().deadline)
    }

    /// The thread that waits for the answer.
    fn requesting_thread(&self) -> RequestingThread {
        RequestingThread::from_tid(self.origin.process)
    }

    /// Whether that thread has been killed; checked at intervals.
    pub(super) fn is_killed(&self, now: Instant) -> bool {
        self.with_deadline(|term| term.take_due_kill_check(now))
            && self.requesting_thread().is_killed()
    }

    /// Its parts; empty after the answer and while it waits for memory.
    pub(super) fn parts(&self) -> Vec<Arc<P>> {
        self.state.lock().parts.clone()
    }

    /// The first part of an unanswered request.
    pub(super) fn first_part(&self) -> Option<Arc<P>> {
        self.state.lock().parts.first().map(Arc::clone)
    }

    /// The ranges of an unanswered request's parts that have not been delivered.
    pub(super) fn missing_parts(&self) -> Vec<ByteRange> {
        let parts = self.parts();
        let missing = parts.iter().filter(|fetch| fetch.data().is_none());
        missing.map(|fetch| fetch.range()).collect()
    }

    /// Ends it without an answer, unless it was answered before. The caller abandons the pending
    /// parts, and then answers.
    pub(super) fn end(&self) -> Option<EndedRequest<P>> {
        let requesting_thread = self.requesting_thread();
        let _not_collecting = self.collection.lock();
        let mut state = self.state.lock();
        let sink = state.sink.take()?;
        Some(EndedRequest { parts: std::mem::take(&mut state.parts), sink, requesting_thread })
    }
}

/// The collection of a request's parts.
pub(super) struct PartCollection<'a, P> {
    request: &'a ReadRequest<P>,
    _open: RankedMutexGuard<'a, ()>,
}

impl<P: RequestPart> PartCollection<'_, P> {
    /// Adds the next part.
    pub(super) fn add_part(&self, fetch: Arc<P>) {
        self.request.missing_count.fetch_add(1, Ordering::Relaxed);
        self.request.state.lock().parts.push(fetch);
    }

    /// Ends the collection. True if no part is missing: the caller then answers.
    pub(super) fn finish(self) -> bool {
        self.request.part_arrived()
    }
}

/// A request that waits for no part any more, and has no answer yet.
pub(super) struct EndedRequest<P> {
    pub(super) parts: Vec<Arc<P>>,
    sink: Sink,
    requesting_thread: RequestingThread,
}

impl<P> EndedRequest<P> {
    pub(super) fn reply_error(self, error: ReadError) {
        let Self { parts, sink, requesting_thread } = self;
        // The receiver may read again at once, and need their memory.
        drop(parts);
        requesting_thread.scope(|| sink(Err(error)));
    }
}
