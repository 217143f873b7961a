//! How fast one replica delivers, from what it delivered.
//!
//! The rate is measured on a *busy clock* that runs only while something is in
//! flight, so a replica that nobody asks does not seem slow. It is the bytes
//! of the latest completions divided by the time since the completion before
//! them: of all in the last [`WINDOW`], and of four at least. Measured against
//! BBR's windowed maximum, the mean loses nothing where the rate is steady, and
//! follows a replica that drops to a tenth within one window instead of the
//! maximum's full memory.
//!
//! The clock also bounds the rate from above while nothing comes back: were the
//! next completion to arrive this very moment, the rate could be no better than
//! with it. So a hung replica's estimate decays as it hangs, without anybody
//! noticing that it hangs.
//!
//! Small reads say nothing about the rate: 4 KiB that took as long as the wire
//! is would make any replica look slow. Below a quarter of a segment a read is
//! taken for what it tells about the latency only, and the clock does not run
//! for it.
//!
//! The latency is the part of a read's time that its size does not explain, of
//! the quickest read that had the replica to itself: at depth the time of a read
//! says how much was in flight, whatever the wire. It is that of the quickest
//! such read in the last [`LATENCY_MEMORY`]; and never less than what the
//! oldest read in flight has waited beyond its due, so that a replica that hangs
//! is shunned for small reads as well.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Completions this recent, on the busy clock, make up the rate.
const WINDOW: Duration = Duration::from_millis(250);

/// And so many at least, for replicas that deliver less often than that.
const FEWEST: usize = 4;

/// Completions remembered at most: what a replica of 1 GiB/s delivers of the
/// smallest segments in one window fits several times.
const MOST: usize = 4096;

/// How long the least latency counts.
const LATENCY_MEMORY: Duration = Duration::from_secs(10);

/// The rate that a replica of weight 1 is assumed to have, bytes a second,
/// until it has delivered something: about what one gigabit link carries.
const ASSUMED: f64 = 100.0 * 1024.0 * 1024.0;

/// Segments in flight at least. With two, a replica of 100 MiB/s falls idle
/// whenever the daemon does not get a processor for 10 ms: with two busy loops
/// on two cores, three such replicas gave one reader 229 to 290 MiB/s; with
/// four, 290 to 295. A replica that hangs or slows down costs no more with four.
const AT_LEAST: u64 = 4;

/// A read that had the replica to itself and was this much faster than the
/// estimate shows that times have changed; the old completions are forgotten.
const CHANGED: f64 = 2.0;

/// What one replica can be asked for at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// Most bytes in flight.
    pub max_bytes: u64,
    /// Most reads in flight.
    pub max_reads: usize,
}

/// A replica's state as a decision sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Bytes a second; above 0.
    pub rate: f64,
    /// Seconds that a read takes whatever its size.
    pub latency: f64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Reads in flight.
    pub reads: usize,
    /// No read is sent while this many bytes are in flight.
    pub cap: u64,
    /// No read is sent while this many are in flight.
    pub max_reads: usize,
}

impl Load {
    /// Seconds until `bytes` more are delivered, `backlog` bytes being ahead of them.
    pub fn completion(&self, backlog: u64, bytes: u64) -> f64 {
        self.latency + (backlog + bytes) as f64 / self.rate
    }

    /// Whether one more read may be sent now.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.cap && self.reads < self.max_reads
    }
}

/// One replica's measurements.
#[derive(Clone, Debug)]
pub struct Estimate {
    limits: Limits,
    weight: f64,
    /// The rate assumed until there is a measurement.
    assumed: f64,
    in_flight: u64,
    /// When each read in flight was sent, the oldest first.
    sent: Vec<Instant>,
    /// How many of them are large enough to measure the rate by.
    large: usize,
    /// What small reads brought beside them.
    beside: u64,
    /// The busy clock as of `seen`.
    busy: Duration,
    seen: Instant,
    /// Completions: the busy clock's time and the bytes; oldest first. The
    /// oldest only marks where the interval starts.
    completions: VecDeque<(Duration, u64)>,
    /// Of the reads that had the replica to themselves.
    quickest: Quickest,
    /// Of all; an upper bound, until one of the former is known.
    quickest_of_all: Quickest,
    /// When the only read in flight was sent, if it has been the only one so far.
    solo: Option<Instant>,
    /// When something last came back or was sent.
    active: Instant,
    /// When something last came back.
    delivered: Option<Instant>,
}

