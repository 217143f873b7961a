//! The scheduler against simulated replicas: the daemon's code with simulated time.
//!
//! A replica is a link that carries one segment after the other at a rate that may change, plus a
//! latency. The reader reads one file from start to end as fast as it arrives, with a readahead
//! window. Time moves in steps of half a millisecond, so every figure is exact and the same in each
//! run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use fanfs::replicas::health_board::HealthBoard;
use fanfs::scheduler::{
    AttemptId, AttemptOutcome, Dispatch, QueueKey, ReplicaPolicy, Scheduler, SchedulerPolicy,
    SegmentNeed, SegmentRequest,
};
use fanfs::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const STEP: Duration = Duration::from_micros(500);
const TICK: u64 = 50;

/// Delivers `rate(seconds)` MiB/s; a segment arrives `latency` later.
struct Link {
    rate: Box<dyn Fn(f64) -> f64>,
    latency: Duration,
    queue: VecDeque<(AttemptId, u64, f64)>,
    arriving: VecDeque<(Instant, AttemptId, u64)>,
    delivered: u64,
    /// Every n-th segment fails instead.
    fails_every: Option<u64>,
    /// Every n-th segment is in the page cache.
    cached_every: Option<u64>,
}

fn link(rate: impl Fn(f64) -> f64 + 'static) -> Link {
    Link {
        rate: Box::new(rate),
        latency: Duration::from_millis(1),
        queue: VecDeque::new(),
        arriving: VecDeque::new(),
        delivered: 0,
        fails_every: None,
        cached_every: None,
    }
}

struct Sim {
    start: Instant,
    now: Instant,
    steps: u64,
    links: Vec<Link>,
    scheduler: Scheduler<u64>,
    health: HealthBoard,
    tried: Vec<ReplicaSet>,
    /// The holders of each segment.
    holders: Vec<Holders>,
    /// How often each segment was queued, and how often sent.
    causes: Vec<u32>,
    sent: Vec<u32>,
    here: BTreeSet<u64>,
    /// The first segment that the reader does not have.
    reader: u64,
    /// MiB the reader had at the end of each 100 ms.
    progress: Vec<u64>,
    longest_wait: Duration,
    waiting_since: Instant,
    /// Until this time, in seconds, there is no memory for second attempts.
    no_memory_until: f64,
}

