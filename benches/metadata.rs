//! Whether pinning a subtree's metadata is faster: two replicas over one tree, one of them slower
//! by a fixed delay, behind a real mount that caches no attributes.
//!
//! `cargo bench --bench metadata -- [CALLS] [DELAY]...` makes that number of calls (a stat, or an
//! open with its close) for each delay ("1ms", "50us") and row of the table; needs root, or
//! fusermount3. Every row includes the kernel's share, so compare rows, not machines.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Backend, DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::status::Status;
use fanfs::volume::ReplicaMap;

const FILES: usize = 1000;
const DIRECTORIES: usize = 20;
const THREADS: u64 = 8;
const CALLS: u64 = 20_000;
const DELAYS: [Duration; 3] =
    [Duration::from_micros(50), Duration::from_micros(250), Duration::from_millis(1)];

/// The longest duration of a row, for any number of calls.
const LONGEST: Duration = Duration::from_secs(30);

/// Replica 1 is fast here, and replica 2 slow.
const QUICK: &str = "[[affinity]]\npath = \"/**\"\nreplica = \"r1\"\n";
const SLOW: &str = "[[affinity]]\npath = \"/**\"\nreplica = \"r2\"\n";

fn main() {
    // `cargo bench` passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let calls = words.first().map_or(CALLS, |word| word.parse().expect("a number of calls"));
    let delays = words.iter().skip(1).map(|word| humantime::parse_duration(word).expect("a time"));
    let mut delays: Vec<Duration> = delays.collect();
    if delays.is_empty() {
        delays = DELAYS.to_vec();
    }
    let room = tempfile::Builder::new().prefix("fanfs-bench-").tempdir().unwrap();
    let (one, many) = trees(room.path());
    println!("{calls} calls, {THREADS} threads, {FILES} files\n");
    println!("| r2 is slower by | rule | calls/s | to spread | on r1 | on r2 | faster by status |");
    println!("|---|---|---:|---:|---:|---:|---|");
    for delay in delays {
        let rows = [
            ("spread, one directory", &one, ""),
            ("spread, 20 directories", &many, ""),
            ("pinned to r1, one directory", &one, QUICK),
            ("pinned to r2, one directory", &one, SLOW),
        ];
        let mut spread = None;
        for (name, files, rules) in rows {
            let (rate, status) = row(room.path(), files, rules, delay, calls);
            let spread = *spread.get_or_insert(rate);
            let [r1, r2] = [0, 1].map(|i| status.replicas[i].counters.metadata);
            let share = |n: u64| 100.0 * n as f64 / (r1 + r2).max(1) as f64;
            println!(
                "| {} | {name} | {rate:.0} | {:.2} | {:.0} % | {:.0} % | {} |",
                humantime::format_duration(delay),
                rate / spread,
                share(r1),
                share(r2),
                faster(&status),
            );
        }
    }
}

/// Files of one directory, and the same number in several, below the mount.
fn trees(room: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let make = |name: String| {
        let path = room.join("tree").join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
        room.join("mnt").join(name)
    };
    fs::create_dir(room.join("mnt")).unwrap();
    let one = (0..FILES).map(|i| make(format!("one/f{i}"))).collect();
    let many = (0..FILES).map(|i| make(format!("many/d{}/f{i}", i % DIRECTORIES))).collect();
    (one, many)
}

/// Calls per second, and the mount's status after them.
fn row(room: &Path, files: &[PathBuf], rules: &str, delay: Duration, calls: u64) -> (f64, Status) {
    let text = format!(
        "[volume]\nname = \"bench\"\nmode = \"shared\"\n\
         [[replica]]\npath = \"/bench/r1\"\n[[replica]]\npath = \"/bench/r2\"\n\
         [fuse]\nattribute_ttl = \"0s\"\n{rules}"
    );
    let config = config::parse(&text, Path::new("bench")).unwrap();
    let (quick, slow) = (Arc::new(FaultScript::default()), Arc::new(FaultScript::default()));
    for op in [FaultOp::Metadata, FaultOp::Open] {
        slow.add(FaultRule::always(op, Fault::Delay(delay)));
    }
    let backends = [quick, slow].map(|script| {
        let tree = DirBackend::open(&room.join("tree")).unwrap();
        Arc::new(FaultInjector::new(tree, script)) as Arc<dyn Backend>
    });
    let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
    let mount = Mount::start_with_backends(
        config,
        ReplicaMap::from_iter(backends),
        &room.join("mnt"),
        &extra,
    )
    .unwrap();
    // The replicas' latencies are learned from calls.
    work(files, calls / 10);
    let (made, took) = work(files, calls);
    let status = mount.status();
    mount.stop().unwrap();
    (made as f64 / took.as_secs_f64(), status)
}

/// Makes `calls` calls, or fewer if they take too long.
fn work(files: &[PathBuf], calls: u64) -> (u64, Duration) {
    let (next, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let call = next.fetch_add(1, Ordering::Relaxed);
                    if call >= calls || started.elapsed() > LONGEST {
                        return;
                    }
                    let path = &files[(call / 2) as usize % files.len()];
                    match call % 2 {
                        0 => drop(fs::metadata(path).unwrap()),
                        _ => drop(File::open(path).unwrap()),
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (made.into_inner(), started.elapsed())
}

fn faster(status: &Status) -> String {
    let Some(rule) = status.affinities.first() else { return "no rule".to_owned() };
    let times = format!("{} us against {} us", rule.times_us[0], rule.times_us[1]);
    match &rule.faster {
        Some(name) => format!("{name}: {times}"),
        None => format!("none: {times}"),
    }
}
