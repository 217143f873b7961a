//! Files that are written through the mount while they are opened and read.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use fanfs::backend::{
    Backend, DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript, OpenAccess,
    RequestContext, SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Errno, Fs, FsResult, Ino, OpenedFile, WriteRequest, run};
use fanfs::volume::{ByteRange, ReplicaId};
use tokio::runtime::Runtime;

use crate::{answer, ask_read, entry, open, read, start_read, volume, volume_with, waits_until};

const ME: RequestContext = RequestContext::DAEMON;

fn open_to_write(fs: &Arc<Fs>, ino: Ino) -> OpenedFile {
    let how = WriteOpenOptions {
        access: OpenAccess::ReadWrite,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    answer(fs.open_files.open_to_write(ME, ino, how, &()))
}

fn request(data: &[u8]) -> WriteRequest<'_> {
    let (offset, append, is_part, whole, again, who) = (0, false, false, false, false, None);
    WriteRequest { offset, data, append, is_part, whole, is_resent: again, caller: who }
}

/// Whether this process has the file open.
fn has_open(path: &Path) -> bool {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    links.flatten().any(|link| fs::read_link(link.path()).is_ok_and(|to| to == path))
}

/// Between the answer of the replica that opens a file and the end of the open, another
/// caller writes to the file and closes it.
#[test]
fn an_open_overtaken_by_a_write_sees_the_new_data() {
    let runtime = Runtime::new().unwrap();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
        let trees = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = [0, 1].map(|i| trees[i].path().join(name));
        fs::write(&paths[0], "four").unwrap();
        fs::hard_link(&paths[0], &paths[1]).unwrap();
        // The kernel must read the file from the first replica, whose open hangs.
        let script = Arc::new(FaultScript::default());
        let first =
            FaultInjector::new(DirBackend::open(trees[0].path()).unwrap(), Arc::clone(&script));
        let second = DirBackend::open(trees[1].path()).unwrap();
        let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(first), Arc::new(second)];
        let fs = volume_with(backends, (CachePolicy::Direct, true), &runtime);
        let ino = answer(fs.namespace.lookup(ME, entry(name))).ino;
        let hang = FaultRule { count: 1, ..FaultRule::always(FaultOp::Open, Fault::Hang) };
        script.add(hang);
        let (send, receive) = sync_channel(1);
        let opening = Arc::clone(&fs);
        run(async move {
            send.send(opening.open_files.open(ME, ino, false, &()).await).unwrap();
        });
        waits_until("the open hangs", || script.is_exhausted());
        if !has_open(&paths[1]) {
            // The first replica was asked first.
            script.heal();
            receive.recv().unwrap().unwrap();
            continue;
        }

        let writer = open_to_write(&fs, ino);
        assert_eq!(answer(fs.mutations.write(writer.handle, request(b"longer now"))), 10);
        fs.open_files.release(writer.handle);
        waits_until("the writer is closed", || fs.gauges().calls == 1);
        script.heal();
        let opened = receive.recv().unwrap().unwrap();
        assert_eq!(read(&fs, &opened), b"longer now");
        return;
    }
    panic!("the first replica opens every file first");
}

/// A write that waits for memory has not reached the replica, but the kernel already shows its
/// bytes. If the kernel drops those pages, it reads them again.
#[test]
fn a_read_after_a_write_sees_the_new_data() {
    let attempts = (0..5).map(|_| {
        let (tree, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        ["f", "other"].iter().for_each(|name| fs::write(tree.path().join(name), "old").unwrap());
        let script = Arc::new(FaultScript::default());
        script.add(FaultRule::always(FaultOp::Mutation, Fault::Hang).beneath("other"));
        let faulty =
            FaultInjector::new(DirBackend::open(tree.path()).unwrap(), Arc::clone(&script));
        let fs = volume_with(vec![Arc::new(faulty)], (CachePolicy::Kernel, false), &runtime);
        let open = |name: &str| {
            let ino = answer(fs.namespace.lookup(ME, entry(name))).ino;
            open_to_write(&fs, ino)
        };
        let (file, other) = (open("f"), open("other"));
        let (begins, has_begun) = sync_channel(2);
        let (send, receive) = sync_channel::<FsResult<Vec<u8>>>(1);
        std::thread::scope(|scope| {
            // The first takes the room of the second, which then waits for it.
            for (handle, bytes) in [(other.handle, 256 << 10), (file.handle, 128 << 10)] {
                let (fs, begins) = (&fs, begins.clone());
                scope.spawn(move || {
                    begins.send(()).unwrap();
                    answer(fs.mutations.write(handle, request(&vec![b'n'; bytes])))
                });
                has_begun.recv().unwrap();
                if handle == other.handle {
                    waits_until("the first write hangs", || fs.gauges().calls == 1);
                }
            }
            // One that arrives before the write does not wait.
            let waits = (0..100).any(|_| {
                let send = send.clone();
                start_read(&fs, file.handle, ByteRange::at(0, 3), move |data| {
                    send.send(data).unwrap();
                });
                receive.recv_timeout(Duration::from_millis(500)).is_err()
            });
            script.heal();
            waits && receive.recv().unwrap().unwrap() == b"nnn"
        })
    });
    assert!(attempts.into_iter().any(|waited| waited), "no read waited for the write before it");
}

/// A volume whose replica's answers a test can hold back, with the file f.
struct Held {
    fs: Arc<Fs>,
    script: Arc<FaultScript>,
    ino: Ino,
    reader: OpenedFile,
    tree: tempfile::TempDir,
}

impl Held {
    fn new(runtime: &Runtime, cache: CachePolicy) -> Self {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("f"), "four").unwrap();
        let script = Arc::new(FaultScript::default());
        let inner = DirBackend::open(tree.path()).unwrap();
        let backend: Arc<dyn Backend> = Arc::new(FaultInjector::new(inner, Arc::clone(&script)));
        let fs = volume_with(vec![backend], (cache, false), runtime);
        let ino = answer(fs.namespace.lookup(ME, entry("f"))).ino;
        let reader = open(&fs, ino);
        Self { fs, script, ino, reader, tree }
    }

    /// Makes the next call of this kind, or its answer, wait.
    fn hold(&self, op: FaultOp) {
        self.script.replace(FaultRule { count: 1, ..FaultRule::always(op, Fault::Hang) });
    }

    fn write(&self, writer: &OpenedFile, data: &'static [u8]) {
        let written = answer(self.fs.mutations.write(writer.handle, request(data)));
        assert_eq!(written, data.len() as u64);
    }

    /// Closes the file, while `calls` others wait.
    fn close(&self, writer: &OpenedFile, calls: usize) {
        self.fs.open_files.release(writer.handle);
        waits_until("it is closed", || self.fs.gauges().calls == calls);
    }

    fn read(&self, range: ByteRange) -> Vec<u8> {
        ask_read(&self.fs, self.reader.handle, range).unwrap()
    }
}

