//! Requirements for every backend, whatever it consists of.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fanfs::backend::{
    Attr, Backend, BackendError, BackendFile, CreateOptions, DirBackend, EntryRef, EntryVisitor,
    FaultInjector, FaultScript, FileKind, Generation, InodeIdentity, LazyFile, NfsBackend,
    NfsTimes, ObjectRef, OwnedFileParts, PoolLimits, RateLimited, Replica, Result, SeekTo, StatFs,
    SyncMode, TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::buffer::PipePool;
use fanfs::config;
use fanfs::survey::Roster;
use fanfs::volume::ReplicaId;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::needs;
use crate::nfs_server::NfsServer;

const MIB: usize = 1 << 20;

fn tree() -> TempDir {
    let room = tempfile::tempdir().unwrap();
    let at = room.path().join("root");
    fs::create_dir_all(at.join("d/sub")).unwrap();
    fs::write(at.join("d/f"), vec![7; MIB + 5]).unwrap();
    fs::hard_link(at.join("d/f"), at.join("d/link")).unwrap();
    symlink("../../somewhere", at.join("d/up")).unwrap();
    symlink("sub", at.join("d/inside")).unwrap();
    fs::create_dir(room.path().join("outside")).unwrap();
    fs::write(room.path().join("outside/f"), "outside").unwrap();
    symlink("../../outside", at.join("d/out")).unwrap();
    symlink("/", at.join("d/slash")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(10 * MIB as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", 5 * MIB as u64).unwrap();
    room
}

fn refused<T>(result: Result<T>) -> Errno {
    match result.err() {
        Some(BackendError::Os(errno)) => errno,
        other => panic!("expected an errno, got {other:?}"),
    }
}

/// What a directory does.
fn suite(backend: &dyn Backend) {
    names(backend, Errno::XDEV);
    assert_eq!(
        refused(backend.get_xattr(&ObjectRef::unchecked("d/f"), "user.none".as_ref())),
        Errno::NODATA
    );
    assert!(backend.list_xattr(&ObjectRef::unchecked("d/f")).is_ok());
    adopts(backend, &*opened(backend));
    let (sparse, _) = backend.open(Path::new("sparse")).unwrap();
    seeks(&*sparse);
}

/// Names, attributes and reads.
fn names(backend: &dyn Backend, error_of_way_out: Errno) {
    let p = Path::new;
    attributes(backend);
    // Directories.
    let mut names: Vec<_> = backend
        .entries(&ObjectRef::unchecked(p("d")))
        .unwrap()
        .into_iter()
        .map(|e| (e.name, e.kind))
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("f", FileKind::Regular),
        ("inside", FileKind::Symlink),
        ("link", FileKind::Regular),
        ("out", FileKind::Symlink),
        ("slash", FileKind::Symlink),
        ("sub", FileKind::Directory),
        ("up", FileKind::Symlink),
    ];
    assert_eq!(names, expected.map(|(name, kind)| (OsString::from(name), kind)));
    let asked = ["f".into(), "gone".into(), "up".into()];
    let found = backend.stat_entries(&ObjectRef::unchecked(p("d")), &asked).unwrap();
    assert_eq!(found[0].unwrap().size, MIB as u64 + 5);
    assert_eq!(refused(found[1]), Errno::NOENT);
    assert_eq!(found[2].unwrap().kind, FileKind::Symlink);
    // Symbolic links are returned verbatim and never followed.
    assert_eq!(backend.read_link(&ObjectRef::unchecked(p("d/up"))).unwrap(), "../../somewhere");
    for way_out in ["d/out/f", "d/inside/x", "d/slash/etc/passwd", "d/up/x"] {
        assert_eq!(refused(backend.stat(p(way_out))), Errno::LOOP, "{way_out}");
        assert_eq!(refused(backend.open(p(way_out))), Errno::LOOP, "{way_out}");
        assert_eq!(
            refused(backend.entries(&ObjectRef::unchecked(p(way_out)))),
            Errno::LOOP,
            "{way_out}"
        );
    }
    for way_out in ["..", "d/../../outside/f", "/etc/passwd"] {
        assert_eq!(refused(backend.stat(p(way_out))), error_of_way_out, "{way_out}");
        assert_eq!(refused(backend.open(p(way_out))), error_of_way_out, "{way_out}");
    }
    // Errors are the file system's.
    assert_eq!(refused(backend.stat(p("none"))), Errno::NOENT);
    assert_eq!(refused(backend.stat(p("d/f/x"))), Errno::NOTDIR);
    assert_eq!(refused(backend.entries(&ObjectRef::unchecked(p("d/f")))), Errno::NOTDIR);
    assert_eq!(refused(backend.open(p("d/up"))), Errno::LOOP);
    assert!(backend.open(p("d")).is_err());
    let size = backend.stat_fs().unwrap();
    assert!(size.blocks >= size.bfree && size.frsize > 0);
    reads(&*opened(backend));
}

/// `d/f`
fn opened(backend: &dyn Backend) -> Arc<dyn BackendFile> {
    let (file, attr) = backend.open(Path::new("d/f")).unwrap();
    assert_eq!(attr, file.attr().unwrap());
    assert_eq!(attr.version(), backend.stat(Path::new("d/f")).unwrap().version());
    file
}

fn attributes(backend: &dyn Backend) {
    let root = backend.stat(Path::new("")).unwrap();
    assert_eq!(root.kind, FileKind::Directory);
    let (f, link) =
        (backend.stat(Path::new("d/f")).unwrap(), backend.stat(Path::new("d/link")).unwrap());
    assert_eq!((f.kind, f.size, f.nlink), (FileKind::Regular, MIB as u64 + 5, 2));
    assert_eq!(f.id, link.id);
    assert_eq!(f.id.dev, root.id.dev);
}

/// Of `d/f`.
fn reads(file: &dyn BackendFile) {
    let mut buf = vec![0; 2 * MIB];
    let mut filled = 0;
    loop {
        match file.read_at(filled as u64, &mut buf[filled..]).unwrap() {
            0 => break,
            n => filled += n,
        }
    }
    assert_eq!(filled, MIB + 5);
    assert!(buf[..filled].iter().all(|byte| *byte == 7));
    assert_eq!(file.read_at(MIB as u64 + 5, &mut buf).unwrap(), 0);
    assert_eq!(file.read_at(MIB as u64 + 4, &mut buf).unwrap(), 1);
}

/// Of `sparse`.
fn seeks(sparse: &dyn BackendFile) {
    assert_eq!(sparse.seek(0, SeekTo::Data).unwrap(), 5 * MIB as u64);
    assert!(sparse.seek(5 * MIB as u64, SeekTo::Hole).unwrap() > 5 * MIB as u64);
    assert_eq!(refused(sparse.seek(10 * MIB as u64, SeekTo::Data)), Errno::NXIO);
}

/// The open file that a file sends to another process is the same file.
fn adopts(backend: &dyn Backend, file: &dyn BackendFile) {
    assert!(backend.adopt(OwnedFileParts::default()).is_none(), "there is nothing to adopt");
    assert!(!file.parts().is_empty(), "a file that cannot be sent");
    let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let sent = file.parts();
    let arrived = OwnedFileParts {
        direct: sent.direct.map(duplicate),
        cached: sent.cached.map(duplicate),
        export: None,
    };
    let adopted = backend.adopt(arrived).expect("a file that came from another process");
    assert_eq!(adopted.attr().unwrap(), file.attr().unwrap());
    assert!(!adopted.parts().is_empty(), "a file that cannot be sent once more");
    assert_eq!(adopted.is_deferred(), file.is_deferred());
    reads(&*adopted);
}

fn directory(room: &TempDir) -> DirBackend {
    DirBackend::open(&room.path().join("root")).unwrap()
}

#[test]
fn a_directory_conforms() {
    suite(&directory(&tree()));
}

#[test]
fn a_directory_read_past_the_page_cache_conforms() {
    let room = tree();
    suite(&directory(&room).with_direct_io(true));
    // Whole blocks in an aligned buffer, as O_DIRECT requires.
    let (file, _) = directory(&room).with_direct_io(true).open(Path::new("d/f")).unwrap();
    let mut memory = vec![0; MIB + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..start + MIB];
    let mut filled = 0;
    while filled < MIB {
        filled += file.read_at(filled as u64, &mut block[filled..]).unwrap();
    }
    assert_eq!(block, &std::fs::read(room.path().join("root/d/f")).unwrap()[..MIB]);
}

fn export(server: &NfsServer, directories: Duration) -> NfsBackend {
    let text =
        format!("[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\n{}", server.replica_keys());
    let config = config::parse(&text, Path::new("v.toml")).unwrap();
    let times = NfsTimes { operation: Duration::from_secs(60), directories };
    let seat = Roster::single_entry(config.replicas[0].spec());
    NfsBackend::open(seat, times).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

#[test]
fn an_export_conforms_and_changes_nothing() {
    let room = tree();
    let server = NfsServer::new(&room.path().join("root"), None);
    for directories in [Duration::ZERO, Duration::from_secs(60)] {
        let backend = export(&server, directories);
        names(&backend, Errno::INVAL);
        let f = ObjectRef::unchecked("d/f");
        assert_eq!(refused(backend.get_xattr(&f, "user.none".as_ref())), Errno::OPNOTSUPP);
        assert_eq!(refused(backend.list_xattr(&f)), Errno::OPNOTSUPP);
        assert_eq!(refused(backend.read_link(&f)), Errno::INVAL);
        let unlink = TreeMutation::Unlink { at: EntryRef::unchecked("d/f") };
        assert_eq!(refused(backend.mutate(&unlink)), Errno::ROFS);
        let file = opened(&backend);
        assert!(backend.adopt(OwnedFileParts::default()).is_none());
        // Another process reads the file by its handle.
        let export = file.parts().export;
        let other = self::export(&server, directories);
        let adopted = other.adopt(OwnedFileParts { export, direct: None, cached: None }).unwrap();
        assert_eq!(adopted.attr(), file.attr());
        let blocks = [&file, &adopted].map(|file| {
            let mut block = vec![0; 4096];
            file.read_at(8192, &mut block).unwrap();
            block
        });
        assert!(blocks[0] == blocks[1]);
        // NFSv3 shows no holes.
        let (sparse, _) = backend.open(Path::new("sparse")).unwrap();
        assert_eq!(sparse.seek(0, SeekTo::Data).unwrap(), 0);
        assert_eq!(sparse.seek(0, SeekTo::Hole).unwrap(), 10 * MIB as u64);
        assert_eq!(refused(sparse.seek(10 * MIB as u64, SeekTo::Data)), Errno::NXIO);
        assert_eq!(backend.check_mount(), Ok(true));
    }
}

#[test]
fn an_export_and_its_directory_show_the_same_objects() {
    let room = tree();
    let server = NfsServer::new(&room.path().join("root"), None);
    let (export, directory) = (export(&server, Duration::from_secs(60)), directory(&room));
    for path in ["", "d", "d/f", "d/up", "sparse"] {
        let [one, other] = [&export as &dyn Backend, &directory].map(|backend| {
            let attr = backend.stat(Path::new(path)).unwrap();
            // The server takes write permissions away. Of each other, the two know neither birth
            // times nor handles.
            let perm = attr.perm & !0o222;
            Attr { generation: Generation::default(), blksize: 0, atime: (0, 0), perm, ..attr }
        });
        assert_eq!(one, other, "{path}");
    }
}

/// Another client moves a directory, and another one takes its name. Handles that the client of the
/// export keeps must not lead a call to the wrong one.
#[test]
fn a_kept_directory_is_the_one_that_the_caller_means() {
    let room = tree();
    let at = |path: &str| room.path().join("root").join(path);
    let server = NfsServer::new(&room.path().join("root"), None);
    let backend = export(&server, Duration::from_secs(600));
    let known = |path: &str| {
        let attr = backend.stat(Path::new(path)).unwrap();
        let identity = InodeIdentity { ino: attr.id.ino, generation: attr.generation };
        ObjectRef::new(path.into(), move |attr| identity.is_match(attr))
    };
    fs::create_dir(at("e")).unwrap();
    fs::write(at("e/f"), "other").unwrap();
    let (d, e) = (known("d"), known("e"));
    let size =
        |dir: &ObjectRef| backend.stat_entry(&EntryRef::new(dir.clone(), "f")).map(|f| f.size);
    assert_eq!((size(&d), size(&e)), (Ok(MIB as u64 + 5), Ok(5)));
    fs::rename(at("e"), at("gone")).unwrap();
    fs::rename(at("d"), at("e")).unwrap();
    // Whatever the paths lead to, the answers are about the directories that were meant.
    for (dir, right) in [(&d, MIB as u64 + 5), (&e, 5)] {
        match size(dir) {
            Ok(found) => assert_eq!(found, right, "{dir:?}"),
            Err(error) => assert_eq!(error, BackendError::WrongObject, "{dir:?}"),
        }
    }
    // Without a known identity, the path is what counts.
    backend.revalidate_dir(&ObjectRef::unchecked("e")).unwrap();
    assert_eq!(size(&ObjectRef::unchecked("e")), Ok(MIB as u64 + 5));
    let now = known("e");
    assert_eq!(size(&now), Ok(MIB as u64 + 5));
    let listed = (&backend as &dyn Backend).entries(&now).unwrap();
    assert!(listed.iter().any(|entry| entry.name == "sub"), "{listed:?}");
    fs::remove_dir_all(at("e")).unwrap();
    assert!(size(&now).is_err_and(
        |error| error == BackendError::WrongObject || error == BackendError::Os(Errno::STALE)
    ));
}

#[test]
fn spliced_bytes_equal_read_bytes() {
    let room = tree();
    let (file, attr) = directory(&room).with_direct_io(false).open(Path::new("d/f")).unwrap();
    let mut pipe = PipePool::new(MIB).unwrap().pipe().unwrap();
    let len = 300_000;
    while pipe.buffered() < len {
        let (at, left) = (4096 + pipe.buffered() as u64, len - pipe.buffered());
        let spliced = file.splice_at(at, pipe.write_end(), left).unwrap().unwrap();
        assert!(spliced > 0);
        pipe.add_buffered(spliced);
    }
    let mut bytes = vec![0; len];
    pipe.copy_out(&mut bytes).unwrap();
    let all = std::fs::read(room.path().join("root/d/f")).unwrap();
    assert_eq!(bytes, all[4096..4096 + len]);
    assert_eq!(file.splice_at(attr.size, pipe.write_end(), 1), Some(Ok(0)));
    // It does not wait for room in a pipe that is never emptied.
    let full = loop {
        match file.splice_at(0, pipe.write_end(), MIB).unwrap() {
            Ok(spliced) => pipe.add_buffered(spliced),
            Err(error) => break error,
        }
    };
    assert_eq!(full, BackendError::Os(Errno::AGAIN));
}

#[test]
fn a_rate_limited_directory_conforms() {
    suite(&RateLimited::new(directory(&tree()), 1 << 30));
}

#[test]
fn a_directory_with_inactive_faults_conforms() {
    suite(&FaultInjector::new(directory(&tree()), Arc::new(FaultScript::default())));
}

/// The kernel answers EAGAIN for a path with `..` while anything is renamed.
#[test]
fn no_path_leaves_the_root_while_files_are_renamed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("root/d")).unwrap();
    let backend = DirBackend::open(&dir.path().join("root")).unwrap();
    let names = ["a", "b"].map(|name| dir.path().join(name));
    fs::write(&names[0], "").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&names[0], &names[1]).unwrap();
                fs::rename(&names[1], &names[0]).unwrap();
            }
        });
        let mut looked = (0..20_000).map(|_| backend.stat(Path::new("d/../../a")));
        let wrong = looked.find(|looked| *looked != Err(BackendError::Os(Errno::XDEV)));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}

