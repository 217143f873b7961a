//! How fast one replica delivers, from what it delivered.
//!
//! The rate is measured on a *busy clock* that runs only while something is in
//! flight, so a replica that nobody asks does not seem slow. Each completion is
//! put down as served in the time since the completion before it, for its own
//! locality ([`super::rate`]); the rate is the bytes of the completions of the
//! last quarter second over that time. Measured against BBR's windowed maximum,
//! the mean loses nothing where the rate is steady, and follows a replica that
//! drops to a tenth within one window instead of the maximum's full memory.
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

use std::time::{Duration, Instant};

use super::cache_hits::{CacheHitDetector, MEMORY_RATE, SampleClass};
use super::rate::{Locality, PerLocality, RateMeter};

/// How long the least latency counts.
const LATENCY_MEMORY: Duration = Duration::from_secs(10);

/// A rate is compared with other replicas' for so long after the last delivery.
const RATE_MEMORY: Duration = Duration::from_secs(5);

/// The rate that a replica of weight 1 is assumed to have, bytes a second,
/// until it has delivered something: about what one gigabit link carries.
pub const ASSUMED_RATE: f64 = 100.0 * 1024.0 * 1024.0;

/// What a replica is assumed to deliver of another node's chunks, in parts of
/// what it delivers of its own node's, until it has delivered some. Below 1,
/// so that a chunk is read where it is as long as nothing is known; not by
/// much, so that it is found out.
pub const REMOTE_PRIOR: f64 = 0.8;

/// Segments in flight at least. With two, a replica of 100 MiB/s falls idle
/// whenever the daemon does not get a processor for 10 ms: with two busy loops
/// on two cores, three such replicas gave one reader 229 to 290 MiB/s; with
/// four, 290 to 295. A replica that hangs or slows down costs no more with four.
const MIN_SEGMENTS_IN_FLIGHT: u64 = 4;

/// Reads below which the latency is doubtful. One read on a busy machine takes
/// ten times as long as it should now and then, five in a row do not.
const MIN_LATENCY_SAMPLES: u32 = 5;

/// A read that had the replica to itself and was this much faster than the
/// estimate shows that times have changed; the old completions are forgotten.
const RESET_FACTOR: f64 = 2.0;

/// What one replica can be asked for at once.
#[derive(Clone, Copy, Debug)]
pub struct InFlightLimits {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// Most bytes in flight.
    pub max_bytes: u64,
    /// Most reads in flight.
    pub max_reads: usize,
}

/// A replica's state as a decision sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaLoad {
    /// Bytes a second; above 0.
    pub rate: PerLocality<f64>,
    /// Whether the remote rate is a measured one.
    pub is_remote_measured: bool,
    /// Seconds that a read takes whatever its size.
    pub latency: PerLocality<f64>,
    /// Whether that is what so few reads took, or none, that the next may be far
    /// quicker.
    pub is_latency_uncertain: bool,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes of them that the replica's node does not hold.
    pub remote_in_flight: u64,
    /// Seconds that what is in flight takes to be delivered.
    pub in_flight_work: f64,
    /// Reads in flight.
    pub reads_in_flight: usize,
    /// No read is sent while this many bytes are in flight.
    pub cap: u64,
    /// No read is sent while this many are in flight.
    pub max_reads: usize,
}

impl ReplicaLoad {
    /// Seconds that `bytes` take to be delivered once it is their turn.
    pub fn cost(&self, locality: Locality, bytes: u64) -> f64 {
        bytes as f64 / self.rate[locality]
    }

    /// Seconds until `bytes` more are delivered, with `backlog` seconds of work
    /// ahead of them.
    pub fn completion(&self, locality: Locality, backlog: f64, bytes: u64) -> f64 {
        self.latency[locality] + backlog + self.cost(locality, bytes)
    }

    /// Whether one more read may be sent now.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.cap && self.reads_in_flight < self.max_reads
    }
}

