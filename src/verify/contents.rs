//! Compares the contents of one file, block by block.
//!
//! Each replica reads and hashes its own blocks, and only the hashes are compared. If they differ,
//! all replicas read the block again and its bytes are compared. So the memory needed is that of
//! the replicas' read buffers, whatever the file's size.
//!
//! A replica takes part only while it shows the version that its attributes had before. It is
//! checked again at the end, with a new open if something differed: for an open file, an NFS mount
//! may show cached attributes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::diff_ranges::{differing_regions, group_by_value};
use super::difference::{ContentDifference, DifferingRange};
use super::replica_calls::{CallError, FailedCall, PendingCall, ReplicaCalls};
use super::sample::{COMPARE_BLOCK_SIZE, Coverage, FileBlocks};
use crate::backend::{Backend, BackendError, BackendFile, Lane, Result as BackendResult};
use crate::volume::{ByteRange, FileVersion, ReplicaId, ReplicaSet};

/// How to compare contents.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentOptions {
    pub(super) coverage: Coverage,
    pub(super) seed: u64,
    /// The most blocks of one file in flight.
    pub(super) max_blocks_in_flight: usize,
}

/// How far a file has been compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct FileProgress {
    /// Identifies the versions that the replicas showed.
    pub(super) fingerprint: String,
    /// The first block that is not yet compared.
    pub(super) next_block: u64,
    /// The differences before that block.
    pub(super) content: ContentDifference,
    /// Bytes of the file that were compared.
    pub(super) bytes: u64,
    /// Bytes read from all replicas.
    pub(super) bytes_read: u64,
    /// Blocks that differed when they were first read, but not when they were read again.
    pub(super) unsteady: u64,
}

/// The result of comparing a file.
pub(super) enum ContentOutcome {
    /// Everything was compared, except on replicas that failed.
    Done { progress: FileProgress, failed: Vec<FailedCall> },
    /// Some replica showed another version than at the start.
    Changed,
}

/// A file on the compared replicas, with the version that each showed.
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

/// The pending hashes of one block.
struct PendingBlock {
    block: u64,
    range: ByteRange,
    hashes: Vec<(ReplicaId, PendingCall<blake3::Hash>)>,
}

impl ComparedFile<'_> {
    fn fingerprint(&self) -> String {
        blake3::hash(format!("{:?}", self.versions).as_bytes()).to_hex()[..16].to_owned()
    }

    /// Compares the file. Resumes after `earlier` if that was about the same versions. Calls
    /// `report` after each block.
    pub(super) fn compare(
        &self,
        calls: &ReplicaCalls,
        options: ContentOptions,
        earlier: Option<FileProgress>,
        mut report: impl FnMut(&FileProgress),
    ) -> Result<ContentOutcome, CallError> {
        let fingerprint = self.fingerprint();
        let earlier = earlier.filter(|earlier| earlier.fingerprint == fingerprint);
        let progress = earlier.unwrap_or(FileProgress { fingerprint, ..FileProgress::default() });
        let blocks = FileBlocks::new(self.path, self.size, options.coverage, options.seed);
        let mut chosen = blocks.chosen_blocks(progress.next_block).peekable();
        if chosen.peek().is_none() {
            return Ok(ContentOutcome::Done { progress, failed: Vec::new() });
        }
        let Some(mut comparison) = ContentComparison::open(self, calls, progress)? else {
            return Ok(ContentOutcome::Changed);
        };
        let mut window: VecDeque<PendingBlock> = VecDeque::new();
        while comparison.open.len() > 1 {
            while window.len() < options.max_blocks_in_flight
                && let Some(block) = chosen.next()
            {
                window.push_back(comparison.start_block(block, blocks.block_range(block))?);
            }
            let Some(pending) = window.pop_front() else { break };
            comparison.finish_block(pending)?;
            report(&comparison.progress);
        }
        // A call counts as late only if its answer is waited for.
        for (_, pending) in window.into_iter().flat_map(|block| block.hashes) {
            let _ = calls.wait_for(pending, None);
        }
        if comparison.has_changed()? {
            return Ok(ContentOutcome::Changed);
        }
        let ContentComparison { progress, failed, .. } = comparison;
        Ok(ContentOutcome::Done { progress, failed })
    }
}

/// A file whose contents are being compared.
struct ContentComparison<'a> {
    path: &'a Path,
    calls: &'a ReplicaCalls,
    /// The copies that still take part.
    open: Vec<OpenCopy>,
    failed: Vec<FailedCall>,
    progress: FileProgress,
}

impl<'a> ContentComparison<'a> {
    /// Opens the file on all its replicas; `None` if some replica now shows another version.
    fn open(
        file: &ComparedFile<'a>,
        calls: &'a ReplicaCalls,
        progress: FileProgress,
    ) -> Result<Option<Self>, CallError> {
        let replicas = file.versions.iter().fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
        let job = |_: ReplicaId| {
            let path: PathBuf = file.path.to_owned();
            move |backend: &dyn Backend| backend.open(&path)
        };
        let mut comparison =
            Self { path: file.path, calls, open: Vec::new(), failed: Vec::new(), progress };
        let mut has_changed = false;
        let answers = calls.call_all(replicas, Lane::Read, job).into_iter();
        for (answer, (_, expected)) in answers.zip(&file.versions) {
            let id = answer.replica;
            match answer.result {
                Ok((file, attr)) => {
                    has_changed |= attr.version() != *expected;
                    comparison.open.push(OpenCopy { id, file, expected_version: *expected });
                }
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(error) if is_gone(error) => has_changed = true,
                Err(error) => comparison.failed.push(FailedCall { replica: id, error }),
            }
        }
        Ok((!has_changed).then_some(comparison))
    }

