//! Runs over trees that differ, hang, fail and change.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tempfile::TempDir;

use super::*;
use crate::backend::{DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript};
use crate::config::units::Share;

/// Three copies of a tree, and a fault script for each.
struct Copies {
    trees: Vec<TempDir>,
    scripts: Vec<Arc<FaultScript>>,
}

/// The result of a run.
#[derive(Debug, PartialEq)]
struct RunResult {
    differences: Vec<String>,
    not_compared: Vec<String>,
    absent: Vec<AbsentReplica>,
    totals: Totals,
}

impl Copies {
    fn new() -> Self {
        let trees = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        Self { trees, scripts: (0..3).map(|_| Arc::default()).collect() }
    }

    fn path(&self, i: usize, path: &str) -> PathBuf {
        self.trees[i].path().join(path)
    }

    /// Writes the same bytes with the same time to every copy.
    fn write(&self, path: &str, bytes: &[u8]) {
        for i in 0..3 {
            self.write_to(i, path, bytes);
        }
    }

    fn write_to(&self, i: usize, path: &str, bytes: &[u8]) {
        let path = self.path(i, path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let time = UNIX_TIME;
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }

    fn members(&self) -> Vec<ComparedReplica> {
        let member = |(i, tree): (usize, &TempDir)| ComparedReplica {
            name: format!("r{}", i + 1),
            backend: Ok(Arc::new(FaultInjector::new(
                DirBackend::open(tree.path()).unwrap(),
                Arc::clone(&self.scripts[i]),
            ))),
            max_rate: None,
        };
        self.trees.iter().enumerate().map(member).collect()
    }

    fn start(&self, options: &VerifyOptions, state: Option<Checkpoint>) -> Run {
        Run::start(options.clone(), self.members(), state).unwrap()
    }

    fn run(&self, options: &VerifyOptions) -> RunResult {
        let run = self.start(options, None);
        assert!(run.wait(Duration::from_secs(60)), "it does not end");
        assert!(run.is_complete());
        result(&run)
    }
}

const UNIX_TIME: std::time::SystemTime = std::time::UNIX_EPOCH;

fn result(run: &Run) -> RunResult {
    RunResult {
        differences: run.differences(0).iter().map(ToString::to_string).collect(),
        not_compared: run.not_compared(0).iter().map(ToString::to_string).collect(),
        absent: run.absent_replicas(),
        totals: run.totals(),
    }
}

fn options() -> VerifyOptions {
    VerifyOptions {
        volume: "v".into(),
        mode: VolumeMode::Copies,
        path: PathBuf::new(),
        coverage: Coverage::Full,
        seed: 1,
        ignore: Vec::new(),
        xattrs: false,
        jobs: 3,
        rate: None,
        deadline: Duration::from_secs(60),
        list_deadline: Duration::from_secs(60),
    }
}

#[test]
fn a_hung_replica_is_skipped_and_never_reported_as_differing() {
    let copies = Copies::new();
    for i in 0..200 {
        copies.write(&format!("d{}/f{i}", i % 7), b"the same");
    }
    copies.write_to(1, "d3/f3", b"the lame");
    // After the tree's root was examined.
    let hang = FaultRule { after: 12, ..FaultRule::always(FaultOp::Any, Fault::Hang) };
    copies.scripts[2].add(hang);
    let options = VerifyOptions { deadline: Duration::from_secs(2), ..options() };
    let began = Instant::now();
    let result = copies.run(&VerifyOptions { list_deadline: options.deadline, ..options });
    // A run costs one or two deadlines for each thread. One for each file would take 2 minutes.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(result.differences.len(), 1, "{:?}", result.differences);
    assert!(result.differences[0].starts_with("d3/f3: bytes 4..5 differ: "), "{result:?}");
    assert!(result.not_compared.iter().all(|line| line.contains("on r3: no answer in time")));
    assert!(result.totals.not_compared > 0 && result.totals.files == 200, "{result:?}");
    copies.scripts[2].heal();
}

#[test]
fn a_failed_replica_is_skipped_and_others_are_compared() {
    let copies = Copies::new();
    copies.write("bad", b"0123456789");
    copies.write("good", b"0123456789");
    copies.write_to(2, "bad", b"012x456789");
    copies.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO)));
    let result = copies.run(&options());
    assert_eq!(result.differences, ["bad: bytes 3..4 differ: r2, r3 differ"]);
    let failed = |name: &str| format!("{name}: not compared on r1: I/O error (os error 5)");
    assert_eq!(result.not_compared.len(), 2, "{result:?}");
    for (line, name) in result.not_compared.iter().zip(["bad", "good"]) {
        assert!(line.starts_with(&failed(name)[..name.len() + 20]), "{line}");
    }
}