#[test]
fn stacked_decorators_conform() {
    let room = tree();
    let limited = RateLimited::new(directory(&room), 0);
    suite(&RateLimited::new(
        FaultInjector::new(limited, Arc::new(FaultScript::default())),
        1 << 30,
    ));
}

fn replica(backend: Arc<dyn Backend>) -> Replica {
    let limits = PoolLimits { threads: 2, queue: 4, max_inline_calls: 0 };
    Replica::new(ReplicaId::new(0), "one".to_owned(), backend, limits, Arc::default())
}

#[test]
fn a_backend_with_pooled_closes_conforms() {
    let room = tree();
    suite(&*replica(Arc::new(directory(&room))).backend());
}

#[test]
fn a_lazily_opened_file_conforms() {
    let room = tree();
    let backend: Arc<dyn Backend> = Arc::new(directory(&room));
    let lazy = |path: &str| {
        let attr = backend.stat(Path::new(path)).unwrap();
        let known = InodeIdentity { ino: attr.id.ino, generation: attr.generation };
        LazyFile::new(Arc::clone(&backend), Some(path.into()), known, true, SyncMode::No)
    };
    let file = lazy("d/f");
    assert!(file.is_deferred() && file.parts().is_empty());
    reads(&file);
    assert!(!file.is_deferred());
    adopts(&*backend, &file);
    seeks(&lazy("sparse"));
}

