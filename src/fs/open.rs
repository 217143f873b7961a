//! Opening and closing a file.
//!
//! One replica opens it and shows its version. Where the kernel is to read the
//! file from a replica by itself ([`super::passthrough`]), that replica opens it
//! too, unless it was the one; and as long as the kernel does, it is that
//! replica whose opens count, so that its mount looks whether the file changed.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::call::{Rights, Spot};
use super::handle::{Answered, Closed, FirstOpen};
use super::inode::{Cached, Inodes};
use super::moves::Begun;
use super::newer::At;
use super::passthrough::{Backing, Lent};
use super::replaced::{Looked, Whose};
use super::unanswered::Entered;
use super::{Answer, Caching, Errno, Fs, HandleId, Ino, journal};
use crate::backend::{Attr, Backend, BackendError, BackendFile, Identity, Lane, Requester};
use crate::volume::{ReplicaId, ReplicaSet};

/// A file just opened.
#[derive(Clone)]
pub struct Opened {
    /// Names the handle in later calls.
    pub handle: HandleId,
    /// Who caches what is read through it.
    pub caching: Caching,
    /// Whether what the kernel has cached of the file is still good; whoever
    /// caches, or pages of another version would stay.
    pub unchanged: bool,
    /// What the kernel is to read by itself.
    pub backing: Option<Arc<Backing>>,
    /// Whether it may be written through.
    pub writes: bool,
}

/// Where the answer to an open goes.
pub trait OpenReply: Send + 'static {
    /// Lends the kernel a descriptor to read through.
    ///
    /// # Errors
    /// The errno that the kernel refuses it with.
    fn lend(&self, file: BorrowedFd<'_>) -> std::io::Result<Lent>;

    /// Has the kernel forget the attributes that it was told of the file, before it is
    /// answered. Called with tables locked.
    fn forget_attributes(&self);

    /// The answer.
    fn answer(self, answer: Answer<Opened>);
}

/// What a replica's open showed.
struct Found {
    replica: ReplicaId,
    file: Arc<dyn BackendFile>,
    attr: Attr,
    /// Whether it is the file that the kernel reads by itself; `None` where that
    /// was not looked at.
    is_lent: Option<bool>,
    /// Whether it is the file that is open.
    looked: Looked,
}

/// What the kernel is to read by itself, if it is to.
type Lend = Option<(ReplicaId, Arc<dyn BackendFile>)>;

/// Looks for a file's chunks in at most so many places, to tell who is local to
/// all of them.
const LOOKS: u64 = 1024;

/// No cluster's chunks are smaller.
const SMALLEST_CHUNK: u64 = 1 << 20;

impl Fs {
    /// Opens a regular file for reading, perhaps `to_run` it, which the kernel has
    /// checked that he may.
    pub fn open(self: &Arc<Self>, who: Requester, ino: Ino, to_run: bool, reply: impl OpenReply) {
        let begun = self.begin(&[ino]);
        self.open_again((who.identity(), to_run, who.request), ino, begun, reply);
    }

    /// Opens it by the path that it has now.
    fn open_again(
        self: &Arc<Self>,
        by: (Identity, bool, u64),
        ino: Ino,
        begun: Begun,
        reply: impl OpenReply,
    ) {
        match self.path(ino) {
            Ok(path) => {
                let spot = self.spot_of(ino, &path).since(begun.at);
                self.open_at(by, ino, begun, (path, spot), reply);
            }
            Err(errno) => reply.answer(Err(errno)),
        }
    }

    fn open_at(
        self: &Arc<Self>,
        (who, to_run, request): (Identity, bool, u64),
        ino: Ino,
        begun: Begun,
        (path, spot): (PathBuf, Spot),
        reply: impl OpenReply,
    ) {
        let (fs, asked) = (Arc::clone(self), self.now());
        let lent = self.handles.inode(ino).and_then(|inode| inode.backing().cloned());
        let first = lent.as_ref().map(|backing| backing.replica);
        let open = {
            let (fs, path) = (Arc::clone(self), path.clone());
            move |replica: ReplicaId, backend: &dyn Backend| {
                let at = At { replica, backend, path: &path };
                let (file, attr) = fs.open_as_named(ino, at)?;
                let looked = fs.look_at_open(ino, replica, &attr);
                let lent = lent.as_ref().filter(|backing| backing.replica == replica);
                let is_same =
                    |backing: &Arc<Backing>| backing.attr().is_ok_and(|lent| lent.id == attr.id);
                Ok(Found { replica, file, attr, is_lent: lent.map(is_same), looked })
            }
        };
        let rights = if to_run { Rights::Granted(who.clone()) } else { Rights::Of(who.clone()) };
        // Whoever opens it later does so in the name that did it.
        let who = if to_run { Identity::DAEMON } else { who };
        self.caller.call_first(first, spot, rights, open, move |answer| match answer {
            Ok((replica, found))
                if fs.is_overtaken(replica, &path, ino)
                    || fs.whose(ino, &found.attr, &found.looked) == Whose::Unclear
                    || !fs.inodes.lock().is_true(ino, asked) =>
            {
                let spot = fs.spot_of(ino, &path).instead_of(spot);
                fs.open_at((who, to_run, request), ino, begun, (path, spot), reply);
            }
            Ok((replica, found)) if fs.inodes.lock().is_same(ino, replica, &found.attr) => {
                let by = (who, to_run, request);
                fs.found(by, ino, begun, (path, spot, asked), found, reply);
            }
            answer => {
                let error = match answer {
                    Ok(_) => Errno::STALE,
                    Err(error) => Errno::of_known(error),
                };
                fs.once_moved((begun, false), error, move |fs, again| match again {
                    Some(begun) => fs.open_again((who, to_run, request), ino, begun, reply),
                    None => reply.answer(Err(error)),
                });
            }
        });
    }

