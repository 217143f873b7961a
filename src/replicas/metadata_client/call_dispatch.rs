//! Chooses the thread that makes a call or closes a file: one of the replica's own, or the session
//! thread of the request.

use std::sync::Arc;
use std::time::Instant;

use super::call_attempt::SentCall;
use super::fallback::early_since;
use super::{MetadataCall, MetadataClient};
use crate::backend::{
    Backend, BackendError, DroppedFile, InlineChange, JobOptions, OngoingChange, PathKey, Result,
    in_change,
};
use crate::replicas::task;
use crate::sync::before_io;
use crate::volume::ReplicaId;

impl MetadataClient {
    /// Closes a file on the calling thread, a session thread that owes no reply, if its replica is
    /// well and quick to close files. Otherwise one of the replica's own threads closes it.
    pub fn close(&self, file: DroppedFile) {
        let owner = self.replicas.iter().find(|(_, replica)| replica.has_opened(&file));
        let Some((id, replica)) = owner else { return };
        if !self.replicas.is_calm()
            || !self.latency.is_quick(id)
            || !self.close_latency.is_quick(id)
        {
            return;
        }
        let path_key = match file.path() {
            // It came from another daemon.
            path if path.as_os_str().is_empty() => PathKey::default(),
            path => PathKey::from_path(path),
        };
        let Some(_all) = self.replicas.inline_permits().try_acquire() else { return };
        if let Some(permit) = replica.try_inline_permit(&path_key) {
            before_io("a close");
            let begun = Instant::now();
            replica.close_inline(&permit, path_key, file, || self.replicas.ticker().wake());
            self.close_latency.record(id, begun.elapsed());
        }
    }
}

impl<T: Send + 'static> OngoingChange for MetadataCall<T> {
    fn is_given_up(&self) -> bool {
        self.is_over()
    }
}

impl<T: Send + 'static> MetadataCall<T> {
    /// Whether the caller has its answer.
    fn is_over(&self) -> bool {
        self.op.lock().is_none()
    }

    /// Makes the call on the calling thread if that is a session thread and the replica is quick.
    /// Otherwise queues it on the replica's pool.
    pub(super) fn dispatch(self: &Arc<Self>, replica: ReplicaId, sent: SentCall) -> Result<()> {
        if self.is_quick_on(replica) {
            let call = Arc::clone(self);
            if task::defer(move || call.run_inline(replica, sent)).is_ok() {
                return Ok(());
            }
        }
        self.submit(replica, sent)
    }

    /// Whether the replica is likely to answer so soon that a session thread may make the call.
    fn is_quick_on(&self, replica: ReplicaId) -> bool {
        match self.options.change {
            // The next change could wait for one that hangs.
            Some(_) if self.client.replicas[replica].has_stuck_calls() => false,
            Some(class) => self.client.change_latency.is_quick(replica, class),
            None => !self.options.is_long && self.client.latency.is_quick(replica),
        }
    }

    /// Queues the call on the replica's pool.
    fn submit(self: &Arc<Self>, replica: ReplicaId, sent: SentCall) -> Result<()> {
        let call = Arc::clone(self);
        let job = move |backend: &dyn Backend| {
            if let Some(answer) = call.ask(replica, backend) {
                call.handle_answer(replica, answer, sent, Instant::now());
            }
        };
        let call = Arc::clone(self);
        let options = JobOptions {
            path_key: self.options.path_key,
            is_mutation: self.options.is_mutation(),
            is_probe: false,
            is_abandoned: Some(Box::new(move || call.is_over())),
        };
        let ticket = self.client.replicas[replica].submit_with(self.options.lane, options, job)?;
        let mut state = self.state.lock();
        let mut silent = state.unanswered.iter_mut().rev().map(|silent| &mut silent.attempt);
        if let Some(silent) = silent.find(|silent| silent.replica == replica) {
            silent.ticket = Some(ticket);
        }
        Ok(())
    }

    /// Makes the call on the calling thread if there are permits for it. Otherwise queues it.
    fn run_inline(self: &Arc<Self>, replica: ReplicaId, sent: SentCall) {
        let replicas = &self.client.replicas;
        let path_key = self.options.path_key;
        let mut answer = None;
        let permits = replicas.inline_permits().try_acquire();
        let permits = permits.and_then(|all| {
            let own = replicas[replica].try_inline_permit(&path_key)?;
            let change = match self.options.is_mutation() {
                true => Some(InlineChange::enter()?),
                false => None,
            };
            Some((all, own, change))
        });
        let is_inside = permits.is_some();
        if let Some((_all, own, _change)) = permits {
            let call = |backend: &dyn Backend| answer = self.ask(replica, backend);
            replicas[replica].run_inline(&own, path_key, call);
        }
        match answer {
            // A session thread is interrupted for a handover: make the call on the pool instead. A
            // change is not interrupted; the replica itself gave this answer.
            Some(Err(BackendError::Os(rustix::io::Errno::INTR))) if !self.options.is_mutation() => {
            }
            Some(answer) => {
                let early = early_since(&self.state.lock().fallback);
                let at = early.unwrap_or_else(Instant::now);
                return self.handle_answer(replica, answer, sent, at);
            }
            // The call is over.
            None if is_inside => return,
            None => {}
        }
        if let Err(error) = self.submit(replica, sent)
            && self.handle_failure(replica, error)
        {
            self.send_next();
        }
    }

    /// Makes the call; `None` if its answer is no longer wanted.
    fn ask(self: &Arc<Self>, replica: ReplicaId, backend: &dyn Backend) -> Option<Result<T>> {
        let op = self.op.lock().clone()?;
        if self.pending_change.as_ref().is_some_and(|change| !change.start_on_replica()) {
            // The kernel will send this change to the next daemon.
            return None;
        }
        before_io("a call on a replica");
        let begun = Instant::now();
        let ask = || self.options.run_as.run(|| op(replica, backend));
        let answer = match self.options.is_mutation() {
            true => in_change(Arc::<Self>::clone(self), ask),
            false => ask(),
        };
        drop(op);
        if let Some(change) = &self.pending_change {
            change.finish_on_replica();
        }
        // Without the wait for a thread: otherwise replicas that serve most calls would seem slower
        // than idle ones.
        if let Some(pin) = self.options.pin {
            self.client.pinned_latency[pin.rule].record(replica, begun.elapsed());
        }
        if let Some(class) = self.options.change {
            self.client.change_latency.record(replica, class, begun.elapsed());
        }
        Some(answer)
    }
}
