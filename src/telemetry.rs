//! What fanfs tells about itself: log lines and counters.
//!
//! [`log`] sets up tracing. [`counters`] holds everything that `fanfs status`
//! shows; each name is defined there and nowhere else. [`histogram`] is what they keep
//! durations in. Counters only count: no decision reads them. [`trace`] has the form of
//! what `fanfs trace` records.

pub mod counters;
pub mod histogram;
pub mod log;
pub mod trace;

pub use counters::{ReplicaCounters, VolumeCounters};
