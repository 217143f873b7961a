//! A scenario as it is written: TOML to a [`World`] and a [`Workload`].
//!
//! Everything has a default but the number of nodes, their speed and the file's
//! size, so the least scenario is six lines; `config/scenarios/` has some.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::world::{
    Cluster, Gateway, PlacementKnowledge, RateChange, ReadPattern, ReaderSpec, RecordedRead,
    SimulatedFile, StorageNode, Workload, World,
};
use super::{PolicyKind, Random, metadata};
use crate::config::units::{Rate, Size, Time};
use crate::telemetry::trace::HandleReplay;
use crate::volume::{ByteRange, MAX_REPLICAS, ReplicaId, ReplicaSet};

/// Nodes of one scenario.
const MAX_NODES: usize = 1000;

/// Readers of one scenario.
const MAX_READERS: usize = 4096;

/// Chunks of one file.
const MAX_CHUNKS: u64 = 1 << 20;

/// A scenario, read and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The cluster, if data is read.
    pub world: Option<World>,
    /// Who reads it.
    pub workload: Workload,
    /// What is compared.
    pub policies: Vec<PolicyKind>,
    /// Whether one raw job for each replica is run as well.
    pub runs_raw: bool,
    /// Traces that readers replay: the reader's index and the file.
    pub traces: Vec<(usize, PathBuf)>,
    /// Metadata runs, with their names.
    pub metadata: Vec<(String, metadata::MetadataWorkload)>,
    /// How a file's chunks are placed.
    placer: Option<FilePlacer>,
}

/// How a file's chunks are placed.
#[derive(Clone, Debug)]
struct FilePlacer {
    chunk: u64,
    copy_count: usize,
    node_names: Vec<String>,
    head: Option<usize>,
    random: Option<Random>,
}

impl FilePlacer {
    fn place_file(&mut self, size: u64) -> SimulatedFile {
        let names: Vec<&str> = self.node_names.iter().map(String::as_str).collect();
        SimulatedFile::placed(
            size,
            self.chunk,
            self.copy_count,
            &names,
            self.head,
            self.random.as_mut(),
        )
    }
}

