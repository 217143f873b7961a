//! The simulation: handles events in order of time.
//!
//! A reader asks for a block. The missing parts of the block become jobs, and so do the ranges that
//! its readahead advises, as in [`crate::read`]. The policy sends jobs to replicas. Each job passes
//! through the servers on its route (a disk, network ports, or one measured link), and arrives
//! after the replica's latency. When the whole block has arrived, the reader takes it and asks for
//! the next.

mod transfer;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Random;
use super::fifo_server::{Completion, FifoServer, SimTime};
use super::outcome::{ReadLatency, ReplicaOutcome, SimulationOutcome};
use super::policy::{AttemptKey, Dispatcher, JobId, JobRequest, LateJob, PolicyKind, SentJob};
use super::reader::ReaderState;
use super::world::{Cluster, PlacementKnowledge, ReaderSpec, Workload, World};
use crate::placement::LocalityMap;
use crate::placement::learned::LearnedPlacement;
use crate::read::split::{self, Piece};
use crate::scheduler::{ReplicaPolicy, SegmentNeed};
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaMap, ReplicaSet};

/// How often the engine looks for late segments; the daemon's ticker has the same interval.
const LATE_CHECK_INTERVAL: SimTime = 25_000_000;

/// The simulation stops at this time, even if readers are still reading.
const MAX_SIMULATED_TIME: SimTime = 24 * 3600 * 1_000_000_000;

/// Reads that a raw job has in flight: the kernel's NFS client reads ahead 15 times rsize.
const RAW_READS_IN_FLIGHT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Transferred { server: usize, version: u64 },
    Delivered { flight: usize },
    Change(usize),
    NextRead { reader: usize },
    Tick,
}

/// A segment to be fetched.
struct SegmentJob {
    reader: usize,
    range: ByteRange,
    tried_replicas: ReplicaSet,
    is_delivered: bool,
}

/// One attempt in flight.
struct InFlightAttempt {
    job: JobId,
    /// `None` for an attempt of a raw job.
    attempt: Option<AttemptKey>,
    replica: usize,
    is_local: bool,
    /// The servers still ahead on its route, the last one first.
    remaining_servers: Vec<usize>,
}

/// Bytes that one replica has delivered.
#[derive(Clone, Copy, Default)]
struct DeliveredBytes {
    all: u64,
    /// The part of `all` that belongs to chunks on its own node.
    local: u64,
}

/// Runs `workload` on `world` under `policy`. `epoch` is the instant that represents time zero, and
/// may be any instant.
///
/// # Panics
/// If the workload names files or replicas that the world does not have.
pub fn run(
    world: &World,
    workload: &Workload,
    policy: PolicyKind,
    epoch: Instant,
) -> SimulationOutcome {
    let mut engine = Engine::new(world, workload, policy, epoch);
    engine.run();
    engine.outcome(policy)
}

struct Engine<'w> {
    world: &'w World,
    workload: &'w Workload,
    epoch: Instant,
    now: SimTime,
    events: BinaryHeap<Reverse<(SimTime, u64, Event)>>,
    sequence: u64,
    servers: Vec<FifoServer>,
    chooser: Dispatcher,
    locality_maps: Vec<LocalityMap>,
    node_indices: Vec<Vec<Option<usize>>>,
    learned_placements: Vec<LearnedPlacement>,
    jobs: Vec<SegmentJob>,
    in_flight: Vec<InFlightAttempt>,
    readers: Vec<ReaderState>,
    latency: Histogram<u64>,
    bytes_by_replica: Vec<DeliveredBytes>,
    wasted_bytes: u64,
    hedge_count: u64,
    is_ticking: bool,
}

