//! Pipes for segments that come from an export's server: the pages of its packets wait there.
//!
//! Each packet takes a slot of a pipe, however short it is. If those of a server fill a pipe before
//! the segment is complete, its bytes are copied: that costs more than no pipe. So the next
//! segments of that server get none for a while.

use std::sync::atomic::{AtomicU32, Ordering};

use super::fetch::SegmentFetch;
use super::is_taken_once;
use crate::buffer::PipePool;
use crate::volume::{ReplicaId, ReplicaMap};

/// Segments of at least this size use a pipe. The first bytes of each reply are copied, and a pipe
/// costs more system calls.
const MIN_BYTES: u64 = 256 * 1024;

/// So many segments of a replica do without, after a pipe was too small.
const PAUSE: u32 = 256;

/// The pipes, and which replicas do without.
pub(super) struct PacketPipes {
    pool: Option<PipePool>,
    pauses: ReplicaMap<AtomicU32>,
}

impl PacketPipes {
    pub(super) fn new(pool: Option<PipePool>, replicas: usize) -> Self {
        Self { pool, pauses: ReplicaMap::from_fn(replicas, |_| AtomicU32::new(0)) }
    }

    /// The pipes of the segment, if a replica's packets may stay where they are.
    pub(super) fn pipes_for(&self, fetch: &SegmentFetch, replica: ReplicaId) -> Option<PipePool> {
        let pool = self.pool.as_ref()?;
        if fetch.range.len() < MIN_BYTES || !is_taken_once(fetch) {
            return None;
        }
        let left = |left: u32| left.checked_sub(1);
        let pause = &self.pauses[replica];
        match pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => None,
            Err(_) => Some(pool.clone()),
        }
    }

    /// A pipe was too small for a segment of this replica.
    pub(super) fn pause(&self, replica: ReplicaId) {
        self.pauses[replica].store(PAUSE, Ordering::Relaxed);
    }
}