impl Sim {
    fn new(links: Vec<Link>, segments: u64) -> Self {
        let now = Instant::now();
        let policy = SchedulerPolicy { segment: MIB, attempt_deadline: Duration::from_secs(5) };
        let names = ReplicaMap::from_fn(links.len(), |id| format!("r{}", id.index() + 1));
        let replica =
            ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6, max_rate: None };
        let replicas = ReplicaMap::from_fn(links.len(), |_| replica.clone());
        Self {
            start: now,
            now,
            steps: 0,
            scheduler: Scheduler::new(policy, replicas, now),
            health: HealthBoard::new(names, false, now),
            tried: vec![ReplicaSet::EMPTY; segments as usize],
            holders: vec![Holders::UNKNOWN; segments as usize],
            causes: vec![0; segments as usize],
            sent: vec![0; segments as usize],
            links,
            here: BTreeSet::new(),
            reader: 0,
            progress: Vec::new(),
            longest_wait: Duration::ZERO,
            waiting_since: now,
            no_memory_until: 0.0,
        }
    }

    fn seconds(&self) -> f64 {
        (self.now - self.start).as_secs_f64()
    }

    fn want(&mut self, segment: u64, ahead: bool) {
        let all = ReplicaSet::first(self.links.len());
        let left = all.minus(self.tried[segment as usize]);
        // Every replica has failed once: start again, as a new request would.
        let candidates = if left.is_empty() { all } else { left };
        let want = SegmentRequest {
            item: segment,
            bytes: MIB,
            is_readahead: ahead,
            candidates,
            holders: self.holders[segment as usize],
            pinned: ReplicaSet::EMPTY,
            is_hedge: false,
            file_number: 1,
            start: segment * MIB,
            open_on: candidates,
        };
        self.causes[segment as usize] += 1;
        self.scheduler.enqueue(want);
    }

    /// Reads the whole file; returns the seconds that this took.
    fn read(&mut self, window: u64) -> f64 {
        let segments = self.tried.len() as u64;
        let mut wanted = 0;
        while self.reader < segments {
            while wanted < segments.min(self.reader + window) {
                self.want(wanted, wanted > self.reader);
                wanted += 1;
            }
            self.step();
            assert!(self.seconds() < 600.0, "the read does not end");
        }
        let took = self.seconds();
        // Segments in flight arrive, and no state remains.
        while !self.scheduler.is_idle() && self.seconds() < took + 60.0 {
            self.step();
        }
        took
    }

    /// Reads segments one after the other, each once the one before has arrived, until `seconds`.
    fn read_singly(&mut self, seconds: f64) {
        while self.seconds() < seconds {
            let segment = self.reader;
            self.want(segment, false);
            while self.reader == segment {
                self.step();
            }
        }
    }

    fn step(&mut self) {
        let mut dispatches = Vec::new();
        self.scheduler.schedule(&mut self.health, self.now, &mut dispatches);
        for Dispatch { attempt, item, replica, .. } in dispatches {
            self.sent[item as usize] += 1;
            self.tried[item as usize] = self.tried[item as usize].with(replica);
            let link = &mut self.links[replica.index()];
            if link.cached_every.is_some_and(|n| item.is_multiple_of(n)) {
                link.arriving.push_front((self.now, attempt, item));
            } else {
                link.queue.push_back((attempt, item, MIB as f64));
            }
        }
        self.now += STEP;
        self.steps += 1;
        let seconds = self.seconds();
        let mut ended = Vec::new();
        for link in &mut self.links {
            let mut capacity = (link.rate)(seconds) * MIB as f64 * STEP.as_secs_f64();
            while let Some((attempt, segment, left)) = link.queue.front_mut() {
                if *left > capacity {
                    *left -= capacity;
                    break;
                }
                capacity -= *left;
                link.arriving.push_back((self.now + link.latency, *attempt, *segment));
                link.queue.pop_front();
            }
            while link.arriving.front().is_some_and(|(at, ..)| *at <= self.now) {
                let (_, attempt, segment) = link.arriving.pop_front().unwrap();
                link.delivered += 1;
                let fails = link.fails_every.is_some_and(|n| link.delivered.is_multiple_of(n));
                ended.push((attempt, segment, fails));
            }
        }
        for (attempt, segment, fails) in ended {
            let outcome =
                if fails { AttemptOutcome::Failed } else { AttemptOutcome::Delivered(MIB) };
            self.scheduler.attempt_finished(attempt, outcome, &mut self.health, self.now);
            if !fails {
                self.here.insert(segment);
            } else if !self.here.contains(&segment) {
                self.want(segment, false);
            }
        }
        if self.steps.is_multiple_of(TICK) {
            let mut late = Vec::new();
            let (tried, all) = (&self.tried, ReplicaSet::first(self.links.len()));
            let need = |segment: &u64| SegmentNeed {
                is_awaited: true,
                alternatives: all.minus(tried[*segment as usize]).non_empty_or(all),
            };
            self.scheduler.find_late(&mut self.health, self.now, need, &mut late);
            for late in late {
                if self.seconds() < self.no_memory_until {
                    self.scheduler.cancel_hedge(&late);
                } else if !self.here.contains(&late.item) {
                    self.want(late.item, false);
                }
            }
        }
        while self.here.contains(&self.reader) {
            self.longest_wait = self.longest_wait.max(self.now - self.waiting_since);
            self.waiting_since = self.now;
            self.reader += 1;
        }
        if self.steps.is_multiple_of(200) {
            self.progress.push(self.reader);
        }
    }

    fn shares(&self) -> Vec<f64> {
        let total: u64 = self.links.iter().map(|link| link.delivered).sum();
        self.links.iter().map(|link| link.delivered as f64 / total as f64).collect()
    }
}

const SEGMENTS: u64 = 2048;
const WINDOW: u64 = 64;

/// The share of the sum that one reader gets.
fn efficiency(rates: &[f64]) -> (f64, Sim) {
    let links = rates.iter().copied().map(|rate| link(move |_| rate)).collect();
    let mut sim = Sim::new(links, SEGMENTS);
    let took = sim.read(WINDOW);
    (SEGMENTS as f64 / took / rates.iter().sum::<f64>(), sim)
}

#[test]
fn one_reader_gets_the_sum_of_equal_replicas() {
    for n in [1, 2, 3, 8, 16] {
        let (part, _) = efficiency(&vec![100.0; n]);
        assert!(part > 0.97, "{n} replicas: {part}");
    }
}

