//! Files that the kernel reads without opening them: in an immutable volume, where every caller has
//! the daemon's rights.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::fs::{FlockOperation, SeekFrom, flock, seek};
use rustix::io::Errno;

use crate::recorder::Call;
use crate::rig::{Rig, Setup, bytes, mount, root, tree};

const LARGE: usize = 5 << 20;

/// A small file and a large one, which ends in a hole.
fn rig() -> Rig {
    let room = tree();
    fs::write(root(&room).join("small"), bytes(5000, 1)).unwrap();
    let large = File::create_new(root(&room).join("large")).unwrap();
    large.write_all_at(&bytes(LARGE, 2), 0).unwrap();
    large.set_len(2 * LARGE as u64).unwrap();
    mount(room, &setup())
}

fn setup() -> Setup {
    let read = "cache = \"kernel\"";
    Setup { volume: "immutable = true\n", read, own_only: true, ..Setup::default() }
}

fn large_content() -> Vec<u8> {
    let mut content = bytes(LARGE, 2);
    content.resize(2 * LARGE, 0);
    content
}

/// Makes the kernel drop its pages of a file.
fn drop_pages(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Nothing is open once the kernel has dropped the inodes, which no program uses. Only root can make
/// it do so; otherwise the handles are closed a little later.
fn expect_forgotten(rig: &Rig) {
    rig.eventually("nothing is open", |status| {
        let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        status.gauges.handles == 0
    });
    rig.expect_quiet();
}

fn opens(rig: &Rig) -> usize {
    let calls = rig.recorded().into_iter().flatten();
    calls.filter(|call| matches!(call, Call::Open)).count()
}

/// Once the replicas are known to be quick, one call opens and reads a small file.
#[test]
fn a_small_file_needs_no_handle() {
    let rig = rig();
    let until = Instant::now() + Duration::from_secs(60);
    for i in 0.. {
        assert!(Instant::now() < until, "each file got a handle");
        let name = format!("small{i}");
        fs::write(rig.source(0, &name), bytes(5000, i)).unwrap();
        fs::metadata(rig.at(&name)).unwrap();
        let handles = || rig.status().gauges.handles;
        let before = handles();
        rig.record();
        let file = File::open(rig.at(&name)).unwrap();
        assert_eq!(opens(&rig), 0, "the open asks nothing");
        let mut got = vec![0; 6000];
        assert_eq!(file.read_at(&mut got, 0).unwrap(), 5000);
        assert!(got[..5000] == bytes(5000, i), "{name}");
        assert_eq!(file.metadata().unwrap().len(), 5000);
        if (opens(&rig), handles()) == (1, before) {
            // The kernel has its pages now.
            let again = File::open(rig.at(&name)).unwrap();
            assert_eq!(again.read_at(&mut got, 4000).unwrap(), 1000);
            assert_eq!(opens(&rig), 1);
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    expect_forgotten(&rig);
}

#[test]
fn a_large_file_is_read_like_an_open_one() {
    let rig = rig();
    for _ in 0..2 {
        expect_forgotten(&rig);
        let file = File::open(rig.at("large")).unwrap();
        assert_eq!(rig.status().gauges.handles, 0);
        assert!(fs::read(rig.at("large")).unwrap() == large_content());
        assert!(rig.status().gauges.handles <= 1);
        let mut got = vec![0; 70_000];
        drop_pages(&file);
        file.read_exact_at(&mut got, 1 << 20).unwrap();
        assert!(got == bytes(LARGE, 2)[1 << 20..][..70_000]);
        assert_eq!(file.read_at(&mut got, 2 * LARGE as u64).unwrap(), 0);
        assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), LARGE as u64);
        assert!(seek(&file, SeekFrom::Data(LARGE as u64)).is_err());
        file.sync_all().unwrap();
        flock(file.as_fd(), FlockOperation::LockExclusive).unwrap();
        let mut direct = fs::OpenOptions::new();
        direct.read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        let read = direct.open(rig.at("large")).unwrap().read_at(&mut got[..8192], 8192);
        assert_eq!(read.unwrap(), 8192);
        assert!(got[..8192] == bytes(LARGE, 2)[8192..16384]);
    }
    expect_forgotten(&rig);
}

#[test]
fn what_a_read_opens_is_closed_once_the_kernel_forgets_the_file() {
    let rig = rig();
    for _ in 0..2 {
        assert!(fs::read(rig.at("large")).unwrap() == large_content());
        assert!(rig.status().gauges.handles <= 1);
        expect_forgotten(&rig);
    }
}

/// No close comes from the kernel, which keeps the inode.
#[test]
fn a_handle_that_no_read_uses_is_closed() {
    let rig = rig();
    let file = File::open(rig.at("large")).unwrap();
    for _ in 0..2 {
        let mut got = vec![0; 70_000];
        drop_pages(&file);
        file.read_exact_at(&mut got, 1 << 20).unwrap();
        assert!(got == bytes(LARGE, 2)[1 << 20..][..70_000]);
        rig.eventually("nothing is open", |status| status.gauges.handles == 0);
    }
    rig.expect_quiet();
}

/// More files than fanfs keeps open, read at once by several threads.
#[test]
fn many_files_are_read_without_opens() {
    const FILES: usize = 700;
    let content = |i: usize| bytes(300_000, i as u64);
    let room = tree();
    for i in 0..FILES {
        fs::write(root(&room).join(i.to_string()), content(i)).unwrap();
    }
    let rig = mount(room, &setup());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let i @ ..FILES = next.fetch_add(1, Ordering::Relaxed) {
                    let file = File::open(rig.at(i.to_string())).unwrap();
                    let mut got = vec![0; 150_000];
                    file.read_exact_at(&mut got, 150_000).unwrap();
                    assert!(got == content(i)[150_000..], "{i}");
                    let again = (i * 7) % FILES;
                    assert!(fs::read(rig.at(again.to_string())).unwrap() == content(again), "{i}");
                }
            });
        }
    });
    // The kernel may still read ahead, which opens a file before another one is closed.
    let ended = rig.eventually("all reads have ended", |status| {
        status.gauges.requests + status.gauges.calls == 0
    });
    assert!(ended.gauges.handles <= 512, "{}", ended.gauges.handles);
    expect_forgotten(&rig);
}

#[test]
fn a_read_without_an_open_fails_over_and_reports_refusals() {
    let rig = rig();
    for name in ["small", "large"] {
        fs::metadata(rig.at(name)).unwrap();
        let file = File::open(rig.at(name)).unwrap();
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Open, Fault::Errno(Errno::ACCESS)));
        }
        let mut got = vec![0; 5000];
        let refused = file.read_exact_at(&mut got, 0).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{name}");
        rig.scripts.iter().for_each(|script| script.heal());
        for script in &rig.scripts[..2] {
            script.add(FaultRule::always(FaultOp::Open, Fault::Errno(Errno::IO)));
        }
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got == fs::read(rig.source(0, name)).unwrap()[..5000], "{name}");
        rig.scripts.iter().for_each(|script| script.heal());
    }
    expect_forgotten(&rig);
}

/// Another user's rights may differ from the daemon's, so an open asks a replica as that user.
#[test]
fn other_users_files_are_opened() {
    let rig = mount(
        {
            let room = tree();
            fs::write(root(&room).join("large"), bytes(LARGE, 2)).unwrap();
            room
        },
        &Setup { own_only: false, ..setup() },
    );
    let _file = File::open(rig.at("large")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(rig.status().gauges.handles, usize::from(is_root));
}
