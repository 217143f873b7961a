//! The file system without a kernel: answers in an order of the test's choosing.

#[path = "fs/carried.rs"]
mod carried;
#[path = "fs/changed.rs"]
mod changed;
#[path = "fs/closes.rs"]
mod closes;
#[path = "fs/handles.rs"]
mod handles;
#[path = "fs/kernel.rs"]
mod kernel;
#[path = "fs/listings.rs"]
mod listings;
#[allow(dead_code, reason = "the watch itself is for tests/nemesis.rs")]
mod machine;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[path = "fs/open_stores.rs"]
mod open_stores;
#[path = "fs/orders.rs"]
mod orders;
#[path = "fs/overtaken.rs"]
mod overtaken;
#[path = "fs/replaced.rs"]
mod replaced;
#[path = "fs/replies.rs"]
mod replies;
#[path = "fs/small_reads.rs"]
mod small_reads;

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fanfs::backend::{
    Backend, CreateMode, CreateOptions, DirBackend, OpenAccess, PoolLimits, Replica,
    RequestContext, SyncMode, WriteOpenOptions,
};
use fanfs::config::units::Share;
use fanfs::config::{self, CachePolicy};
use fanfs::fs::{
    CacheMode, CacheModePolicy, CreateRequest, EntryName, Fs, FsPolicy, FsResult, HandleId, Ino,
    OpenedFile, ROOT, ReadBytes, ReadCaller, WritePolicy, run,
};
use fanfs::placement::affinity::AffinityRules;
use fanfs::placement::{
    Locator, LocatorPolicy, PlacementSource, ReplicaTopology, configured_names,
};
use fanfs::read::{ReadPolicy, Reader, SegmentPipes};
use fanfs::replicas::Replicas;
use fanfs::replicas::request_deadline::Deadlines;
use fanfs::scheduler::ReplicaPolicy;
use fanfs::telemetry::{ReplicaCounters, VolumeCounters};
use fanfs::volume::{ByteRange, ReplicaId, ReplicaMap, VolumeMode};

const LONG: Duration = Duration::from_secs(60);

/// A volume with one replica.
fn volume(tree: &Path, cache: CachePolicy, runtime: &tokio::runtime::Runtime) -> Arc<Fs> {
    volume_over(&[tree], cache, runtime)
}

/// A volume over `trees`, of which the first is the write replica.
fn volume_over(trees: &[&Path], cache: CachePolicy, runtime: &tokio::runtime::Runtime) -> Arc<Fs> {
    let open = |tree: &&Path| -> Arc<dyn Backend> { Arc::new(DirBackend::open(tree).unwrap()) };
    volume_of(trees.iter().map(open).collect(), cache, runtime)
}

/// A volume of these replicas, of which the first is the write replica.
fn volume_of(
    backends: Vec<Arc<dyn Backend>>,
    cache: CachePolicy,
    runtime: &tokio::runtime::Runtime,
) -> Arc<Fs> {
    volume_with(backends, (cache, false), runtime)
}

/// The same, perhaps with `passthrough`.
fn volume_with(
    backends: Vec<Arc<dyn Backend>>,
    (cache, passthrough): (CachePolicy, bool),
    runtime: &tokio::runtime::Runtime,
) -> Arc<Fs> {
    let setup = VolumeSetup { passthrough, ..VolumeSetup::new(cache) };
    volume_with_setup(backends, &setup, runtime).fs
}

/// What a test chooses of a volume.
struct VolumeSetup {
    cache: CachePolicy,
    passthrough: bool,
    read_only: bool,
    /// Session threads that may call replicas.
    inline_calls: usize,
    /// The deadline of reads.
    deadline: Duration,
    /// The memory for data.
    budget: u64,
    /// How long the kernel keeps attributes.
    attribute_ttl: Duration,
}

impl VolumeSetup {
    fn new(cache: CachePolicy) -> Self {
        Self {
            cache,
            passthrough: false,
            read_only: false,
            inline_calls: 0,
            deadline: LONG,
            budget: 1 << 20,
            attribute_ttl: LONG,
        }
    }
}

/// A volume and its parts.
struct Volume {
    fs: Arc<Fs>,
    reader: Arc<Reader>,
    replicas: Arc<Replicas>,
    counters: Arc<VolumeCounters>,
}

