//! Scheduler, health and hedging while replicas break by seeded plans: hundreds of seeds, with
//! simulated time.
//!
//! The schedules are those of the nemesis (`tests/nemesis/schedule.rs`), which does the same to a
//! real mount. A replica carries one segment after the other at its own rate; its trouble changes
//! that rate, or the result:
//!
//! - *hang*: nothing moves until it is healed;
//! - *slow*: the rate is divided by a factor;
//! - *errno*: every result is a failure; *flap*: in alternation;
//! - *crumbs*: a third of the rate, because of the round trips;
//! - *ends early, diverged, unmounted*: a useless answer that is no failure of the replica, after
//!   which it is left out for that file for three seconds.
//!
//! [`Run::judge`] has the conditions for every seed. `FANFS_SIM_SEEDS=N` before `cargo test --test
//! library sim_faults` runs the first N seeds, `FANFS_SIM_SEED=N` repeats a failed one.

// The nemesis uses all of it.
#[allow(dead_code)]
#[path = "nemesis/schedule.rs"]
mod schedule;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use fanfs::replicas::health::{HealthState, MAX_EJECTION, MountCheck};
use fanfs::replicas::health_board::HealthBoard;
use fanfs::scheduler::{
    AttemptId, AttemptOutcome, Dispatch, QueueKey, ReplicaPolicy, Scheduler, SchedulerPolicy,
    SegmentNeed, SegmentRequest,
};
use fanfs::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};
use schedule::{Calls, Menu, Random, Schedule, Trouble};

const MIB: u64 = 1 << 20;

/// The step of time.
const STEP: Duration = Duration::from_millis(1);

/// Interval of the search for late segments, in steps: the same as the daemon's.
const TICK: u64 = 25;

const ATTEMPT: Duration = Duration::from_millis(500);

/// How long a replica is left out for a file of which it had another version.
const REFUSED: Duration = Duration::from_secs(3);

/// The time within which a segment arrives while one replica is healthy: every other replica uses
/// its time, and the healthy one must carry the segments that were queued there.
const BOUND: Duration = Duration::from_millis(3500);

/// After the heal every replica is used again within the longest pause between two probes, plus the
/// time until it is measured as fast again.
const RECOVERY: Duration = MAX_EJECTION.saturating_add(Duration::from_secs(5));

/// Segments in a row that may be read twice, whatever was delivered before: the burst and the
/// overdraft of the hedge budget, and the repeats after deadlines.
const FREE: u64 = 64;

/// The seeds of `cargo test`.
const SEEDS: u64 = 500;

struct Link {
    rate: f64,
    trouble: Option<Trouble>,
    /// The item in transfer, and its remaining bytes.
    queue: VecDeque<(AttemptId, Item, f64)>,
    refused_until: Option<Duration>,
    /// Whether it is a mount check, which proves that the replica is still the same mount.
    proving: bool,
    delivered: u64,
}

impl Link {
    /// Bytes that it carries in one step.
    fn capacity(&self) -> f64 {
        let factor = match self.trouble {
            Some(Trouble::Hang(Calls::Reads | Calls::All)) => 0.0,
            Some(Trouble::Slow(times)) => 1.0 / f64::from(times),
            Some(Trouble::Crumbs(_)) => 1.0 / 3.0,
            _ => 1.0,
        };
        factor * self.rate * STEP.as_secs_f64()
    }

    /// The result of a mount check; none while the replica hangs.
    fn proof(&self) -> Option<MountCheck> {
        match self.trouble {
            Some(Trouble::Hang(Calls::Metadata | Calls::All)) => None,
            Some(Trouble::Error(_, Calls::Metadata | Calls::All)) => Some(MountCheck::Failed),
            Some(Trouble::Unmounted) => Some(MountCheck::MountGone),
            _ => Some(MountCheck::SameMount),
        }
    }

    fn outcome(&self) -> AttemptOutcome {
        match self.trouble {
            Some(Trouble::Error(_, Calls::Reads | Calls::All)) => AttemptOutcome::Failed,
            Some(Trouble::EndsEarly | Trouble::Diverged | Trouble::Unmounted) => {
                AttemptOutcome::Neutral
            }
            _ => AttemptOutcome::Delivered(MIB),
        }
    }
}

/// A segment that a reader waits for, or will need.
struct Segment {
    /// The time since which its reader waits for it, if it does.
    since: Option<Duration>,
    tried: ReplicaSet,
    outstanding: usize,
    want: Option<QueueKey>,
    here: bool,
}

/// A reader of one file: it fetches this many segments ahead.
struct Reader {
    window: u64,
    next: u64,
    wanted: u64,
    pause: Duration,
    sleeps_until: Duration,
}

type Item = (usize, u64);

