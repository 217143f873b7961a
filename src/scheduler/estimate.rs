//! How fast one replica delivers, measured from its deliveries.
//!
//! The rate is measured on a *busy clock* that runs only while something is in flight, so an idle
//! replica does not seem slow. Each completion counts as served in the time since the completion
//! before it, for its own locality ([`super::rate`]). The rate is the bytes of the completions of
//! the last quarter second over that time. Compared with BBR's windowed maximum, the mean loses
//! nothing at a steady rate. It follows a replica that drops to a tenth within one window, instead
//! of the maximum's full memory.
//!
//! The clock also bounds the rate from above while nothing comes back: even if the next completion
//! arrived right now, the rate could be no better than with it. So a hung replica's estimate decays
//! without any detection of the hang.
//!
//! Small reads say nothing about the rate: 4 KiB take as long as a round trip, which would make any
//! replica look slow. A read below a quarter of a segment counts only for the latency, and the
//! clock does not run for it.
//!
//! The latency is the part of a read's time that its size does not explain. It comes from the
//! quickest read in the last [`LATENCY_MEMORY`] that had the replica to itself: at depth, the time
//! of a read depends on the bytes in flight. It is never less than the time by which the oldest
//! read in flight is overdue. So a hung replica is avoided for small reads as well.

use std::time::{Duration, Instant};

use super::cache_hits::{CacheHitDetector, MEMORY_RATE, SampleClass};
use super::lending::LendingLimit;
use super::rate::{Locality, PerLocality, RateMeter};

/// How long the least latency is remembered.
const LATENCY_MEMORY: Duration = Duration::from_secs(10);

/// How long after its last delivery a replica's rate is compared with others'.
const RATE_MEMORY: Duration = Duration::from_secs(5);

/// The assumed rate of a replica of weight 1 until it has delivered something, bytes a second:
/// about what a gigabit link carries.
pub const ASSUMED_RATE: f64 = 100.0 * 1024.0 * 1024.0;

/// The assumed rate for other nodes' chunks, as a share of the rate for its own node's chunks,
/// until it has delivered some. Below 1, so that a chunk is read where it is while nothing is
/// known; close to 1, so that remote reads are tried and measured.
pub const REMOTE_PRIOR: f64 = 0.8;

/// The least number of segments in flight. With two, a replica of 100 MiB/s falls idle whenever the
/// daemon does not get a processor for 10 ms. With two busy loops on two cores, three such replicas
/// then delivered 229 to 290 MiB/s to one reader; with four segments, 290 to 295. A replica that
/// hangs or slows down costs no more with four.
const MIN_SEGMENTS_IN_FLIGHT: u64 = 4;

/// With fewer reads the latency is uncertain. On a busy machine a single read sometimes takes ten
/// times as long as usual; five in a row do not.
const MIN_LATENCY_SAMPLES: u32 = 5;

/// A read that had the replica to itself and was this much faster than the estimate shows that the
/// rate has changed; the old completions are forgotten.
const RESET_FACTOR: f64 = 2.0;

/// The limits of reads in flight to one replica.
#[derive(Clone, Copy, Debug)]
pub struct InFlightLimits {
    /// The usual segment size, bytes.
    pub segment: u64,
    /// Most bytes in flight.
    pub max_bytes: u64,
    /// Most reads in flight.
    pub max_reads: usize,
}

/// A replica's state, as a decision sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaLoad {
    /// Bytes a second; above 0.
    pub rate: PerLocality<f64>,
    /// Whether the remote rate is a measured one.
    pub is_remote_measured: bool,
    /// Seconds that a read takes regardless of its size.
    pub latency: PerLocality<f64>,
    /// Whether that comes from so few reads, or none, that the next may be far quicker.
    pub is_latency_uncertain: bool,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes of them in chunks that the replica's node does not hold.
    pub remote_in_flight: u64,
    /// Seconds until the bytes in flight are delivered.
    pub in_flight_work: f64,
    /// Reads in flight.
    pub reads_in_flight: usize,
    /// The limit of bytes in flight: no read is sent at or above it.
    pub cap: u64,
    /// The limit of reads in flight.
    pub max_reads: usize,
    /// How much of the chunks that only its node serves other replicas may read.
    pub lending: LendingLimit,
    /// How many of these reads are in flight.
    pub lent_reads: usize,
    /// Seconds by which the oldest read in flight is overdue.
    pub overdue: f64,
}

