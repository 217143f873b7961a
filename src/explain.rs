//! Explains what a file's placement means for its reader.
//!
//! The input is [`ExplainFacts`]: the chunks and their nodes, the replicas on each node, and each
//! replica's measured rate. The output is an [`Explanation`]: how much each node holds, how much
//! each replica will be asked for, the expected rate, findings, and possible improvements. The
//! rates come from a simulation of one reader ([`crate::simulate`]) over replicas with the measured
//! rates. So they follow the scheduler's own choices, not a separate formula.
//!
//! Pure. The daemon gathers the facts; `fanfs explain` requests and prints them.

mod chunk_census;
mod findings;
mod forecast;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::placement::chunks::Copies;
use crate::placement::{ChunkMap, ChunkMapBuilder};
use crate::volume::ByteRange;

use chunk_census::ChunkCensus;
pub use findings::Improvement;

/// The known facts about a file and the replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainFacts {
    /// The file's path in the volume.
    pub path: String,
    /// The file's size, bytes.
    pub size: u64,
    /// The placement provider, or "none".
    pub provider: String,
    /// Why the provider gave no placement, if it failed.
    pub failure: Option<String>,
    /// Whether each gateway reads its own node's copy, so that a further copy is read too.
    #[serde(default = "assume_true")]
    pub reads_any_copy: bool,
    /// The nodes' names, as the provider reports them.
    pub nodes: Vec<String>,
    /// The placement of the chunks.
    pub regions: Vec<RegionFacts>,
    /// For each node, the indices of the replicas on it.
    pub replicas_on: Vec<Vec<usize>>,
    /// The replicas.
    pub replicas: Vec<ReplicaFacts>,
    /// The indices of the replicas to which the file is pinned.
    pub pinned: Vec<usize>,
    /// The unit of dispatch, bytes.
    pub segment: u64,
    /// The longest readahead window, bytes.
    pub readahead_max: u64,
    /// The most bytes of file data in memory.
    pub budget: u64,
}

/// A region of a file; see [`crate::placement::chunks::Region`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegionFacts {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The size of one unit, bytes.
    pub unit: u64,
    /// The nodes of the units in turn, as indices into [`ExplainFacts::nodes`]; those whose copies
    /// are read come first.
    pub cells: Vec<Vec<u16>>,
    /// The number of those for each cell; `None` if the cell's placement is unknown. From an earlier
    /// daemon it is empty, and all copies are read.
    #[serde(default)]
    pub read: Vec<Option<usize>>,
}

/// The meaning of a field that an earlier daemon does not send.
fn assume_true() -> bool {
    true
}

/// The known facts about one replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaFacts {
    /// Its name.
    pub name: String,
    /// Its node, as configured.
    pub node: String,
    /// The rate for chunks that it reads from its node, bytes per second, measured or assumed.
    pub rate: f64,
    /// The rate for other chunks.
    pub rate_remote: f64,
    /// Whether `rate` was measured.
    pub is_measured: bool,
    /// Whether reads are sent to it now.
    pub is_usable: bool,
}

/// What the facts mean.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The file's path in the volume.
    pub path: String,
    /// The file's size, bytes.
    pub size: u64,
    /// The placement provider.
    pub provider: String,
    /// The number of chunks.
    pub chunks: u64,
    /// Pairs: a number of copies, and how many chunks have that many.
    pub copies: Vec<(usize, u64)>,
    /// What each node holds.
    pub nodes: Vec<NodeShare>,
    /// The fraction of the bytes whose placement is known, 0 to 1.
    pub known: f64,
    /// The fraction of the bytes that some replica reads from its own node, 0 to 1.
    pub local: f64,
    /// What each replica holds and will be asked for.
    pub replicas: Vec<ReplicaShare>,
    /// The expected rate of one sequential reader, bytes per second.
    pub expected_rate: f64,
    /// The fraction of the bytes that it would read locally, 0 to 1.
    pub expected_local: f64,
    /// The sum of the replicas' rates alone, bytes per second.
    pub sum_of_rates: f64,
    /// Whether all rates were measured; missing ones are assumed.
    pub is_measured: bool,
    /// The findings, one line each.
    pub findings: Vec<String>,
    /// Changes that would make reads faster.
    pub improvements: Vec<Improvement>,
    /// The chunks in order; at most [`MAX_LISTED_CHUNKS`].
    pub chunk_map: Vec<ListedChunk>,
}

