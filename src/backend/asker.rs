//! The thread that waits for the present work.
//!
//! The FUSE library does not pass on interrupts. A thread that is killed while it waits
//! for an answer ends only when it gets the answer, so fanfs looks for the signal itself.
//! The thread is noted where a request comes in, and taken along by the calls that are
//! made for it.

use std::cell::Cell;

use crate::privilege;

/// A thread that waits for an answer, as this process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker(u32);

thread_local! {
    static NOW: Cell<Asker> = const { Cell::new(Asker::NONE) };
}

impl Asker {
    /// No thread waits, or none that this process sees.
    pub const NONE: Self = Self(0);

    /// The thread with this number; 0 for none.
    pub const fn thread(number: u32) -> Self {
        Self(number)
    }

    /// The thread that the calling thread works for.
    pub fn now() -> Self {
        NOW.get()
    }

    /// The calling thread works for it from now on.
    pub fn enter(self) {
        NOW.set(self);
    }

    /// Does `work` for it.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        struct Before(Asker);
        impl Drop for Before {
            fn drop(&mut self) {
                NOW.set(self.0);
            }
        }
        let _before = Before(NOW.replace(self));
        work()
    }

    /// Whether it has been killed. A signal that ends a process is a SIGKILL to each of
    /// its threads by the time it is pending there.
    pub fn is_killed(self) -> bool {
        /// SIGKILL among the signals of a mask.
        const KILL: u64 = 1 << 8;
        if self == Self::NONE {
            return false;
        }
        let Ok(status) = privilege::status_of(self.0) else { return false };
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
    fn what_is_done_for_a_thread_ends_with_it() {
        Asker::thread(7).enter();
        let inside = Asker::thread(8).during(Asker::now);
        assert_eq!((inside, Asker::now()), (Asker::thread(8), Asker::thread(7)));
        Asker::NONE.enter();
    }

    #[test]
    fn a_thread_that_lives_is_not_killed() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(!Asker::thread(own).is_killed() && !Asker::NONE.is_killed());
    }
}
