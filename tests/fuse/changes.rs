//! Files that change on the replicas: no answer mixes two versions, and the new version appears
//! soon.

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::machine::{attempts, timed};
use crate::mapped::{Mapper, Mapping};
use crate::needs;
use crate::processes::Command;
use crate::recorder::Call;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

fn rig(content: &[u8], cache: &'static str) -> Rig {
    let room = tree();
    fs::write(root(&room).join("f"), content).unwrap();
    mount(room, &Setup { read: cache, rest: SOON, ..Setup::default() })
}

/// Waits until `what` holds.
fn eventually(mut what: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < until, "it never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const CACHES: [&str; 2] = ["cache = \"kernel\"", "cache = \"direct\""];

#[test]
fn an_open_handle_follows_a_growing_file() {
    for cache in CACHES {
        let rig = rig(b"first", cache);
        let mut file = File::open(rig.at("f")).unwrap();
        let mut got = String::new();
        file.read_to_string(&mut got).unwrap();
        File::options()
            .append(true)
            .open(rig.source(0, "f"))
            .unwrap()
            .write_all(b" second")
            .unwrap();
        eventually(|| {
            file.read_to_string(&mut got).unwrap();
            got == "first second"
        });
        drop(file);
        rig.expect_quiet();
    }
}

#[test]
fn a_truncated_file_ends_at_its_new_size() {
    for cache in CACHES {
        let rig = rig(&bytes(3 * MIB, 1), cache);
        let mut file = File::open(rig.at("f")).unwrap();
        let mut got = Vec::new();
        file.read_to_end(&mut got).unwrap();
        File::options().write(true).open(rig.source(0, "f")).unwrap().set_len(1000).unwrap();
        eventually(|| file.metadata().unwrap().len() == 1000);
        file.seek(SeekFrom::Start(0)).unwrap();
        got.clear();
        file.read_to_end(&mut got).unwrap();
        assert!(got == bytes(3 * MIB, 1)[..1000], "{} bytes, {cache}", got.len());
    }
}

/// As after a truncation by another client that the replicas' mounts have not noticed yet.
#[test]
fn a_truncated_file_is_read_despite_stale_sizes() {
    for cache in CACHES {
        let content = bytes(3 * MIB, 1);
        let rig = rig(&content, cache);
        rig.believe();
        let file = File::open(rig.at("f")).unwrap();
        let mut got = vec![0; 4096];
        file.read_exact_at(&mut got[..1000], 0).unwrap();
        File::options()
            .write(true)
            .open(rig.source(0, "f"))
            .unwrap()
            .set_len(2 * MIB as u64 - 5)
            .unwrap();
        let n = file.read_at(&mut got, 2 * MIB as u64 + 4096).unwrap();
        assert_eq!(n, 0, "{cache}");
        let from = 2 * MIB - 1000;
        let n = file.read_at(&mut got, from as u64).unwrap();
        assert!(got[..n] == content[from..from + 995], "{n} bytes, {cache}");
        drop(file);
        rig.expect_quiet();
    }
}

#[test]
fn a_new_open_sees_the_new_content() {
    for cache in CACHES {
        let rig = rig(&vec![b'a'; MIB], cache);
        assert!(fs::read(rig.at("f")).unwrap().iter().all(|byte| *byte == b'a'));
        fs::write(rig.source(0, "f"), vec![b'b'; MIB]).unwrap();
        // The open itself looks; no cached entry has to expire first.
        let got = fs::read(rig.at("f")).unwrap();
        assert!(got.len() == MIB && got.iter().all(|byte| *byte == b'b'), "{cache}");
    }
}

/// The kernel asks for attributes again soon.
const SOON: &str = "[fuse]\nattribute_ttl = \"100ms\"";

/// One hour for attributes: only the open can find the new version.
const FOR_GOOD: &str = "[fuse]\nattribute_ttl = \"1h\"";

/// Makes every replica show `content`, written at one time.
fn rewrite(rig: &Rig, replicas: usize, content: &[u8]) {
    let now = std::time::SystemTime::now();
    for i in 0..replicas {
        let mut file = File::options().write(true).truncate(true).open(rig.source(i, "f")).unwrap();
        file.write_all(content).unwrap();
        file.set_modified(now).unwrap();
    }
}

