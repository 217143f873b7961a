//! What one daemon leaves to the next that serves the same mount.
//!
//! The kernel goes on using the numbers of inodes and handles that the daemon before
//! gave it. So that one writes down what they stand for ([`Carried`]), and sends along
//! what it has open on the replicas: files without a name can be had no other way, and
//! locks are given up when their descriptor is closed. A daemon that was killed sends
//! nothing; what it had written down meanwhile ([`super::journal`]) is the same record
//! without descriptors, and files are opened again when they are next used.
//!
//! *Invariant:* a daemon that goes on has for every number of the kernel what it stood
//! for, or an error; never something else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handle::carried::{FileRecord, Opened as OpenedRecord};
use super::inode::Inodes;
use super::inode::carried::InodesRecord;
use super::journal::Journal;
use super::lock::carried::OwnerRecord;
use super::recent::{Changes, Held};
use super::unanswered::Unanswered;
use super::{Caller, Fs, Ino, WritePolicy};
use crate::backend::{BackendFile, Parts, own};
use crate::volume::ReplicaId;

pub(super) use super::handle::carried::Opened;

/// The form that it has. A daemon that knows another one is not followed.
pub const FORMAT: u32 = 5;

/// Everything that a daemon leaves, but what it has open.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Carried {
    pub(super) inodes: InodesRecord,
    pub(super) files: Vec<FileRecord>,
    pub(super) opened: Vec<OpenedRecord>,
    pub(super) owners: Vec<OwnerRecord>,
    /// The last number that the daemon issued.
    pub(super) last: u64,
    /// What was changed lately.
    pub(super) changes: Changes,
    /// The replicas that carried out changes and kept locks.
    writer: Option<u16>,
    locker: Option<u16>,
    /// Whether the daemon was killed: nothing was sent along.
    lost: bool,
    /// The requests that the daemon may not have answered; a journal has them apart.
    pub(super) unanswered: Unanswered,
    /// Files that the daemon may still be changing.
    pub(super) unsettled: Vec<u64>,
}

/// What is being written down, and what is to be sent along.
pub(super) struct Sheet {
    pub(super) carried: Carried,
    pub(super) files: Vec<Arc<dyn BackendFile>>,
    /// Whether there is somebody to send it to: else it is for a journal.
    pub(super) is_sent: bool,
}

/// What is there to go on with.
pub(super) struct Inheritance<'a> {
    pub(super) caller: &'a Caller,
    pub(super) write: Option<WritePolicy>,
    parts: Vec<Parts>,
    map: &'a dyn Fn(u16) -> Option<ReplicaId>,
    /// Whether the daemon before was killed.
    pub(super) lost: bool,
}

impl Carried {
    /// The daemon was killed: nothing of what it had open is left.
    pub(super) fn was_lost(&mut self) {
        self.lost = true;
        self.files.clear();
        self.owners.clear();
        self.opened.iter_mut().for_each(OpenedRecord::was_lost);
    }

    /// How many handles there are.
    pub fn handles(&self) -> usize {
        self.opened.len()
    }
}

impl Sheet {
    /// Sends a file along; says which one it is. `None` where it cannot be sent.
    pub(super) fn send(&mut self, file: &Arc<dyn BackendFile>) -> Option<u32> {
        if !self.is_sent || file.parts().is_empty() {
            return None;
        }
        self.files.push(Arc::clone(file));
        Some((self.files.len() - 1) as u32)
    }
}

impl Inheritance<'_> {
    /// The replica that the daemon before knew by this number, if it is still one.
    pub(super) fn replica(&self, old: u16) -> Option<ReplicaId> {
        (self.map)(old)
    }

    /// A file that `replica` has open.
    pub(super) fn file(
        &mut self,
        replica: ReplicaId,
        index: Option<u32>,
    ) -> Option<Arc<dyn BackendFile>> {
        let parts = std::mem::take(self.parts.get_mut(index? as usize)?);
        if parts.is_empty() {
            return None;
        }
        self.caller.replica(replica).adopt(parts)
    }
}

impl Fs {
    /// Whether something is being changed, or may be: the next daemon could overtake it.
    pub fn is_changing(&self) -> bool {
        self.caller.changes.are_under_way() || self.handles.is_changing()
    }

    /// Lets changes that wait for memory go on beyond their share of the budget: they keep
    /// threads of the session.
    pub fn hurry_changes(&self) {
        self.intake.open(true);
    }

    /// Lets no change begin any more, if the replica has not answered any for `time`:
    /// the next daemon may follow.
    pub fn leave_changes(&self, time: Duration) -> bool {
        let is_left = self.caller.changes.leave(time);
        self.handles.unsettled.leave(is_left);
        is_left
    }

    /// There is no next daemon: changes begin again.
    pub fn keep_changes(&self) {
        self.intake.open(false);
        self.caller.changes.come_back();
        self.handles.unsettled.leave(false);
    }

    /// Notes from now on what requests enter into the tables. The next daemon takes it
    /// back where the kernel has no answer.
    pub fn note_entries(&self) {
        let mut inodes = self.inodes.lock();
        if self.handles.journal().is_none() {
            let (unanswered, unsettled) =
                (Arc::clone(&self.unanswered), self.handles.unsettled.files());
            let journal = Arc::new(Journal::nowhere(unanswered, unsettled));
            inodes.write_down(Arc::clone(&journal));
            self.handles.write_down(journal);
        }
    }

    /// There are earlier daemons that may still be changing files, until `are_through`
    /// says that there are none. Call it before [`Fs::restore`].
    pub fn follow(&self, are_through: impl Fn() -> bool + Send + Sync + 'static) {
        self.handles.unsettled.follow(Box::new(are_through));
    }

