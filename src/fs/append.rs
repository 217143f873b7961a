//! O_DIRECT appends, which the kernel splits into parts that it may send together.
//!
//! The write replica appends each part at its own end of the file. So fanfs carries the
//! parts of a write(2) out one after the other, in their order. Each part has an offset,
//! which the kernel counts from the end that it believes in. It sends no other append of
//! that file on this mount until all parts have been answered. So the parts of one write
//! have ascending offsets without a gap, and a part that arrives early waits for its
//! predecessor.
//!
//! For an open with O_APPEND and O_DIRECT, [`crate::fuse`] makes the kernel send the parts
//! one by one. This module orders the others: asynchronous writes, and descriptors that
//! got O_DIRECT by fcntl(2).
//!
//! *Invariant:* after a part has failed or was stored incompletely, no later part of that
//! write is stored: it would leave a hole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::intake::Need;
use super::written::Gate;
use super::{Answer, Errno, Fs, HandleId, WriteRequest};
use crate::telemetry::counters::count;

/// A part of a write(2); `go` carries it out or refuses it.
struct Part {
    at: u64,
    len: u64,
    since: Instant,
    go: Box<dyn FnOnce(Result<(), Errno>) + Send>,
}

/// The parts of one file.
#[derive(Default)]
pub(super) struct Appends {
    /// Upper bound of the end of the file that the kernel believes in.
    end: Option<u64>,
    /// Offset and length of the part in progress.
    running: Option<(u64, u64)>,
    /// Offset of the part that failed, and its error.
    failed: Option<(u64, Errno)>,
    waiting: BTreeMap<u64, Part>,
    /// Offset of the part that waits for room. The others of its write get theirs at once:
    /// they may have to wait for it. The kernel sends these in the background, so there
    /// are few of them.
    announced: Option<u64>,
}

/// Parts to start or to refuse. The caller does so without a lock.
type Turns = Vec<(Part, Result<(), Errno>)>;

/// How long a part waits for a predecessor. There may be none, as the kernel may believe
/// in an end that is not known here. Parts leave the kernel in their order, so another
/// thread of the daemon has a missing one already and is about to deliver it.
const GRACE: Duration = Duration::from_secs(1);

impl Appends {
    /// The kernel may believe in this size.
    pub(super) fn is_told(&mut self, size: u64) {
        self.end = self.end.max(Some(size));
        if self.running.is_none() && self.waiting.is_empty() {
            self.failed = None;
        }
    }

    /// The kernel sets the size: all parts have been answered.
    pub(super) fn is_cut(&mut self, size: u64) {
        (self.end, self.failed) = (Some(size), None);
    }

    /// A part is about to arrive, once it has the room that it needs.
    fn announces(&mut self, at: u64) -> Need {
        let is_alone =
            self.running.is_none() && self.waiting.is_empty() && self.announced.is_none();
        if is_alone {
            self.announced = Some(at);
        }
        if is_alone { Need::Room } else { Need::Now }
    }

    /// There is no room for a part.
    fn is_refused(&mut self, at: u64, errno: Errno) -> Turns {
        self.announced.take_if(|announced| *announced == at);
        self.fails(at, errno)
    }

    /// A part is not stored, so no later one is.
    fn fails(&mut self, at: u64, errno: Errno) -> Turns {
        self.failed = Some((at, errno));
        let later = self.waiting.split_off(&(at + 1));
        later.into_values().map(|part| (part, Err(errno))).collect()
    }

    fn arrives(&mut self, part: Part, now: Instant) -> Turns {
        self.announced.take_if(|announced| *announced == part.at);
        if let Some((from, errno)) = self.failed
            && part.at > from
        {
            return vec![(part, Err(errno))];
        }
        self.failed = None;
        self.waiting.insert(part.at, part);
        self.next(now)
    }

    /// The part in progress has ended.
    fn ended(&mut self, answer: &Answer<u64>, now: Instant) -> Turns {
        let Some((at, len)) = self.running.take() else { return Vec::new() };
        let written = answer.unwrap_or(0);
        self.end = Some(at + written);
        if written >= len {
            return self.next(now);
        }
        self.fails(at, answer.err().unwrap_or(Errno::IO))
    }

    /// The part to start now, if any.
    fn next(&mut self, now: Instant) -> Turns {
        let Some(first) = self.waiting.first_entry() else { return Vec::new() };
        let is_due = self.end.is_none_or(|end| *first.key() <= end)
            || now.saturating_duration_since(first.get().since) >= GRACE;
        let is_before = |announced: u64| announced < *first.key();
        if self.running.is_some() || !is_due || self.announced.is_some_and(is_before) {
            return Vec::new();
        }
        let part = first.remove();
        self.running = Some((part.at, part.len));
        vec![(part, Ok(()))]
    }
}