#[test]
fn a_new_open_sees_the_new_size() {
    if !needs::program("python3") {
        return;
    }
    let sizes = [100_000, 3 * MIB + 5, 10, 200_000, 4096, 5000];
    for (cache, copies) in CACHES.iter().flat_map(|cache| [(*cache, false), (*cache, true)]) {
        let room = tree();
        fs::write(root(&room).join("f"), bytes(MIB, 1)).unwrap();
        let setup = Setup { read: cache, copies, rest: FOR_GOOD, ..Setup::default() };
        let rig = mount(room, &setup);
        assert!(fs::read(rig.at("f")).unwrap() == bytes(MIB, 1));
        for (i, size) in sizes.into_iter().enumerate() {
            let (content, what) = (bytes(size, size as u64), format!("{size}, {cache}, {copies}"));
            rewrite(&rig, if copies { 3 } else { 1 }, &content);
            match i % 3 {
                0 => {
                    // Read to its end, whatever size its attributes give.
                    let (mut file, mut got) = (File::open(rig.at("f")).unwrap(), Vec::new());
                    let mut block = [0; 65_536];
                    while let n @ 1.. = file.read(&mut block).unwrap() {
                        got.extend_from_slice(&block[..n]);
                    }
                    assert!(got == content, "{} of {what}", got.len());
                }
                1 => {
                    // The program looks at st_size first.
                    let mut cmp = Command::new("cmp");
                    let said = cmp.arg(rig.at("f")).arg(rig.source(0, "f")).output().unwrap();
                    assert!(said.status.success(), "{what}: {said:?}");
                }
                _ => {
                    // The length is the one in its attributes.
                    let mut mapper = Mapper::of(&rig.at("f"), Mapping::Private).unwrap();
                    let got = mapper.read(0, 10 * MIB as u64).unwrap();
                    assert!(got == content, "{} of {what}", got.len());
                }
            }
        }
        rig.expect_quiet();
    }
}

#[test]
fn an_open_for_writing_sees_the_new_size() {
    let room = tree();
    fs::write(root(&room).join("f"), "old").unwrap();
    let setup = Setup { write: true, rest: FOR_GOOD, ..Setup::default() };
    let rig = mount(room, &setup);
    assert_eq!(fs::metadata(rig.at("f")).unwrap().len(), 3);
    rewrite(&rig, 1, b"rather new");
    let mut file = File::options().read(true).write(true).open(rig.at("f")).unwrap();
    let mut got = String::new();
    file.read_to_string(&mut got).unwrap();
    assert_eq!(got, "rather new");
}

#[test]
fn opening_an_unchanged_file_refetches_nothing() {
    for copies in [false, true] {
        let room = tree();
        fs::write(root(&room).join("f"), bytes(MIB, 1)).unwrap();
        let rig = mount(room, &Setup { copies, rest: FOR_GOOD, ..Setup::default() });
        let look = || File::open(rig.at("f")).unwrap().metadata().unwrap().len();
        look();
        rig.record();
        (0..20).for_each(|_| assert_eq!(look(), MIB as u64));
        let calls: Vec<_> = rig.recorded().into_iter().flatten().collect();
        let asked = calls.iter().filter(|call| matches!(call, Call::Stat | Call::Attr)).count();
        assert_eq!((asked, calls.contains(&Call::Open)), (0, true), "{calls:?}");
    }
}

#[test]
fn a_replaced_file_is_a_different_file() {
    for cache in CACHES {
        let rig = rig(b"old", cache);
        let old = File::open(rig.at("f")).unwrap();
        fs::write(rig.source(0, "new"), b"newer").unwrap();
        fs::rename(rig.source(0, "new"), rig.source(0, "f")).unwrap();
        eventually(|| fs::read(rig.at("f")).is_ok_and(|content| content == b"newer"));
        let mut buf = [0; 3];
        old.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"old", "{cache}");
    }
}

/// Replaces every copy by a file with `content`, at one time.
fn replace(rig: &Rig, copies: usize, content: &[u8]) {
    let now = std::time::SystemTime::now();
    for i in 0..copies {
        let mut file = File::create(rig.source(i, "next")).unwrap();
        file.write_all(content).unwrap();
        file.set_modified(now).unwrap();
        fs::rename(rig.source(i, "next"), rig.source(i, "f")).unwrap();
    }
}

fn copies(content: &[u8], read: &'static str, rest: &'static str) -> Rig {
    let room = tree();
    fs::write(root(&room).join("f"), content).unwrap();
    mount(room, &Setup { copies: true, read, rest, ..Setup::default() })
}

