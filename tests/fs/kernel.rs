//! The flags of an open's reply, when another open of the file comes in between.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fanfs::backend::{Backend, DirBackend, RequestContext};
use fanfs::config::CachePolicy;
use fanfs::fs::{BackingId, Fs, Ino, KernelOpen, OpenedFile};

use crate::{answer, entry, volume, volume_with, waits_until};

/// A kernel that does something else during each call.
struct Kernel<F: Fn() + Send + Sync> {
    meanwhile: F,
    notices: AtomicUsize,
    lent: AtomicUsize,
    given_back: Arc<AtomicUsize>,
}

struct Lent(Arc<AtomicUsize>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Fn() + Send + Sync> Kernel<F> {
    fn new(meanwhile: F) -> Self {
        let [notices, lent] = [0, 0].map(AtomicUsize::new);
        Self { meanwhile, notices, lent, given_back: Arc::default() }
    }

    fn notices(&self) -> usize {
        self.notices.load(Ordering::SeqCst)
    }
}

impl<F: Fn() + Send + Sync> KernelOpen for Kernel<F> {
    fn register_backing(&self, _: BorrowedFd<'_>) -> std::io::Result<BackingId> {
        self.lent.fetch_add(1, Ordering::SeqCst);
        (self.meanwhile)();
        Ok(Box::new(Lent(Arc::clone(&self.given_back))))
    }

    fn invalidate_attrs(&self) {
        self.notices.fetch_add(1, Ordering::SeqCst);
        (self.meanwhile)();
    }
}

fn open(fs: &Arc<Fs>, ino: Ino, kernel: &impl KernelOpen) -> OpenedFile {
    answer(fs.open_files.open(RequestContext::DAEMON, ino, false, kernel))
}

#[test]
fn the_first_open_decides_about_passthrough() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("f"), "data").unwrap();
    let backend: Arc<dyn Backend> = Arc::new(DirBackend::open(tree.path()).unwrap());
    let fs = volume_with(vec![backend], (CachePolicy::Kernel, true), &runtime);
    let ino = answer(fs.namespace.lookup(RequestContext::DAEMON, entry("f"))).ino;

    let between = Kernel::new(|| ());
    let nested = parking_lot::Mutex::new(None);
    let first = Kernel::new(|| {
        nested.lock().get_or_insert_with(|| open(&fs, ino, &between));
    });
    let outer = open(&fs, ino, &first);
    let inner = nested.lock().take().expect("it was opened");
    let files = [&outer, &inner].map(|opened| Arc::clone(opened.backing.as_ref().unwrap()));
    assert!(Arc::ptr_eq(&files[0], &files[1]), "the kernel would refuse one of them");
    waits_until("unused pages are returned", || first.given_back.load(Ordering::SeqCst) == 1);
    assert_eq!(between.given_back.load(Ordering::SeqCst), 0);
    let status = fs.open_files.passthrough_status();
    assert_eq!((status.files, status.opens), (1, 2));

    let third = Kernel::new(|| ());
    open(&fs, ino, &third);
    assert_eq!(third.lent.load(Ordering::SeqCst), 0, "it is lent already");
}

#[test]
fn an_open_during_a_notice_waits_for_its_own_notice() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("f"), "one").unwrap();
    let fs = volume(tree.path(), CachePolicy::Kernel, &runtime);
    let ino = answer(fs.namespace.lookup(RequestContext::DAEMON, entry("f"))).ino;
    fs::write(tree.path().join("f"), "second").unwrap();

    let between = Kernel::new(|| ());
    let first = Kernel::new(|| drop(open(&fs, ino, &between)));
    open(&fs, ino, &first);
    assert_eq!((first.notices(), between.notices()), (1, 1));
    let after = Kernel::new(|| ());
    open(&fs, ino, &after);
    assert_eq!(after.notices(), 0, "the kernel has the later attributes, or none");
}
