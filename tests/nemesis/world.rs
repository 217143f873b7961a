//! A mounted volume whose replicas can fail at any moment.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{
    Attr, Backend, BackendFile, CreateOptions, DirBackend, EntryRef, EntryVisitor, Fault,
    FaultInjector, FaultOp, FaultRule, FaultScript, ObjectRef, OwnedFileParts, Result, StatFs,
    TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::status::Status;
use fanfs::volume::{ReplicaMap, ReplicaSet};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tempfile::TempDir;

use crate::content;
use crate::export_server::{ExportServer, Versions};
use crate::exports;
use crate::readers::CREW;
use crate::schedule::{Calls, Menu, Random, Trouble};
use crate::second;

/// The time within which a request ends.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// How long one replica may take before another is asked in any case.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(500);

/// The duration of a read while all is healthy: long enough to be in flight when a failure starts.
pub(crate) const USUAL: Duration = Duration::from_millis(1);

/// The time within which a change ends.
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(3);

/// How a volume is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) replicas: usize,
    /// Independent copies, or one tree that is also written.
    pub(crate) copies: bool,
    /// Exports of NFS servers, which fanfs reads without mounts; otherwise directories.
    pub(crate) exports: Option<Versions>,
    pub(crate) cache: &'static str,
    pub(crate) splice: bool,
    pub(crate) threads: usize,
    pub(crate) segment: &'static str,
    pub(crate) budget: &'static str,
    pub(crate) blackouts: bool,
    /// Whether replicas' mounts can be taken away, which needs root, or servers can end.
    pub(crate) unmounts: bool,
    /// The readers: this many of all, starting with this one.
    pub(crate) crew: (usize, usize),
}

impl Setup {
    /// The setup of this seed, with exports or directories.
    pub(crate) fn of(seed: u64, has_exports: bool) -> Self {
        let mut random = Random::new(!seed);
        let setup = Self {
            copies: seed.is_multiple_of(2),
            blackouts: seed % 4 >= 2,
            replicas: [3, 3, 3, 2, 4][random.below(5) as usize],
            cache: ["direct", "kernel", "auto"][random.below(3) as usize],
            splice: random.below(2) == 0,
            threads: [4, 6, 8][random.below(3) as usize],
            segment: ["128KiB", "256KiB", "1MiB"][random.below(3) as usize],
            budget: ["16MiB", "32MiB", "64MiB"][random.below(3) as usize],
            crew: ([1, 2, 4, 8, 8][random.below(5) as usize], random.below(8) as usize),
            exports: None,
            unmounts: has_exports || rustix::process::geteuid().is_root(),
        };
        let versions = Versions::ALL[random.below(3) as usize];
        let setup = Self { exports: has_exports.then_some(versions), ..setup };
        // Where nothing is written, one of them must read.
        let crew = match setup.crew {
            (1, first) if first + 1 == CREW.len() && !setup.is_writable() => (2, first),
            crew => crew,
        };
        Self { crew, ..setup }
    }

    /// Whether the volume can be written.
    pub(crate) fn is_writable(&self) -> bool {
        !self.copies && self.exports.is_none()
    }

    /// The failures that may occur in it.
    pub(crate) fn menu(&self, length: Duration) -> Menu {
        // The first of the copies decides which version is right.
        let diverging = self.copies.then_some(self.replicas - 1);
        Menu {
            replicas: self.replicas,
            length,
            blackouts: self.blackouts,
            diverging,
            unmounts: self.unmounts,
        }
    }

    /// The longest time that a call may take while one replica is healthy: every other replica uses
    /// its time, and the healthy one needs some of its own.
    pub(crate) fn bound(&self) -> Duration {
        ATTEMPT * self.replicas as u32 + Duration::from_millis(500)
    }

