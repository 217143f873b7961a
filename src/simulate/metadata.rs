//! Simulates lookups, stats and opens, spread over replicas or pinned to some.
//!
//! Each replica answers calls with a few threads, and each call takes a fixed time. Each worker
//! asks the replica that [`crate::replicas::metadata_order`] puts first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::replicas::metadata_order::{
    LOAD_UNIT, OrderParams, replica_order, smoothed_latency, smoothed_load,
};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// The calls to simulate.
#[derive(Clone, Debug)]
pub struct MetadataWorkload {
    /// The time that a call takes on each replica, microseconds.
    pub call_times_us: Vec<u64>,
    /// The number of calls that a replica answers at the same time.
    pub threads_per_replica: usize,
    /// The number of workers; each has one call at a time.
    pub workers: usize,
    /// The number of calls of all workers together.
    pub calls: u64,
    /// The number of directories; the calls address them in turn.
    pub directories: u64,
    /// The replicas to which all calls are pinned; empty for none.
    pub pinned: ReplicaSet,
}

/// The result of a metadata simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataOutcome {
    /// Calls per second.
    pub calls_per_second: f64,
    /// The number of calls that each replica answered.
    pub calls_by_replica: Vec<u64>,
    /// The smoothed mean duration of each replica's calls, microseconds.
    pub smoothed_us: ReplicaMap<u64>,
}

/// Runs the simulation.
pub fn simulate_metadata(calls: &MetadataWorkload) -> MetadataOutcome {
    MetadataSimulation::new(calls).run()
}
/// A worker's call, and the time at which the worker made it, microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WorkerCall {
    worker: usize,
    asked_at: u64,
    is_alone: bool,
}

/// A call that a replica's thread is running. Calls end in the order of these fields.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RunningCall {
    end: u64,
    sequence: u64,
    replica: usize,
    call: WorkerCall,
}

struct MetadataSimulation<'w> {
    workload: &'w MetadataWorkload,
    /// Microseconds since the start.
    now: u64,
    /// The number of calls that workers have made.
    asked: u64,
    sequence: u64,
    smoothed_us: ReplicaMap<u64>,
    /// When each replica was last asked or last answered, microseconds since the start.
    active_at: ReplicaMap<u64>,
    /// The smoothed mean duration of calls that were alone, microseconds.
    unloaded_us: ReplicaMap<u64>,
    in_flight: ReplicaMap<usize>,
    /// As [`smoothed_load`]'s result.
    usual_load: ReplicaMap<u64>,
    busy_threads: Vec<usize>,
    waiting: Vec<VecDeque<WorkerCall>>,
    answered: Vec<u64>,
    running: BinaryHeap<Reverse<RunningCall>>,
}

impl<'w> MetadataSimulation<'w> {
    fn new(workload: &'w MetadataWorkload) -> Self {
        let replicas = workload.call_times_us.len();
        Self {
            workload,
            now: 0,
            asked: 0,
            sequence: 0,
            smoothed_us: ReplicaMap::from_fn(replicas, |_| 0),
            active_at: ReplicaMap::from_fn(replicas, |_| 0),
            unloaded_us: ReplicaMap::from_fn(replicas, |_| 0),
            in_flight: ReplicaMap::from_fn(replicas, |_| 0),
            usual_load: ReplicaMap::from_fn(replicas, |_| LOAD_UNIT),
            busy_threads: vec![0; replicas],
            waiting: vec![VecDeque::new(); replicas],
            answered: vec![0; replicas],
            running: BinaryHeap::new(),
        }
    }

    fn run(mut self) -> MetadataOutcome {
        let mut idle_workers: Vec<usize> = (0..self.workload.workers).rev().collect();
        loop {
            while let Some(worker) = idle_workers.pop() {
                if self.asked < self.workload.calls {
                    self.start_call(worker);
                }
            }
            let Some(worker) = self.finish_next_call() else { break };
            idle_workers.push(worker);
        }
        MetadataOutcome {
            calls_per_second: self.workload.calls as f64 / (self.now as f64 / 1e6).max(1e-9),
            calls_by_replica: self.answered,
            smoothed_us: self.smoothed_us,
        }
    }

