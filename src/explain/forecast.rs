//! One reader of the file, simulated at the measured rates.

use std::time::{Duration, Instant};

use super::ExplainFacts;
use crate::placement::ChunkMap;
use crate::simulate::{
    Cluster, Gateway, LocalityRates, PolicyKind, ReaderSpec, SimulatedFile, Workload, World, run,
};

/// What is simulated of a longer file: its beginning.
const MAX_SIMULATED_BYTES: u64 = 8 << 30;

/// Stands for nodes that no replica is on; no replica may have this name.
const ELSEWHERE: &str = "(elsewhere)";

/// As it is, or with one thing changed.
pub(super) enum WhatIf<'a> {
    Unchanged,
    /// One more replica, on this node.
    ExtraReplica(&'a str),
    /// Every chunk on one more node.
    ExtraCopy,
    /// A window so many times as long.
    LargerWindow(u64),
}

/// What one reader would get.
#[derive(Clone, Debug, Default)]
pub(super) struct Forecast {
    /// Bytes a second.
    pub(super) rate: f64,
    /// Part of it local, 0 to 1.
    pub(super) local: f64,
    /// Each replica's part.
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

/// The replicas that are asked for the file; all where none is usable.
fn used_replicas(facts: &ExplainFacts) -> Vec<usize> {
    let is_used = |i: &usize| {
        facts.replicas[*i].is_usable && (facts.pinned.is_empty() || facts.pinned.contains(i))
    };
    let used: Vec<usize> = (0..facts.replicas.len()).filter(is_used).collect();
    if used.is_empty() { (0..facts.replicas.len()).collect() } else { used }
}

/// The replicas `used` at their measured rates, with the file and with what is changed.
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

/// The chunks, each with the names of the replicas on its nodes in place of the nodes'.
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

/// Each chunk on the next replica as well that does not hold it, in turns.
fn with_extra_copy(chunks: &ChunkMap, names: &[&str]) -> ChunkMap {
    let mut builder = crate::placement::ChunkMapBuilder::new();
    for (turn, chunk) in chunks.chunks().enumerate() {
        let mut nodes: Vec<&str> =
            chunk.nodes.iter().map(|node| &*chunks.nodes()[usize::from(*node)]).collect();
        let next = (0..names.len()).map(|i| names[(turn + i) % names.len()]);
        nodes.extend(next.filter(|name| !nodes.contains(name)).take(1).collect::<Vec<_>>());
        if builder.add_chunk(chunk.range, nodes).is_err() {
            break;
        }
    }
    builder.finish()
}
