//! Decides how far to read ahead of a reader, from its previous reads.
//!
//! A handle's reads are sorted into *runs*: ranges read without a gap. A run's window is as long as
//! the run itself, so it doubles as reading continues. A reader that stops has caused at most as
//! much readahead as it has read. The first read of a run proves nothing and opens no window, so a
//! random reader gets only the bytes that it asks for.
//!
//! A reader that starts at the beginning of a file usually continues to its end. The window of such
//! a run is [`START_FACTOR`] times its length, and a large first read already opens the window.
//! Otherwise the first segments would come from one replica after the other.
//!
//! A skipping reader repeatedly reads a range and leaves one out. Its previous run shows that: the
//! window does not reach past the previous run's length until the present run is longer. Then the
//! window is the difference of the two lengths, because the kernel's readahead makes such runs
//! sometimes a little longer, sometimes a little shorter.
//!
//! Several threads that read several places through one handle each have their own run, up to
//! [`MAX_RUNS`]. Requests that overtake each other on their way here start their own run. It is
//! merged with its neighbor as soon as they meet.

use crate::volume::ByteRange;

/// Runs remembered for one handle. If more threads than this read through one handle, readahead
/// treats them as random readers.
const MAX_RUNS: usize = 8;

/// The window as a multiple of the bytes read, for runs from the file's start.
const START_FACTOR: u64 = 4;

/// What to do for a read besides answering it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The range to fetch ahead; empty for none.
    pub fetch: ByteRange,
    /// The range fetched ahead in vain: the reader has moved elsewhere.
    pub abandon: ByteRange,
}

impl Advice {
    /// Nothing to do.
    pub const NONE: Self = Self { fetch: EMPTY, abandon: EMPTY };

    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        self.fetch.is_empty() && self.abandon.is_empty()
    }
}

/// One handle's runs.
#[derive(Clone, Debug)]
pub struct Readahead {
    segment: u64,
    runs: Vec<SequentialRun>,
    sequence: u64,
}

#[derive(Clone, Debug)]
struct SequentialRun {
    start: u64,
    /// All of `start..end` has been read.
    end: u64,
    /// The end of the range fetched ahead.
    fetched_to: u64,
    reads: u32,
    /// Length of the run before this one; 0 for the first.
    predicted: u64,
    last_used: u64,
    started: u64,
}

const EMPTY: ByteRange = ByteRange { start: 0, end: 0 };

impl Readahead {
    /// A handle without a run. `segment` is the dispatch unit, bytes.
    pub fn new(segment: u64) -> Self {
        Self { segment, runs: Vec::new(), sequence: 0 }
    }

    /// Whether any run has more than one read.
    pub fn is_sequential(&self) -> bool {
        self.runs.iter().any(|run| run.reads > 1)
    }

    /// Records a read and returns what to fetch and what to abandon. No window is longer than `max`
    /// bytes, and none reaches past `size`.
    pub fn observe(&mut self, read: ByteRange, size: u64, max: u64) -> Advice {
        self.sequence += 1;
        let found =
            self.runs.iter().position(|run| run.start <= read.start && read.start <= run.end);
        let Some(index) = found else {
            let abandon = self.start_run(read);
            let large = read.start == 0 && read.len() >= self.segment / 4;
            let begun = self.runs.iter_mut().find(|run| run.start == 0 && large);
            let fetch = begun.map_or(EMPTY, |run| run.window(self.segment, size, max));
            return Advice { fetch, abandon };
        };
        let run = &mut self.runs[index];
        run.last_used = self.sequence;
        if read.end <= run.end {
            return Advice::NONE;
        }
        run.end = read.end;
        run.reads += 1;
        let index = self.merge_following(index);
        Advice { fetch: self.runs[index].window(self.segment, size, max), abandon: EMPTY }
    }

    /// Records that the run of `read` has been fetched ahead up to `to`.
    pub fn set_fetched(&mut self, read: ByteRange, to: u64) {
        let run = self.runs.iter_mut().find(|run| run.start <= read.start && read.end <= run.end);
        if let Some(run) = run {
            run.fetched_to = run.fetched_to.max(to);
        }
    }

