//! A handle is identified by its number and its inode together.

use std::fs;

use fanfs::backend::{
    Lock, LockKind, OpenAccess, RequestContext, SeekTo, SetAttr, SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{
    CopyRequest, Errno, FallocateRequest, FsResult, HandleId, LockOwner, LockWait, OpenedFile,
    ROOT, WriteRequest,
};
use fanfs::volume::ByteRange;

use crate::{answer, ask, ask_read, entry, volume};

/// The errno with which a request is refused.
fn errno<T>(request: impl Future<Output = FsResult<T>>) -> Option<Errno> {
    ask(request).err()
}

#[test]
fn every_operation_on_a_handle_is_refused_for_another_inode() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::write(tree.path().join("a"), "a's").unwrap();
    fs::write(tree.path().join("b"), "b's").unwrap();
    let fs = volume(tree.path(), CachePolicy::Kernel, &runtime);
    let me = RequestContext::DAEMON;
    let ino = |name: &str| answer(fs.namespace.lookup(me, entry(name))).ino;
    let (a, b) = (ino("a"), ino("b"));
    let how = WriteOpenOptions {
        access: OpenAccess::ReadWrite,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    let opened: OpenedFile = answer(fs.open_files.open_to_write(me, a, how, &()));
    let dir = answer(fs.namespace.opendir(me, ROOT));
    assert_eq!((opened.handle.ino, dir.ino), (a, ROOT));

    let own = opened.handle;
    // One handle's number with the other's inode, and a number of another daemon.
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
    let allocate = FallocateRequest { range, mode: 0, is_resent: false };
    let copy = CopyRequest { source: own, range, target: own, target_offset: 0, is_resent: false };
    for wrong in wrong {
        let refused = [
            ask_read(&fs, wrong, range).err(),
            errno(fs.mutations.write(wrong, write())),
            errno(fs.mutations.flush(wrong, owner)),
            errno(fs.mutations.fsync(wrong, false)),
            errno(fs.mutations.fallocate(me, wrong, allocate)),
            errno(fs.open_files.lseek(wrong, 0, SeekTo::Data, &())),
            errno(fs.mutations.copy_file_range(me, CopyRequest { source: wrong, ..copy })),
            errno(fs.mutations.copy_file_range(me, CopyRequest { target: wrong, ..copy })),
            errno(fs.namespace.getattr(me, wrong.ino, Some(wrong))),
            errno(fs.mutations.setattr(me, wrong.ino, Some(wrong), set)),
            errno(fs.locks.set_lock(wrong, owner, lock, LockWait::NoWait)),
            errno(fs.locks.test_lock(wrong, owner, lock)),
            errno(fs.namespace.readdir(wrong, 0)),
            errno(fs.namespace.readdirplus(me, wrong, 0, || 4096)),
            errno(fs.mutations.fsyncdir(me, wrong)),
        ];
        assert_eq!(refused, [Some(Errno::BADF); 15], "{wrong:?}");
        fs.open_files.release(wrong);
    }
    assert_eq!(fs.gauges().handles, 2, "neither was closed");
    assert_eq!(ask_read(&fs, own, range).unwrap(), b"a's");
    assert!(errno(fs.namespace.readdir(dir, 0)).is_none());
    fs.open_files.release(own);
    fs.open_files.release(dir);
    assert_eq!(fs.gauges().handles, 0);
}
