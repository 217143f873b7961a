//! Changes: the write replica makes each of them once; and their results if they fail, hang or are
//! slow.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule, SetTime, TreeMutation};
use rustix::fs::{AtFlags, CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::machine::{attempts, timed};
use crate::mapped::{Mapper, Mapping};
use crate::needs;
use crate::processes;
use crate::recorder::Call;
use crate::rig::{PATIENCE, Rig, Setup, bytes, insist, mount, root, tree};

const MIB: usize = 1 << 20;

/// Three replicas; the second one is written.
const SECOND: &str = "[write]\nreplica = \"r2\"\n";

/// The same, with a short deadline.
const IMPATIENT: &str = "[write]\nreplica = \"r2\"\ndeadline = \"500ms\"\n";

/// The same for a test that waits for its end only once: other calls of the test succeed within it.
const LESS_IMPATIENT: &str = "[write]\nreplica = \"r2\"\ndeadline = \"1500ms\"\n";

fn rig(rest: &'static str) -> Rig {
    let room = tree();
    fs::write(root(&room).join("old"), bytes(3 * MIB, 1)).unwrap();
    mount(room, &Setup { write: true, rest, ..Setup::default() })
}

/// The changes that each replica was asked for.
fn changes(rig: &Rig) -> Vec<Vec<Call>> {
    let is_change = |call: &Call| {
        use Call::{Allocate, Change, Copy, FileChange, FileSet, OpenToWrite, Write};
        let of_file = matches!(call, FileChange | FileSet(_) | Allocate | Copy | Write(_));
        of_file || matches!(call, OpenToWrite | Change(_))
    };
    rig.recorded().into_iter().map(|calls| calls.into_iter().filter(is_change).collect()).collect()
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().as_ref().and_then(Errno::from_io_error)
}

/// Every kind of change, each once.
fn everything_once(at: impl Fn(&str) -> std::path::PathBuf) {
    use rustix::fs::{FallocateFlags, FileType, Gid, Mode, Timestamps, Uid};
    fs::create_dir(at("d")).unwrap();
    rustix::fs::mknodat(CWD, at("d/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(at("d/f")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10).unwrap();
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &file, Some(&mut 10), 3);
    assert_eq!(copied, Ok(3));
    file.set_len(1).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::hard_link(at("d/f"), at("d/g")).unwrap();
    std::os::unix::fs::symlink("f", at("d/l")).unwrap();
    fs::rename(at("d/g"), at("d/h")).unwrap();
    rustix::fs::renameat_with(CWD, at("d/h"), CWD, at("d/l"), RenameFlags::EXCHANGE).unwrap();
    fs::set_permissions(at("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let (uid, gid) = (Uid::from_raw(uid.as_raw()), Gid::from_raw(gid.as_raw()));
    rustix::fs::chownat(CWD, at("d/f"), Some(uid), Some(gid), AtFlags::empty()).unwrap();
    let at_one = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: at_one, last_modification: at_one };
    rustix::fs::utimensat(CWD, at("d/f"), &times, AtFlags::empty()).unwrap();
    // The daemon may get the close of d/f later: another test's program has copies of descriptors.
    nix::unistd::truncate(&at("old"), 5).unwrap();
    rustix::fs::setxattr(at("d/f"), "user.x", b"1", XattrFlags::CREATE).unwrap();
    rustix::fs::removexattr(at("d/f"), "user.x").unwrap();
    File::open(at("d")).unwrap().sync_all().unwrap();
    for name in ["d/h", "d/l", "d/f", "d/fifo"] {
        fs::remove_file(at(name)).unwrap();
    }
    fs::remove_dir(at("d")).unwrap();
}

/// The name of a change.
fn name(call: &Call) -> &'static str {
    match call {
        Call::OpenToWrite => "open",
        Call::Write(_) => "write",
        Call::Allocate => "fallocate",
        Call::Copy => "copy_file_range",
        Call::FileSet(_) => "ftruncate",
        Call::FileChange => "fsync or close",
        Call::Change(change) => match change {
            TreeMutation::Mkdir { .. } => "mkdir",
            TreeMutation::Mknod { .. } => "mknod",
            TreeMutation::Symlink { .. } => "symlink",
            TreeMutation::Link { .. } => "link",
            TreeMutation::Unlink { .. } => "unlink",
            TreeMutation::Rmdir { .. } => "rmdir",
            TreeMutation::Rename { .. } => "rename",
            TreeMutation::SetAttr { .. } => "set",
            TreeMutation::SetXattr { .. } => "setxattr",
            TreeMutation::RemoveXattr { .. } => "removexattr",
            TreeMutation::FsyncDir { .. } => "fsync of a directory",
        },
        _ => "no change",
    }
}

#[test]
fn every_change_goes_to_the_write_replica_once() {
    let rig = rig(SECOND);
    rig.record();
    everything_once(|path| rig.at(path));
    let changes = changes(&rig);
    assert!(changes[0].is_empty() && changes[2].is_empty(), "{changes:?}");
    // exec(2) of a program that another test starts closes its copy of a descriptor.
    let (closes, others): (Vec<_>, Vec<_>) =
        changes[1].iter().map(name).partition(|name| *name == "fsync or close");
    assert!(closes.len() >= 2, "{changes:?}");
    // The recorder hides the target from copy_file_range(2), so it is written instead.
    let expected = "mkdir, mknod, open, write, fallocate, copy_file_range, write, ftruncate, \
                    link, symlink, rename, rename, set, set, set, set, setxattr, removexattr, \
                    fsync of a directory, unlink, unlink, unlink, unlink, rmdir";
    assert_eq!(others.join(", "), expected);
    assert_eq!(rig.status().counters.bytes_written, 6);
    rig.expect_quiet();
}

/// This machine's time may differ from the server's.
#[test]
fn the_write_replica_sets_times_set_to_now() {
    let rig = rig(SECOND);
    rig.record();
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    rustix::fs::utimensat(CWD, rig.at("old"), &times, AtFlags::empty()).unwrap();
    rustix::fs::futimens(File::open(rig.at("old")).unwrap(), &times).unwrap();
    let changes = changes(&rig).remove(1);
    let set = |change: &Call| match change {
        Call::Change(TreeMutation::SetAttr { attributes, .. }) | Call::FileSet(attributes) => {
            *attributes
        }
        other => panic!("{other:?}"),
    };
    let times = changes.iter().map(set).map(|set| (set.atime, set.mtime));
    let left = (Some(SetTime::Now), Some(SetTime::Now));
    assert_eq!(times.collect::<Vec<_>>(), [left, left]);
}

/// Linux sends no syncfs(2) to a FUSE server. It begins to write the pages that it
/// holds, and does not wait until they are written.
#[test]
fn syncfs_reaches_no_replica() {
    if !needs::program("python3") {
        return;
    }
    let rig = rig(SECOND);
    let file = File::options().read(true).write(true).open(rig.at("old")).unwrap();
    let mut mapper = Mapper::of(&rig.at("old"), Mapping::Written).unwrap();
    // A new process would close its copy of the file. Recorded from here on: on a busy machine the
    // kernel may write the page before syncfs(2).
    let _no_start = processes::no_start();
    rig.record();
    mapper.fill(0, 4096, 7).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let is_written = || fs::read(rig.source(0, "old")).unwrap()[..4096] == [7; 4096];
    let until = Instant::now() + PATIENCE;
    while !is_written() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_written());
    assert_eq!(changes(&rig)[1].iter().map(name).collect::<Vec<_>>(), ["write"]);
}

#[test]
fn a_failed_change_is_not_tried_on_another_replica() {
    for error in [Errno::IO, Errno::STALE, Errno::HOSTDOWN] {
        let rig = rig(SECOND);
        rig.record();
        rig.scripts[1].add(FaultRule::always(FaultOp::Mutation, Fault::Errno(error)));
        // The kernel retries only ESTALE, after another lookup of the path.
        let times = if error == Errno::STALE { 2 } else { 1 };
        assert_eq!(errno(fs::create_dir(rig.at("d"))), Some(error));
        let changes = changes(&rig);
        assert_eq!([changes[0].len(), changes[1].len(), changes[2].len()], [0, times, 0]);
        assert!(!rig.source(0, "d").exists());
    }
}

#[test]
fn a_change_on_a_hung_replica_times_out_and_never_starts() {
    let room = tree();
    fs::write(root(&room).join("old"), bytes(3 * MIB, 1)).unwrap();
    let read = "deadline = \"1s\"\ndeadline_all = \"1s\"\nattempt_deadline = \"500ms\"";
    let rig = mount(room, &Setup { write: true, read, rest: IMPATIENT, ..Setup::default() });
    rig.record();
    rig.scripts[1].add(FaultRule::always(FaultOp::Any, Fault::Hang));
    // As many as there are threads, and then some that wait for one.
    let names: Vec<_> = (0..12).map(|i| rig.at(format!("d{i}"))).collect();
    let ((), took) = timed(|| {
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(move || assert_eq!(errno(fs::create_dir(name)), Some(Errno::TIMEDOUT)));
            }
        });
    });
    // The kernel serializes the changes of one directory, and looks names up before. Without this
    // deadline one change would take 5 min.
    assert!(took < Duration::from_secs(120), "{took:?}");
    assert_eq!(insist(|| fs::read(rig.at("old"))).len(), 3 * MIB, "reads go on");
    rig.scripts[1].heal();
    rig.expect_quiet();
    std::thread::sleep(Duration::from_millis(300));
    let made = names.iter().filter(|name| name.exists()).count();
    let asked = changes(&rig)[1].len();
    assert!(made <= asked && asked < names.len(), "{made} made, {asked} asked for");
}

