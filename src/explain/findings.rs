//! Findings about a file's placement, and changes that would make reads faster.

use std::time::Instant;

use serde::Serialize;

use super::forecast::{WhatIf, forecast};
use super::{ExplainFacts, Explanation, NodeShare, ReplicaShare};
use crate::format::{format_bytes, format_count, format_names, format_percent};

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
        found.push(format!("the placement query to {} failed: {failure}", facts.provider));
    } else if facts.provider == "none" {
        found.push("no placement provider is configured; see `[placement]`".to_owned());
    } else if facts.provider == "learned" {
        found.push("placement is inferred from timing (provider \"learned\")".to_owned());
    } else if e.chunks == 0 && facts.size > 0 {
        found.push(format!("{} has no placement for this file", facts.provider));
    }
    if !facts.pinned.is_empty() {
        let names: Vec<&str> = facts.pinned.iter().map(|i| &*facts.replicas[*i].name).collect();
        let names = format_names(&names, "replica");
        found.push(format!("an [[affinity]] rule pins the file to {names}"));
    }
    if e.chunks > 0 {
        found.extend(chunk_findings(e));
    }
    if let [(few, count), .., (most, _)] = e.copies[..] {
        let chunks = format_count(count, "chunk");
        found.push(format!("{chunks}: fewer copies ({few}) than the others (up to {most})"));
    }
    let unused: Vec<&str> = facts
        .replicas
        .iter()
        .filter(|replica| !replica.is_usable)
        .map(|replica| &*replica.name)
        .collect();
    if !unused.is_empty() {
        let names = format_names(&unused, "replica");
        found.push(format!("no reads go to {names} now; see `fanfs status`"));
    }
    if facts.size > 0 && !e.is_measured {
        found.push("some bandwidths are not measured yet, so they are assumed".to_owned());
    }
    found
}

/// The findings about a file whose chunks are known.
fn chunk_findings(e: &Explanation) -> Vec<String> {
    let mut found = Vec::new();
    let is_partly_unknown = e.known < 0.999;
    let known = if is_partly_unknown { "known " } else { "" };
    if is_partly_unknown {
        let part = format_percent(1.0 - e.known);
        found.push(format!("{part} of the file: unknown placement; any replica may read it"));
    }
    let read_from: Vec<&NodeShare> = e.nodes.iter().filter(|node| node.read > 0).collect();
    if let [node] = read_from[..]
        && e.chunks > 1
        && node.read == e.chunks
    {
        found.push(format!("all {} {known}chunks are read from {}", e.chunks, node.node));
    }
    if let Some((_, bare)) = e.copies.iter().find(|(copies, _)| *copies == 0) {
        found.push(format!("{bare} of {} chunks have no known copy", e.chunks));
    }
    let is_unreached = |node: &&NodeShare| node.replicas.is_empty() && node.chunks > 0;
    let unreached: Vec<&str> =
        e.nodes.iter().filter(is_unreached).map(|node| &*node.node).collect();
    if !unreached.is_empty() {
        let nodes = format_names(&unreached, "node");
        found.push(format!("nodes that hold chunks and have no replica: {nodes}"));
    }
    let names = |is_meant: fn(&ReplicaShare) -> bool| {
        let meant = e.replicas.iter().filter(|replica| replica.chunks == 0 && is_meant(replica));
        let meant: Vec<String> =
            meant.map(|replica| format!("{} (on {})", replica.name, replica.node)).collect();
        let names: Vec<&str> = meant.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format_names(&names, "replica"))
    };
    if let Some(names) = names(|replica| replica.spare_bytes == 0) {
        found.push(format!("no {known}chunk of the file is on the nodes of {names}"));
    }
    if let Some(names) = names(|replica| replica.spare_bytes > 0) {
        found.push(format!(
            "only spare copies, which gateways do not read, are on the nodes of {names}"
        ));
    }
    if e.known - e.local > 0.001 {
        let part = format_percent(e.known - e.local);
        found.push(format!(
            "{part} of the file is read from no replica's own node, so it is read remotely"
        ));
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
        bare.sort_by_key(|node| std::cmp::Reverse((node.read, node.bytes)));
        for node in bare.into_iter().take(MAX_NODES_TRIED) {
            consider(format!("a replica on {}", node.node), &WhatIf::ExtraReplica(&node.node));
        }
        if facts.reads_any_copy {
            consider(
                "one more copy of each chunk (a higher replication factor)".to_owned(),
                &WhatIf::ExtraCopy,
            );
        }
    }
    for factor in [4, 16] {
        let window = format_bytes(facts.readahead_max.saturating_mul(factor));
        let what = format!("readahead_max = {window} (and {factor} times the memory budget)");
        consider(what, &WhatIf::LargerWindow(factor));
    }
    found.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    found
}
