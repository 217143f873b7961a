//! The change that the calling thread makes. A change that its caller has given up must not begin.
//!
//! A change is several calls on the replica: some open the parent directory and look at the object,
//! and one changes it. Any of them may hang until long after the caller got its error and made
//! newer changes, which the late one would overwrite. So the backend asks right before the call
//! that changes anything.

use std::cell::RefCell;
use std::sync::Arc;

use super::{BackendError, Result};

/// A change that a thread makes for a caller.
pub trait OngoingChange: Send + Sync {
    /// Whether the caller has its answer, which says that the outcome is not known.
    fn is_given_up(&self) -> bool;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn OngoingChange>>> = const { RefCell::new(None) };
}

/// Makes the calls of one change on this thread.
pub fn in_change<T>(change: Arc<dyn OngoingChange>, calls: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<dyn OngoingChange>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _outer = Restore(CURRENT.replace(Some(change)));
    calls()
}

/// Call it right before the call that changes anything.
///
/// # Errors
/// [`BackendError::Late`] if the thread makes a change that has been given up.
pub(super) fn check_not_given_up() -> Result<()> {
    let is_given_up =
        CURRENT.with_borrow(|change| change.as_ref().is_some_and(|change| change.is_given_up()));
    if is_given_up { Err(BackendError::Late) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Change(bool);

    impl OngoingChange for Change {
        fn is_given_up(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn only_a_change_that_was_given_up_is_refused() {
        assert_eq!(check_not_given_up(), Ok(()));
        in_change(Arc::new(Change(true)), || {
            assert_eq!(check_not_given_up(), Err(BackendError::Late));
            in_change(Arc::new(Change(false)), || assert_eq!(check_not_given_up(), Ok(())));
            assert_eq!(check_not_given_up(), Err(BackendError::Late));
        });
        assert_eq!(check_not_given_up(), Ok(()));
    }
}
