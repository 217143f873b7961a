//! Whether it gains anything to *lend* a segment: to read it from a remote replica, although the
//! only node that serves it has a replica of its own, its *home*.
//!
//! All bytes of such a segment come from the home's node, whichever replica asks. If that node's
//! disk or link is the bottleneck, a lent segment takes as much from the home as it adds, and it
//! crosses the network twice. If the home's gateway is the bottleneck, lending adds. No single
//! replica's rate tells the two cases apart: beside lent segments the home itself measures less.
//!
//! So a [`LendingGain`] compares what a home's chunks are delivered at while some of them are lent,
//! by the home and all borrowers together, with the home's rate alone. The result counts for
//! all homes: they are nodes of one cluster. Until then one segment at a time is lent, for a trial.
//! If that gains nothing, the next trial is after [`FIRST_RETRY`], and later each time. A home that
//! has become much slower than it was has trials of its own.
//!
//! A home that delivers nothing lends regardless: it may be hung.
//!
//! Pure.

use std::time::{Duration, Instant};

use super::rate::RateMeter;
use crate::volume::{ReplicaId, ReplicaMap};

/// Deliveries that a trial needs, and how many of them borrowers must make.
const TRIAL_DELIVERIES: u32 = 10;
const TRIAL_LENT: u32 = 3;

/// Deliveries that dominate the gain.
const GAIN_SAMPLES: f64 = 32.0;

/// A gain below this factor is none: the segments cross the network once more, and the measurement
/// is not exact.
const MIN_GAIN: f64 = 1.2;

/// When the first trial that gained nothing is repeated, and the longest interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// A home below this share of its former rate alone has changed.
const SLOW_SHARE: f64 = 0.5;

/// A home whose estimate is below this share of its rate alone, or of another replica's, delivers
/// nothing: an estimate decays while reads are in flight.
const HUNG_SHARE: f64 = 0.2;

/// A home also counts as hung if its oldest read is overdue by the time of this many segments and
/// this many seconds.
const HUNG_SEGMENTS: f64 = 4.0;
const HUNG_SECS: f64 = 0.05;

/// Deliveries that measure a home alone.
const MIN_ALONE: u32 = 4;

/// How much of a home's chunks may be lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LendingLimit {
    /// Nothing.
    Nothing,
    /// One segment, if nothing of any home is lent.
    Trial,
    /// As much as is delivered sooner.
    #[default]
    Unlimited,
}

/// A read of a chunk that only one node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeRead {
    /// The replica on that node.
    pub home: ReplicaId,
    /// Whether another replica reads it.
    pub is_lent: bool,
}

/// The present state of a home.
#[derive(Clone, Copy, Debug)]
pub struct HomeView {
    /// Its estimated rate, bytes a second.
    pub rate: f64,
    /// The best measured rate of all replicas.
    pub best_rate: f64,
    /// Seconds by which its oldest read in flight is overdue.
    pub overdue: f64,
    /// The usual segment, bytes.
    pub segment: u64,
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// A trial is under way, or has not begun.
    Open,
    /// Until this time; then the homes are measured alone again.
    GainsUntil(Instant),
    /// Until the next trial, at this time.
    UselessUntil(Instant),
}

/// What lending has gained so far.
#[derive(Clone, Debug)]
pub struct LendingGain {
    homes: ReplicaMap<Home>,
    /// Of all homes without trials of their own.
    common: Trials,
}

/// The gain of some homes.
#[derive(Clone, Debug)]
struct Trials {
    verdict: Verdict,
    /// Decayed sums of bytes beside lent segments: those that the home alone would have delivered,
    /// and those that were delivered.
    expected: f64,
    delivered: f64,
    deliveries: u32,
    lent_deliveries: u32,
    retry: Duration,
}

impl Default for Trials {
    fn default() -> Self {
        Self {
            verdict: Verdict::Open,
            expected: 0.0,
            delivered: 0.0,
            deliveries: 0,
            lent_deliveries: 0,
            retry: FIRST_RETRY,
        }
    }
}

