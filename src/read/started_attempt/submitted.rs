//! Attempts whose reads hold no thread.
//!
//! Over NFS without a mount, a read in flight is a call on a connection, not a thread that waits. The
//! thread that dispatches the attempt sends the call, and the connection's thread ends the attempt.
//! Only an open takes a thread of the pool, and so does a read of a server that has forgotten the
//! file.
//!
//! *Invariant:* a connection's thread never waits: [`SubmittedAttempt::end`] makes no call that
//! blocks.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::StartedAttempt;
use super::segment_room::SegmentRoom;
use crate::backend::{
    BackendError, BackendFile, DataRoom, IsUnwanted, SubmittedRead, SubmittedReadEnd,
    ThreadlessCall,
};
use crate::read::attempt::ban_if_truncated;
use crate::read::fetch::AttemptError;

/// An attempt whose read is in flight.
struct SubmittedAttempt {
    attempt: StartedAttempt,
    file: Arc<dyn BackendFile>,
    room: SegmentRoom,
    call: ThreadlessCall,
    /// When it may end if no request waits for it.
    patient_until: Instant,
}

/// Begins the read of an attempt if its replica has the file open, and if it takes no thread.
///
/// # Errors
/// The attempt, which takes a thread.
pub(super) fn try_begin(attempt: StartedAttempt) -> Result<(), StartedAttempt> {
    let host = attempt.host();
    if attempt.needs_thread || !host.reads_without_threads() {
        return Err(attempt);
    }
    match attempt.fetch.file.verified_on(attempt.replica) {
        Some(file) => begin(attempt, file),
        None => Err(attempt),
    }
}

/// Begins the read of an attempt from its replica's open file.
///
/// # Errors
/// The attempt, if a thread must find out why it cannot begin.
pub(super) fn begin(
    attempt: StartedAttempt,
    file: Arc<dyn BackendFile>,
) -> Result<(), StartedAttempt> {
    let StartedAttempt { reader, fetch, replica, .. } = &attempt;
    if fetch.is_ended_or_unwanted() {
        return Err(attempt);
    }
    let Some(call) = attempt.host().begin_threadless_call() else { return Err(attempt) };
    let Some(claim) = fetch.take_attempt_claim(*replica) else { return Err(attempt) };
    let room = SegmentRoom::new(fetch.range.len() as usize, claim, &reader.buffers);
    fetch.state.lock().tickets.push((*replica, call.ticket()));
    let patience = reader.policy.deadlines.while_responsive;
    let patient_until = Instant::now() + patience;
    let read = SubmittedAttempt { attempt, file, room, call, patient_until };
    Box::new(read).submit();
    Ok(())
}

impl SubmittedAttempt {
    fn submit(self: Box<Self>) {
        let file = Arc::clone(&self.file);
        if let Err(refused) = file.submit_read(self) {
            refused.end(SubmittedReadEnd::Refused);
        }
    }

    /// Begins again, on a thread.
    fn queue(self, has_answer: bool) {
        let Self { mut attempt, room, call, .. } = self;
        if has_answer {
            call.end_answered();
        }
        if let Some(claim) = room.into_claim() {
            attempt.fetch.return_attempt_claim(attempt.replica, claim);
        }
        attempt.needs_thread = true;
        attempt.queue();
    }

    /// Ends the attempt.
    fn finish(self, result: Result<(), AttemptError>) {
        let Self { attempt, room, call, .. } = self;
        // A server that was silent has answered nothing. Without memory, nothing may have been sent.
        let silence = [Errno::TIMEDOUT, Errno::NOTCONN, Errno::NOMEM]
            .map(|errno| BackendError::Os(errno).into());
        match result {
            Err(AttemptError::Unwanted) => drop(call),
            Err(error) if silence.contains(&error) => drop(call),
            _ => call.end_answered(),
        }
        if room.has_overflowed() {
            attempt.reader.packet_pipes.pause(attempt.replica);
        }
        let result = match result {
            Ok(()) => room.into_data().map_err(|claim| (BackendError::QueueFull.into(), claim)),
            Err(error) => Err((error, room.into_claim())),
        };
        let result = ban_if_truncated(&attempt.fetch, attempt.replica, result);
        attempt.finish(result);
    }
}

impl DataRoom for SubmittedAttempt {
    fn capacity(&self) -> usize {
        self.room.capacity()
    }

    fn begin(&mut self) {
        let StartedAttempt { reader, fetch, replica, .. } = &self.attempt;
        self.room.begin(|| reader.packet_pipes.pipe_for(fetch, *replica));
    }

    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.room.pipe()
    }

    fn add_piped(&mut self, bytes: usize) {
        self.room.add_piped(bytes);
    }

    fn use_memory(&mut self) -> Option<&mut [u8]> {
        self.room.use_memory()
    }
}

impl SubmittedRead for SubmittedAttempt {
    fn offset(&self) -> u64 {
        self.attempt.fetch.range.start + self.room.filled() as u64
    }

    fn room(&mut self) -> &mut dyn DataRoom {
        self
    }

    /// While a request waits, the read may take as long as the request. Without one, it may still
    /// be of use, or measure its replica, for a while.
    fn is_unwanted(&self) -> IsUnwanted {
        let host = Arc::clone(self.attempt.host());
        let fetch = Arc::clone(&self.attempt.fetch);
        let patient_until = self.patient_until;
        Arc::new(move || {
            host.is_stopped() || Instant::now() >= patient_until && !fetch.is_awaited()
        })
    }

    fn end(mut self: Box<Self>, end: SubmittedReadEnd) {
        let result = match end {
            SubmittedReadEnd::Result(result) => result,
            SubmittedReadEnd::Unwanted => return self.finish(Err(AttemptError::Unwanted)),
            SubmittedReadEnd::Refused => return self.queue(false),
        };
        match result {
            // The version promises more.
            Ok(0) => self.finish(Err(BackendError::Truncated.into())),
            Ok(read) => {
                self.room.add_filled(read);
                if self.room.is_full() {
                    return self.finish(Ok(()));
                }
                self.call.report_progress();
                self.submit();
            }
            // The server has restarted or failed over, and may still have the same file.
            Err(BackendError::Os(Errno::STALE)) => self.queue(true),
            Err(error) => self.finish(Err(error.into())),
        }
    }
}
