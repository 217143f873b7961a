//! What a volume's replicas give, past fanfs and through it.
//!
//! In go a volume's configuration and a file in it; out comes a [`Report`]. Every
//! figure is a *pass*: so many readers for so many seconds over one [`Candidate`] (a
//! replica alone, several replicas side by side, fanfs over several), under one
//! [`Load`]. [`plan`] says which passes there are, in which order, and what part of the
//! file each reads; [`pass`] carries one out; [`runner`] does them all, over
//! mounts of its own ([`scratch_mount`]); [`results`] makes rows of them; [`table`] and, with the
//! cargo feature `plots`, `plot` and `html_report` show these; [`fio`] writes each pass as a job for fio(1).
//!
//! *Invariants:* what is compared with each other is measured with the same number of
//! readers, blocks and bytes allowed, in the same round. No pass reads a byte twice. A
//! replica that hangs costs its own rows and a bounded time. No mount and no file is
//! left when a [`runner::run`] returns, whatever it returns.

pub mod fio;
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
    /// How long a replica may take to answer one call before it is given up.
    pub deadline: Duration,
    /// Which random blocks are read.
    pub seed: u64,
    /// The file, relative to the volume's root; without it the one with the most data that is found.
    pub file: Option<PathBuf>,
    /// The size of a file to make, bytes, instead.
    pub scratch_file_size: Option<u64>,
    /// Where to write jobs for fio to.
    pub fio_dir: Option<PathBuf>,
    /// Whether to have fio run them.
    pub run_fio: bool,
}

/// What O_DIRECT reads are multiples of, bytes: no file system here wants more.
pub const ALIGNMENT: u64 = 4096;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// What was asked for cannot be done with this volume or file.
    #[error("{0}")]
    Usage(String),
    /// Nothing could be measured.
    #[error("{0}")]
    Failed(String),
    /// The user has interrupted it.
    #[error("interrupted")]
    Interrupted,
}
