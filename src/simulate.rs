//! Simulates an invented cluster that fanfs's real scheduler reads from.
//!
//! It is a discrete-event simulation of nodes with disks and networks, gateways that fetch other
//! nodes' chunks over the network, and readers with a readahead window. The daemon's own planner
//! ([`crate::read::split`], [`crate::read::readahead`]) decides which segments are fetched. The
//! daemon's own scheduler ([`crate::scheduler`]), or a simpler policy to compare it with, decides
//! from which replica.
//!
//! The input is a [`World`] (nodes, gateways and files) and a [`Workload`] (the readers). The
//! output is a [`SimulationOutcome`]. `scenario` reads both inputs from a file for `fanfs
//! simulate`. `fanfs explain` builds a world from measured rates to predict the rate of one reader.
//!
//! *Invariants:* the same world, workload and seed give the same outcome to the nanosecond. Nothing
//! here does I/O or reads a clock. Every server works on one segment at a time, in order of
//! arrival.

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

/// A small random generator (xorshift). Equal seeds give equal numbers, so runs are repeatable.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator; every seed is valid.
    pub fn new(seed: u64) -> Self {
        // Neighboring seeds start far apart. The state must not be 0, because xorshift stays at 0.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// A number below `bound`, which must be above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}