/// The threads that are inside a change although they are not a replica's.
fn session_threads_in_changes() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // A thread that has ended meanwhile has no name.
    let is_in_change = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("w:fuser-"))
    };
    let ids = tasks.filter(is_in_change).map(|task| task.file_name().unwrap().to_owned());
    ids.map(|id| id.into_string().unwrap()).collect()
}

/// A session thread makes changes of a quick replica. The next daemon must see that it may still be
/// inside one.
#[test]
fn a_quick_change_that_hangs_holds_a_session_thread_that_says_so() {
    // How quick a replica is, the load of the machine decides too.
    let until = Instant::now() + PATIENCE;
    while !change_that_hangs_holds_a_session_thread() {
        assert!(Instant::now() < until, "no session thread was ever inside the change");
    }
}

/// Returns false if a thread of the replica's pool made the change.
fn change_that_hangs_holds_a_session_thread() -> bool {
    let is_held = Cell::new(false);
    attempts(|| {
        let rig = rig(LESS_IMPATIENT);
        for i in 0..20 {
            insist(|| fs::create_dir(rig.at(format!("d{i}"))));
        }
        rig.expect_quiet();
        rig.scripts[1]
            .add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Mutation, Fault::Hang) });
        let begun = session_threads_in_changes();
        assert_eq!(errno(fs::create_dir(rig.at("late"))), Some(Errno::TIMEDOUT));
        let mut held = session_threads_in_changes();
        held.retain(|thread| !begun.contains(thread));
        is_held.set(!held.is_empty());
        rig.eventually("the status shows it", |status| status.replicas[1].hung_threads == 1);
        assert_eq!(insist(|| fs::read(rig.at("old"))).len(), 3 * MIB, "reads go on");
        insist(|| fs::create_dir(rig.at("next")));
        rig.scripts[1].heal();
        rig.eventually("the late call has ended", |status| status.replicas[1].hung_threads == 0);
        let until = Instant::now() + PATIENCE;
        while session_threads_in_changes().iter().any(|thread| held.contains(thread)) {
            assert!(Instant::now() < until, "a thread kept the name");
            std::thread::sleep(Duration::from_millis(10));
        }
        rig.expect_quiet();
    });
    is_held.get()
}

