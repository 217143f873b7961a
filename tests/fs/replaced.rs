//! Calls about a file without a name go to the replicas that have it open.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fanfs::backend::{
    Backend, CreateMode, CreateOptions, DirBackend, Fault, FaultInjector, FaultOp, FaultRule,
    FaultScript, OpenAccess, RequestContext, SeekTo, SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{CreateRequest, EntryName, Errno, Fs, FsResult, HandleId, Ino, InodeAttr};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::machine::attempts;
use crate::{answer, ask, entry, open, read, volume_of, volume_over};

const ME: RequestContext = RequestContext::DAEMON;

// A replica that a busy machine makes late is no longer asked to confirm that a file is missing. So
// each test is tried several times.

/// A file of two replicas that only the second has open; the second is not the write replica.
struct World {
    trees: [TempDir; 2],
    fs: Arc<Fs>,
    ino: Ino,
    opened: fanfs::fs::OpenedFile,
    _runtime: Runtime,
}

impl World {
    fn new() -> Self {
        let trees = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let runtime = Runtime::new().unwrap();
        let [first, second] = [0, 1].map(|i| trees[i].path());
        fs::write(second.join("f"), "older").unwrap();
        fs::hard_link(second.join("f"), first.join("f")).unwrap();
        let fs = volume_over(&[first, second], CachePolicy::Kernel, &runtime);
        let ino = answer(fs.namespace.lookup(ME, entry("f"))).ino;
        // The write replica cannot open it, and the other one must confirm that.
        fs::remove_file(first.join("f")).unwrap();
        let opened = open(&fs, ino);
        Self { trees, fs, ino, opened, _runtime: runtime }
    }

    fn path(&self, i: usize) -> &Path {
        self.trees[i].path()
    }

    /// Another client replaces the file in both replicas.
    fn replace(&self) {
        let [first, second] = [0, 1].map(|i| self.path(i).join("f"));
        fs::remove_file(&second).unwrap();
        fs::write(&second, "a newer one").unwrap();
        fs::hard_link(&second, &first).unwrap();
    }

    /// This mount creates a file in its place, or opens the one that is there.
    fn create(&self) -> Ino {
        let how = WriteOpenOptions {
            access: OpenAccess::ReadWrite,
            truncate: false,
            sync: SyncMode::No,
            expected: None,
        };
        let new = CreateOptions { exclusive: false, perm: CreateMode { perm: 0o644, umask: 0 } };
        let request = CreateRequest { at: entry("f"), open: how, create: new };
        let made = answer(self.fs.mutations.create(ME, request));
        self.fs.open_files.release(made.opened.handle);
        made.entry.ino
    }

    fn size(&self, handle: Option<HandleId>) -> u64 {
        answer(self.fs.namespace.getattr(ME, self.ino, handle)).attr.size
    }

    fn stays_readable(&self) {
        assert_eq!(self.size(None), 5);
        assert_eq!(self.size(Some(self.opened.handle)), 5);
        assert_eq!(read(&self.fs, &self.opened), b"older");
        answer(self.fs.open_files.lseek(self.opened.handle, 0, SeekTo::Hole, &()));
    }
}

#[test]
fn a_local_replacement_leaves_an_open_file_readable() {
    attempts(|| {
        let world = World::new();
        let second = world.path(1).join("f");
        fs::remove_file(second).unwrap();
        assert_ne!(world.create(), world.ino);
        world.stays_readable();
        answer(world.fs.namespace.listxattr(ME, world.ino));
    });
}

#[test]
fn a_remote_replacement_leaves_an_open_file_readable() {
    attempts(|| {
        let world = World::new();
        world.replace();
        assert_ne!(world.create(), world.ino);
        world.stays_readable();
        answer(world.fs.namespace.listxattr(ME, world.ino));
    });
}

/// The kernel takes the name for the open file's name.
#[test]
fn removing_the_replacement_leaves_an_open_file_readable() {
    attempts(|| {
        let world = World::new();
        world.replace();
        answer(world.fs.mutations.unlink_or_rmdir(ME, entry("f"), false));
        world.stays_readable();
    });
}

#[test]
fn replacing_its_directory_leaves_an_open_file_readable() {
    attempts(|| {
        let (tree, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        let dir = tree.path().join("d");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), "older").unwrap();
        let fs = volume_over(&[tree.path(), tree.path()], CachePolicy::Kernel, &runtime);
        let parent = answer(fs.namespace.lookup(ME, entry("d"))).ino;
        let ino = answer(fs.namespace.lookup(ME, EntryName { parent, name: "f".as_ref() })).ino;
        let opened = open(&fs, ino);
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "no directory").unwrap();
        assert_eq!(answer(fs.namespace.getattr(ME, ino, None)).attr.size, 5);
        assert_eq!(read(&fs, &opened), b"older");
    });
}

