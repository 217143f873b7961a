//! In which order files take their turns.
//!
//! Were the queue first come, first served, each reader's share would be as
//! large as the window that it has in the queue, and one that came first, while
//! there was memory for a long one, would be served several times as fast as
//! the last. So each segment gets a *turn*: the bytes of its file that were
//! wanted before it, counted from where the volume was when the file joined in
//! (start-time fair queueing; Goyal, Vin and Cheng, 1996). What has the smaller
//! turn is sent first. One file's segments keep their order, and who has not
//! been served lately is not made to wait for those who have.

use std::collections::HashMap;

/// Everybody's next turn.
#[derive(Clone, Debug, Default)]
pub struct FairQueue {
    /// The turn of what was sent last.
    virtual_time: u64,
    /// By file, where later than now.
    next_tags: HashMap<u64, u64>,
    /// Past this many files, those whose turn is over are swept out.
    sweep_at: usize,
}

/// Files remembered before the first sweep.
const SWEEP_AT: usize = 64;

impl FairQueue {
    /// The turn of a segment of `bytes` that is wanted now.
    pub fn assign_tag(&mut self, stream: u64, bytes: u64) -> u64 {
        if self.next_tags.len() >= self.sweep_at {
            let now = self.virtual_time;
            self.next_tags.retain(|_, next| *next > now);
            self.sweep_at = SWEEP_AT.max(2 * self.next_tags.len());
        }
        let next = self.next_tags.entry(stream).or_default();
        let turn = self.virtual_time.max(*next);
        *next = turn + bytes;
        turn
    }

    /// The turn of what is to be sent before everything else, at nobody's cost.
    pub fn virtual_time(&self) -> u64 {
        self.virtual_time
    }

    /// A segment with this turn is sent.
    pub fn advance(&mut self, turn: u64) {
        self.virtual_time = self.virtual_time.max(turn);
    }

    /// A segment is not wanted after all: its file is not to wait for it.
    pub fn refund(&mut self, stream: u64, bytes: u64) {
        if let Some(next) = self.next_tags.get_mut(&stream) {
            *next = next.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_order_and_a_late_comer_does_not_wait_for_a_window() {
        let mut turns = FairQueue::default();
        let window: Vec<_> = (0..8).map(|_| turns.assign_tag(1, 100)).collect();
        assert!(window.is_sorted() && window[7] == 700);
        turns.advance(window[0]);
        turns.advance(window[1]);
        assert_eq!(turns.assign_tag(2, 100), 100);
        assert_eq!(turns.assign_tag(2, 100), 200);
    }

    #[test]
    fn who_comes_back_has_no_claim_to_what_he_left_out() {
        let mut turns = FairQueue::default();
        turns.assign_tag(1, 100);
        turns.advance(100_000);
        assert_eq!(turns.assign_tag(1, 100), 100_000);
    }

    #[test]
    fn what_was_given_up_is_not_paid_for() {
        let mut turns = FairQueue::default();
        for _ in 0..64 {
            turns.assign_tag(1, 100);
        }
        for _ in 0..64 {
            turns.refund(1, 100);
        }
        assert_eq!(turns.assign_tag(1, 100), 0);
    }

    #[test]
    fn files_that_are_gone_are_forgotten() {
        let mut turns = FairQueue::default();
        for stream in 0..100_000 {
            let turn = turns.assign_tag(stream, 100);
            turns.advance(turn + 100);
        }
        assert!(turns.next_tags.len() <= SWEEP_AT, "{}", turns.next_tags.len());
    }
}
