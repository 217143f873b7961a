//! An attempt in flight, from its dispatch to its end.

mod segment_room;
mod submitted;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use super::attempt::{self, AttemptResult};
use super::fetch::SegmentFetch;
use super::{Dispatches, Reader};
use crate::backend::{Backend, BackendError, JobOptions, Lane, Replica};
use crate::scheduler::{AttemptId, Dispatch};
use crate::volume::ReplicaId;

thread_local! {
    /// Whether this thread is beginning attempts. One that fails at once dispatches the next ones,
    /// and each of these may fail at once: they wait in the list, so that the stack stays short.
    static IS_BEGINNING: Cell<bool> = const { Cell::new(false) };
    static TO_BEGIN: RefCell<VecDeque<DispatchOf>> = const { RefCell::new(VecDeque::new()) };
}

/// A dispatch of a reader.
type DispatchOf = (Arc<Reader>, Dispatch<Arc<SegmentFetch>>);

/// This thread begins attempts until this is dropped, also by a panic.
struct Beginning;

impl Beginning {
    fn enter() -> Self {
        IS_BEGINNING.set(true);
        Self
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        IS_BEGINNING.set(false);
    }
}

impl Reader {
    /// Begins attempts on other threads.
    pub(super) fn dispatch(self: &Arc<Self>, dispatches: Dispatches) {
        if !dispatches.is_empty() {
            self.wake_ticker();
        }
        if IS_BEGINNING.get() {
            let later = dispatches.into_iter().map(|dispatch| (Arc::clone(self), dispatch));
            return TO_BEGIN.with_borrow_mut(|list| list.extend(later));
        }
        let _beginning = Beginning::enter();
        for dispatch in dispatches {
            submit(self, dispatch);
        }
        while let Some((reader, dispatch)) = TO_BEGIN.with_borrow_mut(VecDeque::pop_front) {
            submit(&reader, dispatch);
        }
    }
}

/// Begins an attempt: submits its read, or queues it for a thread of its replica's pool.
fn submit(reader: &Arc<Reader>, dispatch: Dispatch<Arc<SegmentFetch>>) {
    let Dispatch { attempt, item: fetch, replica, .. } = dispatch;
    fetch.start_attempt(replica);
    let reader = Arc::clone(reader);
    let started =
        StartedAttempt { reader, fetch, attempt, replica, needs_thread: false, has_ended: false };
    if let Err(started) = submitted::try_begin(started) {
        started.queue();
    }
}

/// Runs an attempt on the calling thread if that saves a thread switch and its replica grants a
/// permit. Otherwise submits it.
pub(super) fn run_inline_or_submit(reader: &Arc<Reader>, dispatch: Dispatch<Arc<SegmentFetch>>) {
    let host = Arc::clone(&reader.replicas[dispatch.replica]);
    if host.reads_without_threads() {
        return submit(reader, dispatch);
    }
    let Some(leave) = host.try_inline_permit(&dispatch.item.file.path_key()) else {
        return submit(reader, dispatch);
    };
    let Dispatch { attempt, item: fetch, replica, .. } = dispatch;
    fetch.start_attempt(replica);
    host.run_inline(&leave, fetch.file.path_key(), |backend| {
        attempt::run_attempts(reader, &fetch, attempt, replica, backend)
    });
}

/// An attempt that the scheduler counts as in flight. One that is dropped ends: a pool drops its
/// jobs if it is full, has stopped or has no thread, and the segment would otherwise wait in vain.
pub(super) struct StartedAttempt {
    pub(super) reader: Arc<Reader>,
    pub(super) fetch: Arc<SegmentFetch>,
    pub(super) attempt: AttemptId,
    pub(super) replica: ReplicaId,
    /// Whether its read blocks a thread.
    pub(super) needs_thread: bool,
    pub(super) has_ended: bool,
}

impl StartedAttempt {
    pub(super) fn host(&self) -> &Arc<Replica> {
        &self.reader.replicas[self.replica]
    }

    /// Queues it for a thread of its replica's pool.
    pub(super) fn queue(self) {
        let fetch = Arc::clone(&self.fetch);
        let host = Arc::clone(self.host());
        let replica = self.replica;
        let of = Arc::clone(&fetch);
        let is_over: Box<dyn Fn() -> bool + Send> = Box::new(move || of.is_ended_or_unwanted());
        let about = fetch.file.path_key();
        let errand =
            JobOptions { path_key: about, is_abandoned: Some(is_over), ..JobOptions::default() };
        // A refused job is dropped.
        let job = move |backend: &dyn Backend| self.run(backend);
        if let Ok(ticket) = host.submit_with(Lane::Read, errand, job) {
            fetch.state.lock().tickets.push((replica, ticket));
        }
    }

    fn run(self, backend: &dyn Backend) {
        let Some(mut own) = self.try_submit(backend) else { return };
        own.has_ended = true;
        attempt::run_attempts(&own.reader, &own.fetch, own.attempt, own.replica, backend);
    }

    /// Opens the file and begins the read, if the read takes no thread. Returns the attempt if it
    /// does.
    fn try_submit(self, backend: &dyn Backend) -> Option<Self> {
        let takes_thread = self.needs_thread || !self.host().reads_without_threads();
        if takes_thread || self.fetch.is_ended_or_unwanted() {
            return Some(self);
        }
        match self.fetch.file.open_on(self.replica, backend) {
            Ok(file) => submitted::begin(self, file).err(),
            Err(error) => {
                let claim = self.fetch.take_attempt_claim(self.replica);
                self.finish(Err((error.into(), claim)));
                None
            }
        }
    }

    /// Ends it.
    pub(super) fn finish(mut self, result: AttemptResult) {
        self.end(result);
    }

    fn end(&mut self, result: AttemptResult) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let Self { reader, fetch, attempt, replica, .. } = self;
        let next = attempt::finish_attempt(reader, fetch, *attempt, *replica, result);
        reader.dispatch(next.into_iter().collect());
    }
}

impl Drop for StartedAttempt {
    fn drop(&mut self) {
        if !self.has_ended {
            let claim = self.fetch.take_attempt_claim(self.replica);
            self.end(Err((BackendError::QueueFull.into(), claim)));
        }
    }
}
