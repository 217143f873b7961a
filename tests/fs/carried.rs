//! The state that one daemon hands to the next.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fanfs::backend::{
    DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript, OpenAccess, RequestContext,
    SyncMode, WriteOpenOptions,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Fs, FsResult, Ino};
use fanfs::volume::ReplicaId;
use tokio::runtime::Runtime;

use crate::{answer, ask, entry, open, read, volume_of, volume_over, waits_until};

/// Each name has one of the replicas that is asked first, so half of them have the other.
const FILES: usize = 32;

/// Another daemon that continues where `fs` ends.
fn next(fs: &Arc<Fs>, trees: &[&Path], runtime: &Runtime) -> Arc<Fs> {
    let (carried, _) = fs.snapshot().unwrap();
    let next = volume_over(trees, CachePolicy::Direct, runtime);
    next.restore(carried, Vec::new(), &|old| Some(ReplicaId::new(old.into()))).unwrap();
    next
}

fn look(fs: &Arc<Fs>, who: RequestContext, name: &str) -> FsResult<Ino> {
    ask(fs.namespace.lookup(who, entry(name))).map(|entry| entry.ino)
}

/// The second replica shows the old names, like the cache of an NFS mount.
#[test]
fn the_next_daemon_knows_recent_changes() {
    let (written, late) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (trees, runtime) = ([written.path(), late.path()], Runtime::new().unwrap());
    let names: Vec<String> = (0..FILES).map(|i| i.to_string()).collect();
    for name in &names {
        fs::write(written.path().join(name), "").unwrap();
        fs::hard_link(written.path().join(name), late.path().join(name)).unwrap();
    }
    let before = volume_over(&trees, CachePolicy::Direct, &runtime);
    for name in &names {
        let who = RequestContext::DAEMON;
        answer(before.mutations.unlink_or_rmdir(who, entry(name), false));
    }
    let after = next(&before, &trees, &runtime);
    let is_there = |name: &&String| look(&after, RequestContext::DAEMON, name).is_ok();
    assert_eq!(names.iter().filter(is_there).count(), 0);
}

/// The share of memory for listings has room for all of them, read in any order.
#[test]
fn the_next_daemon_continues_every_listing() {
    let me = RequestContext::DAEMON;
    let tree = tempfile::tempdir().unwrap();
    let (trees, runtime) = ([tree.path()], Runtime::new().unwrap());
    // A listing takes at most a quarter of the free share, so the larger ones are read first.
    let sizes = [150, 150, 300, 300, 300];
    for (dir, size) in sizes.iter().enumerate() {
        fs::create_dir(tree.path().join(dir.to_string())).unwrap();
        for i in 0..*size {
            fs::write(tree.path().join(format!("{dir}/{i:024}")), "").unwrap();
        }
    }
    let before = volume_over(&trees, CachePolicy::Direct, &runtime);
    let open = |dir: usize| {
        let ino = look(&before, me, &dir.to_string()).unwrap();
        answer(before.namespace.opendir(me, ino))
    };
    let handles: Vec<_> = (0..sizes.len()).map(open).collect();
    for handle in handles.iter().rev() {
        let listing = answer(before.namespace.readdir(*handle, 0));
        assert_eq!(listing.entries_from(0).next().unwrap().next_offset, 3, "it is not whole");
    }
    for dir in 0..sizes.len() {
        // Another listing of the directory would not continue this one.
        fs::remove_file(tree.path().join(format!("{dir}/{:024}", 0))).unwrap();
    }
    // Each daemon restores them in another order.
    for _ in 0..20 {
        let after = next(&before, &trees, &runtime);
        for (size, handle) in sizes.iter().zip(&handles) {
            let rest = answer(after.namespace.readdir(*handle, 3));
            assert_eq!(rest.entries_from(3).count(), size - 1);
        }
    }
}

/// The kernel resends unanswered requests with the same number.
#[test]
fn the_next_daemon_reverts_unanswered_entries() {
    let tree = tempfile::tempdir().unwrap();
    let (trees, runtime) = ([tree.path()], Runtime::new().unwrap());
    fs::write(tree.path().join("f"), "").unwrap();
    let before = volume_over(&trees, CachePolicy::Direct, &runtime);
    before.track_unanswered();
    let (answered, unanswered) =
        (RequestContext::DAEMON, RequestContext { request: 7, ..RequestContext::DAEMON });
    let ino = look(&before, answered, "f").unwrap();
    look(&before, unanswered, "f").unwrap();
    let kept = open(&before, ino);
    answer(before.open_files.open(unanswered, ino, false, &()));
    let after = next(&before, &trees, &runtime);
    after.open_files.roll_back_request(7);
    assert_eq!(after.gauges().handles, 1);
    after.open_files.release(kept.handle);
    after.namespace.forget(ino, 1);
    let left = after.gauges();
    assert_eq!((left.handles, left.inodes), (0, 1), "left behind");
}

/// A descriptor that was opened before a write may show old data, as on NFS, until it is opened
/// again. The predecessor could not find out the version after the last write.
#[test]
fn the_next_daemon_opens_a_file_again_whose_writer_was_closing() {
    let me = RequestContext::DAEMON;
    let tree = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    fs::write(tree.path().join("f"), "old").unwrap();
    let script = Arc::new(FaultScript::default());
    let backend = FaultInjector::new(DirBackend::open(tree.path()).unwrap(), Arc::clone(&script));
    let before = volume_of(vec![Arc::new(backend)], CachePolicy::Direct, &runtime);
    let ino = look(&before, me, "f").unwrap();
    let reader = open(&before, ino);
    assert_eq!(read(&before, &reader), b"old");
    let carried = || format!("{:?}", before.snapshot().map(|(carried, _)| carried).unwrap());
    assert!(carried().contains("is_verified: true"), "{}", carried());
    let how = WriteOpenOptions {
        access: OpenAccess::ReadWrite,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    };
    let writer = answer(before.open_files.open_to_write(me, ino, how, &())).handle;
    script.add(FaultRule::always(FaultOp::Metadata, Fault::Hang));
    std::thread::scope(|scope| {
        scope.spawn(|| before.open_files.release(writer));
        waits_until("the writer is closing", || before.gauges().handles == 1);
        let sent = carried();
        script.heal();
        assert!(sent.contains("is_verified: false"), "{sent}");
        assert!(!sent.contains("is_verified: true"), "{sent}");
    });
    before.open_files.release(reader.handle);
}
