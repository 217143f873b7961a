//! The order in which files take turns.
//!
//! With first come, first served, each reader's share would be as large as its window in the queue.
//! A reader that came first, while there was memory for a long window, would be served several
//! times as fast as the last one. So each segment gets a *turn*: the bytes of its file that were
//! requested before it, counted from the volume's position when the file joined (start-time fair
//! queueing; Goyal, Vin and Cheng, 1996). The smaller turn is dispatched first. One file's segments
//! keep their order. A file that has not been served recently does not wait for those that have.

use std::collections::HashMap;

/// The next turn of each file.
#[derive(Clone, Debug, Default)]
pub struct FairQueue {
    /// The turn of the last dispatched segment.
    virtual_time: u64,
    /// By file, if later than `virtual_time`.
    next_tags: HashMap<u64, u64>,
    /// At this number of files, those whose turn has passed are removed.
    sweep_at: usize,
}

/// The least number of files for a removal, after the first one.
const SWEEP_AT: usize = 64;

impl FairQueue {
    /// The turn of a segment of `bytes` that is requested now.
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

    /// The turn for a segment that goes before all others and costs no file anything.
    pub fn virtual_time(&self) -> u64 {
        self.virtual_time
    }

    /// Records that a segment with this turn is dispatched.
    pub fn advance(&mut self, turn: u64) {
        self.virtual_time = self.virtual_time.max(turn);
    }

    /// Takes back the turn of a cancelled segment, so that its file does not wait for it.
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
    fn files_keep_their_order_and_newcomers_do_not_wait() {
        let mut turns = FairQueue::default();
        let window: Vec<_> = (0..8).map(|_| turns.assign_tag(1, 100)).collect();
        assert!(window.is_sorted() && window[7] == 700);
        turns.advance(window[0]);
        turns.advance(window[1]);
        assert_eq!(turns.assign_tag(2, 100), 100);
        assert_eq!(turns.assign_tag(2, 100), 200);
    }

    #[test]
    fn a_returning_file_gains_no_credit() {
        let mut turns = FairQueue::default();
        turns.assign_tag(1, 100);
        turns.advance(100_000);
        assert_eq!(turns.assign_tag(1, 100), 100_000);
    }

    #[test]
    fn canceled_segments_are_not_charged() {
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
    fn closed_files_are_forgotten() {
        let mut turns = FairQueue::default();
        for stream in 0..100_000 {
            let turn = turns.assign_tag(stream, 100);
            turns.advance(turn + 100);
        }
        assert!(turns.next_tags.len() <= SWEEP_AT, "{}", turns.next_tags.len());
    }
}
