//! An object that fails or hangs affects no other object.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::replicas::health::HealthState;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount as mount_fs, unmount};

use crate::machine::attempts;
use crate::needs;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

/// Without attribute caching every lookup goes to a replica.
const NOTHING_IS_KEPT: &str = "[fuse]\nattribute_ttl = \"0s\"";

/// A mount whose server has died; dropping this unmounts it.
struct DeadMount(PathBuf);

impl DeadMount {
    fn new(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device: OwnedFd = rustix::fs::open("/dev/fuse", flags, Mode::empty()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&device);
        let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0\0");
        let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
        mount_fs("dead", &at, "fuse", MountFlags::NODEV, data).unwrap();
        drop(device);
        assert_eq!(errno(fs::metadata(&at)), Some(Errno::NOTCONN));
        Self(at)
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

fn names(of: &Path) -> Vec<String> {
    let entries = fs::read_dir(of).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All replicas are in service, and none was ever ejected.
fn expect_all_well(rig: &Rig) {
    let is_in = |state| matches!(state, HealthState::Healthy | HealthState::Suspect);
    for replica in &rig.status().replicas {
        assert!(is_in(replica.health) && replica.ejections == 0, "{replica:?}");
    }
}

#[test]
fn a_dead_nested_mount_leaves_its_parent_listable() {
    attempts(|| {
        if !needs::root() {
            return;
        }
        let room = tree();
        fs::create_dir(root(&room).join("d")).unwrap();
        for i in 0..5 {
            fs::write(root(&room).join(format!("d/f{i}")), "x").unwrap();
        }
        let dead = DeadMount::new(root(&room).join("d/nested"));
        let alone = DeadMount::new(root(&room).join("e/nested"));
        let rig = mount(room, &Setup { rest: NOTHING_IS_KEPT, ..Setup::default() });
        for _ in 0..10 {
            assert_eq!(names(&rig.at("d")), ["f0", "f1", "f2", "f3", "f4", "nested"]);
            assert_eq!(names(&rig.at("e")), ["nested"]);
            assert_eq!(errno(fs::metadata(rig.at("d/nested"))), Some(Errno::NOTCONN));
            assert_eq!(errno(fs::metadata(rig.at("d/nested/f"))), Some(Errno::NOTCONN));
            assert_eq!(fs::read_to_string(rig.at("d/f3")).unwrap(), "x");
        }
        expect_all_well(&rig);
        drop(rig);
        drop((dead, alone));
    });
}

#[test]
fn errors_of_one_object_count_against_no_replica() {
    attempts(|| {
        let room = tree();
        let content = bytes(3 << 20, 51);
        for name in ["bad", "good"] {
            fs::create_dir(root(&room).join(name)).unwrap();
            fs::write(root(&room).join(name).join("f"), &content).unwrap();
        }
        let rig = mount(room, &Setup { rest: NOTHING_IS_KEPT, ..Setup::default() });
        let object = [Errno::KEYEXPIRED, Errno::NOKEY, Errno::ILSEQ];
        let either = [Errno::STALE, Errno::IO, Errno::NOTCONN, Errno::TIMEDOUT, Errno::HOSTDOWN];
        for error in object.into_iter().chain(either) {
            for script in &rig.scripts {
                script.replace(FaultRule::always(FaultOp::Any, Fault::Errno(error)).beneath("bad"));
            }
            for _ in 0..8 {
                assert_eq!(errno(fs::metadata(rig.at("bad/f"))), Some(error));
                assert!(fs::read(rig.at("good/f")).unwrap() == content, "wrong bytes");
            }
        }
        expect_all_well(&rig);
    });
}

/// Many files have bad blocks, on all replicas.
#[test]
fn unreadable_files_count_against_no_replica() {
    attempts(|| {
        let room = tree();
        for i in 0..20 {
            fs::write(root(&room).join(format!("f{i}")), bytes(1 << 20, i)).unwrap();
        }
        let rig = mount(room, &Setup::default());
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO)));
        }
        for i in 0..20 {
            assert_eq!(errno(fs::read(rig.at(format!("f{i}")))), Some(Errno::IO));
        }
        expect_all_well(&rig);
    });
}