    /// Earlier daemons may be making any change: on another write replica, or it is not
    /// known which.
    pub fn doubt_all(&self) {
        self.handles.unsettled.doubt_all();
    }

    /// The kernel sends a change of the file again.
    pub fn is_changed_again(&self, ino: Ino) {
        self.handles.unsettled.comes_again(ino);
    }

    /// Whether anybody waits for a lock.
    pub fn is_lock_awaited(&self) -> bool {
        self.locks.is_awaited()
    }

    /// Writes down what the next daemon has to know, and what to send along.
    ///
    /// # Errors
    /// What cannot be handed over, in one line.
    pub fn carry(&self) -> Result<(Carried, Vec<Arc<dyn BackendFile>>), String> {
        if self.handles.lends() {
            return Err("files are open that the kernel reads by itself (passthrough)".to_owned());
        }
        let inodes = self.inodes.lock();
        let mut sheet = self.sheet(&inodes, &self.recent.hold(), true);
        self.locks.carry(&mut sheet)?;
        sheet.carried.unanswered = self.unanswered.lock().clone();
        Ok((sheet.carried, sheet.files))
    }

    fn sheet(&self, inodes: &Inodes, recent: &Held<'_>, is_sent: bool) -> Sheet {
        let mut sheet = Sheet { carried: Carried::default(), files: Vec::new(), is_sent };
        sheet.carried.inodes = inodes.carry();
        sheet.carried.changes = recent.carry(Instant::now());
        sheet.carried.writer = self.policy.write.map(|write| write.replica.index() as u16);
        sheet.carried.locker = self.policy.locks.map(|replica| replica.index() as u16);
        self.handles.carry(inodes, &mut sheet);
        sheet
    }

    /// Goes on with what the daemon before left; `map` finds the replicas that it knew
    /// among these. Before the first request.
    ///
    /// # Errors
    /// What cannot be gone on with, in one line.
    pub fn restore(
        &self,
        mut carried: Carried,
        parts: Vec<Parts>,
        map: &dyn Fn(u16) -> Option<ReplicaId>,
    ) -> Result<(), String> {
        let mut heir = Inheritance {
            caller: &self.caller,
            write: self.policy.write,
            parts,
            map,
            lost: carried.lost,
        };
        let writes = carried.opened.iter().any(OpenedRecord::writes);
        let writer = carried.writer.and_then(map);
        if writes && (writer.is_none() || writer != self.policy.write.map(|write| write.replica)) {
            return Err("files are open for writing, on another write replica".to_owned());
        }
        let locker = carried.locker.and_then(map);
        if !carried.owners.is_empty() && (locker.is_none() || locker != self.policy.locks) {
            return Err("locks are held, on another replica".to_owned());
        }
        if carried.writer.is_some() && writer != self.policy.write.map(|write| write.replica) {
            self.doubt_all();
        }
        let mut inodes = self.inodes.lock();
        *inodes = Inodes::restore(self.policy.mode, std::mem::take(&mut carried.inodes));
        self.handles.restore(
            &mut inodes,
            (&self.reader, &self.shelf),
            self.policy.mode,
            &mut carried,
            &mut heir,
        )?;
        if let Some(locker) = locker {
            self.locks.restore(locker, carried.owners, &mut heir);
        }
        self.recent.restore(carried.changes, Instant::now());
        self.handles.unsettled.inherit(carried.unsettled);
        *self.unanswered.lock() = carried.unanswered;
        Ok(())
    }

    /// Writes down from now on what the next daemon has to know if this one is killed;
    /// `head` comes first, for whoever reads it.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write_down(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        let mut inodes = self.inodes.lock();
        let recent = self.recent.hold();
        let all = self.sheet(&inodes, &recent, false).carried;
        let unanswered = Arc::clone(&self.unanswered);
        let unsettled = self.handles.unsettled.files();
        let begun = own(|own| Journal::begin(own, path, head, all, (unanswered, unsettled)));
        let journal = Arc::new(begun.map_err(std::io::Error::other)??);
        inodes.write_down(Arc::clone(&journal));
        recent.write_down(Arc::clone(&journal));
        self.handles.write_down(journal);
        Ok(())
    }

    /// Replaces the head of the journal by `now`, if there is a journal and the head
    /// differs. Call it with nothing locked.
    pub fn renew_head(&self, now: impl FnOnce() -> std::io::Result<Vec<u8>>) {
        if let Some(journal) = self.handles.journal() {
            journal.renew_head(now);
            self.keep_journal_short();
        }
    }

    /// The next daemon serves the mount from now on, and keeps its own journal.
    pub fn seal_journal(&self) {
        if let Some(journal) = self.handles.journal() {
            journal.seal();
        }
    }

    /// Rewrites it if that is due. Call it with nothing locked.
    pub(super) fn keep_journal_short(&self) {
        let Some(journal) = self.handles.journal().filter(|journal| journal.is_long()) else {
            return;
        };
        let rewritten = own(|own| {
            let inodes = self.inodes.lock();
            let _still = self.handles.hold_still();
            let recent = self.recent.hold();
            journal.shorten(own, self.sheet(&inodes, &recent, false).carried);
        });
        if let Err(error) = rewritten {
            tracing::warn!(%error, "the journal is not rewritten and grows");
        }
    }
}

/// A path written down.
pub(super) fn written(path: &Path) -> std::ffi::OsString {
    path.as_os_str().to_owned()
}

/// The path of an inode now, or where it was.
pub(super) fn path_of(inodes: &Inodes, ino: super::Ino, was: std::ffi::OsString) -> PathBuf {
    inodes.path(ino).unwrap_or_else(|| was.into())
}
