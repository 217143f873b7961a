//! Reads a scenario from TOML into a [`World`] and a [`Workload`].
//!
//! Everything has a default except the number of nodes, their speed and the file's size. So the
//! shortest scenario is six lines; `config/scenarios/` has examples.

mod build;
mod error;
mod raw;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use self::build::{build_metadata_runs, build_workload, build_world, checked_index};
pub use self::error::{ScenarioError, TraceError};
use self::raw::ScenarioToml;
use super::world::{
    ChunkPlacement, ReadPattern, ReaderSpec, RecordedRead, SimulatedFile, Workload, World,
};
use super::{PolicyKind, Random, metadata};
use crate::telemetry::trace::HandleReplay;
use crate::volume::ByteRange;

/// The most nodes of a scenario.
const MAX_NODES: usize = 1000;

/// The most readers of a scenario.
const MAX_READERS: usize = 4096;

/// The most chunks of a file.
const MAX_CHUNKS: u64 = 1 << 20;

/// A scenario, parsed and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The cluster, if the scenario reads data.
    pub world: Option<World>,
    /// The readers and the daemon's settings.
    pub workload: Workload,
    /// The policies to compare.
    pub policies: Vec<PolicyKind>,
    /// Whether to run raw jobs too, one for each replica.
    pub runs_raw: bool,
    /// Traces that readers replay.
    pub traces: Vec<ReaderTrace>,
    /// The metadata workloads to run.
    pub metadata: Vec<MetadataRun>,
    /// The rule that places a file's chunks.
    placer: Option<FilePlacer>,
}

/// A trace that a reader replays.
#[derive(Clone, Debug)]
pub struct ReaderTrace {
    /// The reader's index.
    pub reader: usize,
    /// The trace, relative to the scenario's directory.
    pub file: PathBuf,
}

/// A metadata workload, with its name in the results.
#[derive(Clone, Debug)]
pub struct MetadataRun {
    /// `spread`, or the replica to which all calls are pinned.
    pub name: String,
    /// The calls.
    pub workload: metadata::MetadataWorkload,
}

/// Places files, one after another.
#[derive(Clone, Debug)]
struct FilePlacer {
    placement: ChunkPlacement,
    random: Option<Random>,
}

impl FilePlacer {
    fn place_file(&mut self, size: u64) -> SimulatedFile {
        self.placement.place_file(size, self.random.as_mut())
    }

    /// Places files until there are `count`.
    fn fill_up(&mut self, files: &mut Vec<SimulatedFile>, count: usize, size: u64) {
        while files.len() < count {
            files.push(self.place_file(size));
        }
    }
}

impl Scenario {
    /// Replaces the readers with those of a recording, one for each handle. Their files have the
    /// recorded sizes, and are placed like the scenario's files.
    ///
    /// # Errors
    /// If the scenario has no files, or the recording has no reads or too many readers.
    pub fn replay(&mut self, recorded: &[HandleReplay]) -> Result<(), ScenarioError> {
        checked_index("the number of recorded readers", recorded.len(), MAX_READERS)?;
        let world = self.world.as_mut().ok_or(ScenarioError::NoCluster)?;
        let placer = self.placer.as_mut().ok_or(ScenarioError::NoCluster)?;
        if recorded.iter().any(|replay| replay.size / placer.placement.chunk > MAX_CHUNKS) {
            return Err(ScenarioError::RecordedFileTooLarge { max: MAX_CHUNKS });
        }
        world.files.clear();
        self.workload.readers.clear();
        let first = recorded.iter().map(|replay| replay.start_us).min().unwrap_or(0);
        let mut files = BTreeMap::new();
        for replay in recorded {
            let file = *files.entry(replay.file).or_insert_with(|| {
                world.files.push(placer.place_file(replay.size));
                world.files.len() - 1
            });
            let read = |&(offset, length, pause): &(u64, u64, u64)| RecordedRead {
                range: ByteRange::at(offset, length),
                pause: Duration::from_micros(pause),
            };
            let reads = ReadPattern::Trace(replay.reads.iter().map(read).collect());
            let start = Duration::from_micros(replay.start_us - first);
            let reader = ReaderSpec { reads, start, ..ReaderSpec::sequential(file) };
            self.workload.readers.push(reader);
        }
        if self.runs_raw {
            let size = world.files[0].size;
            placer.fill_up(&mut world.files, world.gateways.len(), size);
        }
        Ok(())
    }

    /// The workload of one raw job for each replica, each with its own file.
    pub fn raw_workload(&self) -> Workload {
        let replicas = self.world.as_ref().map_or(0, |world| world.gateways.len());
        let job = |replica: usize| ReaderSpec {
            raw_replica: Some(replica),
            ..ReaderSpec::sequential(replica)
        };
        Workload { readers: (0..replicas).map(job).collect(), ..self.workload.clone() }
    }
}