impl Trials {
    /// Adds a delivery beside lent segments. True if there is a new verdict.
    fn add(&mut self, expected: f64, read: HomeRead, delivered: u64, now: Instant) -> bool {
        if matches!(self.verdict, Verdict::UselessUntil(until) if now < until) {
            // Something else than a trial has lent it.
            return false;
        }
        let keep = 1.0 - 1.0 / GAIN_SAMPLES;
        self.expected = self.expected * keep + expected;
        self.delivered = self.delivered * keep + delivered as f64;
        self.deliveries = self.deliveries.saturating_add(1);
        self.lent_deliveries = self.lent_deliveries.saturating_add(u32::from(read.is_lent));
        if self.deliveries < TRIAL_DELIVERIES || self.lent_deliveries < TRIAL_LENT {
            return false;
        }
        if self.delivered >= MIN_GAIN * self.expected {
            let is_new = !matches!(self.verdict, Verdict::GainsUntil(_));
            if is_new {
                self.verdict = Verdict::GainsUntil(now + LONGEST_RETRY);
                self.retry = FIRST_RETRY;
            }
            return is_new;
        }
        *self = Self {
            verdict: Verdict::UselessUntil(now + self.retry),
            retry: (self.retry * 2).min(LONGEST_RETRY),
            ..Self::default()
        };
        true
    }

    /// Whether lending has gained for so long that the homes must be measured alone again.
    fn has_expired(&self, now: Instant) -> bool {
        matches!(self.verdict, Verdict::GainsUntil(until) if now >= until)
    }
}

#[derive(Clone, Debug, Default)]
struct Home {
    /// Reads of its chunks in flight to it.
    own: usize,
    /// Reads of its chunks in flight to others.
    lent: usize,
    /// The last delivery of one of its chunks, or the last change of whether `own` and `lent` are 0.
    /// `None` without reads of its own.
    since: Option<Instant>,
    alone: RateMeter,
    alone_count: u32,
    /// Its rate alone at the last verdict that counts for it.
    judged_rate: f64,
    /// Its own trials, since it has become slower.
    own_trials: Option<Trials>,
}

impl Home {
    /// Adds a delivery while nothing is lent.
    fn add_alone(&mut self, took: Duration, bytes: u64) {
        self.alone.add(took, bytes);
        self.alone_count = self.alone_count.saturating_add(1);
        let Some(rate) = self.alone_rate() else { return };
        if rate < self.judged_rate * SLOW_SHARE {
            self.judged_rate = rate;
            let own = self.own_trials.get_or_insert_default();
            own.verdict = Verdict::Open;
        } else if self.own_trials.is_some() && rate > self.judged_rate / SLOW_SHARE {
            self.judged_rate = rate;
            self.own_trials = None;
        }
    }

    /// Forgets its rate alone: it is measured again.
    fn forget_alone(&mut self) {
        self.alone.reset();
        self.alone_count = 0;
    }

    /// Its rate alone, bytes a second.
    fn alone_rate(&self) -> Option<f64> {
        (self.alone_count >= MIN_ALONE).then(|| self.alone.rate()).flatten()
    }
}

impl LendingGain {
    /// Nothing is known yet.
    pub fn new(replicas: usize) -> Self {
        Self {
            homes: ReplicaMap::from_fn(replicas, |_| Home::default()),
            common: Trials::default(),
        }
    }

    /// Records a large read that was sent.
    pub fn record_sent(&mut self, read: HomeRead, now: Instant) {
        self.change_counts(read, now, |count| count + 1);
    }

    /// Records its end; `delivered` is 0 if it failed, hung, or came from a cache.
    pub fn record_end(&mut self, read: HomeRead, delivered: u64, now: Instant) {
        if delivered > 0 {
            self.record_delivery(read, delivered, now);
        } else if let Some(since) = &mut self.homes[read.home].since {
            *since = now;
        }
        self.change_counts(read, now, |count| count - 1);
    }