#[test]
fn a_failed_listing_reports_nothing_missing() {
    let copies = Copies::new();
    copies.write("d/f", b"x");
    // The calls before are the root's attributes and listing, and the attributes of `d`; the
    // listing of `d` fails.
    let script = Arc::clone(&copies.scripts[1]);
    script.add(FaultRule {
        after: 5,
        ..FaultRule::always(FaultOp::Metadata, Fault::Errno(Errno::IO))
    });
    let result = copies.run(&VerifyOptions { jobs: 1, ..options() });
    assert_eq!(result.differences, [] as [String; 0]);
    assert!(!result.not_compared.is_empty());
    assert!(result.not_compared.iter().all(|line| line.contains("on r2: ")), "{result:?}");
}

#[test]
fn a_constantly_changing_file_is_not_a_difference() {
    let copies = Copies::new();
    copies.write("log", &vec![0; 4 << 20]);
    // Each read of the second copy waits until the first copy has changed.
    let held = FaultRule { count: 1, ..FaultRule::always(FaultOp::Read, Fault::Hang) };
    copies.scripts[1].add(held);
    let path = copies.path(0, "log");
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(&path).unwrap();
            let mut i = 0;
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                if !copies.scripts[1].is_exhausted() {
                    continue;
                }
                i += 1;
                // Within the same second, so the copies agree in size and time.
                let time = UNIX_TIME + Duration::from_nanos(i);
                std::os::unix::fs::FileExt::write_at(&file, b"x", i % 4096).unwrap();
                file.set_modified(time).unwrap();
                copies.scripts[1].replace(held);
            }
        });
        let ignore = vec![DifferenceKind::Mtime];
        let run = copies.start(&VerifyOptions { ignore, ..options() }, None);
        let is_over = run.wait(Duration::from_secs(60));
        done.store(true, Ordering::Relaxed);
        copies.scripts[1].heal();
        assert!(is_over, "it does not end");
        result(&run)
    });
    assert_eq!(result.differences, [] as [String; 0]);
    assert_eq!(
        result.not_compared,
        ["log: not compared on r1, r2, r3: it changed during the comparison"]
    );
}

#[test]
fn a_file_that_changes_once_is_compared_again() {
    let copies = Copies::new();
    copies.write("f", b"old");
    let first = FaultRule { count: 1, ..FaultRule::always(FaultOp::Read, Fault::Hang) };
    copies.scripts[1].add(first);
    let run = copies.start(&options(), None);
    assert!(!run.wait(Duration::from_millis(300)), "nothing hangs");
    copies.write("f", b"new");
    copies.scripts[1].heal();
    assert!(run.wait(Duration::from_secs(60)));
    let result = result(&run);
    assert_eq!((result.differences.len(), result.not_compared.len()), (0, 0), "{result:?}");
    assert_eq!(result.totals.files, 1);
}

/// A tree with nested directories and differences of most kinds.
fn varied_tree(seed: u64) -> Copies {
    let mut drawn = 0u64;
    let mut below = move |bound: u32| {
        drawn += 1;
        let hash = blake3::hash(format!("{seed} {drawn}").as_bytes());
        hash.as_bytes()[..4].iter().fold(0, |n: u32, byte| n << 8 | u32::from(*byte)) % bound
    };
    let copies = Copies::new();
    for i in 0..120 {
        let depth = below(4);
        let dirs: Vec<String> = (0..depth).map(|_| format!("d{}", below(3))).collect();
        let path = [&dirs.join("/"), "/", &format!("f{i}")].concat();
        let path = path.trim_start_matches('/');
        let size = if below(20) == 0 { 5 << 20 } else { below(5000) as usize };
        let mut content = vec![below(256) as u8; size];
        copies.write(path, &content);
        match below(8) {
            0 => fs::remove_file(copies.path(below(3) as usize, path)).unwrap(),
            1 if size > 0 => {
                content[size - 1] ^= 1;
                copies.write_to(below(3) as usize, path, &content);
            }
            2 => copies.write_to(below(3) as usize, path, &[&content[..], b"more"].concat()),
            _ => {}
        }
    }
    copies
}

#[test]
fn an_often_stopped_run_finds_the_same_differences() {
    for seed in 0..4 {
        let copies = varied_tree(seed);
        let reference = copies.run(&options());
        assert!(reference.differences.len() > 20, "{}", reference.differences.len());
        let slow = Fault::Delay(Duration::from_millis(1));
        copies.scripts[1].add(FaultRule::always(FaultOp::Any, slow));
        let mut state: Option<Checkpoint> = None;
        let mut stops = 0;
        let result = loop {
            let run = copies.start(&options(), state.take());
            let is_over = run.wait(Duration::from_millis(20 + 7 * stops % 60));
            run.stop();
            assert!(run.wait(Duration::from_secs(60)));
            if is_over {
                break result(&run);
            }
            // A round trip through JSON, as through a file.
            let text = serde_json::to_string(&run.checkpoint()).unwrap();
            state = Some(serde_json::from_str(&text).unwrap());
            stops += 1;
            assert!(stops < 1000, "it gets nowhere");
        };
        assert!(stops > 3, "stopped {stops} times");
        assert_eq!(result.differences, reference.differences, "seed {seed}");
        let counts = |t: &Totals| (t.objects, t.files, t.bytes, t.differences, t.not_compared);
        assert_eq!(counts(&result.totals), counts(&reference.totals), "seed {seed}");
    }
}

