//! The order in which replicas are asked for metadata.
//!
//! Calls about one path go to one replica. So two calls about it go through the same mount and its
//! cache, and an open finds the entries that the lookup cached. Paths are spread over the
//! replicas, even those of one directory. If calls wait for one replica while others are idle, the
//! next ones go elsewhere: no replica gets more than [`MAX_SHARE`] of an equal share of the calls in
//! flight. (Mirrokni, Thorup, Zadimoghaddam: "Consistent Hashing with Bounded Loads", 2018.)
//!
//! A replica that takes more than [`SLOW_FACTOR`] times as long as the quickest is asked only in
//! three cases: the others fail, one call in [`REMEASURE_EVERY`] measures it again, or it has not
//! been asked for [`STALE_AFTER`]. Where calls usually overlap, waiting for each other may be the
//! reason. So it may then take twice as long as that, unless its calls take long when they are
//! alone. Calls in a pinned subtree go to its replicas, even if these are slow. A few calls go
//! elsewhere, to show whether the pinning is worthwhile.

use std::time::Duration;

use smallvec::SmallVec;

use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// Replicas in the order in which a call asks them. Each call makes one, so it needs no allocation
/// for a usual number of replicas.
pub type ReplicaOrder = SmallVec<[ReplicaId; 8]>;

/// A replica is slow if it takes more than this many times as long as the quickest.
pub const SLOW_FACTOR: u64 = 2;

/// One call in this many goes to a replica that would not be asked otherwise.
pub const REMEASURE_EVERY: u64 = 64;

/// After this time a slow replica's latency must be measured again.
pub const STALE_AFTER: Duration = Duration::from_secs(2);

/// At most one call in this many measures a stale replica, and at most one tries an error suspect.
/// If calls are few, all latencies are stale, and without the limit most calls would go to slow
/// replicas.
const PROBE_EVERY: u64 = 8;

/// A call that takes less than the mean divided by this shows that the latency has changed, or that
/// the mean came from an outlier.
const RESET_FACTOR: u64 = 2;

/// Below this many microseconds no replica counts as slower than another.
const NEGLIGIBLE_US: u64 = 500;

/// A replica's share of the calls in flight is at most this part of an equal share, rounded up.
/// With 1, calls would leave their paths' replicas twice as often and gain 4 % (simulated).
const MAX_SHARE: (usize, usize) = (5, 4);

/// A replica that takes less time than this, microseconds, keeps the calls about its paths: it
/// answers from its cache, and another mount may have to ask the server.
const MIN_SPREAD_US: u64 = 100;

/// One call in flight, as a part of a smoothed load.
pub const LOAD_UNIT: u64 = 64;

/// A pinning is reported if another replica takes less than this share of the time, and at least
/// [`MIN_GAIN_US`] less: a smaller difference is noise.
const MAX_FASTER_SHARE: f64 = 0.8;
const MIN_GAIN_US: u64 = 50;

/// The inputs of the choice.
#[derive(Clone, Copy)]
pub struct OrderParams<'a> {
    /// Smoothed time of a call on a replica, microseconds; 0 for unknown.
    pub latency_us: &'a dyn Fn(ReplicaId) -> u64,
    /// The same of calls that were sent while no other was in flight to it.
    pub unloaded_us: &'a dyn Fn(ReplicaId) -> u64,
    /// The calls in flight to a replica that compete for its threads.
    pub in_flight: &'a dyn Fn(ReplicaId) -> usize,
    /// The smoothed number of them ([`smoothed_load`]).
    pub usual_load: &'a dyn Fn(ReplicaId) -> u64,
    /// How long a replica has not been asked. Few calls need it.
    pub idle_time: &'a dyn Fn(ReplicaId) -> Duration,
    /// All replicas.
    pub all: ReplicaSet,
    /// Those that may be asked.
    pub usable: ReplicaSet,
    /// Those that failed or were late recently.
    pub suspects: ReplicaSet,
    /// The suspects that failed with errors and answer in time. One call in [`PROBE_EVERY`] goes to
    /// one of them first: answers offset failures, so it must be asked.
    pub error_suspects: ReplicaSet,
    /// Replicas to which the object is pinned; empty if it is not.
    pub pinned: ReplicaSet,
    /// The same for all calls about one path.
    pub path_hash: u64,
    /// The number of calls before this one.
    pub call_number: u64,
}