/// Parses a scenario.
///
/// # Errors
/// The error in one line, with the line of the file if that is known.
pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let written: ScenarioToml = toml::from_str(text).map_err(|error| {
        let before = |at: usize| text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        ScenarioError::Syntax {
            line: error.span().map(|span| before(span.start) + 1),
            what: error.message().replace('\n', "; "),
        }
    })?;
    let policies = PolicyChoice::from_names(written.policies.as_deref())?;
    let workload = build_workload(&written)?;
    let metadata = written.metadata.as_ref().map(build_metadata_runs).transpose()?;
    let mut scenario = Scenario {
        world: None,
        workload,
        policies: policies.simulated,
        runs_raw: policies.runs_raw,
        traces: Vec::new(),
        metadata: metadata.unwrap_or_default(),
        placer: None,
    };
    match (&written.cluster, &written.file) {
        (Some(cluster), Some(file)) => build_world(&written, cluster, file, &mut scenario)?,
        (None, None) if written.metadata.is_some() => {}
        _ => return Err(ScenarioError::NothingToRead),
    }
    Ok(scenario)
}

/// The policies that a scenario compares.
#[derive(Default)]
struct PolicyChoice {
    simulated: Vec<PolicyKind>,
    runs_raw: bool,
}

impl PolicyChoice {
    fn from_names(names: Option<&[String]>) -> Result<Self, ScenarioError> {
        let Some(names) = names else {
            return Ok(Self { simulated: PolicyKind::ALL.to_vec(), runs_raw: false });
        };
        let mut choice = Self::default();
        for name in names {
            match PolicyKind::ALL.into_iter().find(|kind| kind.name() == name) {
                Some(kind) => choice.simulated.push(kind),
                None if name == "raw" => choice.runs_raw = true,
                None => {
                    let known = PolicyKind::ALL.map(PolicyKind::name).join(", ");
                    return Err(ScenarioError::UnknownWord {
                        key: "policy",
                        value: name.clone(),
                        known: format!("raw, {known}"),
                    });
                }
            }
        }
        Ok(choice)
    }
}

/// Parses a trace: CSV with the columns `offset` and `length`, in bytes.
///
/// # Errors
/// The error in one line.
pub fn parse_trace(text: &str) -> Result<Vec<RecordedRead>, TraceError> {
    let mut rows = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = rows.headers().map_err(|error| TraceError::Csv(error.to_string()))?.clone();
    let column = |name: &'static str| {
        header.iter().position(|h| h == name).ok_or(TraceError::MissingColumn(name))
    };
    let offset = column("offset")?;
    let length = column("length")?;
    let row = |row: csv::Result<csv::StringRecord>| {
        let row = row.map_err(|error| TraceError::Csv(error.to_string().replace('\n', " ")))?;
        let line = row.position().map_or(0, csv::Position::line);
        let number = |column: usize| {
            let value = &row[column];
            let wrong = |error| TraceError::NotANumber { line, value: value.to_owned(), error };
            value.parse::<u64>().map_err(wrong)
        };
        let range = ByteRange::at(number(offset)?, number(length)?);
        Ok(RecordedRead { range, pause: Duration::ZERO })
    };
    rows.records().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "[cluster]\nnodes = 3\ndisk = \"247MB/s\"\n[file]\nsize = \"1GiB\"\n";

    #[test]
    fn a_minimal_scenario_gets_all_defaults() {
        let scenario = parse(LEAST).unwrap();
        let world = scenario.world.unwrap();
        assert_eq!((world.gateways.len(), world.files.len()), (3, 1));
        assert_eq!(world.files[0].chunks.chunks().count(), 4);
        assert_eq!(scenario.policies.len(), 4);
        assert_eq!(scenario.workload.readers.len(), 1);
    }

    #[test]
    fn an_invalid_scenario_is_refused_in_one_line() {
        for (more, expected) in [
            ("policies = [\"best\"]", "policy \"best\" is not known"),
            ("[[replica]]\nnode = 4", "replica.node 4 is out of range; use 1 to 3"),
            ("[[replica]]\nnod = 4", "line 7: unknown field `nod`"),
            ("[[change]]\nat = \"1s\"\nnode = 1\nfactor = -1.0", "change.factor -1"),
            ("[[reader]]\nreads = \"random\"", "reader.number is missing"),
            ("[[reader]]\nblock = \"0B\"", "reader.block is 0"),
            ("[[reader]]\nblock = 1", "has no unit"),
            ("[read]\nsegment_size = \"0B\"", "is 0"),
        ] {
            let text = if more.starts_with("policies") {
                format!("{more}\n{LEAST}")
            } else {
                format!("{LEAST}{more}\n")
            };
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{more}: {error}");
        }
        assert!(parse("").is_err());
    }

    #[test]
    fn a_trace_is_offsets_and_lengths() {
        let trace = parse_trace("time,offset,length\n0,4096,100\n1,0,7\n").unwrap();
        let ranges: Vec<_> = trace.iter().map(|read| read.range).collect();
        assert_eq!(ranges, [ByteRange::new(4096, 4196), ByteRange::new(0, 7)]);
        assert!(parse_trace("offset\n1\n").unwrap_err().to_string().contains("length"));
        let error = parse_trace("offset,length\n1,-1\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
