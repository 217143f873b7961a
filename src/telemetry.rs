//! What fanfs reports about itself: log lines and counters.
//!
//! [`log`] sets up tracing. [`counters`] holds the counters that `fanfs status` shows; each name is
//! defined only there. [`histogram`] stores their durations. Counters only count: no decision reads
//! them. [`trace`] defines the format of recordings by `fanfs trace`, and [`wall_clock`] makes the
//! timestamps of reports.

pub mod counters;
pub mod histogram;
pub mod log;
pub mod trace;
pub mod wall_clock;

pub use counters::{ReplicaCounters, VolumeCounters};