    fn record_delivery(&mut self, read: HomeRead, bytes: u64, now: Instant) {
        self.end_gains(now);
        let home = &mut self.homes[read.home];
        let Some(since) = home.since else { return };
        home.since = Some(now);
        let took = now.saturating_duration_since(since);
        if home.lent == 0 {
            home.add_alone(took, bytes);
            return;
        }
        let Some(alone) = home.alone_rate() else { return };
        let expected = alone * took.as_secs_f64();
        if let Some(own) = &mut home.own_trials {
            if own.add(expected, read, bytes, now) {
                home.judged_rate = alone;
            }
        } else if self.common.add(expected, read, bytes, now) {
            let homes = self.homes.iter_mut().map(|(_, home)| home);
            for home in homes.filter(|home| home.own_trials.is_none()) {
                home.judged_rate = home.alone_rate().unwrap_or(0.0);
            }
        }
    }

    /// Lending that gains is tried again after a while: the homes' rates alone have become old.
    fn end_gains(&mut self, now: Instant) {
        let is_common = self.common.has_expired(now);
        if is_common {
            self.common = Trials::default();
        }
        for (_, home) in self.homes.iter_mut() {
            let is_own = home.own_trials.as_ref().is_some_and(|own| own.has_expired(now));
            if is_own || is_common {
                home.forget_alone();
                home.own_trials = None;
            }
        }
    }

    fn change_counts(&mut self, read: HomeRead, now: Instant, change: fn(usize) -> usize) {
        let home = &mut self.homes[read.home];
        let was = (home.own > 0, home.lent > 0);
        let count = if read.is_lent { &mut home.lent } else { &mut home.own };
        *count = change(*count);
        let is = (home.own > 0, home.lent > 0);
        // A home without reads of its own shows neither.
        if is != was {
            home.since = is.0.then_some(now);
        }
    }

    /// How much of a home's chunks may be lent now.
    pub fn limit(&self, home: ReplicaId, seen: HomeView, now: Instant) -> LendingLimit {
        let home = &self.homes[home];
        let alone = home.alone_rate();
        // Beside lent segments a home that works is slower, too.
        let sharers = (1 + home.lent) as f64;
        let usual = home.alone.rate().unwrap_or(seen.best_rate);
        // The first few deliveries are too rough for a comparison of rates.
        let is_known = alone.is_some() || home.alone_count == 0;
        let patience = HUNG_SEGMENTS * seen.segment as f64 * sharers / usual.max(1.0);
        let is_hung = is_known && seen.rate < usual * HUNG_SHARE / sharers
            || usual > 0.0 && seen.overdue > patience + HUNG_SECS;
        match home.own_trials.as_ref().unwrap_or(&self.common).verdict {
            _ if is_hung => LendingLimit::Unlimited,
            _ if alone.is_none() => LendingLimit::Nothing,
            Verdict::GainsUntil(_) => LendingLimit::Unlimited,
            Verdict::UselessUntil(until) if now < until => LendingLimit::Nothing,
            Verdict::Open | Verdict::UselessUntil(_) => LendingLimit::Trial,
        }
    }

    /// Whether one more segment may be lent within `limit`.
    pub fn has_room(&self, limit: LendingLimit) -> bool {
        match limit {
            LendingLimit::Nothing => false,
            LendingLimit::Trial => self.homes.iter().all(|(id, _)| self.lent_reads(id) == 0),
            LendingLimit::Unlimited => true,
        }
    }

