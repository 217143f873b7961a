//! The simulation itself: events in order of time.
//!
//! A reader asks for a block; what is missing of it becomes jobs, and so does
//! what its readahead advises, as in [`crate::read`]. The policy sends jobs to
//! replicas; each goes through the servers on its way (a disk, network ports,
//! or one measured link) and arrives its replica's latency later. When all of
//! a block is there the reader takes it and asks for the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Random;
use super::outcome::{Latency, Outcome, ReplicaOutcome};
use super::policy::{Attempt, Chooser, Job, PolicyKind, Sent, Wanted};
use super::reader::ReaderState;
use super::server::{Due, Server, Time};
use super::world::{Cluster, Knowledge, Reader, Workload, World};
use crate::placement::Mapped;
use crate::placement::learned::Learned;
use crate::read::plan::{self, Piece};
use crate::scheduler::ReplicaPolicy;
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaMap, ReplicaSet};

/// How often late segments are looked for, as the daemon does.
const TICK: Time = 25_000_000;

/// A simulation ends here, whether its readers are done or not.
const LONGEST: Time = 24 * 3600 * 1_000_000_000;

/// Reads that a raw job has in flight: the kernel's NFS client reads ahead 15
/// times rsize.
const RAW_READS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Served { server: usize, version: u64 },
    Arrived { flight: usize },
    Change(usize),
    Wake { reader: usize },
    Tick,
}

/// A segment that somebody fetches.
struct JobState {
    reader: usize,
    range: ByteRange,
    tried: ReplicaSet,
    here: bool,
}

/// One attempt under way.
struct Flight {
    job: Job,
    /// `None` for a raw job's.
    attempt: Option<Attempt>,
    replica: usize,
    local: bool,
    /// The servers that it has still to go through, the last first.
    route: Vec<usize>,
}

/// Runs `workload` on `world` under `policy`. `epoch` stands for time zero and
/// may be any instant.
///
/// # Panics
/// Where the workload names files or replicas that the world does not have.
pub fn run(world: &World, workload: &Workload, policy: PolicyKind, epoch: Instant) -> Outcome {
    let mut engine = Engine::new(world, workload, policy, epoch);
    engine.run();
    engine.outcome(policy)
}

struct Engine<'w> {
    world: &'w World,
    workload: &'w Workload,
    epoch: Instant,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    servers: Vec<Server>,
    chooser: Chooser,
    mapped: Vec<Mapped>,
    nodes: Vec<Vec<Option<usize>>>,
    learned: Vec<Learned>,
    jobs: Vec<JobState>,
    flights: Vec<Flight>,
    readers: Vec<ReaderState>,
    latency: Histogram<u64>,
    bytes: Vec<(u64, u64)>,
    wasted: u64,
    hedges: u64,
    is_ticking: bool,
}

impl<'w> Engine<'w> {
    fn new(world: &'w World, workload: &'w Workload, policy: PolicyKind, epoch: Instant) -> Self {
        let servers = match &world.cluster {
            // Of each node: its disk, its network in and out.
            Cluster::Nodes { nodes, .. } => nodes
                .iter()
                .flat_map(|node| [node.disk, node.network, node.network])
                .map(Server::new)
                .collect(),
            // In units of time: see `work`.
            Cluster::Measured { rates } => rates.iter().map(|_| Server::new(1.0)).collect(),
        };
        let limits = ReplicaPolicy {
            weight: 1.0,
            max_in_flight: workload.max_in_flight,
            max_reads: workload.max_reads,
        };
        let names: ReplicaMap<String> = world.gateways.iter().map(|g| g.name.clone()).collect();
        let replicas = names.len();
        let reader = |(index, spec): (usize, &Reader)| {
            let random = Random::new(workload.seed.wrapping_add(index as u64));
            ReaderState::new(spec.clone(), workload.segment, random)
        };
        let chunk = |file: &super::File| {
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
            chooser: Chooser::new(policy, names, workload.segment, &limits, epoch),
            mapped: world.files.iter().map(|file| world.mapped(file)).collect(),
            nodes: world.files.iter().map(|file| world.node_indices(file)).collect(),
            learned: world.files.iter().map(|f| Learned::new(chunk(f), replicas)).collect(),
            jobs: Vec::new(),
            flights: Vec::new(),
            readers: workload.readers.iter().enumerate().map(reader).collect(),
            latency: Histogram::new_with_bounds(1, LONGEST / 1000, 3)
                .expect("constant histogram bounds are valid"),
            bytes: vec![(0, 0); replicas],
            wasted: 0,
            hedges: 0,
            is_ticking: false,
        }
    }

