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
//!   ([`Own`]), whichever caller's request made it grow.
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
use super::carried::{Carried, Opened};
use super::handle::carried::Digest;
use super::inode::Inodes;
use super::inode::carried::Step;
use super::recent::Mark;
use super::unanswered::{Entered, Unanswered};
use super::unsettled::Files;
use crate::backend::{Own, own};
use crate::volume::Mode;

/// One entry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    /// All that there is.
    All(Box<Carried>),
    /// A step of the table of inodes.
    Step(Step),
    /// A file or directory was opened, by this request.
    Open(u64, Box<Opened>),
    /// A directory was listed.
    Listed(u64, Digest),
    /// It was closed.
    Close(u64),
    /// Something is about to be changed, or was.
    Changed(Mark),
    /// The requests that may not have been answered.
    Unanswered(Unanswered),
    /// The request came again, and what its first try had entered was taken back.
    TakenBack(u64),
    /// The head has changed.
    Head(Vec<u8>),
    /// An older change may still reach the file, or it cannot any more.
    Unsettled(u64, bool),
}

/// The parts that belong to no table: entries that the kernel may not know of, and files that an
/// older change may still reach.
type Loose = (Arc<Mutex<Unanswered>>, Arc<Mutex<Files>>);

/// The file.
pub(super) struct Journal {
    path: PathBuf,
    /// What comes before the entries, or the last [`Entry::Head`]; says nothing to this
    /// module. Locked before `state`.
    head: Mutex<Vec<u8>>,
    state: Mutex<State>,
    unanswered: Arc<Mutex<Unanswered>>,
    /// Locked before `state`.
    unsettled: Arc<Mutex<Files>>,
    is_long: AtomicBool,
}

struct State {
    /// `None` once something could not be written, or the mount is the next daemon's.
    file: Option<File>,
    len: u64,
    /// When it is rewritten.
    longest: u64,
}

/// It is not rewritten before it is so long, bytes: what a daemon that recovers the
/// mount reads in a moment.
const LONG: u64 = 256 << 10;

/// It is rewritten when it is so many times as long as it was then.
const TIMES: u64 = 4;

impl State {
    fn of((file, len): (File, u64)) -> Self {
        Self { file: Some(file), len, longest: (len * TIMES).max(LONG) }
    }
}

impl Journal {
    /// Begins a journal in place of the one at `path`, with all that there is. Where it
    /// cannot, that one is of no use to anyone any more either.
    pub(super) fn begin(
        own: &Own,
        path: &Path,
        head: Vec<u8>,
        mut all: Carried,
        (unanswered, unsettled): Loose,
    ) -> io::Result<Self> {
        all.unsettled = unsettled.lock().all();
        let written = rewrite(own, path, &head, all, unanswered.lock().clone());
        if written.is_err() {
            // One of the two will do.
            let emptied = OpenOptions::new().write(true).truncate(true).open(path);
            let removed = std::fs::remove_file(path);
            if emptied.is_err() && removed.is_err() && path.exists() {
                tracing::error!(journal = %path.display(), "an older journal stays; remove it");
            }
        }
        Ok(Self::of(path, head, State::of(written?), (unanswered, unsettled)))
    }

    /// A journal without a file, for what [`Journal::enter`] notes in memory.
    pub(super) fn nowhere(
        unanswered: Arc<Mutex<Unanswered>>,
        unsettled: Arc<Mutex<Files>>,
    ) -> Self {
        let state = State { file: None, len: 0, longest: u64::MAX };
        Self::of(Path::new(""), Vec::new(), state, (unanswered, unsettled))
    }

    fn of(path: &Path, head: Vec<u8>, state: State, (unanswered, unsettled): Loose) -> Self {
        let (path, is_long) = (path.to_owned(), AtomicBool::new(false));
        let (head, state) = (Mutex::new(head), Mutex::new(state));
        Self { path, head, state, unanswered, unsettled, is_long }
    }

    /// Replaces the head by `now`, if that differs. Of two callers, the later one has the
    /// newer head: `now` runs under the lock.
    pub(super) fn renew_head(&self, now: impl FnOnce() -> io::Result<Vec<u8>>) {
        let mut head = self.head.lock();
        match now() {
            Ok(now) if *head == now => {}
            Ok(now) => {
                head.clone_from(&now);
                self.append(&Entry::Head(now));
            }
            Err(error) => self.fail(&mut self.state.lock(), &error),
        }
    }

    /// Writes down what a request has entered.
    pub(super) fn enter(&self, request: u64, entered: Entered, entry: &Entry) {
        self.unanswered.lock().enter(request, entered);
        self.append(entry);
    }