/// Two mounts of one export. One still caches the old state until it asks its server for the
/// directory; it notices that the file is gone when it opens it.
struct Mounts {
    trees: Arc<[TempDir; 2]>,
    scripts: [Arc<FaultScript>; 2],
    fs: Arc<Fs>,
    older: Ino,
    is_over: Arc<AtomicBool>,
    server: Option<std::thread::JoinHandle<()>>,
    _runtime: Runtime,
}

const GONE: Fault = Fault::Errno(rustix::io::Errno::STALE);
const FAILS: Fault = Fault::Errno(rustix::io::Errno::IO);

/// Makes the mount wait when it asks for the directory, until its server answers.
fn believes(script: &FaultScript) {
    let refresh = FaultRule::always(FaultOp::Metadata, Fault::Hang).beneath("");
    script.replace(FaultRule { count: 1, ..refresh });
    script.add(refresh);
}

impl Mounts {
    /// `believing` shows the file; the other mount has it no more.
    fn new(believing: usize) -> Self {
        let trees = Arc::new([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
        let scripts = [Arc::new(FaultScript::default()), Arc::new(FaultScript::default())];
        let runtime = Runtime::new().unwrap();
        let [old, new] = [believing, 1 - believing].map(|i| trees[i].path().join("f"));
        fs::write(&old, "older").unwrap();
        fs::hard_link(&old, &new).unwrap();
        let backend = |i: usize| -> Arc<dyn Backend> {
            let directory = DirBackend::open(trees[i].path()).unwrap();
            Arc::new(FaultInjector::new(directory, Arc::clone(&scripts[i])))
        };
        let fs = volume_of((0..2).map(backend).collect(), CachePolicy::Kernel, &runtime);
        let older = answer(fs.namespace.lookup(ME, entry("f"))).ino;
        fs::remove_file(&new).unwrap();
        let script = &scripts[believing];
        believes(script);
        script.add(FaultRule::always(FaultOp::Open, GONE).beneath("f"));
        let is_over = Arc::new(AtomicBool::new(false));
        let server = Some(std::thread::spawn({
            let (script, is_over) = (Arc::clone(script), Arc::clone(&is_over));
            // Answers the first time that the mount asks.
            move || {
                while !script.is_exhausted() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                fs::remove_file(&old).unwrap();
                if new.exists() {
                    fs::hard_link(&new, &old).unwrap();
                }
                script.heal();
            }
        }));
        Self { trees, scripts, fs, older, is_over, server, _runtime: runtime }
    }

    fn open_is_stale(&self) {
        let answer = ask(self.fs.open_files.open(ME, self.older, false, &()));
        // The kernel then looks the name up once more.
        assert!(answer.is_err_and(|errno| errno == Errno::STALE));
    }

    fn look_up(&self) -> FsResult<InodeAttr> {
        ask(self.fs.namespace.lookup(ME, entry("f")))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.server.take().into_iter().for_each(|server| server.join().unwrap());
    }
}

fn is_gone(answer: &FsResult<InodeAttr>) -> bool {
    answer.as_ref().is_err_and(|errno| errno.raw() == 2)
}

#[test]
fn after_estale_lookups_use_the_replica_with_the_newer_file() {
    attempts(|| {
        // Calls about one path go to one of the two while both are well.
        for believing in 0..2 {
            let mounts = Mounts::new(believing);
            fs::write(mounts.trees[1 - believing].path().join("f"), "a newer one").unwrap();
            mounts.open_is_stale();
            for _ in 0..8 {
                let newer = mounts.look_up().unwrap();
                assert_ne!(newer.ino, mounts.older);
                assert_eq!(newer.attr.size, 11);
            }
        }
    });
}

#[test]
fn after_estale_a_removed_file_is_not_found_again() {
    attempts(|| {
        // The mount that has lost the file may have to look twice.
        for (believing, stale) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let mounts = Mounts::new(believing);
            let first =
                FaultRule { count: stale, ..FaultRule::always(FaultOp::Open, GONE).beneath("f") };
            mounts.scripts[1 - believing].add(first);
            mounts.open_is_stale();
            assert!((0..8).all(|_| is_gone(&mounts.look_up())), "it is found again");
        }
    });
}

/// The mount that showed the newer file fails.
#[test]
fn a_mount_showing_an_older_file_revalidates() {
    attempts(|| {
        for believing in 0..2 {
            let mounts = Mounts::new(believing);
            fs::write(mounts.trees[1 - believing].path().join("f"), "a newer one").unwrap();
            let [script, failing] = [believing, 1 - believing].map(|i| &mounts.scripts[i]);
            // Only the other one answers.
            script.replace(FaultRule::always(FaultOp::Any, FAILS).beneath("f"));
            mounts.open_is_stale();
            believes(script);
            failing.add(FaultRule::always(FaultOp::Metadata, FAILS).beneath("f"));
            let newer = mounts.look_up().unwrap();
            assert_ne!(newer.ino, mounts.older);
            assert_eq!(newer.attr.size, 11);
        }
    });
}

#[test]
fn a_lost_name_stays_lost_until_mounts_revalidate() {
    attempts(|| {
        for believing in 0..2 {
            let mounts = Mounts::new(believing);
            // Only the mount with the new state answers.
            let script = &mounts.scripts[believing];
            script.replace(FaultRule::always(FaultOp::Metadata, FAILS).beneath("f"));
            assert!(is_gone(&mounts.look_up()));
            believes(script);
            assert!((0..8).all(|_| is_gone(&mounts.look_up())), "it is found again");
        }
    });
}

#[test]
fn a_name_lost_on_one_replica_is_found_on_the_other() {
    attempts(|| {
        for lost in 0..2 {
            let mounts = Mounts::new(1 - lost);
            mounts.scripts[1 - lost].heal();
            for _ in 0..8 {
                assert_eq!(mounts.look_up().unwrap().ino, mounts.older);
                let opened = open(&mounts.fs, mounts.older);
                assert_eq!(read(&mounts.fs, &opened), b"older");
                mounts.fs.open_files.release(opened.handle);
            }
        }
    });
}

/// Over the kernel's NFS client a rename over an open file shows both with one ctime.
#[test]
fn the_newer_file_is_chosen_independently_of_times() {
    attempts(|| {
        for believing in 0..2 {
            let mounts = Mounts::new(believing);
            let new = mounts.trees[1 - believing].path().join("f");
            fs::write(&new, "a newer one").unwrap();
            // The older one has the later ctime now, and the kernel gets it.
            let old = mounts.trees[believing].path().join("f");
            let perm = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&old, perm).unwrap();
            let [script, other] = [believing, 1 - believing].map(|i| &mounts.scripts[i]);
            let fails = FaultRule::always(FaultOp::Any, FAILS).beneath("f");
            other.add(fails);
            answer(mounts.fs.namespace.getattr(ME, mounts.older, None));
            other.heal();
            script.replace(fails);
            mounts.open_is_stale();
            believes(script);
            assert!((0..8).all(|_| mounts.look_up().unwrap().attr.size == 11), "it is found again");
        }
    });
}