/// A read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightRead {
    /// When it was sent.
    pub at: Instant,
    /// Its size.
    pub bytes: u64,
    /// Whether the replica's node holds it.
    pub locality: Locality,
}

/// One replica's measurements.
#[derive(Clone, Debug)]
pub struct ReplicaEstimate {
    limits: InFlightLimits,
    weight: f64,
    /// The rate assumed until there is a measurement.
    assumed_rate: f64,
    /// In flight, the oldest first.
    reads_in_flight: Vec<InFlightRead>,
    bytes_in_flight: PerLocality<u64>,
    /// How many of them are large enough to measure the rate by.
    large_in_flight: usize,
    /// What small reads brought beside them.
    small_bytes: u64,
    /// The busy clock as of `seen`.
    busy: Duration,
    busy_updated_at: Instant,
    /// The busy clock when something large last came back.
    busy_at_last_delivery: Duration,
    meters: PerLocality<RateMeter>,
    cache_hits: CacheHitDetector,
    /// Of the reads that had the replica to themselves.
    fastest_alone: PerLocality<FastestRead>,
    /// Of all; an upper bound, until one of the former is known.
    fastest: PerLocality<FastestRead>,
    /// When the only read in flight was sent, if it has been the only one so far.
    lone_read_since: Option<Instant>,
    /// When something last came back or was sent.
    last_activity: Instant,
    /// When something last came back.
    last_delivery: Option<Instant>,
}

impl ReplicaEstimate {
    /// A replica that nothing is known of but its `weight`.
    pub fn new(weight: f64, limits: InFlightLimits, now: Instant) -> Self {
        Self {
            limits,
            weight,
            assumed_rate: ASSUMED_RATE * weight,
            reads_in_flight: Vec::new(),
            bytes_in_flight: PerLocality::default(),
            large_in_flight: 0,
            small_bytes: 0,
            busy: Duration::ZERO,
            busy_updated_at: now,
            busy_at_last_delivery: Duration::ZERO,
            meters: PerLocality::default(),
            cache_hits: CacheHitDetector::default(),
            fastest_alone: PerLocality::from_fn(|_| FastestRead::new(now)),
            fastest: PerLocality::from_fn(|_| FastestRead::new(now)),
            lone_read_since: None,
            last_activity: now,
            last_delivery: None,
        }
    }

    /// Whether a read of `bytes` says anything about the rate.
    fn is_large(&self, bytes: u64) -> bool {
        bytes >= self.limits.segment / 4
    }

    /// A read was sent.
    pub fn record_sent(&mut self, sent: InFlightRead) {
        self.advance_busy_clock(sent.at);
        self.lone_read_since = self.reads_in_flight.is_empty().then_some(sent.at);
        self.bytes_in_flight[sent.locality] += sent.bytes;
        self.reads_in_flight.push(sent);
        if self.is_large(sent.bytes) {
            self.large_in_flight += 1;
        }
        self.last_activity = sent.at;
    }

    /// A read delivered `delivered` bytes. Returns its service time: the time since the
    /// delivery before it. `None` for a small read, and for one that a cache may have
    /// answered.
    pub fn record_delivery(
        &mut self,
        now: Instant,
        sent: InFlightRead,
        delivered: u64,
    ) -> Option<Duration> {
        self.advance_busy_clock(now);
        let alone = self.lone_read_since == Some(sent.at);
        self.remove_in_flight(sent);
        let took = now.saturating_duration_since(sent.at);
        let mut service = None;
        self.last_activity = now;
        self.last_delivery = Some(now);
        if self.is_large(sent.bytes) {
            let known = self.meters[sent.locality].rate();
            match self.cache_hits.classify(delivered, took, known) {
                SampleClass::CacheHit => {
                    if self.large_in_flight == 0 {
                        // The busy clock ran for this read alone.
                        self.busy_at_last_delivery = self.busy;
                    }
                    return None;
                }
                SampleClass::MeasurementAfterReset => self.reset(now),
                SampleClass::Measurement => {}
            }
            let measured = self.measure(sent.locality, took, delivered, alone);
            service = (!self.cache_hits.is_memory_speed()).then_some(measured);
        } else if self.large_in_flight > 0 {
            self.small_bytes += delivered;
        }
        let read = (took.as_secs_f64(), delivered);
        self.fastest[sent.locality].add(now, read);
        if alone {
            self.fastest_alone[sent.locality].add(now, read);
        }
        service
    }

