//! What a file's placement means for its reader.
//!
//! In go [`ExplainFacts`]: the chunks and their nodes, which replica is on which node,
//! and what each was measured to deliver. Out comes an [`Explanation`]: who
//! holds how much, what each replica will be asked for, the rate to expect, what
//! stands out, and what would make it faster. The rates come from the simulation
//! of one reader ([`crate::simulate`]) over replicas of the measured rates, so
//! they are the scheduler's own choices and not a formula beside them.
//!
//! Pure. The daemon gathers the facts; `fanfs explain` asks for them and prints.

mod chunk_census;
mod findings;
mod forecast;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::placement::{ChunkMap, ChunkMapBuilder};
use crate::volume::ByteRange;

use chunk_census::ChunkCensus;
pub use findings::Improvement;

/// What is known of a file and of the replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainFacts {
    /// Its path in the volume.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// The provider that says where the chunks are, or "none".
    pub provider: String,
    /// Why the provider does not say it, if that is so.
    pub failure: Option<String>,
    /// The nodes' names, as the provider has them.
    pub nodes: Vec<String>,
    /// Where the chunks are.
    pub regions: Vec<RegionFacts>,
    /// For each node, the replicas on it, by their place.
    pub replicas_on: Vec<Vec<usize>>,
    /// The replicas.
    pub replicas: Vec<ReplicaFacts>,
    /// Replicas that it is pinned to, by their place.
    pub pinned: Vec<usize>,
    /// The unit of dispatch, bytes.
    pub segment: u64,
    /// Longest readahead window, bytes.
    pub readahead_max: u64,
    /// Most bytes of file data in memory.
    pub budget: u64,
}

/// A stretch of a file; see [`crate::placement::chunks::Region`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegionFacts {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Bytes of one unit.
    pub unit: u64,
    /// The nodes of the units in turn, by their place.
    pub cells: Vec<Vec<u16>>,
}

/// What is known of one replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaFacts {
    /// Its name.
    pub name: String,
    /// Its node, as configured.
    pub node: String,
    /// Bytes a second of chunks that its node holds, as measured or assumed.
    pub rate: f64,
    /// And of others.
    pub rate_remote: f64,
    /// Whether they were measured.
    pub is_measured: bool,
    /// Whether it is asked at all now.
    pub is_usable: bool,
}

/// What it means.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The file's path in the volume.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// The provider that says where the chunks are.
    pub provider: String,
    /// Chunks.
    pub chunks: u64,
    /// For each number of copies, how many chunks have it.
    pub copies: Vec<(usize, u64)>,
    /// What each node holds.
    pub nodes: Vec<NodeShare>,
    /// Part of the bytes that some replica's node holds, 0 to 1.
    pub local: f64,
    /// What each replica holds and will be asked for.
    pub replicas: Vec<ReplicaShare>,
    /// Bytes a second that one sequential reader may expect.
    pub expected_rate: f64,
    /// Part of the bytes that would be read locally then, 0 to 1.
    pub expected_local: f64,
    /// The sum of what the replicas deliver alone, bytes a second.
    pub sum_of_rates: f64,
    /// Whether all rates were measured; otherwise the missing ones are assumed.
    pub is_measured: bool,
    /// What stands out, a line each.
    pub findings: Vec<String>,
    /// What would make it faster.
    pub improvements: Vec<Improvement>,
    /// The chunks in order, [`MAX_LISTED_CHUNKS`] at most.
    pub chunk_map: Vec<ListedChunk>,
}

/// What one node holds.
#[derive(Clone, Debug, Serialize)]
pub struct NodeShare {
    /// The node, as the provider has it.
    pub node: String,
    /// The replicas on it.
    pub replicas: Vec<String>,
    /// Chunks with a copy there.
    pub chunks: u64,
    /// Chunks whose first copy is there.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What one replica holds and will be asked for.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaShare {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Chunks that its node holds.
    pub chunks: u64,
    /// Bytes that its node holds.
    pub bytes: u64,
    /// The part of the file that it will be asked for, 0 to 1.
    pub planned: f64,
    /// Bytes a second, as measured or assumed.
    pub rate: f64,
}

