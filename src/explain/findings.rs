//! Findings about a file's placement, and changes that would make reads faster.

use std::time::Instant;

use serde::Serialize;

use super::forecast::{WhatIf, forecast};
use super::{ExplainFacts, Explanation};
use crate::format::format_bytes;

/// A change and its expected effect.
#[derive(Clone, Debug, Serialize)]
pub struct Improvement {
    /// What to change.
    pub what: String,
    /// The expected rate after the change, bytes per second.
    pub rate: f64,
    /// That rate divided by the currently expected one.
    pub gain: f64,
}

/// Improvements below this factor are not listed.
const MIN_GAIN: f64 = 1.05;

/// The most nodes without a replica that are tried.
const MAX_NODES_TRIED: usize = 3;

pub(super) fn findings(facts: &ExplainFacts, e: &Explanation) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(failure) = &facts.failure {
        found.push(format!("{} does not say where the chunks are: {failure}", facts.provider));
    } else if facts.provider == "none" {
        found.push("nobody is asked where the chunks are; see `[placement]`".to_owned());
    } else if facts.provider == "learned" {
        found.push("nobody is asked where the chunks are; it is inferred from timing".to_owned());
    } else if e.chunks == 0 && facts.size > 0 {
        found.push(format!("{} knows nothing of this file", facts.provider));
    }
    if !facts.pinned.is_empty() {
        let names: Vec<&str> = facts.pinned.iter().map(|i| &*facts.replicas[*i].name).collect();
        found.push(format!("an [[affinity]] rule pins it to {}", names.join(", ")));
    }
    let covered: u64 = e.nodes.iter().map(|node| node.first).sum();
    if let Some(node) = e.nodes.iter().find(|node| node.first == e.chunks && e.chunks > 1) {
        found.push(format!(
            "all {} chunks have their first copy on {}; a client that takes the first gets one node",
            e.chunks, node.node
        ));
    }
    if covered < e.chunks {
        found.push(format!(
            "{} of {} chunks have no copy that is known",
            e.chunks - covered,
            e.chunks
        ));
    }
    if e.chunks > 0 {
        let unreached: Vec<&str> = e
            .nodes
            .iter()
            .filter(|node| node.replicas.is_empty() && node.chunks > 0)
            .map(|node| &*node.node)
            .collect();
        if !unreached.is_empty() {
            let shown = unreached.iter().take(8).copied().collect::<Vec<_>>().join(", ");
            let more = if unreached.len() > 8 { ", ..." } else { "" };
            found.push(format!("no replica is on {shown}{more}, which hold parts of it"));
        }
        for replica in e.replicas.iter().filter(|replica| replica.chunks == 0) {
            found.push(format!("{} is on {}, which holds none of it", replica.name, replica.node));
        }
        if e.local < 0.999 {
            let part = (1.0 - e.local) * 100.0;
            found.push(format!("{part:.0} % of it is on no replica's node and is always proxied"));
        }
    }
    if let [(few, count), .., (most, _)] = e.copies[..] {
        found.push(format!("{count} chunks have {few} copies, others up to {most}"));
    }
    for replica in facts.replicas.iter().filter(|replica| !replica.is_usable) {
        found.push(format!("{} is not asked now; see `fanfs status`", replica.name));
    }
    if facts.size > 0 && !e.is_measured {
        found.push("not all rates were measured yet; the others are assumed".to_owned());
    }
    found
}

pub(super) fn improvements(
    facts: &ExplainFacts,
    e: &Explanation,
    epoch: Instant,
) -> Vec<Improvement> {
    let mut found = Vec::new();
    let mut consider = |what: String, change: &WhatIf<'_>| {
        let rate = forecast(facts, change, epoch).rate;
        let gain = rate / e.expected_rate.max(1.0);
        if gain >= MIN_GAIN {
            found.push(Improvement { what, rate, gain });
        }
    };
    if facts.size == 0 || !facts.pinned.is_empty() {
        return Vec::new();
    }
    if e.chunks > 0 {
        let mut bare: Vec<_> = e.nodes.iter().filter(|n| n.replicas.is_empty()).collect();
        bare.sort_by_key(|node| std::cmp::Reverse(node.bytes));
        for node in bare.into_iter().take(MAX_NODES_TRIED) {
            consider(format!("a replica on {}", node.node), &WhatIf::ExtraReplica(&node.node));
        }
        consider(
            "one more copy of each chunk (a higher replication)".to_owned(),
            &WhatIf::ExtraCopy,
        );
    }
    for factor in [4, 16] {
        let window = format_bytes(facts.readahead_max.saturating_mul(factor));
        let what = format!("readahead_max = {window} (and {factor} times the budget)");
        consider(what, &WhatIf::LargerWindow(factor));
    }
    found.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    found
}