    /// Has the file opened by the replica that the kernel is to read it from, if
    /// that is another one, and ends the open.
    fn found(
        self: &Arc<Self>,
        by: (Identity, bool, u64),
        ino: Ino,
        begun: Begun,
        (path, before, asked): (PathBuf, Spot, u64),
        found: Found,
        reply: impl OpenReply,
    ) {
        // Where somebody has it open it is lent already, or is not; should everybody have
        // closed it in the meantime, the one that was asked will do.
        let is_open = self.handles.inode(ino).is_some();
        let target = self.target(&path, &found);
        let target = target.map(|target| if is_open { found.replica } else { target });
        let target = match target {
            Some(target) if target != found.replica => target,
            target => {
                let file = target.map(|target| (target, Arc::clone(&found.file)));
                return self.enter_opened(by, ino, begun, (path, asked), (found, file), reply);
            }
        };
        let (fs, spot) = (Arc::clone(self), self.spot(&path).instead_of(before));
        let (version, mode, opener) = (found.attr.version(), self.policy.mode, found.replica);
        let open = {
            let path = path.clone();
            move |replica: ReplicaId, backend: &dyn Backend| {
                // Where the other one fails or is late, the first will do.
                if replica == opener {
                    return Ok(None);
                }
                let (file, attr) = backend.open(&path)?;
                match version.agrees(&attr.version(), mode) {
                    true => Ok(Some(file)),
                    false => Err(BackendError::Version),
                }
            }
        };
        let rights = Rights::Of(by.0.clone());
        self.caller.call_in_order(vec![target, opener], spot, rights, open, move |answer| {
            let file = match answer {
                Ok((replica, Some(file))) => (replica, file),
                _ => (found.replica, Arc::clone(&found.file)),
            };
            fs.enter_opened(by, ino, begun, (path, asked), (found, Some(file)), reply);
        });
    }

    /// Answers the open, or opens the file once more where it was changed here since the
    /// replica was asked, when there had been `asked` changes.
    fn enter_opened(
        self: &Arc<Self>,
        (who, to_run, request): (Identity, bool, u64),
        ino: Ino,
        begun: Begun,
        (path, asked): (PathBuf, u64),
        (found, lend): (Found, Lend),
        reply: impl OpenReply,
    ) {
        match self.opened((&who, request), ino, (path, asked), found, lend, &reply) {
            Some(answer) => reply.answer(answer),
            None => self.open_again((who, to_run, request), ino, begun, reply),
        }
    }

