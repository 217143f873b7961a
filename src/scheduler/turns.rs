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
pub struct Turns {
    /// The turn of what was sent last.
    now: u64,
    /// By file, where later than now.
    next: HashMap<u64, u64>,
    /// Past this many files, those whose turn is over are swept out.
    sweep_at: usize,
}

/// Files remembered before the first sweep.
const SWEEP_AT: usize = 64;

impl Turns {
    /// The turn of a segment of `bytes` that is wanted now.
    pub fn take(&mut self, stream: u64, bytes: u64) -> u64 {
        if self.next.len() >= self.sweep_at {
            let now = self.now;
            self.next.retain(|_, next| *next > now);
            self.sweep_at = SWEEP_AT.max(2 * self.next.len());
        }
        let next = self.next.entry(stream).or_default();
        let turn = self.now.max(*next);
        *next = turn + bytes;
        turn
    }

    /// The turn of what is to be sent before everything else, at nobody's cost.
    pub fn at_once(&self) -> u64 {
        self.now
    }

    /// A segment with this turn is sent.
    pub fn sent(&mut self, turn: u64) {
        self.now = self.now.max(turn);
    }

    /// A segment is not wanted after all: its file is not to wait for it.
    pub fn give_back(&mut self, stream: u64, bytes: u64) {
        if let Some(next) = self.next.get_mut(&stream) {
            *next = next.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_order_and_a_late_comer_does_not_wait_for_a_window() {
        let mut turns = Turns::default();
        let window: Vec<_> = (0..8).map(|_| turns.take(1, 100)).collect();
        assert!(window.is_sorted() && window[7] == 700);
        turns.sent(window[0]);
        turns.sent(window[1]);
        assert_eq!(turns.take(2, 100), 100);
        assert_eq!(turns.take(2, 100), 200);
    }

    #[test]
    fn who_comes_back_has_no_claim_to_what_he_left_out() {
        let mut turns = Turns::default();
        turns.take(1, 100);
        turns.sent(100_000);
        assert_eq!(turns.take(1, 100), 100_000);
    }

    #[test]
    fn what_was_given_up_is_not_paid_for() {
        let mut turns = Turns::default();
        for _ in 0..64 {
            turns.take(1, 100);
        }
        for _ in 0..64 {
            turns.give_back(1, 100);
        }
        assert_eq!(turns.take(1, 100), 0);
    }

    #[test]
    fn files_that_are_gone_are_forgotten() {
        let mut turns = Turns::default();
        for stream in 0..100_000 {
            let turn = turns.take(stream, 100);
            turns.sent(turn + 100);
        }
        assert!(turns.next.len() <= SWEEP_AT, "{}", turns.next.len());
    }
}