#[test]
fn one_reader_gets_the_sum_of_unequal_replicas() {
    for rates in [&[160.0, 100.0, 40.0][..], &[500.0, 50.0], &[100.0, 90.0, 80.0, 70.0, 20.0]] {
        let (part, sim) = efficiency(rates);
        assert!(part > 0.95, "{rates:?}: {part}");
        let sum: f64 = rates.iter().sum();
        // Segments arrive in the order in which the reader needs them.
        assert!(sim.longest_wait < Duration::from_millis(60), "{rates:?}: {:?}", sim.longest_wait);
        for (share, rate) in sim.shares().iter().zip(rates) {
            assert!((share - rate / sum).abs() < 0.05, "{rates:?}: {:?}", sim.shares());
        }
    }
}

#[test]
fn a_very_slow_replica_does_not_delay_others() {
    let (part, sim) = efficiency(&[100.0, 100.0, 1.0]);
    assert!(part > 0.95, "{part}");
    assert!(sim.longest_wait < Duration::from_millis(400), "{:?}", sim.longest_wait);
}

#[test]
fn a_hedge_without_memory_is_sent_later() {
    let links = vec![link(|_| 100.0), link(|t| if t < 1.0 { 100.0 } else { 0.0 })];
    let mut sim = Sim::new(links, SEGMENTS);
    sim.no_memory_until = 2.0;
    sim.read(WINDOW);
    let wait = sim.longest_wait;
    assert!(wait > Duration::from_millis(900) && wait < Duration::from_millis(1200), "{wait:?}");
}

#[test]
fn a_drop_of_a_replica_to_a_tenth_is_followed() {
    let links =
        vec![link(|_| 100.0), link(|t| if t < 2.0 { 100.0 } else { 10.0 }), link(|_| 100.0)];
    let mut sim = Sim::new(links, SEGMENTS);
    let took = sim.read(WINDOW);
    let rest = (SEGMENTS - sim.progress[19]) as f64 / (took - 2.0);
    assert!(rest > 0.95 * 210.0, "{rest} MiB/s of 210");
}

/// Two replicas with chunks of eight segments in turn, and one copy of each; the first replica's
/// rate becomes `rest`.
fn chunks_in_turn(rest: f64) -> Sim {
    let links = vec![link(move |t| if t < 1.0 { 100.0 } else { rest }), link(|_| 100.0)];
    let mut sim = Sim::new(links, SEGMENTS / 4);
    for (segment, holders) in sim.holders.iter_mut().enumerate() {
        let local = ReplicaSet::EMPTY.with(ReplicaId::new(segment / 8 % 2));
        *holders = Holders::local(local);
    }
    sim.read(WINDOW);
    sim
}

fn read_by(sim: &Sim, replica: usize, of: impl Fn(usize) -> bool) -> usize {
    let id = ReplicaId::new(replica);
    (0..sim.tried.len()).filter(|segment| of(*segment) && sim.tried[*segment].contains(id)).count()
}

#[test]
fn a_segment_is_read_from_its_holder() {
    let sim = chunks_in_turn(100.0);
    let strangers: usize =
        [0, 1].iter().map(|id| read_by(&sim, *id, |segment| segment / 8 % 2 != *id)).sum();
    assert!(strangers < sim.tried.len() / 20, "{strangers} of {}", sim.tried.len());
}

/// The other replica would get it from the slow one's disk.
#[test]
fn a_slow_only_copy_is_not_read_twice() {
    let sim = chunks_in_turn(10.0);
    let twice = sim.tried.iter().filter(|tried| tried.len() > 1).count();
    assert_eq!(twice, 0, "of {}", sim.tried.len());
}

#[test]
fn a_recovered_replica_is_used_again() {
    let links = vec![link(|_| 100.0), link(|t| if t < 4.0 { 0.5 } else { 100.0 })];
    let mut sim = Sim::new(links, SEGMENTS);
    sim.read(WINDOW);
    let (before, after) =
        (sim.progress[99] - sim.progress[89], sim.progress[39] - sim.progress[29]);
    assert!(before > 190, "{before} MiB/s well after the recovery, {after} before");
}