    /// Sends `worker`'s next call to the replica that the order puts first.
    fn start_call(&mut self, worker: usize) {
        let choice = OrderParams {
            latency_us: &|id| self.smoothed_us[id],
            idle_time: &|id| Duration::from_micros(self.now - self.active_at[id]),
            unloaded_us: &|id| self.unloaded_us[id],
            in_flight: &|id| self.in_flight[id],
            usual_load: &|id| self.usual_load[id],
            all: self.smoothed_us.all(),
            usable: self.smoothed_us.all(),
            suspects: ReplicaSet::EMPTY,
            error_suspects: ReplicaSet::EMPTY,
            pinned: self.workload.pinned,
            path_hash: self.asked % self.workload.directories.max(1),
            call_number: self.asked,
        };
        self.asked += 1;
        let replica = replica_order(&choice).first().map_or(0, |id| id.index());
        let id = ReplicaId::new(replica);
        self.active_at[id] = self.now;
        self.in_flight[id] += 1;
        self.usual_load[id] = smoothed_load(self.usual_load[id], self.in_flight[id]);
        let call = WorkerCall { worker, asked_at: self.now, is_alone: self.in_flight[id] == 1 };
        if self.busy_threads[replica] < self.workload.threads_per_replica {
            self.busy_threads[replica] += 1;
            self.run_call(replica, call);
        } else {
            self.waiting[replica].push_back(call);
        }
    }

    fn run_call(&mut self, replica: usize, call: WorkerCall) {
        self.sequence += 1;
        let end = self.now + self.workload.call_times_us[replica];
        self.running.push(Reverse(RunningCall { end, sequence: self.sequence, replica, call }));
    }

    /// Advances the time to the end of the next call to finish. Returns the call's worker, or
    /// `None` if no call is running.
    fn finish_next_call(&mut self) -> Option<usize> {
        let Reverse(RunningCall { end, replica, call, .. }) = self.running.pop()?;
        self.now = end;
        self.answered[replica] += 1;
        let id = ReplicaId::new(replica);
        self.active_at[id] = end;
        self.in_flight[id] -= 1;
        if call.is_alone {
            self.unloaded_us[id] = smoothed_latency(self.unloaded_us[id], end - call.asked_at);
        }
        self.smoothed_us[id] = smoothed_latency(self.smoothed_us[id], end - call.asked_at);
        match self.waiting[replica].pop_front() {
            Some(next) => self.run_call(replica, next),
            None => self.busy_threads[replica] -= 1,
        }
        Some(call.worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the replicas' capacity that workers use, and each replica's part of the calls.
    fn used(call_times_us: &[u64], threads: usize, workers: usize) -> (f64, Vec<f64>) {
        used_after(&[], call_times_us, threads, workers)
    }

    /// The same, after lone calls took these times.
    fn used_after(
        unloaded_us: &[u64],
        call_times_us: &[u64],
        threads: usize,
        workers: usize,
    ) -> (f64, Vec<f64>) {
        let capacity: f64 =
            call_times_us.iter().map(|time| threads as f64 * 1e6 / *time as f64).sum();
        let workload = MetadataWorkload {
            call_times_us: call_times_us.to_vec(),
            threads_per_replica: threads,
            workers,
            calls: 20_000,
            directories: 1009,
            pinned: ReplicaSet::EMPTY,
        };
        let mut simulation = MetadataSimulation::new(&workload);
        for (replica, time) in unloaded_us.iter().enumerate() {
            simulation.unloaded_us[ReplicaId::new(replica)] = *time;
        }
        let outcome = simulation.run();
        let parts = outcome.calls_by_replica.iter().map(|calls| *calls as f64 / 20_000.0);
        (outcome.calls_per_second / capacity, parts.collect())
    }

    #[test]
    fn workers_keep_all_replicas_busy() {
        for (replicas, workers) in [(3, 8), (3, 16), (2, 4), (6, 16)] {
            let (part, _) = used(&vec![300; replicas], 1, workers);
            assert!(part > 0.9, "{workers} workers, {replicas} replicas: {part:.2}");
        }
        let (part, _) = used(&[300, 300, 900], 1, 16);
        assert!(part > 0.9, "{part:.2}");
    }

    /// One replica was quicker when calls were last alone there.
    #[test]
    fn an_old_time_of_lone_calls_excludes_no_replica() {
        for old in [[250, 1200, 1200], [1200, 1200, 250], [9000, 1200, 1200]] {
            let (part, parts) = used_after(&old, &[1200; 3], 1, 8);
            assert!(part > 0.9, "{old:?}: {part:.2}, {parts:?}");
        }
    }

    #[test]
    fn a_slow_replica_that_serves_many_at_a_time_is_avoided() {
        for slow in [2500, 10_000] {
            let (_, parts) = used(&[1000, 1000, slow], 8, 8);
            assert!(parts[2] < 0.03, "{slow}: {parts:?}");
        }
    }
}
