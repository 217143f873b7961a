//! Which thread closes a replica's file: the one that releases the last handle, if the replica is
//! quick, and never more threads than may be inside a replica.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfs::backend::{
    Backend, DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript, OpenAccess,
    RequestContext, SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Errno, HandleId, Ino, LockOwner};
use fanfs::volume::ReplicaId;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{Volume, VolumeSetup, answer, entry, open, volume_with_setup, waits_until};

/// Session threads that may be inside a replica at once.
const INLINE_CALLS: usize = 2;

/// A volume of one replica, whose files the test opens and closes.
struct Rig {
    volume: Volume,
    script: Arc<FaultScript>,
    root: PathBuf,
    _tree: TempDir,
    _runtime: Runtime,
}

/// Heals when it is dropped, so that a failed test ends.
struct Heal<'a>(&'a FaultScript);

impl Drop for Heal<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

impl Rig {
    /// A volume with the files f0, f1 and so on.
    fn new(files: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().canonicalize().unwrap();
        (0..files).for_each(|i| fs::write(root.join(format!("f{i}")), "data").unwrap());
        let script = Arc::new(FaultScript::default());
        let backend = FaultInjector::new(DirBackend::open(&root).unwrap(), Arc::clone(&script));
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let setup =
            VolumeSetup { inline_calls: INLINE_CALLS, ..VolumeSetup::new(CachePolicy::Direct) };
        let volume = volume_with_setup(vec![backend], &setup, &runtime);
        Self { volume, script, root, _tree: tree, _runtime: runtime }
    }

    fn ino(&self, file: usize) -> Ino {
        let fs = &self.volume.fs;
        answer(fs.namespace.lookup(RequestContext::DAEMON, entry(&format!("f{file}")))).ino
    }

    fn open(&self, file: usize) -> HandleId {
        open(&self.volume.fs, self.ino(file)).handle
    }

    /// Releases a handle as a session thread does.
    fn release(&self, handle: HandleId) {
        let open_files = &self.volume.fs.open_files;
        let files = open_files.release_on_session_thread(handle);
        open_files.finish_release(files);
    }

    /// Whether this process has the file open.
    fn has_descriptor(&self, file: usize) -> bool {
        let path = self.root.join(format!("f{file}"));
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
        descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target == path)
    }

    /// Session threads that are inside the replica.
    fn inside(&self) -> usize {
        self.volume.replicas[ReplicaId::new(0)].inline_calls()
    }

    /// Releases the first files, each on a thread of its own, while closes hang. Returns how many
    /// of the threads hang.
    fn count_hung_releases(&self, files: usize) -> usize {
        let handles: Vec<_> = (0..files).map(|file| self.open(file)).collect();
        self.script.add(FaultRule::always(FaultOp::Close, Fault::Hang));
        let hung = std::thread::scope(|scope| {
            let _heal = Heal(&self.script);
            let release = |handle: HandleId| scope.spawn(move || self.release(handle));
            let threads: Vec<_> = handles.into_iter().map(release).collect();
            let ended = || threads.iter().filter(|thread| thread.is_finished()).count();
            waits_until("the other threads pass their closes on", || {
                ended() >= files - INLINE_CALLS
            });
            waits_until("the others hang in the replica", || self.inside() == files - ended());
            self.inside()
        });
        waits_until("all files are closed", || (0..files).all(|i| !self.has_descriptor(i)));
        hung
    }
}

#[test]
fn hung_closes_hold_as_many_session_threads_as_calls_may() {
    const FILES: usize = INLINE_CALLS + 3;
    // On a busy machine the replica may be too slow for session threads.
    waits_until("session threads close files", || {
        let rig = Rig::new(FILES);
        let hung = rig.count_hung_releases(FILES);
        assert_eq!(rig.inside(), 0);
        hung == INLINE_CALLS
    });
}

/// As over NFSv4, where a close may take longer than the calls that the client answers.
#[test]
fn slow_closes_are_left_to_the_replicas_threads() {
    const SLOW: Duration = Duration::from_millis(30);
    let rig = Rig::new(1);
    rig.script.add(FaultRule::always(FaultOp::Close, Fault::Delay(SLOW)));
    let is_closed_by_session = || {
        let handle = rig.open(0);
        let files = rig.volume.fs.open_files.release_on_session_thread(handle);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| rig.volume.fs.open_files.finish_release(files));
            let mut was_inside = false;
            while !closing.is_finished() {
                was_inside |= rig.inside() > 0;
                std::thread::yield_now();
            }
            was_inside
        })
    };
    waits_until("a session thread closes one", is_closed_by_session);
    let by_session = (0..20).filter(|_| is_closed_by_session()).count();
    assert!(by_session <= 1, "{by_session}: one in 64 measures the replica again");
}

#[test]
fn a_file_with_another_handle_stays_open() {
    let rig = Rig::new(1);
    let (one, other) = (rig.open(0), rig.open(0));
    rig.release(one);
    assert!(rig.has_descriptor(0));
    rig.release(other);
    waits_until("it is closed", || !rig.has_descriptor(0));
}

/// The kernel sends a FLUSH for each close(2).
#[test]
fn a_flush_without_locks_or_writes_asks_no_replica() {
    let rig = Rig::new(1);
    let (handle, owner) = (rig.open(0), LockOwner(7));
    let mutations = &rig.volume.fs.mutations;
    rig.script.add(FaultRule::always(FaultOp::Any, Fault::Hang));
    let heal = Heal(&rig.script);
    assert_eq!(mutations.flush_without_replica(handle, owner), Some(Ok(())));
    let wrong = HandleId { number: handle.number ^ (1 << 40), ..handle };
    assert_eq!(mutations.flush_without_replica(wrong, owner), Some(Err(Errno::BADF)));
    drop(heal);
    let how = WriteOpenOptions {
        access: OpenAccess::Write,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    let open_files = &rig.volume.fs.open_files;
    let writer = open_files.open_to_write(RequestContext::DAEMON, handle.ino, how, &());
    let writer = answer(writer).handle;
    assert_eq!(mutations.flush_without_replica(writer, owner), None);
}