    /// Starts a run; returns the range that the latest run had fetched ahead.
    fn start_run(&mut self, read: ByteRange) -> ByteRange {
        let latest = self.runs.iter_mut().max_by_key(|run| run.last_used);
        let mut abandon = EMPTY;
        let mut predicted = 0;
        if let Some(run) = latest {
            predicted = run.end - run.start;
            abandon = ByteRange::new(run.end, run.fetched_to);
            run.fetched_to = run.end;
        }
        let run = SequentialRun {
            start: read.start,
            end: read.end,
            fetched_to: read.end,
            reads: 1,
            predicted,
            last_used: self.sequence,
            started: self.sequence,
        };
        if self.runs.len() < MAX_RUNS {
            self.runs.push(run);
        } else if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.last_used) {
            *oldest = run;
        }
        abandon
    }

    /// Merges run `index` with a run that starts inside it or at its end; returns the index of the
    /// result.
    fn merge_following(&mut self, index: usize) -> usize {
        let start = self.runs[index].start;
        let front = self.runs[index].end;
        let next = self.runs.iter().position(|other| start < other.start && other.start <= front);
        let Some(next) = next else { return index };
        let other = self.runs[next].clone();
        let run = &mut self.runs[index];
        run.end = run.end.max(other.end);
        run.fetched_to = run.fetched_to.max(other.fetched_to);
        run.reads += other.reads;
        // The later run started because requests overtook each other, so its prediction does not
        // count.
        if other.started < run.started {
            run.started = other.started;
            run.predicted = other.predicted;
        }
        self.runs.swap_remove(next);
        if index == self.runs.len() { next } else { index }
    }
}

impl SequentialRun {
    fn window(&mut self, segment: u64, size: u64, max: u64) -> ByteRange {
        let length = self.end - self.start;
        let factor = if self.start == 0 { START_FACTOR } else { 1 };
        let likely = match length.checked_sub(self.predicted) {
            None | Some(0) => self.predicted - length,
            Some(outgrown) => outgrown.saturating_mul(factor),
        };
        let window = length.saturating_mul(factor).min(likely).min(max);
        let mut end = self.end.saturating_add(window);
        if window >= segment {
            // Use whole segments once the window has any.
            end -= end % segment;
        }
        let begin = self.fetched_to.max(self.end);
        let fetch = ByteRange::new(begin, end.min(size));
        // No crumbs: wait until half a segment is due, or the file's end.
        let crumb = fetch.len() < window.min(segment) / 2 && fetch.end < size;
        if crumb { EMPTY } else { fetch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    const SIZE: u64 = 1024 * MIB;

    /// Makes the reads; returns the bytes read and the bytes fetched, each counted once.
    fn run(reads: impl Iterator<Item = ByteRange>, max: u64) -> (u64, u64) {
        let mut readahead = Readahead::new(MIB);
        let mut fetched = std::collections::BTreeSet::new();
        let mut taken = 0;
        for read in reads {
            let advice = readahead.observe(read, SIZE, max);
            readahead.set_fetched(read, advice.fetch.end);
            taken += read.len();
            for range in [read, advice.fetch] {
                let pages = range.start / (4 * KIB)..range.end.div_ceil(4 * KIB);
                fetched.extend(pages);
            }
        }
        (taken, fetched.len() as u64 * 4 * KIB)
    }

    #[test]
    fn a_sequential_reader_gets_the_whole_window() {
        let mut readahead = Readahead::new(MIB);
        let mut ahead = 0;
        for i in 0..2048u64 {
            let read = ByteRange::at(i * 128 * KIB, 128 * KIB);
            let advice = readahead.observe(read, SIZE, 64 * MIB);
            assert!(advice.fetch.is_empty() || advice.fetch.end <= read.end + 64 * MIB);
            readahead.set_fetched(read, advice.fetch.end);
            ahead = ahead.max(advice.fetch.end.saturating_sub(read.end));
        }
        assert!(ahead > 62 * MIB, "{ahead}");
    }

    #[test]
    fn the_window_starts_at_the_second_read_and_doubles() {
        let mut readahead = Readahead::new(MIB);
        let read = |i: u64| ByteRange::at(100 * MIB + i * MIB, MIB);
        assert!(readahead.observe(read(0), SIZE, 64 * MIB).fetch.is_empty());
        let second = readahead.observe(read(1), SIZE, 64 * MIB).fetch;
        assert_eq!(second, ByteRange::at(102 * MIB, 2 * MIB));
    }

    #[test]
    fn a_large_read_at_the_start_opens_the_window() {
        let mut readahead = Readahead::new(MIB);
        let first = readahead.observe(ByteRange::at(0, MIB), SIZE, 64 * MIB).fetch;
        assert_eq!(first, ByteRange::at(MIB, 4 * MIB));
        let mut readahead = Readahead::new(MIB);
        assert!(readahead.observe(ByteRange::at(0, 4 * KIB), SIZE, 64 * MIB).fetch.is_empty());
    }

    #[test]
    fn a_random_reader_gets_no_readahead() {
        let mut x = 12345u64;
        let reads = (0..4000).map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ByteRange::at((x >> 33) % (SIZE / 4096) * 4096, 4096)
        });
        let (taken, fetched) = run(reads, 64 * MIB);
        assert!(fetched <= taken + taken / 50, "{taken} {fetched}");
    }

