//! A tree on disk, and a mount over it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Backend, DirBackend, FaultInjector, FaultScript, RateLimited};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::status::Status;
use fanfs::volume::{ReplicaId, ReplicaMap, ReplicaSet, splitmix64};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::export_server::{ExportServer, Versions};
use crate::machine::{LATE, Machine};
use crate::processes::{self, Command};
use crate::recorder::{Call, Hold, Record, Recorded, View};

/// How long a test waits for a condition that holds at once on an idle machine. Shorter than a
/// read's default deadline, which would make some conditions true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

/// So many samples of the memory show that the work uses some.
const ENOUGH_SAMPLES: u64 = 20;

/// How a rig is set up.
pub(crate) struct Setup {
    pub(crate) replicas: usize,
    pub(crate) copies: bool,
    /// More keys of `[volume]`.
    pub(crate) volume: &'static str,
    pub(crate) read: &'static str,
    pub(crate) rest: &'static str,
    /// Tables after all others.
    pub(crate) more: String,
    /// More keys for each replica, for the first replicas.
    pub(crate) keys: &'static [&'static str],
    /// The rate limit of each replica, MiB/s; 0 for no limit.
    pub(crate) rates: [u64; 3],
    /// Whether the volume can be written.
    pub(crate) write: bool,
    /// Plain directories, without faults and limits.
    pub(crate) plain: bool,
    /// Servers of NFSv4.1 and NFSv3 that export the directories, without faults and limits.
    pub(crate) exports: bool,
    /// Whether only this user may use the mount.
    pub(crate) own_only: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            replicas: 3,
            copies: false,
            volume: "",
            read: "",
            rest: "",
            more: String::new(),
            keys: &[],
            rates: [0; 3],
            write: false,
            plain: false,
            exports: false,
            own_only: false,
        }
    }
}

/// A mounted volume over trees in a temporary directory.
pub(crate) struct Rig {
    mount: Option<Mount>,
    pub(crate) scripts: Vec<Arc<FaultScript>>,
    records: Vec<Arc<Record>>,
    room: TempDir,
    copies: bool,
    text: String,
    backends: ReplicaMap<Arc<dyn Backend>>,
    /// Instead of `backends`.
    servers: Vec<ExportServer>,
    extra: MountOverrides,
}

/// An empty tree to fill before it is mounted.
pub(crate) fn tree() -> TempDir {
    let room = tempfile::Builder::new().prefix("fanfs-test-").tempdir().unwrap();
    fs::create_dir(room.path().join("tree")).unwrap();
    fs::create_dir(room.path().join("mnt")).unwrap();
    room
}

/// The directory to fill in a [`tree`].
pub(crate) fn root(room: &TempDir) -> PathBuf {
    room.path().join("tree")
}