#[test]
fn lost_writes_are_reported_by_write_or_fsync() {
    attempts(|| {
        let rig = rig(LESS_IMPATIENT);
        let mut file = File::create(rig.at("f")).unwrap();
        file.write_all(b"one").unwrap();
        rig.scripts[1]
            .add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Write, Fault::Hang) });
        assert_eq!(errno(file.write_all(b"two")), Some(Errno::TIMEDOUT));
        // It may still be in flight, and later changes must not overtake it.
        assert_eq!(errno(file.write_all(b"three")), Some(Errno::IO));
        rig.scripts[1].heal();
        assert!(errno(file.sync_all()).is_some(), "silence");
        let until = Instant::now() + PATIENCE;
        while file.write_at(b"four", 3).is_err() {
            assert!(Instant::now() < until, "it never took a write again");
            std::thread::sleep(Duration::from_millis(20));
        }
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read(rig.source(0, "f")).unwrap(), b"onefour");
        rig.expect_quiet();
    });
}

/// After a write, replicas open the file again. That may be refused, as after a chmod(2).
#[test]
fn an_open_file_stays_readable_when_it_cannot_be_opened_again() {
    let room = tree();
    fs::write(root(&room).join("f"), "old").unwrap();
    let read = "cache = \"direct\"";
    let rig = mount(room, &Setup { write: true, rest: SECOND, read, ..Setup::default() });
    let reader = File::open(rig.at("f")).unwrap();
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    File::options().write(true).open(rig.at("f")).unwrap().write_all_at(b"new", 0).unwrap();
    rig.eventually("the writer is closed", |status| {
        status.gauges.handles == 1 && status.gauges.calls == 0
    });
    let refused = FaultRule::always(FaultOp::Open, Fault::Errno(Errno::ACCESS));
    rig.scripts.iter().for_each(|script| script.replace(refused));
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"new");
}