/// A mount does not find the inode at its path, and asks its server only then.
#[test]
fn a_cached_object_is_not_taken_as_the_servers_answer() {
    attempts(|| {
        for stale in 0..2 {
            let mounts = Mounts::new(stale);
            let [old, new] = [stale, 1 - stale].map(|i| mounts.trees[i].path().join("f"));
            let [script, other] = [stale, 1 - stale].map(|i| &mounts.scripts[i]);
            script.heal();
            // Both mounts know the newer file, then both show the older one again.
            let kept = mounts.trees[stale].path().join("kept");
            fs::rename(&old, &kept).unwrap();
            fs::write(&new, "a newer one").unwrap();
            fs::hard_link(&new, &old).unwrap();
            let newer = mounts.look_up().unwrap();
            assert_ne!(newer.ino, mounts.older);
            fs::remove_file(&old).unwrap();
            fs::hard_link(&kept, &old).unwrap();
            let aside = mounts.trees[1 - stale].path().join("aside");
            fs::rename(&new, &aside).unwrap();
            fs::hard_link(&kept, &new).unwrap();
            let fails = FaultRule::always(FaultOp::Any, FAILS).beneath("f");
            script.add(fails);
            let answer = ask(mounts.fs.namespace.listxattr(ME, newer.ino));
            assert!(answer.is_err(), "the attributes of another file");
            // The other mount is up to date now, and fails; this one still has to ask its server.
            fs::rename(&aside, &new).unwrap();
            other.add(fails);
            believes(script);
            assert_eq!(mounts.look_up().unwrap().attr.size, 11, "the older one is found again");
        }
    });
}
