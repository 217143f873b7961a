//! Many small files over replicas with a fixed latency per call: how many are opened, read and
//! closed per second through one replica and through three.
//!
//! `cargo bench --bench many -- [DELAY] [WORKERS]...` ("500us", 8 and 32); needs root, or
//! fusermount3. In the first table a replica serves any number of calls at once, so only sequential
//! calls cost time. In the second it serves one call at a time, like a server at its limit, and
//! three replicas have three times the capacity.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{
    Attr, Backend, BackendFile, CreateOptions, DirBackend, EntryRef, EntryVisitor, FileMutation,
    FileParts, Lock, LockRequest, ObjectRef, OwnedFileParts, Result, SeekTo, StatFs, SubmitResult,
    SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::volume::ReplicaMap;
use parking_lot::Mutex;

const FILES: usize = 2000;
const DIRECTORIES: usize = 20;

/// Duration of one row.
const LONG: Duration = Duration::from_secs(2);

/// Delays each call; with `line`, calls wait for one another.
struct Server {
    inner: DirBackend,
    cost: Arc<Cost>,
}

struct Cost {
    delay: Duration,
    line: Option<Mutex<()>>,
}

impl Cost {
    fn pay(&self) {
        let _place = self.line.as_ref().map(|line| line.lock());
        std::thread::sleep(self.delay);
    }
}

struct ServedFile {
    inner: Arc<dyn BackendFile>,
    cost: Arc<Cost>,
}

impl Backend for Server {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.cost.pay();
        self.inner.stat(path)
    }
    fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
        self.cost.pay();
        self.inner.stat_entry(name)
    }
    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.cost.pay();
        self.inner.stat_entries(dir, names)
    }
    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        self.cost.pay();
        self.inner.list(dir, each)
    }
    fn check_open_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }

    fn revalidate_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, path: &ObjectRef) -> Result<OsString> {
        self.inner.read_link(path)
    }
    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        self.cost.pay();
        let (inner, attr) = self.inner.open(path)?;
        Ok((Arc::new(ServedFile { inner, cost: Arc::clone(&self.cost) }), attr))
    }
    fn stat_fs(&self) -> Result<StatFs> {
        self.inner.stat_fs()
    }
    fn get_xattr(&self, path: &ObjectRef, name: &OsStr) -> Result<Vec<u8>> {
        self.inner.get_xattr(path, name)
    }
    fn list_xattr(&self, path: &ObjectRef) -> Result<Vec<u8>> {
        self.inner.list_xattr(path)
    }
    fn check_mount(&self) -> Result<bool> {
        self.stat(Path::new("")).map(|_| true)
    }
    fn is_in_service(&self) -> bool {
        self.inner.is_in_service()
    }
    fn handle_unmount(&self, _: u64) {}
    fn mount_id(&self) -> Option<u64> {
        None
    }
    fn reads_without_threads(&self) -> bool {
        false
    }
    fn flush_closes(&self) {}
    fn adopt(&self, _: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        None
    }
    fn open_to_write(&self, _: &Path, _: &WriteOpenOptions) -> Result<WritableFile> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn create(&self, _: &EntryRef, _: &WriteOpenOptions, _: CreateOptions) -> Result<WritableFile> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn mutate(&self, _: &TreeMutation) -> Result<Option<Attr>> {
        Err(rustix::io::Errno::ROFS.into())
    }
}

impl BackendFile for ServedFile {
    fn attr(&self) -> Result<Attr> {
        self.cost.pay();
        self.inner.attr()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.cost.pay();
        self.inner.read_at(offset, buf)
    }
    fn splice_at(&self, _: u64, _: BorrowedFd<'_>, _: usize) -> Option<Result<usize>> {
        None
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn parts(&self) -> FileParts<'_> {
        FileParts::default()
    }
    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }
    fn is_deferred(&self) -> bool {
        false
    }
    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(offset, to)
    }
    fn mutate(&self, _: &FileMutation<'_>) -> Result<u64> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn lock(&self, _: &LockRequest) -> Result<Lock> {
        Err(rustix::io::Errno::NOLCK.into())
    }
}