#[test]
fn a_replica_with_a_failing_root_is_ejected() {
    let room = tree();
    let content = bytes(8 << 20, 52);
    fs::write(root(&room).join("f"), &content).unwrap();
    let read = "cache = \"direct\"";
    let rig = mount(room, &Setup { read, rates: [100; 3], ..Setup::default() });
    rig.scripts[1].add(FaultRule::always(FaultOp::Any, Fault::Errno(Errno::NOTCONN)));
    let until = Instant::now() + PATIENCE;
    while rig.status().replicas[1].health != HealthState::Ejected {
        assert!(Instant::now() < until, "{:?}", rig.status().replicas[1]);
        assert!(fs::read(rig.at("f")).unwrap() == content, "wrong bytes");
    }
    rig.scripts[1].heal();
    rig.eventually("it is back", |status| status.replicas[1].health != HealthState::Ejected);
}

/// At each failure the root fails as well.
#[test]
fn few_failures_among_many_successes_do_not_eject() {
    attempts(|| {
        const EACH: usize = 100;
        let room = tree();
        let name = |i: usize| format!("d/f{i}");
        fs::create_dir(root(&room).join("d")).unwrap();
        fs::create_dir(root(&room).join("bad")).unwrap();
        for i in 0..8 * EACH {
            fs::write(root(&room).join(name(i)), "x").unwrap();
        }
        let rest = "[fuse]\nattribute_ttl = \"1h\"";
        let rig = mount(room, &Setup { rest, ..Setup::default() });
        for at in ["d", "bad"] {
            fs::metadata(rig.at(at)).unwrap();
        }
        for round in 0..8 {
            for script in &rig.scripts {
                let rule = FaultRule::always(FaultOp::Metadata, Fault::Errno(Errno::NOTCONN));
                script.add(rule.beneath("bad"));
                script.add(rule.beneath(""));
            }
            let seen = errno(fs::metadata(rig.at(format!("bad/f{round}"))));
            assert_eq!(seen, Some(Errno::NOTCONN));
            rig.eventually("it counts", |status| {
                status.replicas.iter().all(|replica| replica.health != HealthState::Healthy)
            });
            rig.scripts.iter().for_each(|script| script.heal());
            for i in round * EACH..(round + 1) * EACH {
                assert_eq!(fs::metadata(rig.at(name(i))).unwrap().len(), 1);
            }
        }
        expect_all_well(&rig);
    });
}

