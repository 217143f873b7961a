//! Who reads what, as `fanfs top` shows it.
//!
//! Each handle counts what is read through it, and who read last. What a handle has
//! counted is added up for its file and reader when it is closed, for the last few of
//! them: small files are open too shortly to be seen. What the kernel has in its page
//! cache, or reads by itself, does not come to the daemon and is not counted.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::cache_mode::ReadTotals;
use super::handles::FileHandle;

/// Files and their readers that are remembered after their handles were closed: more
/// than a screen has lines.
const MAX_CLOSED: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// What was read through handles that are closed.
pub(super) struct ActivityLog {
    start: Instant,
    closed: Mutex<LruCache<(PathBuf, u32), ReadTotals>>,
}

/// What a reader has read of a file, through one handle that is open or through all
/// that he has closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadActivity {
    /// The file's path in the volume, without a leading `/`.
    pub path: PathBuf,
    /// The handle; none for what is closed.
    pub handle: Option<u64>,
    /// The process, or thread, that read last; 0 where the kernel did not say.
    pub process: u32,
    /// Bytes asked for, as far as they reached the daemon.
    pub bytes: u64,
    /// Reads.
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
    /// `now` as a number, microseconds.
    pub(super) fn micros_since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_micros() as u64
    }

    /// A handle was closed through which `read` was read of the file at `path`.
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
    /// The files that were read last, `most` of them, the latest first; what is closed is
    /// left out last. `open` are those that are open, by handle.
    pub(super) fn recently_read(
        &self,
        open: Vec<(u64, FileHandle)>,
        most: usize,
    ) -> Vec<ReadActivity> {
        let now = Instant::now();
        let activity = |(id, file): (u64, FileHandle)| {
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

/// The latest, `most` of them. A handle that is left out is known by its number when it is
/// told of again; a sum of what is closed would look new, with all that it has.
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
    fn what_one_reader_has_closed_is_added_up() {
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
    fn what_is_closed_is_left_out_last() {
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
        let told = |most| {
            let told = merge_latest(open.clone(), vec![one(None, 2), one(None, 9)], most);
            told.into_iter().map(|one| one.handle).collect::<Vec<_>>()
        };
        assert_eq!(told(9), [Some(2), None, Some(1), None]);
        assert_eq!(told(3), [Some(2), None, None]);
    }

    #[test]
    fn the_oldest_are_forgotten() {
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
