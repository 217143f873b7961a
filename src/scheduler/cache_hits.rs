//! Deliveries from a replica's page cache.
//!
//! A replica delivers a segment from its page cache at the speed of memory, which is not
//! the speed of its link. With such deliveries in its rate, the replica would get
//! segments that its link delivers late, and other replicas would look slow beside it. So
//! the estimates leave cache hits out.
//!
//! The time from dispatch to delivery shows a hit. Segments in flight share a link, so
//! each arrives far below the rate [`MEMORY_RATE`]; a cache answers each at once. A delivery
//! at the speed of memory is a *hit* if it is also more than [`HIT_FACTOR`] times faster than
//! the replica's known rate.
//!
//! If all deliveries of a replica were as fast as memory, there are two possible reasons: all of
//! them came from the cache, or its disk is that fast. Its rate is then *adopted*: it serves to
//! choose among replicas, but health does not compare it with other rates. [`SLOW_RUN_TO_RESET`]
//! deliveries in a row far below [`MEMORY_RATE`], or [`RUN_TO_RESET`] below it, show the link, and
//! the adopted rate is dropped. [`RUN_TO_RESET`] hits in a row, without a slower delivery, show
//! that the link's old rate no longer holds.
//!
//! Pure.

use std::time::Duration;

/// A delivery at this rate, bytes a second, or above may have come from memory. A link of
/// 10 Gbit/s with four segments in flight delivers each at half of it.
pub(super) const MEMORY_RATE: f64 = (512u64 << 20) as f64;

/// Fraction of [`MEMORY_RATE`] that a cache exceeds even on a busy machine.
const CACHE_RATE_SHARE: f64 = 0.25;

/// A hit is more than this many times as fast as the link.
const HIT_FACTOR: f64 = 8.0;

/// The number of slow deliveries in a row that show the link. A single one may be a delay of this
/// machine.
const SLOW_RUN_TO_RESET: u32 = 4;

/// The number of hits in a row that void the link's rate, and of slower deliveries in a row that
/// void an adopted rate.
const RUN_TO_RESET: u32 = 64;

/// How a delivery counts for its replica's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleClass {
    /// As a measurement.
    Measurement,
    /// As a measurement that voids all earlier ones.
    MeasurementAfterReset,
    /// Not at all.
    CacheHit,
}

/// Distinguishes one replica's cache hits from deliveries of its link.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheHitDetector {
    /// Whether all measurements were as fast as memory.
    is_memory_speed: bool,
    /// Hits in a row; with an adopted rate, slower deliveries in a row.
    contrary_run: u32,
    /// Deliveries in a row far below the speed of memory.
    slow_run: u32,
}

impl CacheHitDetector {
    /// Classifies a delivery of `bytes` that took `took`; `rate` is the replica's measured rate,
    /// bytes a second.
    pub fn classify(&mut self, bytes: u64, took: Duration, rate: Option<f64>) -> SampleClass {
        let own = bytes as f64 / took.as_secs_f64().max(1e-6);
        match (own >= MEMORY_RATE, self.is_memory_speed) {
            (false, false) => {
                self.contrary_run = 0;
                SampleClass::Measurement
            }
            (false, true) => {
                self.slow_run =
                    if own < CACHE_RATE_SHARE * MEMORY_RATE { self.slow_run + 1 } else { 0 };
                let enough = if self.slow_run >= SLOW_RUN_TO_RESET { 1 } else { RUN_TO_RESET };
                self.count_contrary(enough, false, SampleClass::Measurement)
            }
            (true, true) => {
                self.contrary_run = 0;
                self.slow_run = 0;
                SampleClass::Measurement
            }
            (true, false) => match rate {
                Some(rate) if own > HIT_FACTOR * rate => {
                    self.count_contrary(RUN_TO_RESET, true, SampleClass::CacheHit)
                }
                Some(_) => SampleClass::Measurement,
                None => {
                    *self = Self { is_memory_speed: true, ..Self::default() };
                    SampleClass::Measurement
                }
            },
        }
    }