#[test]
fn a_replaced_copy_is_a_different_file() {
    for (cache, ttl) in CACHES.iter().flat_map(|c| [(*c, SOON), (*c, FOR_GOOD)]) {
        let versions = [bytes(4 * MIB, 1), bytes(3 * MIB + 5, 2), bytes(4 * MIB, 3)];
        let rig = copies(&versions[0], cache, ttl);
        let mut open = vec![File::open(rig.at("f")).unwrap()];
        let mut head = vec![0; 1000];
        open[0].read_exact_at(&mut head, 0).unwrap();
        for version in &versions[1..] {
            replace(&rig, 3, version);
            open.push(File::open(rig.at("f")).unwrap());
        }
        // In turns: they would share pages if they were one inode.
        for at in (0..4 * MIB).step_by(MIB / 2) {
            for (file, version) in open.iter().zip(&versions) {
                let rest = version.len().saturating_sub(at);
                let mut got = vec![0; rest.min(MIB / 2)];
                file.read_exact_at(&mut got, at as u64).unwrap();
                assert!(got == version[at.min(version.len())..][..got.len()], "{at}, {cache}");
            }
        }
        for (file, version) in open.iter().zip(&versions) {
            assert_eq!(file.metadata().unwrap().len(), version.len() as u64, "{cache}");
        }
        eventually(|| fs::metadata(rig.at("f")).unwrap().len() == versions[2].len() as u64);
        let numbers: Vec<_> = open.iter().map(|file| file.metadata().unwrap().ino()).collect();
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
        let listed: Vec<_> = fs::read_dir(rig.at("")).unwrap().map(Result::unwrap).collect();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!((listed[0].ino(), &*listed[0].file_name()), (numbers[2], "f".as_ref()));
        drop((open, listed));
        assert!(fs::read(rig.at("f")).unwrap() == versions[2]);
        rig.expect_quiet();
    }
}

#[test]
fn an_open_copy_follows_an_in_place_rewrite() {
    for cache in CACHES {
        let rig = copies(b"old", cache, SOON);
        let file = File::open(rig.at("f")).unwrap();
        let number = file.metadata().unwrap().ino();
        rewrite(&rig, 3, b"rather new");
        let mut got = [0; 10];
        eventually(|| file.read_exact_at(&mut got, 0).is_ok());
        assert_eq!(&got, b"rather new", "{cache}");
        assert_eq!(fs::metadata(rig.at("f")).unwrap().ino(), number, "{cache}");
    }
}

#[test]
fn content_that_no_copy_has_is_estale() {
    for cache in CACHES {
        let old = bytes(4 * MIB, 1);
        let rig = copies(&old, cache, SOON);
        let file = File::open(rig.at("f")).unwrap();
        let mut got = vec![0; 1000];
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got == old[..1000]);
        replace(&rig, 3, &bytes(4 * MIB, 2));
        // As of an NFS server that does not track its clients' opens.
        let forgotten = Fault::Errno(rustix::io::Errno::STALE);
        rig.scripts
            .iter()
            .for_each(|script| script.add(FaultRule::always(FaultOp::Read, forgotten)));
        let stale = |at| {
            let error = file.read_exact_at(&mut vec![0; 1000], at).unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(rustix::io::Errno::STALE.raw_os_error()),
                "{cache}: {error}"
            );
        };
        stale(3 * MIB as u64);
        rig.scripts.iter().for_each(|script| script.heal());
        stale(3 * MIB as u64);
        assert!(fs::read(rig.at("f")).unwrap() == bytes(4 * MIB, 2), "{cache}");
        stale(3 * MIB as u64);
    }
}

#[test]
fn an_unlinked_file_stays_readable_while_it_is_open() {
    for cache in CACHES {
        let content = bytes(2 * MIB, 9);
        let rig = rig(&content, cache);
        let mut file = File::open(rig.at("f")).unwrap();
        let mut byte = [0];
        file.read_exact(&mut byte).unwrap();
        fs::remove_file(rig.source(0, "f")).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
        let mut got = byte.to_vec();
        file.read_to_end(&mut got).unwrap();
        assert!(got == content, "{cache}");
        assert!(File::open(rig.at("f")).is_err());
    }
}

/// A direct read asks the kernel for no attributes, so nothing else finds the change. It does not
/// wait long for that check, which a busy machine delays.
#[test]
fn old_readahead_is_not_used_after_a_change() {
    attempts(read_after_a_change);
}

fn read_after_a_change() {
    let content = bytes(8 * MIB, 3);
    let rig = rig(&content, "cache = \"direct\"\nreadahead_max = \"8MiB\"");
    let file = File::open(rig.at("f")).unwrap();
    let mut got = vec![0; MIB / 2];
    let mut read = 0;
    // More is there than was asked for.
    let is_ahead = |read: u64| rig.status().gauges.buffer_used > 0 && rig.delivered() > read;
    eventually(|| {
        if read + got.len() <= 4 * MIB {
            file.read_exact_at(&mut got, read as u64).unwrap();
            read += got.len();
        }
        is_ahead(read as u64)
    });
    let newer = bytes(8 * MIB, 4);
    // Truncated first: pages in memory may have the older content.
    fs::write(rig.source(0, "f"), &newer).unwrap();
    // Longer than a version is trusted.
    std::thread::sleep(Duration::from_millis(1100));
    file.read_exact_at(&mut got, read as u64).unwrap();
    assert!(got == newer[read..read + got.len()], "bytes from before the change");
}