impl ReplicaLoad {
    /// Seconds to deliver `bytes` once it is their turn.
    pub fn cost(&self, locality: Locality, bytes: u64) -> f64 {
        bytes as f64 / self.rate[locality]
    }

    /// Seconds until `bytes` more are delivered, after `backlog` seconds of work.
    pub fn completion(&self, locality: Locality, backlog: f64, bytes: u64) -> f64 {
        self.latency[locality] + backlog + self.cost(locality, bytes)
    }

    /// Whether one more read may be sent now.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.cap && self.reads_in_flight < self.max_reads
    }
}

/// Whether a read of `bytes` says anything about the rate, if segments usually have `segment` bytes.
pub fn is_large(bytes: u64, segment: u64) -> bool {
    bytes >= segment / 4
}

/// The time of a read, seconds, and its bytes.
pub type ReadTime = (f64, u64);

/// The fastest of several reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastestReads {
    /// How many there were.
    pub count: u32,
    /// The fastest of all.
    pub any: Option<ReadTime>,
    /// The fastest of those that had the replica to themselves.
    pub alone: Option<ReadTime>,
}

impl FastestReads {
    /// Adds a read.
    pub fn add(&mut self, read: ReadTime, is_alone: bool) {
        let is_faster = |known: Option<ReadTime>| known.is_none_or(|(least, _)| read.0 < least);
        self.count = self.count.saturating_add(1);
        if is_faster(self.any) {
            self.any = Some(read);
        }
        if is_alone && is_faster(self.alone) {
            self.alone = Some(read);
        }
    }
}

/// A read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightRead {
    /// When it was sent.
    pub at: Instant,
    /// Its size in bytes.
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
    /// The configured limit of the rate.
    max_rate: f64,
    /// The reads in flight, the oldest first.
    reads_in_flight: Vec<InFlightRead>,
    bytes_in_flight: PerLocality<u64>,
    /// The number of reads in flight that are large enough to measure the rate.
    large_in_flight: usize,
    /// Bytes that small reads delivered beside them.
    small_bytes: u64,
    /// The busy clock as of `busy_updated_at`.
    busy: Duration,
    busy_updated_at: Instant,
    /// The busy clock at the last delivery of a large read.
    busy_at_last_delivery: Duration,
    meters: PerLocality<RateMeter>,
    cache_hits: CacheHitDetector,
    /// The fastest of the reads that had the replica to themselves.
    fastest_alone: PerLocality<FastestRead>,
    /// The fastest of all reads; an upper bound until one of the former is known.
    fastest: PerLocality<FastestRead>,
    /// When the only read in flight was sent, if it has been the only one so far.
    lone_read_since: Option<Instant>,
    /// When a read was last sent or ended.
    last_activity: Instant,
    /// When a read last delivered.
    last_delivery: Option<Instant>,
}

