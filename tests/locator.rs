//! The locator and a scripted provider: how often it is asked, how many queries run at once, and
//! the effects of its failures, hangs and panics.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fanfs::placement::{
    ChunkMapBuilder, LocateFuture, LocatedFile, Locator, LocatorPolicy, NodeNames, PlacementError,
    PlacementSource, PlacementStatus, PrepareFuture, Provider, Query, ReplicaTopology,
};
use fanfs::volume::{ByteRange, FileVersion, ReplicaId, ReplicaSet};
use tokio::sync::Semaphore;

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy)]
enum Does {
    /// Answers that everything is on n2.
    Answers,
    /// Answers that everything is on these.
    Names(&'static [&'static str]),
    Fails,
    /// Fails like a tool that names the file.
    Complains,
    Hangs,
    Panics,
    /// Answers when it is released.
    Waits,
}

struct Scripted {
    does: parking_lot::Mutex<Does>,
    prepared: AtomicUsize,
    asked: AtomicUsize,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    gate: Semaphore,
}

/// Counts a call as long as it runs.
struct Inside<'a>(&'a Scripted);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

impl Provider for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn prepare(&self) -> PrepareFuture<'_> {
        self.prepared.fetch_add(1, SeqCst);
        Box::pin(std::future::ready(()))
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            self.asked.fetch_add(1, SeqCst);
            self.most_inside.fetch_max(self.inside.fetch_add(1, SeqCst) + 1, SeqCst);
            let _inside = Inside(self);
            let does = *self.does.lock();
            let mut nodes: &[&str] = &["n2"];
            match does {
                Does::Answers => {}
                Does::Names(names) => nodes = names,
                Does::Fails => return Err(PlacementError::NotFound),
                Does::Complains => {
                    return Err(PlacementError::ProgramFailed {
                        program: "tool".to_owned(),
                        status: "exit status: 3".to_owned(),
                        said: "/secret/name is away".to_owned(),
                    });
                }
                Does::Hangs => std::future::pending::<()>().await,
                Does::Panics => panic!("as the test wants"),
                Does::Waits => drop(self.gate.acquire().await),
            }
            let mut builder = ChunkMapBuilder::new();
            builder.add_chunk(ByteRange::new(0, query.size), nodes.iter().copied())?;
            Ok(builder.finish())
        })
    }
}

struct Rig {
    provider: Arc<Scripted>,
    locator: Arc<Locator>,
    runtime: tokio::runtime::Runtime,
}

const POLICY: LocatorPolicy = LocatorPolicy {
    ttl: Duration::from_secs(600),
    retry_after: Duration::from_secs(600),
    min_file_size: 0,
    timeout: Duration::from_secs(20),
};

fn rig(does: Does, policy: LocatorPolicy) -> Rig {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let provider = Arc::new(Scripted {
        does: parking_lot::Mutex::new(does),
        prepared: AtomicUsize::new(0),
        asked: AtomicUsize::new(0),
        inside: AtomicUsize::new(0),
        most_inside: AtomicUsize::new(0),
        gate: Semaphore::new(0),
    });
    let mut names = NodeNames::new();
    for i in 0..2 {
        names.add(ReplicaId::new(i), &format!("n{}", i + 1));
    }
    let ground = ReplicaTopology {
        names,
        replicas: ["a", "b"].map(str::to_owned).to_vec(),
        directory: "/r1".into(),
        ..ReplicaTopology::default()
    };
    let source = PlacementSource::Provider(Arc::clone(&provider) as Arc<dyn Provider>);
    let locator = Arc::new(Locator::new(source, policy, ground, runtime.handle().clone()));
    Rig { provider, locator, runtime }
}

impl Rig {
    fn file(&self, path: &str, size: u64) -> Arc<LocatedFile> {
        let version = FileVersion { ino: 7, size, mtime: (0, 0), ctime: (0, 0) };
        self.locator.locate_file(Path::new(path), version).unwrap()
    }

    fn prompt(&self, file: &Arc<LocatedFile>) {
        self.locator.query_if_due(file, Instant::now());
    }

    fn asked(&self) -> usize {
        self.provider.asked.load(SeqCst)
    }

