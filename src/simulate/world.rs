//! The simulated world: nodes, gateways, files and readers.

use std::time::Duration;

use super::Random;
use crate::placement::{ChunkMap, ChunkMapBuilder, LocalityMap};
use crate::volume::{ByteRange, ReplicaId, ReplicaSet};

/// A storage node.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageNode {
    /// The name that placement uses.
    pub name: String,
    /// The rate of its disks, bytes per second.
    pub disk: f64,
    /// The rate of its network in each direction, bytes per second.
    pub network: f64,
}

/// A replica: a mount through a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: String,
    /// The index of the node that it runs on.
    pub node: usize,
    /// The time of a read in addition to queueing and transfer.
    pub latency: Duration,
}

/// A file and the placement of its chunks.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    /// The size, bytes.
    pub size: u64,
    /// Its chunks, with the nodes' names.
    pub chunks: ChunkMap,
}

/// How data gets from a disk to a gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum Cluster {
    /// Nodes with disks and networks. A gateway whose node does not hold a chunk fetches it from a
    /// node that does.
    Nodes {
        /// The nodes.
        nodes: Vec<StorageNode>,
        /// Whether a gateway always fetches from the first node named for a chunk, or from each in
        /// turn.
        always_first_node: bool,
    },
    /// Each replica delivers at its measured rates.
    Measured {
        /// The rates of each replica.
        rates: Vec<LocalityRates>,
    },
}

/// The measured rates of a replica, bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalityRates {
    /// For chunks that its node holds.
    pub local: f64,
    /// For other chunks.
    pub remote: f64,
}

/// A change of rates during the run.
#[derive(Clone, Debug, PartialEq)]
pub struct RateChange {
    /// The time of the change, since the start.
    pub at: Duration,
    /// The index of the node that changes; in a measured cluster, of the replica.
    pub node: usize,
    /// The factor on the original rates of its disk and network; 0 for a hang.
    pub factor: f64,
}

/// The cluster, its files and its changes: everything except the readers.
#[derive(Clone, Debug)]
pub struct World {
    /// The cluster.
    pub cluster: Cluster,
    /// The replicas.
    pub gateways: Vec<Gateway>,
    /// The files.
    pub files: Vec<SimulatedFile>,
    /// The changes, in order of time.
    pub changes: Vec<RateChange>,
}

/// Which blocks a reader reads.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadPattern {
    /// The whole file, from start to end.
    Sequential,
    /// This number of blocks, at random offsets.
    Random(u64),
    /// These reads, one after another.
    Trace(Vec<RecordedRead>),
}

/// A read of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRead {
    /// The range that was read.
    pub range: ByteRange,
    /// The reader's pause between the read before and this one.
    pub pause: Duration,
}

/// A reader of one file, one read after another.
#[derive(Clone, Debug, PartialEq)]
pub struct ReaderSpec {
    /// The index of its file.
    pub file: usize,
    /// Bytes of one read.
    pub block: u64,
    /// Which blocks it reads.
    pub reads: ReadPattern,
    /// When it begins, since the start of the run.
    pub start: Duration,
    /// A pause of this length after each burst of this many bytes.
    pub burst: Option<(u64, Duration)>,
    /// The index of the only replica that it reads, without fanfs, as one job on one NFS mount
    /// does.
    pub raw_replica: Option<usize>,
}

/// How much the daemon knows of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementKnowledge {
    /// The placement of every chunk.
    Known,
    /// Only the facts that it learns from the times of reads.
    Learned,
    /// Nothing, and it learns nothing.
    None,
}

/// The readers and the daemon's settings.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The readers.
    pub readers: Vec<ReaderSpec>,
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// The longest readahead window, bytes.
    pub readahead_max: u64,
    /// The most bytes of file data in memory.
    pub budget: u64,
    /// The most bytes in flight to one replica.
    pub max_in_flight: u64,
    /// The most reads in flight to one replica.
    pub max_reads: usize,
    /// How much the daemon knows of placement.
    pub knowledge: PlacementKnowledge,
    /// The seed of everything that is random.
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
    /// A reader of a whole file from start to end, in blocks of 1 MiB.
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
    /// The replicas on the nodes of each of `file`'s chunks.
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

    /// For each node name of `file`'s chunks, its index among the cluster's nodes.
    pub(super) fn node_indices(&self, file: &SimulatedFile) -> Vec<Option<usize>> {
        let place = |name: &str| match &self.cluster {
            Cluster::Nodes { nodes, .. } => nodes.iter().position(|node| node.name == name),
            Cluster::Measured { .. } => None,
        };
        file.chunks.nodes().iter().map(|name| place(name)).collect()
    }
}

/// How files are cut into chunks, and which nodes hold the chunks.
#[derive(Clone, Debug)]
pub struct ChunkPlacement {
    /// The size of a chunk, bytes.
    pub chunk: u64,
    /// The number of nodes that hold each chunk.
    pub copies: usize,
    /// The nodes' names.
    pub nodes: Vec<String>,
    /// The index of the node that holds the first copy of every chunk, if there is one.
    pub first_node: Option<usize>,
}

impl ChunkPlacement {
    /// Places a file of `size` bytes. Copies without a fixed node go to the nodes in turn or, with
    /// a generator, to random nodes.
    ///
    /// # Panics
    /// If there are no nodes.
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
            // `add_chunk` fails on chunks out of order, which these are not, and on too many
            // chunks.
            if placed.is_err() {
                break;
            }
        }
        SimulatedFile { size, chunks: builder.finish() }
    }
}