/// The call hangs until the caller has tried again and made a newer file.
#[test]
fn a_removal_that_was_given_up_removes_no_newer_file() {
    attempts(|| {
        let rig = rig(IMPATIENT);
        let hang = |op| FaultRule { count: 1, ..FaultRule::always(op, Fault::Hang) };
        insist(|| fs::write(rig.at("f"), "first"));
        insist(|| fs::write(rig.at("g"), "first"));
        rig.expect_quiet();
        rig.scripts[1].replace(hang(FaultOp::Mutation));
        assert_eq!(errno(fs::remove_file(rig.at("f"))), Some(Errno::TIMEDOUT));
        insist(|| match fs::remove_file(rig.at("f")) {
            // The try before was late, and made it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            answer => answer,
        });
        insist(|| fs::write(rig.at("f"), "second"));
        rig.scripts[1].add(hang(FaultOp::Mutation));
        assert_eq!(errno(fs::rename(rig.at("g"), rig.at("f"))), Some(Errno::TIMEDOUT));
        insist(|| fs::write(rig.at("f"), "third"));
        rig.scripts[1].heal();
        rig.eventually("the late calls have ended", |s| s.replicas[1].hung_threads == 0);
        rig.expect_quiet();
        assert_eq!(fs::read_to_string(rig.source(1, "f")).unwrap(), "third");
        assert_eq!(fs::read_to_string(rig.source(1, "g")).unwrap(), "first");
    });
}

#[test]
fn fsync_and_close_errors_reach_the_caller() {
    let rig = rig(SECOND);
    let file = File::create(rig.at("f")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    rig.scripts[1].add(FaultRule::always(FaultOp::Mutation, Fault::Errno(Errno::NOSPC)));
    assert_eq!(errno(file.sync_all()), Some(Errno::NOSPC));
    let closed = nix::unistd::close(file);
    assert_eq!(closed, Err(nix::Error::ENOSPC));
}

#[test]
fn a_file_being_written_is_read_from_the_write_replica() {
    let rig = rig(SECOND);
    let reader = File::open(rig.at("old")).unwrap();
    let mut buf = vec![0; 3 * MIB];
    reader.read_exact_at(&mut buf, 0).unwrap();
    // A hedge of the read above may still be on its way.
    rig.eventually("no read is in flight", |status| {
        status.gauges.segments_waiting + status.gauges.segments_in_flight == 0
    });
    let writer = File::options().write(true).open(rig.at("old")).unwrap();
    rig.record();
    let new = bytes(3 * MIB, 2);
    writer.write_all_at(&new, 0).unwrap();
    reader.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf == new, "the old bytes");
    let reads = |calls: &[Call]| calls.iter().filter(|call| matches!(call, Call::Read(_))).count();
    let read: Vec<_> = rig.recorded().iter().map(|calls| reads(calls)).collect();
    assert_eq!((read[0], read[2]), (0, 0), "{read:?}");
    drop(writer);
    let until = Instant::now() + PATIENCE;
    loop {
        let got = fs::read(rig.at("old")).unwrap();
        assert!(got == new, "other bytes");
        // The kernel keeps the written bytes in its cache.
        rustix::fs::fadvise(&reader, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let read: Vec<_> = rig.recorded().iter().map(|calls| reads(calls)).collect();
        if read[0] > 0 && read[2] > 0 {
            break;
        }
        assert!(Instant::now() < until, "the others never read it again: {read:?}");
    }
    drop(reader);
    rig.expect_quiet();
}

/// Another replica that shows the old version is not used for the file.
#[test]
fn a_replica_showing_an_old_version_is_not_read() {
    let room = tree();
    fs::write(root(&room).join("f"), b"old").unwrap();
    let rig = mount(room, &Setup { write: true, rest: SECOND, ..Setup::default() });
    assert_eq!(fs::read(rig.at("f")).unwrap(), b"old");
    // As a mount with outdated names: the new file is not there.
    for other in [0, 2] {
        rig.scripts[other].add(FaultRule::always(FaultOp::Open, Fault::Errno(Errno::NOENT)));
        rig.scripts[other].add(FaultRule::always(FaultOp::Metadata, Fault::Errno(Errno::NOENT)));
    }
    fs::write(rig.at("next"), b"newer").unwrap();
    fs::rename(rig.at("next"), rig.at("f")).unwrap();
    assert_eq!(fs::read(rig.at("f")).unwrap(), b"newer");
    assert_eq!(fs::metadata(rig.at("f")).unwrap().len(), 5);
    assert_eq!(errno(fs::metadata(rig.at("next"))), Some(Errno::NOENT));
    let names: Vec<_> =
        fs::read_dir(rig.at("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
}

/// An abandoned write is not made after a later one.
#[test]
fn an_abandoned_change_never_follows_a_later_one() {
    attempts(|| {
        let rig = rig(LESS_IMPATIENT);
        fs::write(rig.at("f"), b"....").unwrap();
        rig.record();
        rig.scripts[1]
            .add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Write, Fault::Hang) });
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let file = File::options().write(true).open(rig.at("f"));
                    assert!(file.and_then(|file| file.write_all_at(b"AAAA", 0)).is_err());
                });
            }
        });
        // All handles are closed, and another one is opened. It may not write yet.
        let late = || File::options().write(true).open(rig.at("f"))?.write_all_at(b"BBBB", 0);
        assert!(late().is_err());
        rig.scripts[1].heal();
        let until = Instant::now() + PATIENCE;
        while late().is_err() {
            assert!(Instant::now() < until, "it never took a write again");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(fs::read(rig.source(0, "f")).unwrap(), b"BBBB");
        let is_write = |call: &&Call| matches!(call, Call::Write(_));
        let writes = rig.recorded()[1].iter().filter(is_write).count();
        assert_eq!(writes, 2, "the one that hung, and the last: no other was begun");
    });
}

