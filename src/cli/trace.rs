//! `fanfs trace`: shows or records each read of a mounted volume.
//!
//! The daemon sends one line for each event ([`crate::telemetry::trace`]) until this command hangs
//! up. After a handover this command connects to the next daemon of the mount.

mod render;
mod summary;
mod unread;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::cancellation::{Cancellation, print_message};
use super::{CommandResult, Failure, mount_lookup, printable, volume};
use crate::config::units::Time;
use crate::control;
use crate::telemetry::trace::TraceLine;
use render::TraceRenderer;
use summary::Summary;

/// Arguments of `fanfs trace`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs trace /genomes
  fanfs trace /genomes --segments --reads 1000
  fanfs trace /genomes --output reads.jsonl --duration 30s
  fanfs simulate config/scenarios/mapr-r3.toml --trace reads.jsonl

A line is printed when its read is answered. A trace does not delay reads: events that it does not \
receive in time are dropped and counted. A trace contains file names. docs/TRACE.md describes the \
labels and the format of a recording.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// Record to this new file, with mode 0600, instead of showing the reads: one line of JSON for
    /// each read and each segment; `fanfs simulate --trace` replays it
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite FILE if it exists
    #[arg(long, requires = "output")]
    force: bool,
    /// Print JSON, in the format of a recording
    #[arg(long)]
    json: bool,
    /// Also show segments, including readahead and failed attempts
    #[arg(long)]
    segments: bool,
    /// Stop after this time [default: until Ctrl-C]
    #[arg(long, value_name = "TIME")]
    duration: Option<Time>,
    /// Stop after this number of reads
    #[arg(long, value_name = "COUNT")]
    reads: Option<u64>,
}

/// How often the conditions to stop are checked while no line arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The most connections in a row, [`POLL_INTERVAL`] apart, on which a daemon hangs up before it
/// sends a line. A daemon that is about to exit does that.
const MAX_SILENT_CONNECTS: u32 = 10;

/// How long to wait for the next daemon of a mount to listen.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    let point = volume::mount_point(&args.volume)?;
    let socket = control::socket_path(&point);
    let mut lines = TraceConnection::connect(&socket)
        .map_err(|error| mount_lookup::status_error(&point, &error))?;
    let mut to = TraceSink::new(args)?;
    let mut summary = Summary::default();
    // A duration beyond the range of the clock means no limit.
    let until = args.duration.and_then(|time| Instant::now().checked_add(time.0));
    let mut silent_connects = 0;
    let enough = |summary: &Summary| args.reads.is_some_and(|reads| summary.reads() >= reads);
    while !audience.is_canceled()
        && until.is_none_or(|until| Instant::now() < until)
        && !enough(&summary)
    {
        match lines.next_item() {
            Ok(StreamItem::Line(line)) => {
                let parsed = parse_line(&line)
                    .map_err(|error| Failure::failed(format!("{}: {error}", point.display())))?;
                silent_connects = 0;
                summary.add(&parsed);
                match to.write_line(&line, &parsed, &summary) {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                    Err(_) if audience.is_canceled() => break,
                    put => put.map_err(|error| to.write_failure(&error))?,
                }
            }
            Ok(StreamItem::Timeout) => to.flush()?,
            Ok(StreamItem::End) => {
                if !lines.has_received {
                    silent_connects += 1;
                    std::thread::sleep(POLL_INTERVAL);
                }
                if silent_connects == MAX_SILENT_CONNECTS {
                    let what = "the daemon closes the connection and sends no trace; see its log";
                    return Err(Failure::failed(format!("{}: {what}", point.display())));
                }
                let Some(next) = reconnect(&socket) else {
                    let point = printable(&point.to_string_lossy());
                    print_message(&format!("fanfs: {point} is no longer mounted"));
                    summary.on_daemon_end();
                    break;
                };
                lines = next;
            }
            Err(error) => return Err(Failure::failed(format!("{}: {error}", point.display()))),
        }
    }
    to.flush()?;
    to.clear_progress();
    print_message(summary.to_string().trim_end());
    Ok(ExitCode::SUCCESS)
}