impl<'w> Engine<'w> {
    fn new(world: &'w World, workload: &'w Workload, policy: PolicyKind, epoch: Instant) -> Self {
        let servers = match &world.cluster {
            // Three servers for each node: its disk, its inbound network and its outbound network.
            Cluster::Nodes { nodes, .. } => nodes
                .iter()
                .flat_map(|node| [node.disk, node.network, node.network])
                .map(FifoServer::new)
                .collect(),
            // Here the work is in seconds: see `transfer_work`.
            Cluster::Measured { rates } => rates.iter().map(|_| FifoServer::new(1.0)).collect(),
        };
        let limits = ReplicaPolicy {
            weight: 1.0,
            max_in_flight: workload.max_in_flight,
            max_reads: workload.max_reads,
            max_rate: None,
        };
        let names: ReplicaMap<String> = world.gateways.iter().map(|g| g.name.clone()).collect();
        let replicas = names.len();
        let reader = |(index, spec): (usize, &ReaderSpec)| {
            let random = Random::new(workload.seed.wrapping_add(index as u64));
            ReaderState::new(spec.clone(), workload.segment_size, random)
        };
        let chunk = |file: &super::SimulatedFile| {
            file.chunks.chunks().next().map_or(256 << 20, |chunk| chunk.range.len())
        };
        Self {
            world,
            workload,
            epoch,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            servers,
            chooser: Dispatcher::new(policy, names, workload.segment_size, &limits, epoch),
            locality_maps: world.files.iter().map(|file| world.locality_map(file)).collect(),
            node_indices: world.files.iter().map(|file| world.node_indices(file)).collect(),
            learned_placements: world
                .files
                .iter()
                .map(|f| LearnedPlacement::new(chunk(f), replicas))
                .collect(),
            jobs: Vec::new(),
            in_flight: Vec::new(),
            readers: workload.readers.iter().enumerate().map(reader).collect(),
            latency: Histogram::new_with_bounds(1, MAX_SIMULATED_TIME / 1000, 3)
                .expect("constant histogram bounds are valid"),
            bytes_by_replica: vec![DeliveredBytes::default(); replicas],
            wasted_bytes: 0,
            hedge_count: 0,
            is_ticking: false,
        }
    }