/// The file is read while a call changes it, and no handle has it open for writing.
#[test]
fn reads_wait_for_a_slow_change() {
    let rig = rig(SECOND);
    let file = File::open(rig.at("old")).unwrap();
    fs::remove_file(rig.at("old")).unwrap();
    let long = Fault::Delay(Duration::from_millis(300));
    rig.scripts[1].add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Mutation, long) });
    std::thread::scope(|scope| {
        let changed = scope.spawn(|| file.set_permissions(fs::Permissions::from_mode(0o600)));
        let mut buf = vec![0; MIB];
        while !changed.is_finished() {
            file.read_exact_at(&mut buf, MIB as u64).unwrap();
            assert!(buf == bytes(3 * MIB, 1)[MIB..2 * MIB]);
        }
        changed.join().unwrap().unwrap();
    });
    let mut buf = vec![0; 3 * MIB];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf == bytes(3 * MIB, 1));
}

#[test]
fn unlinked_files_stay_usable() {
    let rig = rig(SECOND);
    let mut file =
        File::options().read(true).write(true).create_new(true).open(rig.at("f")).unwrap();
    let reader = File::open(rig.at("old")).unwrap();
    fs::remove_file(rig.at("f")).unwrap();
    fs::rename(rig.at("old"), rig.at("older")).unwrap();
    fs::write(rig.at("other"), b"other").unwrap();
    fs::rename(rig.at("other"), rig.at("older")).unwrap();
    file.write_all(b"still there").unwrap();
    file.set_len(5).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    let mut got = Vec::new();
    file.read_to_end(&mut got).unwrap();
    let mut all = vec![0; 5];
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!((&*all, got.len()), (&b"still"[..], 0));
    let status = file.metadata().unwrap();
    assert_eq!((status.len(), status.nlink(), status.mode() & 0o777), (5, 0, 0o600));
    let mut old = vec![0; 3 * MIB];
    reader.read_exact_at(&mut old, 0).unwrap();
    assert!(old == bytes(3 * MIB, 1), "the file that was renamed over");
    assert_eq!(fs::read(rig.at("older")).unwrap(), b"other");
    drop((file, reader));
    rig.expect_quiet();
}