fn volume_with_setup(
    backends: Vec<Arc<dyn Backend>>,
    setup: &VolumeSetup,
    runtime: &tokio::runtime::Runtime,
) -> Volume {
    let VolumeSetup { cache, passthrough, inline_calls, deadline, budget, .. } = *setup;
    let mut text = "[volume]\nname = \"fs\"\nmode = \"shared\"\n".to_owned();
    (0..backends.len()).for_each(|i| text += &format!("[[replica]]\npath = \"/fs{i}\"\n"));
    let config = config::parse(&text, Path::new("fs")).unwrap();
    let ground = ReplicaTopology {
        names: configured_names(&config.replicas),
        replicas: (0..backends.len()).map(|i| format!("fs{i}")).collect(),
        directory: "/fs0".into(),
        affinities: AffinityRules::new(&[]),
    };
    let asking = LocatorPolicy { ttl: LONG, retry_after: LONG, min_file_size: 0, timeout: LONG };
    let locator = Locator::new(PlacementSource::None, asking, ground, runtime.handle().clone());
    let replica = |(i, backend): (usize, Arc<dyn Backend>)| {
        let pool = PoolLimits { threads: 4, queue: 16, max_inline_calls: inline_calls };
        let counters = Arc::new(ReplicaCounters::default());
        Arc::new(Replica::new(ReplicaId::new(i), format!("fs{i}"), backend, pool, counters))
    };
    let replicas: ReplicaMap<_> = backends.into_iter().enumerate().map(replica).collect();
    let limits = replicas.map(|_, _| ReplicaPolicy {
        weight: config.replicas[0].weight,
        max_in_flight: 1 << 20,
        max_reads: 2,
        max_rate: None,
    });
    let read = ReadPolicy {
        segment: 1 << 16,
        readahead_max: 0,
        budget,
        deadlines: Deadlines { while_responsive: deadline, while_unresponsive: deadline },
        attempt_deadline: LONG,
        pipes: SegmentPipes::default(),
        compare_share: Share(0.0),
    };
    let counters = Arc::new(VolumeCounters::default());
    let replicas = Replicas::new(replicas, inline_calls);
    let locator = Arc::new(locator);
    let reader = Reader::new(read, Arc::clone(&replicas), limits, Arc::clone(&counters), locator);
    runtime.spawn(Arc::clone(&replicas).run_ticker());
    let policy = FsPolicy {
        mode: VolumeMode::Shared,
        deadlines: Deadlines { while_responsive: LONG, while_unresponsive: LONG },
        attempt_deadline: LONG,
        attribute_ttl: setup.attribute_ttl,
        missing_name_ttl: LONG,
        immutable: false,
        cache_mode: CacheModePolicy { cache, memory: 4096 },
        passthrough,
        write: (!setup.read_only).then_some(WritePolicy {
            replica: ReplicaId::new(0),
            deadlines: Deadlines { while_responsive: LONG, while_unresponsive: LONG },
            lag: LONG,
        }),
        lock_replica: None,
    };
    let own = (Arc::clone(&replicas), Arc::clone(&reader), Arc::clone(&counters));
    let fs = Fs::new(policy, own.0, own.1, own.2, runtime.handle().clone());
    Volume { fs, reader, replicas, counters }
}

/// A name in the root.
fn entry(name: &str) -> EntryName<'_> {
    EntryName { parent: ROOT, name: name.as_ref() }
}

/// The result of a request, which this thread waits for.
fn ask<T>(request: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut request = pin!(request);
    loop {
        match request.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

/// The answer to a request that succeeds.
fn answer<T>(request: impl Future<Output = FsResult<T>>) -> T {
    ask(request).unwrap()
}

/// Starts a read on a thread that is not the session's.
fn start_read(
    fs: &Arc<Fs>,
    handle: HandleId,
    range: ByteRange,
    done: impl FnOnce(FsResult<Vec<u8>>) + Send + 'static,
) {
    let caller = ReadCaller { process: 0, small_reads: None };
    let reply = move |answer: FsResult<ReadBytes<'_>>| {
        done(answer.map(|bytes| bytes.to_vec().unwrap()));
    };
    fs.open_files.read(handle, range, caller, reply);
}

/// The data of a read.
fn ask_read(fs: &Arc<Fs>, handle: HandleId, range: ByteRange) -> FsResult<Vec<u8>> {
    let (send, receive) = sync_channel(1);
    start_read(fs, handle, range, move |answer| send.send(answer).unwrap());
    receive.recv().unwrap()
}

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn open(fs: &Arc<Fs>, ino: Ino) -> OpenedFile {
    answer(fs.open_files.open(RequestContext::DAEMON, ino, false, &()))
}

fn read(fs: &Arc<Fs>, opened: &OpenedFile) -> Vec<u8> {
    ask_read(fs, opened.handle, ByteRange::at(0, 100)).unwrap()
}

/// The kernel may get the answer to the second open of a new version before the
/// first one's, with the older version's pages still in its cache.
#[test]
fn the_page_cache_is_kept_only_after_older_pages_are_gone() {
    // Direct handles also fill the cache, where they are mapped.
    keeps_its_cache_only_once_it_has_dropped_the_older_version(CachePolicy::Kernel);
    keeps_its_cache_only_once_it_has_dropped_the_older_version(CachePolicy::Direct);
}

fn keeps_its_cache_only_once_it_has_dropped_the_older_version(cache: CachePolicy) {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("f"), "one").unwrap();
    let fs = volume(tree.path(), cache, &runtime);
    let ino = answer(fs.namespace.lookup(RequestContext::DAEMON, entry("f"))).ino;

    let before = open(&fs, ino);
    assert!(before.keep_cache && open(&fs, ino).keep_cache, "there is nothing to drop");
    assert_eq!(read(&fs, &before), b"one");

    fs::write(tree.path().join("f"), "second").unwrap();
    let first = open(&fs, ino);
    assert!(!first.keep_cache);
    assert!(!open(&fs, ino).keep_cache, "fanfs does not know that the kernel has dropped it");
    assert_eq!(read(&fs, &before), b"second");
    assert!(!open(&fs, ino).keep_cache, "the handle read was opened at the older version");
    assert_eq!(read(&fs, &first), b"second");
    assert!(open(&fs, ino).keep_cache);

    // Attributes move the handles to the new version: both versions may be in the cache.
    fs::write(tree.path().join("f"), "a third").unwrap();
    answer(fs.namespace.getattr(RequestContext::DAEMON, ino, None));
    assert_eq!(read(&fs, &first), b"a third");
    assert!(!open(&fs, ino).keep_cache);
}

