//! A scenario as it is written: TOML to a [`World`] and a [`Workload`].
//!
//! Everything has a default but the number of nodes, their speed and the file's
//! size, so the least scenario is six lines; `config/scenarios/` has some.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::world::{
    Change, Cluster, File, Gateway, Knowledge, Node, Reader, Reads, Recorded, Workload, World,
};
use super::{PolicyKind, Random, metadata};
use crate::config::units::{Rate, Size, Time};
use crate::telemetry::trace::Replay;
use crate::volume::{ByteRange, MAX_REPLICAS, ReplicaId, ReplicaSet};

/// Nodes of one scenario.
const MOST_NODES: usize = 1000;

/// Readers of one scenario.
const MOST_READERS: usize = 4096;

/// Chunks of one file.
const MOST_CHUNKS: u64 = 1 << 20;

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
    pub raw: bool,
    /// Traces that readers replay: the reader's index and the file.
    pub traces: Vec<(usize, PathBuf)>,
    /// Metadata runs, with their names.
    pub metadata: Vec<(String, metadata::Calls)>,
    /// How a file's chunks are placed.
    placing: Option<Placing>,
}

/// How a file's chunks are placed.
#[derive(Clone, Debug)]
struct Placing {
    chunk: u64,
    copies: usize,
    names: Vec<String>,
    head: Option<usize>,
    random: Option<Random>,
}

impl Placing {
    fn file(&mut self, size: u64) -> File {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        File::placed(size, self.chunk, self.copies, &names, self.head, self.random.as_mut())
    }
}