    /// Drops all measurements.
    fn reset(&mut self, now: Instant) {
        self.meters = PerLocality::default();
        self.fastest_alone = PerLocality::from_fn(|_| FastestRead::new(now));
        self.fastest = PerLocality::from_fn(|_| FastestRead::new(now));
    }

    fn measure(
        &mut self,
        locality: Locality,
        took: Duration,
        delivered: u64,
        alone: bool,
    ) -> Duration {
        let service = self.busy - self.busy_at_last_delivery;
        self.busy_at_last_delivery = self.busy;
        let rate = delivered as f64 / took.as_secs_f64().max(1e-6);
        let pace = &mut self.meters[locality];
        if alone && pace.rate().is_some_and(|known| rate > RESET_FACTOR * known) {
            pace.reset();
        }
        let beside = std::mem::take(&mut self.small_bytes);
        pace.add(service, delivered + beside);
        service
    }

    /// A read ended without telling anything.
    pub fn remove_unmeasured(&mut self, now: Instant, sent: InFlightRead) {
        self.advance_busy_clock(now);
        self.remove_in_flight(sent);
        self.last_activity = now;
    }

    /// A read hangs, and is not expected any more. How long the replica was busy with it alone
    /// says nothing of how fast it delivers what comes next.
    pub fn write_off(&mut self, now: Instant, sent: InFlightRead) {
        self.remove_unmeasured(now, sent);
        if self.large_in_flight == 0 {
            self.busy_at_last_delivery = self.busy;
        }
    }

    /// A read came back that had hung with its replica. How long it took says that it
    /// hung, and nothing of how fast the replica is now.
    pub fn record_hung_delivery(&mut self, now: Instant, sent: InFlightRead) {
        self.remove_unmeasured(now, sent);
        self.busy_at_last_delivery = self.busy;
        self.last_delivery = Some(now);
    }

    /// The replica as a decision sees it.
    pub fn load(&self, now: Instant) -> ReplicaLoad {
        let rate = self.rates(now);
        // What the size of the quickest read does not explain. Taken apart only
        // here, because the rate of its time may have been far off.
        let mut fixed = PerLocality::from_fn(|locality| {
            let quickest = self.fastest_alone[locality].get().or(self.fastest[locality].get());
            quickest.map(|(took, bytes)| (took - bytes as f64 / rate[locality]).max(0.0))
        });
        fixed.local = fixed.local.or(fixed.remote);
        fixed.remote = fixed.remote.or(fixed.local);
        let work = self.bytes_in_flight.local as f64 / rate.local
            + self.bytes_in_flight.remote as f64 / rate.remote;
        let waited = self
            .reads_in_flight
            .first()
            .map_or(0.0, |sent| now.saturating_duration_since(sent.at).as_secs_f64() - work);
        let longest = fixed.local.unwrap_or(0.0).max(fixed.remote.unwrap_or(0.0));
        let reads = self.fastest.local.read_count() + self.fastest.remote.read_count();
        // Twice what is under way at any moment, and the segments that keep the
        // replica busy while we are not running.
        let under_way = 2.0 * rate.local.max(rate.remote) * longest;
        let cap = under_way as u64 + MIN_SEGMENTS_IN_FLIGHT * self.limits.segment;
        ReplicaLoad {
            rate,
            is_remote_measured: self.meters.remote.is_measured(),
            latency: PerLocality::from_fn(|l| fixed[l].unwrap_or(0.0).max(waited)),
            is_latency_uncertain: reads < MIN_LATENCY_SAMPLES && waited <= longest,
            in_flight: self.bytes_in_flight.local + self.bytes_in_flight.remote,
            remote_in_flight: self.bytes_in_flight.remote,
            in_flight_work: work,
            reads_in_flight: self.reads_in_flight.len(),
            cap: cap.min(self.limits.max_bytes).max(1),
            max_reads: self.limits.max_reads,
        }
    }

