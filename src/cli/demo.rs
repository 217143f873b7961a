//! `fanfs demo`: shows the speedup on replicas that it creates itself.
//!
//! All replicas show one directory, each through a rate limit of its own, like a `shared` volume
//! over N gateways. One reader reads one file through a real mount over one of them, over two,
//! and over all.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::cancellation::{self, Cancellation};
use super::{CommandResult, Failure, print_result, to_json};
use crate::backend::{Backend, DirBackend, RateLimited};
use crate::config;
use crate::config::units::{Rate, Size};
use crate::daemon::{Mount, MountOverrides};
use crate::format::{format_percent, to_mib};
use crate::volume::{MAX_REPLICAS, ReplicaMap};

/// Arguments of `fanfs demo`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs demo creates a file and a mount point in --dir. All replicas show that one directory, each \
through a rate limit of its own, like N gateways of one cluster. One reader reads the file through \
a mount over one replica, over two, and over all; the demo checks each byte that it reads. It \
removes everything at the end, also when it is interrupted.

Examples:
  fanfs demo --replicas 4 --rate 50MiB/s
  fanfs demo --size 128MiB --dir /dev/shm        where /tmp has little space

Exit status: 0 done; 1 failed; 2 wrong usage; 130 interrupted.")]
pub(super) struct Args {
    /// How many replicas to create
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=MAX_REPLICAS as i64))]
    replicas: u8,
    /// The bandwidth of each replica
    #[arg(long, default_value = "100MiB/s")]
    rate: Rate,
    /// The size of the file
    #[arg(long, default_value = "512MiB")]
    size: Size,
    /// The directory for the file and the mount point during the demo [default: $TMPDIR or /tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of the table.
#[derive(Serialize)]
struct DemoRow {
    replicas: usize,
    seconds: f64,
    mib_per_second: f64,
    /// The speedup: the rate divided by that of one replica.
    ratio: f64,
    /// Each replica's share of the bytes, 0 to 1.
    shares: Vec<f64>,
}

/// The size of the reader's requests, bytes.
const BLOCK: usize = 1 << 20;

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    let interrupted = audience.flag();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let room = tempfile::Builder::new().prefix("fanfs-demo-").tempdir_in(&parent);
    // The directory and everything in it are removed whenever this function returns.
    let room = room.map_err(|e| {
        Failure::failed(format!("cannot create a directory in {}: {e}", parent.display()))
    })?;
    match run_demo(args, room.path(), interrupted) {
        Ok(rows) => print_report(args, &rows),
        Err(_) if interrupted.load(Ordering::Relaxed) => {
            Ok(ExitCode::from(cancellation::INTERRUPTED_STATUS))
        }
        Err(failure) => Err(failure),
    }
}

fn run_demo(args: &Args, room: &Path, interrupted: &AtomicBool) -> Result<Vec<DemoRow>, Failure> {
    let tree = room.join("tree");
    let mount_point = room.join("mnt");
    for dir in [&tree, &mount_point] {
        std::fs::create_dir(dir).map_err(|e| Failure::failed(format!("{}: {e}", dir.display())))?;
    }
    if !args.json {
        print_result(&format!(
            "{} replicas of {} each; one reader reads a file of {} through more and more of them\n",
            args.replicas, args.rate, args.size
        ))?;
    }
    let bar = progress("creating the file", args.size.0);
    let expected = make_file(&tree.join("data"), args.size.0, &bar, interrupted);
    let expected = expected.map_err(|e| Failure::failed(format!("{}: {e}", tree.display())))?;
    bar.finish_and_clear();
    let demo = Demo { args, tree: &tree, mount_point: &mount_point, expected, interrupted };
    let mut rows: Vec<DemoRow> = Vec::new();
    let mut counts = vec![1, 2, usize::from(args.replicas)];
    counts.retain(|n| *n <= usize::from(args.replicas));
    counts.dedup();
    for n in counts {
        let mut row = demo.measure(n)?;
        row.ratio = rows.first().map_or(1.0, |one| row.mib_per_second / one.mib_per_second);
        rows.push(row);
    }
    Ok(rows)
}

/// The file, and the hash that a reader must get.
struct Demo<'a> {
    args: &'a Args,
    /// The directory of the file, which all replicas show.
    tree: &'a Path,
    mount_point: &'a Path,
    /// The hash of the file's bytes.
    expected: blake3::Hash,
    interrupted: &'a AtomicBool,
}

