//! The file that bench reads: which file, and how each replica can be read.
//!
//! *Invariant:* every access to a replica runs on a thread that is abandoned after the deadline.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ALIGNMENT, BenchError, directory};
use crate::config::Config;
use crate::format::to_mib;
use crate::survey::sample::{self, SampleFile};
use crate::timeout::run_with_timeout;
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// How the file can be read on a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// With O_DIRECT, past this machine's page cache.
    Direct,
    /// Through this machine's page cache, which is dropped beforehand.
    Cached,
    /// Not at all; the reason.
    Absent(String),
}

/// A file of the volume.
#[derive(Clone, Debug)]
pub(super) struct TargetFile {
    /// Relative to the volume's root.
    pub(super) file: PathBuf,
    /// Bytes.
    pub(super) size: u64,
    /// One for each replica.
    pub(super) read_modes: ReplicaMap<ReadMode>,
}

/// How long the search for a file may take.
const WALK_TIMEOUT: Duration = Duration::from_secs(5);

impl TargetFile {
    /// Examines `file` on all replicas at once.
    pub(super) fn inspect(
        config: &Config,
        file: &Path,
        deadline: Duration,
    ) -> Result<Self, BenchError> {
        let seen: Vec<Result<ReplicaFile, InspectError>> = std::thread::scope(|scope| {
            let look = |replica: &crate::config::ReplicaConfig| {
                let path = directory(replica).join(file);
                scope.spawn(move || run_with_timeout(deadline, move || inspect_replica_file(&path)))
            };
            let threads: Vec<_> = config.replicas.iter().map(look).collect();
            let silent = || Err(InspectError::TimedOut(deadline));
            let join = |thread: std::thread::ScopedJoinHandle<'_, Option<_>>| {
                thread.join().ok().flatten().unwrap_or_else(silent)
            };
            threads.into_iter().map(join).collect()
        });
        let Some(size) = seen.iter().flatten().map(|file| file.size).next() else {
            let why = seen.into_iter().zip(&config.replicas).filter_map(|(seen, replica)| {
                seen.err().map(|why| format!("{}: {why}", replica.name))
            });
            let why = why.collect::<Vec<_>>().join("; ");
            let file = file.display();
            return Err(BenchError::Failed(format!("cannot read {file} on any replica: {why}")));
        };
        let read_mode = |seen: Result<ReplicaFile, InspectError>| match seen {
            Ok(ReplicaFile { size: other, .. }) if other != size => ReadMode::Absent(format!(
                "the file has {other} bytes here and {size} bytes on the first replica \
                     that has it"
            )),
            Ok(ReplicaFile { is_direct: true, .. }) => ReadMode::Direct,
            Ok(ReplicaFile { is_direct: false, .. }) => ReadMode::Cached,
            Err(why) => ReadMode::Absent(why.to_string()),
        };
        let read_modes = seen.into_iter().map(read_mode).collect();
        Ok(Self { file: file.to_owned(), size, read_modes })
    }

    /// The replicas that can be read.
    pub(super) fn readable_replicas(&self) -> ReplicaSet {
        let live = self.read_modes.iter().filter(|(_, mode)| !matches!(mode, ReadMode::Absent(_)));
        live.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    /// Whether a replica is read with O_DIRECT.
    pub(super) fn is_direct(&self, id: ReplicaId) -> bool {
        self.read_modes[id] == ReadMode::Direct
    }
}

/// The file as one replica shows it.
struct ReplicaFile {
    /// Bytes.
    size: u64,
    /// Whether O_DIRECT works on it.
    is_direct: bool,
}

/// Why a replica's file cannot be read.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

fn inspect_replica_file(path: &Path) -> Result<ReplicaFile, InspectError> {
    let failed = |error: io::Error| InspectError::Io { path: path.to_owned(), error };
    let stat = std::fs::symlink_metadata(path).map_err(failed)?;
    if !stat.is_file() {
        return Err(InspectError::NotAFile(path.to_owned()));
    }
    open(path, false).map_err(failed)?;
    let mut memory = vec![0; 2 * ALIGNMENT as usize];
    let direct = open(path, true).and_then(|file| file.read_at(aligned(&mut memory), 0));
    Ok(ReplicaFile { size: stat.len(), is_direct: direct.is_ok() })
}

/// Opens a file for reading.
pub(super) fn open(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// All but [`ALIGNMENT`] bytes of `memory`, starting at an address that O_DIRECT accepts.
pub(super) fn aligned(memory: &mut [u8]) -> &mut [u8] {
    let len = memory.len() - ALIGNMENT as usize;
    let skip = memory.as_ptr().align_offset(ALIGNMENT as usize);
    &mut memory[skip..skip + len]
}

/// The file with the most data on the first replica that answers, relative to its root.
///
/// # Errors
/// If that file has fewer than `least` bytes, or no replica answers.
pub(super) fn find_largest_file(
    config: &Config,
    least: u64,
    deadline: Duration,
) -> Result<PathBuf, BenchError> {
    for replica in &config.replicas {
        let found = sample::find(directory(replica), WALK_TIMEOUT, deadline);
        if !found.is_root_listable {
            continue;
        }
        let seen = match found.best {
            Some(best) if best.size >= least => return Ok(best.path),
            Some(SampleFile { path, size, .. }) => {
                format!(
                    "the file with the most data is {}, {:.1} MiB",
                    path.display(),
                    to_mib(size)
                )
            }
            None => "there is no regular file".to_owned(),
        };
        return Err(BenchError::Usage(format!(
            "bench needs a regular file of at least {:.0} MiB; in {} (entries examined: {}) \
             {seen}; name a file with --file, or create one with --make",
            to_mib(least),
            replica.location,
            found.entries
        )));
    }
    Err(BenchError::Failed("cannot list the root of any replica".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_for_o_direct() {
        let mut memory = vec![0; 3 * ALIGNMENT as usize];
        let part = aligned(&mut memory);
        assert_eq!(part.len(), 2 * ALIGNMENT as usize);
        assert_eq!(part.as_ptr() as usize % ALIGNMENT as usize, 0);
    }
}
