//! Calls on replicas: which replicas are asked about a path or an inode, and when a call is
//! repeated.
//!
//! Only the write replica is asked about names and inodes that were changed through this mount
//! recently ([`super::recent_changes`]). The replica whose mount has asked its server about a name
//! is asked first ([`super::name_freshness`]). [`MetadataClient`] carries out the calls.

mod page_drops;
mod rename_retry;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry_name::EntryName;
use super::error::{Errno, FsResult};
use super::ino::Ino;
use super::policy::WritePolicy;
use super::recent_changes::PathChange;
use super::renames::RenameTracker;
use super::tables::{InodeRef, Tables};
use crate::backend::{Backend, Credentials, Lane, ObjectRef};
use crate::read::OpenFile;
use crate::replicas::metadata_client::{
    CallTarget, ChangeClass, MetadataClient, RunAs, SingleCall,
};
use crate::replicas::request_deadline::RequestDeadline;
use crate::replicas::{Replicas, task};
use crate::volume::VolumeMode;

pub(super) use rename_retry::RetriedCall;

/// Makes calls on replicas for the operations.
pub(super) struct ReplicaCalls {
    tables: Arc<Tables>,
    pub(super) client: Arc<MetadataClient>,
    pub(super) replicas: Arc<Replicas>,
    pub(super) renames: Arc<RenameTracker>,
    /// Runs waits for anything other than a replica.
    pub(super) runtime: tokio::runtime::Handle,
}

/// The interval and the number of checks whether the kernel has sent a request that is expected
/// soon: a close or a forget.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLLS: u32 = 30;

impl ReplicaCalls {
    pub(super) fn new(
        tables: Arc<Tables>,
        client: Arc<MetadataClient>,
        replicas: Arc<Replicas>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let renames = Arc::default();
        Arc::new(Self { tables, client, replicas, renames, runtime })
    }

    /// The target of a call about the object at `path`.
    pub(super) fn target(&self, path: &Path) -> CallTarget {
        let tables = &self.tables;
        let target = CallTarget::new(path, tables.reader.locator().pin(path));
        let now = Instant::now();
        let change = tables
            .policy
            .write
            .map(|write| (write.replica, tables.recent_changes.path_change(path, now)));
        match change {
            Some((replica, PathChange::Object)) => target.only_on(replica),
            Some((replica, PathChange::Listing)) => target.preferring(replica),
            Some((_, PathChange::None)) | None => tables
                .name_freshness
                .preferred_replica(path, now)
                .map_or(target, |replica| target.preferring(replica)),
        }
    }

    /// The same for an object that the kernel knows.
    fn target_of_known(&self, path: &Path) -> CallTarget {
        match self.tables.policy.mode {
            VolumeMode::Shared => self.target(path).known_to_exist(),
            // The first replica decides what the tree contains.
            VolumeMode::Copies => self.target(path),
        }
    }

    /// The same for the entries of the directory `path`.
    pub(super) fn target_of_listing(&self, path: &Path) -> CallTarget {
        let tables = &self.tables;
        let target = self.target_of_known(path);
        match tables.policy.write {
            Some(write)
                if tables.recent_changes.path_change(path, Instant::now()) != PathChange::None
                    || tables.handles.has_writer_in_dir(path) =>
            {
                target.only_on(write.replica)
            }
            _ => target,
        }
    }

    /// The same for a name, which the kernel may know.
    pub(super) fn target_of_name(&self, at: EntryName<'_>, path: &Path) -> CallTarget {
        let target = self.target(path);
        let is_known = || self.tables.inodes.lock().child(at.parent, at.name).is_some();
        match self.tables.policy.mode {
            VolumeMode::Shared if is_known() => target.known_to_exist(),
            _ => target,
        }
    }

    /// The same for the path of an inode, which may have been changed by another name.
    pub(super) fn target_of_inode(&self, ino: Ino, path: &Path) -> CallTarget {
        let target = self.target_of_known(path);
        match self.tables.policy.write {
            Some(write) if self.tables.is_recently_changed(ino) => target.only_on(write.replica),
            _ => target,
        }
    }