impl Scenario {
    /// Has the readers of a recording read, and nobody else, each handle for itself, of
    /// files that are as large as they were and placed as the scenario's.
    ///
    /// # Errors
    /// Where the scenario has no files, or the recording no reads or too many readers.
    pub fn replay(&mut self, recorded: &[Replay]) -> Result<(), String> {
        number("the number of recorded readers", recorded.len(), MOST_READERS)?;
        let (Some(world), Some(placing)) = (&mut self.world, &mut self.placing) else {
            return Err("the scenario has no [cluster] and [file] to replay on".to_owned());
        };
        if recorded.iter().any(|replay| replay.size / placing.chunk > MOST_CHUNKS) {
            return Err(format!("a recorded file has more than {MOST_CHUNKS} chunks"));
        }
        world.files.clear();
        self.workload.readers.clear();
        let first = recorded.iter().map(|replay| replay.start_us).min().unwrap_or(0);
        let mut files = BTreeMap::new();
        for replay in recorded {
            let file = *files.entry(replay.file).or_insert_with(|| {
                world.files.push(placing.file(replay.size));
                world.files.len() - 1
            });
            let read = |&(offset, length, pause): &(u64, u64, u64)| Recorded {
                range: ByteRange::at(offset, length),
                pause: Duration::from_micros(pause),
            };
            let reads = Reads::Trace(replay.reads.iter().map(read).collect());
            let start = Duration::from_micros(replay.start_us - first);
            let reader = Reader { reads, start, ..Reader::sequential(file) };
            self.workload.readers.push(reader);
        }
        if self.raw {
            let size = world.files[0].size;
            while world.files.len() < world.gateways.len() {
                world.files.push(placing.file(size));
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default = "one")]
    seed: u64,
    policies: Option<Vec<String>>,
    placement: Option<String>,
    cluster: Option<WrittenCluster>,
    #[serde(default)]
    node: Vec<WrittenNode>,
    #[serde(default)]
    replica: Vec<WrittenReplica>,
    file: Option<WrittenFile>,
    #[serde(default)]
    reader: Vec<WrittenReader>,
    #[serde(default)]
    change: Vec<WrittenChange>,
    #[serde(default)]
    read: WrittenRead,
    metadata: Option<WrittenMetadata>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCluster {
    nodes: usize,
    disk: Rate,
    network: Option<Rate>,
    replicas: Option<usize>,
    latency: Option<Time>,
    remote_from: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    number: usize,
    disk: Option<Rate>,
    network: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenReplica {
    node: usize,
    name: Option<String>,
    latency: Option<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    size: Size,
    chunk: Option<Size>,
    replication: Option<usize>,
    first: Option<usize>,
    #[serde(default)]
    random: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenReader {
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
struct WrittenChange {
    at: Time,
    node: usize,
    factor: f64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRead {
    segment_size: Option<Size>,
    readahead_max: Option<Size>,
    max_in_flight: Option<Size>,
    reads_per_replica: Option<usize>,
    budget: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMetadata {
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
    let written: Written = toml::from_str(text).map_err(|error| {
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
        workload: workload(&written)?,
        policies,
        raw,
        traces: Vec::new(),
        metadata: written.metadata.as_ref().map(calls).transpose()?.unwrap_or_default(),
        placing: None,
    };
    match (&written.cluster, &written.file) {
        (Some(cluster), Some(file)) => world(&written, cluster, file, &mut scenario)?,
        (None, None) if written.metadata.is_some() => {}
        _ => return Err("[cluster] and [file] are needed, or [metadata]".to_owned()),
    }
    Ok(scenario)
}

/// Reads a trace: CSV with the columns offset and length, bytes.
///
/// # Errors
/// Says in one line what is wrong.
pub fn parse_trace(text: &str) -> Result<Vec<Recorded>, String> {
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
        Ok(Recorded { range, pause: Duration::ZERO })
    };
    rows.records().map(row).collect()
}

fn workload(written: &Written) -> Result<Workload, String> {
    let usual = Workload::default();
    let read = &written.read;
    let size = |value: Option<Size>, default: u64| value.map_or(default, |size| size.0);
    let workload = Workload {
        segment: size(read.segment_size, usual.segment),
        readahead_max: size(read.readahead_max, usual.readahead_max),
        budget: size(read.budget, usual.budget),
        max_in_flight: size(read.max_in_flight, usual.max_in_flight),
        max_reads: read.reads_per_replica.unwrap_or(usual.max_reads),
        knowledge: match written.placement.as_deref() {
            None | Some("known") => Knowledge::Known,
            Some("learned") => Knowledge::Learned,
            Some("none") => Knowledge::None,
            Some(other) => {
                return Err(format!("placement {other:?} is not known; use known, learned, none"));
            }
        },
        seed: written.seed,
        readers: Vec::new(),
    };
    if workload.segment == 0 || workload.max_in_flight == 0 || workload.max_reads == 0 {
        return Err("a limit in [read] is 0; nothing could be read".to_owned());
    }
    Ok(workload)
}

fn number(what: &str, number: usize, most: usize) -> Result<usize, String> {
    match number {
        n if (1..=most).contains(&n) => Ok(n - 1),
        n => Err(format!("{what} {n} is out of range; use 1 to {most}")),
    }
}

fn world(
    written: &Written,
    cluster: &WrittenCluster,
    file: &WrittenFile,
    scenario: &mut Scenario,
) -> Result<(), String> {
    number("cluster.nodes", cluster.nodes, MOST_NODES)?;
    let network = cluster.network.map_or(1.25e9, |rate| rate.0 as f64);
    let mut nodes: Vec<Node> = (1..=cluster.nodes)
        .map(|i| Node { name: format!("n{i}"), disk: cluster.disk.0 as f64, network })
        .collect();
    for node in &written.node {
        let place = &mut nodes[number("node.number", node.number, cluster.nodes)?];
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
            node: number("replica.node", replica.node, cluster.nodes)?,
            latency: replica.latency.map_or(latency, |time| time.0),
        });
    }
    if gateways.is_empty() {
        let count = cluster.replicas.unwrap_or(cluster.nodes.min(MAX_REPLICAS));
        number("cluster.replicas", count, cluster.nodes.min(MAX_REPLICAS))?;
        gateways.extend((0..count).map(|node| Gateway {
            name: format!("r{}", node + 1),
            node,
            latency,
        }));
    }
    number("the number of replicas", gateways.len(), MAX_REPLICAS)?;
    let head = file.first.map(|first| number("file.first", first, cluster.nodes)).transpose()?;
    let copies = file.replication.unwrap_or(3.min(cluster.nodes));
    number("file.replication", copies, cluster.nodes)?;
    let chunk = file.chunk.map_or(256 << 20, |size| size.0);
    if file.size.0 == 0 || chunk == 0 || file.size.0 / chunk > MOST_CHUNKS {
        return Err(format!("file.size and file.chunk make no file of 1 to {MOST_CHUNKS} chunks"));
    }
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let random = file.random.then(|| Random::new(written.seed));
    let mut placing = Placing { chunk, copies, names, head, random };
    let mut files = vec![placing.file(file.size.0)];
    let mut changes = Vec::new();
    for change in &written.change {
        if !(0.0..=1000.0).contains(&change.factor) {
            return Err(format!("change.factor {} is out of range; use 0 to 1000", change.factor));
        }
        let node = number("change.node", change.node, cluster.nodes)?;
        changes.push(Change { at: change.at.0, node, factor: change.factor });
    }
    changes.sort_by_key(|change| change.at);
    let usual = [WrittenReader {
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
        for _ in 0..number("reader.count", written.count.unwrap_or(1), MOST_READERS)? + 1 {
            let readers = &mut scenario.workload.readers;
            if !readers.is_empty() && !written.same_file {
                files.push(placing.file(file.size.0));
            }
            if let Some(trace) = &written.trace {
                scenario.traces.push((readers.len(), trace.clone()));
            }
            readers.push(reader(written, files.len() - 1)?);
        }
    }
    number("the number of readers", scenario.workload.readers.len(), MOST_READERS)?;
    if scenario.raw {
        while files.len() < gateways.len() {
            files.push(placing.file(file.size.0));
        }
    }
    let cluster = Cluster::Nodes { nodes, head_first };
    scenario.placing = Some(placing);
    scenario.world = Some(World { cluster, gateways, files, changes });
    Ok(())
}

fn reader(written: &WrittenReader, file: usize) -> Result<Reader, String> {
    let block = written.block.map_or(1 << 20, |size| size.0);
    if block == 0 {
        return Err("reader.block is 0; nothing would be read".to_owned());
    }
    let reads = match (written.reads.as_deref(), written.number) {
        (None | Some("sequential"), None) => Reads::Sequential,
        (Some("random"), Some(number)) => Reads::Random(number),
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
    Ok(Reader { file, block, reads, start, burst, raw: None })
}

fn calls(written: &WrittenMetadata) -> Result<Vec<(String, metadata::Calls)>, String> {
    number("the number of metadata.times", written.times.len(), MAX_REPLICAS)?;
    let run = |pinned| metadata::Calls {
        times_us: written.times.iter().map(|time| (time.0.as_micros() as u64).max(1)).collect(),
        threads: written.threads.unwrap_or(8).max(1),
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
        let job = |replica: usize| Reader { raw: Some(replica), ..Reader::sequential(replica) };
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
