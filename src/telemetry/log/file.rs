//! A log file that several processes append to, and that is rotated.
//!
//! A daemon, its keeper and, during an upgrade, the next daemon share one log. Before each
//! line a process locks the file that it has open (flock(2)) and checks that the path still
//! names that file. If it does not, another process has rotated the log, or logrotate(8)
//! has moved it: the process opens the path again. If the file has no room for the line,
//! the process renames it to `NAME.1`, over the one before, and begins a new file.
//!
//! No crate does this: those that rotate by size (file-rotate, rolling-file) rename without
//! a lock and keep writing to their own descriptor. So a second process would write into the
//! file that is deleted next, or rotate again.
//!
//! *Invariants:*
//! - A line is written to the file that the path names, under its lock. So each rotated file is
//!   complete, and is rotated once.
//! - Rotation and locking never make a line fail, and delay it only by [`LOCK_TIMEOUT`]. If the
//!   log cannot be rotated or locked, it grows. A failed rotation is logged once per attempt.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// How long a line waits for the lock of the current file. A process holds the lock for one line,
/// so a process that holds it this long is stopped. Tests wait longer, for a busy machine.
const LOCK_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// An open log file.
pub struct LogFile {
    path: PathBuf,
    file: File,
    /// Whether it is also this process's standard error.
    is_stderr: bool,
    /// The size at which to rotate, bytes; 0 for never.
    max_size: u64,
    /// The size at which to retry after a failed rotation.
    retry_rotation_at: u64,
    is_locked: bool,
    /// Whether another process did not release the lock in time. Until this process gets the lock,
    /// no line waits for it again.
    is_lock_contended: bool,
    /// Why the log could not be rotated, if that is not reported yet.
    rotation_error: Option<io::Error>,
}