#[test]
fn a_file_moved_with_its_directory_stays_usable() {
    let rig = rig(SECOND);
    fs::create_dir_all(rig.at("a/b")).unwrap();
    fs::write(rig.at("a/b/f"), bytes(2 * MIB, 3)).unwrap();
    let reader = File::open(rig.at("a/b/f")).unwrap();
    let writer = File::options().append(true).open(rig.at("a/b/f")).unwrap();
    fs::rename(rig.at("a"), rig.at("c")).unwrap();
    (&writer).write_all(b"more").unwrap();
    let mut got = Vec::new();
    (&reader).read_to_end(&mut got).unwrap();
    assert!(got[..2 * MIB] == bytes(2 * MIB, 3) && &got[2 * MIB..] == b"more");
    drop(writer);
    fs::set_permissions(rig.at("c/b/f"), fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(reader.metadata().unwrap().mode() & 0o777, 0o604);
    assert_eq!(fs::read(rig.at("c/b/f")).unwrap().len(), 2 * MIB + 4);
}

#[test]
fn appends_go_to_the_end_known_to_the_write_replica() {
    let rig = rig(SECOND);
    let mut file = File::options().append(true).create(true).open(rig.at("log")).unwrap();
    file.write_all(b"one ").unwrap();
    let mut beside = File::options().append(true).open(rig.source(0, "log")).unwrap();
    beside.write_all(b"two ").unwrap();
    file.write_all(b"three").unwrap();
    drop(file);
    assert_eq!(fs::read(rig.source(0, "log")).unwrap(), b"one two three");
}

/// fsync(2) concerns the file: data written through another descriptor must be safe after it.
#[test]
fn fsync_reaches_the_replica_from_any_descriptor() {
    let rig = rig(SECOND);
    let reader = File::open(rig.at("old")).unwrap();
    let sent = || -> Vec<usize> {
        let is_sync = |call: &&Call| matches!(call, Call::FileChange);
        rig.recorded().iter().map(|calls| calls.iter().filter(is_sync).count()).collect()
    };
    // First without a writer, then with the file open for writing elsewhere.
    rig.record();
    reader.sync_all().unwrap();
    assert_eq!(sent(), [0, 1, 0]);
    let writer = File::options().write(true).open(rig.at("old")).unwrap();
    rig.record();
    reader.sync_data().unwrap();
    assert_eq!(sent(), [0, 1, 0]);
    // If writing back fails, the reader's and the writer's fsync both report it.
    rig.scripts[1].add(FaultRule::always(FaultOp::Mutation, Fault::Errno(Errno::IO)));
    assert_eq!(errno(reader.sync_all()), Some(Errno::IO));
    assert_eq!(errno(writer.sync_all()), Some(Errno::IO));
    rig.scripts[1].heal();
    reader.sync_all().unwrap();
    drop((reader, writer));
    rig.expect_quiet();
}

/// The replicas that an fsync of a file and of a directory reaches, in a read-only volume of
/// `replicas`: one, and a second one only if the machine is so busy that the first seems slow.
fn fsync_asks_one_replica(replicas: usize) {
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    fs::create_dir(root(&room).join("d")).unwrap();
    let rig = mount(room, &Setup { replicas, ..Setup::default() });
    for path in ["f", "d"] {
        let open = File::open(rig.at(path)).unwrap();
        let is_sync = |call: &&Call| {
            matches!(call, Call::FileChange | Call::Change(TreeMutation::FsyncDir { .. }))
        };
        let until = Instant::now() + PATIENCE;
        loop {
            rig.record();
            open.sync_all().unwrap();
            let sent: usize = rig.recorded().iter().map(|c| c.iter().filter(is_sync).count()).sum();
            assert!((1..=replicas).contains(&sent), "{path}: {sent} calls");
            if sent == 1 {
                break;
            }
            assert!(Instant::now() < until, "{path}: never a single call");
        }
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Mutation, Fault::Errno(Errno::NOSPC)));
        }
        assert_eq!(errno(open.sync_all()), Some(Errno::NOSPC), "{path}");
        rig.scripts.iter().for_each(|script| script.heal());
    }
}

#[test]
fn fsync_reaches_a_replica_of_a_read_only_volume() {
    for replicas in [1, 3] {
        fsync_asks_one_replica(replicas);
    }
}

#[test]
fn a_read_only_volume_refuses_changes() {
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    let rig = mount(room, &Setup::default());
    rig.record();
    assert_eq!(errno(File::create(rig.at("g"))), Some(Errno::ROFS));
    assert_eq!(errno(fs::remove_file(rig.at("f"))), Some(Errno::ROFS));
    assert_eq!(errno(File::options().append(true).open(rig.at("f"))), Some(Errno::ROFS));
    assert!(changes(&rig).iter().all(Vec::is_empty));
}

#[test]
fn o_tmpfile_is_not_supported() {
    let rig = rig(SECOND);
    let mut options = File::options();
    options.read(true).write(true).custom_flags(nix::libc::O_TMPFILE);
    assert_eq!(errno(options.open(rig.at(""))), Some(Errno::OPNOTSUPP));
}

