//! What the next daemon has to know if this one is killed, written down as it comes
//! to be.
//!
//! The kernel knows inodes and handles by numbers; who comes after a daemon that was
//! killed finds them here. Each entry is on its way to a file, in memory (the
//! run-time directory is a tmpfs), before the kernel is answered. When the file has
//! become much longer than what is still true of it, it is rewritten: whole under
//! another name, then renamed. A rewrite that fails leaves the journal as it was.
//!
//! *Invariants:*
//! - A journal that misses an entry is empty, which no daemon accepts: it is truncated
//!   through the descriptor that it was written through, and this needs no space, no
//!   directory and no permission.
//! - The file is made, renamed and removed under the daemon's own credentials
//!   ([`DaemonCredentials`]), whichever caller's request made it grow.
//! - After a daemon has sealed its journal it writes to that path no more: the next
//!   daemon's journal is there.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Ino;
use super::handles::snapshot::ListingDigest;
use super::inodes::Inodes;
use super::inodes::snapshot::InodeEvent;
use super::recent_changes::ChangeMark;
use super::snapshot::{FsSnapshot, HandleRecord};
use super::unanswered::{UnansweredEntries, UnansweredEntry};
use super::unsettled::UnsettledFiles;
use crate::backend::{DaemonCredentials, with_daemon_credentials};
use crate::volume::VolumeMode;

/// One entry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum JournalEntry {
    /// All that there is.
    All(Box<FsSnapshot>),
    /// A step of the table of inodes.
    Step(InodeEvent),
    /// A file or directory was opened, by this request.
    Open(u64, Box<HandleRecord>),
    /// A directory was listed.
    Listed(u64, ListingDigest),
    /// It was closed.
    Close(u64),
    /// Something is about to be changed, or was.
    Changed(ChangeMark),
    /// The requests that may not have been answered.
    Unanswered(UnansweredEntries),
    /// The request came again, and what its first try had entered was taken back.
    TakenBack(u64),
    /// The head has changed.
    Head(Vec<u8>),
    /// An older change may still reach the file, or it cannot any more.
    Unsettled(u64, bool),
}

/// The parts that belong to no table: entries that the kernel may not know of, and files that an
/// older change may still reach.
#[derive(Clone, Default)]
pub(super) struct SharedLists {
    pub(super) unanswered: Arc<Mutex<UnansweredEntries>>,
    /// Locked before the journal's own state.
    pub(super) unsettled: Arc<Mutex<UnsettledFiles>>,
}

/// The file.
pub(super) struct Journal {
    path: PathBuf,
    /// What comes before the entries, or the last [`JournalEntry::Head`]; says nothing to this
    /// module. Locked before `state`.
    head: Mutex<Vec<u8>>,
    state: Mutex<JournalFile>,
    lists: SharedLists,
    is_rewrite_due: AtomicBool,
}

struct JournalFile {
    /// `None` once something could not be written, or the mount is the next daemon's.
    file: Option<File>,
    len: u64,
    /// When it is rewritten.
    rewrite_at_len: u64,
}

/// It is not rewritten before it is so long, bytes: what a daemon that recovers the
/// mount reads in a moment.
const MIN_REWRITE_LEN: u64 = 256 << 10;

/// It is rewritten when it is so many times as long as it was then.
const REWRITE_GROWTH: u64 = 4;

impl JournalFile {
    fn new(file: File, len: u64) -> Self {
        Self { file: Some(file), len, rewrite_at_len: (len * REWRITE_GROWTH).max(MIN_REWRITE_LEN) }
    }
}

impl Journal {
    /// Begins a journal in place of the one at `path`, with all that there is. Where it
    /// cannot, that one is of no use to anyone any more either.
    pub(super) fn create(
        own: &DaemonCredentials,
        path: &Path,
        head: Vec<u8>,
        mut all: FsSnapshot,
        lists: SharedLists,
    ) -> io::Result<Self> {
        all.unsettled = lists.unsettled.lock().inos();
        let unanswered = lists.unanswered.lock().clone();
        let written = write_journal_file(own, path, &head, all, unanswered);
        if written.is_err() {
            // One of the two will do.
            let emptied = OpenOptions::new().write(true).truncate(true).open(path);
            let removed = std::fs::remove_file(path);
            if emptied.is_err() && removed.is_err() && path.exists() {
                tracing::error!(journal = %path.display(), "an older journal stays; remove it");
            }
        }
        let (file, len) = written?;
        Ok(Self::new(path, head, JournalFile::new(file, len), lists))
    }

    /// A journal without a file, for what [`Journal::append_for_request`] notes in memory.
    pub(super) fn in_memory(lists: SharedLists) -> Self {
        let state = JournalFile { file: None, len: 0, rewrite_at_len: u64::MAX };
        Self::new(Path::new(""), Vec::new(), state, lists)
    }

