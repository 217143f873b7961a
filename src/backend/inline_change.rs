//! A change that a thread makes although it is not one of the write replica's own.
//!
//! The next daemon must see whether a thread of this one may still be inside a change. It looks at
//! the threads' names ([`WRITE_THREAD_PREFIX`]), so a session thread has another name meanwhile. And
//! a session thread is interrupted when its session is paused. A query that is interrupted is
//! repeated; a change must not be, as it may have been made. So it is not interrupted.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::WRITE_THREAD_PREFIX;

/// The signal that interrupts a session thread. It is only sent to threads of this process.
pub const INTERRUPT_SIGNAL: Signal = Signal::SIGUSR2;

/// The kernel keeps so many bytes of a thread's name.
const MAX_NAME_LEN: usize = 15;

thread_local! {
    /// The calling thread's name outside a change, and inside one.
    static NAMES: RefCell<Option<Names>> = const { RefCell::new(None) };
}

struct Names {
    usual: CString,
    in_change: CString,
}

impl Names {
    fn of_this_thread() -> std::io::Result<Self> {
        let usual = rustix::thread::name()?;
        let mut changed = [WRITE_THREAD_PREFIX.as_bytes(), usual.as_bytes()].concat();
        changed.truncate(MAX_NAME_LEN);
        Ok(Self { usual, in_change: CString::new(changed)? })
    }
}

/// The calling thread may be inside a change until this is dropped.
#[must_use = "the change ends at once"]
pub struct InlineChange {
    /// The signals that were blocked before.
    blocked: SigSet,
    /// Not `Send`: the name is the thread's.
    _here: PhantomData<*const ()>,
}

impl InlineChange {
    /// Call it before the check that no handover prevents the change: a later daemon looks at names
    /// after that. `None` if the thread cannot be
    /// marked: then it must not make the change.
    pub fn enter() -> Option<Self> {
        let blocked =
            SigSet::from(INTERRUPT_SIGNAL).thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
        let entered = Self { blocked, _here: PhantomData };
        set_name(|names| &names.in_change).ok()?;
        Some(entered)
    }
}

impl Drop for InlineChange {
    fn drop(&mut self) {
        let restored = set_name(|names| &names.usual).map_err(|_| ());
        if restored.and(self.blocked.thread_set_mask().map_err(|_| ())).is_err() {
            tracing::error!("a thread cannot get its name and signals back after a change");
        }
    }
}

fn set_name(which: impl Fn(&Names) -> &CStr) -> std::io::Result<()> {
    NAMES.with_borrow_mut(|names| {
        let names = match names {
            Some(names) => names,
            none => none.insert(Names::of_this_thread()?),
        };
        Ok(rustix::thread::set_name(which(names))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_a_change_says_so_and_is_not_interrupted() {
        let seen = || {
            let blocks = SigSet::thread_get_mask().unwrap().contains(INTERRUPT_SIGNAL);
            (rustix::thread::name().unwrap().into_string().unwrap(), blocks)
        };
        let work = move || {
            let change = InlineChange::enter().unwrap();
            let inside = seen();
            drop(change);
            let again = InlineChange::enter().map(|_change| seen());
            (inside, again.unwrap(), seen())
        };
        let thread = std::thread::Builder::new().name("a-long-name-15b".to_owned());
        let (inside, again, after) = thread.spawn(work).unwrap().join().unwrap();
        assert_eq!(inside, ("w:a-long-name-1".to_owned(), true));
        assert_eq!(again, inside);
        assert_eq!(after, ("a-long-name-15b".to_owned(), false));
    }
}