/// One chunk.
#[derive(Clone, Debug, Serialize)]
pub struct ListedChunk {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its nodes, in the provider's order.
    pub nodes: Vec<String>,
    /// The replicas on them, by their place.
    pub replicas: Vec<usize>,
}

/// Chunks listed at most: 16 TiB in chunks of 256 MiB.
pub const MAX_LISTED_CHUNKS: usize = 65_536;

impl ExplainFacts {
    /// Puts `chunks` in, as they were answered.
    pub fn set_chunks(&mut self, chunks: &ChunkMap) {
        self.nodes = chunks.nodes().iter().map(|node| node.to_string()).collect();
        let region = |region: &crate::placement::chunks::Region| RegionFacts {
            start: region.range.start,
            end: region.range.end,
            unit: region.unit,
            cells: region.cells.clone(),
        };
        self.regions = chunks.regions().iter().map(region).collect();
    }

    /// The chunks, with other names for the nodes.
    fn chunks_with_names<'n>(&'n self, name: impl Fn(usize) -> Vec<&'n str>) -> ChunkMap {
        let mut builder = ChunkMapBuilder::new();
        for region in &self.regions {
            let range = ByteRange::new(region.start, region.end.min(self.size));
            let cells = region.cells.iter().map(|cell| {
                cell.iter().flat_map(|node| name(usize::from(*node))).collect::<Vec<_>>()
            });
            // Facts that are none end the list: they come from a daemon of
            // another version.
            if builder.add_striped(range, region.unit, cells).is_err() {
                break;
            }
        }
        builder.finish()
    }

    fn chunk_map(&self) -> ChunkMap {
        self.chunks_with_names(|node| {
            self.nodes.get(node).map(|name| &**name).into_iter().collect()
        })
    }

    fn replicas_of(&self, node: usize) -> &[usize] {
        self.replicas_on.get(node).map_or(&[], |replicas| &**replicas)
    }
}

