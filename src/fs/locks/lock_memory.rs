//! Memory for owners of locks and for waiters.
//!
//! They are charged to a share of the volume's budget. A user may take at most as much as is left
//! for all other users together, so no user's locks use up the share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::{Budget, Reservation};

/// Bytes that each user has claimed.
type BytesByUser = Arc<Mutex<HashMap<u32, u64>>>;

pub(in crate::fs) struct LockMemory {
    share: Budget,
    budget: Budget,
    users: BytesByUser,
}

/// The memory of one owner or waiter.
pub(in crate::fs) struct LockSlot {
    _share: Reservation,
    _budget: Reservation,
    /// The user that is charged; `None` for a restored owner.
    user: Option<(u32, BytesByUser)>,
}

/// The share is the budget divided by this.
const BUDGET_DIVISOR: u64 = 16;

/// Memory of one owner or waiter, bytes, with its table entries and the kernel's memory for the
/// file that it locks through.
const BYTES_PER_SLOT: u64 = 1 << 10;

impl LockMemory {
    pub(in crate::fs) fn new(budget: Budget) -> Self {
        let share = Budget::new(budget.limit() / BUDGET_DIVISOR);
        Self { share, budget, users: Arc::default() }
    }

    /// Memory for one more owner or waiter of `user`; `None` if the user has too many.
    pub(in crate::fs) fn reserve(&self, user: u32) -> Option<LockSlot> {
        let mut users = self.users.lock();
        let own = users.get(&user).copied().unwrap_or(0);
        if own + BYTES_PER_SLOT > self.share.limit().saturating_sub(self.share.used()) {
            return None;
        }
        let share = self.share.claim(BYTES_PER_SLOT)?;
        users.insert(user, own + BYTES_PER_SLOT);
        let user = Some((user, Arc::clone(&self.users)));
        // Locks do not wait for memory that reads hold. The share limits how far they exceed the
        // budget.
        Some(LockSlot { _share: share, _budget: self.budget.overdraw(BYTES_PER_SLOT), user })
    }

    /// Memory for an owner that the predecessor had admitted.
    pub(in crate::fs) fn reserve_restored(&self) -> LockSlot {
        let share = self.share.overdraw(BYTES_PER_SLOT);
        let budget = self.budget.overdraw(BYTES_PER_SLOT);
        LockSlot { _share: share, _budget: budget, user: None }
    }
}

impl Drop for LockSlot {
    fn drop(&mut self) {
        let Some((user, users)) = self.user.take() else { return };
        let mut users = users.lock();
        if let Some(own) = users.get_mut(&user) {
            *own -= BYTES_PER_SLOT;
            if *own == 0 {
                users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_lock_memory_to_others() {
        let budget = Budget::new(16 * BUDGET_DIVISOR * BYTES_PER_SLOT);
        let room = LockMemory::new(budget.clone());
        let take = |user| std::iter::from_fn(|| room.reserve(user)).collect::<Vec<_>>();
        let first = take(1);
        assert_eq!(first.len(), 8, "half of them");
        let others: Vec<_> = (2..6).map(|user| take(user).len()).collect();
        assert_eq!(others, [4, 4, 4, 4], "half of the rest, each in turn");
        let second = take(2);
        assert_eq!(budget.used(), (8 + second.len() as u64) * BYTES_PER_SLOT);
        assert!(room.reserve(1).is_none());
        drop(first);
        assert!(room.reserve(1).is_some());
        let again = room.reserve_restored();
        drop((second, again));
        assert_eq!(budget.used(), 0);
        assert!(room.users.lock().is_empty());
    }
}
