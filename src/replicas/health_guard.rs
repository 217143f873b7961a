//! The lock on the health of all replicas. Each unlock publishes whether the volume is calm.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use super::health_board::HealthBoard;
use crate::sync::RankedMutexGuard;

/// The health of all replicas, locked.
pub(crate) struct HealthGuard<'a> {
    board: RankedMutexGuard<'a, HealthBoard>,
    is_calm: &'a AtomicBool,
    may_have_changed: bool,
}

impl<'a> HealthGuard<'a> {
    pub(super) fn new(board: RankedMutexGuard<'a, HealthBoard>, is_calm: &'a AtomicBool) -> Self {
        Self { board, is_calm, may_have_changed: false }
    }
}

impl Deref for HealthGuard<'_> {
    type Target = HealthBoard;

    fn deref(&self) -> &HealthBoard {
        &self.board
    }
}

impl DerefMut for HealthGuard<'_> {
    fn deref_mut(&mut self) -> &mut HealthBoard {
        self.may_have_changed = true;
        &mut self.board
    }
}

impl Drop for HealthGuard<'_> {
    fn drop(&mut self) {
        if self.may_have_changed {
            let is_calm = self.board.is_calm();
            if self.is_calm.load(Ordering::Relaxed) != is_calm {
                self.is_calm.store(is_calm, Ordering::Relaxed);
            }
        }
    }
}
