//! The tree as the kernel sees it: names, attributes, listings, and the lookups that the kernel
//! forgets.
//!
//! A replica is asked by path, or by an open file if the name is gone. This module changes nothing
//! on a replica, and reads no data of files.
//!
//! *Invariant:* paths sent to replicas consist of names that the kernel looked up, without `.` or
//! `..`.

mod getattr;
mod path_queries;
mod readdir;
mod readdirplus;
mod reply_room;
mod root_attrs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::attribute_demand::AttributeDemand;
use super::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use super::error::{Errno, FsResult};
use super::ino::Ino;
use super::listing_memory::ListingMemory;
use super::replica_calls::{ReplicaCalls, RetriedCall};
use super::tables::{AttrOwner, DirEntryRef, OpenFileCheck, ReplicaPath, Tables};
use crate::backend::{Attr, Backend, BackendError, RequestContext, StatFs};
use crate::replicas::metadata_client::RunAs;
use crate::volume::ReplicaId;

pub(super) use getattr::{AttrRequest, AttrSource};
pub use readdirplus::{ReaddirPlusEntry, ReaddirPlusPage};
pub use reply_room::{DIRENTPLUS_BYTES, entry_bytes};

/// Names, attributes and listings.
pub struct Namespace {
    tables: Arc<Tables>,
    calls: Arc<ReplicaCalls>,
    listing_memory: Arc<ListingMemory>,
    attribute_demand: AttributeDemand,
    /// The last known attributes of the root, and the replica that showed them.
    last_root_attr: Mutex<Option<(ReplicaId, Attr)>>,
    /// The same of the size of the volume.
    last_stat_fs: Arc<Mutex<Option<StatFs>>>,
}

impl Namespace {
    pub(super) fn new(
        tables: Arc<Tables>,
        calls: Arc<ReplicaCalls>,
        listing_memory: Arc<ListingMemory>,
    ) -> Self {
        Self {
            tables,
            calls,
            listing_memory,
            attribute_demand: AttributeDemand::default(),
            last_root_attr: Mutex::new(None),
            last_stat_fs: Arc::default(),
        }
    }

    /// Looks up a name; the kernel then knows the inode once more.
    pub async fn lookup(&self, caller: RequestContext, at: EntryName<'_>) -> FsResult<InodeAttr> {
        let since = Instant::now();
        let look_up = || self.try_lookup(caller, at, since);
        let answer = self.calls.with_rename_retry(&[at.parent], RetriedCall::Lookup, look_up).await;
        if answer.is_ok() {
            self.attribute_demand.record_lookup(at.parent, since);
        }
        self.calls.after_page_drops(answer).await
    }

    async fn try_lookup(
        &self,
        caller: RequestContext,
        at: EntryName<'_>,
        since: Instant,
    ) -> FsResult<InodeAttr> {
        let EntryName { parent, name } = at;
        let mut asked = self.tables.change_seq();
        let mut entry = self.tables.entry_ref(parent, name)?;
        let mut path = entry.path();
        let mut target = self.calls.target_of_name(at, &path).requested_at(since);
        if self.calls.client.has_recent_lookup_timeout(target) {
            return Err(BackendError::Late.into());
        }
        loop {
            let op = self.stat_entry_op(at, entry);
            let rights = RunAs::DaemonThenCaller(caller);
            let answer = self.calls.client.call(target, rights, op).await;
            if answer.as_ref().is_err_and(|error| *error == BackendError::Late) {
                self.calls.client.record_lookup_timeout(target);
            }
            let (replica, (attr, check)) = answer?;
            let ino = self.tables.inodes.lock().ino_for(parent, name, replica, &attr);
            let is_outdated = |ino| {
                self.tables.is_possibly_stale(replica, &path, ino)
                    || self.tables.attr_owner(ino, &attr, &check) == AttrOwner::Unknown
                    || !self.tables.inodes.lock().is_current_entry(parent, name, ino, asked)
            };
            match ino.filter(|ino| is_outdated(*ino)) {
                // The object was changed through another name, or removed meanwhile. The lookup is
                // repeated, by the path that its directory has now.
                Some(ino) => {
                    asked = self.tables.change_seq();
                    target = self.calls.target_of_inode(ino, &path).for_retry_of(target);
                    entry = self.tables.entry_ref(parent, name)?;
                    path = entry.path();
                }
                None => {
                    let found = ReplicaAttr { replica, attr: &attr };
                    return self.entry_reply(at, found, &check, asked, caller.request);
                }
            }
        }
    }

    /// The operation of a replica for a lookup.
    fn stat_entry_op(
        &self,
        at: EntryName<'_>,
        entry: DirEntryRef,
    ) -> impl Fn(ReplicaId, &dyn Backend) -> crate::backend::Result<(Attr, OpenFileCheck)>
    + Send
    + Sync
    + 'static
    + use<> {
        let tables = Arc::clone(&self.tables);
        let parent = at.parent;
        let name = at.name.to_owned();
        let path = entry.path();
        move |replica, backend| {
            let at = EntryName { parent, name: &name };
            let place = ReplicaPath { replica, backend, path: &path };
            let attr = tables.stat_revalidated(at, place, &entry.name_on(replica))?;
            Ok((attr, tables.check_open_file_by_name(at, ReplicaAttr { replica, attr: &attr })))
        }
    }

    /// The reply by which the kernel learns of the object with this name, for `request`. The object
    /// was looked up after `asked` changes.
    pub(super) fn entry_reply(
        &self,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
        check: &OpenFileCheck,
        asked: u64,
        request: u64,
    ) -> FsResult<InodeAttr> {
        let ino = {
            let mut inodes = self.tables.inodes.lock();
            self.tables.detach_replaced_file(&mut inodes, at, found, check, asked);
            inodes.record_lookup(request, at, found, asked).ok_or(Errno::STALE)?
        };
        self.tables.apply_attrs(ino, found.attr, check, asked);
        self.tables.compact_journal_if_due();
        Ok(InodeAttr { ino, attr: *found.attr })
    }

    /// Attributes of the object at `path`, which consists of plain names.
    pub async fn stat_path(&self, path: PathBuf) -> FsResult<Attr> {
        let target = self.calls.target(&path);
        let stat = move |_: ReplicaId, backend: &dyn Backend| backend.stat(&path);
        let (_, attr) = self.calls.client.call(target, RunAs::DAEMON, stat).await?;
        Ok(attr)
    }

    /// The kernel has forgotten `count` lookups of an inode. Returns whether it has forgotten the
    /// inode.
    pub fn forget(&self, ino: Ino, count: u64) -> bool {
        let is_gone = {
            let mut inodes = self.tables.inodes.lock();
            inodes.forget(ino, count);
            inodes.is_forgotten(ino)
        };
        self.tables.compact_journal_if_due();
        is_gone
    }
}
