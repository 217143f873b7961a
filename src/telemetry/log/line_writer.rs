//! Writes log lines, and counts those that could not be written.
//!
//! A line that fails, for lack of space or because of a disk error, delays nothing: it is counted.
//! With the next line that can be written, the log reports how many lines were lost, and why. A
//! line that was written only in part is lost too; the next one begins on its own line.
//!
//! *Invariant:* every lost line is in [`LogSnapshot::lines_lost`] at once. The log reports it as
//! soon as a line can be written, by [`report_unreported`] at the latest.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::LogFile;
use super::throttle::TARGET;

/// The state of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogSnapshot {
    /// Lines that could not be written since the daemon started.
    pub lines_lost: u64,
    /// Why the last lost line could not be written.
    pub error: Option<String>,
}

/// The log of this process, unless it goes to systemd's journal.
static LOG_OUTPUT: OnceLock<LogOutput> = OnceLock::new();

thread_local! {
    /// The number of lost lines that the line being written by this thread reports.
    static LINES_REPORTED: Cell<u64> = const { Cell::new(0) };
}

/// The destination of log lines.
struct LogOutput {
    sink: Mutex<LineSink>,
    // Outside `sink`, whose lock is held while a line is written.
    lines_lost: AtomicU64,
    error: Mutex<Option<String>>,
}

struct LineSink {
    destination: Destination,
    /// The file ends within a line.
    ends_mid_line: bool,
    /// Lost lines that are not reported yet.
    unreported: u64,
}

enum Destination {
    File(LogFile),
    /// Standard error.
    Stream(Box<dyn Write + Send>),
}

impl LogOutput {
    fn new(to: Destination, is_cut: bool) -> Self {
        let out = Mutex::new(LineSink { destination: to, ends_mid_line: is_cut, unreported: 0 });
        Self { sink: out, lines_lost: AtomicU64::default(), error: Mutex::default() }
    }

    /// Writes a line that itself reports `reports` lost lines (usually 0). Returns how many lost
    /// lines the caller must report in the next line.
    fn write_line(&self, line: &[u8], reports: u64) -> u64 {
        let mut out = self.sink.lock();
        match out.write(line) {
            Ok(()) if reports == 0 => std::mem::take(&mut out.unreported),
            Ok(()) => 0,
            Err(error) => {
                // A lost report is repeated later, and does not count as a lost line.
                let lost = u64::from(reports == 0);
                out.unreported += reports + lost;
                self.lines_lost.fetch_add(lost, Relaxed);
                *self.error.lock() = Some(error.to_string());
                0
            }
        }
    }

    /// The error of a failed rotation; returned once.
    fn take_rotation_error(&self) -> Option<io::Error> {
        match &mut self.sink.lock().destination {
            Destination::File(file) => file.take_rotation_error(),
            Destination::Stream(_) => None,
        }
    }

    fn snapshot(&self) -> LogSnapshot {
        LogSnapshot { lines_lost: self.lines_lost.load(Relaxed), error: self.error.lock().clone() }
    }
}

impl LineSink {
    /// Writes a whole line, or fails.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let Destination::File(file) = &mut self.destination else { return self.write_whole(line) };
        if file.begin_line(line.len()) {
            self.ends_mid_line = ends_mid_line(file.file());
        }
        let written = self.write_whole(line);
        if let Destination::File(file) = &mut self.destination {
            file.end_line();
        }
        written
    }

    fn write_whole(&mut self, line: &[u8]) -> io::Result<()> {
        let to: &mut dyn Write = match &mut self.destination {
            Destination::File(file) => file,
            Destination::Stream(other) => other,
        };
        if self.ends_mid_line {
            to.write_all(b"\n")?;
            self.ends_mid_line = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.ends_mid_line = !rest.is_empty();
        }
        Ok(())
    }
}

/// Runs a closure under the daemon's own credentials; false if that is impossible. The logging
/// thread may have a caller's credentials. These must not prevent it from opening the log, nor own
/// a new log.
pub type RunAsDaemon = fn(&mut dyn FnMut()) -> bool;

