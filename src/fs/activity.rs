//! Which process reads which file, as `fanfs top` shows it.
//!
//! Each handle counts the reads through it, and remembers the process that read last. When a handle
//! is closed, its counts are added to a sum for its file and reader. The daemon keeps the sums of
//! the last few: otherwise small files would be open too briefly to be seen. Reads that the kernel
//! answers from its page cache, or carries out by itself, do not reach the daemon and are not
//! counted.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::cache_mode::ReadTotals;
use super::handles::FileHandle;

/// Files and their readers that are remembered after their handles were closed: more than the lines
/// of a screen.
const MAX_CLOSED: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// The sums of reads through closed handles.
pub(super) struct ActivityLog {
    start: Instant,
    closed: Mutex<LruCache<(PathBuf, u32), ReadTotals>>,
}

/// A reader's reads of one file: through one open handle, or through all handles that the reader
/// has closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadActivity {
    /// The file's path in the volume, without a leading `/`.
    pub path: PathBuf,
    /// The handle; `None` for the sum of closed handles.
    pub handle: Option<u64>,
    /// The process or thread that read last; 0 if the kernel did not say.
    pub process: u32,
    /// Bytes requested by reads that reached the daemon.
    pub bytes: u64,
    /// Reads that reached the daemon.
    pub reads: u64,
    /// How long ago the last one came.
    pub idle: Duration,
}

impl Default for ActivityLog {
    fn default() -> Self {
        Self { start: Instant::now(), closed: Mutex::new(LruCache::new(MAX_CLOSED)) }
    }
}

impl ActivityLog {
    /// Time from the start to `now`, microseconds.
    pub(super) fn micros_since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_micros() as u64
    }

    /// Adds the totals of a handle on the file at `path`, which was closed.
    pub(super) fn record_closed(&self, path: &Path, read: ReadTotals) {
        if read.reads == 0 {
            return;
        }
        let mut closed = self.closed.lock();
        let sum =
            closed.get_or_insert_mut((path.to_owned(), read.last_process), ReadTotals::default);
        *sum = ReadTotals {
            reads: sum.reads + read.reads,
            bytes: sum.bytes + read.bytes,
            last_process: read.last_process,
            last_read: sum.last_read.max(read.last_read),
        };
    }

    fn read_activity(
        &self,
        path: PathBuf,
        handle: Option<u64>,
        read: ReadTotals,
        now: Instant,
    ) -> ReadActivity {
        let idle =
            Duration::from_micros(self.micros_since_start(now).saturating_sub(read.last_read));
        let ReadTotals { reads, bytes, last_process: by, .. } = read;
        ReadActivity { path, handle, process: by, bytes, reads, idle }
    }
}

impl ActivityLog {
    /// The `most` files that were read last, the latest first. Sums of closed handles are left out
    /// last. `open` has the open files, by handle.
    pub(super) fn recently_read(
        &self,
        open: Vec<(u64, Arc<FileHandle>)>,
        most: usize,
    ) -> Vec<ReadActivity> {
        let now = Instant::now();
        let activity = |(id, file): (u64, Arc<FileHandle>)| {
            let path = file.inode.current().path().to_owned();
            self.read_activity(path, Some(id), file.read_stats.totals(), now)
        };
        let open = open.into_iter().map(activity).collect();
        let closed = {
            let closed = self.closed.lock();
            let kept = closed.iter().map(|((path, _), read)| (path.clone(), *read));
            kept.map(|(path, read)| self.read_activity(path, None, read, now)).collect()
        };
        merge_latest(open, closed, most)
    }
}

/// Returns the `most` latest entries. If there are more, open handles are left out first. A handle
/// that was left out keeps its number, so the caller recognizes it next time. A sum of closed
/// handles that was left out would look like new reads next time.
fn merge_latest(
    mut open: Vec<ReadActivity>,
    closed: Vec<ReadActivity>,
    most: usize,
) -> Vec<ReadActivity> {
    open.retain(|one| one.reads > 0);
    open.sort_by_key(|one| one.idle);
    open.truncate(most.saturating_sub(closed.len()));
    let mut all = closed;
    all.append(&mut open);
    all.sort_by_key(|one| one.idle);
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_reads_of_one_process_are_summed() {
        let busy = ActivityLog::default();
        let read = |by, bytes| ReadTotals { reads: 1, bytes, last_process: by, last_read: bytes };
        busy.record_closed(Path::new("a"), read(7, 10));
        busy.record_closed(Path::new("a"), read(7, 20));
        busy.record_closed(Path::new("a"), read(8, 5));
        busy.record_closed(Path::new("never read"), ReadTotals::default());
        let closed = busy.closed.lock();
        assert_eq!(closed.len(), 2);
        let sum = closed.peek(&(PathBuf::from("a"), 7)).unwrap();
        assert_eq!((sum.reads, sum.bytes, sum.last_read), (2, 30, 20));
    }

    #[test]
    fn closed_files_are_the_last_to_be_omitted() {
        let one = |handle, idle| ReadActivity {
            path: PathBuf::from("a"),
            handle,
            process: 1,
            bytes: 1,
            reads: 1,
            idle: Duration::from_secs(idle),
        };
        let never = ReadActivity { reads: 0, ..one(Some(9), 0) };
        let open = vec![one(Some(1), 3), one(Some(2), 1), never];
        let merged = |most| {
            let merged = merge_latest(open.clone(), vec![one(None, 2), one(None, 9)], most);
            merged.into_iter().map(|one| one.handle).collect::<Vec<_>>()
        };
        assert_eq!(merged(9), [Some(2), None, Some(1), None]);
        assert_eq!(merged(3), [Some(2), None, None]);
    }

    #[test]
    fn the_oldest_closed_files_are_forgotten() {
        let busy = ActivityLog::default();
        for file in 0..MAX_CLOSED.get() + 10 {
            busy.record_closed(
                Path::new(&file.to_string()),
                ReadTotals { reads: 1, ..ReadTotals::default() },
            );
        }
        let closed = busy.closed.lock();
        assert_eq!(closed.len(), MAX_CLOSED.get());
        assert!(closed.peek(&(PathBuf::from("0"), 0)).is_none());
    }
}