impl Fs {
    /// Appends a part of a write(2) in its turn; returns the number of bytes.
    pub(super) fn append_part(
        self: &Arc<Self>,
        handle: HandleId,
        request: WriteRequest<'_>,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let (at, len, since) = (request.offset, request.data.len() as u64, Instant::now());
        let (fs, gate) = (Arc::clone(self), Arc::clone(&file.inode.gate));
        let need = gate.appends.lock().announces(at);
        let request = match self.intake.take(request.data, need) {
            Ok(data) => request.with(data),
            Err(errno) => {
                count(&self.counters.write_errors);
                let turns = gate.appends.lock().is_refused(at, errno);
                done(Err(errno));
                return self.take_turns(&gate, turns);
            }
        };
        let go = Box::new(move |turn: Result<(), Errno>| match turn {
            Ok(()) => {
                let after = Arc::clone(&fs);
                fs.write_now(handle, request, move |answer| {
                    let turns = gate.appends.lock().ended(&answer, Instant::now());
                    done(answer);
                    after.take_turns(&gate, turns);
                });
            }
            Err(errno) => done(Err(errno)),
        });
        let gate = Arc::clone(&file.inode.gate);
        let turns = gate.appends.lock().arrives(Part { at, len, since, go }, since);
        self.take_turns(&gate, turns);
    }

    fn take_turns(self: &Arc<Self>, gate: &Arc<Gate>, turns: Turns) {
        for (part, turn) in turns {
            (part.go)(turn);
        }
        if gate.appends.lock().waiting.is_empty() {
            return;
        }
        let (fs, gate) = (Arc::clone(self), Arc::clone(gate));
        self.locks.runtime().spawn(async move {
            tokio::time::sleep(GRACE).await;
            let turns = gate.appends.lock().next(Instant::now());
            if !turns.is_empty() {
                fs.take_turns(&gate, turns);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Parts of 10 bytes, and a log of their offsets with whether each was started.
    struct Written {
        appends: Appends,
        begun: Sender<(u64, bool)>,
        seen: Receiver<(u64, bool)>,
    }

    impl Written {
        fn new(size: u64) -> Self {
            let (begun, seen) = channel();
            let mut appends = Appends::default();
            appends.is_told(size);
            Self { appends, begun, seen }
        }

        fn arrives(&mut self, at: u64, since: Instant) {
            let begun = self.begun.clone();
            let go = Box::new(move |turn: Result<(), Errno>| {
                begun.send((at, turn.is_ok())).unwrap();
            });
            let turns = self.appends.arrives(Part { at, len: 10, since, go }, since);
            turns.into_iter().for_each(|(part, turn)| (part.go)(turn));
        }

        fn ends(&mut self, answer: Answer<u64>) {
            let turns = self.appends.ended(&answer, Instant::now());
            turns.into_iter().for_each(|(part, turn)| (part.go)(turn));
        }

        fn seen(&self) -> Vec<(u64, bool)> {
            self.seen.try_iter().collect()
        }
    }

    /// Every order in which four parts may arrive, and end, one after the other.
    #[test]
    fn parts_begin_in_their_order_whatever_the_order_they_arrive_in() {
        let all = [0, 10, 20, 30];
        for code in 0..256usize {
            let order: Vec<u64> = (0..4).map(|i| all[code >> (2 * i) & 3]).collect();
            if all.iter().any(|at| !order.contains(at)) {
                continue;
            }
            for ends_after in 1..=4 {
                let mut t = Written::new(0);
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
    fn after_a_part_that_fails_the_later_ones_are_refused() {
        for answer in [Err(Errno::IO), Ok(3)] {
            let mut t = Written::new(0);
            [0, 20].into_iter().for_each(|at| t.arrives(at, Instant::now()));
            t.ends(answer);
            t.arrives(10, Instant::now());
            t.arrives(30, Instant::now());
            assert_eq!(t.seen(), [(0, true), (20, false), (10, false), (30, false)]);
            // The next write begins at the offset that failed, or at a newer size.
            t.appends.is_told(40);
            t.arrives(40, Instant::now());
            assert_eq!(t.seen(), [(40, true)]);
            t.ends(Err(Errno::IO));
            t.arrives(40, Instant::now());
            assert_eq!(t.seen(), [(40, true)]);
        }
    }

    #[test]
    fn the_kernel_may_take_the_file_to_be_shorter_or_longer() {
        let mut t = Written::new(100);
        t.arrives(50, Instant::now());
        assert_eq!(t.seen(), [(50, true)]);
        t.ends(Ok(10));
        t.arrives(60, Instant::now());
        t.ends(Ok(10));
        assert_eq!(t.seen(), [(60, true)]);
        t.arrives(500, Instant::now());
        assert_eq!(t.seen(), [], "one before it may come");
        assert!(t.appends.next(Instant::now()).is_empty());
        let later = Instant::now() + GRACE;
        assert_eq!(t.appends.next(later).len(), 1);
        t.ends(Ok(10));
        t.appends.is_cut(0);
        t.arrives(0, Instant::now());
        assert_eq!(t.seen(), [(0, true)]);
    }

    #[test]
    fn a_part_waits_for_one_before_it_that_waits_for_room() {
        for refused in [false, true] {
            let mut t = Written::new(100);
            assert_eq!(t.appends.announces(0), Need::Room);
            assert_eq!([10, 20].map(|at| t.appends.announces(at)), [Need::Now; 2]);
            [20, 10].into_iter().for_each(|at| t.arrives(at, Instant::now()));
            assert!(t.appends.next(Instant::now() + 2 * GRACE).is_empty());
            if refused {
                let turns = t.appends.is_refused(0, Errno::IO);
                turns.into_iter().for_each(|(part, turn)| (part.go)(turn));
                assert_eq!(t.seen(), [(10, false), (20, false)]);
            } else {
                t.arrives(0, Instant::now());
                (0..3).for_each(|_| t.ends(Ok(10)));
                assert_eq!(t.seen(), [(0, true), (10, true), (20, true)]);
            }
        }
    }
}
