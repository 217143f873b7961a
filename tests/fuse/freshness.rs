//! A change through this mount is visible there at once, though the mounts of the other replicas
//! are other clients, which show old names and attributes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::machine::attempts;
use crate::needs;
use crate::recorder::Call;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

/// The kernel caches nothing: it asks each time. The lag is longer than a test on a busy machine.
const SECOND: &str = "[fuse]\nattribute_ttl = \"0s\"\n[write]\nreplica = \"r2\"\nlag = \"1h\"\n";

const DIRECT: &str = "cache = \"direct\"";

/// Enough lookups to find each replica's answer, if it is asked.
const LOOKS: usize = 12;

/// Enough names that each replica is asked about one.
const LINKS: [&str; 8] = ["d/a", "d/b", "d/c", "d/d", "d/e", "d/f", "d/g", "d/h"];

/// Some files, and two replicas that keep showing their current state.
fn rig() -> Rig {
    let room = tree();
    for dir in ["d", "e", "e/below"] {
        fs::create_dir(root(&room).join(dir)).unwrap();
    }
    for name in ["gone", "old", "written", "mode", "e/f", "below"] {
        fs::write(root(&room).join(name), "as it was").unwrap();
    }
    for link in LINKS {
        fs::hard_link(root(&room).join("written"), root(&room).join(link)).unwrap();
    }
    let rig = mount(room, &Setup { write: true, rest: SECOND, ..Setup::default() });
    [0, 2].into_iter().for_each(|other| rig.lags(other));
    rig
}

