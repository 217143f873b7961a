//! The choice of a replica for a small read, without the scheduler's lock.
//!
//! The scheduler publishes what the choice needs ([`SmallReadView`]) at every tick. The choice is
//! the one that [`super::assign`] makes for a single segment, with loads that are up to a tick old.
//! It is valid only while the volume is *calm*: nothing waits in the queue, nothing hangs, and no
//! replica is in doubt. Otherwise the scheduler itself decides.
//!
//! The measurements come back in bulk: each thread sums its reads up in [`SmallReadTally`]s, which
//! the scheduler adds to its estimates at the next tick.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::assign::{MIN_REMOTE_SPEEDUP, OPEN_SECS};
use super::estimate::{FastestReads, ReplicaEstimate};
use super::probe::PROBE_AFTER;
use super::rate::{Locality, PerLocality};
use super::{AttemptId, Scheduler, SegmentRequest};
use crate::replicas::health::HealthState;
use crate::replicas::health_board::HealthBoard;
use crate::replicas::lateness::LatenessCounts;
use crate::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};

/// The loads of all replicas as of the last tick.
pub struct SmallReadView {
    is_calm: AtomicBool,
    /// Whether some replica has been idle for so long that the scheduler should choose once, and
    /// probe it.
    is_probe_due: AtomicBool,
    loads: ReplicaMap<PublishedLoad>,
}

/// One replica's load. Its fields may be from two ticks, which harms no decision.
#[derive(Default)]
struct PublishedLoad {
    /// Seconds until a read of no bytes completes: the latency, and the bytes in flight.
    latency: PerLocality<AtomicF64>,
    seconds_per_byte: PerLocality<AtomicF64>,
    /// As [`super::estimate::ReplicaLoad::is_latency_uncertain`].
    is_latency_uncertain: AtomicBool,
}

#[derive(Default)]
struct AtomicF64(AtomicU64);

impl AtomicF64 {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// A small read that needs a replica.
#[derive(Clone, Copy, Debug)]
pub struct SmallReadRequest {
    /// Its size in bytes.
    pub bytes: u64,
    /// The replicas that may serve it.
    pub candidates: ReplicaSet,
    /// The holders of its chunk.
    pub holders: Holders,
    /// As [`super::SegmentRequest::open_on`].
    pub open_on: ReplicaSet,
}

/// The replica that was chosen for a small read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmallReadChoice {
    /// The replica.
    pub replica: ReplicaId,
    /// Whether its node holds the chunk.
    pub locality: Locality,
    /// The time until the expected completion.
    pub expected: Duration,
}

impl SmallReadView {
    /// The view of `replicas` replicas; not calm.
    pub fn new(replicas: usize) -> Self {
        Self {
            is_calm: AtomicBool::new(false),
            is_probe_due: AtomicBool::new(false),
            loads: ReplicaMap::from_fn(replicas, |_| PublishedLoad::default()),
        }
    }

    /// Until the next tick, the scheduler decides about each read.
    pub fn disturb(&self) {
        if self.is_calm.load(Ordering::Relaxed) {
            self.is_calm.store(false, Ordering::Relaxed);
        }
    }

    /// How long a read of that many bytes from `replica` would take if no other were in flight and
    /// its node held them. `None` if the scheduler must decide about reads.
    pub fn expected_time(&self, replica: ReplicaId, bytes: u64) -> Option<Duration> {
        if !self.is_calm.load(Ordering::Relaxed) || self.is_probe_due.load(Ordering::Relaxed) {
            return None;
        }
        let load = &self.loads[replica];
        if load.is_latency_uncertain.load(Ordering::Relaxed) {
            return None;
        }
        let cost = load.seconds_per_byte.local.get() * bytes as f64;
        let time = load.latency.local.get() + cost;
        Some(Duration::from_secs_f64(time.min(MAX_EXPECTED_SECS)))
    }