    /// The configuration without the replicas.
    fn text(&self) -> String {
        let Self { cache, splice, threads, segment, budget, .. } = self;
        let mode = if self.copies { "copies" } else { "shared" };
        let access = if self.is_writable() { "rw" } else { "ro" };
        format!(
            "[volume]\nname = \"nemesis\"\nmode = \"{mode}\"\naccess = \"{access}\"\n\
             [memory]\nbudget = \"{budget}\"\n\
             [fuse]\nsplice = {splice}\nattribute_ttl = \"100ms\"\n\
             [write]\ndeadline = \"{}ms\"\nlag = \"0s\"\n\
             [read]\ncache = \"{cache}\"\nthreads_per_replica = {threads}\n\
             segment_size = \"{segment}\"\ndeadline = \"{all}ms\"\ndeadline_all = \"{all}ms\"\n\
             attempt_deadline = \"{}ms\"\n",
            WRITE_DEADLINE.as_millis(),
            ATTEMPT.as_millis(),
            all = DEADLINE.as_millis(),
        )
    }
}

/// The controls of one replica.
enum Strings {
    Directory { script: Arc<FaultScript>, shows_diverged: Arc<AtomicBool>, place: Option<Place> },
    Export(ExportServer),
}

/// Where a replica's tree is mounted, over a diverged one, which appears when the mount is gone.
struct Place {
    at: PathBuf,
    tree: PathBuf,
    is_mounted: AtomicBool,
}

impl Place {
    fn new(at: PathBuf, tree: PathBuf, diverged: &Path) -> io::Result<Self> {
        fs::create_dir(&at)?;
        mount_bind(diverged, &at)?;
        let place = Self { at, tree, is_mounted: AtomicBool::new(false) };
        place.mount(true);
        Ok(place)
    }

    /// Mounts the tree, or detaches the mount while it is in use.
    fn mount(&self, mounted: bool) {
        match (mounted, self.is_mounted.swap(mounted, Ordering::SeqCst)) {
            (true, false) => mount_bind(&self.tree, &self.at).expect("it can be mounted"),
            (false, true) => unmount(&self.at, UnmountFlags::DETACH).expect("it was mounted"),
            _ => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while unmount(&self.at, UnmountFlags::DETACH).is_ok() {}
    }
}

/// A mounted volume.
pub(crate) struct World {
    mount: Option<Mount>,
    // The replicas' mounts must end before the directories are removed.
    strings: Vec<Strings>,
    room: TempDir,
    /// The kernel's number of its connection.
    connection: u32,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> io::Result<Self> {
        let room = tempfile::Builder::new().prefix("fanfs-nemesis-").tempdir()?;
        set_room(room.path());
        let at = |name: String| room.path().join(name);
        fs::create_dir(at("mnt".to_owned()))?;
        let diverged = at("diverged".to_owned());
        content::fill(&diverged, content::DIVERGED)?;
        let mut strings = Vec::new();
        let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
        let mut text = setup.text();
        for i in 0..setup.replicas {
            let mut own = at(format!("tree{}", if setup.copies { i } else { 0 }));
            if !own.exists() {
                content::fill(&own, content::USUAL)?;
            }
            if let Some(versions) = setup.exports {
                let server = ExportServer::new(versions, i, &own, Some(&diverged));
                text.push_str(&format!("[[replica]]\n{}", server.replica_keys()));
                strings.push(Strings::Export(server));
                continue;
            }
            text.push_str(&format!("[[replica]]\npath = \"/nemesis/r{i}\"\n"));
            let mut place = None;
            if setup.unmounts {
                let place = place.insert(Place::new(at(format!("r{i}")), own, &diverged)?);
                own = place.at.clone();
            }
            let trees = [&own, &diverged].map(|path| DirBackend::open(path).unwrap());
            let shows_diverged = Arc::new(AtomicBool::new(false));
            let script = Arc::new(FaultScript::default());
            let turning = Turning { trees, shows_diverged: Arc::clone(&shows_diverged) };
            backends.push(Arc::new(FaultInjector::new(turning, Arc::clone(&script))));
            strings.push(Strings::Directory { script, shows_diverged, place });
        }
        let config = config::parse(&text, Path::new("nemesis")).expect("a sound volume");
        let extra =
            MountOverrides { no_control: true, allow_other: true, ..MountOverrides::default() };
        let mount_point = room.path().join("mnt");
        let started = match setup.exports {
            Some(_) => Mount::start_from_config(config, ReplicaSet::EMPTY, &mount_point, &extra),
            None => {
                let backends = ReplicaMap::from_iter(backends);
                Mount::start_with_backends(config, backends, &mount_point, &extra)
            }
        };
        let mount = started.expect("a mount");
        // The connection's number is the minor number of the mount's device.
        let connection = rustix::fs::minor(fs::metadata(&mount_point)?.dev());
        MOUNTED.store(connection, Ordering::SeqCst);
        Ok(Self { mount: Some(mount), strings, room, connection })
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.room.path().join("mnt")
    }

