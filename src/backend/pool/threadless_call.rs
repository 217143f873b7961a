//! Calls in flight that hold no thread. Like jobs, they have tickets, and their answers are progress
//! for the jobs and calls after them.

use std::sync::Arc;
use std::time::Instant;

use super::{Pool, PoolShared, PoolState};
use crate::backend::queue_progress::Ticket;

/// A call in flight. It ends when this is dropped.
pub struct ThreadlessCall {
    shared: Arc<PoolShared>,
    ticket: Ticket,
    has_answer: bool,
}

/// What a pool knows of such a call.
pub(super) struct ThreadlessState {
    pub(super) number: u64,
    /// When the call last completed a part of its answer.
    pub(super) last_progress: Option<Instant>,
}

impl Pool {
    /// Enters a call that begins now. `None` if the pool has been stopped.
    pub fn begin_threadless_call(&self) -> Option<ThreadlessCall> {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return None;
        }
        let ticket = state.next_ticket();
        let call = ThreadlessState { number: ticket.number, last_progress: None };
        state.threadless_calls.push(call);
        Some(ThreadlessCall { shared: Arc::clone(&self.shared), ticket, has_answer: false })
    }

    /// Whether it has been stopped.
    pub fn is_stopped(&self) -> bool {
        self.shared.state.lock().stopped
    }
}

impl PoolState {
    /// The time of a call's last partial answer.
    pub(super) fn threadless_progress(&self, number: u64) -> Option<Instant> {
        let call = self.threadless_calls.iter().find(|call| call.number == number);
        call.and_then(|call| call.last_progress)
    }
}

impl ThreadlessCall {
    /// Identifies it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Records that the replica has answered a part of it.
    pub fn report_progress(&self) {
        let mut state = self.shared.state.lock();
        let number = self.ticket.number;
        if let Some(call) = state.threadless_calls.iter_mut().find(|call| call.number == number) {
            call.last_progress = Some(Instant::now());
        }
    }

    /// Ends it with the replica's answer.
    pub fn end_answered(mut self) {
        self.has_answer = true;
    }
}

impl Drop for ThreadlessCall {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let number = self.ticket.number;
        if let Some(at) = state.threadless_calls.iter().position(|call| call.number == number) {
            state.threadless_calls.swap_remove(at);
        }
        if self.has_answer {
            state.record_answer_of(number);
        }
    }
}