    /// The replica that completes a read first. `reads_in_flight` is the number of small reads in
    /// flight to a replica, `None` if it takes no more. `None` if the scheduler must decide.
    pub fn choose(
        &self,
        read: &SmallReadRequest,
        reads_in_flight: impl Fn(ReplicaId) -> Option<usize>,
    ) -> Option<SmallReadChoice> {
        if !self.is_calm.load(Ordering::Relaxed)
            || self.is_probe_due.load(Ordering::Relaxed)
                && self.is_probe_due.swap(false, Ordering::Relaxed)
        {
            return None;
        }
        let choice = read.holders.nearest(read.candidates);
        let is_opened_somewhere = !read.open_on.and(choice).is_empty();
        let mut best: Option<SmallReadChoice> = None;
        let mut least = f64::INFINITY;
        for replica in choice.iter() {
            let is_local = read.holders.local.contains(replica);
            let locality = if is_local { Locality::Local } else { Locality::Remote };
            let load = &self.loads[replica];
            let Some(in_flight) = reads_in_flight(replica) else { continue };
            let latency = load.latency[locality].get();
            let cost = load.seconds_per_byte[locality].get() * read.bytes as f64;
            let mut completion = latency + cost * (1 + in_flight) as f64;
            if read.open_on != ReplicaSet::ALL {
                // The scheduler knows how to weigh an uncertain latency.
                if load.is_latency_uncertain.load(Ordering::Relaxed) {
                    return None;
                }
                if is_opened_somewhere && !read.open_on.contains(replica) {
                    completion += latency + OPEN_SECS;
                }
            }
            if completion < least {
                least = completion;
                let expected = Duration::from_secs_f64(completion.min(MAX_EXPECTED_SECS));
                best = Some(SmallReadChoice { replica, locality, expected });
            }
        }
        let is_lent = |replica: ReplicaId| {
            let load = &self.loads[replica];
            let remote = Locality::Remote;
            let cost = load.seconds_per_byte[remote].get() * read.bytes as f64;
            (load.latency[remote].get() + cost) * MIN_REMOTE_SPEEDUP < least
        };
        let is_unopened = |choice: &SmallReadChoice| {
            is_opened_somewhere && !read.open_on.contains(choice.replica)
        };
        let may_lend = read.candidates.minus(choice).iter().any(is_lent);
        best.filter(|choice| !may_lend && !is_unopened(choice))
    }
}

/// An upper limit of expected completions, seconds, which fits a [`Duration`].
const MAX_EXPECTED_SECS: f64 = 1e6;

/// The small reads that one thread made from one replica since the last tick.
#[derive(Clone, Debug, Default)]
pub struct SmallReadTally {
    bytes: u64,
    last: Option<Instant>,
    fastest: PerLocality<FastestReads>,
    lateness: LatenessCounts,
}

/// A small read that delivered its bytes.
#[derive(Clone, Copy, Debug)]
pub struct SmallReadDelivery {
    /// Its bytes.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// How long it was expected to take.
    pub expected: Duration,
    /// Whether the replica's node holds the chunk.
    pub locality: Locality,
    /// Whether no other small read was in flight to the replica when it began.
    pub is_alone: bool,
    /// When it was delivered.
    pub at: Instant,
}

impl SmallReadTally {
    /// Adds a read.
    pub fn add(&mut self, read: &SmallReadDelivery) {
        self.bytes += read.bytes;
        self.last = Some(read.at);
        self.fastest[read.locality].add((read.took.as_secs_f64(), read.bytes), read.is_alone);
        self.lateness.add(read.took, read.expected);
    }

    /// Whether it has no reads.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }
}

impl<T: Clone> Scheduler<T> {
    /// Takes over a small read that is in flight to the chosen replica since `sent_at`: from now
    /// on it may be late, like any other attempt. End it with [`Scheduler::attempt_finished`].
    pub fn adopt_small_read(
        &mut self,
        read: SegmentRequest<T>,
        choice: SmallReadChoice,
        sent_at: Instant,
    ) -> AttemptId {
        self.start_attempt(read, choice.replica, choice.expected, sent_at).attempt
    }

    /// Adds a thread's small reads from `replica` to the measurements.
    pub fn add_small_reads(
        &mut self,
        replica: ReplicaId,
        tally: &SmallReadTally,
        health: &mut HealthBoard,
    ) {
        let Some(last) = tally.last else { return };
        let estimate = &mut self.estimates[replica];
        estimate.add_small_bytes(tally.bytes, last);
        for locality in [Locality::Local, Locality::Remote] {
            estimate.add_fastest(locality, last, &tally.fastest[locality]);
        }
        self.lateness[replica].merge(&tally.lateness);
        self.hedges.refill(tally.bytes);
        // These deliveries may be older than the reason for any doubt.
        if health.state(replica) == HealthState::Healthy {
            health.record_delivery(replica, last);
        }
    }

