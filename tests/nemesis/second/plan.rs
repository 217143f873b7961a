//! The plan of first and second failures: a pure function of a seed.
//!
//! Time consists of *cycles*. In each cycle one replica or two fail, and in half of the
//! cycles the nested file system as well. Meanwhile the daemon is killed, replaced or
//! reloaded. Then everything is healed, and for [`QUIET`] nothing fails. In each cycle one
//! replica, the *anchor*, stays well, so every call must keep the promises that need one
//! healthy replica.

use std::fmt;
use std::time::Duration;

use crate::schedule::{Calls, Episode, Random, Schedule, Trouble};

pub(crate) const REPLICAS: usize = 3;

/// From a heal to the next failure, so that healed replicas are in service again.
pub(crate) const QUIET: Duration = Duration::from_secs(7);

/// Most kills within [`WITHIN`]: a keeper gives the mount up after more.
const KILLS: usize = 4;
const WITHIN: Duration = Duration::from_secs(62);

/// Errors of a replica whose process is dead.
pub(crate) const ENOTCONN: i32 = 107;

/// How a mount fails, a replica's or the nested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its server answers nothing.
    Hangs,
    /// Its server is dead: ENOTCONN.
    Dies,
    /// It is unmounted; an empty directory of the local disk is in its place.
    Goes,
}

/// One step's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Replica(usize, Failure),
    Nested(Failure),
    KillDaemon,
    Upgrade,
    Reload,
    Heal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) deed: Deed,
}

pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    pub(crate) fn of(seed: u64, length: Duration) -> Self {
        let mut random = Random::new(seed ^ 0x005e_c04d);
        let (mut episodes, mut steps) = (Vec::new(), Vec::new());
        let mut kills: Vec<Duration> = Vec::new();
        let mut begin = Duration::from_secs(2);
        loop {
            let heal = begin + random.time(6_000, 9_000);
            if heal + QUIET > length {
                break;
            }
            let mut push = |at, deed| steps.push(Step { at, deed });
            let anchor = random.below(REPLICAS as u64) as usize;
            let first = (anchor + 1 + random.below(2) as usize) % REPLICAS;
            let second = REPLICAS - anchor - first;
            let mut victims = vec![first];
            if random.below(2) == 0 {
                victims.push(second);
            }
            for replica in victims {
                let from = begin + random.time(0, 2_500);
                let (failure, trouble) = match random.below(3) {
                    0 => (Failure::Hangs, Trouble::Hang(Calls::All)),
                    1 => (Failure::Dies, Trouble::Error(ENOTCONN, Calls::All)),
                    _ => (Failure::Goes, Trouble::Unmounted),
                };
                push(from, Deed::Replica(replica, failure));
                // The action happens a moment after its time, and so does the heal.
                let until = heal + Duration::from_secs(2);
                episodes.push(Episode { replica, trouble, from, until });
            }
            match random.below(4) {
                0 => push(begin + random.time(0, 2_500), Deed::Nested(Failure::Hangs)),
                1 => push(begin + random.time(0, 2_500), Deed::Nested(Failure::Dies)),
                _ => {}
            }
            let mut at = begin;
            for _ in 0..1 + random.below(2) {
                at += random.time(500, 3_000);
                let recent = kills.iter().filter(|kill| **kill + WITHIN > at).count();
                let deed = match random.below(4) {
                    0 => Deed::Upgrade,
                    1 => Deed::Reload,
                    _ if recent >= KILLS => Deed::Upgrade,
                    _ => Deed::KillDaemon,
                };
                if deed == Deed::KillDaemon {
                    kills.push(at);
                }
                push(at, deed);
            }
            push(heal, Deed::Heal);
            begin = heal + QUIET;
        }
        steps.sort_by_key(|step| step.at);
        episodes.sort_by_key(|episode| (episode.from, episode.replica));
        Self { schedule: Schedule::new(episodes, REPLICAS), steps }
    }

    /// Whether the daemon is killed in this stretch of time.
    pub(crate) fn kills(&self, from: Duration, until: Duration) -> bool {
        let is_kill =
            |step: &Step| step.deed == Deed::KillDaemon && (from..=until).contains(&step.at);
        self.steps.iter().any(is_kill)
    }

    /// Whether the nested file system fails in this way at some time within this stretch.
    pub(crate) fn nested_fails(&self, how: Failure, from: Duration, until: Duration) -> bool {
        let mut since = None;
        for Step { at, deed } in &self.steps {
            match deed {
                Deed::Nested(failure) if *failure == how => since = Some(*at),
                Deed::Heal => {
                    let healed = *at + QUIET / 2;
                    if since.take().is_some_and(|since| since <= until && from <= healed) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        since.is_some_and(|since| since <= until)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { at, deed } in &self.steps {
            writeln!(f, "  {:8.3} s  {deed:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
