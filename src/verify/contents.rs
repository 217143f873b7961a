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

use super::diff_ranges::{differing_regions, group_by_value};
use super::difference::{ContentDifference, DifferingRange};
use super::replica_calls::{CallError, PendingCall, ReplicaCalls};
use super::sample::{COMPARE_BLOCK_SIZE, Coverage, FileBlocks};
use crate::backend::{Backend, BackendError, BackendFile, Lane, Result as BackendResult};
use crate::volume::{ByteRange, FileVersion, ReplicaId, ReplicaSet};

/// How contents are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentOptions {
    pub(super) coverage: Coverage,
    pub(super) seed: u64,
    /// Blocks of one file under way at a time.
    pub(super) max_blocks_in_flight: usize,
}

/// How far a file has been compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct FileProgress {
    /// Stands for the versions that the replicas showed.
    pub(super) fingerprint: String,
    /// The first block that has not been.
    pub(super) next_block: u64,
    /// What differs before it.
    pub(super) content: ContentDifference,
    /// Bytes of the file compared.
    pub(super) bytes: u64,
    /// Bytes read, of all replicas.
    pub(super) bytes_read: u64,
    /// Blocks that differed when they were read first, and not when they were
    /// read again.
    pub(super) unsteady: u64,
}

/// What came of it.
pub(super) enum ContentOutcome {
    /// All that was to be compared was, but on replicas that failed.
    Done { progress: FileProgress, failed: Vec<(ReplicaId, CallError)> },
    /// Some replica showed another version than at first.
    Changed,
}

/// A file on those replicas that are compared, with the version that each showed.
pub(super) struct ComparedFile<'a> {
    pub(super) path: &'a Path,
    pub(super) size: u64,
    pub(super) versions: Vec<(ReplicaId, FileVersion)>,
}

struct OpenCopy {
    id: ReplicaId,
    file: Arc<dyn BackendFile>,
    expected_version: FileVersion,
}

/// The hashes of one block, on their way.
struct PendingBlock {
    block: u64,
    range: ByteRange,
    hashes: Vec<(ReplicaId, PendingCall<blake3::Hash>)>,
}

