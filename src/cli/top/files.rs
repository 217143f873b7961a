//! Computes how much each thread read of each file between two samples. Pure.
//!
//! An open handle is compared with itself, by its number: its last reader and its file's name may
//! have changed in between. Closed handles are summed for each file and reader. Such a sum includes
//! the earlier reads of handles that were open in the first sample.
//!
//! *Invariant:* reads before the first sample never count as reads after it. Where the samples
//! cannot tell, the reads count as zero.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::control::{FileActivity, MAX_ACTIVE_FILES};

/// The reads of one file by one thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileReads {
    pub(super) path: String,
    pub(super) thread: u32,
    pub(super) bytes: u64,
    pub(super) reads: u64,
    /// Open handles.
    pub(super) handles: usize,
}

/// Bytes and reads.
type ReadAmount = (u64, u64);

/// By file and thread.
type ReadSums<'a> = BTreeMap<(&'a str, u32), ReadAmount>;

/// The tolerance between the daemon's times and ours, milliseconds: a sample takes two requests,
/// one after the other.
const CLOCK_SLACK_MS: u64 = 1000;

/// The reads between two samples, by file and thread. The samples are `seconds` apart.
pub(super) fn reads_between(
    before: &[FileActivity],
    now: &[FileActivity],
    seconds: f64,
) -> Vec<FileReads> {
    let was = by_handle(before);
    let is = by_handle(now);
    let newest = was.keys().next_back();
    let mut uses: BTreeMap<(&str, u32), FileReads> = BTreeMap::new();
    for (handle, file) in &is {
        let had = match was.get(handle) {
            Some(was) => (was.bytes, was.reads),
            // The first list was full and omitted this handle, whose reads so far are unknown.
            None if before.len() >= MAX_ACTIVE_FILES && Some(handle) < newest => {
                (file.bytes, file.reads)
            }
            None => (0, 0),
        };
        let used = uses.entry((&file.path, file.pid)).or_default();
        let (bytes, reads) = saturating_difference((file.bytes, file.reads), had);
        used.bytes += bytes;
        used.reads += reads;
        used.handles += 1;
    }
    let mut closed = closed_reads_since(before, now, seconds);
    let mut gone: Vec<&FileActivity> =
        was.iter().filter(|(handle, _)| !is.contains_key(*handle)).map(|(_, file)| *file).collect();
    // The largest handle fits into the fewest sums, so it comes first.
    gone.sort_by_key(|file| Reverse(file.bytes));
    for file in gone {
        subtract_closed_handle(&mut closed, file);
    }
    for (key, (bytes, reads)) in closed {
        let used = uses.entry(key).or_default();
        used.bytes += bytes;
        used.reads += reads;
    }
    let named = |((path, thread), used): ((&str, u32), FileReads)| FileReads {
        path: path.to_owned(),
        thread,
        ..used
    };
    uses.into_iter().map(named).collect()
}

fn saturating_difference(some: ReadAmount, other: ReadAmount) -> ReadAmount {
    (some.0.saturating_sub(other.0), some.1.saturating_sub(other.1))
}

fn by_handle(files: &[FileActivity]) -> BTreeMap<u64, &FileActivity> {
    files.iter().filter_map(|file| Some((file.handle?, file))).collect()
}

/// The growth of the sums of closed handles that were read recently.
fn closed_reads_since<'a>(
    before: &'a [FileActivity],
    now: &'a [FileActivity],
    seconds: f64,
) -> ReadSums<'a> {
    let lately = ((seconds * 1e3) as u64).saturating_add(CLOCK_SLACK_MS);
    let was = sum_closed(before.iter());
    let is = sum_closed(now.iter().filter(|file| file.idle_ms <= lately));
    let grown =
        |(key, sum)| (key, saturating_difference(sum, was.get(&key).copied().unwrap_or_default()));
    is.into_iter().map(grown).collect()
}

fn sum_closed<'a>(files: impl Iterator<Item = &'a FileActivity>) -> ReadSums<'a> {
    let mut sums = ReadSums::new();
    for file in files.filter(|file| file.handle.is_none()) {
        let sum = sums.entry((file.path.as_str(), file.pid)).or_default();
        sum.0 += file.bytes;
        sum.1 += file.reads;
    }
    sums
}