/// Mounts `room`'s tree: N views of it, or N-1 copies besides it.
pub(crate) fn mount(room: TempDir, setup: &Setup) -> Rig {
    let mode = if setup.copies { "copies" } else { "shared" };
    let mut text =
        format!("[volume]\nname = \"test\"\nmode = \"{mode}\"\nchunk_size = \"64MiB\"\n");
    text.push_str(if setup.write { "access = \"rw\"\n" } else { "" });
    text.push_str(setup.volume);
    let (mut scripts, mut records, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
    for i in 0..setup.replicas {
        let dir =
            if setup.copies && i > 0 { room.path().join(format!("copy{i}")) } else { root(&room) };
        if !dir.exists() {
            let copied = Command::new("cp").arg("-a").arg(root(&room)).arg(&dir).status().unwrap();
            assert!(copied.success());
        }
        let keys = setup.keys.get(i).copied().unwrap_or_default();
        if setup.exports {
            let server = ExportServer::new(Versions::Both, i, &dir, None);
            text.push_str(&format!("[[replica]]\n{}{keys}\n", server.replica_keys()));
            servers.push(server);
            continue;
        }
        text.push_str(&format!("[[replica]]\npath = \"/test/r{i}\"\n{keys}\n"));
        let script = Arc::new(FaultScript::default());
        let rate = setup.rates.get(i).copied().unwrap_or_default() << 20;
        if setup.plain {
            backends.push(Arc::new(DirBackend::open(&dir).unwrap()));
            continue;
        }
        let link = RateLimited::new(DirBackend::open(&dir).unwrap(), rate);
        let inner = FaultInjector::new(link, Arc::clone(&script));
        let record = Arc::new(Record::default());
        backends.push(Arc::new(Recorded { inner, record: Arc::clone(&record) }));
        scripts.push(script);
        records.push(record);
    }
    text.push_str(&format!("[read]\n{}\n{}\n{}\n", setup.read, setup.rest, setup.more));
    let config = config::parse(&text, Path::new("test")).unwrap();
    let backends = ReplicaMap::from_iter(backends);
    let extra = MountOverrides {
        no_control: true,
        allow_other: !setup.own_only,
        ..MountOverrides::default()
    };
    let copies = setup.copies;
    let mut rig =
        Rig { mount: None, scripts, records, room, copies, text, backends, servers, extra };
    rig.start(config);
    rig
}

impl Rig {
    fn start(&mut self, config: config::Config) {
        let at = self.room.path().join("mnt");
        let started = match self.servers.is_empty() {
            true => Mount::start_with_backends(config, self.backends.clone(), &at, &self.extra),
            false => Mount::start_from_config(config, ReplicaSet::EMPTY, &at, &self.extra),
        };
        self.mount = Some(started.unwrap());
    }

    /// Unmounts and mounts the same trees again.
    pub(crate) fn again(mut self) -> Self {
        processes::stop(self.mount.take().unwrap()).unwrap();
        let config = config::parse(&self.text, Path::new("test")).unwrap();
        self.start(config);
        self
    }

    /// Unmounts, and returns the duration.
    pub(crate) fn end(mut self) -> Duration {
        let started = Instant::now();
        processes::stop(self.mount.take().unwrap()).unwrap();
        started.elapsed()
    }

    /// The status, once it `holds`. The limit allows for a busy machine.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < until, "it never came to this: {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A path in the mount.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.room.path().join("mnt").join(path)
    }

    /// The same path in replica `i`'s tree.
    pub(crate) fn source(&self, i: usize, path: impl AsRef<Path>) -> PathBuf {
        let tree = if self.copies && i > 0 { format!("copy{i}") } else { "tree".to_owned() };
        self.room.path().join(tree).join(path)
    }

    pub(crate) fn status(&self) -> Status {
        self.mount.as_ref().unwrap().status()
    }

    /// Records the replicas' calls from now on.
    pub(crate) fn record(&self) {
        self.records.iter().for_each(|record| record.begin());
    }

    /// Makes the replicas trust attributes until a file is opened, as NFS mounts do.
    pub(crate) fn believe(&self) {
        self.records.iter().for_each(|record| record.believe());
    }

    /// Each replica's calls since [`Rig::record`].
    pub(crate) fn recorded(&self) -> Vec<Vec<Call>> {
        self.records.iter().map(|record| record.calls()).collect()
    }

    /// Replica `i` keeps showing the names and attributes that it has now.
    pub(crate) fn lags(&self, i: usize) {
        let view = View::of(&*self.backends[ReplicaId::new(i)]);
        self.records[i].shows(Some(Arc::new(view)));
    }

    /// Holds back each replica's next answer about a name, once it was found.
    pub(crate) fn hold_back(&self) {
        self.records.iter().for_each(|record| record.hold(Hold::Next));
    }

    /// Whether a replica's answer is held back.
    pub(crate) fn is_holding_back(&self) -> bool {
        self.records.iter().any(|record| record.is_held())
    }

    /// Releases the held answers.
    pub(crate) fn let_go(&self) {
        self.records.iter().for_each(|record| record.hold(Hold::None));
    }

    /// Bytes that the replicas delivered.
    pub(crate) fn delivered(&self) -> u64 {
        self.status().replicas.iter().map(|replica| replica.counters.bytes).sum()
    }

    /// Does `work`, and checks throughout that the memory for data is within the budget. Reads that
    /// a busy machine makes late may exceed it for a short time, as docs/SECURITY.md says.
    pub(crate) fn within_budget<T>(&self, work: impl FnOnce() -> T) -> T {
        let (over, machine) = (AtomicBool::new(false), Machine::new());
        let (over, machine, most) = (&over, &machine, AtomicU64::new(0));
        let samples = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| machine.watch(|| over.load(Ordering::Relaxed)));
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let g = self.status().gauges;
                    let used = g.buffer_used.max(g.buffer_memory);
                    most.fetch_max(used, Ordering::Relaxed);
                    samples.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            over.store(true, Ordering::Relaxed);
            let result = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (most, budget) = (most.load(Ordering::Relaxed), self.status().gauges.buffer_budget);
            let is_prompt = machine.worst() < LATE;
            let bound = if is_prompt { budget } else { 2 * budget };
            // On a busy machine, all of the work may be over before a sample is taken.
            let least = u64::from(is_prompt && samples.load(Ordering::Relaxed) >= ENOUGH_SAMPLES);
            assert!((least..=bound).contains(&most), "{most} bytes of a budget of {budget}");
            result
        })
    }

    /// No open file, waiting request, call in flight or memory remains. The kernel sends releases a
    /// little after close(2), so this waits a moment.
    pub(crate) fn expect_quiet(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let g = self.status().gauges;
            let busy = g.buffer_used as usize + g.segments_waiting + g.segments_in_flight;
            if busy + g.requests + g.calls + g.handles == 0 {
                return;
            }
            assert!(Instant::now() < until, "not quiet: {g:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for script in &self.scripts {
            script.heal();
        }
        self.let_go();
        if let Some(mount) = self.mount.take() {
            let ended = processes::stop(mount);
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// Repeats a call that healthy replicas can answer, and that a short deadline ends on a busy machine.
pub(crate) fn insist<T>(call: impl Fn() -> io::Result<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match call() {
            Ok(value) => return value,
            Err(error) => {
                let is_late =
                    matches!(Errno::from_io_error(&error), Some(Errno::TIMEDOUT | Errno::IO));
                assert!(is_late && Instant::now() < until, "{error}");
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that differ at every offset and are the same in each run.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let first = splitmix64(seed);
    let mut content = vec![0; len.next_multiple_of(8)];
    for (i, word) in content.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&splitmix64(first.wrapping_add(i as u64)).to_le_bytes());
    }
    content.truncate(len);
    content
}

/// A small generator of random numbers, so that failures repeat.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
