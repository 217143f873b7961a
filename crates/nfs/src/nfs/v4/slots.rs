//! The slots of a session (RFC 8881, section 2.10.6). Each carries one call at a time, and numbers
//! them, so that the server executes a call that is sent twice only once.
//!
//! *Invariant:* a number is never given to two different calls. A slot whose last call may have
//! been executed, or not, is lost: the server could answer the next call with the earlier reply. A
//! session with too many lost slots is replaced.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The first number of a slot.
const FIRST: u32 = 1;

/// The slots of a session.
pub(super) struct SlotTable {
    state: Mutex<TableState>,
    freed: Condvar,
}

struct TableState {
    slots: Vec<SlotState>,
    /// The slots that the server wants to be used, from the first.
    usable: usize,
    /// Whether no call may begin any more.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The number of its next call.
    Free(u32),
    InUse,
    Lost,
}

/// A slot that was taken for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenSlot {
    /// The slot.
    pub(super) slot: u32,
    /// The number of its call.
    pub(super) sequence: u32,
    /// The highest slot in use.
    pub(super) highest: u32,
}

/// What became of the call of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotEnd {
    /// The server has executed it.
    Executed,
    /// The server has not executed it, and never will.
    NotExecuted,
    /// It is unknown.
    Unknown,
}

impl SlotTable {
    pub(super) fn new(count: usize) -> Self {
        let count = count.max(1);
        let slots = vec![SlotState::Free(FIRST); count];
        Self {
            state: Mutex::new(TableState { slots, usable: count, is_closed: false }),
            freed: Condvar::new(),
        }
    }

    /// Takes the first free slot, if there is one.
    pub(super) fn try_take(&self) -> Option<TakenSlot> {
        self.state.lock().take()
    }

    /// No call may begin any more.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.freed.notify_all();
    }

    /// Takes a slot; waits for one that is in use. `None` if all usable ones are lost, if the table
    /// is closed, or at `deadline`.
    pub(super) fn take(&self, deadline: Instant) -> Option<TakenSlot> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            let may_come = !state.is_closed && state.slots.contains(&SlotState::InUse);
            if taken.is_some() || !may_come {
                return taken;
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }

    /// The call of a taken slot has ended.
    pub(super) fn end(&self, taken: TakenSlot, end: SlotEnd) {
        let mut state = self.state.lock();
        state.slots[taken.slot as usize] = match end {
            SlotEnd::Executed => SlotState::Free(taken.sequence.wrapping_add(1)),
            SlotEnd::NotExecuted => SlotState::Free(taken.sequence),
            SlotEnd::Unknown => SlotState::Lost,
        };
        drop(state);
        // Also for a lost one: nothing may be left to wait for.
        self.freed.notify_all();
    }

    /// The server wants slots up to `highest` to be used. It knows those that it has granted.
    pub(super) fn set_highest(&self, highest: u32) {
        let mut state = self.state.lock();
        state.usable = (highest as usize).saturating_add(1).min(state.slots.len());
        drop(state);
        self.freed.notify_all();
    }

    pub(super) fn has_free(&self) -> bool {
        let state = self.state.lock();
        !state.is_closed
            && state.slots[..state.usable].iter().any(|slot| matches!(slot, SlotState::Free(_)))
    }

    /// Whether half of the slots, or more, are lost.
    pub(super) fn is_worn(&self) -> bool {
        let state = self.state.lock();
        let usable = &state.slots[..state.usable];
        usable.iter().filter(|slot| **slot == SlotState::Lost).count() * 2 >= usable.len()
    }
}

impl TableState {
    fn take(&mut self) -> Option<TakenSlot> {
        if self.is_closed {
            return None;
        }
        let free =
            self.slots[..self.usable].iter().enumerate().find_map(|(index, slot)| match slot {
                SlotState::Free(next) => Some((index, *next)),
                _ => None,
            });
        let (index, sequence) = free?;
        self.slots[index] = SlotState::InUse;
        let highest = self.slots.iter().rposition(|slot| *slot == SlotState::InUse)?;
        Some(TakenSlot { slot: index as u32, sequence, highest: highest as u32 })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slot_numbers_its_calls() {
        let table = SlotTable::new(2);
        let first = table.try_take().unwrap();
        assert_eq!(first, TakenSlot { slot: 0, sequence: 1, highest: 0 });
        let second = table.try_take().unwrap();
        assert_eq!(second, TakenSlot { slot: 1, sequence: 1, highest: 1 });
        assert_eq!(table.try_take(), None);
        table.end(first, SlotEnd::Executed);
        let next = TakenSlot { slot: 0, sequence: 2, highest: 1 };
        assert_eq!(table.try_take(), Some(next));
        table.end(next, SlotEnd::NotExecuted);
        assert_eq!(table.try_take(), Some(next), "the number was not used");
    }

    #[test]
    fn lost_slots_wear_a_session_out() {
        let table = SlotTable::new(2);
        let soon = || Instant::now() + Duration::from_secs(60);
        let first = table.try_take().unwrap();
        assert!(!table.is_worn());
        table.end(first, SlotEnd::Unknown);
        assert!(table.is_worn());
        let second = table.take(soon()).unwrap();
        assert_eq!(second.slot, 1);
        table.end(second, SlotEnd::Unknown);
        assert_eq!(table.take(soon()), None, "it does not wait for what never comes");
    }

    #[test]
    fn a_caller_waits_for_a_slot() {
        let table = SlotTable::new(1);
        let taken = table.try_take().unwrap();
        assert_eq!(table.take(Instant::now() + Duration::from_millis(10)), None);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| table.take(Instant::now() + Duration::from_secs(60)));
            table.end(taken, SlotEnd::Executed);
            assert_eq!(waiting.join().unwrap().unwrap().sequence, 2);
        });
    }

    #[test]
    fn a_closed_table_gives_no_slot() {
        let table = SlotTable::new(1);
        let taken = table.try_take().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| table.take(Instant::now() + Duration::from_secs(60)));
            table.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
        table.end(taken, SlotEnd::Executed);
        assert_eq!(table.try_take(), None);
    }

    #[test]
    fn a_server_takes_slots_back() {
        let table = SlotTable::new(4);
        table.set_highest(0);
        let only = table.try_take().unwrap();
        assert_eq!((only.slot, table.try_take()), (0, None));
        table.set_highest(u32::MAX);
        assert_eq!(table.try_take().unwrap().slot, 1);
    }
}