    fn new(path: &Path, head: Vec<u8>, state: JournalFile, lists: SharedLists) -> Self {
        Self {
            path: path.to_owned(),
            head: Mutex::new(head),
            state: Mutex::new(state),
            lists,
            is_rewrite_due: AtomicBool::new(false),
        }
    }

    /// Replaces the head by `now`, if that differs. Of two callers, the later one has the
    /// newer head: `now` runs under the lock.
    pub(super) fn update_head(&self, now: impl FnOnce() -> io::Result<Vec<u8>>) {
        let mut head = self.head.lock();
        match now() {
            Ok(now) if *head == now => {}
            Ok(now) => {
                head.clone_from(&now);
                self.append(&JournalEntry::Head(now));
            }
            Err(error) => self.invalidate(&mut self.state.lock(), &error),
        }
    }

    /// Writes down what a request has entered.
    pub(super) fn append_for_request(
        &self,
        request: u64,
        entered: UnansweredEntry,
        entry: &JournalEntry,
    ) {
        self.lists.unanswered.lock().insert(request, entered);
        self.append(entry);
    }

    /// Writes one entry down.
    pub(super) fn append(&self, entry: &JournalEntry) {
        let mut state = self.state.lock();
        let Some(file) = &mut state.file else { return };
        let written = encode_frame(entry).and_then(|bytes| {
            // One write(2): a daemon that is killed in between has written it or has not.
            file.write_all(&bytes)?;
            Ok(bytes.len() as u64)
        });
        match written {
            Ok(bytes) => {
                state.len += bytes;
                if state.len >= state.rewrite_at_len {
                    self.is_rewrite_due.store(true, Ordering::Release);
                }
            }
            Err(error) => self.invalidate(&mut state, &error),
        }
    }

    /// Whether it is to be rewritten; true for one caller only.
    pub(super) fn take_rewrite_due(&self) -> bool {
        self.is_rewrite_due.load(Ordering::Acquire)
            && self.is_rewrite_due.swap(false, Ordering::AcqRel)
    }

    /// Rewrites it, with `all` that there is. The locks of the tables keep others from
    /// writing entries meanwhile.
    pub(super) fn compact(&self, own: &DaemonCredentials, mut all: FsSnapshot) {
        let head = self.head.lock();
        let unsettled = self.lists.unsettled.lock();
        let mut state = self.state.lock();
        if state.file.is_none() {
            return;
        }
        all.unsettled = unsettled.inos();
        let unanswered = self.lists.unanswered.lock().clone();
        match write_journal_file(own, &self.path, &head, all, unanswered) {
            Ok((file, len)) => *state = JournalFile::new(file, len),
            Err(error) => {
                // What is there is complete, only longer than it need be.
                state.rewrite_at_len = state.len * 2;
                let journal = self.path.display();
                tracing::warn!(%journal, %error, "the journal cannot be rewritten and grows");
            }
        }
    }

    /// The next daemon serves the mount from now on.
    pub(super) fn seal(&self) {
        self.state.lock().file = None;
    }

    /// It misses an entry.
    fn invalidate(&self, state: &mut JournalFile, error: &io::Error) {
        let Some(file) = state.file.take() else { return };
        let journal = self.path.display();
        tracing::warn!(%journal, %error, "the journal cannot be written: if this daemon is killed, the mount is lost");
        let emptied = file.set_len(0);
        // Tidiness only, where it is empty.
        let removed = with_daemon_credentials(|_| std::fs::remove_file(&self.path));
        if let (Err(error), Err(_) | Ok(Err(_))) = (emptied, removed) {
            tracing::error!(%journal, %error, "an incomplete journal stays; remove it");
        }
    }
}

fn encode_frame(entry: &JournalEntry) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(entry, bytes).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

/// What every journal of this form begins with.
const MAGIC: &[u8] = b"fanfs journal 4\n";

/// Writes a whole journal in place of the one at `path`, which stays where that fails.
fn write_journal_file(
    _: &DaemonCredentials,
    path: &Path,
    head: &[u8],
    all: FsSnapshot,
    unanswered: UnansweredEntries,
) -> io::Result<(File, u64)> {
    let next = path.with_extension("journal-next");
    let _ = std::fs::remove_file(&next);
    let write = || {
        let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&next)?;
        // Whatever umask the thread has for its callers' sake.
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(head);
        bytes.extend(encode_frame(&JournalEntry::All(Box::new(all)))?);
        bytes.extend(encode_frame(&JournalEntry::Unanswered(unanswered))?);
        file.write_all(&bytes)?;
        std::fs::rename(&next, path)?;
        Ok((file, bytes.len() as u64))
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&next)))
}

