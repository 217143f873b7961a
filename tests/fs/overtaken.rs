//! Writes overtaken by a read: the kernel has copied the bytes into pages of its cache, and the
//! read that comes first may have filled these pages with the old bytes.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fanfs::backend::{
    BackendFile, FileParts, OpenAccess, OwnedFileParts, RequestContext, RequestingThread, SyncMode,
    WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Fs, FsResult, Ino, KernelPages, OpenedFile, WriteRequest, run};
use fanfs::volume::{ByteRange, ReplicaId};
use tokio::runtime::Runtime;

use crate::{answer, ask_read, entry, open, volume, waits_until};

const ME: RequestContext = RequestContext::DAEMON;
const READER: u32 = 1;
const WRITER: u32 = 2;
const PAGE: u64 = 4096;

/// A kernel that records the pages it must drop, and may take long to drop them.
#[derive(Default)]
struct Kernel {
    dropped: Mutex<Vec<(Ino, ByteRange)>>,
    is_slow: Mutex<bool>,
    is_quick: Condvar,
}

impl KernelPages for Kernel {
    fn drop_pages(&self, ino: Ino, range: ByteRange) {
        self.dropped.lock().unwrap().push((ino, range));
        let slow = self.is_slow.lock().unwrap();
        drop(self.is_quick.wait_while(slow, |slow| *slow).unwrap());
    }

    fn store(&self, _: Ino, _: &[u8]) -> bool {
        false
    }
}

impl Kernel {
    fn set_slow(&self, slow: bool) {
        *self.is_slow.lock().unwrap() = slow;
        self.is_quick.notify_all();
    }

    fn dropped(&self) -> usize {
        self.dropped.lock().unwrap().len()
    }
}

/// A file that is open for writing and reading.
struct Volume {
    fs: Arc<Fs>,
    kernel: Arc<Kernel>,
    ino: Ino,
    writer: OpenedFile,
    reader: OpenedFile,
}

impl Volume {
    fn new(tree: &Path, runtime: &Runtime) -> Self {
        fs::write(tree.join("f"), vec![b'o'; 64 * PAGE as usize]).unwrap();
        fs::write(tree.join("other"), "").unwrap();
        let fs = volume(tree, CachePolicy::Kernel, runtime);
        let kernel = Arc::new(Kernel::default());
        fs.set_kernel_pages(Arc::clone(&kernel) as Arc<dyn KernelPages>);
        let ino = answer(fs.namespace.lookup(ME, entry("f"))).ino;
        let how = WriteOpenOptions {
            access: OpenAccess::ReadWrite,
            truncate: false,
            sync: SyncMode::No,
            expected: None,
        };
        let writer = answer(fs.open_files.open_to_write(ME, ino, how, &()));
        let reader = open(&fs, ino);
        Self { fs, kernel, ino, writer, reader }
    }

    fn read(&self, thread: u32, page: u64) {
        let range = ByteRange::at(page * PAGE, PAGE);
        let read = || ask_read(&self.fs, self.reader.handle, range);
        RequestingThread::from_tid(thread).scope(read).unwrap();
    }

    /// Writes one byte, and returns when the request has ended.
    fn write(&self, thread: u32, page: u64, is_part: bool) {
        let request = WriteRequest {
            offset: page * PAGE + 7,
            data: b"n",
            append: false,
            is_part,
            whole: false,
            is_resent: false,
            caller: None,
        };
        let write = || self.fs.mutations.write(self.writer.handle, request);
        let write = RequestingThread::from_tid(thread).scope(write);
        let (send, receive) = sync_channel(1);
        run(async move { send.send(write.await).unwrap() });
        assert_eq!(receive.recv().unwrap(), Ok(1));
        // Work left after the reply counts as a call, and starts before the reply.
        if !*self.kernel.is_slow.lock().unwrap() {
            waits_until("the write has ended", || self.fs.gauges().calls == 0);
        }
    }
}