    /// Reads in flight of a home's chunks to other replicas, beside reads of its own. Without these
    /// nothing was lent: the home is not asked at all.
    pub fn lent_reads(&self, home: ReplicaId) -> usize {
        let home = &self.homes[home];
        if home.own > 0 { home.lent } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const RATE: f64 = 25.0 * MIB as f64;

    /// Homes of 25 MiB/s, with reads in flight one after the other.
    struct Cluster {
        now: Instant,
        gain: LendingGain,
    }

    fn view(rate: f64, overdue: f64) -> HomeView {
        HomeView { rate, best_rate: RATE, overdue, segment: MIB }
    }

    fn home(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    impl Cluster {
        fn new() -> Self {
            Self { now: Instant::now(), gain: LendingGain::new(3) }
        }

        fn limit(&self, of: usize) -> LendingLimit {
            self.gain.limit(home(of), view(RATE, 0.0), self.now)
        }

        /// The home of number `of` delivers `segments` at `rate`, with one in flight.
        fn alone(&mut self, of: usize, segments: usize, rate: f64) {
            let read = HomeRead { home: home(of), is_lent: false };
            self.gain.record_sent(read, self.now);
            for _ in 0..segments {
                self.now += Duration::from_secs_f64(MIB as f64 / rate);
                self.gain.record_sent(read, self.now);
                self.gain.record_end(read, MIB, self.now);
            }
            self.gain.record_end(read, 0, self.now);
        }

        /// The home and a borrower take turns to deliver one of its segments, at `rate` together,
        /// while lending is not known to be useless.
        fn beside_lent(&mut self, of: usize, segments: usize, rate: f64) {
            let read = |is_lent| HomeRead { home: home(of), is_lent };
            self.gain.record_sent(read(false), self.now);
            self.gain.record_sent(read(true), self.now);
            for turn in 0..segments {
                if self.limit(of) == LendingLimit::Nothing {
                    break;
                }
                self.now += Duration::from_secs_f64(MIB as f64 / rate);
                let is_lent = turn % 2 == 1;
                self.gain.record_sent(read(is_lent), self.now);
                self.gain.record_end(read(is_lent), MIB, self.now);
            }
            self.gain.record_end(read(true), 0, self.now);
            self.gain.record_end(read(false), 0, self.now);
        }
    }

    #[test]
    fn a_home_lends_nothing_until_it_is_measured_and_then_one_segment() {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.limit(0), LendingLimit::Nothing);
        cluster.alone(0, 5, RATE);
        assert_eq!(cluster.limit(0), LendingLimit::Trial);
        assert_eq!(cluster.limit(1), LendingLimit::Nothing);
    }

    #[test]
    fn lending_ends_where_the_node_is_the_bottleneck() {
        let mut cluster = Cluster::new();
        cluster.alone(0, 20, RATE);
        cluster.alone(1, 20, RATE);
        cluster.beside_lent(0, 20, RATE);
        assert_eq!(cluster.limit(0), LendingLimit::Nothing);
        assert_eq!(cluster.limit(1), LendingLimit::Nothing, "it counts for all homes");
        // The next trial is later each time.
        for wait in [5, 10, 20, 40, 60, 60] {
            cluster.now += Duration::from_secs(wait) - Duration::from_secs(2);
            assert_eq!(cluster.limit(0), LendingLimit::Nothing, "{wait}");
            cluster.now += Duration::from_secs(2);
            assert_eq!(cluster.limit(0), LendingLimit::Trial, "{wait}");
            cluster.beside_lent(0, 20, RATE);
        }
    }

    #[test]
    fn lending_goes_on_where_the_gateway_is_the_bottleneck() {
        let mut cluster = Cluster::new();
        cluster.alone(0, 20, RATE);
        cluster.beside_lent(0, 20, 1.6 * RATE);
        assert_eq!(cluster.limit(0), LendingLimit::Unlimited);
        // Without a pause it is measured alone again after a while.
        let began = cluster.now;
        while cluster.limit(0) == LendingLimit::Unlimited {
            cluster.beside_lent(0, 2, 1.6 * RATE);
            assert!(cluster.now < began + 2 * LONGEST_RETRY, "lending is never tried again");
        }
        assert_eq!(cluster.limit(0), LendingLimit::Nothing);
        cluster.alone(0, 20, 1.6 * RATE);
        cluster.beside_lent(0, 20, 1.6 * RATE);
        assert_eq!(cluster.limit(0), LendingLimit::Nothing, "the gateway has become quicker");
    }

    #[test]
    fn a_hung_home_lends_regardless_and_a_slow_one_for_a_trial() {
        let mut cluster = Cluster::new();
        let limit = |cluster: &Cluster, rate: f64| {
            cluster.gain.limit(home(0), view(rate, 0.0), cluster.now)
        };
        assert_eq!(limit(&cluster, 0.1 * RATE), LendingLimit::Unlimited, "not measured yet");
        cluster.alone(0, 20, RATE);
        cluster.beside_lent(0, 20, RATE);
        assert_eq!(limit(&cluster, 0.6 * RATE), LendingLimit::Nothing);
        // It hangs: its rate decays.
        assert_eq!(limit(&cluster, 0.1 * RATE), LendingLimit::Unlimited);
        let overdue = |secs: f64| cluster.gain.limit(home(0), view(RATE, secs), cluster.now);
        assert_eq!(overdue(0.2), LendingLimit::Nothing);
        assert_eq!(overdue(0.3), LendingLimit::Unlimited);
        let mut few = Cluster::new();
        few.alone(0, 2, RATE);
        let overdue = |secs: f64| few.gain.limit(home(0), view(RATE, secs), few.now);
        assert_eq!(overdue(0.2), LendingLimit::Nothing);
        assert_eq!(overdue(0.3), LendingLimit::Unlimited, "after two deliveries");
        // It delivers, slowly: the verdict no longer holds for it.
        cluster.alone(1, 20, RATE);
        cluster.alone(0, 20, 0.3 * RATE);
        assert_eq!(limit(&cluster, 0.3 * RATE), LendingLimit::Trial);
        assert_eq!(cluster.limit(1), LendingLimit::Nothing);
        cluster.beside_lent(0, 20, 0.3 * RATE);
        assert_eq!(limit(&cluster, 0.3 * RATE), LendingLimit::Nothing);
    }

    #[test]
    fn reads_of_a_home_that_is_not_asked_are_no_evidence() {
        let mut cluster = Cluster::new();
        cluster.alone(0, 20, RATE);
        // It is ejected: another replica reads its chunks, two at a time, at any rate.
        let lent = HomeRead { home: home(0), is_lent: true };
        for rate in [4.0 * RATE, 0.5 * RATE] {
            cluster.gain.record_sent(lent, cluster.now);
            for _ in 0..50 {
                cluster.gain.record_sent(lent, cluster.now);
                cluster.now += Duration::from_secs_f64(MIB as f64 / rate);
                cluster.gain.record_end(lent, MIB, cluster.now);
            }
            assert_eq!(cluster.limit(0), LendingLimit::Trial);
            assert!(cluster.gain.has_room(LendingLimit::Trial));
            cluster.gain.record_end(lent, 0, cluster.now);
        }
    }

    #[test]
    fn idle_time_and_failed_reads_are_no_evidence() {
        let mut cluster = Cluster::new();
        cluster.alone(0, 20, RATE);
        let known = cluster.gain.homes[home(0)].alone_rate();
        cluster.now += Duration::from_secs(100);
        cluster.alone(0, 20, RATE);
        assert_eq!(cluster.gain.homes[home(0)].alone_rate(), known);
        let lent = HomeRead { home: home(0), is_lent: true };
        for _ in 0..50 {
            cluster.gain.record_sent(lent, cluster.now);
            cluster.now += Duration::from_secs(1);
            cluster.gain.record_end(lent, 0, cluster.now);
        }
        assert_eq!(cluster.limit(0), LendingLimit::Trial);
        assert_eq!(cluster.gain.lent_reads(home(0)), 0);
    }
}
