//! A handle is what its number and its inode say together.

use std::fs;
use std::sync::mpsc::sync_channel;

use fanfs::backend::{
    Lock, LockKind, OpenAccess, RequestContext, SeekTo, SetAttr, SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Errno, FsResult, HandleId, LockOwner, LockWait, OpenedFile, ROOT, WriteRequest};
use fanfs::volume::ByteRange;

use crate::{answer, volume};

/// What `call` is refused with.
fn errno<T: Send + 'static>(
    call: impl FnOnce(Box<dyn FnOnce(FsResult<T>) + Send>),
) -> Option<Errno> {
    let (send, receive) = sync_channel(1);
    call(Box::new(move |answer| send.send(answer.err()).unwrap()));
    receive.recv().unwrap()
}

#[test]
fn every_operation_on_a_handle_is_refused_for_another_inode() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("a"), "a's").unwrap();
    fs::write(tree.path().join("b"), "b's").unwrap();
    let fs = volume(tree.path(), CachePolicy::Kernel, &runtime);
    let me = RequestContext::DAEMON;
    let ino = |name: &str| answer(|done| fs.lookup(me, ROOT, name.as_ref(), done)).ino;
    let (a, b) = (ino("a"), ino("b"));
    let how = WriteOpenOptions {
        access: OpenAccess::ReadWrite,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    let opened: OpenedFile = answer(|done| fs.open_to_write(me, a, how, done));
    let dir = answer(|done| fs.opendir(me, ROOT, done));
    assert_eq!((opened.handle.ino, dir.ino), (a, ROOT));

    let own = opened.handle;
    // The number of one with the inode of the other, and a number of another daemon.
    let wrong = [
        HandleId { ino: b, ..own },
        HandleId { ino: a, ..dir },
        HandleId { number: own.number ^ (1 << 40), ..own },
    ];
    let (range, owner) = (ByteRange::at(0, 3), LockOwner(1));
    let lock = Lock { kind: LockKind::Shared, start: 0, end: 1 };
    let write = || WriteRequest {
        offset: 0,
        data: &[0],
        append: false,
        is_part: false,
        whole: true,
        is_resent: false,
        caller: None,
    };
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    for wrong in wrong {
        let refused = [
            errno(|done| fs.read(wrong, range, 0, done)),
            errno(|done| fs.write(wrong, write(), done)),
            errno(|done| fs.flush(wrong, owner, done)),
            errno(|done| fs.fsync(wrong, false, done)),
            errno(|done| fs.fallocate(me, wrong, range, (0, false), done)),
            errno(|done| fs.lseek(wrong, 0, SeekTo::Data, done)),
            errno(|done| fs.copy_file_range(me, (wrong, range), (own, 0), false, done)),
            errno(|done| fs.copy_file_range(me, (own, range), (wrong, 0), false, done)),
            errno(|done| fs.getattr(me, wrong.ino, Some(wrong), done)),
            errno(|done| fs.setattr(me, wrong.ino, Some(wrong), set, done)),
            errno(|done| fs.set_lock(wrong, owner, lock, LockWait::NoWait, done)),
            errno(|done| fs.test_lock(wrong, owner, lock, done)),
            errno(|done| fs.readdir(wrong, 0, done)),
            errno(|done| fs.readdirplus(me, wrong, 0, done)),
            errno(|done| fs.fsyncdir(me, wrong, done)),
        ];
        assert_eq!(refused, [Some(Errno::BADF); 15], "{wrong:?}");
        fs.release(wrong);
    }
    assert_eq!(fs.gauges().handles, 2, "neither was closed");
    let data = answer(|done| fs.read(own, range, 0, done));
    assert_eq!(data.to_vec().unwrap(), b"a's");
    assert!(errno(|done| fs.readdir(dir, 0, done)).is_none());
    fs.release(own);
    fs.release(dir);
    assert_eq!(fs.gauges().handles, 0);
}