impl Estimate {
    /// A replica that nothing is known of but its `weight`.
    pub fn new(weight: f64, limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            weight,
            assumed: ASSUMED * weight,
            in_flight: 0,
            sent: Vec::new(),
            large: 0,
            beside: 0,
            busy: Duration::ZERO,
            seen: now,
            completions: VecDeque::new(),
            quickest: Quickest::new(now),
            quickest_of_all: Quickest::new(now),
            solo: None,
            active: now,
            delivered: None,
        }
    }

    /// Whether a read of `bytes` says anything about the rate.
    fn is_large(&self, bytes: u64) -> bool {
        bytes >= self.limits.segment / 4
    }

    /// A read of `bytes` was sent.
    pub fn sent(&mut self, now: Instant, bytes: u64) {
        self.advance(now);
        self.solo = self.sent.is_empty().then_some(now);
        self.in_flight += bytes;
        self.sent.push(now);
        if self.is_large(bytes) {
            if self.completions.is_empty() {
                self.completions.push_back((self.busy, 0));
            }
            self.large += 1;
        }
        self.active = now;
    }

    /// A read of `bytes`, sent at `sent`, brought `delivered` bytes.
    pub fn completed(&mut self, now: Instant, sent: Instant, bytes: u64, delivered: u64) {
        self.advance(now);
        let alone = self.solo == Some(sent);
        self.leave(sent, bytes);
        let took = now.saturating_duration_since(sent).as_secs_f64();
        if self.is_large(bytes) {
            self.measure(now, took, delivered, alone);
        } else if self.large > 0 {
            self.beside += delivered;
        }
        self.quickest_of_all.add(now, (took, delivered));
        if alone {
            self.quickest.add(now, (took, delivered));
        }
        self.active = now;
        self.delivered = Some(now);
    }

    fn measure(&mut self, now: Instant, took: f64, delivered: u64, alone: bool) {
        let rate = delivered as f64 / took.max(1e-6);
        if alone && self.is_measured() && rate > CHANGED * self.rate(now) {
            self.completions.clear();
            let start = self.busy.saturating_sub(Duration::from_secs_f64(took));
            self.completions.push_back((start, 0));
        }
        let beside = std::mem::take(&mut self.beside);
        self.completions.push_back((self.busy, delivered + beside));
        self.forget();
    }

    /// A read of `bytes`, sent at `sent`, ended without telling anything.
    pub fn dropped(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.advance(now);
        self.leave(sent, bytes);
        self.active = now;
    }

    /// The replica as a decision sees it.
    pub fn load(&self, now: Instant) -> Load {
        let rate = self.rate(now);
        // What the size of the quickest read does not explain. Taken apart only
        // here, because the rate of its time may have been far off.
        let quickest = self.quickest.get().or(self.quickest_of_all.get());
        let fixed = quickest.map_or(0.0, |(took, bytes)| (took - bytes as f64 / rate).max(0.0));
        let waited = self.sent.first().map_or(0.0, |sent| {
            let age = now.saturating_duration_since(*sent).as_secs_f64();
            age - self.in_flight as f64 / rate
        });
        let latency = fixed.max(waited);
        let segment = self.limits.segment;
        // Twice what is under way at any moment, and the segments that keep the
        // replica busy while we are not running.
        let cap = (2.0 * rate * fixed) as u64 + AT_LEAST * segment;
        Load {
            rate,
            latency,
            in_flight: self.in_flight,
            reads: self.sent.len(),
            cap: cap.min(self.limits.max_bytes).max(1),
            max_reads: self.limits.max_reads,
        }
    }

    /// Since when nothing is in flight; `None` while something is.
    pub fn idle_since(&self) -> Option<Instant> {
        self.sent.is_empty().then_some(self.active)
    }

    /// When the replica last delivered anything.
    pub fn last_delivery(&self) -> Option<Instant> {
        self.delivered
    }

    /// Its relative speed as configured.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Until it is measured, the replica is taken for one of `rate` bytes a second.
    pub fn suppose(&mut self, rate: f64) {
        self.assumed = rate;
    }

    /// Whether the rate is a measured one.
    pub fn is_measured(&self) -> bool {
        self.completions.len() > 1
    }

    fn leave(&mut self, sent: Instant, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if let Some(at) = self.sent.iter().position(|known| *known == sent) {
            self.sent.remove(at);
        }
        if self.is_large(bytes) {
            self.large = self.large.saturating_sub(1);
        }
    }

    fn clock(&self, now: Instant) -> Duration {
        if self.large == 0 {
            return self.busy;
        }
        self.busy + now.saturating_duration_since(self.seen)
    }

    fn advance(&mut self, now: Instant) {
        self.busy = self.clock(now);
        self.seen = now;
    }

    /// Drops completions that the rate no longer needs, but for the one that
    /// marks the interval's start.
    fn forget(&mut self) {
        let old = self.busy.saturating_sub(WINDOW);
        while self.completions.len() > FEWEST + 1
            && (self.completions[1].0 < old || self.completions.len() > MOST)
        {
            self.completions.pop_front();
        }
    }

    fn rate(&self, now: Instant) -> f64 {
        let (Some((start, _)), Some((last, _))) =
            (self.completions.front(), self.completions.back())
        else {
            return self.assumed;
        };
        let clock = self.clock(now);
        let delivered: u64 = self.completions.iter().skip(1).map(|(_, bytes)| bytes).sum();
        let measured = if self.is_measured() {
            delivered as f64 / (*last - *start).as_secs_f64().max(1e-6)
        } else {
            self.assumed
        };
        if self.large == 0 {
            return measured;
        }
        // The best it can still do: all that is in flight arriving now.
        let next = self.in_flight.min(self.limits.segment);
        let best = (delivered + next) as f64 / (clock - *start).as_secs_f64().max(1e-6);
        measured.min(best).max(1.0)
    }
}

