//! Simulates one reader of the file at the measured rates.

use std::time::{Duration, Instant};

use super::ExplainFacts;
use crate::placement::ChunkMap;
use crate::simulate::{
    Cluster, Gateway, LocalityRates, PolicyKind, ReaderSpec, SimulatedFile, Workload, World, run,
};

/// The most bytes that are simulated; of a longer file, its beginning.
const MAX_SIMULATED_BYTES: u64 = 8 << 30;

/// The name that represents nodes without a replica; no replica may have it.
const ELSEWHERE: &str = "(elsewhere)";

/// The setup to simulate: the current one, or with one change.
pub(super) enum WhatIf<'a> {
    Unchanged,
    /// One more replica, on this node.
    ExtraReplica(&'a str),
    /// Every chunk on one more node.
    ExtraCopy,
    /// A readahead window that is this many times as long.
    LargerWindow(u64),
}

/// The expected result of one reader.
#[derive(Clone, Debug, Default)]
pub(super) struct Forecast {
    /// The rate, bytes per second.
    pub(super) rate: f64,
    /// The fraction of the bytes that is read locally, 0 to 1.
    pub(super) local: f64,
    /// The fraction of the bytes that each replica delivers.
    pub(super) shares: Vec<f64>,
}

pub(super) fn forecast(facts: &ExplainFacts, what: &WhatIf<'_>, epoch: Instant) -> Forecast {
    let used = used_replicas(facts);
    if facts.size == 0 || used.is_empty() {
        return Forecast { shares: vec![0.0; facts.replicas.len()], ..Forecast::default() };
    }
    let world = measured_world(facts, &used, what);
    let factor = if let WhatIf::LargerWindow(factor) = what { *factor } else { 1 };
    let workload = Workload {
        readers: vec![ReaderSpec::sequential(0)],
        segment_size: facts.segment.max(4096),
        readahead_max: facts.readahead_max.saturating_mul(factor),
        budget: facts.budget.saturating_mul(factor),
        ..Workload::default()
    };
    let outcome = run(&world, &workload, PolicyKind::Fanfs, epoch);
    let mut shares = vec![0.0; facts.replicas.len()];
    for (i, replica) in used.iter().zip(&outcome.replicas) {
        shares[*i] = replica.share;
    }
    Forecast { rate: outcome.bytes_per_second, local: outcome.local, shares }
}

/// The replicas that serve the file; all if none is usable.
fn used_replicas(facts: &ExplainFacts) -> Vec<usize> {
    let is_used = |i: &usize| {
        facts.replicas[*i].is_usable && (facts.pinned.is_empty() || facts.pinned.contains(i))
    };
    let used: Vec<usize> = (0..facts.replicas.len()).filter(is_used).collect();
    if used.is_empty() { (0..facts.replicas.len()).collect() } else { used }
}

/// A world with the replicas `used` at their measured rates, the file, and the change.
fn measured_world(facts: &ExplainFacts, used: &[usize], what: &WhatIf<'_>) -> World {
    let mut names: Vec<&str> = used.iter().map(|i| &*facts.replicas[*i].name).collect();
    let mut rates: Vec<LocalityRates> = used
        .iter()
        .map(|i| LocalityRates {
            local: facts.replicas[*i].rate.max(1.0),
            remote: facts.replicas[*i].rate_remote.max(1.0),
        })
        .collect();
    if let WhatIf::ExtraReplica(node) = what {
        names.push(node);
        rates.push(mean_rates(&rates));
    }
    let chunks = chunks_by_replica(facts, used, what);
    let chunks = match what {
        WhatIf::ExtraCopy => with_extra_copy(&chunks, &names),
        _ => chunks,
    };
    let gateway = |name: &&str| Gateway {
        name: (*name).to_owned(),
        node: 0,
        latency: Duration::from_micros(500),
    };
    World {
        cluster: Cluster::Measured { rates },
        gateways: names.iter().map(gateway).collect(),
        files: vec![SimulatedFile { size: facts.size.min(MAX_SIMULATED_BYTES), chunks }],
        changes: Vec::new(),
    }
}

fn mean_rates(rates: &[LocalityRates]) -> LocalityRates {
    let mean =
        |of: fn(&LocalityRates) -> f64| rates.iter().map(of).sum::<f64>() / rates.len() as f64;
    LocalityRates { local: mean(|rates| rates.local), remote: mean(|rates| rates.remote) }
}

/// The chunks, with the names of the replicas on their nodes instead of the nodes' names.
fn chunks_by_replica(facts: &ExplainFacts, used: &[usize], what: &WhatIf<'_>) -> ChunkMap {
    facts.chunks_with_names(|node| {
        let name = facts.nodes.get(node).map_or(ELSEWHERE, |name| name);
        let mut on: Vec<&str> = facts
            .replicas_of(node)
            .iter()
            .filter(|i| used.contains(i))
            .map(|i| &*facts.replicas[*i].name)
            .collect();
        match what {
            WhatIf::ExtraReplica(node) if name == *node => on.push(node),
            _ => {}
        }
        if on.is_empty() { vec![ELSEWHERE] } else { on }
    })
}

/// Adds to each chunk the next replica, in turn, that does not hold it.
fn with_extra_copy(chunks: &ChunkMap, names: &[&str]) -> ChunkMap {
    let mut builder = crate::placement::ChunkMapBuilder::new();
    for (turn, chunk) in chunks.chunks().enumerate() {
        let mut nodes: Vec<&str> =
            chunk.read_nodes().iter().map(|node| &*chunks.nodes()[usize::from(*node)]).collect();
        let next = (0..names.len()).map(|i| names[(turn + i) % names.len()]);
        nodes.extend(next.filter(|name| !nodes.contains(name)).take(1).collect::<Vec<_>>());
        if builder.add_chunk(chunk.range, nodes).is_err() {
            break;
        }
    }
    builder.finish()
}