/// Subtracts the earlier reads of the closed handle `gone` from the sum that now includes it. That
/// is the sum of its file and reader, else of its file, else (after a rename) of its reader. A sum
/// that grew by less does not include it.
fn subtract_closed_handle(closed: &mut ReadSums<'_>, gone: &FileActivity) {
    let strangeness = |(path, thread): (&str, u32)| match (path == gone.path, thread == gone.pid) {
        (true, true) => Some(0),
        (true, false) => Some(1),
        (false, true) => Some(2),
        (false, false) => None,
    };
    let is_enough = |sum: &ReadAmount| sum.0 >= gone.bytes && sum.1 >= gone.reads;
    let fitting = closed.iter_mut().filter(|(_, sum)| is_enough(sum));
    let of_it = fitting.filter_map(|(key, sum)| Some((strangeness(*key)?, sum)));
    if let Some((_, sum)) = of_it.min_by_key(|(strangeness, _)| *strangeness) {
        *sum = saturating_difference(*sum, (gone.bytes, gone.reads));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, handle: Option<u64>, pid: u32, bytes: u64) -> FileActivity {
        let reads = bytes / 10;
        FileActivity { path: path.to_owned(), handle, pid, bytes, reads, idle_ms: 0 }
    }

    /// The reads in one second: path, thread, bytes.
    fn read(before: &[FileActivity], now: &[FileActivity]) -> Vec<(String, u32, u64)> {
        let uses = reads_between(before, now, 1.0);
        let read = uses.into_iter().filter(|used| used.bytes > 0);
        read.map(|used| (used.path, used.thread, used.bytes)).collect()
    }

    fn of(path: &str, thread: u32, bytes: u64) -> Vec<(String, u32, u64)> {
        vec![(path.to_owned(), thread, bytes)]
    }

    const LONG: u64 = 1 << 40;

    #[test]
    fn a_handle_keeps_its_identity_under_another_reader_or_name() {
        let before = [file("a", Some(1), 41, LONG)];
        assert_eq!(read(&before, &[file("a", Some(1), 42, LONG + 100)]), of("a", 42, 100));
        assert_eq!(read(&before, &[file("b", Some(1), 41, LONG + 100)]), of("b", 41, 100));
        assert_eq!(read(&[], &[file("a", Some(1), 41, 100)]), of("a", 41, 100), "a new one");
    }

    #[test]
    fn reads_of_a_closed_handle_are_counted_once() {
        let before = [file("a", Some(1), 7, LONG), file("a", None, 7, 500)];
        assert_eq!(read(&before, &[file("a", None, 7, LONG + 700)]), of("a", 7, 200));
        // Another thread read last, or the file was renamed.
        let by_another = [file("a", None, 7, 500), file("a", None, 8, LONG + 70)];
        assert_eq!(read(&before, &by_another), of("a", 8, 70));
        let renamed = [file("a", None, 7, 500), file("b", None, 7, LONG + 70)];
        assert_eq!(read(&before, &renamed), of("b", 7, 70));
        // Two handles are closed, and each changed its reader.
        let before = [file("a", Some(1), 7, 1000), file("a", Some(2), 8, LONG)];
        let now = [file("a", None, 7, LONG + 30), file("a", None, 8, 1010)];
        let all: u64 = read(&before, &now).iter().map(|(_, _, bytes)| bytes).sum();
        assert_eq!(all, 40);
    }

    #[test]
    fn an_open_handle_subtracts_nothing_from_closed_ones() {
        let before = [file("a", Some(1), 7, 100), file("a", None, 7, 500)];
        let now = [file("a", Some(1), 7, 100), file("a", None, 7, 900)];
        assert_eq!(read(&before, &now), of("a", 7, 400));
    }

    #[test]
    fn a_handle_that_a_full_list_omitted_counts_as_zero() {
        let mut before: Vec<_> =
            (0..MAX_ACTIVE_FILES as u64).map(|n| file("others", Some(10 + n), 1, 10)).collect();
        let mut now = before.clone();
        now.push(file("old", Some(3), 7, LONG));
        assert_eq!(read(&before, &now), []);
        now.push(file("new", Some(9999), 7, 100));
        assert_eq!(read(&before, &now), of("new", 7, 100));
        // The first list had room, so the handle had no reads then.
        before.pop();
        now.retain(|file| file.path != "new");
        assert_eq!(read(&before, &now)[0], ("old".to_owned(), 7, LONG));
        // Idle for a long time, and closed.
        let idle = FileActivity { idle_ms: 5000, ..file("idle", None, 7, LONG) };
        assert_eq!(read(&[], &[idle]), []);
    }
}
