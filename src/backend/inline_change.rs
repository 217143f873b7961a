//! A change that a thread makes although it is not one of the write replica's own.
//!
//! A session thread is interrupted when its session is paused. A query that is interrupted is
//! repeated; a change must not be, as it may have been made. So no thread is interrupted inside a
//! change. To block a signal takes two system calls, which many changes are too short for. So the
//! thread says that it is inside a change, and the thread that pauses the session says that it
//! interrupts others. Each does so before it looks at what the other says. A thread that begins a
//! change during interruptions blocks the signal. Otherwise it is not sent the signal.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use parking_lot::Mutex;
use rustix::thread::{Pid, gettid};

/// The signal that interrupts a session thread. It is only sent to threads of this process.
pub const INTERRUPT_SIGNAL: Signal = Signal::SIGUSR2;

/// Whether threads are being interrupted.
static IS_INTERRUPTING: AtomicBool = AtomicBool::new(false);

/// The threads that have made changes.
static THREADS: Mutex<Vec<Weak<ChangingThread>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<ChangingThread> = ChangingThread::register();
}

/// A thread that makes changes.
struct ChangingThread {
    id: Pid,
    /// One of [`OUTSIDE`], [`ENTERING`] and [`INSIDE`].
    state: AtomicU8,
}

/// The thread is in no change.
const OUTSIDE: u8 = 0;

/// It will be inside a change, and may not have blocked the signal yet.
const ENTERING: u8 = 1;

/// It is inside a change, and has blocked the signal if it had to.
const INSIDE: u8 = 2;

impl ChangingThread {
    fn register() -> Arc<Self> {
        let own = Arc::new(Self { id: gettid(), state: AtomicU8::new(OUTSIDE) });
        let mut threads = THREADS.lock();
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(&own));
        own
    }
}

/// The calling thread may be inside a change until this is dropped.
#[must_use = "the change ends at once"]
pub struct InlineChange {
    own: Arc<ChangingThread>,
    /// The signals that were blocked before, if this has blocked one.
    blocked: Option<SigSet>,
    /// Not `Send`: it is about this thread.
    _here: PhantomData<*const ()>,
}

impl InlineChange {
    /// `None` if the thread cannot block the signal: then it must not make the change.
    pub fn enter() -> Option<Self> {
        let own = OWN.with(Arc::clone);
        own.state.store(ENTERING, Ordering::SeqCst);
        let mut entered = Self { own, blocked: None, _here: PhantomData };
        if IS_INTERRUPTING.load(Ordering::SeqCst) {
            let signal = SigSet::from(INTERRUPT_SIGNAL);
            entered.blocked = Some(signal.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?);
        }
        entered.own.state.store(INSIDE, Ordering::SeqCst);
        Some(entered)
    }
}

impl Drop for InlineChange {
    fn drop(&mut self) {
        self.own.state.store(OUTSIDE, Ordering::SeqCst);
        if let Some(blocked) = &self.blocked
            && let Err(error) = blocked.thread_set_mask()
        {
            tracing::error!(%error, "a thread cannot unblock its signals after a change");
        }
    }
}

/// Threads may be interrupted while this exists: no thread begins a change without blocking the
/// signal. There is one at a time.
pub struct Interruptions(());

impl Interruptions {
    /// Threads will be interrupted from now on.
    pub fn begin() -> Self {
        IS_INTERRUPTING.store(true, Ordering::SeqCst);
        Self(())
    }

    /// Whether the thread may be interrupted: it is in no change, or will block the signal before it
    /// is in one.
    pub fn may_interrupt(&self, thread: i32) -> bool {
        self.state_of(thread) == OUTSIDE
    }

    /// Whether the thread is inside a change: it takes no request before that ends, and no signal.
    pub fn is_in_change(&self, thread: i32) -> bool {
        self.state_of(thread) == INSIDE
    }

    fn state_of(&self, thread: i32) -> u8 {
        let threads = THREADS.lock();
        let own = |known: &Weak<ChangingThread>| {
            known.upgrade().filter(|known| known.id.as_raw_nonzero().get() == thread)
        };
        let mut known = threads.iter().filter_map(own);
        known.next().map_or(OUTSIDE, |known| known.state.load(Ordering::SeqCst))
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        IS_INTERRUPTING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_begins_during_interruptions_blocks_them() {
        let own = gettid().as_raw_nonzero().get();
        let blocks = || SigSet::thread_get_mask().unwrap().contains(INTERRUPT_SIGNAL);
        let earlier = InlineChange::enter().unwrap();
        assert!(!blocks(), "nothing is being interrupted");
        let interruptions = Interruptions::begin();
        assert!(interruptions.is_in_change(own), "one that began before");
        assert!(!interruptions.may_interrupt(own));
        drop(earlier);
        assert!(!interruptions.is_in_change(own) && interruptions.may_interrupt(own));
        let change = InlineChange::enter().unwrap();
        assert!(blocks() && interruptions.is_in_change(own));
        drop(interruptions);
        assert!(blocks(), "as long as the change lasts");
        drop(change);
        assert!(!blocks());
        let next = InlineChange::enter().unwrap();
        assert!(!blocks());
        drop(next);
    }
}