/// What one node holds.
#[derive(Clone, Debug, Serialize)]
pub struct NodeShare {
    /// The node's name, as the provider reports it.
    pub node: String,
    /// The replicas on it.
    pub replicas: Vec<String>,
    /// Chunks with a copy there.
    pub chunks: u64,
    /// Chunks whose copy there is read; the others' are spare.
    pub read: u64,
    /// The bytes that it holds.
    pub bytes: u64,
}

/// What one replica holds and will be asked for.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaShare {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Chunks that it reads from its own node.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of which its node has only a spare copy, which no gateway reads.
    pub spare_bytes: u64,
    /// The fraction of the file that it will be asked for, 0 to 1.
    pub planned: f64,
    /// Its measured rate, bytes per second; `None` before a measurement.
    pub rate: Option<f64>,
}

/// One chunk.
#[derive(Clone, Debug, Serialize)]
pub struct ListedChunk {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its nodes, in the provider's order; those whose copies are read come first.
    pub nodes: Vec<String>,
    /// The number of those.
    pub read: usize,
    /// The indices of the replicas that read it from their own node.
    pub replicas: Vec<usize>,
    /// The indices of the other replicas on its nodes: they fetch it over the network.
    pub spare: Vec<usize>,
}

/// The most chunks that are listed: 16 TiB in chunks of 256 MiB.
pub const MAX_LISTED_CHUNKS: usize = 65_536;

impl ExplainFacts {
    /// Stores `chunks`, the provider's answer.
    pub fn set_chunks(&mut self, chunks: &ChunkMap) {
        self.nodes = chunks.nodes().iter().map(|node| node.to_string()).collect();
        let region = |region: &crate::placement::chunks::Region| RegionFacts {
            start: region.range.start,
            end: region.range.end,
            unit: region.unit,
            cells: region
                .cells
                .iter()
                .map(|cell| cell.as_ref().map_or(Vec::new(), |cell| cell.nodes.clone()))
                .collect(),
            read: region.cells.iter().map(|cell| cell.as_ref().map(|cell| cell.read)).collect(),
        };
        self.regions = chunks.regions().iter().map(region).collect();
    }