fn names(rig: &Rig, dir: &str) -> BTreeSet<OsString> {
    fs::read_dir(rig.at(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn local_changes_are_visible_at_once() {
    let rig = rig();
    let is_there = |name: &str| fs::symlink_metadata(rig.at(name)).is_ok();
    fs::write(rig.at("new"), "new").unwrap();
    fs::write(rig.at("written"), "rather longer").unwrap();
    fs::remove_file(rig.at("gone")).unwrap();
    fs::rename(rig.at("old"), rig.at("renamed")).unwrap();
    fs::rename(rig.at("e"), rig.at("moved")).unwrap();
    fs::create_dir(rig.at("made")).unwrap();
    fs::write(rig.at("made/f"), "f").unwrap();
    symlink("new", rig.at("to-new")).unwrap();
    fs::set_permissions(rig.at("mode"), fs::Permissions::from_mode(0o604)).unwrap();
    for look in 0..LOOKS {
        assert_eq!(fs::read(rig.at("new")).unwrap(), b"new", "{look}");
        assert_eq!(fs::metadata(rig.at("written")).unwrap().len(), 13, "{look}");
        assert_eq!(fs::read(rig.at("written")).unwrap(), b"rather longer", "{look}");
        assert!(!is_there("gone") && !is_there("old") && !is_there("e/f"), "{look}");
        assert!(is_there("renamed") && is_there("moved/f") && is_there("moved/below"), "{look}");
        assert_eq!(fs::read(rig.at("made/f")).unwrap(), b"f", "{look}");
        assert_eq!(fs::read_link(rig.at("to-new")).unwrap().as_os_str(), "new", "{look}");
        let mode = fs::metadata(rig.at("mode")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o604, "{look}");
        assert_eq!(names(&rig, ""), names_of_source(&rig), "{look}");
    }
    // By other names of the same file, which were never looked up.
    for link in LINKS {
        assert_eq!(fs::metadata(rig.at(link)).unwrap().len(), 13, "{link}");
    }
    rig.expect_quiet();
}

/// The mount of another replica may show the old free space.
#[test]
fn after_a_change_free_space_comes_from_the_write_replica() {
    let rig = rig();
    let is_look = |call: &&Call| **call == Call::StatFs;
    let looks = || {
        rig.record();
        (0..LOOKS).for_each(|_| assert!(rustix::fs::statvfs(rig.at("")).is_ok()));
        rig.recorded().iter().map(|calls| calls.iter().filter(is_look).count()).collect::<Vec<_>>()
    };
    fs::write(rig.at("new"), "new").unwrap();
    assert_eq!(looks(), [0, LOOKS, 0]);
}

fn names_of_source(rig: &Rig) -> BTreeSet<OsString> {
    fs::read_dir(rig.source(0, "")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// An answer is in flight while the file is changed, and another replica still shows the version of
/// that answer: a read returns the newer one.
#[test]
fn a_late_answer_does_not_replace_a_newer_version() {
    let room = tree();
    fs::write(root(&room).join("f"), "old").unwrap();
    let setup = Setup { replicas: 2, write: true, read: DIRECT, rest: SECOND, ..Setup::default() };
    let rig = mount(room, &setup);
    // From now on only the write replica is asked about it.
    fs::set_permissions(rig.at("f"), fs::Permissions::from_mode(0o604)).unwrap();
    rig.lags(0);
    let open = File::open(rig.at("f")).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    rig.hold_back();
    std::thread::scope(|scope| {
        let look = scope.spawn(|| open.metadata().unwrap().len());
        while !rig.is_holding_back() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        nix::unistd::truncate(own.as_str(), 5).unwrap();
        rig.let_go();
        // It was requested before the change, so either answer is right.
        assert!([3, 5].contains(&look.join().unwrap()));
    });
    // One read, because the next one would look for a new end.
    let mut got = [0; 100];
    let n = open.read_at(&mut got, 0).unwrap();
    assert_eq!(&got[..n], b"old\0\0");
    drop(open);
    rig.expect_quiet();
}

/// After the last close of a writer: a replica whose open shows the old version is left out, and
/// one that shows the new version is read once it has opened the file.
#[test]
fn a_replica_is_read_once_its_open_shows_the_new_version() {
    let room = tree();
    fs::write(root(&room).join("f"), bytes(3 * MIB, 1)).unwrap();
    let rest = "[write]\nreplica = \"r2\"\nlag = \"0s\"\n";
    let read = "cache = \"direct\"\nsegment_size = \"64KiB\"";
    let rig = mount(room, &Setup { write: true, read, rest, ..Setup::default() });
    let reader = File::open(rig.at("f")).unwrap();
    let mut got = vec![0; 3 * MIB];
    let is_read = |call: &Call| matches!(call, Call::Read(_));
    rig.record();
    let open_everywhere = |rig: &Rig| rig.recorded().iter().all(|calls| calls.iter().any(is_read));
    while !open_everywhere(&rig) {
        reader.read_exact_at(&mut got, 0).unwrap();
    }
    // A hedge may still be on its way.
    rig.eventually("no read is in flight", |status| {
        status.gauges.segments_waiting + status.gauges.segments_in_flight == 0
    });
    rig.lags(0);
    let new = bytes(3 * MIB, 2);
    let writer = File::options().write(true).open(rig.at("f")).unwrap();
    writer.write_all_at(&new, 0).unwrap();
    rig.record();
    drop(writer);
    let until = std::time::Instant::now() + PATIENCE;
    while !rig.recorded()[2].iter().any(is_read) {
        reader.read_exact_at(&mut got, 0).unwrap();
        assert!(got == new, "other bytes");
        assert!(std::time::Instant::now() < until, "it is not read again");
    }
    let calls = rig.recorded();
    assert!(!calls[0].iter().any(is_read), "it shows the version before the write");
    let opened = calls[2].iter().position(|call| *call == Call::Open);
    let read = calls[2].iter().position(is_read);
    assert!(opened.is_some() && opened < read, "{:?}", calls[2]);
    drop(reader);
    rig.expect_quiet();
}

/// Two handles: the kernel caches the reads of one and not of the other.
#[test]
fn cached_and_direct_handles_of_a_file_read_the_same_version() {
    let room = tree();
    // Larger than any memory, so that it is first opened direct.
    let sparse = |byte: u8| {
        let mut block = vec![byte; MIB];
        block[MIB - 1] = !byte;
        block
    };
    let file = File::create(root(&room).join("f")).unwrap();
    file.set_len(1 << 42).unwrap();
    file.write_all_at(&sparse(1), 0).unwrap();
    drop(file);
    let (read, rest) = ("cache = \"auto\"", "[fuse]\nattribute_ttl = \"1h\"\n");
    let rig = mount(room, &Setup { replicas: 1, read, rest, ..Setup::default() });
    let block = |file: &File| {
        let mut got = vec![0; MIB];
        file.read_exact_at(&mut got, 0).unwrap();
        got
    };
    let requests = || rig.status().counters.reads;
    let asks = |file: &File| {
        let before = requests();
        block(file);
        requests() > before
    };
    let direct = File::open(rig.at("f")).unwrap();
    let small = File::open(rig.at("f")).unwrap();
    for i in 0..64 {
        small.read_exact_at(&mut [0; 4096], i * 4096).unwrap();
    }
    drop(small);
    rig.eventually("the close is known", |status| status.gauges.handles == 1);
    let cached = File::open(rig.at("f")).unwrap();
    assert!(block(&direct) == sparse(1) && block(&cached) == sparse(1));
    let maps_direct = asks(&direct) && !asks(&cached);
    if !needs::machine(maps_direct, "memory maps of files that are open direct") {
        return;
    }
    for byte in 2..5 {
        let source = File::options().write(true).open(rig.source(0, "f")).unwrap();
        source.write_all_at(&sparse(byte), 0).unwrap();
        let opened = File::open(rig.at("f")).unwrap();
        for (file, which) in [(&opened, "new"), (&cached, "cached"), (&direct, "direct")] {
            assert!(block(file) == sparse(byte), "{which}, {byte}");
        }
    }
    drop((direct, cached));
    rig.expect_quiet();
}

/// In `copies` mode the first replica in service decides.
#[test]
fn the_first_copy_defines_the_tree() {
    attempts(|| {
        let room = tree();
        fs::write(root(&room).join("f"), "first").unwrap();
        fs::write(root(&room).join("only-first"), "1").unwrap();
        let rig = mount(
            room,
            &Setup { copies: true, rest: "[fuse]\nattribute_ttl = \"0s\"\n", ..Setup::default() },
        );
        for other in [1, 2] {
            fs::write(rig.source(other, "f"), "of another size").unwrap();
            fs::remove_file(rig.source(other, "only-first")).unwrap();
            fs::write(rig.source(other, "only-others"), "2").unwrap();
        }
        let names = |rig: &Rig| names(rig, "").into_iter().collect::<Vec<_>>();
        for look in 0..LOOKS {
            assert_eq!(fs::metadata(rig.at("f")).unwrap().len(), 5, "{look}");
            assert_eq!(
                names(&rig),
                names_of_source(&rig).into_iter().collect::<Vec<_>>(),
                "{look}"
            );
            assert!(fs::metadata(rig.at("only-others")).is_err(), "{look}");
        }
        assert_eq!(fs::read(rig.at("f")).unwrap(), b"first");
        rig.scripts[0]
            .add(FaultRule::always(FaultOp::Any, Fault::Errno(rustix::io::Errno::NOTCONN)));
        assert_eq!(fs::metadata(rig.at("f")).unwrap().len(), 15);
        assert_eq!(names(&rig), ["f", "only-others"]);
    });
}
