//! The future of a call's answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::MetadataClient;
use super::pending_changes::PendingChange;
use crate::backend::{BackendError, Result};
use crate::replicas::task;
use crate::volume::ReplicaId;

/// The answer to a call, and the replica that sent it. If the future is dropped, the call
/// continues, and its answer is dropped.
pub struct CallFuture<T> {
    slot: Arc<AnswerSlot<T>>,
    unreplied: Option<UnrepliedCall>,
}

/// Holds the answer of a call. The call owns the waker through it, not the other way round. So a
/// request is dropped together with its unanswered call when the volume stops.
pub(super) struct AnswerSlot<T>(Mutex<SlotState<T>>);

struct SlotState<T> {
    answer: Option<Result<(ReplicaId, T)>>,
    waker: Option<Waker>,
    /// Whether the call was dropped unanswered.
    is_abandoned: bool,
}

/// Counts a call as pending until its request has been answered and the tables have been updated.
struct UnrepliedCall {
    client: Arc<MetadataClient>,
    change: Option<PendingChange>,
}

impl<T> AnswerSlot<T> {
    pub(super) fn new() -> Arc<Self> {
        let state = SlotState { answer: None, waker: None, is_abandoned: false };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Delivers the answer. The calling thread continues the request.
    pub(super) fn deliver(&self, answer: Result<(ReplicaId, T)>) {
        let waker = {
            let mut state = self.0.lock();
            state.answer = Some(answer);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The call has been dropped without an answer.
    pub(super) fn abandon(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.is_abandoned = true;
            state.waker.take()
        };
        drop(waker);
    }
}

impl<T> CallFuture<T> {
    /// The answer to a call that is about to start.
    pub(super) fn new(
        slot: Arc<AnswerSlot<T>>,
        client: &Arc<MetadataClient>,
        change: Option<PendingChange>,
    ) -> Self {
        client.pending.fetch_add(1, Ordering::Relaxed);
        let unreplied = UnrepliedCall { client: Arc::clone(client), change };
        Self { slot, unreplied: Some(unreplied) }
    }
}

impl<T> Future for CallFuture<T> {
    type Output = Result<(ReplicaId, T)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = {
            let mut state = self.slot.0.lock();
            match state.answer.take() {
                Some(answer) => answer,
                // The volume is stopping.
                None if state.is_abandoned => Err(BackendError::Os(rustix::io::Errno::IO)),
                None => {
                    state.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        if let Some(unreplied) = self.unreplied.take() {
            task::hold_until_reply(unreplied);
        }
        Poll::Ready(answer)
    }
}

impl Drop for UnrepliedCall {
    fn drop(&mut self) {
        self.client.pending.fetch_sub(1, Ordering::Relaxed);
        if let Some(change) = &self.change {
            change.remove();
        }
    }
}