    /// Since when nothing is in flight; `None` while something is.
    pub fn idle_since(&self) -> Option<Instant> {
        self.reads_in_flight.is_empty().then_some(self.last_activity)
    }

    /// When the replica last delivered anything.
    pub fn last_delivery(&self) -> Option<Instant> {
        self.last_delivery
    }

    /// The limit of reads in flight.
    pub fn max_reads(&self) -> usize {
        self.limits.max_reads
    }

    /// Its relative speed as configured.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Until it is measured, the replica is taken for one of `rate` bytes a second.
    pub fn set_assumed_rate(&mut self, rate: f64) {
        self.assumed_rate = rate;
    }

    /// The same as [`ReplicaEstimate::measured_rate`], unless the rate may be that of a cache. A rate
    /// above [`MEMORY_RATE`] counts as that: a part of it may come from a cache, and beside the
    /// cache of another replica a replica is not slow.
    pub fn comparable_rate(&self, now: Instant) -> Option<f64> {
        let measured =
            if self.cache_hits.is_memory_speed() { None } else { self.measured_rate(now) };
        measured.map(|rate| rate.min(MEMORY_RATE))
    }

    /// The best rate that was measured, of either locality; `None` where none was.
    pub fn measured_rate(&self, now: Instant) -> Option<f64> {
        let rates = self.rates(now);
        let measured =
            |locality: Locality| self.meters[locality].is_measured().then_some(rates[locality]);
        match (measured(Locality::Local), measured(Locality::Remote)) {
            (Some(local), Some(remote)) => Some(local.max(remote)),
            (local, remote) => local.or(remote),
        }
    }

    /// The rate that was measured of what its node holds, if it delivered or was
    /// asked for anything lately, and is not the speed of a cache; [`MEMORY_RATE`] at most.
    pub fn recent_local_rate(&self, now: Instant) -> Option<f64> {
        let is_old = |at: Instant| now.saturating_duration_since(at) > RATE_MEMORY;
        let is_idle = self.reads_in_flight.is_empty() && self.last_delivery.is_none_or(is_old);
        let is_known =
            !is_idle && self.meters.local.is_measured() && !self.cache_hits.is_memory_speed();
        is_known.then(|| self.rates(now).local.min(MEMORY_RATE))
    }

    /// The rates over a long time, where there is enough to tell.
    pub fn steady_rates(&self) -> PerLocality<Option<f64>> {
        PerLocality::from_fn(|locality| self.meters[locality].steady_rate())
    }

    fn remove_in_flight(&mut self, sent: InFlightRead) {
        if let Some(at) = self.reads_in_flight.iter().position(|known| *known == sent) {
            self.reads_in_flight.remove(at);
            self.bytes_in_flight[sent.locality] -= sent.bytes;
            if self.is_large(sent.bytes) {
                self.large_in_flight -= 1;
            }
        }
    }

    fn advance_busy_clock(&mut self, now: Instant) {
        if self.large_in_flight > 0 {
            self.busy += now.saturating_duration_since(self.busy_updated_at);
        }
        self.busy_updated_at = now;
    }