    /// Counts a delivery that contradicts the present rate. After `enough` in a row, the rate is
    /// measured from such deliveries.
    fn count_contrary(&mut self, enough: u32, is_adopted: bool, until: SampleClass) -> SampleClass {
        self.contrary_run += 1;
        if self.contrary_run < enough {
            return until;
        }
        *self = Self { is_memory_speed: is_adopted, ..Self::default() };
        SampleClass::MeasurementAfterReset
    }

    /// Whether the measured rate may be that of a cache.
    pub fn is_memory_speed(&self) -> bool {
        self.is_memory_speed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const QUICK: Duration = Duration::from_micros(200);
    const LINK: Duration = Duration::from_millis(10);

    #[test]
    fn link_samples_are_measured_and_cache_hits_are_not() {
        let (mut cached, link) = (CacheHitDetector::default(), Some(100.0 * MIB as f64));
        for _ in 0..100 {
            assert_eq!(cached.classify(MIB, LINK, link), SampleClass::Measurement);
            for _ in 0..RUN_TO_RESET - 1 {
                assert_eq!(cached.classify(MIB, QUICK, link), SampleClass::CacheHit);
            }
            assert!(!cached.is_memory_speed());
        }
    }

    #[test]
    fn memory_speed_is_used_until_the_link_is_measured() {
        let mut cached = CacheHitDetector::default();
        assert_eq!(cached.classify(MIB, QUICK, None), SampleClass::Measurement);
        assert!(cached.is_memory_speed());
        for _ in 0..1000 {
            assert_eq!(cached.classify(MIB, QUICK, Some(5e9)), SampleClass::Measurement);
        }
        // A single slow one is a delay of this machine.
        assert_eq!(cached.classify(MIB, LINK, Some(5e9)), SampleClass::Measurement);
        assert_eq!(cached.classify(MIB, QUICK, Some(5e9)), SampleClass::Measurement);
        for _ in 1..SLOW_RUN_TO_RESET {
            assert_eq!(cached.classify(MIB, LINK, Some(5e9)), SampleClass::Measurement);
        }
        assert_eq!(cached.classify(MIB, LINK, Some(5e9)), SampleClass::MeasurementAfterReset);
        assert!(!cached.is_memory_speed());
    }

    #[test]
    fn a_busy_machine_does_not_make_a_cache_look_like_a_link() {
        let (mut cached, busy) = (CacheHitDetector::default(), Duration::from_millis(4));
        cached.classify(MIB, QUICK, None);
        for _ in 0..100 {
            for _ in 1..RUN_TO_RESET {
                assert_eq!(cached.classify(MIB, busy, Some(2e9)), SampleClass::Measurement);
            }
            assert_eq!(cached.classify(MIB, QUICK, Some(2e9)), SampleClass::Measurement);
            assert!(cached.is_memory_speed());
        }
        let all: Vec<_> =
            (0..RUN_TO_RESET).map(|_| cached.classify(MIB, busy, Some(2e9))).collect();
        assert_eq!(all.last(), Some(&SampleClass::MeasurementAfterReset), "it is that fast always");
    }

    #[test]
    fn a_link_as_fast_as_memory_is_accepted_after_a_while() {
        let (mut cached, link) = (CacheHitDetector::default(), Some(10.0 * MIB as f64));
        let verdicts: Vec<_> =
            (0..RUN_TO_RESET).map(|_| cached.classify(MIB, QUICK, link)).collect();
        let hits = verdicts.iter().filter(|verdict| **verdict == SampleClass::CacheHit).count();
        assert_eq!(
            (hits as u32, verdicts.last()),
            (RUN_TO_RESET - 1, Some(&SampleClass::MeasurementAfterReset))
        );
        assert!(cached.is_memory_speed());
    }

    #[test]
    fn a_fast_link_is_not_mistaken_for_a_cache() {
        let mut cached = CacheHitDetector::default();
        let at_depth = Duration::from_micros(3500);
        assert_eq!(cached.classify(MIB, at_depth, None), SampleClass::Measurement);
        // A delivery that had the link to itself.
        let alone = Duration::from_micros(900);
        assert_eq!(cached.classify(MIB, alone, Some(1e9)), SampleClass::Measurement);
        assert!(!cached.is_memory_speed());
    }
}