/// Two handles are closed. The replica's answer to the close of the first is from before a write
/// through the other, and comes last.
#[test]
fn the_version_after_the_last_close_is_the_latest() {
    let runtime = Runtime::new().unwrap();
    for cache in [CachePolicy::Kernel, CachePolicy::Direct] {
        let held = Held::new(&runtime, cache);
        let [first, other] = [0, 1].map(|_| open_to_write(&held.fs, held.ino));
        held.hold(FaultOp::FileAttrAnswer);
        held.fs.open_files.release(first.handle);
        waits_until("the replica answers", || held.script.is_exhausted());
        held.write(&other, b"longer than four");
        held.close(&other, 1);
        held.script.heal();
        waits_until("the first is closed", || held.fs.gauges().calls == 0);
        assert_eq!(held.read(ByteRange::at(4, 100)), b"er than four", "{cache:?}");
    }
}

/// The kernel cuts a file where a read ends, so no read ends before the length that the kernel has.
#[test]
fn a_read_past_the_end_finds_the_length_that_the_kernel_has() {
    let runtime = Runtime::new().unwrap();
    // The kernel's cache asks for whole pages.
    let page = 4096;
    let cases = [
        (CachePolicy::Kernel, ByteRange::at(0, page)),
        (CachePolicy::Kernel, ByteRange::at(5, 2 * page)),
        (CachePolicy::Direct, ByteRange::at(0, 100)),
        (CachePolicy::Direct, ByteRange::at(5, 100)),
    ];
    for (cache, range) in cases {
        let held = Held::new(&runtime, cache);
        held.hold(FaultOp::Metadata);
        let (send, receive) = sync_channel(1);
        let (fs, ino) = (Arc::clone(&held.fs), held.ino);
        run(async move { send.send(fs.namespace.getattr(ME, ino, None).await).unwrap() });
        waits_until("the replica is asked", || held.script.is_exhausted());
        let writer = open_to_write(&held.fs, held.ino);
        held.write(&writer, b"five!");
        held.close(&writer, 1);
        assert_eq!(held.read(ByteRange::at(0, 5)), b"five!");
        // Not through this mount.
        fs::write(held.tree.path().join("f"), "seven!!").unwrap();
        held.script.heal();
        assert_eq!(receive.recv().unwrap().unwrap().attr.size, 7, "the kernel has this");
        assert_eq!(held.read(range), b"seven!!"[range.start as usize..], "{cache:?}");
    }
}

#[test]
fn a_read_past_an_end_that_cannot_be_confirmed_fails() {
    let runtime = Runtime::new().unwrap();
    for cache in [CachePolicy::Kernel, CachePolicy::Direct] {
        let held = Held::new(&runtime, cache);
        let writer = open_to_write(&held.fs, held.ino);
        held.write(&writer, b"longer than four");
        let failing = Fault::Errno(rustix::io::Errno::IO);
        held.script.add(FaultRule::always(FaultOp::Metadata, failing));
        // The replica does not answer for the version.
        held.close(&writer, 0);
        held.script.add(FaultRule::always(FaultOp::Open, failing));
        let read = || ask_read(&held.fs, held.reader.handle, ByteRange::at(4, 100));
        assert_eq!(read(), Err(Errno::IO), "{cache:?}: not the end of the file");
        assert_eq!(read(), Err(Errno::IO), "{cache:?}: nor the next time");
        held.script.heal();
        assert_eq!(read().unwrap(), b"er than four");
    }
}

/// The journal of a daemon that was killed has the version of the open.
#[test]
fn a_restored_handle_finds_the_end_of_the_file() {
    let runtime = Runtime::new().unwrap();
    let before = Held::new(&runtime, CachePolicy::Kernel);
    let (snapshot, _) = before.fs.snapshot().unwrap();
    fs::write(before.tree.path().join("f"), "longer than four").unwrap();
    let next = volume(before.tree.path(), CachePolicy::Kernel, &runtime);
    next.restore(snapshot, Vec::new(), &|old| Some(ReplicaId::new(old.into()))).unwrap();
    let read = ask_read(&next, before.reader.handle, ByteRange::at(4, 100)).unwrap();
    assert_eq!(read, b"er than four");
}
