//! The instructions of single requests in user mode, counted by callgrind over a replica in memory.
//!
//! `cargo bench --bench instructions` counts and compares with benches/results/instructions.json;
//! it fails if a request takes 3 % more. `-- --update` writes the counts there. Needs valgrind.
//! `cargo test --bench instructions` does the same for the build of the tests, which CI has anyway;
//! its numbers are higher, and it checks the order of locks as well. It is built without incremental
//! compilation (CARGO_INCREMENTAL=0), which inlines less.
//!
//! The same requests are made twice, in different numbers, and the difference is divided by the
//! difference of the numbers: what happens once does not count. Noise of the machine does not count
//! either, but another compiler or C library does. Counts of another compiler are not compared. If
//! the machine stops a call for long, the next ones run on the replica's threads; so a request fails
//! the check only if each of [`TRIES`] counts has grown. Large reads always run on these threads, and
//! changes do if one was slow: they are compared only in a release build, on a machine that does
//! nothing else.

#[path = "scripted/mod.rs"]
mod scripted;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanfs::backend::{
    CreateMode, CreateOptions, OpenAccess, PoolLimits, Replica, RequestContext, SyncMode,
    WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::config::units::Share;
use fanfs::fs::{
    CacheModePolicy, CreateRequest, EntryName, Fs, FsPolicy, FsResult, HandleId, Ino, LockOwner,
    OpenedFile, ROOT, ReadBytes, ReadCaller, ReadReply, SmallFileReads, WritePolicy, WriteRequest,
    run_on_session_thread,
};
use fanfs::placement::{Locator, LocatorPolicy, PlacementSource, ReplicaTopology};
use fanfs::read::{ReadPolicy, Reader, SegmentPipes};
use fanfs::replicas::Replicas;
use fanfs::replicas::request_deadline::Deadlines;
use fanfs::scheduler::ReplicaPolicy;
use fanfs::telemetry::VolumeCounters;
use fanfs::volume::{ByteRange, ReplicaId, ReplicaMap, VolumeMode};
use parking_lot::Mutex;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(600);
const ME: RequestContext = RequestContext::DAEMON;

/// More instructions than this, relative to the recorded number, fail the check.
const MAX_GROWTH: f64 = 1.03;

/// The counts of a request, of which the lowest is taken.
const TRIES: usize = 3;

/// Makes the request of this number.
type Request = fn(&Volume, u64);

/// Each request, by its name in the record.
const REQUESTS: [(&str, Request); 7] = [
    ("read 4 KiB from a replica", Volume::random_read),
    ("read 4 KiB from one of three replicas", Volume::random_read),
    ("read 1 MiB from a replica", Volume::large_read),
    ("lookup", Volume::lookup),
    ("getattr", Volume::getattr),
    ("open, read, release a file of 4 KiB", Volume::small_file),
    ("create, write 4 KiB, flush, release", Volume::create),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [flag, name, count] = &args[..]
        && flag == "--make"
    {
        let count = count.parse().expect("a number of requests");
        make_requests(name, count);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("no valgrind; instructions are not counted");
        return ExitCode::SUCCESS;
    }
    let only = args.iter().find(|arg| !arg.starts_with("--"));
    let is_wanted = |name: &str| only.is_none_or(|part| name.contains(part.as_str()));
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results/instructions.json");
    let known = std::fs::read_to_string(&record).unwrap_or_else(|_| "{}".into());
    let mut record_of: BTreeMap<String, BuildRecord> =
        serde_json::from_str(&known).expect("the record");
    let build = if cfg!(debug_assertions) { "test" } else { "release" };
    let compiler = compiler();
    let is_update = args.iter().any(|arg| arg == "--update");
    let own = record_of.entry(build.to_owned()).or_default();
    let is_comparable = own.compiler == compiler;
    if !is_comparable && !is_update {
        println!("the record is of {:?}; this is {compiler:?}: not compared", own.compiler);
    }
    if !is_comparable {
        own.requests.clear();
    }
    own.compiler = compiler;
    let known = &mut own.requests;
    let mut has_grown = false;
    for (name, _) in REQUESTS.iter().filter(|(name, _)| is_wanted(name)) {
        let before = known.get(*name).copied().filter(|_| is_comparable);
        let ratio = |now: u64| before.map(|before| now as f64 / before as f64);
        let is_grown = |now: u64| ratio(now).is_some_and(|ratio| ratio > MAX_GROWTH);
        let mut now = instructions(name);
        for _ in 1..TRIES {
            if is_grown(now) {
                now = now.min(instructions(name));
            }
        }
        known.insert((*name).to_owned(), now);
        let is_noisy = name.contains("MiB") || name.starts_with("create");
        has_grown |= is_grown(now) && !(cfg!(debug_assertions) && is_noisy);
        let ratio = ratio(now).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        println!("{name:40} {now:>9} {ratio:>7}");
    }
    if is_update {
        let text = serde_json::to_string_pretty(&record_of).expect("numbers") + "\n";
        std::fs::write(&record, text).expect("the record can be written");
    } else if has_grown {
        eprintln!("a request takes 3 % more instructions than {} says", record.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The counts of a build.
#[derive(Default, serde::Deserialize, serde::Serialize)]
struct BuildRecord {
    compiler: String,
    /// The instructions of each request.
    requests: BTreeMap<String, u64>,
}

/// The version of the compiler, and how it was called if that matters.
fn compiler() -> String {
    let rustc = option_env!("RUSTC").unwrap_or("rustc");
    let output = Command::new(rustc).arg("--version").output().expect("the compiler runs");
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let is_incremental =
        cfg!(debug_assertions) && option_env!("CARGO_INCREMENTAL").is_none_or(|set| set != "0");
    if is_incremental { format!("{version}, incremental") } else { version }
}

/// The instructions of one request.
fn instructions(name: &str) -> u64 {
    // The first requests of a volume take another way: nothing has been measured yet.
    let (few, many) = match (name.contains("MiB"), cfg!(debug_assertions)) {
        (true, false) => (200, 1200),
        (false, false) => (2000, 12_000),
        // Slower by a factor of four.
        (true, true) => (200, 600),
        (false, true) => (1000, 4000),
    };
    let difference = || count_requests(name, many).checked_sub(count_requests(name, few));
    let counted = (0..TRIES).find_map(|_| difference());
    counted.expect("more requests take more instructions") / (many - few)
}

/// The instructions of a process that makes so many requests.
fn count_requests(name: &str, requests: u64) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    // Large reads run on a replica's threads. Elsewhere the calling thread alone counts, without
    // the ticker.
    if !name.contains("MiB") {
        valgrind.arg("--toggle-collect=fanfs_measured_request");
    }
    if let Some(file) = std::env::var_os("FANFS_CALLGRIND_OUT") {
        valgrind.arg(format!("--callgrind-out-file={}", file.to_string_lossy()));
    }
    let own = std::env::current_exe().expect("this program has a path");
    let output = valgrind.arg(own).args(["--make", name, &requests.to_string()]).output();
    let output = output.expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let collected = collected.and_then(|(_, number)| number.trim().parse().ok());
    collected.unwrap_or_else(|| panic!("callgrind printed no count:\n{text}"))
}

fn make_requests(name: &str, count: u64) {
    let (_, request) = REQUESTS.iter().find(|(own, _)| *own == name).expect("a known request");
    let volume = Volume::new(if name.contains("three") { 3 } else { 1 });
    // The first requests measure the replica.
    for i in 0..100 {
        request(&volume, i);
    }
    std::thread::sleep(Duration::from_millis(200));
    for i in 100..100 + count {
        fanfs_measured_request(*request, &volume, i);
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn fanfs_measured_request(request: Request, volume: &Volume, number: u64) {
    request(volume, number);
}

/// Takes the bytes as the kernel does.
struct Reply(Arc<AtomicU64>);

impl ReadReply for Reply {
    fn send(self, answer: FsResult<ReadBytes<'_>>) {
        let bytes = match answer.expect("memory does not fail") {
            ReadBytes::Slice(bytes) => bytes.len(),
            ReadBytes::Segments(data) => data.len(),
        };
        self.0.store(bytes as u64, Ordering::Release);
    }
}

struct Volume {
    fs: Arc<Fs>,
    small_reads: SmallFileReads<Reply>,
    /// The bytes of the last answer; 0 until it is here.
    answered: Arc<AtomicU64>,
    large: HandleId,
    small: Ino,
    _runtime: tokio::runtime::Runtime,
}

impl Volume {
    fn new(replicas: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let fs = volume(replicas, &runtime);
        let (large, small) = (look_up(&fs, "large"), look_up(&fs, "small"));
        let large = open(&fs, large).handle;
        let small_reads = fs.open_files.small_reads();
        Self { small_reads, answered: Arc::default(), large, small, _runtime: runtime, fs }
    }

    fn read(&self, handle: HandleId, range: ByteRange) {
        let caller = ReadCaller { process: 0, small_reads: Some(&self.small_reads) };
        self.answered.store(0, Ordering::Release);
        self.fs.open_files.read(handle, range, caller, Reply(Arc::clone(&self.answered)));
        while self.answered.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(self.answered.load(Ordering::Acquire), range.len());
    }

    fn random_read(&self, number: u64) {
        self.read(self.large, ByteRange::at(number * 997 * 4096, 4096));
    }

    fn large_read(&self, number: u64) {
        self.read(self.large, ByteRange::at(number * 997 % 1_000_000 * MIB, MIB));
    }

    fn lookup(&self, _: u64) {
        let found = look_up(&self.fs, "small");
        self.fs.namespace.forget(found, 1);
    }

    fn getattr(&self, _: u64) {
        let (fs, ino) = (Arc::clone(&self.fs), self.small);
        now(async move { fs.namespace.getattr(ME, ino, None).await }).expect("getattr");
    }

    fn small_file(&self, _: u64) {
        let handle = open(&self.fs, self.small).handle;
        self.read(handle, ByteRange::at(0, 4096));
        let files = self.fs.open_files.release_on_session_thread(handle);
        self.fs.open_files.finish_release(files);
    }

    fn create(&self, number: u64) {
        let fs = Arc::clone(&self.fs);
        let create = async move {
            let name = format!("new{number}");
            let open = WriteOpenOptions {
                access: OpenAccess::Write,
                truncate: false,
                sync: SyncMode::No,
                expected: None,
            };
            let perm = CreateMode { perm: 0o644, umask: 0o022 };
            let create = CreateOptions { perm, exclusive: false };
            fs.mutations.create(ME, CreateRequest { at: entry(&name), open, create }).await
        };
        let created = now(create).expect("create");
        let handle = created.opened.handle;
        let write = WriteRequest {
            offset: 0,
            data: &[0; 4096],
            append: false,
            is_part: false,
            whole: false,
            is_resent: false,
            caller: None,
        };
        now(self.fs.mutations.write(handle, write)).expect("write");
        let fs = Arc::clone(&self.fs);
        now(async move { fs.mutations.flush(handle, LockOwner(0)).await }).expect("flush");
        let files = self.fs.open_files.release_on_session_thread(handle);
        self.fs.open_files.finish_release(files);
        self.fs.namespace.forget(created.entry.ino, 1);
    }
}

fn look_up(fs: &Arc<Fs>, name: &'static str) -> Ino {
    let fs = Arc::clone(fs);
    now(async move { fs.namespace.lookup(ME, entry(name)).await }).expect("lookup").ino
}

fn open(fs: &Arc<Fs>, ino: Ino) -> OpenedFile {
    let fs = Arc::clone(fs);
    now(async move { fs.open_files.open(ME, ino, false, &()).await }).expect("open")
}

fn entry(name: &str) -> EntryName<'_> {
    EntryName { parent: ROOT, name: name.as_ref() }
}

/// The answer of a request, which this thread runs as one of the session's and waits for.
fn now<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> T {
    let answer = Arc::new(Mutex::new(None));
    let own = Arc::clone(&answer);
    run_on_session_thread(async move { *own.lock() = Some(request.await) });
    loop {
        if let Some(answer) = answer.lock().take() {
            return answer;
        }
        std::thread::yield_now();
    }
}

fn volume(replicas: usize, runtime: &tokio::runtime::Runtime) -> Arc<Fs> {
    let deadlines = Deadlines { while_responsive: LONG, while_unresponsive: LONG };
    let locating = LocatorPolicy { ttl: LONG, retry_after: LONG, min_file_size: 0, timeout: LONG };
    let topology = ReplicaTopology::default();
    let locator = Locator::new(PlacementSource::None, locating, topology, runtime.handle().clone());
    let limits = PoolLimits { threads: 8, queue: 1024, max_inline_calls: 4 };
    let members = ReplicaMap::from_fn(replicas, |id| {
        let backend = Arc::new(scripted::Memory);
        Arc::new(Replica::new(id, format!("memory{}", id.index()), backend, limits, Arc::default()))
    });
    let replica =
        ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6, max_rate: None };
    let policies = ReplicaMap::from_fn(replicas, |_| replica.clone());
    let read = ReadPolicy {
        segment: MIB,
        readahead_max: 64 * MIB,
        budget: 256 * MIB,
        deadlines,
        attempt_deadline: LONG,
        pipes: SegmentPipes::default(),
        compare_share: Share(0.0),
    };
    let counters = Arc::new(VolumeCounters::default());
    let replicas = Replicas::new(members, 4);
    let reader = Reader::new(
        read,
        Arc::clone(&replicas),
        policies,
        Arc::clone(&counters),
        Arc::new(locator),
    );
    runtime.spawn(Arc::clone(&replicas).run_ticker());
    let policy = FsPolicy {
        mode: VolumeMode::Shared,
        deadlines,
        attempt_deadline: LONG,
        attribute_ttl: LONG,
        missing_name_ttl: LONG,
        immutable: false,
        cache_mode: CacheModePolicy { cache: CachePolicy::Direct, memory: 4096 },
        passthrough: false,
        write: Some(WritePolicy { replica: ReplicaId::new(0), deadlines, lag: LONG }),
        lock_replica: None,
    };
    Fs::new(policy, replicas, reader, counters, runtime.handle().clone())
}