    /// The chunks, with the nodes renamed.
    fn chunks_with_names<'n>(&'n self, name: impl Fn(usize) -> Vec<&'n str>) -> ChunkMap {
        let mut builder = ChunkMapBuilder::new();
        for region in &self.regions {
            let range = ByteRange::new(region.start, region.end.min(self.size));
            let names = |nodes: &[u16]| nodes.iter().flat_map(|n| name(usize::from(*n))).collect();
            let cells = region.cells.iter().enumerate().map(|(i, nodes)| {
                let read = region.read.get(i).copied().unwrap_or(Some(nodes.len()));
                let (read, spare) = nodes.split_at_checked(read?)?;
                Some(Copies { read: names(read), spare: names(spare) })
            });
            // Invalid facts, from a daemon of another version, end the list.
            if builder.add_cells(range, region.unit, cells).is_err() {
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

/// Explains `facts`. `epoch` is the instant at which the simulation starts, and may be any instant.
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
        known: census.known_bytes as f64 / facts.size.max(1) as f64,
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

    /// A file of 40 chunks of 256 MiB, all with their first copy on n1.
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
            reads_any_copy: true,
            nodes: ["n1", "n2", "n3"].map(str::to_owned).to_vec(),
            regions: (0..40u64)
                .map(|i| RegionFacts {
                    start: i * 256 * MIB,
                    end: (i + 1) * 256 * MIB,
                    unit: 256 * MIB,
                    cells: vec![cell(i as u16)],
                    read: vec![Some(copies)],
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
        assert_eq!((e.nodes[0].chunks, e.nodes[0].read), (40, 40));
        assert_eq!((e.nodes[1].chunks, e.nodes[1].read), (20, 20));
        assert_eq!(e.replicas[2].chunks, 20);
        assert!((e.local - 1.0).abs() < 1e-9);
        assert_eq!(e.chunk_map.len(), 40);
        assert_eq!(e.chunk_map[1].nodes, ["n1", "n3"]);
        assert_eq!(e.chunk_map[1].replicas, [0, 2]);
    }

    #[test]
    fn three_copies_on_three_replicas_reach_the_sum_of_bandwidths() {
        let e = explained(3, 3);
        assert!(e.expected_rate > 0.95 * 741e6, "{}", e.expected_rate);
        assert!(e.replicas.iter().all(|r| (r.planned - 1.0 / 3.0).abs() < 0.05));
        assert!(e.improvements.iter().all(|i| i.what.contains("replica on") || i.gain < 1.1));
    }

    #[test]
    fn one_copy_on_one_node_is_reported_as_the_limit() {
        let e = explained(1, 3);
        assert!(e.expected_rate < 0.75 * 741e6, "{}", e.expected_rate);
        let all = e.findings.join("\n");
        assert!(all.contains("all 40 chunks are read from n1"), "{all}");
        assert!(all.contains("nodes of r2 (on n2) and r3 (on n3)"), "{all}");
        let higher = e.improvements.iter().find(|i| i.what.contains("replication"));
        assert!(higher.is_some_and(|i| i.gain > 1.3), "{:?}", e.improvements);
    }

    #[test]
    fn a_replica_on_a_node_with_chunks_is_an_improvement() {
        let e = explained(3, 2);
        let third = e.improvements.iter().find(|i| i.what.contains("a replica on n3"));
        assert!(third.is_some_and(|i| i.gain > 1.3), "{:?}", e.improvements);
    }

    #[test]
    fn unknown_chunks_are_neither_local_nor_remote() {
        let mut facts = facts(1, 3);
        facts.regions.truncate(30);
        for region in &mut facts.regions[20..] {
            region.read = vec![None];
        }
        let e = explain(&facts, Instant::now());
        assert_eq!((e.known, e.local), (0.5, 0.5));
        let all = e.findings.join("\n");
        assert!(all.contains("50% of the file: unknown placement"), "{all}");
        assert!(!all.contains("remotely"), "{all}");
        assert!(all.contains("no known chunk of the file is on the nodes of r2"), "{all}");
        assert!(all.contains("all 20 known chunks are read from n1"), "{all}");
    }

    #[test]
    fn the_facts_of_an_earlier_daemon_are_explained() {
        let mut json = serde_json::to_value(facts(2, 3)).unwrap();
        json.as_object_mut().unwrap().remove("reads_any_copy");
        for region in json["regions"].as_array_mut().unwrap() {
            region.as_object_mut().unwrap().remove("read");
        }
        let earlier: ExplainFacts = serde_json::from_value(json).unwrap();
        let e = explain(&earlier, Instant::now());
        assert_eq!((e.chunks, e.known, e.local), (40, 1.0, 1.0));
        assert_eq!(e.nodes.iter().map(|node| node.read).collect::<Vec<_>>(), [40, 20, 20]);
    }

    #[test]
    fn spare_copies_are_not_local_and_more_of_them_gain_nothing() {
        let mut facts = facts(3, 3);
        facts.reads_any_copy = false;
        for (i, region) in facts.regions.iter_mut().enumerate() {
            region.cells[0].rotate_left(i % 2);
            region.read = vec![Some(1)];
        }
        let e = explain(&facts, Instant::now());
        assert_eq!(e.nodes.iter().map(|node| node.read).collect::<Vec<_>>(), [20, 20, 0]);
        assert_eq!((e.replicas[2].chunks, e.replicas[2].bytes), (0, 0));
        assert_eq!(e.replicas[2].spare_bytes, facts.size);
        assert_eq!((&*e.chunk_map[1].replicas, &*e.chunk_map[1].spare), (&[1][..], &[0, 2][..]));
        let all = e.findings.join("\n");
        assert!(all.contains("only spare copies"), "{all}");
        assert!(e.improvements.iter().all(|i| !i.what.contains("replication")), "{all}");
    }

    #[test]
    fn without_placement_all_replicas_are_used() {
        let mut facts = facts(3, 3);
        facts.regions.clear();
        facts.provider = "none".into();
        let e = explain(&facts, Instant::now());
        assert_eq!(e.chunks, 0);
        assert!(e.expected_rate > 0.95 * 741e6, "{}", e.expected_rate);
        assert!(e.findings[0].contains("no placement provider"), "{:?}", e.findings);
    }

    #[test]
    fn an_empty_file_is_explained() {
        let mut facts = facts(1, 1);
        facts.size = 0;
        facts.regions.clear();
        let e = explain(&facts, Instant::now());
        assert_eq!((e.chunks, e.expected_rate), (0, 0.0));
    }
}