    fn instant(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.now)
    }

    fn schedule_event(&mut self, time: SimTime, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn schedule_completion(&mut self, server: usize, due: Option<Completion>) {
        if let Some(Completion { time, version }) = due {
            self.schedule_event(time, Event::Transferred { server, version });
        }
    }

    fn run(&mut self) {
        for (index, change) in self.world.changes.iter().enumerate() {
            self.schedule_event(change.at.as_nanos() as SimTime, Event::Change(index));
        }
        for reader in 0..self.readers.len() {
            self.schedule_event(
                self.readers[reader].spec.start.as_nanos() as SimTime,
                Event::NextRead { reader },
            );
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > MAX_SIMULATED_TIME
                || self.readers.iter().all(|reader| reader.finished_at.is_some())
            {
                return;
            }
            self.now = time;
            match event {
                Event::Transferred { server, version } => self.on_transferred(server, version),
                Event::Delivered { flight } => self.on_delivered(flight),
                Event::Change(index) => self.apply_rate_change(index),
                Event::NextRead { reader } => self.start_next_read(reader),
                Event::Tick => self.on_tick(),
            }
        }
    }

    fn apply_rate_change(&mut self, index: usize) {
        let change = &self.world.changes[index];
        let targets: Vec<(usize, f64)> = match &self.world.cluster {
            Cluster::Nodes { nodes, .. } => {
                let node = &nodes[change.node];
                let rates = [node.disk, node.network, node.network];
                (0..3).map(|i| (change.node * 3 + i, rates[i] * change.factor)).collect()
            }
            Cluster::Measured { .. } => vec![(change.node, change.factor)],
        };
        for (server, rate) in targets {
            let due = self.servers[server].set_rate(rate, self.now);
            self.schedule_completion(server, due);
        }
    }

    fn on_delivered(&mut self, flight: usize) {
        let InFlightAttempt { job, attempt, replica, is_local: local, .. } = self.in_flight[flight];
        let bytes = self.jobs[job].range.len();
        self.bytes_by_replica[replica].all += bytes;
        if local {
            self.bytes_by_replica[replica].local += bytes;
        }
        let reader = self.jobs[job].reader;
        match attempt {
            Some(attempt) => {
                let now = self.instant();
                let ended = self.chooser.attempt_finished(attempt, bytes, now);
                if let Some(service) = ended.and_then(|ended| ended.service_time) {
                    let file = self.readers[reader].spec.file;
                    let pace = service.as_secs_f64() / bytes as f64;
                    let offset = self.jobs[job].range.start;
                    self.learned_placements[file].record(
                        offset,
                        ReplicaId::new(replica),
                        pace,
                        now,
                    );
                }
            }
            None => {
                self.readers[reader].raw_in_flight -= 1;
                self.start_raw_attempts(reader);
            }
        }
        if self.jobs[job].is_delivered {
            self.wasted_bytes += bytes;
        } else {
            self.jobs[job].is_delivered = true;
            self.complete_read_if_ready(reader);
        }
        self.dispatch_jobs();
    }

    fn dispatch_jobs(&mut self) {
        let mut sent = Vec::new();
        self.chooser.schedule(self.instant(), &mut sent);
        for SentJob { attempt, job, replica } in sent {
            self.jobs[job].tried_replicas = self.jobs[job].tried_replicas.with(replica);
            self.start_attempt(job, replica.index(), Some(attempt));
        }
        if !self.is_ticking && !self.chooser.is_idle() {
            self.is_ticking = true;
            self.schedule_event(self.now + LATE_CHECK_INTERVAL, Event::Tick);
        }
    }

    fn on_tick(&mut self) {
        self.is_ticking = false;
        let now = self.instant();
        let jobs = &self.jobs;
        let readers = &self.readers;
        let all = ReplicaSet::first(self.world.gateways.len());
        let need = |job: &JobId| {
            let SegmentJob { reader, range, tried_replicas, .. } = &jobs[*job];
            let current = readers[*reader].current_read;
            SegmentNeed {
                is_awaited: current.is_some_and(|(block, _)| !block.intersect(*range).is_empty()),
                alternatives: all.minus(*tried_replicas),
            }
        };
        for LateJob { job, candidates } in self.chooser.find_late(now, need) {
            if !self.jobs[job].is_delivered {
                self.hedge_count += 1;
                self.enqueue_job(job, false, true, candidates);
            }
        }
        self.dispatch_jobs();
    }

    fn enqueue_job(&mut self, job: JobId, ahead: bool, hedge: bool, candidates: ReplicaSet) {
        let SegmentJob { reader, range, .. } = self.jobs[job];
        let file = self.readers[reader].spec.file;
        let holders = match self.workload.knowledge {
            PlacementKnowledge::Known => {
                self.locality_maps[file].chunk_at(range.start).map(|chunk| chunk.holders)
            }
            PlacementKnowledge::Learned => {
                let local =
                    self.learned_placements[file].local_replicas(range.start, self.instant());
                local.map(Holders::local)
            }
            PlacementKnowledge::None => None,
        };
        let first = self.holder_nodes(file, range.start).first().copied();
        let gateway =
            first.and_then(|node| self.world.gateways.iter().position(|g| g.node == node));
        self.chooser.enqueue(JobRequest {
            job,
            bytes: range.len(),
            is_readahead: ahead,
            is_hedge: hedge,
            candidates,
            holders,
            first_holder: gateway.map(ReplicaId::new),
            reader_number: reader as u64,
            start: range.start,
        });
    }

    /// Starts a reader's next read.
    fn start_next_read(&mut self, reader: usize) {
        let size = self.world.files[self.readers[reader].spec.file].size;
        let Some(block) = self.readers[reader].next_block(size) else {
            self.readers[reader].finished_at = Some(self.now);
            return;
        };
        self.readers[reader].current_read = Some((block, self.now));
        self.create_jobs(reader, block, false);
        let max = self.readahead_window();
        let advice = self.readers[reader].readahead.observe(block, size, max);
        self.drop_abandoned(reader, advice.abandon);
        if !advice.fetch.is_empty() {
            self.create_jobs(reader, advice.fetch, true);
            self.readers[reader].readahead.set_fetched(block, advice.fetch.end);
        }
        self.dispatch_jobs();
        self.complete_read_if_ready(reader);
    }

    /// The longest window of one reader. As in the daemon, the readers share the budget.
    fn readahead_window(&self) -> u64 {
        let open = self.readers.iter().filter(|reader| reader.finished_at.is_none()).count();
        self.workload.readahead_max.min(self.workload.budget / 2 / open.max(1) as u64)
    }

    fn create_jobs(&mut self, reader: usize, range: ByteRange, ahead: bool) {
        let known = &self.readers[reader].jobs_by_offset;
        let from = known.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let here =
            known.range(from..range.end.max(from)).map(|(_, job)| (self.jobs[*job].range, ()));
        let pieces = split::split_range(range, here, self.workload.segment_size);
        for piece in pieces {
            let Piece::Missing(part) = piece else { continue };
            let job = self.jobs.len();
            self.jobs.push(SegmentJob {
                reader,
                range: part,
                tried_replicas: ReplicaSet::EMPTY,
                is_delivered: false,
            });
            self.readers[reader].jobs_by_offset.insert(part.start, job);
            if self.readers[reader].spec.raw_replica.is_some() {
                self.readers[reader].raw_waiting.push_back(job);
                self.start_raw_attempts(reader);
            } else {
                let all = ReplicaSet::first(self.world.gateways.len());
                self.enqueue_job(job, ahead, false, all);
            }
        }
    }

    fn start_raw_attempts(&mut self, reader: usize) {
        while self.readers[reader].raw_in_flight < RAW_READS_IN_FLIGHT {
            let Some(replica) = self.readers[reader].spec.raw_replica else { return };
            let Some(job) = self.readers[reader].raw_waiting.pop_front() else { return };
            self.readers[reader].raw_in_flight += 1;
            self.start_attempt(job, replica, None);
        }
    }

    /// Drops readahead that the reader will not use.
    fn drop_abandoned(&mut self, reader: usize, range: ByteRange) {
        self.readers[reader]
            .jobs_by_offset
            .retain(|start, _| *start < range.start || *start >= range.end);
    }

    /// Completes a reader's current read if all of its block has been delivered.
    fn complete_read_if_ready(&mut self, reader: usize) {
        let Some((block, since)) = self.readers[reader].current_read else { return };
        let known = &self.readers[reader].jobs_by_offset;
        let from = known.range(..=block.start).next_back().map_or(block.start, |(start, _)| *start);
        let mut parts = known.range(from..block.end);
        if !parts.all(|(_, job)| self.jobs[*job].is_delivered) {
            return;
        }
        let state = &mut self.readers[reader];
        state.current_read = None;
        state.position = block.end;
        state.reads_done += 1;
        state.bytes_read += block.len();
        state.burst_bytes += block.len();
        // Segments that the reader has read to the end are dropped.
        let jobs = &self.jobs;
        let used = |start: &u64, job: &JobId| *start >= from && jobs[*job].range.end <= block.end;
        let used: Vec<u64> = state
            .jobs_by_offset
            .range(from..block.end)
            .filter(|(start, job)| used(start, job))
            .map(|(start, _)| *start)
            .collect();
        for start in used {
            state.jobs_by_offset.remove(&start);
        }
        self.latency.saturating_record(((self.now - since) / 1000).max(1));
        let pause = state.pause();
        self.schedule_event(self.now + pause, Event::NextRead { reader });
    }

    fn outcome(&self, policy: PolicyKind) -> SimulationOutcome {
        let end = self.readers.iter().map(|r| r.finished_at.unwrap_or(self.now)).max().unwrap_or(0);
        let seconds = |from: SimTime, to: SimTime| (to.saturating_sub(from) as f64 / 1e9).max(1e-9);
        let times: Vec<(u64, f64)> = self
            .readers
            .iter()
            .map(|reader| {
                let start = reader.spec.start.as_nanos() as SimTime;
                (reader.bytes_read, seconds(start, reader.finished_at.unwrap_or(self.now)))
            })
            .collect();
        let bytes: u64 = times.iter().map(|(bytes, _)| bytes).sum();
        let delivered: u64 = self.bytes_by_replica.iter().map(|bytes| bytes.all).sum();
        let local: u64 = self.bytes_by_replica.iter().map(|bytes| bytes.local).sum();
        let slowest = times.iter().map(|(_, time)| *time).fold(0.0, f64::max);
        let fastest = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        let replica = |(gateway, bytes): (&super::Gateway, &DeliveredBytes)| ReplicaOutcome {
            name: gateway.name.clone(),
            bytes: bytes.all,
            share: bytes.all as f64 / delivered.max(1) as f64,
            bytes_local: bytes.local,
        };
        SimulationOutcome {
            policy: policy.name().to_owned(),
            seconds: seconds(0, end),
            bytes,
            reader_rates: times.iter().map(|(bytes, time)| *bytes as f64 / time).sum(),
            bytes_per_second: bytes as f64 / seconds(0, end),
            spread: slowest / fastest,
            local: local as f64 / delivered.max(1) as f64,
            wasted: self.wasted_bytes,
            hedges: self.hedge_count,
            latency: ReadLatency::from_histogram(&self.latency),
            replicas: self.world.gateways.iter().zip(&self.bytes_by_replica).map(replica).collect(),
            complete: self.readers.iter().all(|reader| reader.finished_at.is_some()),
        }
    }
}
