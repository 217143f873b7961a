//! Nodes, gateways, files and readers.

use std::time::Duration;

use super::Random;
use crate::placement::{ChunkMap, ChunkMapBuilder, LocalityMap};
use crate::volume::{ByteRange, ReplicaId, ReplicaSet};

/// A storage node.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageNode {
    /// As placement calls it.
    pub name: String,
    /// Bytes a second of its disks.
    pub disk: f64,
    /// Bytes a second of its network, each way.
    pub network: f64,
}

/// A replica: a mount through a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: String,
    /// The node it runs on, an index.
    pub node: usize,
    /// Time that a read takes besides what it waits for and is carried.
    pub latency: Duration,
}

/// A file and where its chunks are.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    /// Bytes.
    pub size: u64,
    /// Its chunks, with the nodes' names.
    pub chunks: ChunkMap,
}

/// How data gets from a disk to a gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum Cluster {
    /// Nodes with disks and networks; a gateway fetches what its node does not
    /// hold from a node that does.
    Nodes {
        /// The nodes.
        nodes: Vec<StorageNode>,
        /// Whether the first node named is always fetched from, or each in turn.
        always_first_node: bool,
    },
    /// Each replica delivers at the rates that were measured of it.
    Measured {
        /// For each replica.
        rates: Vec<LocalityRates>,
    },
}

/// What a replica was measured to deliver, bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalityRates {
    /// Of chunks that its node holds.
    pub local: f64,
    /// Of other chunks.
    pub remote: f64,
}

/// Something happens.
#[derive(Clone, Debug, PartialEq)]
pub struct RateChange {
    /// When.
    pub at: Duration,
    /// To which node; of a measured cluster, to which replica.
    pub node: usize,
    /// Its disk's and network's rate is so many times what it was at first; 0
    /// for a hang.
    pub factor: f64,
}

/// Everything but the readers.
#[derive(Clone, Debug)]
pub struct World {
    /// The cluster.
    pub cluster: Cluster,
    /// The replicas.
    pub gateways: Vec<Gateway>,
    /// The files.
    pub files: Vec<SimulatedFile>,
    /// What happens, in order of time.
    pub changes: Vec<RateChange>,
}

/// What a reader reads.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadPattern {
    /// From the start to the end.
    Sequential,
    /// So many blocks anywhere.
    Random(u64),
    /// These, one after the other.
    Trace(Vec<RecordedRead>),
}

/// A read that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRead {
    /// What was read.
    pub range: ByteRange,
    /// The time from the read before it, in which the reader did something else.
    pub pause: Duration,
}

/// A reader of one file, one read after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct ReaderSpec {
    /// Which file, an index.
    pub file: usize,
    /// Bytes of one read.
    pub block: u64,
    /// What it reads.
    pub reads: ReadPattern,
    /// When it begins.
    pub start: Duration,
    /// After so many bytes it pauses for so long.
    pub burst: Option<(u64, Duration)>,
    /// Through this replica alone, past fanfs, as one job on one NFS mount.
    pub raw_replica: Option<usize>,
}

/// What the daemon knows of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementKnowledge {
    /// Where every chunk is.
    Known,
    /// Nothing but what timing tells.
    Learned,
    /// Nothing.
    None,
}

/// The readers, and how the daemon is set up.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The readers.
    pub readers: Vec<ReaderSpec>,
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// Longest readahead window, bytes.
    pub readahead_max: u64,
    /// Most bytes of file data in memory.
    pub budget: u64,
    /// Most bytes in flight to one replica.
    pub max_in_flight: u64,
    /// Most reads in flight to one replica.
    pub max_reads: usize,
    /// What is known of placement.
    pub knowledge: PlacementKnowledge,
    /// Seeds whatever is random.
    pub seed: u64,
}

impl Default for Workload {
    /// The daemon's defaults, without readers.
    fn default() -> Self {
        Self {
            readers: Vec::new(),
            segment_size: 1 << 20,
            readahead_max: 64 << 20,
            budget: 256 << 20,
            max_in_flight: 32 << 20,
            max_reads: 6,
            knowledge: PlacementKnowledge::Known,
            seed: 1,
        }
    }
}

impl ReaderSpec {
    /// A reader of a whole file in blocks of 1 MiB, from the beginning on.
    pub fn sequential(file: usize) -> Self {
        Self {
            file,
            block: 1 << 20,
            reads: ReadPattern::Sequential,
            start: Duration::ZERO,
            burst: None,
            raw_replica: None,
        }
    }
}

impl World {
    /// The replicas on each of `file`'s chunks' nodes.
    pub fn locality_map(&self, file: &SimulatedFile) -> LocalityMap {
        let on = |node: usize| {
            let name = &*file.chunks.nodes()[node];
            let here =
                self.gateways.iter().enumerate().filter(|(_, g)| self.is_gateway_on(g, name));
            here.fold(ReplicaSet::EMPTY, |set, (i, _)| set.with(ReplicaId::new(i)))
        };
        file.chunks.to_locality_map(on)
    }

    fn is_gateway_on(&self, gateway: &Gateway, node: &str) -> bool {
        match &self.cluster {
            Cluster::Nodes { nodes, .. } => nodes[gateway.node].name == node,
            Cluster::Measured { .. } => gateway.name == node,
        }
    }

    /// What each node name of `file`'s chunks is among the cluster's nodes.
    pub(super) fn node_indices(&self, file: &SimulatedFile) -> Vec<Option<usize>> {
        let place = |name: &str| match &self.cluster {
            Cluster::Nodes { nodes, .. } => nodes.iter().position(|node| node.name == name),
            Cluster::Measured { .. } => None,
        };
        file.chunks.nodes().iter().map(|name| place(name)).collect()
    }
}

/// How files are cut into chunks, and which nodes hold those.
#[derive(Clone, Debug)]
pub struct ChunkPlacement {
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Nodes that hold each chunk.
    pub copies: usize,
    /// The nodes' names.
    pub nodes: Vec<String>,
    /// The node that has the first copy of every chunk, an index.
    pub first_node: Option<usize>,
}

impl ChunkPlacement {
    /// A file of `size` bytes: the copies without a fixed node are on the nodes in turn or,
    /// with a generator, on any.
    ///
    /// # Panics
    /// Where there are no nodes.
    pub fn place_file(&self, size: u64, mut random: Option<&mut Random>) -> SimulatedFile {
        let Self { chunk, nodes, first_node, .. } = self;
        let copies = self.copies.clamp(1, nodes.len());
        let others: Vec<usize> =
            (0..nodes.len()).filter(|node| Some(*node) != *first_node).collect();
        let mut builder = ChunkMapBuilder::new();
        for index in 0..size.div_ceil((*chunk).max(1)) {
            let mut holders: Vec<usize> = Vec::new();
            holders.extend(*first_node);
            let mut turn = index as usize * (copies - usize::from(first_node.is_some()));
            while holders.len() < copies {
                let node = match &mut random {
                    Some(random) => others[random.below(others.len() as u64) as usize],
                    None => others[turn % others.len()],
                };
                turn += 1;
                if !holders.contains(&node) {
                    holders.push(node);
                }
            }
            let range = ByteRange::at(index * chunk, *chunk).intersect(ByteRange::new(0, size));
            let placed = builder.add_chunk(range, holders.iter().map(|node| &*nodes[*node]));
            // The chunks are in order, and within the limits of any sensible scenario.
            if placed.is_err() {
                break;
            }
        }
        SimulatedFile { size, chunks: builder.finish() }
    }
}
