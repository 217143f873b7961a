//! Reports each read and each segment to trace subscribers.
//!
//! Usually there is none. Checking for that comes first, and costs one load.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{ReadRequest, SegmentFetch};
use super::tracer::{TraceStream, Tracer};
use super::versioned_file::VersionedFile;
use super::{ReadError, Reader};
use crate::backend::BackendError;
use crate::telemetry::trace::{
    AttemptEnd, DropRecord, ReadPart, ReadRecord, SegmentRecord, TraceLine,
};
use crate::volume::{ByteRange, ReplicaId};

/// An attempt that has ended.
pub(super) struct AttemptTrace<'a> {
    pub(super) fetch: &'a SegmentFetch,
    pub(super) replica: ReplicaId,
    pub(super) took: Duration,
    pub(super) is_readahead: bool,
    pub(super) is_hedge: bool,
    /// On success, whether it was the first to deliver.
    pub(super) result: Result<bool, BackendError>,
}

fn emit(tracer: &Tracer, file: &VersionedFile, line: impl Fn(Instant) -> TraceLine) {
    tracer.emit(file.file_number(), || file_line(file), line);
}

fn file_line(file: &VersionedFile) -> TraceLine {
    let path = Path::new("/").join(file.path()).to_string_lossy().into_owned();
    TraceLine::File { file: file.file_number(), path, size: file.version().size }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Reader {
    /// Subscribes to the trace of all reads from now on; the stream begins with `first`.
    pub fn subscribe_trace(&self, first: TraceLine) -> TraceStream {
        self.tracer.subscribe(first)
    }

    /// Ends all traces.
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

    /// Reports an answered request, with its segments.
    pub(super) fn trace_request<'a>(
        &self,
        request: &ReadRequest,
        parts: impl Iterator<Item = &'a Arc<SegmentFetch>> + Clone,
        error: Option<ReadError>,
    ) {
        if !self.tracer.is_on() {
            return;
        }
        let now = Instant::now();
        let Some(file) = parts.clone().next().map(|fetch| &fetch.file) else { return };
        emit(&self.tracer, file, |since| {
            let part = |fetch: &Arc<SegmentFetch>| {
                self.trace_part(fetch, fetch.range.intersect(request.range), request.since)
            };
            TraceLine::Read(ReadRecord {
                t_us: micros(request.since.saturating_duration_since(since)),
                took_us: micros(now.saturating_duration_since(request.since)),
                file: file.file_number(),
                handle: request.origin.handle,
                pid: request.origin.process,
                offset: request.range.start,
                length: request.range.len(),
                error: error.map(|error| error.to_string()),
                parts: parts.clone().map(part).collect(),
            })
        });
    }

    /// Reports an ended attempt.
    pub(super) fn trace_attempt(&self, attempted: &AttemptTrace<'_>, now: Instant) {
        if !self.tracer.is_on() {
            return;
        }
        let AttemptTrace { fetch, replica, took, is_readahead: ahead, is_hedge: hedge, result } =
            attempted;
        emit(&self.tracer, &fetch.file, |since| {
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

/// Reports unread readahead. Every way to drop a segment ends here, such as closing its file or
/// eviction.
impl Drop for SegmentFetch {
    fn drop(&mut self) {
        let tracer = &self.file.tracer;
        if !tracer.is_on() {
            return;
        }
        let Some((unread, brought)) = self.unread_bytes() else { return };
        let now = Instant::now();
        emit(tracer, &self.file, |since| {
            TraceLine::Dropped(DropRecord {
                t_us: micros(now.saturating_duration_since(since)),
                file: self.file.file_number(),
                offset: self.range.start,
                length: self.range.len(),
                unread,
                replica: tracer.replica_name(brought.replica).to_owned(),
                took_us: micros(brought.took),
            })
        });
    }
}