/// The smoothed time after a call that took `sample` microseconds; 0 for unknown.
pub fn smoothed_latency(mean: u64, sample: u64) -> u64 {
    let sample = sample.max(1);
    if mean == 0 || sample.saturating_mul(RESET_FACTOR) < mean {
        return sample;
    }
    // Rounded up, or a mean near 1 would never rise.
    (mean * 7 + sample).div_ceil(8)
}

impl OrderParams<'_> {
    /// Tells which replicas are slow beside the quickest of `set`, which never is.
    fn is_slow_among(&self, set: ReplicaSet) -> impl Fn(ReplicaId) -> bool {
        let known = set.iter().map(self.latency_us).filter(|time| *time > 0);
        let bound = known.min().unwrap_or(0) * SLOW_FACTOR;
        move |id| {
            let load = (self.usual_load)(id).clamp(LOAD_UNIT, 2 * LOAD_UNIT);
            (self.latency_us)(id) > (bound * load / LOAD_UNIT).max(NEGLIGIBLE_US)
                || self.lone_call_us(id).is_some_and(|time| time > bound.max(NEGLIGIBLE_US))
        }
    }

    /// The time of a call that waits for no other one. It may be an old one, so it is never above
    /// the present time of calls. `None` if it is unknown.
    fn lone_call_us(&self, id: ReplicaId) -> Option<u64> {
        let unloaded = (self.unloaded_us)(id);
        (unloaded > 0).then(|| unloaded.min((self.latency_us)(id)))
    }
}

/// The smoothed number of calls in flight, in parts of [`LOAD_UNIT`], once `in_flight` are.
pub fn smoothed_load(mean: u64, in_flight: usize) -> u64 {
    (mean * 7 + in_flight as u64 * LOAD_UNIT) / 8
}

/// Moves the first replica that has few enough calls in flight to the front.
fn move_idle_to_front(order: &mut ReplicaOrder, in_flight: &dyn Fn(ReplicaId) -> usize) {
    let all = 1 + order.iter().map(|id| in_flight(*id)).sum::<usize>();
    let (share, of) = MAX_SHARE;
    let most = (all * share).div_ceil(order.len().max(1) * of);
    if let Some(at) = order.iter().position(|id| in_flight(*id) < most) {
        order[..=at].rotate_right(1);
    }
}