    /// The same for an open file. After a recent change at its path another file may have the path.
    /// The write replica has that file, and not the open one. Then the replicas that have the open
    /// file answer. The caller must make sure that these know of changes of it.
    pub(super) fn target_of_open(&self, ino: Ino, open: &OpenFile) -> CallTarget {
        self.target_of_inode(ino, open.path())
            .with_fallback_replicas(open.replicas_with_descriptor())
    }

    /// The same for an inode, by its path or by its open file.
    fn target_of(&self, inode: &InodeRef) -> CallTarget {
        let target = self.target_of_inode(inode.ino(), inode.path());
        match inode.open() {
            // After a change, replicas without the open file may not know of it.
            Some(open) if !self.tables.is_recently_changed(inode.ino()) => {
                target.with_fallback_replicas(open.current().replicas_with_descriptor())
            }
            _ => target,
        }
    }

    /// Asks a replica about an inode, preferably a replica that has it open.
    pub(super) async fn call_on_inode<T: Send + 'static>(
        self: &Arc<Self>,
        run_as: RunAs,
        ino: Ino,
        op: impl Fn(&dyn Backend, ObjectRef) -> crate::backend::Result<T> + Send + Sync + 'static,
    ) -> FsResult<T> {
        let op = Arc::new(op);
        let ask = || async {
            let inode = self.tables.inode_ref(ino)?;
            let mut target = self.target_of(&inode);
            let usable = self.replicas.availability().for_calls(self.tables.policy.mode);
            if let Some(first) = inode.replica_with_open(usable)
                && !target.has_sole_replica()
            {
                target = target.preferring(first);
            }
            let op = Arc::clone(&op);
            let op = move |replica, backend: &dyn Backend| op(backend, inode.target_on(replica));
            let (_, value) = self.client.call(target, run_as.clone(), op).await?;
            Ok(value)
        };
        self.with_rename_retry(&[ino], RetriedCall::Lookup, ask).await
    }

    /// The rules for a change that begins.
    ///
    /// # Errors EIO while an earlier daemon may be making changes that this one could overtake. EIO
    /// while the write replica is absent: a change that is not tried is not noted either. EROFS on
    /// a read-only volume.
    pub(super) fn change_policy(&self) -> FsResult<WritePolicy> {
        let write = self.tables.write_policy()?;
        let is_there = self.replicas[write.replica].is_in_service();
        if is_there && !self.tables.handles.unsettled.is_all_blocked() {
            Ok(write)
        } else {
            Err(Errno::IO)
        }
    }

    /// A call on the write replica only, with these credentials. In the lane of bulk data it counts
    /// as long.
    pub(super) fn single_call(
        &self,
        write: WritePolicy,
        lane: Lane,
        credentials: &Credentials,
    ) -> SingleCall {
        SingleCall {
            replica: write.replica,
            class: match lane {
                Lane::Metadata => ChangeClass::Names,
                Lane::Read => ChangeClass::Long,
            },
            lane,
            deadline: RequestDeadline::new(Instant::now(), write.deadlines),
            run_as: RunAs::Only(credentials.clone()),
        }
    }

    /// Waits while `is_pending` holds, for at most [`MAX_POLLS`] times [`POLL_INTERVAL`]. A change
    /// that waits counts as in progress.
    pub(super) async fn wait_while(&self, is_pending: impl Fn(&Tables) -> bool + Send + 'static) {
        if !is_pending(&self.tables) {
            return;
        }
        task::hold_until_reply(self.client.pending_changes.add_delayed());
        let tables = Arc::clone(&self.tables);
        let wait = async move {
            for _ in 0..MAX_POLLS {
                tokio::time::sleep(POLL_INTERVAL).await;
                if !is_pending(&tables) {
                    break;
                }
            }
        };
        // If the runtime does not finish it, the volume is being shut down.
        let _ = self.runtime.spawn(wait).await;
    }
}
