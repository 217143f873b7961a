//! Turns a scenario's keys into a [`World`], a [`Workload`] and metadata runs.

use std::time::Duration;

use super::error::ScenarioError;
use super::raw::{
    ChangeToml, ClusterToml, FileToml, MetadataToml, NodeToml, ReaderToml, ReplicaToml,
    ScenarioToml,
};
use super::{FilePlacer, MAX_CHUNKS, MAX_NODES, MAX_READERS, MetadataRun, ReaderTrace, Scenario};
use crate::config::units::Size;
use crate::simulate::Random;
use crate::simulate::metadata::MetadataWorkload;
use crate::simulate::world::{
    ChunkPlacement, Cluster, Gateway, PlacementKnowledge, RateChange, ReadPattern, ReaderSpec,
    StorageNode, Workload, World,
};
use crate::volume::{MAX_REPLICAS, ReplicaId, ReplicaSet};

type Result<T> = std::result::Result<T, ScenarioError>;

/// The index of an item that the scenario counts from 1 as `number`.
pub(super) fn checked_index(what: &'static str, number: usize, max: usize) -> Result<usize> {
    match number {
        n if (1..=max).contains(&n) => Ok(n - 1),
        number => Err(ScenarioError::OutOfRange { what, number, max }),
    }
}

fn unknown_word(key: &'static str, value: &str, known: &str) -> ScenarioError {
    ScenarioError::UnknownWord { key, value: value.to_owned(), known: known.to_owned() }
}

pub(super) fn build_workload(written: &ScenarioToml) -> Result<Workload> {
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
            Some(other) => return Err(unknown_word("placement", other, "known, learned, none")),
        },
        seed: written.seed,
        readers: Vec::new(),
    };
    if workload.segment_size == 0 || workload.max_in_flight == 0 || workload.max_reads == 0 {
        return Err(ScenarioError::ZeroReadLimit);
    }
    Ok(workload)
}

/// Adds the cluster, its files and their readers.
pub(super) fn build_world(
    written: &ScenarioToml,
    cluster: &ClusterToml,
    file: &FileToml,
    scenario: &mut Scenario,
) -> Result<()> {
    let nodes = build_nodes(cluster, &written.node)?;
    let always_first_node = match cluster.remote_from.as_deref() {
        None | Some("any") => false,
        Some("first") => true,
        Some(other) => return Err(unknown_word("remote_from", other, "any, first")),
    };
    let gateways = build_gateways(cluster, &written.replica)?;
    let mut placer = build_placer(file, &nodes, written.seed)?;
    let size = file.size.0;
    let mut files = vec![placer.place_file(size)];
    let changes = build_changes(&written.change, cluster.nodes)?;
    let usual = [ReaderToml::default()];
    let readers = if written.reader.is_empty() { &usual[..] } else { &written.reader };
    for reader in readers {
        add_readers(reader, scenario, |has_own_file| {
            if has_own_file {
                files.push(placer.place_file(size));
            }
            files.len() - 1
        })?;
    }
    checked_index("the number of readers", scenario.workload.readers.len(), MAX_READERS)?;
    if scenario.runs_raw {
        placer.fill_up(&mut files, gateways.len(), size);
    }
    let cluster = Cluster::Nodes { nodes, always_first_node };
    scenario.placer = Some(placer);
    scenario.world = Some(World { cluster, gateways, files, changes });
    Ok(())
}

fn build_nodes(cluster: &ClusterToml, exceptions: &[NodeToml]) -> Result<Vec<StorageNode>> {
    checked_index("cluster.nodes", cluster.nodes, MAX_NODES)?;
    let network = cluster.network.map_or(1.25e9, |rate| rate.0 as f64);
    let mut nodes: Vec<StorageNode> = (1..=cluster.nodes)
        .map(|i| StorageNode { name: format!("n{i}"), disk: cluster.disk.0 as f64, network })
        .collect();
    for exception in exceptions {
        let node = &mut nodes[checked_index("node.number", exception.number, cluster.nodes)?];
        node.disk = exception.disk.map_or(node.disk, |rate| rate.0 as f64);
        node.network = exception.network.map_or(node.network, |rate| rate.0 as f64);
    }
    if nodes.iter().any(|node| node.disk < 1.0 || node.network < 1.0) {
        return Err(ScenarioError::ZeroNodeRate);
    }
    Ok(nodes)
}