#[test]
fn times_before_1970_are_kept() {
    let rig = rig(SECOND);
    let stamps = [(-1, 250_000_000), (-1, 0), (-1000, 999_999_999), (0, 1), (5, 0)];
    for (seconds, nanos) in stamps {
        let stamp = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos };
        let times = rustix::fs::Timestamps { last_access: stamp, last_modification: stamp };
        rustix::fs::utimensat(CWD, rig.at("old"), &times, AtFlags::empty()).unwrap();
        for path in [rig.source(0, "old"), rig.at("old")] {
            let status = fs::metadata(&path).unwrap();
            assert_eq!((status.mtime(), status.mtime_nsec()), (seconds, nanos), "{path:?}");
        }
    }
}

/// Sizes and holes as on the write replica.
#[test]
fn holes_can_be_made_found_and_copied() {
    let rig = rig(SECOND);
    let new = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).open(rig.at(name)).unwrap()
    };
    let file = new("sparse");
    file.set_len(4 * MIB as u64).unwrap();
    file.write_all_at(b"data", 2 * MIB as u64).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(2 * MIB as u64));
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 2 * MIB as u64, MIB as u64).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Err(Errno::NXIO));
    assert_eq!(file.metadata().unwrap().len(), 4 * MIB as u64);
    let copy = new("copy");
    let (mut from, mut to) = (0, 7);
    let old = File::open(rig.at("old")).unwrap();
    let copied =
        rustix::fs::copy_file_range(&old, Some(&mut from), &copy, Some(&mut to), 3 * MIB).unwrap();
    assert!(copied > 0);
    drop(copy);
    let got = fs::read(rig.at("copy")).unwrap();
    assert!(got[7..] == bytes(3 * MIB, 1)[..copied] && got.len() == copied + 7);
}

#[test]
fn hard_links_share_one_inode_and_its_attributes() {
    let rig = rig(SECOND);
    fs::write(rig.at("a"), b"x").unwrap();
    fs::hard_link(rig.at("a"), rig.at("b")).unwrap();
    let status = |name: &str| fs::metadata(rig.at(name)).unwrap();
    assert_eq!((status("a").ino(), status("a").nlink()), (status("b").ino(), 2));
    fs::write(rig.at("b"), b"longer").unwrap();
    assert_eq!(status("a").len(), 6);
    fs::remove_file(rig.at("a")).unwrap();
    assert_eq!((status("b").nlink(), fs::read(rig.at("b")).unwrap()), (1, b"longer".to_vec()));
    let through_link = rustix::fs::statat(CWD, rig.at("b"), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(through_link.st_ino, fs::metadata(rig.source(0, "b")).unwrap().ino());
}

#[test]
fn the_write_replica_keeps_locks_unless_they_are_local() {
    for (rest, calls) in [(SECOND, true), ("[write]\nlocks = \"local\"\n", false)] {
        let rig = rig(rest);
        let one = File::open(rig.at("old")).unwrap();
        let other = File::open(rig.at("old")).unwrap();
        rig.record();
        rustix::fs::flock(&one, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let refused = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockShared);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        let asked = |replica: &Vec<Call>| replica.iter().any(|call| matches!(call, Call::Lock(_)));
        let asked: Vec<_> = rig.recorded().iter().map(asked).collect();
        assert_eq!(asked, [false, calls, false], "{rest}");
        drop(one);
        rustix::fs::flock(&other, rustix::fs::FlockOperation::LockShared).unwrap();
        drop(other);
        rig.expect_quiet();
    }
}

#[test]
fn a_path_outside_the_volume_is_never_changed() {
    let rig = rig(SECOND);
    fs::create_dir(rig.at("d")).unwrap();
    let outside = Path::new("/tmp/fanfs-test-outside");
    std::os::unix::fs::symlink(outside, rig.source(0, "way-out")).unwrap();
    // Behind the kernel's back a directory becomes a link.
    fs::metadata(rig.at("d")).unwrap();
    fs::remove_dir(rig.source(0, "d")).unwrap();
    std::os::unix::fs::symlink("/tmp", rig.source(0, "d")).unwrap();
    let _ = fs::create_dir(rig.at("d/fanfs-test-outside"));
    assert!(!rig.source(0, "fanfs-test-outside").exists());
    let made = fs::symlink_metadata(outside).is_ok();
    if made {
        // The kernel followed the link, in the client's own tree.
        fs::remove_dir(outside).unwrap();
    }
}

/// The kernel would take it for the end of the file, and truncate the file in its cache.
#[test]
fn a_premature_end_of_file_is_not_believed() {
    for read in ["cache = \"kernel\"", "cache = \"direct\""] {
        let room = tree();
        fs::write(root(&room).join("f"), bytes(MIB, 3)).unwrap();
        let rig = mount(room, &Setup { write: true, read, ..Setup::default() });
        let writer = File::options().write(true).open(rig.at("f")).unwrap();
        let reader = File::open(rig.at("f")).unwrap();
        rig.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::ShortRead(0)));
        assert_eq!(errno(reader.read_at(&mut [0; 4096], 8192)), Some(Errno::IO), "{read}");
        rig.scripts[0].heal();
        assert_eq!(reader.metadata().unwrap().len(), MIB as u64, "{read}");
        assert_eq!(reader.read_at(&mut [0; 4096], 8192).unwrap(), 4096, "{read}");
        // A true end of the file is accepted.
        assert_eq!(reader.read_at(&mut [0; 4096], MIB as u64 - 10).unwrap(), 10, "{read}");
        drop((reader, writer));
        rig.expect_quiet();
    }
}