impl ReplicaEstimate {
    /// A replica without deliveries.
    pub fn new(weight: f64, limits: InFlightLimits, now: Instant) -> Self {
        Self {
            limits,
            weight,
            assumed_rate: ASSUMED_RATE * weight,
            max_rate: f64::INFINITY,
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
        is_large(bytes, self.limits.segment)
    }

    /// Records a read that was sent.
    pub fn record_sent(&mut self, sent: InFlightRead) {
        self.advance_busy_clock(sent.at);
        if self.large_in_flight == 0 {
            // Reads before it may have kept the replica busy without a measurement.
            self.discard_busy_time();
        }
        self.lone_read_since = self.reads_in_flight.is_empty().then_some(sent.at);
        self.bytes_in_flight[sent.locality] += sent.bytes;
        // A small read may be reported late.
        let place = self.reads_in_flight.partition_point(|known| known.at <= sent.at);
        self.reads_in_flight.insert(place, sent);
        if self.is_large(sent.bytes) {
            self.large_in_flight += 1;
        }
        self.last_activity = self.last_activity.max(sent.at);
    }

    /// Records a read that delivered `delivered` bytes. Returns its service time: the time since
    /// the delivery before it, or since it was sent, if that was later. `None` for a small read, and
    /// for one that may come from a cache.
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
                SampleClass::CacheHit => return None,
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

    /// Adds bytes that small reads delivered until `last`.
    pub fn add_small_bytes(&mut self, bytes: u64, last: Instant) {
        if self.large_in_flight > 0 {
            self.small_bytes += bytes;
        }
        self.last_activity = self.last_activity.max(last);
        self.last_delivery = self.last_delivery.max(Some(last));
    }

    /// Adds small reads until `last`.
    pub fn add_fastest(&mut self, locality: Locality, last: Instant, reads: &FastestReads) {
        if let Some(fastest) = reads.any {
            self.fastest[locality].add_many(last, fastest, reads.count);
        }
        // Large reads may have been in flight beside it.
        if let Some(alone) = reads.alone.filter(|_| self.reads_in_flight.is_empty()) {
            self.fastest_alone[locality].add_many(last, alone, reads.count);
        }
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
        // What the replica did before it had this read, such as hang on another file, says nothing
        // about its rate.
        let busy = self.busy - self.busy_at_last_delivery;
        let service = busy.min(took);
        let share = if busy > service { service.div_duration_f64(busy) } else { 1.0 };
        let beside = (self.small_bytes as f64 * share) as u64;
        self.discard_busy_time();
        let rate = delivered as f64 / took.as_secs_f64().max(1e-6);
        let pace = &mut self.meters[locality];
        if alone && pace.rate().is_some_and(|known| rate > RESET_FACTOR * known) {
            pace.reset();
        }
        pace.add(service, delivered + beside);
        service
    }

    /// Removes a read that measured nothing, such as one that hangs.
    pub fn remove_unmeasured(&mut self, now: Instant, sent: InFlightRead) {
        self.advance_busy_clock(now);
        self.remove_in_flight(sent);
        self.last_activity = now;
    }

    /// Records the return of a read that had hung with its replica and is no longer in flight. Its
    /// duration says nothing about the replica's present rate.
    pub fn record_hung_delivery(&mut self, now: Instant) {
        self.advance_busy_clock(now);
        self.discard_busy_time();
        self.last_activity = now;
        self.last_delivery = Some(now);
    }

    /// The time since the last delivery, and what small reads delivered in it, do not count for the
    /// next one.
    fn discard_busy_time(&mut self) {
        self.busy_at_last_delivery = self.busy;
        self.small_bytes = 0;
    }

    /// The replica's state, as a decision sees it.
    pub fn load(&self, now: Instant) -> ReplicaLoad {
        let rate = self.rates(now);
        // The part of the quickest read's time that its size does not explain. It is computed only
        // here, because the rate at the time of that read may have been far off.
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
        // Twice the bandwidth-delay product, plus the segments that keep the replica
        // busy while the daemon is not running.
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
            lending: LendingLimit::default(),
            lent_reads: 0,
            overdue: waited.max(0.0),
        }
    }

    /// Since when nothing has been in flight; `None` while something is.
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

    /// Sets the rate that is assumed until there is a measurement, bytes a second.
    pub fn set_assumed_rate(&mut self, rate: f64) {
        self.assumed_rate = rate;
    }

    /// Sets the configured limit of the rate, bytes a second: no more is assumed.
    pub fn set_max_rate(&mut self, rate: Option<u64>) {
        self.max_rate = rate.map_or(f64::INFINITY, |rate| rate as f64);
    }

    /// Whether all measurements were as fast as memory.
    pub fn is_memory_speed(&self) -> bool {
        self.cache_hits.is_memory_speed()
    }

    /// Whether the rates are measured ones.
    pub fn is_measured(&self) -> PerLocality<bool> {
        PerLocality::from_fn(|locality| self.meters[locality].is_measured())
    }

    /// Like [`ReplicaEstimate::measured_rate`], but `None` if the rate may be that of a cache, and
    /// at most [`MEMORY_RATE`]. A part of a higher rate may come from a cache, and a replica is not
    /// slow just because another one has a cache.
    pub fn comparable_rate(&self, now: Instant) -> Option<f64> {
        self.comparable(self.measured_rate(now)?)
    }

