//! Opens that give the kernel the pages of a file, while something else happens to it.

use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fanfs::backend::{Backend, DirBackend, RequestContext};
use fanfs::config::CachePolicy;
use fanfs::fs::{
    Fs, Ino, KernelPages, OpenedFile, ReadCaller, SmallFileReads, run, run_on_session_thread,
};
use fanfs::volume::ByteRange;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::small_reads::Reply;
use crate::{VolumeSetup, answer, ask_read, entry, volume_with_setup, waits_until};

const ME: RequestContext = RequestContext::DAEMON;

/// More than any file here has.
const WHOLE: ByteRange = ByteRange { start: 0, end: 100 };

/// What [`replace_all`] writes.
const NEWER: &[u8] = b"newer";

/// What a test does while the kernel takes pages.
type Meanwhile = Box<dyn FnOnce(Ino) + Send>;

/// A kernel that takes pages.
#[derive(Default)]
struct Kernel {
    stored: Mutex<Vec<(Ino, Vec<u8>)>>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl KernelPages for Kernel {
    fn drop_pages(&self, _: Ino, _: ByteRange) {}

    fn store(&self, ino: Ino, bytes: &[u8]) -> bool {
        self.stored.lock().unwrap().push((ino, bytes.to_vec()));
        if let Some(act) = self.meanwhile.lock().unwrap().take() {
            // This thread has a request already.
            std::thread::spawn(move || act(ino)).join().unwrap();
        }
        true
    }
}

struct Rig {
    fs: Arc<Fs>,
    kernel: Arc<Kernel>,
    small_reads: SmallFileReads<Reply>,
    tree: Arc<TempDir>,
    _runtime: Runtime,
}

impl Rig {
    fn new(read_only: bool) -> Self {
        let runtime = Runtime::new().unwrap();
        let tree = Arc::new(tempfile::tempdir().unwrap());
        let backend: Arc<dyn Backend> = Arc::new(DirBackend::open(tree.path()).unwrap());
        let setup =
            VolumeSetup { inline_calls: 4, read_only, ..VolumeSetup::new(CachePolicy::Kernel) };
        let fs = volume_with_setup(vec![backend], &setup, &runtime).fs;
        let kernel = Arc::<Kernel>::default();
        fs.set_kernel_pages(Arc::clone(&kernel) as Arc<dyn KernelPages>);
        let small_reads = fs.open_files.small_reads();
        Self { fs, kernel, small_reads, tree, _runtime: runtime }
    }

    /// Writes a file and looks it up.
    fn add(&self, name: &str) -> Ino {
        fs::write(self.tree.path().join(name), name).unwrap();
        answer(self.fs.namespace.lookup(ME, entry(name))).ino
    }

    /// Opens another file as a thread of the session, and reads it.
    fn open_another(&self, number: usize) -> OpenedFile {
        let name = format!("another{number}");
        let ino = self.add(&name);
        let (send, receive) = channel();
        let fs = Arc::clone(&self.fs);
        run_on_session_thread(async move {
            send.send(fs.open_files.open(ME, ino, false, &()).await).unwrap();
        });
        let opened = receive.recv().unwrap().unwrap();
        let (send, receive) = channel();
        let caller = ReadCaller { process: 0, small_reads: Some(&self.small_reads) };
        self.fs.open_files.read(opened.handle, WHOLE, caller, Reply(send));
        let read = receive.recv().unwrap().unwrap();
        assert!(read == name.as_bytes() || read == NEWER);
        opened
    }

    /// Opens files until the kernel gets the pages of one, and does `act` meanwhile. Returns the
    /// reply to that open.
    fn open_and(&self, act: impl FnOnce(Ino) + Send + 'static) -> OpenedFile {
        *self.kernel.meanwhile.lock().unwrap() = Some(Box::new(act));
        let opened = Mutex::new(None);
        let number = Mutex::new(0);
        waits_until("the kernel gets pages", || {
            *number.lock().unwrap() += 1;
            *opened.lock().unwrap() = Some(self.open_another(*number.lock().unwrap()));
            self.kernel.meanwhile.lock().unwrap().is_none()
        });
        let last = opened.lock().unwrap().take();
        last.unwrap()
    }
}

/// Starts an open, which must not be answered within a moment. Its reply comes later.
fn start_waiting_open(fs: &Arc<Fs>, ino: Ino) -> Receiver<OpenedFile> {
    let (send, receive) = channel();
    let fs = Arc::clone(fs);
    run(async move { send.send(fs.open_files.open(ME, ino, false, &()).await.unwrap()).unwrap() });
    let early = receive.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err_and(|error| error == RecvTimeoutError::Timeout), "it has not waited");
    receive
}

#[test]
fn the_kernel_gets_the_whole_file_once() {
    let rig = Rig::new(true);
    let opened = rig.open_and(|_| ());
    assert!(opened.keep_cache, "the kernel would drop its pages");
    let stored = rig.kernel.stored.lock().unwrap().clone();
    let [(ino, bytes)] = &stored[..] else { panic!("{stored:?}") };
    assert!(bytes.starts_with(b"another"));
    let again = answer(rig.fs.open_files.open(ME, *ino, false, &()));
    assert!(again.keep_cache && rig.kernel.stored.lock().unwrap().len() == 1);
}

#[test]
fn another_open_waits_until_the_kernel_has_the_pages() {
    let rig = Rig::new(true);
    let (send, waiting) = channel();
    let fs = Arc::clone(&rig.fs);
    let opened = rig.open_and(move |ino| send.send(start_waiting_open(&fs, ino)).unwrap());
    assert!(opened.keep_cache);
    let other = waiting.recv().unwrap().recv().unwrap();
    assert!(other.keep_cache, "it is of the same version");
}

/// The file is replaced while the kernel gets its bytes, and an open has found that.
#[test]
fn pages_of_an_older_version_are_dropped() {
    let rig = Rig::new(true);
    let (send, waiting) = channel();
    let (fs, tree) = (Arc::clone(&rig.fs), Arc::clone(&rig.tree));
    let opened = rig.open_and(move |ino| {
        replace_all(&tree);
        send.send(start_waiting_open(&fs, ino)).unwrap();
    });
    let other = waiting.recv().unwrap().recv().unwrap();
    assert!(!opened.keep_cache && !other.keep_cache);
    for handle in [opened.handle, other.handle] {
        assert_eq!(ask_read(&rig.fs, handle, WHOLE).unwrap(), NEWER);
    }
}

/// The kernel takes no newer attributes from before it drops the pages.
#[test]
fn pages_older_than_attributes_are_dropped() {
    let rig = Rig::new(true);
    let (fs, tree) = (Arc::clone(&rig.fs), Arc::clone(&rig.tree));
    let opened = rig.open_and(move |ino| {
        replace_all(&tree);
        assert_eq!(answer(fs.namespace.getattr(ME, ino, None)).attr.size, NEWER.len() as u64);
    });
    assert!(!opened.keep_cache);
}

/// Writes to each file.
fn replace_all(tree: &TempDir) {
    for file in fs::read_dir(tree.path()).unwrap() {
        fs::write(file.unwrap().path(), NEWER).unwrap();
    }
}

#[test]
fn in_a_writable_volume_the_kernel_asks_for_pages() {
    let rig = Rig::new(false);
    (0..100).for_each(|number| drop(rig.open_another(number)));
    assert!(rig.kernel.stored.lock().unwrap().is_empty());
}