/// In a volume whose memory is 4 KiB, so that 2 KiB are a large file.
#[test]
fn auto_caches_large_files_once_reads_are_small() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("small"), [0; 1024]).unwrap();
    fs::write(tree.path().join("large"), [0; 2048]).unwrap();
    let fs = volume(tree.path(), CachePolicy::Auto, &runtime);
    let ino = |name: &str| answer(fs.namespace.lookup(RequestContext::DAEMON, entry(name))).ino;
    let (small, large) = (ino("small"), ino("large"));
    assert_eq!(open(&fs, large).cache_mode, CacheMode::Kernel, "it could not be mapped");

    fs.open_files.set_direct_mmap(true);
    assert_eq!(open(&fs, small).cache_mode, CacheMode::Kernel);
    let handle = open(&fs, large);
    assert_eq!(handle.cache_mode, CacheMode::Direct);
    (0..64).for_each(|_| drop(read(&fs, &handle)));
    fs.open_files.release(handle.handle);
    assert_eq!(open(&fs, large).cache_mode, CacheMode::Kernel);

    // The kernel forgets the file, and so does fanfs.
    let other = ino("large");
    assert_eq!(open(&fs, other).cache_mode, CacheMode::Kernel);
    fs.namespace.forget(large, 2);
    assert_eq!(open(&fs, ino("large")).cache_mode, CacheMode::Direct);
}

/// A file system reuses a file's number at once, and two threads may report the new file and the
/// removal of the old one to the kernel in either order. The kernel would then remove the new
/// file's link.
#[test]
fn a_reused_inode_number_waits_for_the_forget() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fs = volume(tree.path(), CachePolicy::Kernel, &runtime);
    let how = WriteOpenOptions {
        access: OpenAccess::Write,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    let new = CreateOptions { exclusive: false, perm: CreateMode { perm: 0o644, umask: 0 } };
    let create = |name: &str| {
        let (since, (send, receive)) = (Instant::now(), sync_channel(1));
        let (fs, name) = (Arc::clone(&fs), name.to_owned());
        let create = {
            let fs = Arc::clone(&fs);
            async move {
                let request = CreateRequest { at: entry(&name), open: how, create: new };
                let made = fs.mutations.create(RequestContext::DAEMON, request).await;
                send.send(made.unwrap().entry.ino).unwrap();
            }
        };
        run(create);
        let ino = loop {
            // A handover waits for it.
            let is_changing = fs.has_changes_in_flight();
            match receive.try_recv() {
                Ok(ino) => break ino,
                Err(_) => assert!(is_changing),
            }
        };
        (ino, since.elapsed())
    };
    // The file that the create finds reuses the number of a file that was just removed.
    let reuse = |from: &str, to: &str| {
        fs::rename(tree.path().join(from), tree.path().join(to)).unwrap();
    };
    let (older, _) = create("a");
    assert_eq!(create("a").0, older);

    reuse("a", "b");
    let (newer, waited) = create("b");
    assert!(newer == older && waited >= Duration::from_millis(30), "after {waited:?}");

    let known = fs.gauges().inodes;
    fs.namespace.forget(older, 3);
    assert_eq!(fs.gauges().inodes, known - 1);
    reuse("b", "c");
    assert_eq!(create("c").0, older);
}
