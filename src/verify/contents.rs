//! The contents of one file, block by block.
//!
//! Each replica reads and hashes its own blocks; what is brought together are
//! hashes. Only where those differ is the block read again, by all, and its bytes
//! are compared. So memory is what the replicas' threads read into, however large
//! the file.
//!
//! A replica takes part only while it shows the version that its attributes had
//! before; it is asked again at the end, by a new open where something differed
//! (of an open file an NFS mount may show what it has in its cache).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::difference::{Content, Range};
use super::narrow::{differing, group};
use super::peers::{Miss, Peers, Pending};
use super::sample::{BLOCK, Blocks, Coverage};
use crate::backend::{Backend, BackendError, BackendFile, Lane, Result as BackendResult};
use crate::volume::{ByteRange, FileVersion, ReplicaId, ReplicaSet};

/// How contents are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) coverage: Coverage,
    pub(super) seed: u64,
    /// Blocks of one file under way at a time.
    pub(super) window: usize,
}

/// How far a file has been compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Progress {
    /// Stands for the versions that the replicas showed.
    pub(super) fingerprint: String,
    /// The first block that has not been.
    pub(super) next_block: u64,
    /// What differs before it.
    pub(super) content: Content,
    /// Bytes of the file compared.
    pub(super) bytes: u64,
    /// Bytes read, of all replicas.
    pub(super) bytes_read: u64,
    /// Blocks that differed when they were read first, and not when they were
    /// read again.
    pub(super) unsteady: u64,
}

/// What came of it.
pub(super) enum Compared {
    /// All that was to be compared was, but on replicas that failed.
    Done { progress: Progress, failed: Vec<(ReplicaId, Miss)> },
    /// Some replica showed another version than at first.
    Changed,
}

/// A file on those replicas that are compared, with the version that each showed.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) size: u64,
    pub(super) versions: Vec<(ReplicaId, FileVersion)>,
}

struct Open {
    id: ReplicaId,
    file: Arc<dyn BackendFile>,
    before: FileVersion,
}

/// The hashes of one block, on their way.
struct Sent {
    block: u64,
    range: ByteRange,
    hashes: Vec<(ReplicaId, Pending<blake3::Hash>)>,
}