/// Says what `facts` mean. `epoch` may be any instant; the simulation counts
/// from it.
pub fn explain(facts: &ExplainFacts, epoch: Instant) -> Explanation {
    let chunks = facts.chunk_map();
    let census = ChunkCensus::new(facts, &chunks);
    let now = forecast::forecast(facts, &forecast::WhatIf::Unchanged, epoch);
    let mut explanation = Explanation {
        path: facts.path.clone(),
        size: facts.size,
        provider: facts.provider.clone(),
        chunks: census.chunks,
        nodes: census.node_shares(),
        local: census.local_bytes as f64 / facts.size.max(1) as f64,
        replicas: census.replica_shares(&now.shares),
        expected_rate: now.rate,
        expected_local: now.local,
        sum_of_rates: facts.replicas.iter().filter(|r| r.is_usable).map(|r| r.rate).sum(),
        is_measured: facts.replicas.iter().all(|replica| replica.is_measured),
        findings: Vec::new(),
        improvements: Vec::new(),
        copies: census.copies.into_iter().collect(),
        chunk_map: census.listed,
    };
    explanation.findings = findings::findings(facts, &explanation);
    explanation.improvements = findings::improvements(facts, &explanation, epoch);
    explanation
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 40 chunks of 256 MiB, all with their first copy on n1.
    fn facts(copies: usize, replicas: usize) -> ExplainFacts {
        let cell = |chunk: u16| match copies {
            1 => vec![0],
            2 => vec![0, 1 + chunk % 2],
            _ => vec![0, 1, 2],
        };
        ExplainFacts {
            path: "/f".into(),
            size: 40 * 256 * MIB,
            provider: "table".into(),
            failure: None,
            nodes: ["n1", "n2", "n3"].map(str::to_owned).to_vec(),
            regions: (0..40u64)
                .map(|i| RegionFacts {
                    start: i * 256 * MIB,
                    end: (i + 1) * 256 * MIB,
                    unit: 256 * MIB,
                    cells: vec![cell(i as u16)],
                })
                .collect(),
            replicas_on: (0..3).map(|i| if i < replicas { vec![i] } else { vec![] }).collect(),
            replicas: (0..replicas)
                .map(|i| ReplicaFacts {
                    name: format!("r{}", i + 1),
                    node: format!("n{}", i + 1),
                    rate: 247e6,
                    rate_remote: 100e6,
                    is_measured: true,
                    is_usable: true,
                })
                .collect(),
            pinned: Vec::new(),
            segment: MIB,
            readahead_max: 64 * MIB,
            budget: 256 * MIB,
        }
    }

    fn explained(copies: usize, replicas: usize) -> Explanation {
        explain(&facts(copies, replicas), Instant::now())
    }

    #[test]
    fn copies_nodes_and_shares_are_counted() {
        let e = explained(2, 3);
        assert_eq!((e.chunks, e.copies.clone()), (40, vec![(2, 40)]));
        assert_eq!((e.nodes[0].chunks, e.nodes[0].first), (40, 40));
        assert_eq!((e.nodes[1].chunks, e.nodes[1].first), (20, 0));
        assert_eq!(e.replicas[2].chunks, 20);
        assert!((e.local - 1.0).abs() < 1e-9);
        assert_eq!(e.chunk_map.len(), 40);
        assert_eq!(e.chunk_map[1].nodes, ["n1", "n3"]);
        assert_eq!(e.chunk_map[1].replicas, [0, 2]);
    }

    #[test]
    fn three_copies_on_three_replicas_give_the_sum() {
        let e = explained(3, 3);
        assert!(e.expected_rate > 0.95 * 741e6, "{}", e.expected_rate);
        assert!(e.replicas.iter().all(|r| (r.planned - 1.0 / 3.0).abs() < 0.05));
        assert!(e.improvements.iter().all(|i| i.what.contains("replica on") || i.gain < 1.1));
    }

    #[test]
    fn one_copy_on_one_node_is_said_to_be_the_limit() {
        let e = explained(1, 3);
        assert!(e.expected_rate < 0.75 * 741e6, "{}", e.expected_rate);
        let all = e.findings.join("\n");
        assert!(all.contains("all 40 chunks have their first copy on n1"), "{all}");
        assert!(all.contains("r2") && all.contains("holds none"), "{all}");
        let higher = e.improvements.iter().find(|i| i.what.contains("replication"));
        assert!(higher.is_some_and(|i| i.gain > 1.3), "{:?}", e.improvements);
    }

    #[test]
    fn a_node_with_data_and_no_replica_is_worth_a_mount() {
        let e = explained(3, 2);
        let third = e.improvements.iter().find(|i| i.what.contains("a replica on n3"));
        assert!(third.is_some_and(|i| i.gain > 1.3), "{:?}", e.improvements);
    }

    #[test]
    fn without_placement_every_replica_is_as_good_as_another() {
        let mut facts = facts(3, 3);
        facts.regions.clear();
        facts.provider = "none".into();
        let e = explain(&facts, Instant::now());
        assert_eq!(e.chunks, 0);
        assert!(e.expected_rate > 0.95 * 741e6, "{}", e.expected_rate);
        assert!(e.findings[0].contains("nobody is asked"), "{:?}", e.findings);
    }

    #[test]
    fn a_file_without_bytes_is_explained_too() {
        let mut facts = facts(1, 1);
        facts.size = 0;
        facts.regions.clear();
        let e = explain(&facts, Instant::now());
        assert_eq!((e.chunks, e.expected_rate), (0, 0.0));
    }
}