impl ComparedFile<'_> {
    fn fingerprint(&self) -> String {
        blake3::hash(format!("{:?}", self.versions).as_bytes()).to_hex()[..16].to_owned()
    }

    /// Compares it, from where `earlier` ended if that was of the same versions;
    /// `report` is told how far it is.
    pub(super) fn compare(
        &self,
        peers: &ReplicaCalls,
        how: ContentOptions,
        earlier: Option<FileProgress>,
        mut report: impl FnMut(&FileProgress),
    ) -> Result<ContentOutcome, CallError> {
        let fingerprint = self.fingerprint();
        let earlier = earlier.filter(|earlier| earlier.fingerprint == fingerprint);
        let mut progress =
            earlier.unwrap_or(FileProgress { fingerprint, ..FileProgress::default() });
        let blocks = FileBlocks::new(self.path, self.size, how.coverage, how.seed);
        let mut chosen = blocks.chosen_blocks(progress.next_block).peekable();
        if chosen.peek().is_none() {
            return Ok(ContentOutcome::Done { progress, failed: Vec::new() });
        }
        let mut failed = Vec::new();
        let Some(mut open) = self.open(peers, &mut failed)? else {
            return Ok(ContentOutcome::Changed);
        };
        let mut window: VecDeque<PendingBlock> = VecDeque::new();
        while open.len() > 1 {
            while window.len() < how.max_blocks_in_flight
                && let Some(block) = chosen.next()
            {
                let range = blocks.block_range(block);
                let whom = open.iter().fold(ReplicaSet::EMPTY, |set, open| set.with(open.id));
                peers.wait_for_rate(whom, range.len())?;
                let ask = |open: &OpenCopy| (open.id, start_hash(peers, open, range));
                window.push_back(PendingBlock {
                    block,
                    range,
                    hashes: open.iter().map(ask).collect(),
                });
            }
            let Some(sent) = window.pop_front() else { break };
            let range = sent.range;
            let mut hashes = Vec::new();
            for (id, pending) in sent.hashes {
                let answer = peers.wait_for(pending, None);
                // One that has failed since takes no part any more.
                let takes_part = open.iter().any(|open| open.id == id);
                match answer {
                    Ok(hash) => {
                        progress.bytes_read += range.len();
                        hashes.extend(takes_part.then_some((id, hash)));
                    }
                    Err(CallError::Stopped) => return Err(CallError::Stopped),
                    Err(miss) if takes_part => {
                        open.retain(|open| open.id != id);
                        failed.push((id, miss));
                    }
                    Err(_) => {}
                }
            }
            if hashes.len() > 1 && group_by_value(hashes, |a, b| a == b).len() > 1 {
                self.find_differing_ranges(peers, &mut open, range, &mut progress, &mut failed)?;
            }
            progress.bytes += range.len();
            progress.next_block = sent.block + 1;
            report(&progress);
        }
        // Nobody else would notice that they are late.
        for (_, pending) in window.into_iter().flat_map(|sent| sent.hashes) {
            let _ = peers.wait_for(pending, None);
        }
        let anew = !progress.content.is_empty() || progress.unsteady > 0;
        if self.has_changed(peers, &open, anew, &mut failed)? {
            return Ok(ContentOutcome::Changed);
        }
        Ok(ContentOutcome::Done { progress, failed })
    }

    /// Opens it everywhere; `None` where it is not as it was any more.
    fn open(
        &self,
        peers: &ReplicaCalls,
        failed: &mut Vec<(ReplicaId, CallError)>,
    ) -> Result<Option<Vec<OpenCopy>>, CallError> {
        let whom = self.versions.iter().fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
        let job = |_: ReplicaId| {
            let path: PathBuf = self.path.to_owned();
            move |backend: &dyn Backend| backend.open(&path)
        };
        let mut open = Vec::new();
        let mut has_moved = false;
        for ((id, answer), (_, before)) in
            peers.call_all(whom, Lane::Read, job).into_iter().zip(&self.versions)
        {
            match answer {
                Ok((file, attr)) => {
                    has_moved |= attr.version() != *before;
                    open.push(OpenCopy { id, file, expected_version: *before });
                }
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                // Removed, or something else than a file, since.
                Err(CallError::Failed(BackendError::Os(
                    rustix::io::Errno::NOENT | rustix::io::Errno::STALE,
                ))) => has_moved = true,
                Err(miss) => failed.push((id, miss)),
            }
        }
        Ok((!has_moved).then_some(open))
    }

    /// Reads a block again to see which of its bytes differ.
    fn find_differing_ranges(
        &self,
        peers: &ReplicaCalls,
        open: &mut Vec<OpenCopy>,
        range: ByteRange,
        progress: &mut FileProgress,
        failed: &mut Vec<(ReplicaId, CallError)>,
    ) -> Result<(), CallError> {
        let ask = |open: &OpenCopy| {
            let file = Arc::clone(&open.file);
            let read = move |_: &dyn Backend| with_range_bytes(&*file, range, <[u8]>::to_vec);
            (open.id, peers.start_call(open.id, Lane::Read, read))
        };
        let whom = open.iter().fold(ReplicaSet::EMPTY, |set, open| set.with(open.id));
        peers.wait_for_rate(whom, range.len())?;
        let asked: Vec<_> = open.iter().map(ask).collect();
        let mut copies = Vec::new();
        for (id, pending) in asked {
            match peers.wait_for(pending, None) {
                Ok(bytes) => {
                    progress.bytes_read += range.len();
                    copies.push((id, bytes));
                }
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(miss) => {
                    open.retain(|open| open.id != id);
                    failed.push((id, miss));
                }
            }
        }
        let regions = differing_regions(range.start, &copies);
        progress.unsteady += u64::from(regions.is_empty() && copies.len() > 1);
        for region in regions {
            let groups = region.groups.iter().map(|set| peers.names(*set)).collect();
            progress.content.add_range(DifferingRange {
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
        peers: &ReplicaCalls,
        open: &[OpenCopy],
        anew: bool,
        failed: &mut Vec<(ReplicaId, CallError)>,
    ) -> Result<bool, CallError> {
        let ask = |open: &OpenCopy| {
            let (file, path) = (Arc::clone(&open.file), self.path.to_owned());
            let look = move |backend: &dyn Backend| match anew {
                true => backend.open(&path).map(|(_, attr)| attr),
                false => file.attr(),
            };
            (open.id, open.expected_version, peers.start_call(open.id, Lane::Metadata, look))
        };
        let asked: Vec<_> = open.iter().map(ask).collect();
        let mut changed = false;
        for (id, before, pending) in asked {
            match peers.wait_for(pending, None) {
                Ok(attr) => changed |= attr.version() != before,
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(CallError::Failed(BackendError::Os(
                    rustix::io::Errno::NOENT | rustix::io::Errno::STALE,
                ))) => changed = true,
                Err(miss) => failed.push((id, miss)),
            }
        }
        Ok(changed)
    }
}

fn start_hash(
    peers: &ReplicaCalls,
    open: &OpenCopy,
    range: ByteRange,
) -> PendingCall<blake3::Hash> {
    let file = Arc::clone(&open.file);
    peers.start_call(open.id, Lane::Read, move |_| with_range_bytes(&*file, range, blake3::hash))
}

/// What O_DIRECT wants memory to begin with a multiple of.
const DIRECT_IO_ALIGN: usize = 4096;

thread_local! {
    /// What a replica's thread reads into.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What `f` makes of the bytes of `range`, at most a block.
fn with_range_bytes<T>(
    file: &dyn BackendFile,
    range: ByteRange,
    f: impl FnOnce(&[u8]) -> T,
) -> BackendResult<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(COMPARE_BLOCK_SIZE as usize + DIRECT_IO_ALIGN, 0);
        let skip = scratch.as_ptr().align_offset(DIRECT_IO_ALIGN).min(DIRECT_IO_ALIGN);
        let bytes = &mut scratch[skip..skip + range.len() as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(range.start + filled as u64, &mut bytes[filled..])? {
                0 => return Err(BackendError::Truncated),
                n => filled += n,
            }
        }
        Ok(f(bytes))
    })
}