    /// The same for a measured `rate`.
    pub fn comparable(&self, rate: f64) -> Option<f64> {
        (!self.is_memory_speed()).then(|| rate.min(MEMORY_RATE))
    }

    /// The better measured rate of the two localities; `None` without a measurement.
    pub fn measured_rate(&self, now: Instant) -> Option<f64> {
        let rates = self.rates(now);
        let measured =
            |locality: Locality| self.meters[locality].is_measured().then_some(rates[locality]);
        match (measured(Locality::Local), measured(Locality::Remote)) {
            (Some(local), Some(remote)) => Some(local.max(remote)),
            (local, remote) => local.or(remote),
        }
    }

    /// The measured rate for chunks that its node holds, at most [`MEMORY_RATE`]. `None` if nothing
    /// was delivered recently and nothing is in flight, or if it is the speed of a cache.
    pub fn recent_local_rate(&self, now: Instant) -> Option<f64> {
        let is_old = |at: Instant| now.saturating_duration_since(at) > RATE_MEMORY;
        let is_idle = self.reads_in_flight.is_empty() && self.last_delivery.is_none_or(is_old);
        let is_known =
            !is_idle && self.meters.local.is_measured() && !self.cache_hits.is_memory_speed();
        is_known.then(|| self.rates(now).local.min(MEMORY_RATE))
    }

    /// The long-term rates, if there are enough deliveries.
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
        self.busy_updated_at = self.busy_updated_at.max(now);
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
            // An upper bound: the next delivery arrives now.
            let next = self.bytes_in_flight[locality].min(self.limits.segment);
            pace.rate_if_delivered(waited, next).map(|best| measured.min(best).max(1.0))
        };
        let local = rate(Locality::Local);
        let remote = rate(Locality::Remote);
        // Without a measurement, the reads in flight bound the assumed rate too.
        let assumed = || {
            let bytes =
                (self.bytes_in_flight.local + self.bytes_in_flight.remote).min(self.limits.segment);
            let waited = waited.as_secs_f64();
            let best = if self.large_in_flight > 0 && waited > 0.0 {
                bytes as f64 / waited
            } else {
                f64::INFINITY
            };
            self.assumed_rate.min(self.max_rate).min(best).max(1.0)
        };
        let local = local.unwrap_or_else(|| match remote {
            Some(remote) => assumed().max(remote),
            None => assumed(),
        });
        PerLocality { local, remote: remote.unwrap_or(local * REMOTE_PRIOR).max(1.0) }
    }
}

/// The read that took the least time in the last [`LATENCY_MEMORY`], as seconds and bytes, and the
/// number of reads; kept in two halves of that time.
#[derive(Clone, Debug)]
struct FastestRead {
    since: Instant,
    current: HalfWindow,
    previous: HalfWindow,
}

#[derive(Clone, Copy, Debug, Default)]
struct HalfWindow {
    fastest: Option<ReadTime>,
    read_count: u32,
}

impl FastestRead {
    fn new(now: Instant) -> Self {
        Self { since: now, current: HalfWindow::default(), previous: HalfWindow::default() }
    }

    fn add(&mut self, now: Instant, read: ReadTime) {
        self.add_many(now, read, 1);
    }

    /// Adds the fastest of `reads` reads.
    fn add_many(&mut self, now: Instant, read: ReadTime, reads: u32) {
        if now.saturating_duration_since(self.since) > LATENCY_MEMORY / 2 {
            if self.current.fastest.is_some() {
                self.previous = std::mem::take(&mut self.current);
            }
            self.since = now;
        }
        self.current.read_count = self.current.read_count.saturating_add(reads);
        if self.current.fastest.is_none_or(|(least, _)| read.0 < least) {
            self.current.fastest = Some(read);
        }
    }