/// The read does not wait for the check whether the file has changed.
#[test]
fn readahead_is_served_while_no_replica_answers() {
    let content = bytes(8 * MIB, 3);
    let rig = rig(&content, "cache = \"direct\"\nreadahead_max = \"8MiB\"");
    let file = File::open(rig.at("f")).unwrap();
    let mut got = vec![0; 2 * MIB];
    file.read_exact_at(&mut got, 0).unwrap();
    // All data fetched for it has arrived, and that is more than it has read.
    let gauges = || rig.status().gauges;
    eventually(|| gauges().segments_in_flight + gauges().segments_waiting == 0);
    assert!(rig.delivered() > got.len() as u64, "nothing was read ahead");
    // Longer than a version is trusted.
    std::thread::sleep(Duration::from_millis(1100));
    rig.scripts.iter().for_each(|script| script.add(FaultRule::always(FaultOp::Any, Fault::Hang)));
    let mut more = vec![0; 4096];
    let ((), took) = timed(|| file.read_exact_at(&mut more, got.len() as u64).unwrap());
    assert!(more == content[got.len()..got.len() + more.len()]);
    assert!(took < Duration::from_secs(20), "it has waited for the deadline");
}

/// As an NFSv4 mount shows a file that another client has removed: the server keeps the open file,
/// but no longer knows it by its handle.
#[test]
fn a_removed_nfs_file_stays_readable_through_its_handle() {
    for cache in CACHES {
        let content = bytes(8 * MIB, 9);
        let room = tree();
        fs::write(root(&room).join("f"), &content).unwrap();
        let setup = Setup { replicas: 1, read: cache, rest: SOON, ..Setup::default() };
        let rig = mount(room, &setup);
        let file = File::open(rig.at("f")).unwrap();
        let mut got = vec![0; 4096];
        file.read_exact_at(&mut got, 0).unwrap();
        fs::remove_file(rig.source(0, "f")).unwrap();
        // The removal makes another version of it, of which nothing has been read yet.
        eventually(|| file.metadata().unwrap().nlink() == 0);
        let stale = Fault::Errno(rustix::io::Errno::STALE);
        rig.scripts[0].add(FaultRule::always(FaultOp::Metadata, stale).beneath("f"));
        let from = 6 * MIB;
        file.read_exact_at(&mut got, from as u64).unwrap();
        assert!(got == content[from..from + 4096], "{cache}");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(file.metadata().unwrap().len(), content.len() as u64, "{cache}");
        rig.scripts[0].heal();
        drop(file);
        rig.expect_quiet();
    }
}

/// As after a rename over an open file that happens between a replica's look at the name and its
/// look at the attributes.
#[test]
fn a_changed_then_removed_file_stays_readable() {
    for cache in CACHES {
        let content = bytes(2 * MIB, 5);
        let rig = rig(&content, cache);
        let mut file = File::open(rig.at("f")).unwrap();
        fs::set_permissions(rig.source(0, "f"), Permissions::from_mode(0o600)).unwrap();
        eventually(|| file.metadata().unwrap().permissions().mode() & 0o777 == 0o600);
        fs::write(rig.source(0, "new"), vec![0; 2 * MIB]).unwrap();
        fs::rename(rig.source(0, "new"), rig.source(0, "f")).unwrap();
        let mut got = Vec::new();
        file.read_to_end(&mut got).unwrap();
        assert!(got == content, "{cache}");
    }
}

/// A writer stamps the whole file again and again, each time with one byte and in one rename;
/// readers must never get two stamps in one file.
#[test]
fn no_answer_mixes_two_versions() {
    for cache in CACHES {
        let rig = rig(&vec![0; 2 * MIB], cache);
        let begun = Instant::now();
        let stamps = std::sync::Mutex::new(std::collections::BTreeSet::new());
        // For longer if a busy machine reads few.
        let is_over = || {
            let has_seen_some = stamps.lock().unwrap().len() > 3;
            begun.elapsed() >= if has_seen_some { Duration::from_secs(2) } else { PATIENCE }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for stamp in (0..=255u8).cycle() {
                    if is_over() {
                        break;
                    }
                    fs::write(rig.source(0, "next"), vec![stamp; 2 * MIB]).unwrap();
                    fs::rename(rig.source(0, "next"), rig.source(0, "f")).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over() {
                        // A file that is replaced while it is being opened may be stale; that is an
                        // error and not wrong data.
                        let Ok(content) = fs::read(rig.at("f")) else { continue };
                        let other = content.iter().position(|byte| *byte != content[0]);
                        assert!(other.is_none(), "mixed from byte {other:?}, {cache}");
                        stamps.lock().unwrap().insert(content[0]);
                    }
                });
            }
        });
        let seen = stamps.lock().unwrap().len();
        assert!(seen > 3, "only {seen} versions were ever read, {cache}");
    }
}