impl Demo<'_> {
    /// Reads the file through a mount over `n` replicas.
    fn measure(&self, n: usize) -> Result<DemoRow, Failure> {
        let backend = |_| {
            let directory = DirBackend::open(self.tree).map_err(Failure::failed)?;
            Ok(Arc::new(RateLimited::new(directory, self.args.rate.0)) as Arc<dyn Backend>)
        };
        let backends = (0..n).map(backend).collect::<Result<ReplicaMap<_>, Failure>>()?;
        let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
        let mount = Mount::start_with_backends(demo_config(n)?, backends, self.mount_point, &extra)
            .map_err(Failure::failed)?;
        let size = self.args.size.0;
        let bar = progress(&format!("reading through {n}"), size);
        let started = Instant::now();
        let read = read_all(&self.mount_point.join("data"), &bar, self.interrupted);
        let took = started.elapsed();
        bar.finish_and_clear();
        let status = mount.status();
        mount.stop().map_err(Failure::failed)?;
        let got =
            read.map_err(|e| Failure::failed(format!("reading through {n} replicas: {e}")))?;
        if got != self.expected {
            return Err(Failure::failed(format!(
                "reading through {n} replicas returned bytes that differ from those written"
            )));
        }
        let total: u64 = status.replicas.iter().map(|replica| replica.counters.bytes).sum();
        let share = |bytes: u64| bytes as f64 / total.max(1) as f64;
        Ok(DemoRow {
            replicas: n,
            seconds: took.as_secs_f64(),
            mib_per_second: to_mib(size) / took.as_secs_f64(),
            ratio: 1.0,
            shares: status.replicas.iter().map(|replica| share(replica.counters.bytes)).collect(),
        })
    }
}

/// The configuration of a volume of `n` replicas. fanfs does not use its paths: the backends
/// are already open.
fn demo_config(n: usize) -> Result<config::Config, Failure> {
    let mut text = "[volume]\nname = \"demo\"\nmode = \"shared\"\n".to_owned();
    for i in 1..=n {
        text.push_str(&format!("[[replica]]\npath = \"/demo/r{i}\"\n"));
    }
    config::parse(&text, Path::new("demo")).map_err(Failure::failed)
}

fn make_file(
    path: &Path,
    size: u64,
    bar: &ProgressBar,
    interrupted: &AtomicBool,
) -> io::Result<blake3::Hash> {
    let mut file = File::create(path)?;
    let mut content = blake3::Hasher::new_derive_key("fanfs demo data").finalize_xof();
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK];
    let mut left = size;
    while left > 0 {
        check_interrupted(interrupted)?;
        let n = left.min(BLOCK as u64) as usize;
        content.fill(&mut block[..n]);
        hasher.update(&block[..n]);
        file.write_all(&block[..n])?;
        bar.inc(n as u64);
        left -= n as u64;
    }
    Ok(hasher.finalize())
}

fn read_all(path: &Path, bar: &ProgressBar, interrupted: &AtomicBool) -> io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK];
    loop {
        check_interrupted(interrupted)?;
        match file.read(&mut block)? {
            0 => return Ok(hasher.finalize()),
            n => {
                hasher.update(&block[..n]);
                bar.inc(n as u64);
            }
        }
    }
}

fn check_interrupted(interrupted: &AtomicBool) -> io::Result<()> {
    if interrupted.load(Ordering::Relaxed) {
        return Err(io::Error::from(io::ErrorKind::Interrupted));
    }
    Ok(())
}

fn progress(what: &str, bytes: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{msg:20} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(bytes).with_style(style).with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn print_report(args: &Args, rows: &[DemoRow]) -> CommandResult {
    if args.json {
        return print_result(&to_json(&rows)?);
    }
    let mut text = "\n  replicas   MiB/s speedup   share of each replica\n".to_owned();
    for row in rows {
        let shares: Vec<_> = row.shares.iter().map(|share| format_percent(*share)).collect();
        text.push_str(&format!(
            "  {:>8} {:>7.1} {:>7.2}   {}\n",
            row.replicas,
            row.mib_per_second,
            row.ratio,
            shares.join(" ")
        ));
    }
    text.push_str(
        "\nAll bytes were correct. Next: docs/CONFIGURATION.md, `fanfs check`, `fanfs mount`.\n",
    );
    print_result(&text)
}
