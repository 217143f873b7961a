//! Lookups, stats and opens of one directory, spread over replicas or pinned.
//!
//! Each replica answers calls with a few threads, each call in a fixed time;
//! workers ask one after the other, of whom [`crate::scheduler::metadata_order`] says.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::scheduler::metadata_order::{OrderParams, replica_order, smoothed_latency};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct MetadataWorkload {
    /// Microseconds that a call takes on each replica.
    pub call_times_us: Vec<u64>,
    /// Calls that a replica answers at once.
    pub threads_per_replica: usize,
    /// Workers, each with one call at a time.
    pub workers: usize,
    /// Calls altogether.
    pub calls: u64,
    /// Directories that the calls are about, in turn.
    pub directories: u64,
    /// The replicas that all of it is pinned to; empty for none.
    pub pinned: ReplicaSet,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataOutcome {
    /// Calls a second.
    pub calls_per_second: f64,
    /// Calls that each replica answered.
    pub calls_by_replica: Vec<u64>,
    /// The mean time of each replica's calls as it was smoothed, microseconds.
    pub smoothed_us: ReplicaMap<u64>,
}

/// Runs it.
pub fn simulate_metadata(calls: &MetadataWorkload) -> MetadataOutcome {
    let replicas = calls.call_times_us.len();
    let mut smoothed = ReplicaMap::from_fn(replicas, |_| 0u64);
    let mut asked_at = ReplicaMap::from_fn(replicas, |_| 0u64);
    let mut busy = vec![0usize; replicas];
    let mut waiting: Vec<VecDeque<(usize, u64)>> = vec![VecDeque::new(); replicas];
    let mut answered = vec![0; replicas];
    let mut ends = BinaryHeap::new();
    let (mut now, mut turn, mut sequence) = (0u64, 0u64, 0u64);
    let mut idle: Vec<usize> = (0..calls.workers).rev().collect();
    loop {
        while let Some(worker) = idle.pop() {
            if turn == calls.calls {
                continue;
            }
            let choice = OrderParams {
                latencies_us: &smoothed,
                idle_times: &asked_at.map(|_, at| Duration::from_micros(now - at)),
                usable: smoothed.all(),
                suspects: ReplicaSet::EMPTY,
                error_suspects: ReplicaSet::EMPTY,
                pinned: calls.pinned,
                path_hash: turn % calls.directories.max(1),
                call_number: turn,
            };
            turn += 1;
            let replica = replica_order(&choice).first().map_or(0, |id| id.index());
            asked_at[ReplicaId::new(replica)] = now;
            if busy[replica] < calls.threads_per_replica {
                busy[replica] += 1;
                sequence += 1;
                ends.push(Reverse((
                    now + calls.call_times_us[replica],
                    sequence,
                    replica,
                    worker,
                    now,
                )));
            } else {
                waiting[replica].push_back((worker, now));
            }
        }
        let Some(Reverse((end, _, replica, worker, asked))) = ends.pop() else { break };
        now = end;
        answered[replica] += 1;
        let id = ReplicaId::new(replica);
        asked_at[id] = now;
        smoothed[id] = smoothed_latency(smoothed[id], end - asked);
        match waiting[replica].pop_front() {
            Some((next, asked)) => {
                sequence += 1;
                ends.push(Reverse((
                    now + calls.call_times_us[replica],
                    sequence,
                    replica,
                    next,
                    asked,
                )));
            }
            None => busy[replica] -= 1,
        }
        idle.push(worker);
    }
    MetadataOutcome {
        calls_per_second: calls.calls as f64 / (now as f64 / 1e6).max(1e-9),
        calls_by_replica: answered,
        smoothed_us: smoothed,
    }
}
