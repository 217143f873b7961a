//! Whether pinning a subtree speeds up creating files in it: two replicas over one tree, the second
//! slower by a fixed delay, and either of them the write replica.
//!
//! `cargo bench --bench creates -- [FILES] [DELAY]` makes that number of files in eight
//! directories, with eight threads, for each row; needs root, or fusermount3. Every row includes
//! the kernel's share, so compare rows, not machines.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Backend, DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::volume::ReplicaMap;

const FILES: u64 = 100_000;
const DELAY: Duration = Duration::from_micros(250);
const THREADS: u64 = 8;

fn main() {
    // `cargo bench` passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let files = words.first().map_or(FILES, |word| word.parse().expect("a number of files"));
    let delay = words.get(1).map_or(DELAY, |word| humantime::parse_duration(word).expect("a time"));
    let slower = humantime::format_duration(delay);
    println!("{files} creates, {THREADS} threads, r2 slower by {slower}\n");
    println!("| write replica | rule | creates/s | to the first row |");
    println!("|---|---|---:|---:|");
    let mut first = None;
    for (writer, rule) in
        [("r1", None), ("r1", Some("r1")), ("r1", Some("r2")), ("r2", None), ("r2", Some("r1"))]
    {
        let rate = row(files, delay, writer, rule);
        let first = *first.get_or_insert(rate);
        let rule = rule.map_or("none".to_owned(), |rule| format!("pinned to {rule}"));
        println!("| {writer} | {rule} | {rate:.0} | {:.2} |", rate / first);
    }
}

/// Creates per second.
fn row(files: u64, delay: Duration, writer: &str, rule: Option<&str>) -> f64 {
    let room = tempfile::Builder::new().prefix("fanfs-bench-").tempdir().unwrap();
    for thread in 0..THREADS {
        fs::create_dir_all(room.path().join(format!("tree/{thread}"))).unwrap();
    }
    fs::create_dir(room.path().join("mnt")).unwrap();
    let rule = rule.map_or(String::new(), |rule| {
        format!("[[affinity]]\npath = \"/**\"\nreplica = \"{rule}\"\n")
    });
    let text = format!(
        "[volume]\nname = \"bench\"\nmode = \"shared\"\naccess = \"rw\"\n\
         [[replica]]\npath = \"/bench/r1\"\n[[replica]]\npath = \"/bench/r2\"\n\
         [write]\nreplica = \"{writer}\"\n{rule}"
    );
    let config = config::parse(&text, Path::new("bench")).unwrap();
    let (quick, slow) = (Arc::new(FaultScript::default()), Arc::new(FaultScript::default()));
    for op in [FaultOp::Metadata, FaultOp::Open, FaultOp::Mutation] {
        slow.add(FaultRule::always(op, Fault::Delay(delay)));
    }
    let backends = [quick, slow].map(|script| {
        let tree = DirBackend::open(&room.path().join("tree")).unwrap();
        Arc::new(FaultInjector::new(tree, script)) as Arc<dyn Backend>
    });
    let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
    let at = room.path().join("mnt");
    let mount =
        Mount::start_with_backends(config, ReplicaMap::from_iter(backends), &at, &extra).unwrap();
    let next = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (at, next) = (&at, &next);
            scope.spawn(move || {
                loop {
                    let file = next.fetch_add(1, Ordering::Relaxed);
                    if file >= files {
                        return;
                    }
                    File::create_new(at.join(format!("{thread}/{file}"))).unwrap();
                }
            });
        }
    });
    let rate = files as f64 / started.elapsed().as_secs_f64();
    assert_eq!(mount.status().counters.changes, files);
    mount.stop().unwrap();
    rate
}