/// Writes one line; tracing passes each line in one piece.
pub(super) struct LineWriter(&'static LogOutput, RunAsDaemon);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut unreported = 0;
        let mut put = || unreported = self.0.write_line(line, LINES_REPORTED.get());
        if !(self.1)(&mut put) {
            put();
        }
        report_lost_lines(self.0, unreported);
        if let Some(error) = self.0.take_rotation_error() {
            tracing::warn!(target: TARGET, %error, "cannot rotate the log, so it grows");
        }
        // The caller would ignore an error.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates the writer, to `file` or to standard error.
pub(super) fn make_writer(
    file: Option<LogFile>,
    as_daemon: RunAsDaemon,
) -> impl Fn() -> LineWriter + Send + Sync + 'static {
    let lines = LOG_OUTPUT.get_or_init(|| match file {
        Some(log) => {
            let is_cut = ends_mid_line(log.file());
            LogOutput::new(Destination::File(log), is_cut)
        }
        None => LogOutput::new(
            Destination::Stream(Box::new(io::stderr())),
            ends_mid_line(&io::stderr()),
        ),
    });
    move || LineWriter(lines, as_daemon)
}

/// Whether a file ends within a line: the previous daemon may have run out of space.
fn ends_mid_line(file: &impl AsRawFd) -> bool {
    let last = || {
        // The descriptor itself can only append.
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

/// The state of the log.
pub fn snapshot() -> LogSnapshot {
    LOG_OUTPUT.get().map(LogOutput::snapshot).unwrap_or_default()
}

/// Reports lost lines that are not reported yet.
pub(super) fn report_unreported() {
    let Some(lines) = LOG_OUTPUT.get() else { return };
    let unreported = std::mem::take(&mut lines.sink.lock().unreported);
    report_lost_lines(lines, unreported);
}

fn report_lost_lines(lines: &LogOutput, unreported: u64) {
    if unreported == 0 {
        return;
    }
    let error = lines.snapshot().error.unwrap_or_default();
    LINES_REPORTED.set(unreported);
    tracing::warn!(target: TARGET, lost = unreported, error, "{unreported} log lines were lost");
    LINES_REPORTED.set(0);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A disk with limited room, bytes.
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
        let lines = LogOutput::new(Destination::Stream(Box::new(disk.clone())), false);
        disk.free(8);
        assert_eq!(lines.write_line(b"one\n", 0), 0);
        assert_eq!(lines.snapshot(), LogSnapshot::default());
        assert_eq!(
            ["two is cut\n", "three\n"].map(|line| lines.write_line(line.as_bytes(), 0)),
            [0, 0]
        );
        let LogSnapshot { lines_lost, error } = lines.snapshot();
        assert_eq!(
            (lines_lost, error.as_deref()),
            (2, Some("No space left on device (os error 28)"))
        );
        disk.free(1);
        assert_eq!(lines.write_line(b"only its beginning fits\n", 0), 0);
        disk.free(5);
        assert_eq!(lines.write_line(b"four\n", 0), 3);
        // The report does not fit, and is repeated after the next line.
        assert_eq!(lines.write_line(b"3 lost\n", 3), 0);
        assert_eq!(lines.snapshot().lines_lost, 3);
        disk.free(100);
        assert_eq!(lines.write_line(b"five\n", 0), 3);
        assert_eq!(lines.write_line(b"3 lost\n", 3), 0);
        assert_eq!(lines.write_line(b"six\n", 0), 0);
        assert_eq!(disk.text(), "one\ntwo \nfour\nfive\n3 lost\nsix\n");
    }

    #[test]
    fn an_unfinished_line_of_another_daemon_is_ended() {
        let disk = Disk::default();
        disk.free(100);
        let mut file = tempfile::tempfile().unwrap();
        assert!(!ends_mid_line(&file));
        file.write_all(b"whole\n").unwrap();
        assert!(!ends_mid_line(&file));
        file.write_all(b"ha").unwrap();
        assert!(ends_mid_line(&file));
        LogOutput::new(Destination::Stream(Box::new(disk.clone())), true).write_line(b"next\n", 0);
        assert_eq!(disk.text(), "\nnext\n");
    }
}