/// A line from the daemon that is not part of a trace.
#[derive(Debug, thiserror::Error)]
enum TraceLineError {
    /// The daemon refuses the request.
    #[error("{0}")]
    Refused(String),
    #[error("cannot parse the daemon's line {line:?}: {error}")]
    Malformed { line: String, error: serde_json::Error },
}

fn parse_line(line: &str) -> Result<TraceLine, TraceLineError> {
    serde_json::from_str(line).map_err(|error| match control::error_response(line) {
        Some(refusal) => TraceLineError::Refused(refusal),
        None => TraceLineError::Malformed { line: line.to_owned(), error },
    })
}

/// Connects to the next daemon of the mount, if there is one.
fn reconnect(socket: &Path) -> Option<TraceConnection> {
    let until = Instant::now() + RECONNECT_TIMEOUT;
    while Instant::now() < until {
        if let Ok(lines) = TraceConnection::connect(socket) {
            return Some(lines);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    None
}

/// A connection on which a daemon sends lines.
struct TraceConnection {
    stream: BufReader<UnixStream>,
    /// The received part of a line.
    line: Vec<u8>,
    /// Whether a line has been received.
    has_received: bool,
}

enum StreamItem {
    Line(String),
    /// No line arrived within [`POLL_INTERVAL`].
    Timeout,
    End,
}

impl TraceConnection {
    fn connect(socket: &Path) -> io::Result<Self> {
        let stream = control::open_trace(socket)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let stream = BufReader::with_capacity(1 << 16, stream);
        Ok(Self { stream, line: Vec::new(), has_received: false })
    }

    fn next_item(&mut self) -> io::Result<StreamItem> {
        match self.stream.read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.ends_with(b"\n") => {
                let line = std::mem::take(&mut self.line);
                self.has_received = true;
                Ok(StreamItem::Line(String::from_utf8_lossy(&line[..line.len() - 1]).into_owned()))
            }
            Ok(_) => Ok(StreamItem::End),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(StreamItem::Timeout)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(StreamItem::End),
            Err(error) => Err(error),
        }
    }
}

/// Creates a recording. It contains file names, so only its owner may read it.
fn create_recording(path: &Path, force: bool) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).create_new(!force).mode(0o600);
    options.open(path).map_err(|error| {
        let path = path.display();
        Failure::failed(match error.kind() {
            ErrorKind::AlreadyExists => {
                format!("{path} exists; choose another file, or use --force")
            }
            _ => format!("cannot create {path}: {error}"),
        })
    })
}

/// The output of a trace.
struct TraceSink {
    out: Box<dyn Write>,
    name: String,
    /// Renders lines for people; `None` if lines are written as received.
    renderer: Option<TraceRenderer>,
    progress: Option<ProgressBar>,
}

impl TraceSink {
    fn new(args: &Args) -> Result<Self, Failure> {
        let show = !args.json && args.output.is_none();
        let (out, name): (Box<dyn Write>, _) = match &args.output {
            Some(path) => {
                let file = create_recording(path, args.force)?;
                (Box::new(BufWriter::with_capacity(1 << 16, file)), path.display().to_string())
            }
            None => (Box::new(BufWriter::new(io::stdout())), "standard output".to_owned()),
        };
        let progress = args.output.as_ref().filter(|_| io::stderr().is_terminal()).map(|_| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(POLL_INTERVAL);
            bar
        });
        Ok(Self { out, name, renderer: show.then(|| TraceRenderer::new(args.segments)), progress })
    }

    fn write_line(&mut self, line: &str, parsed: &TraceLine, summary: &Summary) -> io::Result<()> {
        if let Some(bar) = &self.progress {
            bar.set_message(summary.one_line());
        }
        match &mut self.renderer {
            None => writeln!(self.out, "{line}"),
            Some(show) => match show.render_line(parsed) {
                Some(text) => writeln!(self.out, "{text}"),
                None => Ok(()),
            },
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        match self.out.flush() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(self.write_failure(&error)),
            _ => Ok(()),
        }
    }

    fn write_failure(&self, error: &io::Error) -> Failure {
        Failure::failed(format!("cannot write to {}: {error}", self.name))
    }

    fn clear_progress(&self) {
        if let Some(bar) = &self.progress {
            bar.finish_and_clear();
        }
    }
}
