//! What the next daemon has to know if this one is killed, written down as it comes
//! to be.
//!
//! The kernel knows inodes and handles by numbers; who comes after a daemon that was
//! killed finds them here. Each entry is on its way to a file, in memory (the
//! run-time directory is a tmpfs), before the kernel is answered. When the file has
//! become much longer than what is still true of it, it is written anew.
//!
//! *Invariant:* what cannot be written down any more leaves no file behind: half of
//! the truth would be taken for all of it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::carried::{Carried, Opened};
use super::handle::carried::Digest;
use super::inode::Inodes;
use super::inode::carried::Step;
use crate::volume::Mode;

/// One entry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    /// All that there is.
    All(Box<Carried>),
    /// A step of the table of inodes.
    Step(Step),
    /// A file or directory was opened.
    Open(Box<Opened>),
    /// A directory was listed.
    Listed(u64, Digest),
    /// It was closed.
    Close(u64),
}

/// The file.
pub(super) struct Journal {
    path: PathBuf,
    /// What comes before the entries; says nothing to this module.
    head: Vec<u8>,
    state: Mutex<State>,
    is_long: AtomicBool,
}

struct State {
    /// `None` once something could not be written.
    file: Option<File>,
    len: u64,
    /// When it is written anew.
    longest: u64,
}

/// It is not written anew before it is so long, bytes.
const LONG: u64 = 4 << 20;

/// It is written anew when it is so many times as long as it was then.
const TIMES: u64 = 4;

impl Journal {
    /// Begins a journal in place of the one at `path`, with all that there is.
    pub(super) fn begin(path: &Path, head: Vec<u8>, all: Carried) -> io::Result<Self> {
        let (file, len) = write_anew(path, &head, all)?;
        let state = State { file: Some(file), len, longest: (len * TIMES).max(LONG) };
        Ok(Self {
            path: path.to_owned(),
            head,
            state: Mutex::new(state),
            is_long: AtomicBool::new(false),
        })
    }

    /// Writes one entry down.
    pub(super) fn append(&self, entry: &Entry) {
        let mut state = self.state.lock();
        let Some(file) = &mut state.file else { return };
        let written = framed(entry).and_then(|bytes| {
            // One write(2): somebody killed in between has written it or has not.
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

    /// Whether it is to be written anew; true for one caller only.
    pub(super) fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Acquire) && self.is_long.swap(false, Ordering::AcqRel)
    }

    /// Writes it anew, with `all` that there is. Whoever could write something else down
    /// is kept from it meanwhile by the locks of the tables.
    pub(super) fn shorten(&self, all: Carried) {
        let mut state = self.state.lock();
        if state.file.is_none() {
            return;
        }
        match write_anew(&self.path, &self.head, all) {
            Ok((file, len)) => {
                *state = State { file: Some(file), len, longest: (len * TIMES).max(LONG) };
            }
            Err(error) => self.fail(&mut state, &error),
        }
    }

    fn fail(&self, state: &mut State, error: &io::Error) {
        tracing::warn!(%error, "the journal cannot be written: if this daemon is killed, the mount is lost");
        state.file = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

fn framed(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(entry, bytes).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

fn write_anew(path: &Path, head: &[u8], all: Carried) -> io::Result<(File, u64)> {
    let next = path.with_extension("journal-next");
    let _ = std::fs::remove_file(&next);
    let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&next)?;
    let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(head);
    bytes.extend(framed(&Entry::All(Box::new(all)))?);
    file.write_all(&bytes)?;
    std::fs::rename(&next, path)?;
    Ok((file, bytes.len() as u64))
}

/// What a daemon that was killed had written down: the head, and what there was.
///
/// # Errors
/// Where there is no journal, or it makes no sense.
pub fn recover(path: &Path, mode: Mode) -> io::Result<(Vec<u8>, Carried)> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the journal makes no sense");
    let mut rest = &bytes[..];
    let head = frame(&mut rest).ok_or_else(nonsense)?.to_vec();
    let all = frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(Entry::All(all)) = postcard::from_bytes(all) else { return Err(nonsense()) };
    let mut carried = *all;
    let mut inodes = Inodes::restore(mode, std::mem::take(&mut carried.inodes));
    let mut open: HashMap<u64, Opened> =
        carried.opened.drain(..).map(|opened| (opened.handle, opened)).collect();
    let mut last = carried.last;
    // The last one may have been cut off: then the kernel was not answered.
    while let Some(bytes) = frame(&mut rest) {
        match postcard::from_bytes(bytes).map_err(|_| nonsense())? {
            Entry::All(_) => return Err(nonsense()),
            Entry::Step(step) => inodes.take(step),
            Entry::Open(opened) => {
                // Numbers are not given twice.
                last = last.max(opened.handle);
                open.insert(opened.handle, *opened);
            }
            Entry::Listed(handle, digest) => {
                if let Some(opened) = open.get_mut(&handle) {
                    opened.was_listed(digest);
                }
            }
            Entry::Close(handle) => drop(open.remove(&handle)),
        }
    }
    inodes.has_lost_sight();
    carried.inodes = inodes.carry();
    carried.opened = open.into_values().collect();
    carried.last = last;
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
