//! The file that bench reads: which file, and how each replica can be read.
//!
//! *Invariant:* every access to a replica runs on a thread that is abandoned after the deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ALIGNMENT, BenchError, RawReplicas};
use crate::config::Config;
use crate::format::to_mib;
use crate::raw_replica::{RawMode, RawReplica, UnopenedReplica};
use crate::survey::sample::SampleFile;
use crate::timeout::run_with_timeout;
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// How the file can be read on a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// With O_DIRECT, past this machine's page cache.
    Direct,
    /// Through this machine's page cache, which is dropped beforehand.
    Cached,
    /// By this process, over its own connections to the server.
    Served,
    /// Not at all; the reason.
    Absent(String),
}

/// A file of the volume.
pub(super) struct TargetFile {
    pub(super) replicas: RawReplicas,
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
        replicas: RawReplicas,
        file: &Path,
        deadline: Duration,
    ) -> Result<Self, BenchError> {
        let seen: Vec<Result<ReplicaFile, InspectError>> = std::thread::scope(|scope| {
            let look = |replica: &Result<RawReplica, UnopenedReplica>| {
                let replica = replica.clone();
                let file = file.to_owned();
                let look =
                    move || inspect_replica_file(&replica.map_err(InspectError::Replica)?, &file);
                scope.spawn(move || run_with_timeout(deadline, look))
            };
            let threads: Vec<_> = replicas.iter().map(|(_, replica)| look(replica)).collect();
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
            Ok(ReplicaFile { mode, .. }) => mode,
            Err(why) => ReadMode::Absent(why.to_string()),
        };
        let read_modes = seen.into_iter().map(read_mode).collect();
        Ok(Self { replicas, file: file.to_owned(), size, read_modes })
    }

    /// The replicas that can be read.
    pub(super) fn readable_replicas(&self) -> ReplicaSet {
        let live = self.read_modes.iter().filter(|(_, mode)| !matches!(mode, ReadMode::Absent(_)));
        live.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    /// How the kernel reads it on a replica.
    pub(super) fn raw_mode(&self, id: ReplicaId) -> RawMode {
        match self.read_modes[id] {
            ReadMode::Direct => RawMode::Direct,
            ReadMode::Cached | ReadMode::Served | ReadMode::Absent(_) => RawMode::Cached,
        }
    }
}

/// The file as one replica shows it.
struct ReplicaFile {
    /// Bytes.
    size: u64,
    mode: ReadMode,
}

/// Why a replica's file cannot be read.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error(transparent)]
    Replica(#[from] UnopenedReplica),
    #[error("did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

fn inspect_replica_file(replica: &RawReplica, file: &Path) -> Result<ReplicaFile, InspectError> {
    let path = replica.path_of(file);
    let failed = |error: io::Error| InspectError::Io { path: path.clone(), error };
    let Some(size) = replica.file_size(file).map_err(failed)? else {
        return Err(InspectError::NotAFile(path));
    };
    replica.open_file(file, RawMode::Cached).map_err(failed)?;
    if replica.is_export() {
        return Ok(ReplicaFile { size, mode: ReadMode::Served });
    }
    let mut memory = vec![0; 2 * ALIGNMENT as usize];
    let opened = replica.open_file(file, RawMode::Direct);
    let direct = opened.and_then(|file| file.read_at(aligned(&mut memory), 0));
    let mode = if direct.is_ok() { ReadMode::Direct } else { ReadMode::Cached };
    Ok(ReplicaFile { size, mode })
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
    replicas: &RawReplicas,
    least: u64,
    deadline: Duration,
) -> Result<PathBuf, BenchError> {
    let mut partial = None;
    for replica in replicas.iter().filter_map(|(_, replica)| replica.as_ref().ok()) {
        let found = replica.find_sample(WALK_TIMEOUT, deadline);
        if !found.is_root_listable {
            continue;
        }
        // Its server may answer some calls only.
        let is_partial = replica.is_export() && found.best.is_none();
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
        let error = BenchError::Usage(format!(
            "bench needs a regular file of at least {:.0} MiB; in {} (entries examined: {}) \
             {seen}; name a file with --file, or create one with --make",
            to_mib(least),
            replica,
            found.entries
        ));
        if !is_partial {
            return Err(error);
        }
        partial.get_or_insert(error);
    }
    if let Some(error) = partial {
        return Err(error);
    }
    let why = config.replicas.iter().zip(replicas.iter()).filter_map(|(replica, (_, opened))| {
        opened.as_ref().err().map(|why| format!("; {}: {why}", replica.name))
    });
    let why: String = why.collect();
    Err(BenchError::Failed(format!("cannot list the root of any replica{why}")))
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