    /// Publishes the loads for small reads.
    pub fn publish_small_read_view(
        &mut self,
        view: &SmallReadView,
        health: &HealthBoard,
        now: Instant,
    ) {
        let loads = self.loads(health, now);
        for (id, load) in loads.iter() {
            view.loads[id].is_latency_uncertain.store(load.is_latency_uncertain, Ordering::Relaxed);
            for locality in [Locality::Local, Locality::Remote] {
                let published = &view.loads[id];
                published.latency[locality].set(load.latency[locality] + load.in_flight_work);
                published.seconds_per_byte[locality].set(1.0 / load.rate[locality]);
            }
        }
        let is_idle = |estimate: &ReplicaEstimate| {
            let since = estimate.idle_since();
            since.is_some_and(|since| now.saturating_duration_since(since) >= PROBE_AFTER)
        };
        let is_probe_due =
            loads.len() > 1 && self.estimates.iter().any(|(_, estimate)| is_idle(estimate));
        view.is_probe_due.store(is_probe_due, Ordering::Relaxed);
        let is_calm =
            self.queue.is_empty() && self.hung_files.is_empty() && self.stuck_replicas.is_empty();
        view.is_calm.store(is_calm, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(latencies: &[f64]) -> SmallReadView {
        let view = SmallReadView::new(latencies.len());
        for (id, load) in view.loads.iter() {
            let latency = latencies[id.index()];
            load.latency.local.set(latency);
            load.latency.remote.set(2.0 * latency);
            load.seconds_per_byte.local.set(1e-8);
            load.seconds_per_byte.remote.set(1e-8);
        }
        view.is_calm.store(true, Ordering::Relaxed);
        view
    }

    fn any(replicas: usize) -> SmallReadRequest {
        SmallReadRequest {
            bytes: 4096,
            candidates: ReplicaSet::first(replicas),
            holders: Holders::UNKNOWN,
            open_on: ReplicaSet::ALL,
        }
    }

    /// A replica takes nine small reads.
    fn room(in_flight: usize) -> Option<usize> {
        (in_flight < 9).then_some(in_flight)
    }

    fn room_for_all(_: ReplicaId) -> Option<usize> {
        Some(0)
    }

    fn chosen(view: &SmallReadView, read: &SmallReadRequest, in_flight: &[usize]) -> Option<usize> {
        view.choose(read, |id| room(in_flight[id.index()])).map(|choice| choice.replica.index())
    }

    #[test]
    fn a_small_read_goes_where_it_completes_first() {
        let view = view(&[1e-4, 5e-5, 2e-4]);
        assert_eq!(chosen(&view, &any(3), &[0, 0, 0]), Some(1));
        assert_eq!(chosen(&view, &any(3), &[0, 3, 0]), Some(0), "reads in flight take time too");
        assert_eq!(chosen(&view, &any(1), &[8, 0, 0]), Some(0), "the only candidate");
        assert_eq!(chosen(&view, &any(2), &[0, 9, 0]), Some(0), "the other is full");
        assert_eq!(chosen(&view, &any(1), &[9, 0, 0]), None);
    }

    #[test]
    fn a_chunk_is_read_where_it_is() {
        let view = view(&[1e-4, 9e-5, 1e-4]);
        let only_2 = ReplicaSet::EMPTY.with(ReplicaId::new(2));
        let holders = Holders::local(only_2);
        let read = SmallReadRequest { holders, ..any(3) };
        let choice = view.choose(&read, room_for_all).unwrap();
        assert_eq!((choice.replica.index(), choice.locality), (2, Locality::Local));
        view.loads[ReplicaId::new(1)].latency.remote.set(1e-5);
        assert_eq!(view.choose(&read, room_for_all), None, "the scheduler may lend it");
        let read = SmallReadRequest { candidates: ReplicaSet::first(2), ..read };
        let choice = view.choose(&read, room_for_all).unwrap();
        assert_eq!((choice.replica.index(), choice.locality), (1, Locality::Remote));
    }

    #[test]
    fn a_small_file_is_read_where_it_is_open() {
        let view = view(&[1e-4, 5e-5]);
        let open_on = ReplicaSet::first(1);
        let read = SmallReadRequest { open_on, ..any(2) };
        assert_eq!(chosen(&view, &read, &[0, 0]), Some(0));
        view.loads[ReplicaId::new(1)].is_latency_uncertain.store(true, Ordering::Relaxed);
        assert_eq!(chosen(&view, &read, &[0, 0]), None, "it may be far quicker");
        assert_eq!(chosen(&view, &any(2), &[0, 0]), Some(1), "it is open on both");
    }

    #[test]
    fn the_scheduler_decides_after_a_disturbance_and_when_a_probe_is_due() {
        let view = view(&[1e-4, 1e-4]);
        view.is_probe_due.store(true, Ordering::Relaxed);
        assert_eq!(chosen(&view, &any(2), &[0, 0]), None, "one read probes");
        assert_eq!(chosen(&view, &any(2), &[0, 0]), Some(0));
        view.disturb();
        assert_eq!(chosen(&view, &any(2), &[0, 0]), None);
    }
}