    pub(crate) fn status(&self) -> Status {
        self.mount.as_ref().expect("it is mounted").status()
    }

    /// Breaks a replica, or heals it.
    pub(crate) fn turn(&self, replica: usize, trouble: Option<Trouble>) {
        let (script, shows_diverged, place) = match &self.strings[replica] {
            Strings::Directory { script, shows_diverged, place } => (script, shows_diverged, place),
            Strings::Export(server) => return exports::turn(server, trouble),
        };
        script.heal();
        shows_diverged.store(trouble == Some(Trouble::Diverged), Ordering::SeqCst);
        if let Some(place) = place {
            place.mount(trouble != Some(Trouble::Unmounted));
        }
        let add = |op, fault| script.add(FaultRule::always(op, fault));
        match trouble {
            None | Some(Trouble::Diverged | Trouble::Unmounted) => {
                add(FaultOp::Read, Fault::Delay(USUAL));
            }
            Some(Trouble::Hang(calls)) => {
                ops(calls).iter().for_each(|op| add(*op, Fault::Hang));
            }
            Some(Trouble::Slow(times)) => {
                add(FaultOp::Any, Fault::Delay(USUAL * times));
            }
            Some(Trouble::Error(errno, calls)) => {
                let errno = Errno::from_raw_os_error(errno);
                ops(calls).iter().for_each(|op| add(*op, Fault::Errno(errno)));
            }
            Some(Trouble::Crumbs(most)) => add(FaultOp::Read, Fault::ShortRead(most)),
            Some(Trouble::EndsEarly) => add(FaultOp::Read, Fault::ShortRead(0)),
            Some(Trouble::Flap(..)) => unreachable!("its parts are reported"),
        }
    }

    /// Heals all.
    pub(crate) fn heal(&self) {
        (0..self.strings.len()).for_each(|replica| self.turn(replica, None));
    }

    /// Makes the kernel fail every waiting request: the last resort if the daemon does not answer.
    pub(crate) fn abort(&self) {
        abort(self.connection);
    }