/// Two reads are sent at the same time to a slow replica. The second is expected later, so only the
/// first is written off.
#[test]
fn a_hung_read_that_returns_removes_no_other_from_flight() {
    let mut now = Instant::now();
    let policy = SchedulerPolicy { segment: MIB, attempt_deadline: Duration::from_secs(60) };
    let replica =
        ReplicaPolicy { weight: 0.01, max_in_flight: 32 * MIB, max_reads: 2, max_rate: None };
    let mut scheduler = Scheduler::new(policy, [replica].into_iter().collect(), now);
    let mut health = HealthBoard::new(["r1".to_owned()].into_iter().collect(), false, now);
    let mut sent = Vec::new();
    for segment in [0, 1] {
        scheduler.enqueue(SegmentRequest {
            item: segment,
            bytes: MIB,
            is_readahead: false,
            candidates: ReplicaSet::first(1),
            holders: Holders::UNKNOWN,
            pinned: ReplicaSet::EMPTY,
            is_hedge: false,
            file_number: 1,
            start: segment * MIB,
            open_on: ReplicaSet::first(1),
        });
    }
    scheduler.schedule(&mut health, now, &mut sent);
    let in_flight = |scheduler: &Scheduler<u64>, health: &HealthBoard, now| {
        scheduler.snapshots(health, now)[ReplicaId::new(0)].in_flight
    };
    assert_eq!(in_flight(&scheduler, &health, now), 2 * MIB);
    now += Duration::from_secs(10);
    let need = |_: &u64| SegmentNeed { is_awaited: true, alternatives: ReplicaSet::EMPTY };
    scheduler.find_late(&mut health, now, need, &mut Vec::new());
    assert_eq!(in_flight(&scheduler, &health, now), MIB, "one is written off");
    let hung: Vec<_> = scheduler.hung_attempts().map(|(segment, _)| *segment).collect();
    let returned = sent.iter().find(|sent| hung.contains(&sent.item)).unwrap();
    let outcome = AttemptOutcome::Delivered(MIB);
    scheduler.attempt_finished(returned.attempt, outcome, &mut health, now);
    assert_eq!(in_flight(&scheduler, &health, now), MIB, "the other one still is in flight");
}

#[test]
fn a_hung_replica_costs_one_short_wait() {
    let links = vec![link(|_| 100.0), link(|t| if t < 2.0 { 100.0 } else { 0.0 }), link(|_| 100.0)];
    let mut sim = Sim::new(links, SEGMENTS);
    let took = sim.read(WINDOW);
    let rest = (SEGMENTS - sim.progress[19]) as f64 / (took - 2.0);
    assert!(rest > 0.95 * 200.0, "{rest} MiB/s of 200");
    assert!(sim.longest_wait < Duration::from_millis(350), "{:?}", sim.longest_wait);
}

/// Reads for six seconds from this replica and two of 100 MiB/s; none may be ejected.
fn read_beside(cached: Link) -> Sim {
    let mut sim = Sim::new(vec![cached, link(|_| 100.0), link(|_| 100.0)], 200_000);
    let mut wanted = 0;
    while sim.seconds() < 6.0 {
        while wanted < sim.reader + WINDOW {
            sim.want(wanted, wanted > sim.reader);
            wanted += 1;
        }
        sim.step();
    }
    for (id, standing) in sim.scheduler.snapshots(&sim.health, sim.now).iter() {
        assert_eq!(standing.health.ejections, 0, "{id:?}: {standing:?}");
    }
    sim
}

/// For three seconds one replica delivers from its page cache.
#[test]
fn memory_speed_of_one_replica_ejects_no_other() {
    let mut cached = link(|t| if t < 3.0 { 20_000.0 } else { 100.0 });
    cached.latency = Duration::ZERO;
    let sim = read_beside(cached);
    let rest = sim.progress[59] - sim.progress[31];
    assert!(rest as f64 > 0.95 * 2.8 * 300.0, "{rest} MiB of 840 once nothing is cached");
}

/// The same on a busy machine, which pauses everything for a moment now and then: segments in
/// flight then arrive late together, and the cache looks like a very fast link.
#[test]
fn a_cache_on_a_busy_machine_ejects_no_replica() {
    let mut cached = link(|t| if t % 0.5 < 0.02 { 50.0 } else { 20_000.0 });
    cached.latency = Duration::ZERO;
    read_beside(cached);
}