impl Scenario {
    /// Has the readers of a recording read, and nobody else, each handle for itself, of
    /// files that are as large as they were and placed as the scenario's.
    ///
    /// # Errors
    /// Where the scenario has no files, or the recording no reads or too many readers.
    pub fn replay(&mut self, recorded: &[HandleReplay]) -> Result<(), String> {
        checked_index("the number of recorded readers", recorded.len(), MAX_READERS)?;
        let (Some(world), Some(placing)) = (&mut self.world, &mut self.placer) else {
            return Err("the scenario has no [cluster] and [file] to replay on".to_owned());
        };
        if recorded.iter().any(|replay| replay.size / placing.chunk > MAX_CHUNKS) {
            return Err(format!("a recorded file has more than {MAX_CHUNKS} chunks"));
        }
        world.files.clear();
        self.workload.readers.clear();
        let first = recorded.iter().map(|replay| replay.start_us).min().unwrap_or(0);
        let mut files = BTreeMap::new();
        for replay in recorded {
            let file = *files.entry(replay.file).or_insert_with(|| {
                world.files.push(placing.place_file(replay.size));
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
            while world.files.len() < world.gateways.len() {
                world.files.push(placing.place_file(size));
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioToml {
    #[serde(default = "one")]
    seed: u64,
    policies: Option<Vec<String>>,
    placement: Option<String>,
    cluster: Option<ClusterToml>,
    #[serde(default)]
    node: Vec<NodeToml>,
    #[serde(default)]
    replica: Vec<ReplicaToml>,
    file: Option<FileToml>,
    #[serde(default)]
    reader: Vec<ReaderToml>,
    #[serde(default)]
    change: Vec<ChangeToml>,
    #[serde(default)]
    read: ReadToml,
    metadata: Option<MetadataToml>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterToml {
    nodes: usize,
    disk: Rate,
    network: Option<Rate>,
    replicas: Option<usize>,
    latency: Option<Time>,
    remote_from: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeToml {
    number: usize,
    disk: Option<Rate>,
    network: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaToml {
    node: usize,
    name: Option<String>,
    latency: Option<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileToml {
    size: Size,
    chunk: Option<Size>,
    replication: Option<usize>,
    first: Option<usize>,
    #[serde(default)]
    random: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReaderToml {
    count: Option<usize>,
    #[serde(default)]
    same_file: bool,
    reads: Option<String>,
    number: Option<u64>,
    block: Option<Size>,
    start: Option<Time>,
    burst: Option<Size>,
    pause: Option<Time>,
    trace: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeToml {
    at: Time,
    node: usize,
    factor: f64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadToml {
    segment_size: Option<Size>,
    readahead_max: Option<Size>,
    max_in_flight: Option<Size>,
    reads_per_replica: Option<usize>,
    budget: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetadataToml {
    calls: u64,
    times: Vec<Time>,
    workers: Option<usize>,
    threads: Option<usize>,
    directories: Option<u64>,
}

/// Reads a scenario.
///
/// # Errors
/// Says in one line what is wrong, and in which line of the file where it can.
pub fn parse(text: &str) -> Result<Scenario, String> {
    let written: ScenarioToml = toml::from_str(text).map_err(|error| {
        let before = |at: usize| text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        let line = error.span().map(|span| format!("line {}: ", before(span.start) + 1));
        format!("{}{}", line.unwrap_or_default(), error.message().replace('\n', "; "))
    })?;
    let mut policies = Vec::new();
    let mut raw = false;
    for name in written.policies.as_deref().unwrap_or(&[]) {
        match PolicyKind::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => policies.push(kind),
            None if name == "raw" => raw = true,
            None => {
                let known = PolicyKind::ALL.map(PolicyKind::name).join(", ");
                return Err(format!("policy {name:?} is not known; use raw, {known}"));
            }
        }
    }
    if written.policies.is_none() {
        policies.extend(PolicyKind::ALL);
    }
    let mut scenario = Scenario {
        world: None,
        workload: build_workload(&written)?,
        policies,
        runs_raw: raw,
        traces: Vec::new(),
        metadata: written
            .metadata
            .as_ref()
            .map(build_metadata_runs)
            .transpose()?
            .unwrap_or_default(),
        placer: None,
    };
    match (&written.cluster, &written.file) {
        (Some(cluster), Some(file)) => build_world(&written, cluster, file, &mut scenario)?,
        (None, None) if written.metadata.is_some() => {}
        _ => return Err("[cluster] and [file] are needed, or [metadata]".to_owned()),
    }
    Ok(scenario)
}

/// Reads a trace: CSV with the columns offset and length, bytes.
///
/// # Errors
/// Says in one line what is wrong.
pub fn parse_trace(text: &str) -> Result<Vec<RecordedRead>, String> {
    let mut rows = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = rows.headers().map_err(|error| error.to_string())?.clone();
    let column = |name: &str| {
        header.iter().position(|h| h == name).ok_or(format!("line 1: there is no column {name:?}"))
    };
    let (offset, length) = (column("offset")?, column("length")?);
    let row = |row: csv::Result<csv::StringRecord>| {
        let row = row.map_err(|error| error.to_string().replace('\n', " "))?;
        let line = row.position().map_or(0, csv::Position::line);
        let number = |column: usize| {
            row[column].parse::<u64>().map_err(|e| format!("line {line}: {:?}: {e}", &row[column]))
        };
        let range = ByteRange::at(number(offset)?, number(length)?);
        Ok(RecordedRead { range, pause: Duration::ZERO })
    };
    rows.records().map(row).collect()
}

fn build_workload(written: &ScenarioToml) -> Result<Workload, String> {
    let usual = Workload::default();
    let read = &written.read;
    let size = |value: Option<Size>, default: u64| value.map_or(default, |size| size.0);
    let workload = Workload {
        segment_size: size(read.segment_size, usual.segment_size),
        readahead_max: size(read.readahead_max, usual.readahead_max),
        budget: size(read.budget, usual.budget),
        max_in_flight: size(read.max_in_flight, usual.max_in_flight),
        max_reads: read.reads_per_replica.unwrap_or(usual.max_reads),
        knowledge: match written.placement.as_deref() {
            None | Some("known") => PlacementKnowledge::Known,
            Some("learned") => PlacementKnowledge::Learned,
            Some("none") => PlacementKnowledge::None,
            Some(other) => {
                return Err(format!("placement {other:?} is not known; use known, learned, none"));
            }
        },
        seed: written.seed,
        readers: Vec::new(),
    };
    if workload.segment_size == 0 || workload.max_in_flight == 0 || workload.max_reads == 0 {
        return Err("a limit in [read] is 0; nothing could be read".to_owned());
    }
    Ok(workload)
}

fn checked_index(what: &str, number: usize, most: usize) -> Result<usize, String> {
    match number {
        n if (1..=most).contains(&n) => Ok(n - 1),
        n => Err(format!("{what} {n} is out of range; use 1 to {most}")),
    }
}

fn build_world(
    written: &ScenarioToml,
    cluster: &ClusterToml,
    file: &FileToml,
    scenario: &mut Scenario,
) -> Result<(), String> {
    checked_index("cluster.nodes", cluster.nodes, MAX_NODES)?;
    let network = cluster.network.map_or(1.25e9, |rate| rate.0 as f64);
    let mut nodes: Vec<StorageNode> = (1..=cluster.nodes)
        .map(|i| StorageNode { name: format!("n{i}"), disk: cluster.disk.0 as f64, network })
        .collect();
    for node in &written.node {
        let place = &mut nodes[checked_index("node.number", node.number, cluster.nodes)?];
        place.disk = node.disk.map_or(place.disk, |rate| rate.0 as f64);
        place.network = node.network.map_or(place.network, |rate| rate.0 as f64);
    }
    if nodes.iter().any(|node| node.disk < 1.0 || node.network < 1.0) {
        return Err("a node has a rate of 0; let a [[change]] make it hang".to_owned());
    }
    let latency = cluster.latency.map_or(Duration::from_micros(300), |time| time.0);
    let head_first = match cluster.remote_from.as_deref() {
        None | Some("any") => false,
        Some("first") => true,
        Some(other) => return Err(format!("remote_from {other:?} is not known; use any, first")),
    };
    let mut gateways = Vec::new();
    for (i, replica) in written.replica.iter().enumerate() {
        gateways.push(Gateway {
            name: replica.name.clone().unwrap_or_else(|| format!("r{}", i + 1)),
            node: checked_index("replica.node", replica.node, cluster.nodes)?,
            latency: replica.latency.map_or(latency, |time| time.0),
        });
    }
    if gateways.is_empty() {
        let count = cluster.replicas.unwrap_or(cluster.nodes.min(MAX_REPLICAS));
        checked_index("cluster.replicas", count, cluster.nodes.min(MAX_REPLICAS))?;
        gateways.extend((0..count).map(|node| Gateway {
            name: format!("r{}", node + 1),
            node,
            latency,
        }));
    }
    checked_index("the number of replicas", gateways.len(), MAX_REPLICAS)?;
    let head =
        file.first.map(|first| checked_index("file.first", first, cluster.nodes)).transpose()?;
    let copies = file.replication.unwrap_or(3.min(cluster.nodes));
    checked_index("file.replication", copies, cluster.nodes)?;
    let chunk = file.chunk.map_or(256 << 20, |size| size.0);
    if file.size.0 == 0 || chunk == 0 || file.size.0 / chunk > MAX_CHUNKS {
        return Err(format!("file.size and file.chunk make no file of 1 to {MAX_CHUNKS} chunks"));
    }
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let random = file.random.then(|| Random::new(written.seed));
    let mut placing = FilePlacer { chunk, copy_count: copies, node_names: names, head, random };
    let mut files = vec![placing.place_file(file.size.0)];
    let mut changes = Vec::new();
    for change in &written.change {
        if !(0.0..=1000.0).contains(&change.factor) {
            return Err(format!("change.factor {} is out of range; use 0 to 1000", change.factor));
        }
        let node = checked_index("change.node", change.node, cluster.nodes)?;
        changes.push(RateChange { at: change.at.0, node, factor: change.factor });
    }
    changes.sort_by_key(|change| change.at);
    let usual = [ReaderToml {
        count: None,
        same_file: false,
        reads: None,
        number: None,
        block: None,
        start: None,
        burst: None,
        pause: None,
        trace: None,
    }];
    let written = if written.reader.is_empty() { &usual[..] } else { &written.reader };
    for written in written {
        for _ in 0..checked_index("reader.count", written.count.unwrap_or(1), MAX_READERS)? + 1 {
            let readers = &mut scenario.workload.readers;
            if !readers.is_empty() && !written.same_file {
                files.push(placing.place_file(file.size.0));
            }
            if let Some(trace) = &written.trace {
                scenario.traces.push((readers.len(), trace.clone()));
            }
            readers.push(build_reader(written, files.len() - 1)?);
        }
    }
    checked_index("the number of readers", scenario.workload.readers.len(), MAX_READERS)?;
    if scenario.runs_raw {
        while files.len() < gateways.len() {
            files.push(placing.place_file(file.size.0));
        }
    }
    let cluster = Cluster::Nodes { nodes, always_first_node: head_first };
    scenario.placer = Some(placing);
    scenario.world = Some(World { cluster, gateways, files, changes });
    Ok(())
}

fn build_reader(written: &ReaderToml, file: usize) -> Result<ReaderSpec, String> {
    let block = written.block.map_or(1 << 20, |size| size.0);
    if block == 0 {
        return Err("reader.block is 0; nothing would be read".to_owned());
    }
    let reads = match (written.reads.as_deref(), written.number) {
        (None | Some("sequential"), None) => ReadPattern::Sequential,
        (Some("random"), Some(number)) => ReadPattern::Random(number),
        (Some("random"), None) => return Err("reader.number is missing: how many reads".to_owned()),
        (None | Some("sequential"), Some(_)) => {
            return Err("reader.number is for random reads; remove it".to_owned());
        }
        (Some(other), _) => {
            return Err(format!("reads {other:?} is not known; use sequential, random"));
        }
    };
    let burst = match (written.burst, written.pause) {
        (Some(burst), Some(pause)) => Some((burst.0, pause.0)),
        (None, None) => None,
        _ => return Err("reader.burst and reader.pause go together".to_owned()),
    };
    let start = written.start.map_or(Duration::ZERO, |time| time.0);
    Ok(ReaderSpec { file, block, reads, start, burst, raw_replica: None })
}

fn build_metadata_runs(
    written: &MetadataToml,
) -> Result<Vec<(String, metadata::MetadataWorkload)>, String> {
    checked_index("the number of metadata.times", written.times.len(), MAX_REPLICAS)?;
    let run = |pinned| metadata::MetadataWorkload {
        call_times_us: written
            .times
            .iter()
            .map(|time| (time.0.as_micros() as u64).max(1))
            .collect(),
        threads_per_replica: written.threads.unwrap_or(8).max(1),
        workers: written.workers.unwrap_or(8).max(1),
        calls: written.calls,
        directories: written.directories.unwrap_or(1),
        pinned,
    };
    let mut runs = vec![("spread".to_owned(), run(ReplicaSet::EMPTY))];
    for i in 0..written.times.len() {
        let pinned = ReplicaSet::EMPTY.with(ReplicaId::new(i));
        runs.push((format!("pinned to r{}", i + 1), run(pinned)));
    }
    Ok(runs)
}

impl Scenario {
    /// The workload of one raw job a replica, each with a file of its own.
    pub fn raw_workload(&self) -> Workload {
        let replicas = self.world.as_ref().map_or(0, |world| world.gateways.len());
        let job = |replica: usize| ReaderSpec {
            raw_replica: Some(replica),
            ..ReaderSpec::sequential(replica)
        };
        Workload { readers: (0..replicas).map(job).collect(), ..self.workload.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "[cluster]\nnodes = 3\ndisk = \"247MB/s\"\n[file]\nsize = \"1GiB\"\n";

    #[test]
    fn the_least_scenario_has_defaults_for_all_else() {
        let scenario = parse(LEAST).unwrap();
        let world = scenario.world.unwrap();
        assert_eq!((world.gateways.len(), world.files.len()), (3, 1));
        assert_eq!(world.files[0].chunks.chunks().count(), 4);
        assert_eq!(scenario.policies.len(), 4);
        assert_eq!(scenario.workload.readers.len(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line() {
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
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{more}: {error}");
        }
        assert!(parse("").is_err());
    }

    #[test]
    fn a_trace_is_offsets_and_lengths() {
        let trace = parse_trace("time,offset,length\n0,4096,100\n1,0,7\n").unwrap();
        let ranges: Vec<_> = trace.iter().map(|read| read.range).collect();
        assert_eq!(ranges, [ByteRange::new(4096, 4196), ByteRange::new(0, 7)]);
        assert!(parse_trace("offset\n1\n").unwrap_err().contains("length"));
        assert!(parse_trace("offset,length\n1,-1\n").unwrap_err().contains("line 2"));
    }
}