/// The journal of a killed daemon: its last head, and the entries after it.
///
/// # Errors
/// Where there is no journal, or it is incomplete, or of another form.
pub fn recover_journal(path: &Path, mode: VolumeMode) -> io::Result<(Vec<u8>, FsSnapshot)> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let invalid = |what: &str| {
        let what = format!("{}: {what}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    if bytes.is_empty() {
        return Err(invalid("the journal could not be written completely"));
    }
    let nonsense = || invalid("the journal makes no sense");
    let mut rest =
        bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("the journal has another form"))?;
    let mut head = next_frame(&mut rest).ok_or_else(nonsense)?.to_vec();
    let all = next_frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(JournalEntry::All(all)) = postcard::from_bytes(all) else { return Err(nonsense()) };
    let before = next_frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(JournalEntry::Unanswered(unanswered)) = postcard::from_bytes(before) else {
        return Err(nonsense());
    };
    let mut replayed = ReplayedTables::new(*all, unanswered, mode);
    // The last one may have been cut off: then the kernel was not answered.
    while let Some(bytes) = next_frame(&mut rest) {
        match postcard::from_bytes(bytes).map_err(|_| nonsense())? {
            JournalEntry::All(_) | JournalEntry::Unanswered(_) => return Err(nonsense()),
            JournalEntry::Head(now) => head = now,
            entry => replayed.replay(entry),
        }
    }
    Ok((head, replayed.into_snapshot()))
}

/// The tables of a killed daemon while its journal is read.
struct ReplayedTables {
    snapshot: FsSnapshot,
    inodes: Inodes,
    unsettled: HashSet<u64>,
    open: HashMap<u64, HandleRecord>,
    unanswered: UnansweredEntries,
}

impl ReplayedTables {
    fn new(mut snapshot: FsSnapshot, unanswered: UnansweredEntries, mode: VolumeMode) -> Self {
        let opened = snapshot.opened.drain(..).map(|opened| (opened.handle, opened));
        Self {
            open: opened.collect(),
            unsettled: snapshot.unsettled.drain(..).collect(),
            inodes: Inodes::restore(mode, std::mem::take(&mut snapshot.inodes)),
            unanswered,
            snapshot,
        }
    }

    fn replay(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::All(_) | JournalEntry::Unanswered(_) | JournalEntry::Head(_) => {}
            JournalEntry::Step(step) => {
                if let Some((request, ino)) = self.inodes.replay(step) {
                    self.unanswered.insert(request, ino.into());
                }
            }
            JournalEntry::Open(request, opened) => {
                self.unanswered.insert(request, opened.id().into());
                self.open.insert(opened.handle, *opened);
            }
            JournalEntry::TakenBack(request) => {
                for entered in self.unanswered.take_entries_of(request) {
                    match entered {
                        UnansweredEntry::Handle { number, .. } => drop(self.open.remove(&number)),
                        UnansweredEntry::Lookup(ino) => self.inodes.forget(Ino(ino), 1),
                    }
                }
            }
            JournalEntry::Listed(handle, digest) => {
                if let Some(opened) = self.open.get_mut(&handle) {
                    opened.set_listed(digest);
                }
            }
            JournalEntry::Close(handle) => drop(self.open.remove(&handle)),
            // How long ago is not known.
            JournalEntry::Changed(mark) => self.snapshot.changes.marks.push((mark, 0)),
            JournalEntry::Unsettled(ino, true) => drop(self.unsettled.insert(ino)),
            JournalEntry::Unsettled(ino, false) => drop(self.unsettled.remove(&ino)),
        }
    }

    fn into_snapshot(mut self) -> FsSnapshot {
        self.inodes.mark_cache_unknown();
        self.inodes.mark_unlinked_removed();
        self.snapshot.inodes = self.inodes.snapshot();
        self.snapshot.opened = self.open.into_values().collect();
        self.snapshot.unanswered = self.unanswered;
        self.snapshot.unsettled = self.unsettled.into_iter().collect();
        self.snapshot.mark_daemon_killed();
        self.snapshot
    }
}