#[test]
fn a_repeated_read_keeps_its_first_deadline() {
    attempts(|| {
        let room = tree();
        fs::write(root(&room).join("f"), bytes(MIB, 3)).unwrap();
        const DEADLINE: Duration = Duration::from_secs(12);
        let read = "cache = \"direct\"\ndeadline = \"12s\"\nattempt_deadline = \"11s\"";
        let rig = mount(room, &Setup { replicas: 1, write: true, read, ..Setup::default() });
        let reader = File::open(rig.at("f")).unwrap();
        let hang = FaultRule::always(FaultOp::Read, Fault::Hang);
        rig.scripts[0].add(hang);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let started = Instant::now();
                (errno(reader.read_at(&mut [0; 4096], 0)), started.elapsed())
            });
            rig.eventually("it waits", |status| status.gauges.requests > 0);
            // Now it must be read again, from the write replica.
            let writer = File::options().write(true).open(rig.at("f")).unwrap();
            // The first deadline ends this much sooner than one that starts now. At half of it the
            // replica's root is asked, and its answer would be progress.
            std::thread::sleep(DEADLINE / 3);
            let again = Instant::now();
            rig.scripts[0].replace(hang);
            let (errno, took) = read.join().unwrap();
            assert_eq!(errno, Some(Errno::TIMEDOUT));
            assert!(took + Duration::from_millis(100) > DEADLINE, "{took:?}");
            assert!(again.elapsed() < DEADLINE, "the deadline began again");
            drop(writer);
        });
        rig.scripts[0].heal();
        drop(reader);
        rig.expect_quiet();
    });
}

/// fanfs repeats a lookup whose answer may be older than a change. The repetition keeps the first
/// call's deadline.
#[test]
fn a_repeated_lookup_keeps_its_first_deadline() {
    attempts(|| {
        let room = tree();
        fs::write(root(&room).join("f"), "x").unwrap();
        fs::hard_link(root(&room).join("f"), root(&room).join("g")).unwrap();
        // The first answer comes after this delay; a deadline that started then would add to it.
        const FIRST: Duration = Duration::from_secs(6);
        const DEADLINE: Duration = Duration::from_secs(8);
        let read = "deadline = \"8s\"\ndeadline_all = \"8s\"\nattempt_deadline = \"500ms\"";
        let rest = "[write]\nreplica = \"r2\"\n[fuse]\nattribute_ttl = \"1h\"\n";
        let rig = mount(room, &Setup { write: true, read, rest, ..Setup::default() });
        fs::metadata(rig.at("g")).unwrap();
        for (i, script) in rig.scripts.iter().enumerate() {
            let fault = if i == 1 { Fault::Hang } else { Fault::Delay(FIRST) };
            script.add(FaultRule::always(FaultOp::Metadata, fault));
        }
        let (found, took) = std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let started = Instant::now();
                (errno(fs::metadata(rig.at("f"))), started.elapsed())
            });
            rig.eventually("it waits", |status| status.gauges.calls > 0);
            // A change by the other name: only the write replica, which hangs, knows it.
            fs::set_permissions(rig.at("g"), fs::Permissions::from_mode(0o600)).unwrap();
            looks.join().unwrap()
        });
        assert_eq!(found, Some(Errno::TIMEDOUT));
        assert!(took + Duration::from_millis(100) > DEADLINE, "{took:?}");
        assert!(took < FIRST + DEADLINE, "the deadline began again: {took:?}");
        rig.scripts.iter().for_each(|script| script.heal());
        rig.expect_quiet();
    });
}
