//! Writes log lines, and counts those that could not be written.
//!
//! A line that fails, for want of space or by an error of the disk, holds nothing up: it
//! is counted, and with the next line that can be written the log says how many were
//! lost, and why. A line of which only a part was written is lost, too; the next one
//! begins on a line of its own.
//!
//! *Invariant:* every lost line is in [`LogReading::lines_lost`] at once, and in the log
//! as soon as it can be written, by [`finish`] at the latest.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::file::LogFile;
use super::limit::TARGET;

/// How the log does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReading {
    /// Lines that could not be written since the daemon started.
    pub lines_lost: u64,
    /// Why the last of them could not.
    pub error: Option<String>,
}

/// The log of this process, which systemd's journal does not go through.
static LINES: OnceLock<Lines> = OnceLock::new();

thread_local! {
    /// How many lost lines the line reports that this thread writes.
    static REPORTS: Cell<u64> = const { Cell::new(0) };
}

/// Where lines go.
struct Lines {
    out: Mutex<Out>,
    // Apart from `out`, which is locked for as long as a write takes.
    lost: AtomicU64,
    error: Mutex<Option<String>>,
}

struct Out {
    to: To,
    /// The last line has no end.
    is_cut: bool,
    /// Lost lines that no line reports.
    unreported: u64,
}

enum To {
    File(LogFile),
    /// Standard error.
    Other(Box<dyn Write + Send>),
}

impl Lines {
    fn new(to: To, is_cut: bool) -> Self {
        let out = Mutex::new(Out { to, is_cut, unreported: 0 });
        Self { out, lost: AtomicU64::default(), error: Mutex::default() }
    }

    /// Writes a line that reports so many lost lines, mostly 0. Returns how many lost
    /// lines the caller has to report in the next line.
    fn put(&self, line: &[u8], reports: u64) -> u64 {
        let mut out = self.out.lock();
        match out.write(line) {
            Ok(()) if reports == 0 => std::mem::take(&mut out.unreported),
            Ok(()) => 0,
            Err(error) => {
                // A report that is lost is made again, and is no lost line itself.
                let lost = u64::from(reports == 0);
                out.unreported += reports + lost;
                self.lost.fetch_add(lost, Relaxed);
                *self.error.lock() = Some(error.to_string());
                0
            }
        }
    }

    /// Why the log could not be rotated, once.
    fn take_trouble(&self) -> Option<io::Error> {
        match &mut self.out.lock().to {
            To::File(file) => file.take_trouble(),
            To::Other(_) => None,
        }
    }

    fn reading(&self) -> LogReading {
        LogReading { lines_lost: self.lost.load(Relaxed), error: self.error.lock().clone() }
    }
}

impl Out {
    /// Writes a whole line, or fails.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let To::File(file) = &mut self.to else { return self.write_whole(line) };
        if file.begin(line.len()) {
            self.is_cut = is_cut(file.file());
        }
        let written = self.write_whole(line);
        if let To::File(file) = &mut self.to {
            file.end();
        }
        written
    }

    fn write_whole(&mut self, line: &[u8]) -> io::Result<()> {
        let to: &mut dyn Write = match &mut self.to {
            To::File(file) => file,
            To::Other(other) => other,
        };
        if self.is_cut {
            to.write_all(b"\n")?;
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.is_cut = !rest.is_empty();
        }
        Ok(())
    }
}

/// Runs work under the daemon's own credentials; false where it cannot. The thread that logs
/// may have a caller's, which must neither keep it from opening the log nor own a new one.
pub type AsDaemon = fn(&mut dyn FnMut()) -> bool;