    fn rates(&self, now: Instant) -> PerLocality<f64> {
        let mut waited = self.busy - self.busy_at_last_delivery;
        if self.large_in_flight > 0 {
            waited += now.saturating_duration_since(self.busy_updated_at);
        }
        let rate = |locality: Locality| {
            let pace = &self.meters[locality];
            let measured = pace.rate()?;
            if self.large_in_flight == 0 || self.bytes_in_flight[locality] == 0 {
                return Some(measured);
            }
            // The best it can still do: the next arriving now.
            let next = self.bytes_in_flight[locality].min(self.limits.segment);
            pace.rate_if_delivered(waited, next).map(|best| measured.min(best).max(1.0))
        };
        let local = rate(Locality::Local);
        let remote = rate(Locality::Remote);
        // While there is no measurement, what is in flight bounds what may be
        // assumed as well.
        let assumed = || {
            let bytes =
                (self.bytes_in_flight.local + self.bytes_in_flight.remote).min(self.limits.segment);
            let waited = waited.as_secs_f64();
            let best = if self.large_in_flight > 0 && waited > 0.0 {
                bytes as f64 / waited
            } else {
                f64::INFINITY
            };
            self.assumed_rate.min(best).max(1.0)
        };
        let local = local.unwrap_or_else(|| match remote {
            Some(remote) => assumed().max(remote),
            None => assumed(),
        });
        PerLocality { local, remote: remote.unwrap_or(local * REMOTE_PRIOR).max(1.0) }
    }
}

/// The read that took the least time in the last [`LATENCY_MEMORY`], as seconds
/// and bytes, and how many there were; kept in two halves of that time.
#[derive(Clone, Debug)]
struct FastestRead {
    since: Instant,
    current: HalfWindow,
    previous: HalfWindow,
}

#[derive(Clone, Copy, Debug, Default)]
struct HalfWindow {
    fastest: Option<(f64, u64)>,
    read_count: u32,
}

impl FastestRead {
    fn new(now: Instant) -> Self {
        Self { since: now, current: HalfWindow::default(), previous: HalfWindow::default() }
    }

    fn add(&mut self, now: Instant, read: (f64, u64)) {
        if now.saturating_duration_since(self.since) > LATENCY_MEMORY / 2 {
            if self.current.fastest.is_some() {
                self.previous = std::mem::take(&mut self.current);
            }
            self.since = now;
        }
        self.current.read_count = self.current.read_count.saturating_add(1);
        if self.current.fastest.is_none_or(|(least, _)| read.0 < least) {
            self.current.fastest = Some(read);
        }
    }