    fn replicas(&self) -> ReplicaSet {
        self.open.iter().fold(ReplicaSet::EMPTY, |set, copy| set.with(copy.id))
    }

    /// Excludes a copy that cannot be read, if it still takes part.
    fn leave_out(&mut self, replica: ReplicaId, error: CallError) {
        if self.open.iter().any(|copy| copy.id == replica) {
            self.open.retain(|copy| copy.id != replica);
            self.failed.push(FailedCall { replica, error });
        }
    }

    /// Starts to hash all copies of a block.
    fn start_block(&self, block: u64, range: ByteRange) -> Result<PendingBlock, CallError> {
        self.calls.wait_for_rate(self.replicas(), range.len())?;
        let start = |copy: &OpenCopy| (copy.id, start_hash(self.calls, copy, range));
        Ok(PendingBlock { block, range, hashes: self.open.iter().map(start).collect() })
    }

    /// Waits for a block's hashes; compares the bytes if the hashes differ.
    fn finish_block(&mut self, pending: PendingBlock) -> Result<(), CallError> {
        let PendingBlock { block, range, hashes } = pending;
        let mut answers = Vec::new();
        for (id, pending) in hashes {
            match self.calls.wait_for(pending, None) {
                Ok(hash) => {
                    self.progress.bytes_read += range.len();
                    // Ignore a copy that has failed in the meantime.
                    if self.open.iter().any(|copy| copy.id == id) {
                        answers.push((id, hash));
                    }
                }
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(error) => self.leave_out(id, error),
            }
        }
        if answers.len() > 1 && group_by_value(answers, |a, b| a == b).len() > 1 {
            self.find_differing_ranges(range)?;
        }
        self.progress.bytes += range.len();
        self.progress.next_block = block + 1;
        Ok(())
    }

    /// Reads a block again to find which bytes differ.
    fn find_differing_ranges(&mut self, range: ByteRange) -> Result<(), CallError> {
        let start = |copy: &OpenCopy| {
            let file = Arc::clone(&copy.file);
            let read = move |_: &dyn Backend| with_range_bytes(&*file, range, <[u8]>::to_vec);
            (copy.id, self.calls.start_call(copy.id, Lane::Read, read))
        };
        self.calls.wait_for_rate(self.replicas(), range.len())?;
        let reads: Vec<_> = self.open.iter().map(start).collect();
        let mut copies = Vec::new();
        for (id, pending) in reads {
            match self.calls.wait_for(pending, None) {
                Ok(bytes) => {
                    self.progress.bytes_read += range.len();
                    copies.push((id, bytes));
                }
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(error) => self.leave_out(id, error),
            }
        }
        let regions = differing_regions(range.start, &copies);
        self.progress.unsteady += u64::from(regions.is_empty() && copies.len() > 1);
        for region in regions {
            let groups = region.groups.iter().map(|set| self.calls.names(*set)).collect();
            self.progress.content.add_range(DifferingRange {
                start: region.range.start,
                end: region.range.end,
                groups,
            });
        }
        Ok(())
    }

    /// Whether some replica now shows another version. If something differed, opens the file again
    /// to check.
    fn has_changed(&mut self) -> Result<bool, CallError> {
        let reopens = !self.progress.content.is_empty() || self.progress.unsteady > 0;
        let start = |copy: &OpenCopy| {
            let file = Arc::clone(&copy.file);
            let path = self.path.to_owned();
            let stat = move |backend: &dyn Backend| match reopens {
                true => backend.open(&path).map(|(_, attr)| attr),
                false => file.attr(),
            };
            self.calls.start_call(copy.id, Lane::Metadata, stat)
        };
        let stats: Vec<_> = self.open.iter().map(start).collect();
        let mut has_changed = false;
        for (copy, pending) in self.open.iter().zip(stats) {
            match self.calls.wait_for(pending, None) {
                Ok(attr) => has_changed |= attr.version() != copy.expected_version,
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(error) if is_gone(error) => has_changed = true,
                Err(error) => self.failed.push(FailedCall { replica: copy.id, error }),
            }
        }
        Ok(has_changed)
    }
}

/// Whether the file was removed or replaced.
fn is_gone(error: CallError) -> bool {
    use rustix::io::Errno;
    matches!(error, CallError::Failed(BackendError::Os(Errno::NOENT | Errno::STALE)))
}

fn start_hash(
    calls: &ReplicaCalls,
    copy: &OpenCopy,
    range: ByteRange,
) -> PendingCall<blake3::Hash> {
    let file = Arc::clone(&copy.file);
    calls.start_call(copy.id, Lane::Read, move |_| with_range_bytes(&*file, range, blake3::hash))
}

/// The alignment of O_DIRECT buffers, bytes.
const DIRECT_IO_ALIGN: usize = 4096;

thread_local! {
    /// The read buffer of a replica's thread.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the bytes of `range`, which is at most one block.
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
