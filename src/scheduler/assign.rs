//! Who reads what: every waiting segment to the replica that completes it first.
//!
//! The queue is gone through in order of urgency. Each segment is given, in
//! thought, to the candidate with the least expected completion
//!
//! > latency + (bytes in flight + bytes given to it so far + the segment) / rate
//!
//! and is sent for real where that replica has room. Because what was given in
//! thought counts, a slow replica gets the segment that it will have ready just
//! when it is due, and a fast one is left free for what is due earlier.
//!
//! A replica that is already on the run before the segment is preferred by
//! [`LOYALTY`]: a server that reads ahead for one file is worse off when two
//! take turns.

use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

use super::estimate::Load;

/// Expected completion of the replica that reads what comes before is taken as
/// this part of itself.
const LOYALTY: f64 = 0.85;

/// Segments looked at in one round. Beyond the deepest window of all but the
/// most crowded volumes; what is not looked at is looked at next time.
const HORIZON: usize = 512;

/// A waiting segment as far as the choice goes.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Its size.
    pub bytes: u64,
    /// Who may read it.
    pub candidates: ReplicaSet,
    /// Who reads what comes before it.
    pub prefer: Option<ReplicaId>,
}

/// A segment that is to be sent now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assignment<K> {
    /// Which segment.
    pub key: K,
    /// To whom.
    pub replica: ReplicaId,
    /// Seconds until it is expected back.
    pub expected: f64,
}

/// Decides what to send now. `demands` come most urgent first.
pub fn assign<K: Copy>(
    demands: impl Iterator<Item = (K, Demand)>,
    loads: &ReplicaMap<Load>,
    out: &mut Vec<Assignment<K>>,
) {
    let mut real = loads.clone();
    let mut backlog = loads.map(|_, load| load.in_flight);
    let mut open = loads.iter().filter(|(_, load)| load.has_room()).count();
    for (key, demand) in demands.take(HORIZON) {
        if open == 0 {
            break;
        }
        let Some(replica) = first_to_complete(&demand, loads, &backlog) else { continue };
        backlog[replica] += demand.bytes;
        let load = &mut real[replica];
        if !load.has_room() {
            continue;
        }
        let expected = load.completion(load.in_flight, demand.bytes);
        out.push(Assignment { key, replica, expected });
        load.in_flight += demand.bytes;
        load.reads += 1;
        if !load.has_room() {
            open -= 1;
        }
    }
}

fn first_to_complete(
    demand: &Demand,
    loads: &ReplicaMap<Load>,
    backlog: &ReplicaMap<u64>,
) -> Option<ReplicaId> {
    let mut best: Option<(ReplicaId, f64)> = None;
    for (id, load) in loads.iter() {
        if !demand.candidates.contains(id) {
            continue;
        }
        let mut completion = load.completion(backlog[id], demand.bytes);
        if demand.prefer == Some(id) {
            completion *= LOYALTY;
        }
        if best.is_none_or(|(_, least)| completion < least) {
            best = Some((id, completion));
        }
    }
    best.map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn load(rate: f64) -> Load {
        Load {
            rate: rate * MIB as f64,
            latency: 0.0,
            in_flight: 0,
            reads: 0,
            cap: 2 * MIB,
            max_reads: 8,
        }
    }

    fn demands(n: usize, replicas: usize) -> impl Iterator<Item = (usize, Demand)> {
        let demand = Demand { bytes: MIB, candidates: ReplicaSet::first(replicas), prefer: None };
        (0..n).map(move |i| (i, demand))
    }

    fn sent_to(loads: &ReplicaMap<Load>, n: usize) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        assign(demands(n, loads.len()), loads, &mut out);
        out.iter().map(|a| (a.key, a.replica.index())).collect()
    }

    #[test]
    fn one_segment_goes_to_the_fastest() {
        let loads = [40.0, 160.0, 100.0].map(load).into_iter().collect();
        assert_eq!(sent_to(&loads, 1), [(0, 1)]);
    }

    #[test]
    fn a_slow_replica_gets_a_segment_far_enough_ahead() {
        let loads = [100.0, 10.0].map(load).into_iter().collect();
        // 100 ms on the slow one: the fast one does ten of them meanwhile.
        let sent = sent_to(&loads, 32);
        let slow = sent.iter().find(|(_, replica)| *replica == 1).unwrap();
        assert!((9..=11).contains(&slow.0), "{sent:?}");
        assert_eq!(sent_to(&loads, 8).iter().filter(|(_, r)| *r == 1).count(), 0);
    }

    #[test]
    fn nothing_is_sent_past_the_cap() {
        let loads = [100.0, 100.0].map(load).into_iter().collect();
        assert_eq!(sent_to(&loads, 100).len(), 4);
    }

    #[test]
    fn only_candidates_are_chosen() {
        let loads: ReplicaMap<Load> = [100.0, 100.0].map(load).into_iter().collect();
        let only = ReplicaSet::EMPTY.with(ReplicaId::new(1));
        let demand = Demand { bytes: MIB, candidates: only, prefer: Some(ReplicaId::new(0)) };
        let mut out = Vec::new();
        assign([((), demand)].into_iter(), &loads, &mut out);
        assert_eq!(out[0].replica.index(), 1);
        out.clear();
        let none = Demand { candidates: ReplicaSet::EMPTY, ..demand };
        assign([((), none)].into_iter(), &loads, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn the_replica_on_the_run_is_kept_while_it_is_about_as_good() {
        let mut loads: ReplicaMap<Load> = [100.0, 90.0].map(load).into_iter().collect();
        let demand =
            Demand { bytes: MIB, candidates: loads.all(), prefer: Some(ReplicaId::new(1)) };
        let chosen = |loads: &ReplicaMap<Load>| {
            let mut out = Vec::new();
            assign([((), demand)].into_iter(), loads, &mut out);
            out[0].replica.index()
        };
        assert_eq!(chosen(&loads), 1);
        loads[ReplicaId::new(1)].rate /= 2.0;
        assert_eq!(chosen(&loads), 0);
    }
}