fn build_gateways(cluster: &ClusterToml, replicas: &[ReplicaToml]) -> Result<Vec<Gateway>> {
    let latency = cluster.latency.map_or(Duration::from_micros(300), |time| time.0);
    let mut gateways = Vec::new();
    for (i, replica) in replicas.iter().enumerate() {
        gateways.push(Gateway {
            name: replica.name.clone().unwrap_or_else(|| format!("r{}", i + 1)),
            node: checked_index("replica.node", replica.node, cluster.nodes)?,
            latency: replica.latency.map_or(latency, |time| time.0),
        });
    }
    if gateways.is_empty() {
        let max = cluster.nodes.min(MAX_REPLICAS);
        let count = cluster.replicas.unwrap_or(max);
        checked_index("cluster.replicas", count, max)?;
        let gateway = |node| Gateway { name: format!("r{}", node + 1), node, latency };
        gateways.extend((0..count).map(gateway));
    }
    checked_index("the number of replicas", gateways.len(), MAX_REPLICAS)?;
    Ok(gateways)
}

fn build_placer(file: &FileToml, nodes: &[StorageNode], seed: u64) -> Result<FilePlacer> {
    let first_node =
        file.first.map(|first| checked_index("file.first", first, nodes.len())).transpose()?;
    let copies = file.replication.unwrap_or(3.min(nodes.len()));
    checked_index("file.replication", copies, nodes.len())?;
    let chunk = file.chunk.map_or(256 << 20, |size| size.0);
    if file.size.0 == 0 || chunk == 0 || file.size.0 / chunk > MAX_CHUNKS {
        return Err(ScenarioError::ChunkCount { max: MAX_CHUNKS });
    }
    let nodes = nodes.iter().map(|node| node.name.clone()).collect();
    Ok(FilePlacer {
        placement: ChunkPlacement { chunk, copies, nodes, first_node },
        random: file.random.then(|| Random::new(seed)),
    })
}

fn build_changes(written: &[ChangeToml], nodes: usize) -> Result<Vec<RateChange>> {
    let mut changes = Vec::new();
    for change in written {
        if !(0.0..=1000.0).contains(&change.factor) {
            return Err(ScenarioError::ChangeFactor { factor: change.factor });
        }
        let node = checked_index("change.node", change.node, nodes)?;
        changes.push(RateChange { at: change.at.0, node, factor: change.factor });
    }
    changes.sort_by_key(|change| change.at);
    Ok(changes)
}

/// Adds the readers that `written` describes. `choose_file` returns the index of the next reader's
/// file. Its argument says whether that is a new file or the last reader's.
fn add_readers(
    written: &ReaderToml,
    scenario: &mut Scenario,
    mut choose_file: impl FnMut(bool) -> usize,
) -> Result<()> {
    let readers = &mut scenario.workload.readers;
    for _ in 0..=checked_index("reader.count", written.count.unwrap_or(1), MAX_READERS)? {
        let file = choose_file(!readers.is_empty() && !written.same_file);
        if let Some(trace) = &written.trace {
            scenario.traces.push(ReaderTrace { reader: readers.len(), file: trace.clone() });
        }
        readers.push(build_reader(written, file)?);
    }
    Ok(())
}

fn build_reader(written: &ReaderToml, file: usize) -> Result<ReaderSpec> {
    let block = written.block.map_or(1 << 20, |size| size.0);
    if block == 0 {
        return Err(ScenarioError::ZeroBlock);
    }
    let reads = match (written.reads.as_deref(), written.number) {
        (None | Some("sequential"), None) => ReadPattern::Sequential,
        (Some("random"), Some(number)) => ReadPattern::Random(number),
        (Some("random"), None) => return Err(ScenarioError::MissingReadCount),
        (None | Some("sequential"), Some(_)) => return Err(ScenarioError::UnusedReadCount),
        (Some(other), _) => return Err(unknown_word("reads", other, "sequential, random")),
    };
    let burst = match (written.burst, written.pause) {
        (Some(burst), Some(pause)) => Some((burst.0, pause.0)),
        (None, None) => None,
        _ => return Err(ScenarioError::BurstWithoutPause),
    };
    let start = written.start.map_or(Duration::ZERO, |time| time.0);
    Ok(ReaderSpec { file, block, reads, start, burst, raw_replica: None })
}

pub(super) fn build_metadata_runs(written: &MetadataToml) -> Result<Vec<MetadataRun>> {
    checked_index("the number of metadata.times", written.times.len(), MAX_REPLICAS)?;
    let workload = |pinned| MetadataWorkload {
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
    let spread = MetadataRun { name: "spread".to_owned(), workload: workload(ReplicaSet::EMPTY) };
    let pinned = (0..written.times.len()).map(|i| MetadataRun {
        name: format!("pinned to r{}", i + 1),
        workload: workload(ReplicaSet::EMPTY.with(ReplicaId::new(i))),
    });
    Ok(std::iter::once(spread).chain(pinned).collect())
}
