//! Pipes for segments that come from an export's server: the pages of its packets wait there.
//!
//! Each packet takes a slot of a pipe, however short it is. If those of a server fill a pipe before
//! the segment is complete, its bytes are copied: that costs more than no pipe. So
//! memory takes the next segments of that server.

use std::sync::atomic::{AtomicU32, Ordering};

use super::fetch::SegmentFetch;
use super::is_taken_once;
use crate::buffer::{Pipe, PipePool};
use crate::volume::{ReplicaId, ReplicaMap};

/// Segments of at least this size use a pipe. The first bytes of each reply are copied, and a pipe
/// costs more system calls. Small parts of a segment are taken from memory in any case.
const MIN_BYTES: u64 = 256 * 1024;

/// Memory takes so many segments of a replica after a pipe was too small.
const PAUSE: u32 = 256;

/// The pipes, and the replicas that use memory for a while.
pub(super) struct PacketPipes {
    pool: Option<PipePool>,
    pauses: ReplicaMap<AtomicU32>,
}

impl PacketPipes {
    pub(super) fn new(pool: Option<PipePool>, replicas: usize) -> Self {
        Self { pool, pauses: ReplicaMap::from_fn(replicas, |_| AtomicU32::new(0)) }
    }

    /// A pipe for the segment, if the replica's packets may stay where they are. Asked when its data
    /// begins to come.
    pub(super) fn pipe_for(&self, fetch: &SegmentFetch, replica: ReplicaId) -> Option<Pipe> {
        let pool = self.pool.as_ref()?;
        let is_small = fetch.range.len() < MIN_BYTES || fetch.file.has_small_parts();
        if is_small || !is_taken_once(fetch) {
            return None;
        }
        let left = |left: u32| left.checked_sub(1);
        let pause = &self.pauses[replica];
        match pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => None,
            Err(_) => pool.pipe().ok(),
        }
    }

    /// A pipe was too small for a segment of this replica.
    pub(super) fn pause(&self, replica: ReplicaId) {
        self.pauses[replica].store(PAUSE, Ordering::Relaxed);
    }
}