/// All replicas in the order in which to ask them.
pub fn replica_order(choice: &OrderParams<'_>) -> ReplicaOrder {
    let OrderParams { latency_us, pinned, all, .. } = *choice;
    if all.len() == 1 {
        return all.iter().collect();
    }
    let well = choice.usable.minus(choice.suspects);
    let usable = if well.is_empty() { choice.usable } else { well };
    let remeasure = choice.call_number % REMEASURE_EVERY == REMEASURE_EVERY - 1;
    let at_home = pinned.and(usable);
    let first = match (at_home.is_empty(), remeasure) {
        (true, _) => usable,
        (false, false) => at_home,
        (false, true) if usable.minus(pinned).is_empty() => at_home,
        (false, true) => usable.minus(pinned),
    };
    let is_slow = choice.is_slow_among(first);
    let (mut quick, slow): (ReplicaOrder, ReplicaOrder) =
        first.iter().partition(|id| remeasure || !is_slow(*id));
    if !quick.is_empty() {
        // Remeasuring takes turns; otherwise the path decides.
        let place = if remeasure {
            choice.call_number / REMEASURE_EVERY
        } else {
            mix_hash(choice.path_hash)
        };
        let turn = (place % quick.len() as u64) as usize;
        quick.rotate_left(turn);
        let lone_call = choice.lone_call_us(quick[0]).unwrap_or(latency_us(quick[0]));
        if !remeasure && lone_call >= MIN_SPREAD_US {
            move_idle_to_front(&mut quick, choice.in_flight);
        }
    }
    quick.extend(slow);
    let is_stale = |id: &ReplicaId| is_slow(*id) && (choice.idle_time)(*id) >= STALE_AFTER;
    if choice.call_number % PROBE_EVERY == PROBE_EVERY - 1
        && !remeasure
        && let Some(at) = quick.iter().position(is_stale)
    {
        quick[..=at].rotate_right(1);
    }
    let refusing = choice.error_suspects.and(choice.usable).minus(first);
    if choice.call_number % PROBE_EVERY == PROBE_EVERY / 2 && !refusing.is_empty() {
        let place = (choice.call_number / PROBE_EVERY) as usize % refusing.iter().count();
        quick.insert_many(0, refusing.iter().nth(place));
    }
    // Ejected replicas come last rather than never, so that an error comes from a replica.
    let mut left = all;
    quick.iter().for_each(|id| left = left.minus(ReplicaSet::EMPTY.with(*id)));
    for set in [usable, choice.usable, all] {
        quick.extend(left.and(set).iter());
        left = left.minus(set);
    }
    quick
}

/// A replica that is quicker than those to which a subtree is pinned, with its time and theirs,
/// microseconds.
pub fn faster_unpinned_replica(
    times: &ReplicaMap<u64>,
    pinned: ReplicaSet,
) -> Option<(ReplicaId, u64, u64)> {
    let known =
        |set: ReplicaSet| set.iter().map(|id| (times[id], id)).filter(|(time, _)| *time > 0);
    let (ours, _) = known(pinned.and(times.all())).min()?;
    let (theirs, id) = known(times.all().minus(pinned)).min()?;
    let quicker = (theirs as f64) < ours as f64 * MAX_FASTER_SHARE && theirs + MIN_GAIN_US <= ours;
    quicker.then_some((id, theirs, ours))
}