    fn eventually(&self, what: &str, holds: impl Fn(&PlacementStatus) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !holds(&self.locator.status()) {
            let status = self.locator.status();
            assert!(Instant::now() < until, "it never came to this: {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Prompts until one more query was made.
    fn prompt_until_asked(&self, file: &Arc<LocatedFile>, since: Instant) -> Duration {
        let before = self.asked();
        self.eventually("it is asked again", |_| {
            self.prompt(file);
            self.asked() > before
        });
        since.elapsed()
    }

    fn do_now(&self, does: Does) {
        *self.provider.does.lock() = does;
    }
}

/// The log lines of this program's tests at `info` and above.
#[derive(Clone, Default)]
struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of this program.
    fn get() -> &'static Self {
        static LOG: std::sync::LazyLock<Log> = std::sync::LazyLock::new(|| {
            let log = Log::default();
            let writer = log.clone();
            let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
            lines.with_ansi(false).with_writer(move || writer.clone()).init();
            log
        });
        &LOG
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

fn local(file: &LocatedFile, offset: u64, now: Instant) -> Option<ReplicaSet> {
    file.placement.holders(offset, now).map(|holders| holders.local)
}

fn on_n2() -> Option<ReplicaSet> {
    Some(ReplicaSet::EMPTY.with(ReplicaId::new(1)))
}

#[test]
fn a_file_is_queried_once_for_many_readers() {
    let rig = rig(Does::Waits, POLICY);
    let files = ["f", "g"].map(|name| rig.file(name, MIB));
    for file in files.iter().cycle().take(500) {
        rig.prompt(file);
    }
    rig.eventually("both files are asked about", |status| status.pending == 2 && rig.asked() == 2);
    assert_eq!(local(&files[0], 0, Instant::now()), None, "no read waits for the answer");
    rig.provider.gate.add_permits(100);
    rig.eventually("both are answered", |status| status.answers == 2);
    for file in files.iter().cycle().take(100) {
        rig.prompt(file);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.asked(), 2);
    assert_eq!(local(&files[0], 5, Instant::now()), on_n2());
    assert_eq!(local(&files[0], MIB, Instant::now()), None, "past its end");
}

#[test]
fn a_provider_prepares_without_a_query() {
    let rig = rig(Does::Answers, POLICY);
    rig.locator.prepare();
    rig.eventually("it is prepared", |_| rig.provider.prepared.load(SeqCst) == 1);
    assert_eq!(rig.asked(), 0);
}

#[test]
fn an_old_answer_is_refreshed_and_used_meanwhile() {
    let rig = rig(Does::Answers, LocatorPolicy { ttl: Duration::from_millis(300), ..POLICY });
    let file = rig.file("f", MIB);
    let started = Instant::now();
    rig.prompt(&file);
    rig.eventually("it is answered", |status| status.answers == 1);
    rig.do_now(Does::Waits);
    let took = rig.prompt_until_asked(&file, started);
    assert!(took >= Duration::from_millis(290), "asked again after {took:?}");
    assert_eq!(local(&file, 0, Instant::now()), on_n2());
    rig.provider.gate.add_permits(1);
    rig.eventually("it is answered again", |status| status.answers == 2 && status.pending == 0);
}

#[test]
fn after_a_failure_the_provider_is_not_asked_for_a_while() {
    let policy = LocatorPolicy { retry_after: Duration::from_millis(300), ..POLICY };
    let rig = rig(Does::Fails, policy);
    let file = rig.file("f", MIB);
    let started = Instant::now();
    rig.prompt(&file);
    rig.eventually("it has failed", |status| status.failures == 1 && status.pending == 0);
    let failing = rig.locator.status().failing;
    assert_eq!(failing.as_deref(), Some("the provider does not know the file"));
    assert_eq!(local(&file, 0, Instant::now()), None, "all are candidates");
    rig.do_now(Does::Answers);
    let took = rig.prompt_until_asked(&file, started);
    assert!(took >= Duration::from_millis(290), "asked again after {took:?}");
    rig.eventually("it works again", |status| status.answers == 1 && status.failing.is_none());
    assert_eq!(local(&file, 0, Instant::now()), on_n2());
}

#[test]
fn the_status_has_the_error_and_the_log_no_file_names() {
    let log = Log::get();
    let rig = rig(Does::Complains, POLICY);
    rig.prompt(&rig.file("f", MIB));
    rig.eventually("it has failed", |status| status.failures == 1 && status.pending == 0);
    let failing = rig.locator.status().failing.unwrap();
    assert_eq!(failing, "tool failed (exit status: 3): /secret/name is away");
    let text = log.text();
    assert!(text.contains("error=\"tool failed (exit status: 3)\""), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn new_unmatched_node_names_are_logged() {
    let log = Log::get();
    let rig = rig(Does::Answers, POLICY);
    let warnings = |of: &str| {
        let is_one = |line: &&str| line.contains("no replica is on") && line.contains(of);
        log.text().lines().filter(is_one).count()
    };
    let answered = std::cell::Cell::new(0);
    let unmatched = |names: &'static [&'static str]| {
        rig.do_now(Does::Names(names));
        answered.set(answered.get() + 1);
        rig.prompt(&rig.file(&format!("f{}", answered.get()), MIB));
        rig.eventually("it is answered", |status| status.answers == answered.get());
        rig.locator.status().unmatched
    };
    assert_eq!(rig.locator.status().unnamed, ["a", "b"]);
    assert_eq!(unmatched(&["n1", "odd-a"]), ["odd-a"]);
    assert_eq!(rig.locator.status().unnamed, ["b"]);
    assert_eq!(unmatched(&["odd-a"]), ["odd-a"]);
    assert_eq!(warnings("odd-a"), 1);
    assert_eq!(unmatched(&["odd-b", "odd-a", "n2"]), ["odd-b", "odd-a"]);
    assert_eq!(unmatched(&["odd-b"]), ["odd-b"]);
    assert_eq!(warnings("odd-b"), 1, "{}", log.text());
    // The table or an alias was corrected; another file has no answer yet.
    assert_eq!(unmatched(&["n1", "n2"]), [""; 0]);
    assert_eq!(unmatched(&["odd-c"]), ["odd-c"]);
    assert_eq!(unmatched(&[]), ["odd-c"]);
    for i in 0..25 {
        unmatched(vec![&*format!("odd-{i}").leak()].leak());
    }
    assert_eq!(warnings("odd-"), 16, "{}", log.text());
}

#[test]
fn an_endless_provider_is_cut_off() {
    let policy = LocatorPolicy { timeout: Duration::from_millis(100), ..POLICY };
    let rig = rig(Does::Hangs, policy);
    let file = rig.file("f", MIB);
    rig.prompt(&file);
    rig.eventually("it is cut off", |status| status.failures == 1 && status.pending == 0);
    let failing = rig.locator.status().failing.unwrap();
    assert!(failing.starts_with("no answer within "), "{failing}");
    assert_eq!(rig.provider.inside.load(SeqCst), 0, "it is still at it");
}

#[test]
fn at_most_four_queries_are_in_flight() {
    let rig = rig(Does::Waits, POLICY);
    let files: Vec<_> = (0..20).map(|i| rig.file(&format!("f{i}"), MIB)).collect();
    for file in &files {
        rig.prompt(file);
    }
    rig.eventually("four are asked", |status| status.pending == 20 && rig.asked() == 4);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.asked(), 4);
    rig.provider.gate.add_permits(100);
    rig.eventually("all are answered", |status| status.answers == 20 && status.pending == 0);
    assert_eq!(rig.provider.most_inside.load(SeqCst), 4);
}

#[test]
fn many_files_do_not_grow_the_locator() {
    let policy = LocatorPolicy { retry_after: Duration::from_millis(200), ..POLICY };
    let rig = rig(Does::Waits, policy);
    let files: Vec<_> = (0..5000).map(|i| rig.file(&format!("f{i}"), MIB)).collect();
    let started = Instant::now();
    for file in &files {
        rig.prompt(file);
    }
    let status = rig.locator.status();
    assert_eq!(status.files, 4096);
    assert!(status.pending <= 260, "{} questions wait", status.pending);
    rig.provider.gate.add_permits(10_000);
    rig.eventually("those are answered", |status| status.pending == 0);
    // A file that found no place is queried later.
    let last = &files[4999];
    assert_eq!(local(last, 0, Instant::now()), None);
    rig.prompt_until_asked(last, started);
    rig.eventually("the last one is answered", |_| local(last, 0, Instant::now()) == on_n2());
    // The file opened last is remembered, the first one is not.
    assert!(Arc::ptr_eq(last, &rig.file("f4999", MIB)));
    assert!(!Arc::ptr_eq(&files[0], &rig.file("f0", MIB)));
}

#[test]
fn a_changed_file_is_located_again() {
    let rig = rig(Does::Answers, POLICY);
    let file = rig.file("f", MIB);
    rig.prompt(&file);
    rig.eventually("it is answered", |status| status.answers == 1);
    assert!(Arc::ptr_eq(&file, &rig.file("f", MIB)));
    let changed = rig.file("f", 2 * MIB);
    assert_eq!(local(&changed, 0, Instant::now()), None);
    rig.prompt(&changed);
    rig.eventually("it is answered again", |status| status.answers == 2);
}

#[test]
fn a_panicking_provider_counts_as_failed_and_is_retried() {
    let policy = LocatorPolicy { retry_after: Duration::from_millis(200), ..POLICY };
    let rig = rig(Does::Panics, policy);
    let file = rig.file("f", MIB);
    let started = Instant::now();
    rig.prompt(&file);
    rig.eventually("it has panicked", |status| status.failures == 1 && status.pending == 0);
    assert!(rig.locator.status().failing.is_some());
    rig.do_now(Does::Answers);
    rig.prompt_until_asked(&file, started);
    rig.eventually("it is answered", |status| status.answers == 1);
    assert_eq!(local(&file, 0, Instant::now()), on_n2());
}

#[test]
fn a_short_file_is_not_located() {
    let rig = rig(Does::Answers, LocatorPolicy { min_file_size: MIB, ..POLICY });
    rig.prompt(&rig.file("short", MIB - 1));
    rig.prompt(&rig.file("long", MIB));
    rig.eventually("the long one is answered", |status| status.answers == 1);
    assert_eq!(rig.asked(), 1);
}

#[test]
fn shutdown_does_not_wait_for_a_provider() {
    let rig = rig(Does::Hangs, POLICY);
    let file = rig.file("f", MIB);
    rig.prompt(&file);
    rig.eventually("it hangs", |_| rig.provider.inside.load(SeqCst) == 1);
    let Rig { provider, locator, runtime } = rig;
    let started = Instant::now();
    runtime.shutdown_timeout(Duration::from_secs(60));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(provider.inside.load(SeqCst), 0);
    assert_eq!(locator.status().pending, 0);
}