    #[test]
    fn skipping_readers_get_no_readahead() {
        for (take, stride, block) in [(MIB, 2 * MIB, 128 * KIB), (64 * KIB, 128 * KIB, 16 * KIB)] {
            let reads = (0..200u64).flat_map(|i| {
                (0..take / block).map(move |b| ByteRange::at(i * stride + b * block, block))
            });
            let (taken, fetched) = run(reads, 64 * MIB);
            assert!(fetched as f64 <= taken as f64 * 1.1, "{taken} {fetched}");
        }
    }

    #[test]
    fn skipping_readers_with_reordered_reads_get_no_readahead() {
        // Runs of 1 MiB, which the kernel makes 1 MiB or a quarter longer in turn, with every two
        // requests swapped.
        let reads = (0..200u64).flat_map(|i| {
            let blocks = 8 + i % 2 * 2;
            (0..blocks).map(move |b| ByteRange::at(i * 2 * MIB + (b ^ 1) * 128 * KIB, 128 * KIB))
        });
        let (taken, fetched) = run(reads, 64 * MIB);
        assert!(fetched as f64 <= taken as f64 * 1.25, "{taken} {fetched}");
    }

    /// The kernel's readahead lengthens runs, by more or less as it is answered faster or slower.
    #[test]
    fn skipping_readers_with_uneven_runs_get_little_readahead() {
        let mut x = 12345u64;
        let reads = (0..500u64).flat_map(|i| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let blocks = 8 + (x >> 33) % 5;
            (0..blocks).map(move |b| ByteRange::at(i * 2 * MIB + b * 128 * KIB, 128 * KIB))
        });
        let (taken, fetched) = run(reads, 64 * MIB);
        assert!(fetched as f64 <= taken as f64 * 1.25, "{taken} {fetched}");
    }

    #[test]
    fn a_long_run_after_a_short_one_gets_the_whole_window() {
        let mut readahead = Readahead::new(MIB);
        let runs = [(0, 2 * MIB), (100 * MIB, 300 * MIB)];
        let mut ahead = 0;
        for (start, end) in runs {
            for at in (start..end).step_by(128 * KIB as usize) {
                let read = ByteRange::at(at, 128 * KIB);
                let advice = readahead.observe(read, SIZE, 64 * MIB);
                readahead.set_fetched(read, advice.fetch.end);
                ahead = ahead.max(advice.fetch.end.saturating_sub(read.end));
            }
        }
        assert!(ahead > 62 * MIB, "{ahead}");
    }

    #[test]
    fn a_backward_reader_gets_no_readahead() {
        let reads = (0..1000u64).rev().map(|i| ByteRange::at(i * 64 * KIB, 64 * KIB));
        let (taken, fetched) = run(reads, 64 * MIB);
        assert!(fetched <= taken + MIB, "{taken} {fetched}");
    }

    #[test]
    fn reordered_requests_are_still_sequential() {
        let mut readahead = Readahead::new(MIB);
        let mut ahead = 0;
        for i in 0..400u64 {
            // Each pair is swapped.
            let read = ByteRange::at((i ^ 1) * 128 * KIB, 128 * KIB);
            let advice = readahead.observe(read, SIZE, 16 * MIB);
            readahead.set_fetched(read, advice.fetch.end);
            ahead = ahead.max(advice.fetch.end.saturating_sub(read.end));
        }
        assert!(ahead > 14 * MIB, "{ahead}");
    }

    #[test]
    fn four_readers_on_one_handle_each_have_a_window() {
        let mut readahead = Readahead::new(MIB);
        let mut ahead = [0u64; 4];
        for i in 0..100u64 {
            for (thread, most) in ahead.iter_mut().enumerate() {
                let read = ByteRange::at(thread as u64 * 200 * MIB + i * 128 * KIB, 128 * KIB);
                let advice = readahead.observe(read, SIZE, 4 * MIB);
                readahead.set_fetched(read, advice.fetch.end);
                *most = (*most).max(advice.fetch.end.saturating_sub(read.end));
            }
        }
        assert!(ahead.iter().all(|a| *a > 2 * MIB), "{ahead:?}");
    }

    #[test]
    fn a_seek_abandons_the_readahead() {
        let mut readahead = Readahead::new(MIB);
        for i in 0..8u64 {
            let read = ByteRange::at(i * MIB, MIB);
            let advice = readahead.observe(read, SIZE, 64 * MIB);
            readahead.set_fetched(read, advice.fetch.end);
        }
        let advice = readahead.observe(ByteRange::at(500 * MIB, MIB), SIZE, 64 * MIB);
        assert_eq!(advice.abandon.start, 8 * MIB);
        assert!(advice.abandon.end > 16 * MIB, "{advice:?}");
        assert!(advice.fetch.is_empty());
    }

    #[test]
    fn the_window_ends_with_the_file() {
        let mut readahead = Readahead::new(MIB);
        let size = 3 * MIB + 5;
        for i in 0..3u64 {
            let advice = readahead.observe(ByteRange::at(i * MIB, MIB), size, 64 * MIB);
            assert!(advice.fetch.end <= size);
        }
    }
}