impl LogFile {
    /// Opens or creates a log. With `is_stderr`, standard error is redirected to it too.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path, is_stderr: bool) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        // A symbolic link stays in place: its target is rotated. A pipe has no path.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let log = Self {
            path,
            file,
            is_stderr,
            max_size: 0,
            retry_rotation_at: 0,
            is_locked: false,
            is_lock_contended: false,
            rotation_error: None,
        };
        log.redirect_stderr();
        Ok(log)
    }

    /// Sets the size at which to rotate, bytes; 0 for never.
    #[must_use]
    pub fn with_max_size(self, most: u64) -> Self {
        Self { max_size: most, ..self }
    }

    /// The file that is open now.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Prepares for a line of this length. Returns whether it opened another file.
    pub(super) fn begin_line(&mut self, line: usize) -> bool {
        // A terminal or a pipe cannot be rotated.
        if !self.file.metadata().is_ok_and(|meta| meta.is_file()) {
            return false;
        }
        let until = Instant::now() + LOCK_TIMEOUT;
        let mut is_another = false;
        // Another round is needed if the file was moved after this process opened it. The time
        // limits the rounds, not a count: while this process waits for the lock, another may rotate
        // the log any number of times.
        loop {
            self.lock(until);
            if !self.is_current() {
                // If the path cannot be opened, the line goes to the moved file.
                let Ok(()) = self.reopen() else { break };
                is_another = true;
            } else if !self.is_locked || !self.is_full(line) {
                break;
            } else if let Err(error) = std::fs::rename(&self.path, self.rotated_path())
                && error.kind() != ErrorKind::NotFound
            {
                self.retry_rotation_at = self.len().saturating_add(self.max_size);
                self.rotation_error = Some(error);
                break;
            } else {
                self.retry_rotation_at = 0;
            }
            if Instant::now() >= until {
                break;
            }
        }
        is_another
    }

    /// Releases the lock after the line was written or lost.
    pub(super) fn end_line(&mut self) {
        if std::mem::take(&mut self.is_locked) {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }

    /// The error of a failed rotation; returned once.
    pub(super) fn take_rotation_error(&mut self) -> Option<io::Error> {
        self.rotation_error.take()
    }

    /// Locks the open file, unless the lock stays taken until the time `until`.
    fn lock(&mut self, until: Instant) {
        while !self.is_locked {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => (self.is_locked, self.is_lock_contended) = (true, false),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if !self.is_lock_contended && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => {
                    self.is_lock_contended = true;
                    return;
                }
            }
        }
    }

    /// Whether the path still names the open file; true if this process cannot tell.
    fn is_current(&self) -> bool {
        let id = |meta: &Metadata| (meta.dev(), meta.ino());
        match (std::fs::symlink_metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(own)) => id(&there) == id(&own),
            (Err(error), _) => error.kind() != ErrorKind::NotFound,
            (_, Err(_)) => true,
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        // Never follow a link or open a pipe that has replaced the file.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).custom_flags(flags);
        let file = options.open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.end_line();
        self.file = file;
        self.redirect_stderr();
        Ok(())
    }

    /// Uses a separate open file: child programs inherit standard error, and would otherwise share
    /// the lock.
    fn redirect_stderr(&self) {
        if self.is_stderr
            && let Ok(file) = OpenOptions::new().append(true).open(&self.path)
        {
            let _ = rustix::stdio::dup2_stderr(file);
        }
    }

    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    fn is_full(&self, line: usize) -> bool {
        let len = self.len();
        self.max_size > 0
            && len > 0
            && len.saturating_add(line as u64) > self.max_size
            && len >= self.retry_rotation_at
    }

    /// The path of the rotated file.
    fn rotated_path(&self) -> OsString {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        old
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(dir: &tempfile::TempDir, most: u64) -> LogFile {
        LogFile::open(&dir.path().join("log"), false).unwrap().with_max_size(most)
    }

    fn put(log: &mut LogFile, line: &str) -> bool {
        let is_another = log.begin_line(line.len());
        log.write_all(line.as_bytes()).unwrap();
        log.end_line();
        is_another
    }

    fn texts(dir: &tempfile::TempDir) -> [String; 2] {
        ["log.1", "log"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap_or_default())
    }

    #[test]
    fn a_full_log_is_kept_and_the_previous_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 8);
        let others = ["one\n", "two\n", "three\n", "four\n", "longer than a file\n", "six\n"]
            .map(|line| put(&mut log, line));
        assert_eq!(others, [false, false, true, true, true, true]);
        assert_eq!(texts(&dir), ["longer than a file\n", "six\n"]);
        let mode = fs::metadata(dir.path().join("log")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn one_process_rotates_and_the_other_follows() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = log(&dir, 8);
        let mut other = log(&dir, 8);
        put(&mut one, "a one\n");
        put(&mut other, "b\n");
        assert!(put(&mut one, "c one\n") && put(&mut other, "d\n"));
        assert_eq!(texts(&dir), ["a one\nb\n", "c one\nd\n"]);
    }

    /// flock(2) locks belong to an open file: two of them in one process act like two processes.
    #[test]
    fn no_line_is_lost_or_doubled_while_two_writers_rotate() {
        const LINES: usize = 5000;
        const MOST: u64 = 512;
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("log.1");
        let write = |name: char| {
            let mut log = log(&dir, MOST);
            let old = old.clone();
            move || {
                let mut rotations = 0;
                for number in 0..LINES {
                    let line = format!("{name} {number}\n");
                    if log.begin_line(line.len()) {
                        // Only full files are rotated.
                        let size = fs::metadata(&old).unwrap().len();
                        assert!((MOST - 16..=MOST).contains(&size), "{size}");
                        rotations += 1;
                    }
                    log.write_all(line.as_bytes()).unwrap();
                    log.end_line();
                }
                rotations
            }
        };
        let rotations: usize = std::thread::scope(|scope| {
            let writers = ['a', 'b'].map(|name| scope.spawn(write(name)));
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert!(rotations > 100, "{rotations}");
        // The files keep the last lines of each writer, without a gap.
        let text = texts(&dir).concat();
        for name in ['a', 'b'] {
            let number = |line: &str| line.strip_prefix(name)?.trim().parse::<usize>().ok();
            let left: Vec<usize> = text.lines().filter_map(number).collect();
            let first = left.first().copied().unwrap_or(LINES);
            assert_eq!(left, (first..LINES).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn the_log_is_not_rotated_within_another_writers_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = log(&dir, 8);
        let mut other = log(&dir, 8);
        put(&mut one, "one\n");
        one.begin_line(4);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| put(&mut other, "other\n"));
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(texts(&dir), ["", "one\n"]);
            one.write_all(b"two\n").unwrap();
            one.end_line();
            other.join().unwrap();
        });
        assert_eq!(texts(&dir).concat(), "one\ntwo\nother\n");
    }

    #[test]
    fn a_moved_or_removed_log_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 0);
        put(&mut log, "one\n");
        // As logrotate(8) does.
        fs::rename(dir.path().join("log"), dir.path().join("log.1")).unwrap();
        assert!(put(&mut log, "two\n") && !put(&mut log, "three\n"));
        assert_eq!(texts(&dir), ["one\n", "two\nthree\n"]);
        fs::remove_file(dir.path().join("log")).unwrap();
        assert!(put(&mut log, "four\n"));
        assert_eq!(texts(&dir)[1], "four\n");
    }

    #[test]
    fn a_log_that_cannot_rotate_grows_and_warns() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("log.1/in-the-way")).unwrap();
        let mut log = log(&dir, 8);
        let mut put = |line: &str| {
            assert!(!super::tests::put(&mut log, line));
            log.take_rotation_error().is_some()
        };
        let lines = ["one\n", "two\n", "three\n", "four\n", "five\n"];
        assert_eq!(lines.map(&mut put), [false, false, true, false, true]);
        assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), lines.concat());
    }
}
