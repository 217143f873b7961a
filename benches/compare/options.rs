//! The command-line options.

use std::path::PathBuf;

use super::candidate::Candidate;
use super::load::Load;
use super::size_of;

/// This build's own program.
const FANFS: &str = env!("CARGO_BIN_EXE_fanfs");

/// The candidates, loads and durations.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Options {
    /// Passes of each candidate; medians are over these
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: usize,
    /// The file's size on each replica; all replicas are in memory at once
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "2GiB")]
    pub(super) size: u64,
    /// Only these, comma-separated: a name, or the part before a dash in it (`fanfs` is all of
    /// fanfs); --list shows the names. A ratio needs its reference, so keep null and mergerfs
    #[arg(long, value_name = "CANDIDATES", value_delimiter = ',')]
    pub(super) only: Vec<String>,
    /// Only these loads, comma-separated
    #[arg(
        long,
        value_enum,
        value_name = "LOADS",
        value_delimiter = ',',
        default_value = "seq,uneven,warm,rand1,rand32,scaling"
    )]
    pub(super) loads: Vec<Load>,
    /// How many replicas, comma-separated; each number of them is measured
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,3",
        value_parser = at_least_one)]
    pub(super) replicas: Vec<usize>,
    /// Longest time of one pass of random reads
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pub(super) seconds: u64,
    /// Numbers of replicas, 100 MiB/s each, for the load `scaling`
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2,4,8,16",
        value_parser = at_least_one)]
    pub(super) scaling: Vec<usize>,
    /// The directory for compare.md, compare.svg and scaling.svg
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    pub(super) out: PathBuf,
    /// Write every pass with all its figures to this file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// The fanfs to measure [default: this build's]
    #[arg(long, value_name = "PROGRAM")]
    pub(super) fanfs: Option<PathBuf>,
    /// Another build of fanfs in the same run, as candidates NAME-direct, NAME-kernel, ...; may be
    /// given several times
    #[arg(long, value_name = "NAME=PROGRAM", value_parser = named)]
    pub(super) also: Vec<(String, PathBuf)>,
    /// fanfs with another value of a configuration key in the same run, as candidates
    /// fanfs@KEY=VALUE-direct, ...; used to choose defaults; may be given several times
    #[arg(long, value_name = "TABLE.KEY=V1,V2,...", value_parser = variation)]
    pub(super) vary: Vec<Variation>,
    /// Print the candidates' names and exit
    #[arg(long)]
    pub(super) list: bool,
}

/// A key of fanfs's configuration, and the value to try.
#[derive(Clone, Debug)]
pub(super) struct Variation {
    pub(super) table: String,
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

impl Options {
    /// The builds of fanfs, each with the prefix of its candidates' names.
    pub(super) fn builds(&self) -> Vec<(String, PathBuf)> {
        let program = self.fanfs.clone().unwrap_or_else(|| FANFS.into());
        let own = [("fanfs".to_owned(), program)];
        own.into_iter().chain(self.also.iter().cloned()).collect()
    }

    /// Whether `--only` lets a candidate in.
    pub(super) fn wants(&self, candidate: &Candidate) -> bool {
        self.only.is_empty() && !candidate.is_asked_for()
            || self.only.iter().any(|word| candidate.is(word))
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(error) => Err(format!("{error}")),
    }
}

fn variation(text: &str) -> Result<Variation, String> {
    let parts = text.split_once('=').and_then(|(key, values)| Some((key.split_once('.')?, values)));
    let Some(((table, key), values)) = parts else {
        return Err("give TABLE.KEY=V1,V2,..., such as fuse.threads=2,4,8".to_owned());
    };
    let values = values.split(',').map(str::to_owned).collect();
    Ok(Variation { table: table.to_owned(), key: key.to_owned(), values })
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err("give NAME=PROGRAM".to_owned()),
    }
}
