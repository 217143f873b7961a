//! O_DIRECT appends, which the kernel splits into parts and may send at the same time.
//!
//! The write replica appends each part at its own end of the file. So fanfs carries out the parts
//! of a write(2) one after the other, in their order. Each part has an offset, which the kernel
//! counts from the end of file that it assumes. The kernel sends no other append to that file on
//! this mount until all parts have been answered. So the parts of one write have ascending offsets
//! without a gap, and a part that arrives early waits for its predecessor.
//!
//! For an open with O_APPEND and O_DIRECT, [`crate::fuse`] makes the kernel send the parts
//! one by one. This module orders the others: asynchronous writes, and descriptors that
//! got O_DIRECT by fcntl(2).
//!
//! *Invariant:* after a part has failed or was stored incompletely, no later part of that write is
//! stored, as it would leave a hole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::error::{Errno, FsResult};
use super::payload_budget::OnFull;

/// A part of a write(2); `run` carries it out or refuses it.
pub(super) struct AppendPart {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) arrived_at: Instant,
    pub(super) run: Box<dyn FnOnce(Result<(), Errno>) + Send>,
}

/// The parts of one file.
#[derive(Default)]
pub(super) struct AppendQueue {
    /// Upper bound of the end of file that the kernel assumes.
    kernel_end: Option<u64>,
    /// Offset and length of the part in progress.
    running: Option<(u64, u64)>,
    /// Offset of the part that failed, and its error.
    failed: Option<(u64, Errno)>,
    waiting: BTreeMap<u64, AppendPart>,
    /// Offset of the part that waits for room. The other parts of its write get room at once,
    /// because the daemon may carry them out only after this one. The kernel sends these in the
    /// background, so there are few of them.
    awaiting_room: Option<u64>,
}

/// Parts to start or to refuse. The caller does so without a lock.
pub(super) type ReadyParts = Vec<(AppendPart, Result<(), Errno>)>;

/// How long a part waits for a predecessor. There may be none, as the kernel may assume an end that
/// fanfs does not know. Parts leave the kernel in their order, so another thread of the daemon
/// already has a missing part and is about to add it.
pub(super) const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(1);

impl AppendQueue {
    /// The kernel may assume this size from now on.
    pub(super) fn raise_kernel_end(&mut self, size: u64) {
        self.kernel_end = self.kernel_end.max(Some(size));
        if self.running.is_none() && self.waiting.is_empty() {
            self.failed = None;
        }
    }

    /// The kernel sets the size: all parts have been answered.
    pub(super) fn truncate_to(&mut self, size: u64) {
        (self.kernel_end, self.failed) = (Some(size), None);
    }

    /// A part will be added once it has the room that it needs.
    pub(super) fn announce(&mut self, at: u64) -> OnFull {
        let is_alone =
            self.running.is_none() && self.waiting.is_empty() && self.awaiting_room.is_none();
        if is_alone {
            self.awaiting_room = Some(at);
        }
        if is_alone { OnFull::WaitOrFail } else { OnFull::Exceed }
    }

    /// A part gets no room. Returns the parts to refuse with it.
    pub(super) fn refuse(&mut self, at: u64, errno: Errno) -> ReadyParts {
        self.awaiting_room.take_if(|announced| *announced == at);
        self.fail_from(at, errno)
    }

    /// A part is not stored, so no later one is stored either.
    fn fail_from(&mut self, at: u64, errno: Errno) -> ReadyParts {
        self.failed = Some((at, errno));
        let later = self.waiting.split_off(&(at + 1));
        later.into_values().map(|part| (part, Err(errno))).collect()
    }

    pub(super) fn add_part(&mut self, part: AppendPart, now: Instant) -> ReadyParts {
        self.awaiting_room.take_if(|announced| *announced == part.offset);
        if let Some((from, errno)) = self.failed
            && part.offset > from
        {
            return vec![(part, Err(errno))];
        }
        self.failed = None;
        self.waiting.insert(part.offset, part);
        self.next_ready(now)
    }

    /// The part in progress has ended.
    pub(super) fn finish_part(&mut self, answer: &FsResult<u64>, now: Instant) -> ReadyParts {
        let Some((at, len)) = self.running.take() else { return Vec::new() };
        let written = answer.unwrap_or(0);
        self.kernel_end = Some(at + written);
        if written >= len {
            return self.next_ready(now);
        }
        self.fail_from(at, answer.err().unwrap_or(Errno::IO))
    }