/// While calls about two files hang on all replicas, more of them than a replica may have
/// threads, every other file can be looked up and read. After the heal all threads are back.
#[test]
fn an_object_hung_everywhere_blocks_no_other() {
    attempts(|| {
        const OTHERS: u64 = 40;
        // A replica has 4 threads, and up to 12 that replace stuck ones.
        const LOOKUPS: usize = 32;
        const READS: u64 = 16;
        let room = tree();
        fs::create_dir(root(&room).join("d")).unwrap();
        fs::write(root(&room).join("d/looked"), "x").unwrap();
        fs::write(root(&room).join("d/read"), bytes((READS as usize) << 20, 1)).unwrap();
        let content = |i: u64| bytes(300_000, 100 + i);
        for i in 0..OTHERS {
            fs::write(root(&room).join(format!("d/f{i}")), content(i)).unwrap();
        }
        let read = "cache = \"direct\"\nthreads_per_replica = 4\nreadahead_max = \"0B\"\n\
                deadline = \"12s\"\nattempt_deadline = \"1s\"";
        let rig = mount(room, &Setup { read, rest: NOTHING_IS_KEPT, ..Setup::default() });
        let file = fs::File::open(rig.at("d/read")).unwrap();
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
        // The kernel makes one lookup of a name that it knows for all callers.
        assert_eq!(fs::metadata(rig.at("d/looked")).unwrap().len(), 1);
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Any, Fault::Hang).beneath("d/looked"));
            script.add(FaultRule::always(FaultOp::Read, Fault::Hang).beneath("d/read"));
        }
        std::thread::scope(|scope| {
            let late = Some(Errno::TIMEDOUT);
            let (rig, file) = (&rig, &file);
            let lookup =
                |_| scope.spawn(move || assert_eq!(errno(fs::metadata(rig.at("d/looked"))), late));
            let lookups: Vec<_> = (0..LOOKUPS).map(lookup).collect();
            let read = |i: u64| {
                let mut part = vec![0; 200_000];
                scope.spawn(move || assert_eq!(errno(file.read_at(&mut part, i << 20)), late))
            };
            let reads: Vec<_> = (0..READS).map(read).collect();
            let until = Instant::now() + PATIENCE;
            let names = |name: &str| {
                let replicas = rig.status().replicas;
                replicas.iter().any(|replica| replica.hung.iter().any(|hung| hung.path == name))
            };
            while !(names("d/looked") && names("d/read")) {
                assert!(Instant::now() < until, "they are not named: {:?}", rig.status().replicas);
                std::thread::sleep(Duration::from_millis(20));
            }
            // Throughout this time, a replica's threads are replaced one after the other.
            let mut others = (0..OTHERS).cycle();
            while !lookups.iter().chain(&reads).any(|caller| caller.is_finished()) {
                let i = others.next().unwrap();
                let name = format!("d/f{i}");
                assert_eq!(fs::metadata(rig.at(&name)).unwrap().len(), 300_000);
                assert!(fs::read(rig.at(&name)).unwrap() == content(i), "wrong bytes");
            }
            assert!(names("d/looked") && names("d/read"), "nothing hung meanwhile");
        });
        expect_all_well(&rig);
        rig.scripts.iter().for_each(|script| script.heal());
        drop(file);
        rig.expect_quiet();
        rig.eventually("all threads are back", |status| {
            let is_idle =
                |r: &fanfs::status::ReplicaStatus| r.active_threads == 0 && r.hung.is_empty();
            status.replicas.iter().all(is_idle)
        });
        // For a moment after its deadline a lookup fails at once.
        let until = Instant::now() + PATIENCE;
        while fs::read_to_string(rig.at("d/looked")).ok().as_deref() != Some("x") {
            assert!(Instant::now() < until, "it cannot be looked up any more");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

/// Ten files hang on all replicas, more than a replica has threads; files elsewhere and
/// their healthy siblings are looked up and read.
fn many_files_hang_in(dir: &str) {
    const HUNG: usize = 10;
    let room = tree();
    let content = bytes(300_000, 7);
    for at in ["d", "e"] {
        fs::create_dir(root(&room).join(at)).unwrap();
    }
    let name = |i: usize| format!("{dir}h{i}");
    for i in 0..HUNG {
        fs::write(root(&room).join(name(i)), "x").unwrap();
        fs::write(root(&room).join(format!("{dir}g{i}")), &content).unwrap();
        fs::write(root(&room).join(format!("e/f{i}")), &content).unwrap();
    }
    let read = "cache = \"direct\"\nthreads_per_replica = 4\nattempt_deadline = \"1s\"\n\
                deadline = \"60s\"";
    let rig = mount(room, &Setup { read, rest: NOTHING_IS_KEPT, ..Setup::default() });
    for script in &rig.scripts {
        for i in 0..HUNG {
            script.add(FaultRule::always(FaultOp::Any, Fault::Hang).beneath(name(i).leak()));
        }
    }
    std::thread::scope(|scope| {
        for i in 0..HUNG {
            let path = rig.at(name(i));
            scope.spawn(move || fs::metadata(path));
        }
        rig.eventually("more hang than there are threads", |status| {
            status.replicas.iter().any(|replica| replica.hung.len() > 4)
        });
        for i in 0..HUNG {
            for name in [format!("e/f{i}"), format!("{dir}g{i}")] {
                assert!(fs::read(rig.at(&name)).unwrap() == content, "wrong bytes");
            }
        }
        expect_all_well(&rig);
        rig.scripts.iter().for_each(|script| script.heal());
    });
    rig.expect_quiet();
    rig.eventually("all threads are back", |status| {
        status.replicas.iter().all(|replica| replica.active_threads == 0 && replica.hung.is_empty())
    });
}

#[test]
fn hung_files_in_a_directory_leave_siblings_readable() {
    attempts(|| {
        many_files_hang_in("d/");
    });
}

#[test]
fn hung_files_in_the_root_leave_the_volume_readable() {
    attempts(|| {
        many_files_hang_in("");
    });
}

/// A file hangs on one replica, and only that file is read and looked up. The others answer, so its
/// replica serves other files, and not that one.
#[test]
fn an_object_hung_on_one_replica_ejects_none() {
    attempts(|| {
        let room = tree();
        let (content, other) = (bytes(12 << 20, 61), bytes(24 << 20, 62));
        fs::create_dir(root(&room).join("d")).unwrap();
        fs::write(root(&room).join("d/hung"), &content).unwrap();
        fs::write(root(&room).join("d/well"), &other).unwrap();
        let read = "cache = \"direct\"\nthreads_per_replica = 4\nattempt_deadline = \"1s\"";
        let rest = NOTHING_IS_KEPT;
        let rig = mount(room, &Setup { read, rest, rates: [100; 3], ..Setup::default() });
        assert!(fs::read(rig.at("d/well")).unwrap() == other, "wrong bytes");
        assert!(fs::read(rig.at("d/hung")).unwrap() == content, "wrong bytes");
        rig.scripts[1].add(FaultRule::always(FaultOp::Any, Fault::Hang).beneath("d/hung"));
        let file = fs::File::open(rig.at("d/hung")).unwrap();
        let mut part = vec![0; content.len()];
        let mut read_hung = || {
            file.read_exact_at(&mut part, 0).unwrap();
            assert!(part == content, "wrong bytes");
        };
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(6) {
            read_hung();
            assert_eq!(fs::metadata(rig.at("d/hung")).unwrap().len(), content.len() as u64);
            expect_all_well(&rig);
        }
        let names = |status: &fanfs::status::Status| {
            let count =
                |r: &fanfs::status::ReplicaStatus| r.hung.iter().map(|h| h.path.clone()).collect();
            status.replicas.iter().map(count).collect::<Vec<Vec<String>>>()
        };
        rig.eventually("the object is named, and no read of it is expected any more", |status| {
            names(status) == [vec![], vec!["d/hung".to_owned()], vec![]]
                && status.replicas[1].in_flight == 0
        });
        // A part of the file requested from the replica where it hangs would be late.
        let late = |rig: &Rig| rig.status().replicas[1].counters.slow;
        for _ in 0..16 {
            // The replica proves to be as fast as the others.
            assert!(fs::read(rig.at("d/well")).unwrap() == other, "wrong bytes");
            let before = late(&rig);
            read_hung();
            assert_eq!(late(&rig), before, "it is asked for what hangs there");
        }
        let bytes_of = |rig: &Rig| rig.status().replicas[1].counters.bytes;
        let before = bytes_of(&rig);
        let until = Instant::now() + PATIENCE;
        while bytes_of(&rig) == before {
            assert!(fs::read(rig.at("d/well")).unwrap() == other, "wrong bytes");
            assert!(Instant::now() < until, "it is asked for nothing");
        }
        expect_all_well(&rig);
        rig.scripts[1].heal();
        drop(file);
        rig.expect_quiet();
        rig.eventually("all threads are back", |status| {
            status
                .replicas
                .iter()
                .all(|replica| replica.active_threads == 0 && replica.hung.is_empty())
        });
    });
}

/// Reading a file failed on one replica, which has recovered. Reads go there as soon as no other
/// replica can deliver it, however recent the failure is.
#[test]
fn a_file_is_retried_on_its_failed_replica_if_others_fail() {
    let room = tree();
    let content = bytes(8 << 20, 54);
    fs::write(root(&room).join("f"), &content).unwrap();
    let read = "cache = \"direct\"\nsegment_size = \"128KiB\"";
    let rig = mount(room, &Setup { replicas: 2, read, ..Setup::default() });
    let file = fs::File::open(rig.at("f")).unwrap();
    // Each read is of a segment that is not in memory.
    let mut places = (0..content.len()).step_by(128 << 10).rev();
    let mut is_right = || {
        let (at, mut part) = (places.next().unwrap(), [0; 4096]);
        file.read_exact_at(&mut part, at as u64).unwrap();
        part == content[at..at + 4096]
    };
    let errors = |rig: &Rig| rig.status().replicas[0].counters.errors;
    rig.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO)));
    while errors(&rig) == 0 {
        assert!(is_right(), "wrong bytes");
    }
    rig.scripts[0].heal();
    // An error that does not count against the replica, like that of a lost mount.
    rig.scripts[1].add(FaultRule::always(FaultOp::Read, Fault::Errno(Errno::BUSY)));
    for _ in 0..8 {
        assert!(is_right(), "wrong bytes");
    }
}
