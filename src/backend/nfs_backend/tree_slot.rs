//! The tree that the calls on an export use, and its replacement.
//!
//! When a server has come back with another port, address or root, the export is opened again, and
//! its new tree takes the place of the old one. Calls in flight on the old tree then end, and are
//! made again on the new one. Open files stay usable if the root is the same.

use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;

use super::export_tree::ExportTree;
use crate::backend::{BackendError, Result};
use crate::nfs::FileHandle;

/// The tree of the last admission.
#[derive(Default)]
pub(super) struct TreeSlot(RwLock<SlotState>);

#[derive(Default)]
struct SlotState {
    tree: Option<Arc<ExportTree>>,
    is_in_service: bool,
}

impl TreeSlot {
    pub(super) fn is_in_service(&self) -> bool {
        self.0.read().is_in_service
    }

    /// The tree in service.
    ///
    /// # Errors
    /// [`BackendError::Absent`] if the replica is not in service.
    pub(super) fn current(&self) -> Result<Arc<ExportTree>> {
        let state = self.0.read();
        state.tree.clone().filter(|_| state.is_in_service).ok_or(BackendError::Absent)
    }

    /// The tree of the last admission, also out of service.
    pub(super) fn last(&self) -> Option<Arc<ExportTree>> {
        self.0.read().tree.clone()
    }

    /// Brings `tree` into service, in place of the one before.
    pub(super) fn install(&self, tree: Arc<ExportTree>) {
        let mut state = self.0.write();
        let before = state.tree.replace(tree);
        state.is_in_service = true;
        drop(state);
        before.iter().for_each(|tree| tree.end());
    }

    /// Leaves service if `tree` is still the current one. Open files keep it.
    pub(super) fn leave_service(&self, tree: &Arc<ExportTree>) {
        let mut state = self.0.write();
        if state.tree.as_ref().is_some_and(|now| Arc::ptr_eq(now, tree)) {
            state.is_in_service = false;
        }
    }

    /// Makes a call by path.
    pub(super) fn call<T>(&self, mut call: impl FnMut(&Arc<ExportTree>) -> Result<T>) -> Result<T> {
        self.repeat_if_replaced(|| self.current(), |tree| call(tree))
    }

    /// Makes a call on a file that was opened below this root, also out of service.
    ///
    /// # Errors
    /// ESTALE if the export has another root now.
    pub(super) fn call_file<T>(
        &self,
        root: FileHandle,
        mut call: impl FnMut(&ExportTree) -> Result<T>,
    ) -> Result<T> {
        self.repeat_if_replaced(|| self.tree_of(root), |tree| call(tree))
    }

    /// The tree for a file that was opened below this root, also out of service.
    ///
    /// # Errors
    /// ESTALE if the export has another root now.
    pub(super) fn tree_of(&self, root: FileHandle) -> Result<Arc<ExportTree>> {
        let last = self.last().ok_or(BackendError::Absent)?;
        if last.root() == root { Ok(last) } else { Err(Errno::STALE.into()) }
    }

    fn repeat_if_replaced<T>(
        &self,
        tree: impl Fn() -> Result<Arc<ExportTree>>,
        mut call: impl FnMut(&Arc<ExportTree>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let tree = tree()?;
            match call(&tree) {
                Err(BackendError::Os(Errno::NOTCONN)) if tree.has_ended() => {}
                answer => return answer,
            }
        }
    }
}