fn main() {
    // `cargo bench` passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let delay = words.first().map_or(Duration::from_micros(500), |word| {
        humantime::parse_duration(word).expect("a time")
    });
    let mut workers: Vec<usize> =
        words.iter().skip(1).map(|word| word.parse().expect("a number of workers")).collect();
    if workers.is_empty() {
        workers = vec![8, 32];
    }
    let room = tempfile::Builder::new().prefix("fanfs-bench-").tempdir().unwrap();
    let (one, many) = trees(room.path());
    for one_at_a_time in [false, true] {
        let how = if one_at_a_time { "one call at a time" } else { "any number of calls at once" };
        println!("\n{} for a call, {how}\n", humantime::format_duration(delay));
        println!(
            "| workers | files in | mode | files/s, 1 replica | 3 replicas | ratio | shares |"
        );
        println!("|---:|---|---|---:|---:|---:|---|");
        for &workers in &workers {
            for (what, files) in [("1 directory", &one), ("20 directories", &many)] {
                for mode in ["shared", "copies"] {
                    let (single, _) =
                        row(room.path(), files, (1, mode), delay, one_at_a_time, workers);
                    let (triple, shares) =
                        row(room.path(), files, (3, mode), delay, one_at_a_time, workers);
                    let ratio = triple / single;
                    println!(
                        "| {workers} | {what} | {mode} | {single:.0} | {triple:.0} | {ratio:.2} | {shares} |"
                    );
                }
            }
        }
    }
}

/// Files of one directory, and the same number in several, below the mount.
fn trees(room: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let make = |name: String| {
        let path = room.join("tree").join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [7; 4096]).unwrap();
        room.join("mnt").join(name)
    };
    fs::create_dir(room.join("mnt")).unwrap();
    let one = (0..FILES).map(|i| make(format!("one/f{i}"))).collect();
    let many = (0..FILES).map(|i| make(format!("many/d{}/f{i}", i % DIRECTORIES))).collect();
    (one, many)
}

/// Files per second, and the percentage of reads and of metadata calls that each replica served.
fn row(
    room: &Path,
    files: &[PathBuf],
    (replicas, mode): (usize, &str),
    delay: Duration,
    one_at_a_time: bool,
    workers: usize,
) -> (f64, String) {
    let mut text = format!("[volume]\nname = \"bench\"\nmode = \"{mode}\"\n");
    (0..replicas).for_each(|i| text.push_str(&format!("[[replica]]\npath = \"/bench/r{i}\"\n")));
    text.push_str("[read]\ncache = \"direct\"\n");
    let config = config::parse(&text, Path::new("bench")).unwrap();
    let backends = (0..replicas).map(|_| {
        let line = one_at_a_time.then(|| Mutex::new(()));
        let inner = DirBackend::open(&room.join("tree")).unwrap();
        Arc::new(Server { inner, cost: Arc::new(Cost { delay, line }) }) as Arc<dyn Backend>
    });
    let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
    let backends = ReplicaMap::from_iter(backends);
    let mount = Mount::start_with_backends(config, backends, &room.join("mnt"), &extra).unwrap();
    let next = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while started.elapsed() < LONG {
                    let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                    assert_eq!(fs::read(&files[at % files.len()]).unwrap().len(), 4096);
                }
            });
        }
    });
    let rate = next.into_inner() as f64 / started.elapsed().as_secs_f64();
    let status = mount.status();
    mount.stop().unwrap();
    let percent = |of: &dyn Fn(usize) -> u64| {
        let all: u64 = (0..replicas).map(of).sum();
        let parts: Vec<_> =
            (0..replicas).map(|i| format!("{}", 100 * of(i) / all.max(1))).collect();
        parts.join("/")
    };
    let reads = percent(&|i| status.replicas[i].counters.reads);
    let metadata = percent(&|i| status.replicas[i].counters.metadata);
    (rate, format!("reads {reads}, metadata {metadata}"))
}