    /// The gauges that should be zero while no call is running: see `Gauges`. The kernel sends
    /// releases a little after close(2).
    pub(crate) fn quiet(&self) -> std::result::Result<(), String> {
        let until = Instant::now() + 2 * DEADLINE;
        loop {
            let status = self.status();
            let g = status.gauges;
            let busy = g.buffer_used as usize + g.segments_waiting + g.segments_in_flight;
            let inside: usize = status.replicas.iter().map(|replica| replica.active_threads).sum();
            if busy + inside + g.requests + g.calls + g.handles == 0 {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("gauges are not zero, {inside} threads inside: {g:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Unmounts.
    pub(crate) fn end(mut self) -> std::result::Result<(), String> {
        self.heal();
        let ended = self.mount.take().expect("it is mounted").stop();
        MOUNTED.store(0, Ordering::SeqCst);
        ended.map_err(|error| error.to_string())
    }
}

/// The directory that has all mounts of this process.
static ROOM: Mutex<Option<PathBuf>> = Mutex::new(None);

pub(crate) fn set_room(room: &Path) {
    *ROOM.lock() = Some(room.to_owned());
}

/// A mount of this process.
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
    /// The number of its FUSE connection.
    connection: Option<u32>,
}

pub(crate) fn mounts_below(dir: &Path) -> Vec<Mounted> {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let minor = fields.next()?.split(':').nth(1)?.parse().ok()?;
        let at = PathBuf::from(fields.nth(1)?);
        let is_fuse = line.split_once(" - ").is_some_and(|(_, kind)| kind.starts_with("fuse"));
        at.starts_with(dir).then_some(Mounted { at, connection: is_fuse.then_some(minor) })
    };
    table.lines().filter_map(mount).collect()
}

fn abort(connection: u32) {
    let path = format!("/sys/fs/fuse/connections/{connection}/abort");
    if let Err(error) = fs::write(&path, "1") {
        eprintln!("{path}: {error}");
    }
}

/// The connection of the mounted volume, or 0.
static MOUNTED: AtomicU32 = AtomicU32::new(0);

/// Ends the processes of a site, if there is one, and makes the kernel fail all calls that wait
/// for a mount of this process.
pub(crate) fn abort_all() {
    let Some(room) = ROOM.lock().clone() else { return };
    second::site::kill_processes(&room);
    mounts_below(&room).iter().filter_map(|mounted| mounted.connection).for_each(abort);
    // It may be detached.
    match MOUNTED.load(Ordering::SeqCst) {
        0 => {}
        connection => abort(connection),
    }
}

fn ops(calls: Calls) -> &'static [FaultOp] {
    match calls {
        Calls::Reads => &[FaultOp::Read],
        Calls::Opens => &[FaultOp::Open],
        Calls::Metadata => &[FaultOp::Open, FaultOp::Metadata],
        Calls::All => &[FaultOp::Any],
    }
}

/// A directory that may turn into another one; open files keep theirs.
struct Turning {
    trees: [DirBackend; 2],
    shows_diverged: Arc<AtomicBool>,
}

impl Turning {
    fn tree(&self) -> &DirBackend {
        &self.trees[usize::from(self.shows_diverged.load(Ordering::SeqCst))]
    }
}

impl Backend for Turning {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.tree().stat(path)
    }

    fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
        self.tree().stat_entry(name)
    }

    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.tree().stat_entries(dir, names)
    }

    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        self.tree().list(dir, each)
    }

    fn check_open_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.tree().check_open_dir(dir)
    }

    fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.tree().revalidate_dir(dir)
    }

    fn read_link(&self, path: &ObjectRef) -> Result<OsString> {
        self.tree().read_link(path)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        self.tree().open(path)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.tree().stat_fs()
    }

    fn get_xattr(&self, path: &ObjectRef, name: &OsStr) -> Result<Vec<u8>> {
        self.tree().get_xattr(path, name)
    }

    fn list_xattr(&self, path: &ObjectRef) -> Result<Vec<u8>> {
        self.tree().list_xattr(path)
    }

    fn check_mount(&self) -> Result<bool> {
        self.trees[0].check_mount()
    }

    fn is_in_service(&self) -> bool {
        self.trees[0].is_in_service()
    }

    fn reads_without_threads(&self) -> bool {
        false
    }

    fn flush_closes(&self) {
        self.trees[0].flush_closes();
    }

    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        self.trees[0].adopt(parts)
    }

    fn handle_unmount(&self, mount: u64) {
        self.trees[0].handle_unmount(mount);
    }

    fn mount_id(&self) -> Option<u64> {
        self.trees[0].mount_id()
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        self.tree().open_to_write(path, how)
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        self.tree().create(name, how, create)
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        self.tree().mutate(change)
    }
}