/// One line, which tracing writes in one piece.
pub(super) struct Line(&'static Lines, AsDaemon);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut unreported = 0;
        let mut put = || unreported = self.0.put(line, REPORTS.get());
        if !(self.1)(&mut put) {
            put();
        }
        report(self.0, unreported);
        if let Some(error) = self.0.take_trouble() {
            tracing::warn!(target: TARGET, %error, "the log cannot be rotated, and grows");
        }
        // The caller would drop an error.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines go to `file`, or to standard error.
pub(super) fn to(
    file: Option<LogFile>,
    as_daemon: AsDaemon,
) -> impl Fn() -> Line + Send + Sync + 'static {
    let lines = LINES.get_or_init(|| match file {
        Some(log) => {
            let is_cut = is_cut(log.file());
            Lines::new(To::File(log), is_cut)
        }
        None => Lines::new(To::Other(Box::new(io::stderr())), is_cut(&io::stderr())),
    });
    move || Line(lines, as_daemon)
}

/// Whether a file ends within a line: the daemon before this one may have found it full.
fn is_cut(file: &impl AsRawFd) -> bool {
    let last = || {
        // The descriptor itself may only be appended to.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_file = std::fs::metadata(&path).ok()?.is_file();
        let file = is_file.then(|| File::open(&path).ok())??;
        let end = file.metadata().ok()?.len().checked_sub(1)?;
        let mut last = [0];
        file.read_exact_at(&mut last, end).ok()?;
        Some(last)
    };
    last().is_some_and(|last| last != *b"\n")
}

/// How the log does.
pub fn reading() -> LogReading {
    LINES.get().map(Lines::reading).unwrap_or_default()
}

/// Reports what was lost and not reported yet.
pub(super) fn finish() {
    let Some(lines) = LINES.get() else { return };
    let unreported = std::mem::take(&mut lines.out.lock().unreported);
    report(lines, unreported);
}

fn report(lines: &Lines, unreported: u64) {
    if unreported == 0 {
        return;
    }
    let error = lines.reading().error.unwrap_or_default();
    REPORTS.set(unreported);
    tracing::warn!(target: TARGET, lost = unreported, error, "{unreported} log lines were lost");
    REPORTS.set(0);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A disk with room for so many bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock();
            let (content, room) = &mut *disk;
            if *room == 0 {
                return Err(io::Error::from_raw_os_error(28));
            }
            let written = bytes.len().min(*room);
            *room -= written;
            content.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Disk {
        fn free(&self, room: usize) {
            self.0.lock().1 = room;
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().0.clone()).unwrap()
        }
    }

    #[test]
    fn lost_lines_are_counted_and_reported_once() {
        let disk = Disk::default();
        let lines = Lines::new(To::Other(Box::new(disk.clone())), false);
        disk.free(8);
        assert_eq!(lines.put(b"one\n", 0), 0);
        assert_eq!(lines.reading(), LogReading::default());
        assert_eq!(["two is cut\n", "three\n"].map(|line| lines.put(line.as_bytes(), 0)), [0, 0]);
        let LogReading { lines_lost, error } = lines.reading();
        assert_eq!(
            (lines_lost, error.as_deref()),
            (2, Some("No space left on device (os error 28)"))
        );
        disk.free(1);
        assert_eq!(lines.put(b"only its beginning fits\n", 0), 0);
        disk.free(5);
        assert_eq!(lines.put(b"four\n", 0), 3);
        // The report finds no room, and is made with the next line.
        assert_eq!(lines.put(b"3 lost\n", 3), 0);
        assert_eq!(lines.reading().lines_lost, 3);
        disk.free(100);
        assert_eq!(lines.put(b"five\n", 0), 3);
        assert_eq!(lines.put(b"3 lost\n", 3), 0);
        assert_eq!(lines.put(b"six\n", 0), 0);
        assert_eq!(disk.text(), "one\ntwo \nfour\nfive\n3 lost\nsix\n");
    }

    #[test]
    fn what_another_daemon_has_left_within_a_line_is_ended() {
        let disk = Disk::default();
        disk.free(100);
        let mut file = tempfile::tempfile().unwrap();
        assert!(!is_cut(&file));
        file.write_all(b"whole\n").unwrap();
        assert!(!is_cut(&file));
        file.write_all(b"ha").unwrap();
        assert!(is_cut(&file));
        Lines::new(To::Other(Box::new(disk.clone())), true).put(b"next\n", 0);
        assert_eq!(disk.text(), "\nnext\n");
    }
}