    fn instant(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.now)
    }

    fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn due(&mut self, server: usize, due: Option<Due>) {
        if let Some((time, version)) = due {
            self.at(time, Event::Served { server, version });
        }
    }

    fn run(&mut self) {
        for (index, change) in self.world.changes.iter().enumerate() {
            self.at(change.at.as_nanos() as Time, Event::Change(index));
        }
        for reader in 0..self.readers.len() {
            self.at(self.readers[reader].spec.start.as_nanos() as Time, Event::Wake { reader });
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > LONGEST || self.readers.iter().all(|reader| reader.finished.is_some()) {
                return;
            }
            self.now = time;
            match event {
                Event::Served { server, version } => self.served(server, version),
                Event::Arrived { flight } => self.arrived(flight),
                Event::Change(index) => self.change(index),
                Event::Wake { reader } => self.read_on(reader),
                Event::Tick => self.tick(),
            }
        }
    }

    fn change(&mut self, index: usize) {
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
            let due = self.servers[server].change(rate, self.now);
            self.due(server, due);
        }
    }

    fn served(&mut self, server: usize, version: u64) {
        let Some((flight, next)) = self.servers[server].leave(version, self.now) else { return };
        self.due(server, next);
        self.go_on(flight);
    }

    /// Takes a flight to its next server, or home.
    fn go_on(&mut self, flight: usize) {
        match self.flights[flight].route.pop() {
            Some(server) => {
                let work = self.work(flight);
                let due = self.servers[server].enter(flight, work, self.now);
                self.due(server, due);
            }
            None => {
                let gateway = &self.world.gateways[self.flights[flight].replica];
                let time = self.now + gateway.latency.as_nanos() as Time;
                self.at(time, Event::Arrived { flight });
            }
        }
    }

    /// What a server has to carry: bytes, or the seconds that were measured.
    fn work(&self, flight: usize) -> f64 {
        let flight = &self.flights[flight];
        let bytes = self.jobs[flight.job].range.len() as f64;
        match &self.world.cluster {
            Cluster::Nodes { .. } => bytes,
            Cluster::Measured { rates } => {
                let (local, remote) = rates[flight.replica];
                bytes / if flight.local { local } else { remote }
            }
        }
    }

    fn launch(&mut self, job: Job, replica: usize, attempt: Option<Attempt>) {
        let (file, offset) = {
            let job = &self.jobs[job];
            (self.readers[job.reader].spec.file, job.range.start)
        };
        let local = self.mapped[file].at(offset);
        // Nothing is known where the file has no chunks there: as if local.
        let local =
            local.is_none_or(|(holders, _)| holders.local.contains(ReplicaId::new(replica)));
        let route = self.route(file, offset, replica, local);
        self.flights.push(Flight { job, attempt, replica, local, route });
        self.go_on(self.flights.len() - 1);
    }

    /// The servers on the way of a segment, the last first.
    fn route(&self, file: usize, offset: u64, replica: usize, local: bool) -> Vec<usize> {
        let Cluster::Nodes { head_first, .. } = &self.world.cluster else { return vec![replica] };
        let gateway = self.world.gateways[replica].node;
        let (disk, inward, out) = (gateway * 3, gateway * 3 + 1, gateway * 3 + 2);
        if local {
            return vec![out, disk];
        }
        let holders = self.holders(file, offset);
        let holder = if *head_first {
            holders.first()
        } else {
            // Two gateways do not take turns in step.
            let turn = offset / self.workload.segment + replica as u64;
            holders.get((turn % holders.len().max(1) as u64) as usize)
        };
        match holder {
            Some(holder) => vec![out, inward, holder * 3 + 2, holder * 3],
            None => vec![out, disk],
        }
    }

    fn holders(&self, file: usize, offset: u64) -> Vec<usize> {
        let chunk = self.world.files[file].chunks.at(offset);
        let nodes = chunk.map_or(&[][..], |chunk| chunk.nodes);
        nodes.iter().filter_map(|node| self.nodes[file][usize::from(*node)]).collect()
    }

    fn arrived(&mut self, flight: usize) {
        let Flight { job, attempt, replica, local, .. } = self.flights[flight];
        let bytes = self.jobs[job].range.len();
        self.bytes[replica].0 += bytes;
        if local {
            self.bytes[replica].1 += bytes;
        }
        let reader = self.jobs[job].reader;
        match attempt {
            Some(attempt) => {
                let now = self.instant();
                let ended = self.chooser.finished(attempt, bytes, now);
                if let Some(service) = ended.and_then(|ended| ended.service) {
                    let file = self.readers[reader].spec.file;
                    let pace = service.as_secs_f64() / bytes as f64;
                    let offset = self.jobs[job].range.start;
                    self.learned[file].note(offset, ReplicaId::new(replica), pace, now);
                }
            }
            None => {
                self.readers[reader].raw_in_flight -= 1;
                self.launch_raw(reader);
            }
        }
        if self.jobs[job].here {
            self.wasted += bytes;
        } else {
            self.jobs[job].here = true;
            self.take(reader);
        }
        self.dispatch();
    }

    fn dispatch(&mut self) {
        let mut sent = Vec::new();
        self.chooser.next(self.instant(), &mut sent);
        for Sent { attempt, job, replica } in sent {
            self.jobs[job].tried = self.jobs[job].tried.with(replica);
            self.launch(job, replica.index(), Some(attempt));
        }
        if !self.is_ticking && !self.chooser.is_idle() {
            self.is_ticking = true;
            self.at(self.now + TICK, Event::Tick);
        }
    }

    fn tick(&mut self) {
        self.is_ticking = false;
        let (jobs, readers, now) = (&self.jobs, &self.readers, self.instant());
        let is_awaited = |job: &Job| {
            let JobState { reader, range, .. } = &jobs[*job];
            readers[*reader].reading.is_some_and(|(block, _)| !block.intersect(*range).is_empty())
        };
        for (job, candidates) in self.chooser.late(now, is_awaited) {
            let left = candidates.minus(self.jobs[job].tried);
            if !self.jobs[job].here && !left.is_empty() {
                self.hedges += 1;
                self.want(job, false, true, left);
            }
        }
        self.dispatch();
    }

    fn want(&mut self, job: Job, ahead: bool, hedge: bool, candidates: ReplicaSet) {
        let JobState { reader, range, .. } = self.jobs[job];
        let file = self.readers[reader].spec.file;
        let holders = match self.workload.knowledge {
            Knowledge::Known => self.mapped[file].at(range.start).map(|(holders, _)| holders),
            Knowledge::Learned => {
                let local = self.learned[file].local(range.start, self.instant());
                local.map(|local| Holders { local, spare: false })
            }
            Knowledge::None => None,
        };
        let first = self.holders(file, range.start).first().copied();
        let gateway =
            first.and_then(|node| self.world.gateways.iter().position(|g| g.node == node));
        self.chooser.want(Wanted {
            job,
            bytes: range.len(),
            ahead,
            hedge,
            candidates,
            holders,
            first: gateway.map(ReplicaId::new),
            stream: reader as u64,
            start: range.start,
        });
    }

    /// Lets a reader ask for its next block.
    fn read_on(&mut self, reader: usize) {
        let size = self.world.files[self.readers[reader].spec.file].size;
        let Some(block) = self.readers[reader].next_block(size) else {
            self.readers[reader].finished = Some(self.now);
            return;
        };
        self.readers[reader].reading = Some((block, self.now));
        self.fetch(reader, block, false);
        let max = self.window();
        let advice = self.readers[reader].readahead.observe(block, size, max);
        self.forget(reader, advice.abandon);
        if !advice.fetch.is_empty() {
            self.fetch(reader, advice.fetch, true);
            self.readers[reader].readahead.fetched(block, advice.fetch.end);
        }
        self.dispatch();
        self.take(reader);
    }

    /// As the daemon's: the readers share the budget.
    fn window(&self) -> u64 {
        let open = self.readers.iter().filter(|reader| reader.finished.is_none()).count();
        self.workload.readahead_max.min(self.workload.budget / 2 / open.max(1) as u64)
    }

    fn fetch(&mut self, reader: usize, range: ByteRange, ahead: bool) {
        let known = &self.readers[reader].known;
        let from = known.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let here =
            known.range(from..range.end.max(from)).map(|(_, job)| (self.jobs[*job].range, ()));
        let pieces = plan::cover(range, here, self.workload.segment);
        for piece in pieces {
            let Piece::Missing(part) = piece else { continue };
            let job = self.jobs.len();
            self.jobs.push(JobState { reader, range: part, tried: ReplicaSet::EMPTY, here: false });
            self.readers[reader].known.insert(part.start, job);
            if self.readers[reader].spec.raw.is_some() {
                self.readers[reader].raw_waiting.push_back(job);
                self.launch_raw(reader);
            } else {
                let all = ReplicaSet::first(self.world.gateways.len());
                self.want(job, ahead, false, all);
            }
        }
    }

    fn launch_raw(&mut self, reader: usize) {
        while self.readers[reader].raw_in_flight < RAW_READS {
            let Some(replica) = self.readers[reader].spec.raw else { return };
            let Some(job) = self.readers[reader].raw_waiting.pop_front() else { return };
            self.readers[reader].raw_in_flight += 1;
            self.launch(job, replica, None);
        }
    }

    /// Forgets what was fetched ahead in vain.
    fn forget(&mut self, reader: usize, range: ByteRange) {
        self.readers[reader].known.retain(|start, _| *start < range.start || *start >= range.end);
    }

    /// Gives a reader its block, if all of it is here.
    fn take(&mut self, reader: usize) {
        let Some((block, since)) = self.readers[reader].reading else { return };
        let known = &self.readers[reader].known;
        let from = known.range(..=block.start).next_back().map_or(block.start, |(start, _)| *start);
        let mut parts = known.range(from..block.end);
        if !parts.all(|(_, job)| self.jobs[*job].here) {
            return;
        }
        let state = &mut self.readers[reader];
        state.reading = None;
        state.position = block.end;
        state.done_reads += 1;
        state.bytes += block.len();
        state.burst += block.len();
        // What has been read to its end is not kept.
        let jobs = &self.jobs;
        let used = |start: &u64, job: &Job| *start >= from && jobs[*job].range.end <= block.end;
        let used: Vec<u64> = state
            .known
            .range(from..block.end)
            .filter(|(start, job)| used(start, job))
            .map(|(start, _)| *start)
            .collect();
        for start in used {
            state.known.remove(&start);
        }
        self.latency.saturating_record(((self.now - since) / 1000).max(1));
        let pause = state.pause();
        self.at(self.now + pause, Event::Wake { reader });
    }

    fn outcome(&self, policy: PolicyKind) -> Outcome {
        let end = self.readers.iter().map(|r| r.finished.unwrap_or(self.now)).max().unwrap_or(0);
        let seconds = |from: Time, to: Time| (to.saturating_sub(from) as f64 / 1e9).max(1e-9);
        let times: Vec<(u64, f64)> = self
            .readers
            .iter()
            .map(|reader| {
                let start = reader.spec.start.as_nanos() as Time;
                (reader.bytes, seconds(start, reader.finished.unwrap_or(self.now)))
            })
            .collect();
        let bytes: u64 = times.iter().map(|(bytes, _)| bytes).sum();
        let delivered: u64 = self.bytes.iter().map(|(bytes, _)| bytes).sum();
        let local: u64 = self.bytes.iter().map(|(_, local)| local).sum();
        let slowest = times.iter().map(|(_, time)| *time).fold(0.0, f64::max);
        let fastest = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        let replica = |(gateway, (bytes, local)): (&super::Gateway, &(u64, u64))| ReplicaOutcome {
            name: gateway.name.clone(),
            bytes: *bytes,
            share: *bytes as f64 / delivered.max(1) as f64,
            bytes_local: *local,
        };
        Outcome {
            policy: policy.name().to_owned(),
            seconds: seconds(0, end),
            bytes,
            reader_rates: times.iter().map(|(bytes, time)| *bytes as f64 / time).sum(),
            bytes_per_second: bytes as f64 / seconds(0, end),
            spread: slowest / fastest,
            local: local as f64 / delivered.max(1) as f64,
            wasted: self.wasted,
            hedges: self.hedges,
            latency: Latency::of(&self.latency),
            replicas: self.world.gateways.iter().zip(&self.bytes).map(replica).collect(),
            complete: self.readers.iter().all(|reader| reader.finished.is_some()),
        }
    }
}