    /// The replica that the kernel is to read the file from, if it is to.
    fn target(&self, path: &std::path::Path, found: &Found) -> Option<ReplicaId> {
        let version = found.attr.version();
        // There is nothing to read in an empty file.
        if !self.passthrough.is_wanted() || version.size == 0 {
            return None;
        }
        let pinned = self.reader.locator().pin(path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let mut local = ReplicaSet::EMPTY;
        if let Some(at) = self.reader.locator().file(path, version) {
            let (now, all) = (Instant::now(), ReplicaSet::ALL);
            let step = (version.size / LOOKS).max(SMALLEST_CHUNK);
            local = (0..version.size).step_by(step as usize).fold(all, |local, offset| {
                local.and(at.placement.holders(offset, now).map_or(all, |holders| holders.local))
            });
        }
        let (standings, usable) = (self.reader.standings(), self.reader.usable().replicas);
        self.passthrough.target(&standings, usable, [pinned, local], version.size)
    }

    /// Enters the open file into the tables; `lend` is what the kernel may read
    /// by itself, if this is the file's first open. `None` where the version that was found
    /// may be one from before a change that has ended since.
    fn opened(
        &self,
        (who, request): (&Identity, u64),
        ino: Ino,
        (path, asked): (PathBuf, u64),
        found: Found,
        lend: Lend,
        reply: &impl OpenReply,
    ) -> Option<Answer<Opened>> {
        let Found { replica, file, attr, is_lent, looked } = found;
        let (mode, version) = (self.policy.mode, attr.version());
        let can_map = self.maps_direct.load(Ordering::Relaxed);
        let lend = move || {
            let (replica, file) = lend?;
            let name = self.caller.name(replica);
            self.passthrough.lend((replica, name), file, version.size, reply)
        };
        let (cached, answered, retired) = {
            // Held, so that nothing is changed between these looks and the entry.
            let mut inodes = self.inodes.lock();
            if !inodes.is_true(ino, asked) {
                return None;
            }
            // The kernel looks the name up once more, and opens what has it now.
            if !inodes.is_same(ino, replica, &attr) || self.whose(ino, &attr, &looked) != Whose::Its
            {
                return Some(Err(Errno::STALE));
            }
            if let Some(open) = self.handles.inode(ino)
                && open.backing().is_some()
                && !is_lent.unwrap_or_else(|| open.current().version().agrees(&version, mode))
            {
                // The kernel would read another file than the one just opened.
                return Some(Err(Errno::STALE));
            }
            inodes.told(ino, version);
            inodes.settle(ino, || reply.forget_attributes());
            let cached = match self.is_written(ino) {
                false => inodes.opened(ino, version),
                // What the kernel gets of it now is of no one version.
                true => Cached::default(),
            };
            // It may have been renamed since it was opened.
            let path = inodes.path(ino).unwrap_or(path);
            let small = inodes.is_read_in_small_blocks(ino);
            let caching = self.policy.caching.choose(version.size, small, can_map);
            let make =
                || self.reader.file(path.clone(), version, mode, who.clone()).of(attr.generation);
            let first = FirstOpen { caching, lend, make };
            let (answered, retired) =
                self.handles.open_inode(ino, version, mode, Some((replica, file)), first);
            (cached, answered, retired)
        };
        if let Some(old) = retired {
            self.reader.retire(&old);
        }
        let Answered { inode, caching } = answered;
        let (unchanged, backing) = (cached.is_good(), inode.backing().cloned());
        if backing.is_some() {
            self.passthrough.opened();
        }
        // Who may read it has it opened elsewhere; a writer perhaps may not.
        inode.current().open_for(who);
        inode.current().has_shown(&attr);
        let read = self.reader.handle();
        let as_whom = (who.clone(), request);
        let handle = self.handles.insert_file((ino, inode), (cached, caching), read, as_whom, None);
        Some(Ok(Opened { handle, caching, unchanged, backing, writes: false }))
    }

    /// Closes a file or directory.
    pub fn release(self: &Arc<Self>, handle: HandleId) {
        // A removal waits until nothing of it is open.
        let open = self.handles.file(handle).filter(|_| self.can_write());
        let _closing = open.and_then(|file| file.inode.gate.begin());
        let closed = self.close(&mut self.inodes.lock(), handle);
        self.has_closed(handle, closed);
        self.keep_journal_short();
    }

    /// The kernel sends a request again: it knows nothing of what an earlier try has
    /// entered.
    pub fn take_back(self: &Arc<Self>, request: u64) {
        let mut closed = Vec::new();
        {
            // Held throughout, so that a rewritten journal has all of it or nothing.
            let mut inodes = self.inodes.lock();
            let entered = self.unanswered.lock().take(request);
            if let Some(journal) = self.handles.journal().filter(|_| !entered.is_empty()) {
                journal.append(&journal::Entry::TakenBack(request));
            }
            for entered in entered {
                match entered {
                    Entered::Lookup(ino) => inodes.take_back(Ino(ino)),
                    Entered::Handle { number, ino } => {
                        let handle = HandleId { number, ino: Ino(ino) };
                        closed.push((handle, self.close(&mut inodes, handle)));
                    }
                }
            }
        }
        for (handle, closed) in closed {
            self.has_closed(handle, closed);
        }
    }

    /// Takes a handle out of the tables.
    fn close(&self, inodes: &mut Inodes, handle: HandleId) -> Closed {
        let closed = self.handles.remove(handle);
        if closed.last.is_some()
            && let Some(ino) = closed.ino
        {
            inodes.closed(ino, self.one_more());
        }
        closed
    }

    /// Lets go of what a closed handle leaves.
    fn has_closed(self: &Arc<Self>, handle: HandleId, closed: Closed) {
        self.locks.released(handle.number);
        if let Some((ino, inode, writer)) = closed.writer {
            self.stop_writing(ino, inode, writer);
        }
        if let Some((ino, small)) = closed.small_blocks {
            self.inodes.lock().read_in_small_blocks(ino, small);
        }
        if let Some((read, file)) = closed.counted {
            self.busy.closed(file.path(), read);
        }
        if let Some(read) = closed.read {
            self.reader.close(&read);
        }
        if let Some(backing) = closed.backing {
            self.passthrough.given_back(&backing);
            // Closing may ask the replica, so nobody else's thread does it.
            let replica = self.caller.replica(backing.replica);
            let _ = replica.submit(Lane::Metadata, move |_| drop(backing));
        }
        if let Some(file) = closed.last {
            self.reader.retire(&file);
        }
    }
}