    /// Writes one entry down.
    pub(super) fn append(&self, entry: &Entry) {
        let mut state = self.state.lock();
        let Some(file) = &mut state.file else { return };
        let written = framed(entry).and_then(|bytes| {
            // One write(2): a daemon that is killed in between has written it or has not.
            file.write_all(&bytes)?;
            Ok(bytes.len() as u64)
        });
        match written {
            Ok(bytes) => {
                state.len += bytes;
                if state.len >= state.longest {
                    self.is_long.store(true, Ordering::Release);
                }
            }
            Err(error) => self.fail(&mut state, &error),
        }
    }

    /// Whether it is to be rewritten; true for one caller only.
    pub(super) fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Acquire) && self.is_long.swap(false, Ordering::AcqRel)
    }

    /// Rewrites it, with `all` that there is. The locks of the tables keep others from
    /// writing entries meanwhile.
    pub(super) fn shorten(&self, own: &Own, mut all: Carried) {
        let head = self.head.lock();
        let unsettled = self.unsettled.lock();
        let mut state = self.state.lock();
        if state.file.is_none() {
            return;
        }
        all.unsettled = unsettled.all();
        let unanswered = self.unanswered.lock().clone();
        match rewrite(own, &self.path, &head, all, unanswered) {
            Ok(written) => *state = State::of(written),
            Err(error) => {
                // What is there is complete, only longer than it need be.
                state.longest = state.len * 2;
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
    fn fail(&self, state: &mut State, error: &io::Error) {
        let Some(file) = state.file.take() else { return };
        let journal = self.path.display();
        tracing::warn!(%journal, %error, "the journal cannot be written: if this daemon is killed, the mount is lost");
        let emptied = file.set_len(0);
        // Tidiness only, where it is empty.
        let removed = own(|_| std::fs::remove_file(&self.path));
        if let (Err(error), Err(_) | Ok(Err(_))) = (emptied, removed) {
            tracing::error!(%journal, %error, "an incomplete journal stays; remove it");
        }
    }
}

fn framed(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(entry, bytes).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

/// What every journal of this form begins with.
const FORM: &[u8] = b"fanfs journal 4\n";

/// Writes a whole journal in place of the one at `path`, which stays where that fails.
fn rewrite(
    _: &Own,
    path: &Path,
    head: &[u8],
    all: Carried,
    unanswered: Unanswered,
) -> io::Result<(File, u64)> {
    let next = path.with_extension("journal-next");
    let _ = std::fs::remove_file(&next);
    let write = || {
        let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&next)?;
        // Whatever umask the thread has for its callers' sake.
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        let mut bytes = FORM.to_vec();
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(head);
        bytes.extend(framed(&Entry::All(Box::new(all)))?);
        bytes.extend(framed(&Entry::Unanswered(unanswered))?);
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
pub fn recover(path: &Path, mode: Mode) -> io::Result<(Vec<u8>, Carried)> {
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
        bytes.strip_prefix(FORM).ok_or_else(|| invalid("the journal has another form"))?;
    let mut head = frame(&mut rest).ok_or_else(nonsense)?.to_vec();
    let all = frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(Entry::All(all)) = postcard::from_bytes(all) else { return Err(nonsense()) };
    let mut carried = *all;
    let mut inodes = Inodes::restore(mode, std::mem::take(&mut carried.inodes));
    let mut unsettled: HashSet<u64> = carried.unsettled.drain(..).collect();
    let mut open: HashMap<u64, Opened> =
        carried.opened.drain(..).map(|opened| (opened.handle, opened)).collect();
    let before = frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(Entry::Unanswered(mut unanswered)) = postcard::from_bytes(before) else {
        return Err(nonsense());
    };
    // The last one may have been cut off: then the kernel was not answered.
    while let Some(bytes) = frame(&mut rest) {
        match postcard::from_bytes(bytes).map_err(|_| nonsense())? {
            Entry::All(_) | Entry::Unanswered(_) => return Err(nonsense()),
            Entry::Step(step) => {
                if let Some((request, ino)) = inodes.take(step) {
                    unanswered.enter(request, ino.into());
                }
            }
            Entry::Open(request, opened) => {
                unanswered.enter(request, opened.id().into());
                open.insert(opened.handle, *opened);
            }
            Entry::TakenBack(request) => {
                for entered in unanswered.take(request) {
                    match entered {
                        Entered::Handle { number, .. } => drop(open.remove(&number)),
                        Entered::Lookup(ino) => inodes.forget(Ino(ino), 1),
                    }
                }
            }
            Entry::Listed(handle, digest) => {
                if let Some(opened) = open.get_mut(&handle) {
                    opened.was_listed(digest);
                }
            }
            Entry::Close(handle) => drop(open.remove(&handle)),
            // How long ago is not known.
            Entry::Changed(mark) => carried.changes.marks.push((mark, 0)),
            Entry::Head(now) => head = now,
            Entry::Unsettled(ino, true) => drop(unsettled.insert(ino)),
            Entry::Unsettled(ino, false) => drop(unsettled.remove(&ino)),
        }
    }
    inodes.has_lost_sight();
    inodes.was_lost();
    carried.inodes = inodes.carry();
    carried.opened = open.into_values().collect();
    carried.unanswered = unanswered;
    carried.unsettled = unsettled.into_iter().collect();
    carried.was_lost();
    Ok((head, carried))
}

/// Takes the next entry, if it is there as a whole.
fn frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
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
        recover(path, Mode::Shared).map(|(_, carried)| carried.handles())
    }

    fn begin(path: &Path) -> Journal {
        own(|own| {
            Journal::begin(own, path, b"head".to_vec(), Carried::default(), Default::default())
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
        journal.append(&Entry::Open(0, Box::new(Opened::example(1))));
        own(|own| journal.shorten(own, Carried::default())).unwrap();
        journal.append(&Entry::Open(0, Box::new(Opened::example(2))));
        assert_eq!(handles(&kept).unwrap(), 2);
    }

    #[test]
    fn the_last_head_counts_and_a_rewrite_keeps_it() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let head = || recover(&path, Mode::Shared).unwrap().0;
        let journal = begin(&path);
        let begun = std::fs::metadata(&path).unwrap().len();
        journal.renew_head(|| Ok(b"head".to_vec()));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), begun, "it has not changed");
        journal.renew_head(|| Ok(b"second".to_vec()));
        journal.append(&Entry::Open(0, Box::new(Opened::example(1))));
        journal.renew_head(|| Ok(b"third".to_vec()));
        assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 1));
        own(|own| journal.shorten(own, Carried::default())).unwrap();
        assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 0));
    }

    #[test]
    fn files_that_a_change_may_still_reach_are_known_after_a_kill() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        let unsettled = super::super::unsettled::Unsettled::default();
        let loose = (Arc::default(), unsettled.files());
        let begun = own(|own| Journal::begin(own, &path, Vec::new(), Carried::default(), loose));
        let journal = Arc::new(begun.unwrap().unwrap());
        unsettled.write_down(Arc::clone(&journal));
        let left = || recover(&path, Mode::Shared).unwrap().1.unsettled;
        unsettled.gives_up(Ino(5));
        unsettled.gives_up(Ino(6));
        unsettled.ended(Ino(6));
        assert_eq!(left(), [5]);
        own(|own| journal.shorten(own, Carried::default())).unwrap();
        assert_eq!(left(), [5]);
        unsettled.ended(Ino(5));
        assert_eq!(left(), [0; 0]);
    }

    #[test]
    fn a_journal_whose_head_cannot_be_renewed_is_accepted_by_no_daemon() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        begin(&path).renew_head(|| Err(io::ErrorKind::Other.into()));
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
            Journal::of(&path, b"head".to_vec(), State::of((again, len)), Default::default());
        let seen = format!("/proc/self/fd/{}", file.as_raw_fd());
        journal.append(&Entry::Open(0, Box::new(Opened::example(1))));
        assert_eq!(handles(Path::new(&seen)).unwrap(), 1);
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        journal.append(&Entry::Open(0, Box::new(Opened::example(2))));
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
        before.append(&Entry::Open(0, Box::new(Opened::example(1))));
        before.seal();
        let next = begin(&path);
        next.append(&Entry::Open(0, Box::new(Opened::example(2))));
        next.append(&Entry::Open(0, Box::new(Opened::example(3))));
        own(|own| before.shorten(own, Carried::default())).unwrap();
        before.append(&Entry::Close(2));
        before.renew_head(|| Ok(b"another".to_vec()));
        before.renew_head(|| Err(io::ErrorKind::Other.into()));
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
        let failed = own(|own| {
            Journal::begin(own, &path, Vec::new(), Carried::default(), Default::default()).is_err()
        });
        assert!(failed.unwrap() && handles(&path).is_err());
    }

    #[test]
    fn a_journal_of_another_form_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("j");
        drop(begin(&path));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[FORM.len()..]).unwrap();
        assert!(handles(&path).unwrap_err().to_string().contains("another form"));
        // What is cut off was not answered; half of the beginning is nothing.
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(handles(&path).is_err());
    }
}
