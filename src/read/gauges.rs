//! The present sizes of the read path, for `fanfs status`.

use std::time::Instant;

use super::Reader;
use crate::scheduler::ReplicaSnapshot;
use crate::volume::ReplicaMap;

/// Memory and queues at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGauges {
    /// Bytes of the budget in use.
    pub buffer_used: u64,
    /// Bytes kept for reuse.
    pub buffer_idle: u64,
    /// Bytes of memory that buffers occupy, in use or kept for reuse.
    pub buffer_memory: u64,
    /// The budget.
    pub buffer_budget: u64,
    /// Segments that wait for a replica.
    pub waiting: usize,
    /// Attempts that have not ended.
    pub in_flight: usize,
    /// Requests not answered yet.
    pub requests: usize,
    /// Small reads without a request that are not answered yet.
    pub small_reads: usize,
    /// Calls for small reads that have become requests.
    pub adopted_reads: usize,
}

impl Reader {
    /// Memory and queues at present.
    pub fn gauges(&self) -> ReadGauges {
        // First: a small read may become a request meanwhile.
        let small = self.count_small_reads();
        let (waiting, in_flight) = self.scheduler.lock().depth();
        let requests = self.requests.lock().iter().filter(|request| !request.is_answered()).count();
        ReadGauges {
            small_reads: small.reading,
            adopted_reads: small.adopted,
            buffer_used: self.buffers.budget().used(),
            buffer_idle: self.buffers.idle_bytes(),
            buffer_memory: self.buffers.allocated_bytes(),
            buffer_budget: self.buffers.budget().limit(),
            waiting,
            in_flight,
            requests,
        }
    }

    /// The scheduler's measurements of each replica.
    pub fn replica_snapshots(&self) -> ReplicaMap<ReplicaSnapshot> {
        self.scheduler.lock().snapshots(&self.replicas.lock_health(), Instant::now())
    }
}
