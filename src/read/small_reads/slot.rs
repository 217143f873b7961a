//! The slot of a small read in flight.

use super::{AdoptedRead, NotAdopted, Overdraw, SmallRead, SmallReadCounts};
use std::sync::Arc;

use crate::buffer::ScratchBuffer;
use crate::read::Reader;
use crate::read::attempt::MAX_INLINE_BYTES;
use crate::read::request::{ReadBytes, ReadCompletion};
use crate::scheduler::small_reads::{SmallReadDelivery, SmallReadTally};
use crate::sync::{LockRank, RankedMutex};
use crate::volume::{ByteRange, ReplicaId, ReplicaMap};

/// Has a small read in flight, or none. In memory of its own, so that threads do not wait for each
/// other's cache lines.
#[repr(align(128))]
pub(super) struct Slot<C>(RankedMutex<SlotState<C>>);

struct SlotState<C> {
    stage: Stage<C>,
    /// The buffer of its reads, while there is no read. It is made for the first one.
    buffer: Option<ScratchBuffer>,
    tallies: ReplicaMap<SmallReadTally>,
}

enum Stage<C> {
    Free,
    /// The thread is inside the replica.
    Reading(SmallRead, C),
    /// The same, but the read is now a request's.
    Adopted(AdoptedRead),
    /// The thread has the reply: before its read, or after it.
    Held,
}

/// The end of a small read.
pub(super) enum Finished<C> {
    /// The thread has to answer.
    Own(SmallRead, C),
    /// The bytes belong to this segment.
    Adopted(AdoptedRead),
}

impl<C: ReadCompletion> Slot<C> {
    pub(super) fn new(replicas: usize) -> Self {
        let state = SlotState {
            stage: Stage::Free,
            buffer: None,
            tallies: ReplicaMap::from_fn(replicas, |_| SmallReadTally::default()),
        };
        Self(RankedMutex::new(LockRank::SmallRead, state))
    }

    /// Claims the slot, if it is free and there is memory.
    pub(super) fn try_claim(&self) -> Option<SlotLease<'_, C>> {
        let kept = {
            let mut state = self.0.try_lock()?;
            if !matches!(state.stage, Stage::Free) {
                return None;
            }
            state.stage = Stage::Held;
            state.buffer.take()
        };
        let buffer = kept.or_else(|| ScratchBuffer::new(MAX_INLINE_BYTES as usize));
        let lease = SlotLease { slot: self, buffer };
        // Without memory for a buffer the lease ends here.
        lease.buffer.is_some().then_some(lease)
    }

    /// Adopts the read in flight if it matches. False if there is no memory for that.
    pub(super) fn adopt_if(
        &self,
        reader: &Reader,
        matches: impl Fn(&SmallRead) -> bool,
        overdraw: Overdraw,
    ) -> bool {
        let mut state = self.0.lock();
        let file = match &state.stage {
            Stage::Reading(read, _) if matches(read) => Arc::clone(&read.file),
            _ => return true,
        };
        // Held until the read has its segment: another request may be about to add one here.
        let segments = file.lock_segments();
        match std::mem::replace(&mut state.stage, Stage::Held) {
            Stage::Reading(read, completion) => {
                match reader.claim_for_adoption(&read, &segments, overdraw) {
                    Ok(claim) => {
                        let sink = Box::new(move |answer: Result<_, _>| {
                            completion.complete(answer.map(ReadBytes::Segments));
                        });
                        let adopted = reader.adopt_small_read(&read, claim, segments, sink);
                        state.stage = Stage::Adopted(adopted);
                        true
                    }
                    Err(reason) => {
                        state.stage = Stage::Reading(read, completion);
                        reason == NotAdopted::IsKnown
                    }
                }
            }
            other => {
                state.stage = other;
                true
            }
        }
    }

    /// Adds its call in progress, if there is one.
    pub(super) fn count(&self, counts: &mut SmallReadCounts) {
        match self.0.lock().stage {
            Stage::Reading(..) | Stage::Held => counts.reading += 1,
            Stage::Adopted(_) => counts.adopted += 1,
            Stage::Free => {}
        }
    }

    /// The measurements since the last call.
    pub(super) fn take_tallies(&self) -> Vec<(ReplicaId, SmallReadTally)> {
        let mut state = self.0.lock();
        let filled = state.tallies.iter_mut().filter(|(_, tally)| !tally.is_empty());
        filled.map(|(id, tally)| (id, std::mem::take(tally))).collect()
    }
}

/// A slot with a read, and its buffer. Frees the slot when it is dropped.
pub(in crate::read) struct SlotLease<'a, C> {
    slot: &'a Slot<C>,
    /// `Some` until dropped, unless there is no memory.
    buffer: Option<ScratchBuffer>,
}

impl<C: ReadCompletion> SlotLease<'_, C> {
    /// The buffer for the bytes of `range`.
    pub(super) fn buffer(&mut self, range: ByteRange) -> &mut [u8] {
        let buffer = self.buffer.as_mut().expect("the buffer is here until the lease ends");
        &mut buffer[..range.len() as usize]
    }

    /// Enters the read that starts now.
    pub(super) fn enter(&mut self, read: SmallRead, completion: C) {
        self.slot.0.lock().stage = Stage::Reading(read, completion);
    }

    /// Takes the read back before it starts. `None` if it has been adopted.
    pub(super) fn withdraw(&mut self) -> Option<C> {
        let mut state = self.slot.0.lock();
        match std::mem::replace(&mut state.stage, Stage::Held) {
            Stage::Reading(_, completion) => Some(completion),
            other => {
                state.stage = other;
                None
            }
        }
    }

    /// The call on the replica has returned. A delivery is added to the replica's tally.
    pub(super) fn finish(
        &mut self,
        replica: ReplicaId,
        delivery: Option<&SmallReadDelivery>,
    ) -> Finished<C> {
        let mut state = self.slot.0.lock();
        match std::mem::replace(&mut state.stage, Stage::Held) {
            Stage::Reading(read, completion) => {
                if let Some(delivery) = delivery {
                    state.tallies[replica].add(delivery);
                }
                Finished::Own(read, completion)
            }
            Stage::Adopted(adopted) => Finished::Adopted(adopted),
            Stage::Free | Stage::Held => unreachable!("the slot has a read in flight"),
        }
    }
}

impl<C> Drop for SlotLease<'_, C> {
    fn drop(&mut self) {
        let mut state = self.slot.0.lock();
        state.buffer = self.buffer.take();
        state.stage = Stage::Free;
    }
}