/// Takes the next entry, if it is there as a whole.
fn next_frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let entry = after.get(..len)?;
    *rest = &after[len..];
    Some(entry)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    fn handles(path: &Path) -> io::Result<usize> {
        recover_journal(path, VolumeMode::Shared).map(|(_, carried)| carried.handle_count())
    }

    fn begin(path: &Path) -> Journal {
        with_daemon_credentials(|own| {
            Journal::create(own, path, b"head".to_vec(), FsSnapshot::default(), Default::default())
        })
        .unwrap()
        .unwrap()
    }

    #[test]
    fn a_rewrite_that_fails_leaves_the_journal_as_it_was() {
        let room = tempfile::tempdir().unwrap();
        let (dir, kept) = (room.path().join("run"), room.path().join("kept"));
        std::fs::create_dir(&dir).unwrap();
        let journal = begin(&dir.join("j"));
        std::fs::hard_link(dir.join("j"), &kept).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        journal.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(1))));
        with_daemon_credentials(|own| journal.compact(own, FsSnapshot::default())).unwrap();
        journal.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(2))));
        assert_eq!(handles(&kept).unwrap(), 2);
    }

    #[test]
    fn the_last_head_counts_and_a_rewrite_keeps_it() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let head = || recover_journal(&path, VolumeMode::Shared).unwrap().0;
        let journal = begin(&path);
        let begun = std::fs::metadata(&path).unwrap().len();
        journal.update_head(|| Ok(b"head".to_vec()));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), begun, "it has not changed");
        journal.update_head(|| Ok(b"second".to_vec()));
        journal.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(1))));
        journal.update_head(|| Ok(b"third".to_vec()));
        assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 1));
        with_daemon_credentials(|own| journal.compact(own, FsSnapshot::default())).unwrap();
        assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 0));
    }

    #[test]
    fn files_that_a_change_may_still_reach_are_known_after_a_kill() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let unsettled = super::super::unsettled::UnsettledChanges::default();
        let loose = SharedLists { unanswered: Arc::default(), unsettled: unsettled.files() };
        let begun = with_daemon_credentials(|own| {
            Journal::create(own, &path, Vec::new(), FsSnapshot::default(), loose)
        });
        let journal = Arc::new(begun.unwrap().unwrap());
        unsettled.attach_journal(Arc::clone(&journal));
        let left = || recover_journal(&path, VolumeMode::Shared).unwrap().1.unsettled;
        unsettled.add_abandoned(Ino(5));
        unsettled.add_abandoned(Ino(6));
        unsettled.remove_abandoned(Ino(6));
        assert_eq!(left(), [5]);
        with_daemon_credentials(|own| journal.compact(own, FsSnapshot::default())).unwrap();
        assert_eq!(left(), [5]);
        unsettled.remove_abandoned(Ino(5));
        assert_eq!(left(), [0; 0]);
    }

    #[test]
    fn a_journal_whose_head_cannot_be_renewed_is_accepted_by_no_daemon() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        begin(&path).update_head(|| Err(io::ErrorKind::Other.into()));
        assert!(handles(&path).is_err());
    }

    /// A file that cannot grow, as on a file system that is full.
    #[test]
    fn a_journal_that_misses_an_entry_is_accepted_by_no_daemon() {
        let file = memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(file);
        let path = tempfile::tempdir().unwrap().path().join("j");
        begin_at(&mut file);
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = OpenOptions::new().append(true).open(again).unwrap();
        let len = file.metadata().unwrap().len();
        let journal =
            Journal::new(&path, b"head".to_vec(), JournalFile::new(again, len), Default::default());
        let seen = format!("/proc/self/fd/{}", file.as_raw_fd());
        journal.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(1))));
        assert_eq!(handles(Path::new(&seen)).unwrap(), 1);
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        journal.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(2))));
        assert_eq!(handles(Path::new(&seen)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    fn begin_at(file: &mut File) {
        let room = tempfile::tempdir().unwrap();
        begin(&room.path().join("j"));
        let bytes = std::fs::read(room.path().join("j")).unwrap();
        file.write_all(&bytes).unwrap();
    }

    #[test]
    fn a_daemon_leaves_the_next_ones_journal_alone() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let before = begin(&path);
        before.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(1))));
        before.seal();
        let next = begin(&path);
        next.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(2))));
        next.append(&JournalEntry::Open(0, Box::new(HandleRecord::example(3))));
        with_daemon_credentials(|own| before.compact(own, FsSnapshot::default())).unwrap();
        before.append(&JournalEntry::Close(2));
        before.update_head(|| Ok(b"another".to_vec()));
        before.update_head(|| Err(io::ErrorKind::Other.into()));
        assert_eq!(handles(&path).unwrap(), 2);
    }

    #[test]
    fn where_none_can_be_begun_an_older_one_is_of_no_use() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        drop(begin(&path));
        assert_eq!(handles(&path).unwrap(), 0);
        // It stands in the new one's way.
        std::fs::create_dir_all(path.with_extension("journal-next").join("sub")).unwrap();
        let failed = with_daemon_credentials(|own| {
            Journal::create(own, &path, Vec::new(), FsSnapshot::default(), Default::default())
                .is_err()
        });
        assert!(failed.unwrap() && handles(&path).is_err());
    }

    #[test]
    fn a_journal_of_another_form_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        drop(begin(&path));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[MAGIC.len()..]).unwrap();
        assert!(handles(&path).unwrap_err().to_string().contains("another form"));
        // What is cut off was not answered; half of the beginning is nothing.
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(handles(&path).is_err());
    }
}