#[test]
fn verification_resumes_within_a_large_file() {
    let copies = Copies::new();
    copies.write("large", &vec![3; 20 << 20]);
    let mut other = vec![3; 20 << 20];
    other[5] = 4;
    copies.write_to(2, "large", &other);
    let once =
        FaultRule { within: None, after: 12, ..FaultRule::always(FaultOp::Read, Fault::Hang) };
    copies.scripts[0].add(once);
    let options = VerifyOptions { path: "large".into(), ..options() };
    let run = copies.start(&options, None);
    let until = Instant::now() + Duration::from_secs(60);
    while run.totals().bytes < 11 << 20 {
        assert!(Instant::now() < until, "{:?}", run.totals());
        std::thread::sleep(Duration::from_millis(5));
    }
    run.stop();
    assert!(run.wait(Duration::from_secs(60)));
    let state = run.checkpoint();
    copies.scripts[0].heal();
    let before = state.totals();
    assert!(before.bytes >= 11 << 20 && before.bytes < 20 << 20);
    let run = copies.start(&options, Some(state.clone()));
    assert!(run.wait(Duration::from_secs(60)));
    let totals = run.totals();
    assert_eq!((totals.bytes, totals.files), (20 << 20, 1));
    // Only the first block was read twice, to find the differing bytes.
    assert_eq!(totals.bytes_read, 3 * (21 << 20));
    assert_eq!(run.differences(0)[0].to_string(), "large: bytes 5..6 differ: r1 = r2, r3 differs");
    // Another version of the file is compared from the beginning.
    copies.write("large", &vec![5; 20 << 20]);
    let run = copies.start(&options, Some(state));
    assert!(run.wait(Duration::from_secs(60)));
    assert_eq!(result(&run).differences, [] as [String; 0]);
}

#[test]
fn extended_attributes_are_compared_on_request() {
    let copies = Copies::new();
    copies.write("f", b"x");
    let set = |i: usize, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(copies.path(i, "f"), "user.colour", value, flags)
    };
    if set(0, b"red").is_err() {
        eprintln!("skipped: no user.* attributes in the temporary directory");
        return;
    }
    set(1, b"red").unwrap();
    set(2, b"blue!").unwrap();
    assert_eq!(copies.run(&options()).differences.len(), 0);
    assert_eq!(
        copies.run(&VerifyOptions { xattrs: true, ..options() }).differences,
        ["f: xattr differs: user.colour (3 bytes) on r1 = r2, user.colour (5 bytes) on r3"]
    );
}

#[test]
fn a_saved_state_reloads_and_fits_only_its_own_run() {
    let copies = varied_tree(7);
    let run = copies.start(&options(), None);
    assert!(run.wait(Duration::from_secs(60)));
    let room = tempfile::tempdir().unwrap();
    let path: &Path = &room.path().join("state");
    let names = ["r1", "r2", "r3"].map(str::to_owned);
    run.checkpoint().save(path).unwrap();
    let state = Checkpoint::load(path).unwrap().unwrap();
    assert_eq!(state, run.checkpoint());
    state.check_same_run(path, &options(), &names).unwrap();
    let sample = Coverage::Sample(Share(0.01));
    for (other, key) in [
        (VerifyOptions { seed: 2, ..options() }, "seed 1"),
        (VerifyOptions { coverage: sample, ..options() }, "coverage full"),
        (VerifyOptions { path: "a".into(), ..options() }, "path ."),
        (VerifyOptions { volume: "w".into(), ..options() }, "volume v"),
        (VerifyOptions { mode: VolumeMode::Shared, ..options() }, "mode copies"),
        (VerifyOptions { ignore: vec![DifferenceKind::Mode], ..options() }, "ignore none"),
    ] {
        let error = state.check_same_run(path, &other, &names).unwrap_err().to_string();
        assert!(error.contains(&format!("of a run with {key}, and")), "{error}");
    }
    assert!(state.check_same_run(path, &options(), &names[..2]).is_err());
    fs::write(path, "{}").unwrap();
    assert!(
        Checkpoint::load(path).unwrap_err().to_string().contains("not a state of fanfs verify")
    );
    fs::remove_file(path).unwrap();
    assert!(Checkpoint::load(path).unwrap().is_none());
}