impl File<'_> {
    fn fingerprint(&self) -> String {
        blake3::hash(format!("{:?}", self.versions).as_bytes()).to_hex()[..16].to_owned()
    }

    /// Compares it, from where `earlier` ended if that was of the same versions;
    /// `report` is told how far it is.
    pub(super) fn compare(
        &self,
        peers: &Peers,
        how: How,
        earlier: Option<Progress>,
        mut report: impl FnMut(&Progress),
    ) -> Result<Compared, Miss> {
        let fingerprint = self.fingerprint();
        let earlier = earlier.filter(|earlier| earlier.fingerprint == fingerprint);
        let mut progress = earlier.unwrap_or(Progress { fingerprint, ..Progress::default() });
        let blocks = Blocks::of(self.path, self.size, how.coverage, how.seed);
        let mut chosen = blocks.chosen(progress.next_block).peekable();
        if chosen.peek().is_none() {
            return Ok(Compared::Done { progress, failed: Vec::new() });
        }
        let mut failed = Vec::new();
        let Some(mut open) = self.open(peers, &mut failed)? else { return Ok(Compared::Changed) };
        let mut window: VecDeque<Sent> = VecDeque::new();
        while open.len() > 1 {
            while window.len() < how.window
                && let Some(block) = chosen.next()
            {
                let range = blocks.range(block);
                let whom = open.iter().fold(ReplicaSet::EMPTY, |set, open| set.with(open.id));
                peers.keep_pace(whom, range.len())?;
                let ask = |open: &Open| (open.id, hash_of(peers, open, range));
                window.push_back(Sent { block, range, hashes: open.iter().map(ask).collect() });
            }
            let Some(sent) = window.pop_front() else { break };
            let range = sent.range;
            let mut hashes = Vec::new();
            for (id, pending) in sent.hashes {
                let answer = peers.answer(pending, None);
                // One that has failed since takes no part any more.
                let takes_part = open.iter().any(|open| open.id == id);
                match answer {
                    Ok(hash) => {
                        progress.bytes_read += range.len();
                        hashes.extend(takes_part.then_some((id, hash)));
                    }
                    Err(Miss::Stopped) => return Err(Miss::Stopped),
                    Err(miss) if takes_part => {
                        open.retain(|open| open.id != id);
                        failed.push((id, miss));
                    }
                    Err(_) => {}
                }
            }
            if hashes.len() > 1 && group(hashes, |a, b| a == b).len() > 1 {
                self.narrow(peers, &mut open, range, &mut progress, &mut failed)?;
            }
            progress.bytes += range.len();
            progress.next_block = sent.block + 1;
            report(&progress);
        }
        // Nobody else would notice that they are late.
        for (_, pending) in window.into_iter().flat_map(|sent| sent.hashes) {
            let _ = peers.answer(pending, None);
        }
        let anew = !progress.content.is_empty() || progress.unsteady > 0;
        if self.has_changed(peers, &open, anew, &mut failed)? {
            return Ok(Compared::Changed);
        }
        Ok(Compared::Done { progress, failed })
    }

    /// Opens it everywhere; `None` where it is not as it was any more.
    fn open(
        &self,
        peers: &Peers,
        failed: &mut Vec<(ReplicaId, Miss)>,
    ) -> Result<Option<Vec<Open>>, Miss> {
        let whom = self.versions.iter().fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
        let job = |_: ReplicaId| {
            let path: PathBuf = self.path.to_owned();
            move |backend: &dyn Backend| backend.open(&path)
        };
        let mut open = Vec::new();
        let mut has_moved = false;
        for ((id, answer), (_, before)) in
            peers.answers(whom, Lane::Read, job).into_iter().zip(&self.versions)
        {
            match answer {
                Ok((file, attr)) => {
                    has_moved |= attr.version() != *before;
                    open.push(Open { id, file, before: *before });
                }
                Err(Miss::Stopped) => return Err(Miss::Stopped),
                // Removed, or something else than a file, since.
                Err(Miss::Failed(BackendError::Os(
                    rustix::io::Errno::NOENT | rustix::io::Errno::STALE,
                ))) => has_moved = true,
                Err(miss) => failed.push((id, miss)),
            }
        }
        Ok((!has_moved).then_some(open))
    }

    /// Reads a block again to see which of its bytes differ.
    fn narrow(
        &self,
        peers: &Peers,
        open: &mut Vec<Open>,
        range: ByteRange,
        progress: &mut Progress,
        failed: &mut Vec<(ReplicaId, Miss)>,
    ) -> Result<(), Miss> {
        let ask = |open: &Open| {
            let file = Arc::clone(&open.file);
            let read = move |_: &dyn Backend| with_bytes(&*file, range, <[u8]>::to_vec);
            (open.id, peers.ask(open.id, Lane::Read, read))
        };
        let whom = open.iter().fold(ReplicaSet::EMPTY, |set, open| set.with(open.id));
        peers.keep_pace(whom, range.len())?;
        let asked: Vec<_> = open.iter().map(ask).collect();
        let mut copies = Vec::new();
        for (id, pending) in asked {
            match peers.answer(pending, None) {
                Ok(bytes) => {
                    progress.bytes_read += range.len();
                    copies.push((id, bytes));
                }
                Err(Miss::Stopped) => return Err(Miss::Stopped),
                Err(miss) => {
                    open.retain(|open| open.id != id);
                    failed.push((id, miss));
                }
            }
        }
        let regions = differing(range.start, &copies);
        progress.unsteady += u64::from(regions.is_empty() && copies.len() > 1);
        for region in regions {
            let groups = region.groups.iter().map(|set| peers.names(*set)).collect();
            progress.content.add(Range {
                start: region.range.start,
                end: region.range.end,
                groups,
            });
        }
        Ok(())
    }

    /// Whether some replica shows another version now.
    fn has_changed(
        &self,
        peers: &Peers,
        open: &[Open],
        anew: bool,
        failed: &mut Vec<(ReplicaId, Miss)>,
    ) -> Result<bool, Miss> {
        let ask = |open: &Open| {
            let (file, path) = (Arc::clone(&open.file), self.path.to_owned());
            let look = move |backend: &dyn Backend| match anew {
                true => backend.open(&path).map(|(_, attr)| attr),
                false => file.attr(),
            };
            (open.id, open.before, peers.ask(open.id, Lane::Metadata, look))
        };
        let asked: Vec<_> = open.iter().map(ask).collect();
        let mut changed = false;
        for (id, before, pending) in asked {
            match peers.answer(pending, None) {
                Ok(attr) => changed |= attr.version() != before,
                Err(Miss::Stopped) => return Err(Miss::Stopped),
                Err(Miss::Failed(BackendError::Os(
                    rustix::io::Errno::NOENT | rustix::io::Errno::STALE,
                ))) => changed = true,
                Err(miss) => failed.push((id, miss)),
            }
        }
        Ok(changed)
    }
}

fn hash_of(peers: &Peers, open: &Open, range: ByteRange) -> Pending<blake3::Hash> {
    let file = Arc::clone(&open.file);
    peers.ask(open.id, Lane::Read, move |_| with_bytes(&*file, range, blake3::hash))
}

/// What O_DIRECT wants memory to begin with a multiple of.
const PAGE: usize = 4096;

thread_local! {
    /// What a replica's thread reads into.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What `f` makes of the bytes of `range`, at most a block.
fn with_bytes<T>(
    file: &dyn BackendFile,
    range: ByteRange,
    f: impl FnOnce(&[u8]) -> T,
) -> BackendResult<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(BLOCK as usize + PAGE, 0);
        let skip = scratch.as_ptr().align_offset(PAGE).min(PAGE);
        let bytes = &mut scratch[skip..skip + range.len() as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(range.start + filled as u64, &mut bytes[filled..])? {
                0 => return Err(BackendError::Short),
                n => filled += n,
            }
        }
        Ok(f(bytes))
    })
}