/// Mixes the bits, so that hashes in sequence do not rotate through the replicas.
pub fn mix_hash(affinity: u64) -> u64 {
    affinity.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[usize]) -> ReplicaSet {
        ids.iter().fold(ReplicaSet::EMPTY, |set, id| set.with(ReplicaId::new(*id)))
    }

    fn first(times: &[u64], usable: &[usize], pinned: &[usize], affinity: u64, turn: u64) -> usize {
        first_after(Duration::ZERO, times, (usable, pinned), affinity, turn)
    }

    /// Parameters with all sets empty.
    fn choice<'a>(
        all: ReplicaSet,
        latency_us: &'a dyn Fn(ReplicaId) -> u64,
        idle_time: &'a dyn Fn(ReplicaId) -> Duration,
    ) -> OrderParams<'a> {
        let none = ReplicaSet::EMPTY;
        OrderParams {
            latency_us,
            idle_time,
            unloaded_us: &|_| 0,
            in_flight: &|_| 0,
            usual_load: &|_| LOAD_UNIT,
            all,
            usable: none,
            suspects: none,
            error_suspects: none,
            pinned: none,
            path_hash: 0,
            call_number: 0,
        }
    }

    /// The first replica, if all have been idle for this long.
    fn first_after(
        idle: Duration,
        times: &[u64],
        (usable, pinned): (&[usize], &[usize]),
        affinity: u64,
        turn: u64,
    ) -> usize {
        let times: ReplicaMap<u64> = times.iter().copied().collect();
        let latency_us = |id| times[id];
        let idle_time = |_| idle;
        let choice = OrderParams {
            usable: set(usable),
            pinned: set(pinned),
            path_hash: affinity,
            call_number: turn,
            ..choice(times.all(), &latency_us, &idle_time)
        };
        let order = replica_order(&choice);
        assert_eq!(order.len(), times.len(), "each replica comes once: {order:?}");
        order[0].index()
    }

    #[test]
    fn paths_are_spread_over_similarly_fast_replicas() {
        let mut asked = [0; 3];
        for path in 0..300 {
            asked[first(&[600, 900, 5000], &[0, 1, 2], &[], path, 0)] += 1;
        }
        assert!(asked[0] > 100 && asked[1] > 100 && asked[2] == 0, "{asked:?}");
    }

    #[test]
    fn calls_leave_a_busy_replica_for_an_idle_one() {
        let chosen = |time: u64, in_flight: [usize; 3]| {
            let (latency_us, in_flight) = (|_| time, |id: ReplicaId| in_flight[id.index()]);
            let times: ReplicaMap<u64> = [time; 3].into_iter().collect();
            let choice = OrderParams {
                usable: set(&[0, 1, 2]),
                in_flight: &in_flight,
                ..choice(times.all(), &latency_us, &|_| Duration::ZERO)
            };
            let order = replica_order(&choice);
            assert_eq!(order.len(), 3, "each replica comes once: {order:?}");
            order[0].index()
        };
        let home = chosen(300, [0; 3]);
        let other = (home + 1) % 3;
        let busy = |own: usize, others: usize| {
            let mut in_flight = [others; 3];
            in_flight[home] = own;
            in_flight
        };
        assert_eq!(chosen(300, busy(1, 0)), other);
        assert_eq!(chosen(300, busy(3, 2)), home, "the others are about as busy");
        assert_eq!(chosen(300, busy(4, 2)), other);
        assert_eq!(chosen(MIN_SPREAD_US - 1, busy(4, 0)), home, "it answers from its cache");
    }

    #[test]
    fn a_loaded_replica_may_take_longer_but_not_for_a_lone_call() {
        let chosen = |unloaded: [u64; 2], load: u64| {
            let times: ReplicaMap<u64> = [1000, 3000].into_iter().collect();
            let (latency_us, unloaded_us) = (|id| times[id], |id: ReplicaId| unloaded[id.index()]);
            let choice = OrderParams {
                usable: set(&[0, 1]),
                unloaded_us: &unloaded_us,
                usual_load: &|_| load,
                ..choice(times.all(), &latency_us, &|_| Duration::ZERO)
            };
            let first = (0..32)
                .map(|path_hash| replica_order(&OrderParams { path_hash, ..choice })[0].index());
            first.sum::<usize>()
        };
        assert_eq!(chosen([0, 0], LOAD_UNIT), 0, "it is slow");
        assert!(chosen([0, 0], 2 * LOAD_UNIT) > 8, "its calls may wait for each other");
        assert!(chosen([900, 1700], 4 * LOAD_UNIT) > 8);
        assert_eq!(chosen([900, 2100], 4 * LOAD_UNIT), 0, "a lone call takes long too");
        assert!(chosen([100, 1900], 4 * LOAD_UNIT) > 8, "the first one's is out of date");
    }

    #[test]
    fn a_slow_replica_is_measured_again_periodically() {
        let turns = 0..REMEASURE_EVERY * 30;
        let slow = turns.filter(|turn| first(&[600, 900, 5000], &[0, 1, 2], &[], 7, *turn) == 2);
        assert_eq!(slow.count(), 10);
    }

    #[test]
    fn an_idle_slow_replica_is_measured_again_soon() {
        let times = [600, 900, 5000];
        let asked = |idle: Duration, usable: &[usize], pinned: &[usize]| {
            let turns = 0..REMEASURE_EVERY - 1;
            turns.filter(|t| first_after(idle, &times, (usable, pinned), 7, *t) == 2).count()
        };
        assert_eq!(asked(STALE_AFTER - Duration::from_millis(1), &[0, 1, 2], &[]), 0);
        assert_eq!(asked(STALE_AFTER, &[0, 1, 2], &[]), 7, "one call in eight, if all are as old");
        assert_eq!(asked(STALE_AFTER, &[0, 1], &[]), 0, "it is not well");
        assert_eq!(asked(STALE_AFTER, &[0, 1, 2], &[0, 1]), 0, "nor where it is pinned elsewhere");
    }

    #[test]
    fn one_outlier_is_forgotten_with_the_next_call() {
        let accident = smoothed_latency(smoothed_latency(0, 1000), 5_000_000);
        assert!(accident > 600_000);
        assert_eq!(smoothed_latency(accident, 1100), 1100);
        // An average sample moves the mean, and an outlier does not replace it.
        assert_eq!(smoothed_latency(1000, 501), 938);
        assert_eq!(smoothed_latency(1000, 9000), 2000);
        assert_eq!(
            (smoothed_latency(0, 0), smoothed_latency(1, 1), smoothed_latency(1, 2)),
            (1, 1, 2)
        );
    }

    #[test]
    fn a_pinned_subtree_uses_its_replica_while_healthy() {
        for turn in 0..REMEASURE_EVERY - 1 {
            assert_eq!(first(&[100, 90_000], &[0, 1], &[1], turn, turn), 1);
        }
        assert_eq!(first(&[100, 90_000], &[0, 1], &[1], 0, REMEASURE_EVERY - 1), 0);
        assert_eq!(first(&[100, 90_000], &[0], &[1], 0, 0), 0);
    }

    #[test]
    fn suspects_are_ordered_between_healthy_and_ejected() {
        let times: ReplicaMap<u64> = [100, 90, 80].into_iter().collect();
        let latency_us = |id| times[id];
        let idle_time = |_| Duration::ZERO;
        let (usable, suspect) = (set(&[1, 2]), set(&[2]));
        for turn in 0..2 * REMEASURE_EVERY {
            let affinity = turn;
            let choice = OrderParams {
                usable,
                suspects: suspect,
                path_hash: affinity,
                call_number: turn,
                ..choice(times.all(), &latency_us, &idle_time)
            };
            assert_eq!(
                replica_order(&choice).iter().map(|id| id.index()).collect::<Vec<_>>(),
                [1, 2, 0]
            );
        }
    }

    #[test]
    fn a_failing_suspect_gets_one_call_in_eight() {
        let times: ReplicaMap<u64> = [100, 90, 80, 70].into_iter().collect();
        let latency_us = |id| times[id];
        let idle_time = |_| Duration::ZERO;
        let (usable, suspect) = (set(&[0, 1, 2]), set(&[1, 2]));
        let mut asked = [0; 4];
        for turn in 0..160 {
            let (affinity, refusing) = (turn, suspect);
            let choice = OrderParams {
                usable,
                suspects: suspect,
                error_suspects: refusing,
                path_hash: affinity,
                call_number: turn,
                ..choice(times.all(), &latency_us, &idle_time)
            };
            let order = replica_order(&choice);
            assert_eq!(order.len(), 4, "each replica comes once: {order:?}");
            asked[order[0].index()] += 1;
        }
        assert_eq!(asked, [140, 10, 10, 0]);
    }

    #[test]
    fn a_slower_pinned_replica_is_noticed() {
        let times = |times: [u64; 3]| times.into_iter().collect();
        let slower = faster_unpinned_replica(&times([900, 200, 0]), set(&[0]));
        assert_eq!(slower, Some((ReplicaId::new(1), 200, 900)));
        assert_eq!(faster_unpinned_replica(&times([210, 200, 0]), set(&[0])), None);
        assert_eq!(faster_unpinned_replica(&times([40, 1, 1]), set(&[0])), None);
        assert_eq!(faster_unpinned_replica(&times([0, 200, 0]), set(&[0])), None);
    }
}