/// A backend whose every answer differs from a healthy directory's.
#[derive(Clone, Default)]
struct OutOfService(Arc<Recorded>);

/// The calls without a return value.
#[derive(Default)]
struct Recorded {
    unmounted: AtomicU64,
    flushes: AtomicU64,
}

const NO_ANSWER: BackendError = BackendError::Absent;

impl Backend for OutOfService {
    fn stat(&self, _: &Path) -> Result<Attr> {
        Err(NO_ANSWER)
    }
    fn stat_entry(&self, _: &EntryRef) -> Result<Attr> {
        Err(NO_ANSWER)
    }
    fn stat_entries(&self, _: &ObjectRef, _: &[OsString]) -> Result<Vec<Result<Attr>>> {
        Err(NO_ANSWER)
    }
    fn list(&self, _: &ObjectRef, _: &mut EntryVisitor<'_>) -> Result<()> {
        Err(NO_ANSWER)
    }
    fn check_open_dir(&self, _: &ObjectRef) -> Result<()> {
        Err(NO_ANSWER)
    }
    fn revalidate_dir(&self, _: &ObjectRef) -> Result<()> {
        Err(NO_ANSWER)
    }
    fn read_link(&self, _: &ObjectRef) -> Result<OsString> {
        Err(NO_ANSWER)
    }
    fn open(&self, _: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        Err(NO_ANSWER)
    }
    fn stat_fs(&self) -> Result<StatFs> {
        Err(NO_ANSWER)
    }
    fn get_xattr(&self, _: &ObjectRef, _: &OsStr) -> Result<Vec<u8>> {
        Err(NO_ANSWER)
    }
    fn list_xattr(&self, _: &ObjectRef) -> Result<Vec<u8>> {
        Err(NO_ANSWER)
    }
    fn check_mount(&self) -> Result<bool> {
        Ok(false)
    }
    fn is_in_service(&self) -> bool {
        false
    }
    fn handle_unmount(&self, mount: u64) {
        self.0.unmounted.store(mount, Ordering::Relaxed);
    }
    fn mount_id(&self) -> Option<u64> {
        Some(7)
    }
    fn reads_without_threads(&self) -> bool {
        false
    }
    fn flush_closes(&self) {
        self.0.flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn open_to_write(&self, _: &Path, _: &WriteOpenOptions) -> Result<WritableFile> {
        Err(NO_ANSWER)
    }
    fn create(&self, _: &EntryRef, _: &WriteOpenOptions, _: CreateOptions) -> Result<WritableFile> {
        Err(NO_ANSWER)
    }
    fn mutate(&self, _: &TreeMutation) -> Result<Option<Attr>> {
        Err(NO_ANSWER)
    }
    fn adopt(&self, _: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        None
    }
}

/// `backend` gives the same answers as `inner` beneath it.
fn answers_as_its_inner_backend(backend: &dyn Backend, inner: &OutOfService) {
    let dir = ObjectRef::unchecked(Path::new("d"));
    let entry = EntryRef::unchecked("d/f");
    assert_eq!(backend.stat(Path::new("d")), Err(NO_ANSWER));
    assert_eq!(backend.stat_entry(&entry), Err(NO_ANSWER));
    assert_eq!(backend.stat_entries(&dir, &["f".into()]), Err(NO_ANSWER));
    assert_eq!(backend.entries(&dir), Err(NO_ANSWER));
    assert_eq!(backend.check_open_dir(&dir), Err(NO_ANSWER));
    assert_eq!(backend.revalidate_dir(&dir), Err(NO_ANSWER));
    assert_eq!(backend.read_link(&dir), Err(NO_ANSWER));
    assert_eq!(backend.open(Path::new("d/f")).err(), Some(NO_ANSWER));
    assert_eq!(backend.stat_fs(), Err(NO_ANSWER));
    assert_eq!(backend.get_xattr(&dir, "user.a".as_ref()), Err(NO_ANSWER));
    assert_eq!(backend.list_xattr(&dir), Err(NO_ANSWER));
    assert_eq!(backend.check_mount(), Ok(false));
    assert!(!backend.is_in_service());
    assert_eq!(backend.mount_id(), Some(7));
    backend.handle_unmount(9);
    assert_eq!(inner.0.unmounted.load(Ordering::Relaxed), 9);
    assert_eq!(backend.mutate(&TreeMutation::Unlink { at: entry }), Err(NO_ANSWER));
}

#[test]
fn decorators_answer_as_the_backend_beneath() {
    let inner = OutOfService::default();
    let script = Arc::new(FaultScript::default());
    let limited = RateLimited::new(inner.clone(), 1 << 30);
    answers_as_its_inner_backend(&limited, &inner);
    limited.flush_closes();
    let injector = FaultInjector::new(inner.clone(), script);
    answers_as_its_inner_backend(&injector, &inner);
    injector.flush_closes();
    assert_eq!(inner.0.flushes.load(Ordering::Relaxed), 2);
    let replica = replica(Arc::new(inner.clone()));
    answers_as_its_inner_backend(&*replica.backend(), &inner);
}

#[test]
fn a_rate_limit_holds_for_all_threads_together() {
    let room = tree();
    let limited = Arc::new(RateLimited::new(directory(&room), 8 * MIB as u64));
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (file, _) = limited.open(Path::new("d/f")).unwrap();
                file.read_at(0, &mut vec![0; MIB]).unwrap();
            });
        }
    });
    // 4 MiB at 8 MiB/s cannot have passed sooner; later is possible.
    assert!(started.elapsed().as_millis() >= 490, "{:?}", started.elapsed());
}

