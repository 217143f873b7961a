//! `fanfs status`.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;

use super::{Failure, Outcome, absolute, say, to_json};
use crate::control::{self, Status};
use crate::scheduler::health::HealthState;

/// Arguments of `fanfs status`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the volume is mounted [default: all of this user's volumes]
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: Option<PathBuf>,
    /// Print JSON: one object with MOUNTPOINT, else an array
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Outcome {
    let found = match &args.mount_point {
        Some(path) => {
            let path = path.canonicalize().unwrap_or_else(|_| absolute(path));
            let status = control::ask_status(&control::socket_path(&path)).map_err(|error| {
                Failure::failed(match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        format!("no fanfs volume of this user is mounted at {}", path.display())
                    }
                    _ => format!("{}: {error}", path.display()),
                })
            })?;
            if args.json {
                return say(&to_json(&status)?);
            }
            vec![status]
        }
        None => {
            let sockets = control::sockets().map_err(Failure::failed)?;
            // One whose daemon was killed does not answer, and is no volume.
            sockets.iter().filter_map(|socket| control::ask_status(socket).ok()).collect()
        }
    };
    if args.json {
        return say(&to_json(&found)?);
    }
    if found.is_empty() {
        return say("no volume is mounted\n");
    }
    say(&found.iter().map(table).collect::<String>())
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn micros(us: u64) -> String {
    match us {
        0..=9_999 => format!("{us} us"),
        10_000..=9_999_999 => format!("{} ms", us / 1000),
        _ => format!("{} s", us / 1_000_000),
    }
}

/// Adds a line to a `String`, which cannot fail.
macro_rules! line {
    ($text:ident, $($arg:tt)*) => {{
        let _ = writeln!($text, $($arg)*);
    }};
}

/// One volume's state for people.
fn table(status: &Status) -> String {
    let mut text = String::new();
    let up = humantime::format_duration(std::time::Duration::from_secs(status.uptime_s));
    line!(
        text,
        "{} at {} ({}), pid {}, up {up}",
        status.volume,
        status.mount_point.display(),
        status.source.display(),
        status.pid
    );
    line!(
        text,
        "  {:<14} {:<8} {:>10} {:>12} {:>12} {:>11} {:>9} {:>9} {:>7} {:>6} {:>5}",
        "replica",
        "health",
        "bytes",
        "now /s",
        "expected /s",
        "in flight",
        "p50",
        "p99",
        "errors",
        "late",
        "busy"
    );
    for replica in &status.replicas {
        let health = match replica.health {
            HealthState::Healthy => "healthy",
            HealthState::Ejected => "ejected",
            HealthState::Probing => "probing",
        };
        line!(
            text,
            "  {:<14} {:<8} {:>10} {:>12} {:>12} {:>11} {:>9} {:>9} {:>7} {:>6} {:>5}",
            replica.name,
            health,
            size(replica.counters.bytes),
            size(replica.counters.bytes_per_second),
            size(replica.rate),
            size(replica.in_flight),
            micros(replica.counters.read_latency.p50_us),
            micros(replica.counters.read_latency.p99_us),
            replica.counters.errors,
            replica.counters.late,
            replica.busy_threads,
        );
    }
    let (c, g) = (&status.counters, &status.gauges);
    line!(
        text,
        "  delivered {} in {} reads ({} from memory, {} failed); {} metadata calls ({} failed over)",
        size(c.bytes_delivered),
        c.reads,
        c.buffer_hits,
        c.read_errors,
        c.metadata,
        c.metadata_failovers
    );
    line!(
        text,
        "  retries {}, hedges {}, wasted {}; buffers {} of {} in use, {} kept; {} open, {} inodes, {} requests waiting",
        c.retries,
        c.hedges,
        size(c.bytes_wasted),
        size(g.buffer_used),
        size(g.buffer_budget),
        size(g.buffer_idle),
        g.handles,
        g.inodes,
        g.requests
    );
    text
}