/// Whether `request` is answered within a moment; otherwise its answer comes later.
fn answered<T: Send + 'static>(
    request: impl Future<Output = FsResult<T>> + Send + 'static,
) -> Result<T, Box<dyn FnOnce() -> T>> {
    let (send, receive) = sync_channel(1);
    run(async move { send.send(request.await).unwrap() });
    match receive.recv_timeout(Duration::from_millis(300)) {
        Ok(answer) => Ok(answer.unwrap()),
        Err(RecvTimeoutError::Timeout) => Err(Box::new(move || receive.recv().unwrap().unwrap())),
        Err(RecvTimeoutError::Disconnected) => panic!("it has no answer"),
    }
}

/// After a write the kernel asks for attributes before it reads.
#[test]
fn attributes_are_sent_after_stale_pages_are_dropped() {
    let (tree, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let volume = Volume::new(tree.path(), &runtime);
    let Volume { fs, kernel, ino, .. } = &volume;
    kernel.set_slow(true);
    volume.read(READER, 3);
    volume.write(WRITER, 3, false);
    waits_until("the kernel gets the notice", || kernel.dropped() == 1);
    assert_eq!(kernel.dropped.lock().unwrap()[0], (*ino, ByteRange::at(3 * PAGE + 7, 1)));

    let [of_file, of_name, of_link] = std::array::from_fn(|_| Arc::clone(fs));
    let ino = *ino;
    let link = move || async move { of_link.mutations.link(ME, ino, entry("link")).await };
    let by_number = answered(async move { of_file.namespace.getattr(ME, ino, None).await });
    let by_name = answered(async move { of_name.namespace.lookup(ME, entry("f")).await });
    let by_link = answered(link()).expect_err("a new name while old pages are there");
    let by_number = by_number.expect_err("attributes while old pages are there");
    let by_name = by_name.expect_err("a name while old pages are there");
    answer(fs.namespace.lookup(ME, entry("other")));
    kernel.set_slow(false);
    assert_eq!((by_number().ino, by_name().ino, by_link().ino), (ino, ino, ino));
    waits_until("nothing is left", || fs.gauges().calls == 0);
}

#[test]
fn pages_are_kept_if_no_read_can_overtake_the_write() {
    let (tree, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let volume = Volume::new(tree.path(), &runtime);
    let dropped = || volume.kernel.dropped();
    volume.write(WRITER, 3, false);
    volume.read(READER, 2);
    volume.write(WRITER, 3, false);
    assert_eq!(dropped(), 0, "another page was read");
    volume.read(WRITER, 3);
    volume.write(WRITER, 3, false);
    assert_eq!(dropped(), 0, "the writer had read before it wrote");
    volume.read(READER, 3);
    volume.write(WRITER, 4, false);
    volume.write(WRITER, 3, false);
    assert_eq!(dropped(), 0, "a write of another page has returned since");

    volume.read(READER, 3);
    volume.write(WRITER, 3, true);
    assert_eq!(dropped(), 0, "the kernel drops pages after an O_DIRECT write itself");
    volume.write(WRITER, 3, false);
    assert_eq!(dropped(), 1);
}

/// It does not know which pages the earlier daemon has read.
#[test]
fn the_next_daemon_assumes_the_first_write_was_overtaken() {
    let (tree, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let before = Volume::new(tree.path(), &runtime);
    let (snapshot, files) = before.fs.snapshot().unwrap();
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let owned_fds = |file: Arc<dyn BackendFile>| {
        let FileParts { direct, cached, .. } = file.parts();
        OwnedFileParts { direct: direct.map(own), cached: cached.map(own), export: None }
    };
    let files = files.into_iter().map(owned_fds).collect();
    let next = volume(tree.path(), CachePolicy::Kernel, &runtime);
    next.restore(snapshot, files, &|old| Some(ReplicaId::new(old.into()))).unwrap();
    next.set_kernel_pages(Arc::clone(&before.kernel) as Arc<dyn KernelPages>);
    let after = Volume { fs: next, ..before };
    after.write(WRITER, 3, false);
    assert_eq!(after.kernel.dropped(), 1);
    after.write(WRITER, 3, false);
    assert_eq!(after.kernel.dropped(), 1);
}