/// Every fourth segment is in the page cache of one replica.
#[test]
fn cache_hits_do_not_affect_the_rate() {
    let mut sim = Sim::new(vec![link(|_| 100.0), link(|_| 100.0)], SEGMENTS);
    sim.links[0].cached_every = Some(4);
    sim.read(WINDOW);
    let rate =
        sim.scheduler.snapshots(&sim.health, sim.now)[ReplicaId::new(0)].rate.local / MIB as f64;
    assert!((80.0..120.0).contains(&rate), "{rate} MiB/s");
}

#[test]
fn a_long_link_is_kept_full() {
    let mut links: Vec<_> = (0..3).map(|_| link(|_| 100.0)).collect();
    for link in &mut links {
        link.latency = Duration::from_millis(20);
    }
    let mut sim = Sim::new(links, SEGMENTS);
    let part = SEGMENTS as f64 / sim.read(WINDOW) / 300.0;
    assert!(part > 0.95, "{part}");
}

/// Two replicas alternate in being slightly faster; the first one's first read is slow.
#[test]
fn a_slow_first_read_does_not_cost_a_replica_its_share() {
    let swing = |t: f64| if ((t * 4.0) as u64).is_multiple_of(2) { 20.0 } else { -20.0 };
    let early = move |t: f64| if t < 1.0 { 0.5 } else { 100.0 + swing(t) };
    let mut sim = Sim::new(vec![link(early), link(move |t| 100.0 - swing(t))], 4096);
    sim.read_singly(0.9);
    assert_eq!(sim.links[0].delivered, 0);
    sim.read_singly(5.0);
    let (from, before) = (sim.reader, sim.links[0].delivered);
    sim.read_singly(20.0);
    let share = (sim.links[0].delivered - before) as f64 / (sim.reader - from) as f64;
    assert!((0.25..0.9).contains(&share), "{share}");
}

#[test]
fn the_only_holder_is_used_after_one_slow_read() {
    // Both have been measured when the holder becomes slow for a second.
    let slow_once = |t: f64| if (1.0..2.0).contains(&t) { 0.5 } else { 100.0 };
    let mut sim = Sim::new(vec![link(slow_once), link(|_| 50.0)], 4096);
    sim.read_singly(0.9);
    let holder = ReplicaSet::EMPTY.with(ReplicaId::new(0));
    sim.holders.fill(Holders::local(holder));
    sim.read_singly(2.5);
    assert!(sim.links[1].delivered > 10, "the other did not help out");
    sim.read_singly(6.0);
    let (from, before) = (sim.reader, sim.links[0].delivered);
    sim.read_singly(12.0);
    let share = (sim.links[0].delivered - before) as f64 / (sim.reader - from) as f64;
    assert!(share > 0.8, "{share}");
}

#[test]
fn a_persistently_slow_replica_costs_few_reads() {
    for slow in [0.0, 1.0] {
        let mut sim = Sim::new(vec![link(|_| 100.0), link(move |_| slow)], 4096);
        sim.read_singly(5.0);
        let from = sim.reader;
        sim.longest_wait = Duration::ZERO;
        sim.read_singly(25.0);
        let alone = 20.0 / (0.010 + 0.001);
        let part = (sim.reader - from) as f64 / alone;
        assert!(part > 0.93, "{slow} MiB/s: {part} of what one replica alone delivers");
        let longest = sim.longest_wait;
        assert!(longest < Duration::from_millis(80), "{slow} MiB/s: {longest:?}");
    }
}

/// A reader among others: reads its own file, segment after segment.
struct Reader {
    /// Segments that it has queued or in flight beyond the next one.
    window: u64,
    /// The segment that it needs next, and the first that it has not requested.
    next: u64,
    asked: u64,
    here: BTreeSet<u64>,
    wants: BTreeMap<u64, QueueKey>,
}