/// The read that took the least time in the last [`LATENCY_MEMORY`], as seconds
/// and bytes; kept in two halves of that time.
#[derive(Clone, Debug)]
struct Quickest {
    since: Instant,
    current: Option<(f64, u64)>,
    previous: Option<(f64, u64)>,
}

impl Quickest {
    fn new(now: Instant) -> Self {
        Self { since: now, current: None, previous: None }
    }

    fn add(&mut self, now: Instant, read: (f64, u64)) {
        if now.saturating_duration_since(self.since) > LATENCY_MEMORY / 2 {
            self.previous = self.current.take().or(self.previous);
            self.since = now;
        }
        if self.current.is_none_or(|(least, _)| read.0 < least) {
            self.current = Some(read);
        }
    }

    fn get(&self) -> Option<(f64, u64)> {
        match (self.current, self.previous) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMITS: Limits = Limits { segment: MIB, max_bytes: 32 * MIB, max_reads: 8 };

    /// Runs a replica of `rate` MiB/s and fixed `latency` at the given depth.
    struct Link {
        now: Instant,
        free: Instant,
        flying: VecDeque<(Instant, Instant)>,
    }

    impl Link {
        fn run(
            &mut self,
            e: &mut Estimate,
            rate: f64,
            latency: Duration,
            depth: usize,
            ops: usize,
        ) {
            for _ in 0..ops {
                while self.flying.len() < depth {
                    e.sent(self.now, MIB);
                    self.free = self.free.max(self.now) + Duration::from_secs_f64(1.0 / rate);
                    self.flying.push_back((self.now, self.free + latency));
                }
                let (sent, done) = self.flying.pop_front().unwrap();
                self.now = self.now.max(done);
                e.completed(self.now, sent, MIB, MIB);
            }
        }
    }

    fn link() -> (Link, Estimate) {
        let now = Instant::now();
        (Link { now, free: now, flying: VecDeque::new() }, Estimate::new(1.0, LIMITS, now))
    }

    fn mib(e: &Estimate, now: Instant) -> f64 {
        e.load(now).rate / MIB as f64
    }

    #[test]
    fn a_steady_replica_is_measured_within_five_percent() {
        for rate in [1.0, 40.0, 100.0, 2000.0] {
            let (mut link, mut e) = link();
            link.run(&mut e, rate, Duration::ZERO, 2, 50);
            let got = mib(&e, link.now);
            assert!((got / rate - 1.0).abs() < 0.05, "{rate}: {got}");
        }
    }

    #[test]
    fn a_drop_to_a_tenth_is_known_within_half_a_second() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 100);
        let dropped = link.now;
        while link.now < dropped + Duration::from_millis(500) {
            link.run(&mut e, 10.0, Duration::ZERO, 2, 1);
        }
        assert!(mib(&e, link.now) < 13.0, "{}", mib(&e, link.now));
    }

    #[test]
    fn a_hung_replica_decays_while_it_hangs() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 100);
        e.sent(link.now, MIB);
        let after = |ms| mib(&e, link.now + Duration::from_millis(ms));
        assert!(after(1) > 90.0);
        assert!(after(1000) < 30.0, "{}", after(1000));
        assert!(after(10_000) < 4.0, "{}", after(10_000));
    }

    #[test]
    fn small_reads_do_not_make_a_replica_slow() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        for _ in 0..100 {
            let sent = link.now;
            e.sent(sent, 4096);
            link.now += Duration::from_millis(1);
            e.completed(link.now, sent, 4096, 4096);
        }
        assert!(mib(&e, link.now) > 95.0, "{}", mib(&e, link.now));
        assert!(e.load(link.now).latency < 0.002);
    }

    #[test]
    fn a_replica_that_hangs_on_a_small_read_is_shunned() {
        let (link, mut e) = link();
        e.sent(link.now, 4096);
        let later = link.now + Duration::from_secs(1);
        assert!(e.load(later).completion(0, 4096) > 0.9);
    }

    #[test]
    fn an_idle_replica_keeps_its_rate() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        assert_eq!(e.idle_since(), Some(link.now));
        assert!(mib(&e, link.now + Duration::from_secs(3600)) > 95.0);
    }

    #[test]
    fn one_read_alone_shows_that_a_slow_replica_has_recovered() {
        let (mut link, mut e) = link();
        link.run(&mut e, 1.0, Duration::ZERO, 1, 10);
        assert!(mib(&e, link.now) < 1.1);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!(mib(&e, link.now) > 50.0, "{}", mib(&e, link.now));
    }

    #[test]
    fn queueing_is_not_taken_for_latency() {
        let (mut link, mut e) = link();
        link.run(&mut e, 25.0, Duration::from_millis(1), 1, 1);
        for _ in 0..20 {
            let load = e.load(link.now);
            let depth = (load.cap / MIB).clamp(1, 8) as usize;
            link.run(&mut e, 25.0, Duration::from_millis(1), depth, depth);
        }
        assert_eq!(e.load(link.now).cap / MIB, AT_LEAST);
    }

    #[test]
    fn the_cap_opens_until_a_long_link_is_full() {
        let (mut link, mut e) = link();
        for _ in 0..50 {
            let load = e.load(link.now);
            let depth = (load.cap / MIB).clamp(1, 8) as usize;
            link.run(&mut e, 100.0, Duration::from_millis(20), depth, depth);
        }
        let got = mib(&e, link.now);
        assert!(got > 85.0, "{got} MiB/s of 100 with {} in flight", e.load(link.now).cap / MIB);
    }
}