    fn get(&self) -> Option<(f64, u64)> {
        match (self.current.fastest, self.previous.fastest) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    fn read_count(&self) -> u32 {
        self.current.read_count.saturating_add(self.previous.read_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MIB: u64 = 1 << 20;
    const LIMITS: InFlightLimits =
        InFlightLimits { segment: MIB, max_bytes: 32 * MIB, max_reads: 8 };

    /// Runs a replica of `rate` MiB/s and fixed `latency` at the given depth.
    struct Link {
        now: Instant,
        free: Instant,
        flying: VecDeque<(InFlightRead, Instant)>,
    }

    impl Link {
        fn run(
            &mut self,
            e: &mut ReplicaEstimate,
            rate: f64,
            latency: Duration,
            depth: usize,
            ops: usize,
        ) {
            for _ in 0..ops {
                while self.flying.len() < depth {
                    let sent = large(self.now);
                    e.record_sent(sent);
                    self.free = self.free.max(self.now) + Duration::from_secs_f64(1.0 / rate);
                    self.flying.push_back((sent, self.free + latency));
                }
                let (sent, done) = self.flying.pop_front().unwrap();
                self.now = self.now.max(done);
                e.record_delivery(self.now, sent, MIB);
            }
        }
    }

    fn large(at: Instant) -> InFlightRead {
        InFlightRead { at, bytes: MIB, locality: Locality::Local }
    }

    fn small(at: Instant) -> InFlightRead {
        InFlightRead { at, bytes: 4096, locality: Locality::Local }
    }

    fn link() -> (Link, ReplicaEstimate) {
        let now = Instant::now();
        (Link { now, free: now, flying: VecDeque::new() }, ReplicaEstimate::new(1.0, LIMITS, now))
    }

    fn mib(e: &ReplicaEstimate, now: Instant) -> f64 {
        e.load(now).rate.local / MIB as f64
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
        e.record_sent(large(link.now));
        let after = |ms| mib(&e, link.now + Duration::from_millis(ms));
        assert!(after(1) > 90.0);
        assert!(after(1000) < 30.0, "{}", after(1000));
        assert!(after(10_000) < 4.0, "{}", after(10_000));
    }

    #[test]
    fn a_read_that_hangs_does_not_slow_what_is_delivered_after_it() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        let hung = large(link.now);
        e.record_sent(hung);
        link.now += Duration::from_secs(2);
        e.write_off(link.now, hung);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!(mib(&e, link.now) > 90.0, "{}", mib(&e, link.now));
    }

    /// The replica works on another read meanwhile, and slowly.
    #[test]
    fn a_read_that_hangs_beside_another_one_does_not_make_the_replica_quick() {
        let (mut link, mut e) = link();
        link.run(&mut e, 1.0, Duration::ZERO, 1, 5);
        for _ in 0..20 {
            let (hung, slow) = (large(link.now), large(link.now));
            e.record_sent(hung);
            e.record_sent(slow);
            link.now += Duration::from_secs(2);
            e.write_off(link.now, hung);
            link.now += Duration::from_millis(100);
            e.record_delivery(link.now, slow, MIB);
        }
        assert!(mib(&e, link.now) < 2.0, "{}", mib(&e, link.now));
    }

    #[test]
    fn small_reads_do_not_make_a_replica_slow() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        for _ in 0..100 {
            let sent = small(link.now);
            e.record_sent(sent);
            link.now += Duration::from_millis(1);
            e.record_delivery(link.now, sent, 4096);
        }
        assert!(mib(&e, link.now) > 95.0, "{}", mib(&e, link.now));
        assert!(e.load(link.now).latency.local < 0.002);
    }

    #[test]
    fn a_replica_that_hangs_on_a_small_read_is_shunned() {
        let (link, mut e) = link();
        e.record_sent(small(link.now));
        let later = link.now + Duration::from_secs(1);
        assert!(e.load(later).completion(Locality::Local, 0.0, 4096) > 0.9);
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
        assert_eq!(e.load(link.now).cap / MIB, MIN_SEGMENTS_IN_FLIGHT);
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

    #[test]
    fn local_and_remote_segments_have_their_own_rates() {
        let (mut link, mut e) = link();
        for i in 0..200u64 {
            let locality = if i % 3 == 0 { Locality::Remote } else { Locality::Local };
            let sent = InFlightRead { at: link.now, bytes: MIB, locality };
            e.record_sent(sent);
            let ms = if locality == Locality::Remote { 40 } else { 10 };
            link.now += Duration::from_millis(ms);
            e.record_delivery(link.now, sent, MIB);
        }
        let rate = e.load(link.now).rate;
        assert!((rate.local / MIB as f64 / 100.0 - 1.0).abs() < 0.05, "{rate:?}");
        assert!((rate.remote / MIB as f64 / 25.0 - 1.0).abs() < 0.05, "{rate:?}");
    }

    #[test]
    fn remote_segments_are_assumed_to_be_a_little_slower() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 50);
        let rate = e.load(link.now).rate;
        assert!((rate.remote / rate.local - REMOTE_PRIOR).abs() < 0.01, "{rate:?}");
    }

    #[test]
    fn the_latency_is_doubtful_until_enough_reads_were_seen_or_one_hangs() {
        let start = Instant::now();
        let mut e = ReplicaEstimate::new(1.0, LIMITS, start);
        let mut now = start;
        for _ in 0..MIN_LATENCY_SAMPLES {
            assert!(e.load(now).is_latency_uncertain);
            let sent = small(now);
            e.record_sent(sent);
            now += Duration::from_millis(5);
            e.record_delivery(now, sent, 4096);
        }
        assert!(!e.load(now).is_latency_uncertain);
        let mut hung = ReplicaEstimate::new(1.0, LIMITS, start);
        hung.record_sent(small(start));
        assert!(!hung.load(start + Duration::from_secs(1)).is_latency_uncertain);
    }
}