/// How many segments each of the readers with these windows has after `rounds` deliveries of one
/// replica.
fn shares(windows: &[u64], rounds: u64) -> Vec<u64> {
    let mut now = Instant::now();
    let policy = SchedulerPolicy { segment: MIB, attempt_deadline: Duration::from_secs(5) };
    let mut health = HealthBoard::new(ReplicaMap::from_fn(1, |_| String::new()), false, now);
    let replica =
        ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6, max_rate: None };
    let mut scheduler = Scheduler::new(policy, ReplicaMap::from_fn(1, |_| replica.clone()), now);
    let mut readers: Vec<_> = windows
        .iter()
        .map(|window| Reader {
            window: *window,
            next: 0,
            asked: 0,
            here: BTreeSet::new(),
            wants: BTreeMap::new(),
        })
        .collect();
    let mut flying = VecDeque::new();
    for _ in 0..rounds {
        for (i, reader) in readers.iter_mut().enumerate() {
            while reader.here.remove(&reader.next) {
                reader.next += 1;
            }
            if let Some(want) = reader.wants.get_mut(&reader.next)
                && let Some(hurried) = scheduler.promote(*want)
            {
                *want = hurried;
            }
            while reader.asked <= reader.next + reader.window {
                let want = SegmentRequest {
                    item: (i, reader.asked),
                    bytes: MIB,
                    is_readahead: reader.asked > reader.next,
                    candidates: ReplicaSet::first(1),
                    holders: Holders::UNKNOWN,
                    pinned: ReplicaSet::EMPTY,
                    is_hedge: false,
                    file_number: i as u64,
                    open_on: Default::default(),
                    start: reader.asked * MIB,
                };
                reader.wants.insert(reader.asked, scheduler.enqueue(want));
                reader.asked += 1;
            }
        }
        let mut out = Vec::new();
        scheduler.schedule(&mut health, now, &mut out);
        flying.extend(out);
        now += Duration::from_millis(10);
        let Dispatch { attempt, item: (i, segment), .. } = flying.pop_front().expect("work");
        scheduler.attempt_finished(attempt, AttemptOutcome::Delivered(MIB), &mut health, now);
        readers[i].wants.remove(&segment);
        readers[i].here.insert(segment);
    }
    readers.iter().map(|reader| reader.next).collect()
}

#[test]
fn long_readahead_windows_get_no_larger_share() {
    let windows: Vec<u64> = (0..32).map(|i| [0, 1, 2, 16][i % 4]).collect();
    let got = shares(&windows, 3200);
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(*most as f64 <= 1.2 * *least as f64, "{got:?}");
}

/// A replica of a property test: MiB/s in stretches of 0.7 s, latency in ms, and its failing reads.
fn any_link() -> impl Strategy<Value = (Vec<f64>, u64, Option<u64>)> {
    let level = prop_oneof![1 => Just(0.0), 1 => Just(1.0), 4 => 20.0..220.0f64];
    (
        proptest::collection::vec(level, 16),
        0u64..10,
        prop_oneof![3 => Just(None), 1 => (5u64..55).prop_map(Some)],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Rates that change at random, replicas that come, go and fail, chunks anywhere: every segment
    /// arrives, nothing stays in flight, each send has a reason (a request, a failure, lateness),
    /// and little is read twice.
    #[test]
    fn no_segment_is_lost_or_fetched_needlessly(
        links in proptest::collection::vec(any_link(), 2..8),
        chunk in 1usize..200,
        copies in 1usize..4,
        turn in 0usize..8,
        spare: bool,
    ) {
        let n = links.len();
        let links = links.into_iter().enumerate().map(|(i, (mut levels, latency, fails_every))| {
            if i == 0 {
                // At least one replica is always there.
                levels.iter_mut().for_each(|level| *level = level.max(1.0));
            }
            let mut link = link(move |t| levels[(t / 0.7) as usize % levels.len()]);
            link.latency = Duration::from_millis(latency);
            link.fails_every = fails_every;
            link
        });
        let mut sim = Sim::new(links.collect(), 1024);
        for (i, holders) in sim.holders.iter_mut().enumerate() {
            let first = i / chunk + turn;
            let local = (0..copies).map(|copy| ReplicaId::new((first + copy) % n));
            *holders = Holders { is_held_elsewhere: spare, ..Holders::local(local.fold(ReplicaSet::EMPTY, ReplicaSet::with)) };
        }
        sim.read(WINDOW);
        prop_assert_eq!(sim.here.len(), 1024);
        prop_assert_eq!(sim.scheduler.depth(), (0, 0), "something is left in flight");
        for (segment, (sent, causes)) in sim.sent.iter().zip(&sim.causes).enumerate() {
            prop_assert!((1..=*causes).contains(sent), "segment {}: {} for {}", segment, sent, causes);
        }
        let read: u64 = sim.links.iter().map(|link| link.delivered).sum();
        let failed: u64 =
            sim.links.iter().map(|link| link.fails_every.map_or(0, |n| link.delivered / n)).sum();
        prop_assert!(read - failed < 1024 * 13 / 10, "{} read, {} failed", read, failed);
    }
}
