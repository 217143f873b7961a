//! Segments that came from a page cache.
//!
//! A replica that has a segment in its page cache delivers it at the speed of memory.
//! That says nothing of how fast its link is: a rate made of such deliveries gives it
//! segments that the link then takes long for, and other replicas look slow beside
//! it. So what comes from a cache is kept out of the estimates.
//!
//! A delivery is told by its own time, from its dispatch on: links share their rate
//! among what is in flight, so single segments come far below [`MEMORY`], and a cache
//! answers each at once. What came as fast as memory is a *hit* where the replica
//! delivers less than an eighth of that otherwise ([`FAR`]).
//!
//! Of a replica that has delivered nothing else nobody can tell: it may have all in
//! its cache, or have memory for a disk. Its rate is *adopted*: used to choose whom to
//! ask, and not compared with that of others. [`TURN`] deliveries far below [`MEMORY`]
//! in a row, or [`MANY`] below it, show the link, and what was adopted is forgotten;
//! [`MANY`] hits in a row without one show that there is no such link any more.
//!
//! Pure.

use std::time::Duration;

/// A delivery at so many bytes a second, or more, may have come from memory. A link of
/// 10 Gbit/s with four segments in flight delivers each at half of that.
const MEMORY: f64 = (512u64 << 20) as f64;

/// Below this part of it even a busy machine delivers nothing from memory.
const SURE: f64 = 0.25;

/// Times the rate of the link.
const FAR: f64 = 8.0;

/// Slower deliveries in a row that show the link. One alone may be an accident of this
/// machine.
const TURN: u32 = 4;

/// Hits in a row after which the link's rate is history, and others after which that of
/// the cache is.
const MANY: u32 = 64;

/// What a delivery tells of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// How fast the replica is.
    Measure,
    /// The same, and that what was measured before is history.
    Anew,
    /// Nothing.
    Hit,
}

/// What is known of one replica's cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    /// Whether what is measured was as fast as memory, all of it.
    is_adopted: bool,
    /// Hits since something slower, or slower ones since a hit.
    row: u32,
    /// Those of them far below the speed of memory, without one that is not.
    sure: u32,
}

impl Cached {
    /// Judges a delivery of `bytes` that took `took`, by a replica that is known to
    /// deliver `rate` bytes a second.
    pub fn judge(&mut self, bytes: u64, took: Duration, rate: Option<f64>) -> Verdict {
        let own = bytes as f64 / took.as_secs_f64().max(1e-6);
        match (own >= MEMORY, self.is_adopted) {
            (false, false) => {
                self.row = 0;
                Verdict::Measure
            }
            (false, true) => {
                self.sure = if own < SURE * MEMORY { self.sure + 1 } else { 0 };
                let enough = if self.sure >= TURN { 1 } else { MANY };
                self.turn(enough, false, Verdict::Measure)
            }
            (true, true) => {
                (self.row, self.sure) = (0, 0);
                Verdict::Measure
            }
            (true, false) => match rate {
                Some(rate) if own > FAR * rate => self.turn(MANY, true, Verdict::Hit),
                Some(_) => Verdict::Measure,
                None => {
                    *self = Self { is_adopted: true, ..Self::default() };
                    Verdict::Measure
                }
            },
        }
    }

    /// One more delivery of the other kind; after `enough` of them in a row they are
    /// what is measured.
    fn turn(&mut self, enough: u32, is_adopted: bool, until: Verdict) -> Verdict {
        self.row += 1;
        if self.row < enough {
            return until;
        }
        *self = Self { is_adopted, ..Self::default() };
        Verdict::Anew
    }

    /// Whether what is measured may be the speed of a cache.
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const QUICK: Duration = Duration::from_micros(200);
    const LINK: Duration = Duration::from_millis(10);

    #[test]
    fn what_a_link_delivers_is_measured_and_hits_beside_it_are_not() {
        let (mut cached, link) = (Cached::default(), Some(100.0 * MIB as f64));
        for _ in 0..100 {
            assert_eq!(cached.judge(MIB, LINK, link), Verdict::Measure);
            for _ in 0..MANY - 1 {
                assert_eq!(cached.judge(MIB, QUICK, link), Verdict::Hit);
            }
            assert!(!cached.is_adopted());
        }
    }

    #[test]
    fn the_speed_of_memory_is_adopted_until_the_link_shows() {
        let mut cached = Cached::default();
        assert_eq!(cached.judge(MIB, QUICK, None), Verdict::Measure);
        assert!(cached.is_adopted());
        for _ in 0..1000 {
            assert_eq!(cached.judge(MIB, QUICK, Some(5e9)), Verdict::Measure);
        }
        // An accident.
        assert_eq!(cached.judge(MIB, LINK, Some(5e9)), Verdict::Measure);
        assert_eq!(cached.judge(MIB, QUICK, Some(5e9)), Verdict::Measure);
        for _ in 1..TURN {
            assert_eq!(cached.judge(MIB, LINK, Some(5e9)), Verdict::Measure);
        }
        assert_eq!(cached.judge(MIB, LINK, Some(5e9)), Verdict::Anew);
        assert!(!cached.is_adopted());
    }

    #[test]
    fn a_busy_machine_makes_no_link_of_a_cache() {
        let (mut cached, busy) = (Cached::default(), Duration::from_millis(4));
        cached.judge(MIB, QUICK, None);
        for _ in 0..100 {
            for _ in 1..MANY {
                assert_eq!(cached.judge(MIB, busy, Some(2e9)), Verdict::Measure);
            }
            assert_eq!(cached.judge(MIB, QUICK, Some(2e9)), Verdict::Measure);
            assert!(cached.is_adopted());
        }
        let all: Vec<_> = (0..MANY).map(|_| cached.judge(MIB, busy, Some(2e9))).collect();
        assert_eq!(all.last(), Some(&Verdict::Anew), "it is that fast always");
    }

    #[test]
    fn a_link_that_has_become_as_fast_as_memory_is_believed_after_a_while() {
        let (mut cached, link) = (Cached::default(), Some(10.0 * MIB as f64));
        let verdicts: Vec<_> = (0..MANY).map(|_| cached.judge(MIB, QUICK, link)).collect();
        let hits = verdicts.iter().filter(|verdict| **verdict == Verdict::Hit).count();
        assert_eq!((hits as u32, verdicts.last()), (MANY - 1, Some(&Verdict::Anew)));
        assert!(cached.is_adopted());
    }

    #[test]
    fn a_fast_link_is_no_cache() {
        let mut cached = Cached::default();
        let at_depth = Duration::from_micros(3500);
        assert_eq!(cached.judge(MIB, at_depth, None), Verdict::Measure);
        // The one that had the link to itself.
        let alone = Duration::from_micros(900);
        assert_eq!(cached.judge(MIB, alone, Some(1e9)), Verdict::Measure);
        assert!(!cached.is_adopted());
    }
}
