//! Measures how fast a volume's replicas are, read directly and read through fanfs.
//!
//! The input is a volume's configuration and a file in the volume. The output is a [`Report`].
//! Every figure comes from a *pass*: a number of readers, for a number of seconds, over one
//! [`Candidate`] (one replica alone, several replicas side by side, or fanfs over several), under
//! one [`Load`]. [`plan`] decides which passes there are, their order, and the part of the file
//! that each reads. [`pass`] carries out one pass. [`runner`] carries out all of them, over its own
//! mounts ([`scratch_mount`]). [`results`] turns them into rows. [`table`] prints the rows; with
//! the cargo feature `plots`, `plot` and `html_report` draw them. [`host`] says when and where the
//! run was. [`fio`] writes each pass as a job for fio(1).
//!
//! *Invariants:* figures that are compared come from the same round, with the same number of
//! readers, the same block size and the same limit on bytes. No pass reads a byte twice. A hung
//! replica costs only its own rows and a bounded time. No mount and no file is left when
//! [`runner::run`] returns, whatever its result.

pub mod fio;
mod host;
#[cfg(feature = "plots")]
pub mod html_report;
mod pass;
pub mod pass_error;
mod permutation;
pub mod plan;
#[cfg(feature = "plots")]
pub mod plot;
pub mod progress;
mod reread;
pub mod results;
pub mod runner;
mod scratch_file;
mod scratch_mount;
pub mod table;
pub mod target_file;

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Config, ReplicaConfig};
use crate::raw_replica::{RawReplica, UnopenedReplica};
use crate::volume::ReplicaMap;

pub use plan::{Candidate, Load};
pub use results::Report;

/// How to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Bytes of one sequential read; a multiple of [`ALIGNMENT`].
    pub block_size: u64,
    /// Bytes of one random read; a multiple of [`ALIGNMENT`].
    pub random_block_size: u64,
    /// Readers of the loads with several.
    pub readers: usize,
    /// How often each pass is done.
    pub rounds: usize,
    /// The longest that one pass reads.
    pub pass_duration: Duration,
    /// How long a replica may take to answer one call before bench gives up on it.
    pub deadline: Duration,
    /// The seed of the random block orders.
    pub seed: u64,
    /// The file, relative to the volume's root. Without it, bench takes the file with the most data
    /// that it finds.
    pub file: Option<PathBuf>,
    /// Instead of `file`: the size in bytes of a file that bench creates.
    pub scratch_file_size: Option<u64>,
    /// The directory for the fio jobs.
    pub fio_dir: Option<PathBuf>,
    /// Whether fio runs the passes too.
    pub run_fio: bool,
}

/// The replicas as bench reads them directly.
type RawReplicas = ReplicaMap<Result<RawReplica, UnopenedReplica>>;

/// Opens the replicas, all at once.
fn open_replicas(config: &Config, deadline: Duration) -> RawReplicas {
    let open = |replica: &ReplicaConfig| RawReplica::open_within(config, replica, deadline);
    std::thread::scope(|scope| {
        let threads = config.replicas.iter().map(|replica| scope.spawn(move || open(replica)));
        let threads: Vec<_> = threads.collect();
        let silent = |_| Err(UnopenedReplica::TimedOut(deadline));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(silent)).collect()
    })
}

/// Refuses fio over replicas that only this process reads.
fn check_fio(config: &Config, options: &BenchOptions) -> Result<(), BenchError> {
    let export = config.replicas.iter().find(|replica| replica.location.export().is_some());
    match export {
        Some(ReplicaConfig { name, location, .. })
            if options.run_fio || options.fio_dir.is_some() =>
        {
            Err(BenchError::Usage(format!(
                "replica {name} is {location}: fio reads mounts only; run bench without --fio and \
                 --run-fio"
            )))
        }
        _ => Ok(()),
    }
}

/// The alignment of O_DIRECT reads, bytes. No supported filesystem needs more.
pub const ALIGNMENT: u64 = 4096;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The request does not fit this volume or file.
    #[error("{0}")]
    Usage(String),
    /// Nothing could be measured.
    #[error("{0}")]
    Failed(String),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}