#[test]
fn links_of_a_proc_in_the_tree_lead_nowhere() {
    use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
    if !needs::root() {
        return;
    }
    let room = tree();
    let at = room.path().join("root/proc");
    fs::create_dir(&at).unwrap();
    // Only this thread sees its mounts.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let apart = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", apart).unwrap();
    mount_bind("/proc", &at).unwrap();
    let backend = directory(&room);
    let secret = fs::File::open(room.path().join("outside/f")).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&secret);
    let pid = std::process::id();
    // A mount inside a replica is part of it; the target of its links is not.
    let fds = ObjectRef::unchecked(Path::new(&format!("proc/{pid}/fd")));
    assert!((&backend as &dyn Backend).entries(&fds).is_ok());
    for way_out in [format!("proc/{pid}/fd/{fd}"), format!("proc/{pid}/exe"), "proc/mounts".into()]
    {
        assert_eq!(refused(backend.open(Path::new(&way_out))), Errno::LOOP, "{way_out}");
        assert_eq!(backend.stat(Path::new(&way_out)).unwrap().kind, FileKind::Symlink);
    }
    let root = room.path().join("outside/f");
    for way in ["root", "cwd", "task/1/root"] {
        let way_out = format!("proc/{pid}/{way}{}", root.display());
        let refused = refused(backend.open(Path::new(&way_out)));
        assert!(matches!(refused, Errno::LOOP | Errno::NOENT), "{way_out}: {refused}");
    }
}
