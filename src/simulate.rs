//! A cluster that does not exist, read by the scheduler that does.
//!
//! A discrete-event simulation: nodes with disks and networks, gateways that
//! fetch other nodes' chunks over the network, readers with a window. What is
//! fetched is decided by the daemon's own planner ([`crate::read::split`],
//! [`crate::read::readahead`]), from which replica by its own scheduler
//! ([`crate::scheduler`]), or by a simpler policy to compare it with.
//!
//! In goes a [`World`] (nodes, gateways and files) and a [`Workload`] (the readers);
//! out comes an [`SimulationOutcome`]. `scenario` reads both from a file for
//! `fanfs simulate`; `fanfs explain` makes a world of what was measured and asks
//! what one reader would get.
//!
//! *Invariants:* the same world, workload and seed give the same outcome to the
//! last nanosecond. Nothing here does I/O or reads a clock. Every server works
//! on one segment at a time, in the order in which they came.

mod engine;
mod fifo_server;
pub mod metadata;
mod outcome;
mod policy;
mod reader;
pub mod scenario;
mod world;

pub use engine::run;
pub use outcome::{ReplicaOutcome, SimulationOutcome};
pub use policy::PolicyKind;
pub use world::{
    ChunkPlacement, Cluster, Gateway, LocalityRates, PlacementKnowledge, RateChange, ReadPattern,
    ReaderSpec, SimulatedFile, StorageNode, Workload, World,
};

/// A small generator (xorshift), so that runs repeat.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Any seed will do.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds begin far apart; zero would stay zero.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// Below `bound`, which is above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}