struct Run {
    seed: u64,
    schedule: Schedule,
    epoch: Instant,
    now: Duration,
    steps: u64,
    links: Vec<Link>,
    scheduler: Scheduler<Item>,
    health: HealthBoard,
    readers: Vec<Reader>,
    segments: BTreeMap<Item, Segment>,
    /// Whether a segment was requested or promoted, an attempt ended, or the ticker ran since the
    /// last step: then the daemon schedules, too.
    changed: bool,
    over: bool,
    arrived: u64,
    /// Of these, the segments that had arrived before.
    twice: u64,
    wrong: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let replicas = 2 + random.below(4) as usize;
        let length = Duration::from_secs(20);
        let menu = Menu {
            replicas,
            length,
            blackouts: seed % 4 == 3,
            diverging: Some(replicas - 1),
            unmounts: true,
        };
        let epoch = Instant::now();
        let policy = SchedulerPolicy { segment: MIB, attempt_deadline: ATTEMPT };
        let names = ReplicaMap::from_fn(replicas, |id| format!("r{}", id.index() + 1));
        let replica =
            ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6, max_rate: None };
        let policies = ReplicaMap::from_fn(replicas, |_| replica.clone());
        let link = |random: &mut Random| Link {
            rate: (40 + random.below(160)) as f64 * MIB as f64,
            trouble: None,
            queue: VecDeque::new(),
            refused_until: None,
            proving: false,
            delivered: 0,
        };
        let reader = |random: &mut Random| Reader {
            window: [0, 0, 2, 16][random.below(4) as usize],
            next: 0,
            wanted: 0,
            pause: Duration::from_millis([0, 5, 50][random.below(3) as usize]),
            sleeps_until: Duration::ZERO,
        };
        let links = (0..replicas).map(|_| link(&mut random)).collect();
        let readers = (0..=random.below(3)).map(|_| reader(&mut random)).collect();
        Self {
            seed,
            schedule: Schedule::of(seed, &menu),
            epoch,
            now: Duration::ZERO,
            steps: 0,
            links,
            scheduler: Scheduler::new(policy, policies, epoch),
            health: HealthBoard::new(names, true, epoch),
            readers,
            segments: BTreeMap::new(),
            changed: false,
            over: false,
            arrived: 0,
            twice: 0,
            wrong: Vec::new(),
        }
    }

    fn instant(&self) -> Instant {
        self.epoch + self.now
    }

    fn note(&mut self, text: String) {
        let at = self.now.as_secs_f64();
        self.wrong.push(format!("seed {}, {at:.3} s: {text}", self.seed));
    }

    /// The replicas' true states, and their measured ones.
    fn states(&self) -> Vec<String> {
        let standings = self.scheduler.snapshots(&self.health, self.instant());
        let states = standings.iter().zip(&self.links).map(|((_, thought), link)| {
            let Link { rate, trouble, queue, delivered, .. } = link;
            let (health, rate) = (thought.health.state, rate / MIB as f64);
            let (thought, cap) = (thought.rate.local / MIB as f64, thought.cap / MIB);
            let queued = queue.len();
            format!(
                "{health:?}, {thought:.1} of {rate:.0} MiB/s, {trouble:?}, {queued} in flight of \
                 {cap}, {delivered} delivered"
            )
        });
        states.collect()
    }

    /// Replicas that have not shown another version of the file lately.
    fn candidates(&self) -> ReplicaSet {
        let may = |(i, link): (usize, &Link)| {
            let refused = link.refused_until.is_some_and(|until| self.now < until);
            (!refused).then(|| ReplicaId::new(i))
        };
        let left = self.links.iter().enumerate().filter_map(may);
        let left = left.fold(ReplicaSet::EMPTY, ReplicaSet::with);
        if left.is_empty() { ReplicaSet::first(self.links.len()) } else { left }
    }

    fn want(&mut self, item: Item, ahead: bool, hedge: bool, candidates: ReplicaSet) {
        self.changed = true;
        let want = self.scheduler.enqueue(SegmentRequest {
            item,
            bytes: MIB,
            is_readahead: ahead,
            candidates,
            holders: Holders::UNKNOWN,
            pinned: ReplicaSet::EMPTY,
            is_hedge: hedge,
            file_number: item.0 as u64,
            start: item.1 * MIB,
            open_on: ReplicaSet::first(self.links.len()),
        });
        self.segments.get_mut(&item).expect("a reader waits for it").want = Some(want);
    }

    /// As `read` does for a segment that has just been requested.
    fn begin(&mut self, item: Item, ahead: bool) {
        let segment = Segment {
            since: (!ahead).then_some(self.now),
            tried: ReplicaSet::EMPTY,
            outstanding: 0,
            want: None,
            here: false,
        };
        self.segments.insert(item, segment);
        self.want(item, ahead, false, self.candidates());
    }

    /// As `read::fetch` does after an attempt without a result.
    fn failed(&mut self, item: Item) {
        let candidates = self.candidates();
        let Some(segment) = self.segments.get(&item) else { return };
        if segment.here || segment.want.is_some() {
            return;
        }
        let left = candidates.minus(segment.tried);
        if !left.is_empty() {
            return self.want(item, false, false, left);
        }
        if segment.outstanding > 0 {
            return;
        }
        // Every replica has failed: the request has failed, and the reader asks again.
        let since = segment.since;
        if since.is_some_and(|since| self.schedule.spares(since, self.now)) {
            self.note(format!("segment {item:?} failed everywhere"));
        }
        self.begin(item, since.is_none());
    }

    fn read_on(&mut self) {
        for i in 0..self.readers.len() {
            while self.segments.get(&(i, self.readers[i].next)).is_some_and(|s| s.here) {
                self.segments.remove(&(i, self.readers[i].next));
                self.readers[i].next += 1;
                self.readers[i].sleeps_until = self.now + self.readers[i].pause;
            }
            let Reader { next, window, wanted, sleeps_until, .. } = self.readers[i];
            if self.over || self.now < sleeps_until {
                continue;
            }
            if let Some(segment) = self.segments.get_mut(&(i, next))
                && segment.since.is_none()
            {
                segment.since = Some(self.now);
                if let Some(want) = segment.want {
                    segment.want = self.scheduler.promote(want);
                    self.changed = true;
                }
            }
            for segment in wanted..=next + window {
                self.begin((i, segment), segment > next);
            }
            self.readers[i].wanted = wanted.max(next + window + 1);
        }
    }

    fn send(&mut self) {
        let mut out = Vec::new();
        let now = self.instant();
        self.scheduler.schedule(&mut self.health, now, &mut out);
        for Dispatch { attempt, item, replica, .. } in out {
            if let Some(segment) = self.segments.get_mut(&item) {
                segment.tried = segment.tried.with(replica);
                segment.outstanding += 1;
                segment.want = None;
            }
            self.links[replica.index()].queue.push_back((attempt, item, MIB as f64));
        }
    }

    /// The arrivals of one step.
    fn carry(&mut self) {
        for i in 0..self.links.len() {
            let mut capacity = self.links[i].capacity();
            while let Some((.., left)) = self.links[i].queue.front_mut() {
                if *left > capacity {
                    *left -= capacity;
                    break;
                }
                capacity -= *left;
                let (attempt, item, _) = self.links[i].queue.pop_front().expect("it has a front");
                self.ended(i, attempt, item);
            }
        }
    }

    fn ended(&mut self, replica: usize, attempt: AttemptId, item: Item) {
        self.changed = true;
        let outcome = self.links[replica].outcome();
        let now = self.instant();
        let finished = self.scheduler.attempt_finished(attempt, outcome, &mut self.health, now);
        if finished.is_none() {
            self.note(format!("an attempt at {item:?} ended twice"));
        }
        if outcome == AttemptOutcome::Neutral {
            self.links[replica].refused_until = Some(self.now + REFUSED);
        }
        let is_good = matches!(outcome, AttemptOutcome::Delivered(_));
        self.links[replica].delivered += u64::from(is_good);
        let known = self.segments.get_mut(&item);
        if is_good {
            self.arrived += 1;
            match known.filter(|segment| !segment.here) {
                Some(segment) => {
                    segment.here = true;
                    if let Some(want) = segment.want.take() {
                        self.scheduler.cancel(want);
                    }
                }
                None => self.twice += 1,
            }
        } else if let Some(segment) = known {
            segment.outstanding = segment.outstanding.saturating_sub(1);
            self.failed(item);
        }
    }

    /// As the daemon's ticker does.
    fn tick(&mut self) {
        self.changed = true;
        for id in self.health.due_mount_checks(self.epoch + self.now).iter() {
            self.links[id.index()].proving = true;
        }
        for i in 0..self.links.len() {
            if let Some(proof) = self.links[i].proof()
                && std::mem::take(&mut self.links[i].proving)
            {
                self.health.mount_checked(ReplicaId::new(i), proof, self.epoch + self.now);
            }
        }
        let mut late = Vec::new();
        let (segments, candidates) = (&self.segments, self.candidates());
        let need = |item: &Item| {
            let segment = segments.get(item);
            SegmentNeed {
                is_awaited: segment.is_some_and(|s| s.since.is_some()),
                alternatives: segment.map_or(ReplicaSet::EMPTY, |s| candidates.minus(s.tried)),
            }
        };
        self.scheduler.find_late(&mut self.health, self.epoch + self.now, need, &mut late);
        self.scheduler.refresh_stranded(|item| need(item).alternatives);
        for late in late {
            match self.segments.get(&late.item) {
                Some(segment) if !segment.here && segment.want.is_none() => {
                    self.want(late.item, false, true, late.candidates);
                }
                _ => self.scheduler.cancel_hedge(&late),
            }
        }
        // A request past its deadline has failed, and is made again.
        let now = self.now;
        let overdue = |segment: &Segment| {
            !segment.here && segment.since.is_some_and(|since| now - since > BOUND)
        };
        let overdue: Vec<Item> =
            self.segments.iter().filter(|(_, s)| overdue(s)).map(|(item, _)| *item).collect();
        for item in overdue {
            let segment = &self.segments[&item];
            if segment.since.is_some_and(|since| self.schedule.spares(since, self.now)) {
                let Segment { tried, outstanding, want, .. } = segment;
                let tried: Vec<_> = tried.iter().map(|id| id.index() + 1).collect();
                let queued = if want.is_some() { "queued" } else { "not queued" };
                let text = format!(
                    "{item:?} is late: {tried:?} tried, {outstanding} out, {queued}; {:#?}",
                    self.states()
                );
                self.note(text);
            }
            if let Some(want) = self.segments[&item].want {
                self.scheduler.cancel(want);
            }
            self.begin(item, false);
        }
    }

    fn step(&mut self) {
        self.read_on();
        if std::mem::take(&mut self.changed) {
            self.send();
        }
        self.now += STEP;
        self.steps += 1;
        self.carry();
        if self.steps.is_multiple_of(TICK) {
            self.tick();
        }
        let is_out = |i| matches!(self.health.state(ReplicaId::new(i)), HealthState::Ejected);
        if (0..self.links.len()).all(is_out) {
            self.note("all replicas are ejected".to_owned());
        }
    }

    /// Runs a seed, and returns the violation, if any.
    fn judge(mut self) -> Vec<String> {
        let mut events = self.schedule.events().into_iter().peekable();
        let length = Duration::from_secs(20);
        while self.now < length && self.wrong.is_empty() {
            while let Some(event) = events.next_if(|event| event.at <= self.now) {
                self.links[event.replica].trouble = event.trouble;
            }
            self.step();
        }
        // All are healed: a reader that continues must use every replica again.
        self.links.iter_mut().for_each(|link| link.trouble = None);
        self.readers[0].window = 16;
        self.readers[0].pause = Duration::ZERO;
        let before: Vec<u64> = self.links.iter().map(|link| link.delivered).collect();
        let healed = self.now;
        while self.wrong.is_empty() {
            let again = self.links.iter().zip(&before).filter(|(link, b)| link.delivered > **b);
            if again.count() == self.links.len() {
                break;
            }
            if self.now > healed + RECOVERY {
                let states = self.states();
                self.note(format!("not all are used again: {states:?}"));
            }
            self.step();
        }
        // Nothing may stay in flight once no segment is wanted.
        self.over = true;
        let until = self.now + Duration::from_secs(60);
        while !self.scheduler.is_idle() && self.now < until && self.wrong.is_empty() {
            self.step();
        }
        if self.wrong.is_empty() && self.scheduler.depth() != (0, 0) {
            self.note(format!("left in the queue and in flight: {:?}", self.scheduler.depth()));
        }
        let standings = self.scheduler.snapshots(&self.health, self.instant());
        let in_flight: u64 = standings.iter().map(|(_, standing)| standing.in_flight).sum();
        if self.wrong.is_empty() && in_flight > 0 {
            self.note(format!("{in_flight} bytes in flight, and nothing is"));
        }
        let most = self.arrived / 20 + FREE;
        if self.wrong.is_empty() && self.twice > most {
            self.note(format!("{} of {} segments came twice", self.twice, self.arrived));
        }
        self.wrong
    }
}

#[test]
fn every_segment_arrives_and_no_state_remains() {
    let number =
        |name| std::env::var(name).ok().map(|text| text.parse().expect("the variable is a number"));
    let seeds = match number("FANFS_SIM_SEED") {
        Some(seed) => {
            println!("{}", Run::new(seed).schedule);
            seed..seed + 1
        }
        None => 0..number("FANFS_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let (first, count) = (seeds.start, seeds.end - seeds.start);
    assert!(count > 0, "no seed");
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |thread: u64| {
        let seeds = (first + thread..first + count).step_by(threads as usize);
        seeds.flat_map(|seed| Run::new(seed).judge()).collect::<Vec<_>>()
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    assert!(wrong.is_empty(), "{} of {count} seeds:\n{}", wrong.len(), wrong.join("\n"));
}
