//! Locks through a mount, as one process takes them. `posix::locks` has those of several.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::processes::no_start;
use crate::recorder::Call;
use crate::rig::{PATIENCE, Rig, Setup, mount, root, tree};

fn rig(write: bool) -> Rig {
    let room = tree();
    fs::write(root(&room).join("f"), "as it was").unwrap();
    mount(room, &Setup { write, ..Setup::default() })
}

fn open(rig: &Rig) -> File {
    File::options().read(true).write(true).open(rig.at("f")).unwrap()
}

fn range(kind: i32) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 5, l_pid: 77 }
}

/// As on NFS; and F_GETLK does not name the owner.
#[test]
fn flock_locks_the_whole_file_like_fcntl() {
    let rig = rig(true);
    let (one, other) = (open(&rig), open(&rig));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let refused = fcntl(&other, FcntlArg::F_SETLK(&range(libc::F_WRLCK)));
    assert_eq!(refused, Err(nix::Error::EAGAIN));
    let mut found = range(libc::F_WRLCK);
    fcntl(&other, FcntlArg::F_GETLK(&mut found)).unwrap();
    assert_eq!((i32::from(found.l_type), found.l_start, found.l_len), (libc::F_WRLCK, 0, 0));
    assert_eq!(found.l_pid, 0, "the owner is not named");
    flock(&one, FlockOperation::Unlock).unwrap();
    fcntl(&other, FcntlArg::F_SETLK(&range(libc::F_WRLCK))).unwrap();
    let refused = flock(&one, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    drop((one, other));
    rig.expect_quiet();
}

/// The longest pause between two attempts of a waiter (`fs::lock`).
const PAUSE: Duration = Duration::from_millis(200);

/// Time from a waiter's last attempt until it got the lock that `held` releases; never less than
/// the true time, and a little more.
fn handed_over(rig: &Rig, take: fn(&File), give_up: fn(File) -> Option<File>) -> Duration {
    let (held, wanted) = (open(rig), open(rig));
    take(&held);
    rig.record();
    let is_set = |call: &&Call| matches!(call, Call::Lock(_));
    let attempts = || rig.recorded()[0].iter().filter(is_set).count();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            flock(&wanted, FlockOperation::LockExclusive).unwrap();
            Instant::now()
        });
        // Its pauses have become as long as they get.
        let until = Instant::now() + PATIENCE;
        while attempts() < 8 {
            assert!(Instant::now() < until, "{} attempts", attempts());
            std::thread::sleep(Duration::from_millis(10));
        }
        let seen = attempts();
        let mut before = Instant::now();
        loop {
            let now = Instant::now();
            if attempts() > seen {
                break;
            }
            assert!(now < until, "no further attempt");
            before = now;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _left_open = give_up(held);
        waiter.join().unwrap() - before
    })
}