    /// Whether parts wait for their turn.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The part to start now, if any.
    pub(super) fn next_ready(&mut self, now: Instant) -> ReadyParts {
        let Some(first) = self.waiting.first_entry() else { return Vec::new() };
        let is_due = self.kernel_end.is_none_or(|end| *first.key() <= end)
            || now.saturating_duration_since(first.get().arrived_at) >= PREDECESSOR_TIMEOUT;
        let is_before = |announced: u64| announced < *first.key();
        if self.running.is_some() || !is_due || self.awaiting_room.is_some_and(is_before) {
            return Vec::new();
        }
        let part = first.remove();
        self.running = Some((part.offset, part.len));
        vec![(part, Ok(()))]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Parts of 10 bytes, and a log of their offsets with whether each was started.
    struct AppendHarness {
        appends: AppendQueue,
        begun: Sender<(u64, bool)>,
        seen: Receiver<(u64, bool)>,
    }

    impl AppendHarness {
        fn new(size: u64) -> Self {
            let (begun, seen) = channel();
            let mut appends = AppendQueue::default();
            appends.raise_kernel_end(size);
            Self { appends, begun, seen }
        }

        fn arrives(&mut self, at: u64, since: Instant) {
            let begun = self.begun.clone();
            let go = Box::new(move |turn: Result<(), Errno>| {
                begun.send((at, turn.is_ok())).unwrap();
            });
            let turns = self
                .appends
                .add_part(AppendPart { offset: at, len: 10, arrived_at: since, run: go }, since);
            turns.into_iter().for_each(|(part, turn)| (part.run)(turn));
        }

        fn ends(&mut self, answer: FsResult<u64>) {
            let turns = self.appends.finish_part(&answer, Instant::now());
            turns.into_iter().for_each(|(part, turn)| (part.run)(turn));
        }

        fn seen(&self) -> Vec<(u64, bool)> {
            self.seen.try_iter().collect()
        }
    }

    /// Four parts arrive in every order. They begin to end after the first to fourth arrival.
    #[test]
    fn append_parts_start_in_file_order() {
        let all = [0, 10, 20, 30];
        for code in 0..256usize {
            let order: Vec<u64> = (0..4).map(|i| all[code >> (2 * i) & 3]).collect();
            if all.iter().any(|at| !order.contains(at)) {
                continue;
            }
            for ends_after in 1..=4 {
                let mut t = AppendHarness::new(0);
                for (i, at) in order.iter().enumerate() {
                    t.arrives(*at, Instant::now());
                    if i + 1 >= ends_after {
                        t.ends(Ok(10));
                    }
                }
                (0..4).for_each(|_| t.ends(Ok(10)));
                let expected: Vec<_> = all.iter().map(|at| (*at, true)).collect();
                assert_eq!(t.seen(), expected, "{order:?} {ends_after}");
            }
        }
    }

    #[test]
    fn parts_after_a_failed_part_are_refused() {
        for answer in [Err(Errno::IO), Ok(3)] {
            let mut t = AppendHarness::new(0);
            [0, 20].into_iter().for_each(|at| t.arrives(at, Instant::now()));
            t.ends(answer);
            t.arrives(10, Instant::now());
            t.arrives(30, Instant::now());
            assert_eq!(t.seen(), [(0, true), (20, false), (10, false), (30, false)]);
            // The next write begins at the offset that failed, or at a newer size.
            t.appends.raise_kernel_end(40);
            t.arrives(40, Instant::now());
            assert_eq!(t.seen(), [(40, true)]);
            t.ends(Err(Errno::IO));
            t.arrives(40, Instant::now());
            assert_eq!(t.seen(), [(40, true)]);
        }
    }

    #[test]
    fn the_kernel_may_assume_another_file_size() {
        let mut t = AppendHarness::new(100);
        t.arrives(50, Instant::now());
        assert_eq!(t.seen(), [(50, true)]);
        t.ends(Ok(10));
        t.arrives(60, Instant::now());
        t.ends(Ok(10));
        assert_eq!(t.seen(), [(60, true)]);
        t.arrives(500, Instant::now());
        assert_eq!(t.seen(), [], "one before it may come");
        assert!(t.appends.next_ready(Instant::now()).is_empty());
        let later = Instant::now() + PREDECESSOR_TIMEOUT;
        assert_eq!(t.appends.next_ready(later).len(), 1);
        t.ends(Ok(10));
        t.appends.truncate_to(0);
        t.arrives(0, Instant::now());
        assert_eq!(t.seen(), [(0, true)]);
    }

    #[test]
    fn a_part_waits_for_a_predecessor_without_memory() {
        for refused in [false, true] {
            let mut t = AppendHarness::new(100);
            assert_eq!(t.appends.announce(0), OnFull::WaitOrFail);
            assert_eq!([10, 20].map(|at| t.appends.announce(at)), [OnFull::Exceed; 2]);
            [20, 10].into_iter().for_each(|at| t.arrives(at, Instant::now()));
            assert!(t.appends.next_ready(Instant::now() + 2 * PREDECESSOR_TIMEOUT).is_empty());
            if refused {
                let turns = t.appends.refuse(0, Errno::IO);
                turns.into_iter().for_each(|(part, turn)| (part.run)(turn));
                assert_eq!(t.seen(), [(10, false), (20, false)]);
            } else {
                t.arrives(0, Instant::now());
                (0..3).for_each(|_| t.ends(Ok(10)));
                assert_eq!(t.seen(), [(0, true), (10, true), (20, true)]);
            }
        }
    }
}
