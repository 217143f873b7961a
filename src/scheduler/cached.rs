//! Deliveries from a replica's page cache.
//!
//! A replica delivers a segment from its page cache at the speed of memory, which is not
//! the speed of its link. With such deliveries in its rate, the replica would get
//! segments that its link delivers late, and other replicas would look slow beside it. So
//! the estimates leave cache hits out.
//!
//! The time from dispatch to delivery shows a hit. Segments in flight share a link, so
//! each arrives far below the rate [`MEMORY`]; a cache answers each at once. A delivery
//! at the speed of memory is a *hit* if it is also more than [`FAR`] times faster than
//! the replica's known rate.
//!
//! If all deliveries of a replica were as fast as memory, two reasons are possible: all
//! of them came from the cache, or its disk is that fast. Its rate is then *adopted*: it
//! serves to choose among replicas, but health does not compare it with other rates.
//! [`TURN`] deliveries in a row far below [`MEMORY`], or [`MANY`] below it, show the
//! link, and the adopted rate is dropped. [`MANY`] hits in a row, without a slower
//! delivery, show that the link's old rate no longer holds.
//!
//! Pure.

use std::time::Duration;

/// A delivery at this rate, bytes a second, or above may have come from memory. A link of
/// 10 Gbit/s with four segments in flight delivers each at half of it.
pub(super) const MEMORY: f64 = (512u64 << 20) as f64;

/// Fraction of [`MEMORY`] that a cache exceeds even on a busy machine.
const SURE: f64 = 0.25;

/// A hit is more than so many times as fast as the link.
const FAR: f64 = 8.0;

/// Slower deliveries in a row that show the link. A single one may be a delay of this
/// machine.
const TURN: u32 = 4;

/// Hits in a row that void the link's rate, and other deliveries in a row that void an
/// adopted rate.
const MANY: u32 = 64;

/// How a delivery counts for its replica's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As a measurement.
    Measure,
    /// As a measurement that voids all earlier ones.
    Anew,
    /// Not at all.
    Hit,
}

/// Tells one replica's cache hits from deliveries of its link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    /// Whether all measurements were as fast as memory.
    is_adopted: bool,
    /// Hits in a row; with an adopted rate, slower deliveries in a row.
    row: u32,
    /// Deliveries in a row far below the speed of memory.
    sure: u32,
}

impl Cached {
    /// Judges a delivery of `bytes` that took `took`; `rate` is the replica's measured
    /// rate, bytes a second.
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

    /// Counts a delivery of the other kind; after `enough` in a row, that kind is the one
    /// to measure.
    fn turn(&mut self, enough: u32, is_adopted: bool, until: Verdict) -> Verdict {
        self.row += 1;
        if self.row < enough {
            return until;
        }
        *self = Self { is_adopted, ..Self::default() };
        Verdict::Anew
    }

    /// Whether the measured rate may be that of a cache.
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
        // A single slow one is a delay of this machine.
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
        // A delivery that had the link to itself.
        let alone = Duration::from_micros(900);
        assert_eq!(cached.judge(MIB, alone, Some(1e9)), Verdict::Measure);
        assert!(!cached.is_adopted());
    }
}