/// How a lock is taken and released; the file stays open if it is only unlocked.
type Way = (&'static str, fn(&File), fn(File) -> Option<File>);

/// A waiter that is not woken tries again after a pause and never sooner. So a lock that it gets
/// sooner shows that it was woken; a busy machine only needs more tries.
#[test]
fn a_lock_release_wakes_a_waiter() {
    // Waits: the file that the round before closed may still have its lock, because the kernel
    // reports the last close after close(2) returned.
    fn set(file: &File, kind: i32) {
        fcntl(file, FcntlArg::F_SETLKW(&range(kind))).unwrap();
    }
    fn lock(file: &File) {
        flock(file, FlockOperation::LockExclusive).unwrap();
    }
    fn unlock(file: File) -> Option<File> {
        flock(&file, FlockOperation::Unlock).unwrap();
        Some(file)
    }
    fn close(_: File) -> Option<File> {
        None
    }
    let take = |file: &File| set(file, libc::F_WRLCK);
    let ways: [Way; 4] = [
        ("flock, unlocked", lock, unlock),
        ("flock, closed", lock, close),
        ("fcntl, unlocked", take, |file| {
            set(&file, libc::F_UNLCK);
            Some(file)
        }),
        ("fcntl, closed", take, close),
    ];
    let rig = rig(true);
    // A program that starts holds the lock of a closed file a little longer.
    let _alone = no_start();
    for (how, take, give_up) in ways {
        let until = Instant::now() + PATIENCE;
        loop {
            let took = handed_over(&rig, take, give_up);
            if took < PAUSE {
                break;
            }
            assert!(Instant::now() < until, "{how}: only after {took:?}");
        }
    }
    rig.expect_quiet();
}

#[test]
fn a_read_only_volume_allows_only_shared_locks() {
    let rig = rig(false);
    let (one, other) = (File::open(rig.at("f")).unwrap(), File::open(rig.at("f")).unwrap());
    assert_eq!(flock(&one, FlockOperation::LockExclusive), Err(Errno::BADF));
    flock(&one, FlockOperation::LockShared).unwrap();
    flock(&other, FlockOperation::LockShared).unwrap();
    let beside = File::options().write(true).open(rig.source(0, "f")).unwrap();
    let refused =
        fcntl(&beside, FcntlArg::F_OFD_SETLK(&libc::flock { l_pid: 0, ..range(libc::F_WRLCK) }));
    assert_eq!(refused, Err(nix::Error::EAGAIN), "the replica does not know of the locks");
}

#[test]
fn an_unlinked_file_cannot_be_locked() {
    for replaced in [false, true] {
        let rig = rig(true);
        let file = open(&rig);
        if replaced {
            fs::write(rig.source(0, "other"), "another file").unwrap();
            fs::rename(rig.source(0, "other"), rig.source(0, "f")).unwrap();
        } else {
            fs::remove_file(rig.at("f")).unwrap();
        }
        let refused = flock(&file, FlockOperation::LockExclusive);
        let expected = if replaced { [Errno::NOLCK; 2] } else { [Errno::NOENT, Errno::NOLCK] };
        assert!(refused.is_err_and(|errno| expected.contains(&errno)), "{replaced}: {refused:?}");
    }
}

/// Another client's write is visible after the client released its lock, whatever is cached here
/// and whatever the mounts of other replicas show.
#[test]
fn a_read_under_a_lock_sees_earlier_remote_writes() {
    let room = tree();
    // Enough names that each replica is asked about one.
    let names: Vec<_> = (0..8).map(|i| format!("f{i}")).collect();
    names.iter().for_each(|name| fs::write(root(&room).join(name), "as it was").unwrap());
    let rest = "[fuse]\nattribute_ttl = \"1h\"\n[write]\nreplica = \"r2\"\n";
    let rig = mount(room, &Setup { write: true, rest, ..Setup::default() });
    [0, 2].into_iter().for_each(|other| rig.lags(other));
    for name in names {
        let file = File::open(rig.at(&name)).unwrap();
        assert_eq!(fs::read(rig.at(&name)).unwrap(), b"as it was");
        let content = "longer than before";
        fs::write(rig.source(1, &name), content).unwrap();
        flock(&file, FlockOperation::LockShared).unwrap();
        assert_eq!(file.metadata().unwrap().len(), content.len() as u64, "{name}");
        let mut got = vec![0; 100];
        let n = file.read_at(&mut got, 0).unwrap();
        assert_eq!(String::from_utf8_lossy(&got[..n]), content, "{name}");
    }
}

/// A volume whose changes are given up after a short time, with `f` open twice.
fn impatient() -> (Rig, File, File) {
    let room = tree();
    fs::write(root(&room).join("f"), "as it was").unwrap();
    let rest = "[write]\nreplica = \"r1\"\ndeadline = \"500ms\"\n";
    let rig = mount(room, &Setup { write: true, rest, ..Setup::default() });
    let files = (open(&rig), open(&rig));
    (rig, files.0, files.1)
}

/// Sets a lock, however long the machine takes.
fn set(file: &File, kind: i32) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = fcntl(file, FcntlArg::F_SETLK(&range(kind))) {
        assert_eq!(error, nix::Error::ETIMEDOUT);
        assert!(Instant::now() < until, "the lock was never set");
    }
}

/// Makes a call that hangs until the script is healed, and that is given up before.
fn set_late(rig: &Rig, file: &File, kind: i32) {
    let hang = FaultRule::always(FaultOp::Metadata, Fault::Hang);
    for _ in 0..10 {
        rig.scripts[0].replace(FaultRule { count: 1, ..hang });
        if fcntl(file, FcntlArg::F_SETLK(&range(kind))) == Err(nix::Error::ETIMEDOUT) {
            return;
        }
        // Another call, of a health check, was the one that hung.
        rig.scripts[0].heal();
        set(file, if kind == libc::F_UNLCK { libc::F_WRLCK } else { libc::F_UNLCK });
    }
    panic!("the call never hung");
}

/// Whether another owner can lock the whole file: flock(2) locks belong to their handle.
fn is_free(file: &File) -> bool {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(Errno::WOULDBLOCK) => return false,
            Err(error) => assert_eq!(error, Errno::TIMEDOUT),
        }
    }
}

/// The replica answers a lock call late, after the process has got the same lock by another call.
#[test]
fn a_late_lock_releases_no_lock_that_its_owner_has() {
    let (rig, one, other) = impatient();
    // Opened by the owner's first call.
    set(&one, libc::F_WRLCK);
    set(&one, libc::F_UNLCK);
    for kind in [libc::F_WRLCK, libc::F_UNLCK] {
        set_late(&rig, &one, kind);
        std::thread::scope(|scope| {
            let again = scope.spawn(|| set(&one, libc::F_WRLCK));
            // Long enough for it to get ahead of the hung call, if it could.
            std::thread::sleep(Duration::from_millis(200));
            rig.scripts[0].heal();
            again.join().unwrap();
        });
        rig.eventually("the late call has ended", |s| s.replicas[0].hung_threads == 0);
        assert!(!is_free(&other), "the lock was taken away");
    }
    drop((one, other));
    rig.expect_quiet();
}

/// An owner that has no lock does not get one that it was refused.
#[test]
fn a_late_lock_is_released() {
    let (rig, one, other) = impatient();
    set(&one, libc::F_WRLCK);
    set(&one, libc::F_UNLCK);
    set_late(&rig, &one, libc::F_WRLCK);
    rig.scripts[0].heal();
    let until = Instant::now() + PATIENCE;
    while !is_free(&other) {
        assert!(Instant::now() < until, "it was not released");
    }
    drop((one, other));
    rig.expect_quiet();
}
