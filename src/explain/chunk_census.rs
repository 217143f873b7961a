//! Counts a file's chunks by copies, by node and by replica.

use std::collections::BTreeMap;

use super::{ExplainFacts, ListedChunk, MAX_LISTED_CHUNKS, NodeShare, ReplicaFacts, ReplicaShare};
use crate::placement::ChunkMap;
use crate::placement::chunks::Chunk;

/// The counts of one node.
#[derive(Clone, Default)]
struct NodeCount {
    chunks: u64,
    /// Chunks whose copy on it is read.
    read: u64,
    bytes: u64,
}

/// The counts of one replica's node.
#[derive(Clone, Default)]
struct ReplicaCount {
    /// Chunks that it reads there.
    chunks: u64,
    bytes: u64,
    /// Bytes of which only a spare copy is there.
    spare_bytes: u64,
}

/// The counts of a file's chunks.
pub(super) struct ChunkCensus<'f> {
    facts: &'f ExplainFacts,
    map: &'f ChunkMap,
    /// For each of the map's nodes, the indices of the replicas on it.
    replicas_on: Vec<&'f [usize]>,
    nodes: Vec<NodeCount>,
    replicas: Vec<ReplicaCount>,
    pub(super) chunks: u64,
    /// For each number of copies, how many chunks have that many.
    pub(super) copies: BTreeMap<usize, u64>,
    /// Bytes whose placement is known.
    pub(super) known_bytes: u64,
    /// Bytes that some replica reads from its own node.
    pub(super) local_bytes: u64,
    /// The chunks in order; at most [`MAX_LISTED_CHUNKS`].
    pub(super) listed: Vec<ListedChunk>,
}

impl<'f> ChunkCensus<'f> {
    pub(super) fn new(facts: &'f ExplainFacts, map: &'f ChunkMap) -> Self {
        let replicas_on = |name: &str| {
            let node = facts.nodes.iter().position(|node| node == name);
            node.map_or(&[][..], |node| facts.replicas_of(node))
        };
        let mut census = Self {
            facts,
            map,
            replicas_on: map.nodes().iter().map(|name| replicas_on(name)).collect(),
            nodes: vec![NodeCount::default(); map.nodes().len()],
            replicas: vec![ReplicaCount::default(); facts.replicas.len()],
            chunks: 0,
            copies: BTreeMap::new(),
            known_bytes: 0,
            local_bytes: 0,
            listed: Vec::new(),
        };
        for chunk in map.chunks() {
            census.add(&chunk);
        }
        census
    }

    fn add(&mut self, chunk: &Chunk<'_>) {
        let bytes = chunk.range.len();
        self.chunks += 1;
        *self.copies.entry(chunk.nodes.len()).or_default() += 1;
        self.known_bytes += bytes;
        for (rank, node) in chunk.nodes.iter().map(|node| usize::from(*node)).enumerate() {
            self.nodes[node].chunks += 1;
            self.nodes[node].read += u64::from(rank < chunk.read);
            self.nodes[node].bytes += bytes;
        }
        let replicas = self.replicas_on_any(chunk.read_nodes());
        let mut spare = self.replicas_on_any(&chunk.nodes[chunk.read..]);
        spare.retain(|replica| !replicas.contains(replica));
        for replica in &replicas {
            self.replicas[*replica].chunks += 1;
            self.replicas[*replica].bytes += bytes;
        }
        for replica in &spare {
            self.replicas[*replica].spare_bytes += bytes;
        }
        if !replicas.is_empty() {
            self.local_bytes += bytes;
        }
        if self.listed.len() < MAX_LISTED_CHUNKS {
            let name = |node: &u16| self.map.nodes()[usize::from(*node)].to_string();
            self.listed.push(ListedChunk {
                start: chunk.range.start,
                end: chunk.range.end,
                nodes: chunk.nodes.iter().map(name).collect(),
                read: chunk.read,
                replicas,
                spare,
            });
        }
    }

    /// The replicas on any of these nodes, each once.
    fn replicas_on_any(&self, nodes: &[u16]) -> Vec<usize> {
        let known = self.facts.replicas.len();
        let on = nodes.iter().flat_map(|node| self.replicas_on[usize::from(*node)]);
        let mut replicas: Vec<usize> = on.copied().filter(|replica| *replica < known).collect();
        replicas.sort_unstable();
        replicas.dedup();
        replicas
    }

    /// What each node holds.
    pub(super) fn node_shares(&self) -> Vec<NodeShare> {
        let share = |(node, count): (usize, &NodeCount)| NodeShare {
            node: self.map.nodes()[node].to_string(),
            replicas: self.replicas_on[node]
                .iter()
                .map(|replica| self.facts.replicas[*replica].name.clone())
                .collect(),
            chunks: count.chunks,
            read: count.read,
            bytes: count.bytes,
        };
        self.nodes.iter().enumerate().map(share).collect()
    }

    /// What each replica holds, with the fractions of the file that they are `planned` to deliver.
    pub(super) fn replica_shares(&self, planned: &[f64]) -> Vec<ReplicaShare> {
        let share = |(i, replica): (usize, &ReplicaFacts)| ReplicaShare {
            name: replica.name.clone(),
            node: replica.node.clone(),
            chunks: self.replicas[i].chunks,
            bytes: self.replicas[i].bytes,
            spare_bytes: self.replicas[i].spare_bytes,
            planned: planned.get(i).copied().unwrap_or(0.0),
            rate: replica.is_measured.then_some(replica.rate),
        };
        self.facts.replicas.iter().enumerate().map(share).collect()
    }
}