    fn get(&self) -> Option<ReadTime> {
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

    /// A simulated replica of `rate` MiB/s with a fixed `latency`.
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
    fn an_assumed_rate_is_within_the_configured_limit() {
        let now = Instant::now();
        let mut e = ReplicaEstimate::new(1.0, LIMITS, now);
        assert_eq!(mib(&e, now), ASSUMED_RATE / MIB as f64);
        e.set_max_rate(Some(7 * MIB));
        e.set_assumed_rate(300.0 * MIB as f64);
        assert_eq!(mib(&e, now), 7.0);
        assert_eq!(e.is_measured(), PerLocality { local: false, remote: false });
    }

    #[test]
    fn a_drop_to_a_tenth_is_detected_within_half_a_second() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 100);
        let dropped = link.now;
        while link.now < dropped + Duration::from_millis(500) {
            link.run(&mut e, 10.0, Duration::ZERO, 2, 1);
        }
        assert!(mib(&e, link.now) < 13.0, "{}", mib(&e, link.now));
    }

    #[test]
    fn the_rate_of_a_hung_replica_decays() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 100);
        e.record_sent(large(link.now));
        let after = |ms| mib(&e, link.now + Duration::from_millis(ms));
        assert!(after(1) > 90.0);
        assert!(after(1000) < 30.0, "{}", after(1000));
        assert!(after(10_000) < 4.0, "{}", after(10_000));
    }

    #[test]
    fn a_hung_read_does_not_lower_the_rate_of_later_ones() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        let hung = large(link.now);
        e.record_sent(hung);
        link.now += Duration::from_secs(2);
        e.remove_unmeasured(link.now, hung);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!(mib(&e, link.now) > 90.0, "{}", mib(&e, link.now));
    }

    /// A read of another file begins while one hangs.
    #[test]
    fn a_hung_read_does_not_lower_the_rate_beside_it() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        e.record_sent(large(link.now));
        link.now += Duration::from_secs(1);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!(mib(&e, link.now) > 90.0, "{}", mib(&e, link.now));
    }

    /// The same beside small reads, which deliver a part of what the replica can.
    #[test]
    fn small_reads_before_a_read_do_not_raise_its_rate() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        e.record_sent(large(link.now));
        e.add_small_bytes(50 * MIB, link.now);
        link.now += Duration::from_secs(1);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!((mib(&e, link.now) - 100.0).abs() < 10.0, "{}", mib(&e, link.now));
    }

    /// The replica hangs with two reads and refuses the second.
    #[test]
    fn reads_without_a_measurement_do_not_lower_the_rate_of_later_ones() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 1, 20);
        let reads = [large(link.now), large(link.now)];
        reads.iter().for_each(|read| e.record_sent(*read));
        link.now += Duration::from_secs(2);
        reads.iter().for_each(|read| e.remove_unmeasured(link.now, *read));
        let next = large(link.now);
        e.record_sent(next);
        assert!(mib(&e, link.now) > 90.0, "{}", mib(&e, link.now));
        link.now += Duration::from_millis(10);
        e.record_delivery(link.now, next, MIB);
        assert!(mib(&e, link.now) > 90.0, "{}", mib(&e, link.now));
    }

    /// The replica works on another read at the same time, and slowly.
    #[test]
    fn a_hung_read_beside_another_does_not_raise_the_rate() {
        let (mut link, mut e) = link();
        link.run(&mut e, 1.0, Duration::ZERO, 1, 5);
        for _ in 0..20 {
            let (hung, slow) = (large(link.now), large(link.now));
            e.record_sent(hung);
            e.record_sent(slow);
            link.now += Duration::from_secs(2);
            e.remove_unmeasured(link.now, hung);
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
    fn a_replica_with_a_hung_small_read_is_avoided() {
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
    fn one_fast_read_shows_that_a_slow_replica_recovered() {
        let (mut link, mut e) = link();
        link.run(&mut e, 1.0, Duration::ZERO, 1, 10);
        assert!(mib(&e, link.now) < 1.1);
        link.run(&mut e, 100.0, Duration::ZERO, 1, 1);
        assert!(mib(&e, link.now) > 50.0, "{}", mib(&e, link.now));
    }

    #[test]
    fn queueing_does_not_count_as_latency() {
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
    fn the_in_flight_limit_grows_until_a_long_link_is_full() {
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
    fn remote_segments_are_assumed_slightly_slower() {
        let (mut link, mut e) = link();
        link.run(&mut e, 100.0, Duration::ZERO, 2, 50);
        let rate = e.load(link.now).rate;
        assert!((rate.remote / rate.local - REMOTE_PRIOR).abs() < 0.01, "{rate:?}");
    }

    #[test]
    fn latency_is_uncertain_after_few_reads_or_a_hung_one() {
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
