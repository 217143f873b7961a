//! The thread that waits for the current request.
//!
//! The FUSE library does not pass on interrupts. A thread that is killed while it waits for an
//! answer ends only when it gets the answer, so fanfs checks for the signal itself. The FUSE thread
//! records the waiting thread when a request arrives, and the calls for that request carry it
//! along.

use std::cell::Cell;

use crate::capabilities;

/// A thread that waits for an answer, by its id in this process's PID namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestingThread(u32);

thread_local! {
    static CURRENT: Cell<RequestingThread> = const { Cell::new(RequestingThread::NONE) };
}

impl RequestingThread {
    /// No thread waits, or none that is visible to this process.
    pub const NONE: Self = Self(0);

    /// The thread with this id; 0 for none.
    pub const fn from_tid(number: u32) -> Self {
        Self(number)
    }

    /// The thread for which the calling thread works.
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// Makes the calling thread work for this one from now on.
    pub fn set_current(self) {
        CURRENT.set(self);
    }

    /// Runs `work` for this thread, then restores the previous one.
    pub fn scope<T>(self, work: impl FnOnce() -> T) -> T {
        struct RestoreOnDrop(RequestingThread);
        impl Drop for RestoreOnDrop {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _before = RestoreOnDrop(CURRENT.replace(self));
        work()
    }

    /// Whether it has been killed. When a fatal signal ends a process, the kernel makes SIGKILL
    /// pending for each of its threads.
    pub fn is_killed(self) -> bool {
        /// The bit of SIGKILL in a signal mask.
        const KILL: u64 = 1 << 8;
        if self == Self::NONE {
            return false;
        }
        let Ok(status) = capabilities::proc_status(self.0) else { return false };
        let pending = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
        };
        (pending("SigPnd:") | pending("ShdPnd:")) & KILL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requesting_thread_is_restored_after_its_scope() {
        RequestingThread::from_tid(7).set_current();
        let inside = RequestingThread::from_tid(8).scope(RequestingThread::current);
        assert_eq!(
            (inside, RequestingThread::current()),
            (RequestingThread::from_tid(8), RequestingThread::from_tid(7))
        );
        RequestingThread::NONE.set_current();
    }

    #[test]
    fn a_live_thread_is_not_reported_as_killed() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(
            !RequestingThread::from_tid(own).is_killed() && !RequestingThread::NONE.is_killed()
        );
    }
}
