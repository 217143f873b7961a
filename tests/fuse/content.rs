//! Reads return the file's bytes, however they are made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::sync::Arc;

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::machine::attempts;
use crate::mapped::{Mapper, Mapping};
use crate::needs;
use crate::processes::Command;
use crate::rig::{Random, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

fn one_file(len: usize, setup: &Setup) -> (Rig, Vec<u8>) {
    let room = tree();
    let content = bytes(len, len as u64);
    fs::write(root(&room).join("data"), &content).unwrap();
    (mount(room, setup), content)
}

/// Volumes with and without the kernel's cache, of directories and of exports.
fn volumes(copies: bool) -> [Setup; 4] {
    const KERNEL: &str = "cache = \"kernel\"";
    const DIRECT: &str = "cache = \"direct\"";
    [(KERNEL, false), (DIRECT, false), (KERNEL, true), (DIRECT, true)]
        .map(|(read, exports)| Setup { copies, read, exports, ..Setup::default() })
}

#[test]
fn sequential_reads_with_every_block_size_are_correct() {
    for copies in [false, true] {
        for setup in volumes(copies) {
            let (rig, content) = one_file(9 * MIB + 4321, &setup);
            let mut rounds = 0;
            for block in [1000, 4096, 65_536, MIB, 3 * MIB + 1] {
                let mut file = File::open(rig.at("data")).unwrap();
                let mut got = Vec::new();
                let mut buf = vec![0; block];
                loop {
                    match file.read(&mut buf).unwrap() {
                        0 => break,
                        n => got.extend_from_slice(&buf[..n]),
                    }
                }
                assert!(got == content, "block {block}, {}, copies {copies}", setup.read);
                // fanfs must serve the next block size, not the page cache.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                rounds += 1;
                let delivered = rig.status().counters.bytes_delivered;
                assert!(delivered >= rounds * content.len() as u64, "block {block} was not read");
            }
            rig.expect_quiet();
        }
    }
}

#[test]
fn random_strided_and_backward_reads_are_correct() {
    for setup in volumes(false) {
        let (rig, content) = one_file(8 * MIB + 77, &setup);
        let file = File::open(rig.at("data")).unwrap();
        let check = |offset: usize, len: usize| {
            let len = len.min(content.len() - offset);
            let mut buf = vec![0; len];
            file.read_exact_at(&mut buf, offset as u64).unwrap();
            assert!(
                buf == content[offset..offset + len],
                "{len} bytes at {offset}, {}",
                setup.read
            );
        };
        let mut random = Random(7);
        for _ in 0..600 {
            check(random.below(content.len() as u64) as usize, 1 + random.below(300_000) as usize);
        }
        (0..content.len()).step_by(200_000).for_each(|at| check(at, 70_000));
        (0..content.len()).rev().step_by(100_000).for_each(|at| check(at, 100_000));
        let mut past = [0; 10];
        assert_eq!(file.read_at(&mut past, content.len() as u64).unwrap(), 0);
        assert_eq!(file.read_at(&mut past, content.len() as u64 - 4).unwrap(), 4);
    }
}

#[test]
fn o_direct_reads_are_correct() {
    const O_DIRECT: i32 = 0o40_000;
    let mut buf = vec![0; 2 * MIB + 4096];
    let start = buf.as_ptr().align_offset(4096);
    let aligned = &mut buf[start..start + 2 * MIB];
    for exports in [false, true] {
        let (rig, content) = one_file(5 * MIB + 100, &Setup { exports, ..Setup::default() });
        let mut how = OpenOptions::new();
        let file = how.read(true).custom_flags(O_DIRECT).open(rig.at("data")).unwrap();
        for offset in [0, 4096, MIB - 4096, 4 * MIB] {
            let n = file.read_at(aligned, offset as u64).unwrap();
            assert_eq!(n, aligned.len().min(content.len() - offset));
            assert!(aligned[..n] == content[offset..offset + n]);
        }
    }
}

#[test]
fn mmap_reads_are_correct() {
    if !needs::program("python3") {
        return;
    }
    for setup in volumes(false) {
        let (rig, content) = one_file(6 * MIB + 9, &setup);
        for kind in [Mapping::Private, Mapping::Shared] {
            let mut mapper = Mapper::of(&rig.at("data"), kind).unwrap();
            let mapped = mapper.read(0, content.len() as u64).unwrap();
            assert!(mapped == content, "{kind:?}, {}", setup.read);
        }
    }
}

#[test]
fn sixty_four_readers_of_one_file_fetch_it_about_once() {
    for setup in volumes(false) {
        let (rig, content) = one_file(8 * MIB, &setup);
        let (rig, content) = (Arc::new(rig), Arc::new(content));
        let readers: Vec<_> = (0..64)
            .map(|_| {
                let (rig, content) = (Arc::clone(&rig), Arc::clone(&content));
                std::thread::spawn(move || {
                    let mut file = File::open(rig.at("data")).unwrap();
                    let mut got = Vec::new();
                    file.read_to_end(&mut got).unwrap();
                    assert!(got == *content);
                })
            })
            .collect();
        for reader in readers {
            reader.join().unwrap();
        }
        // Each byte once, and some again that were abandoned in between.
        let delivered = rig.delivered();
        assert!(delivered <= 2 * content.len() as u64, "{delivered} bytes, {}", setup.read);
        rig.expect_quiet();
    }
}

#[test]
fn random_readers_fetch_only_requested_bytes() {
    for exports in [false, true] {
        let setup = Setup { read: "cache = \"direct\"", exports, ..Setup::default() };
        let (rig, content) = one_file(32 * MIB, &setup);
        let file = File::open(rig.at("data")).unwrap();
        let mut random = Random(3);
        let mut buf = [0; 4096];
        for _ in 0..2000 {
            let offset = random.below(content.len() as u64 / 4096) * 4096;
            file.read_exact_at(&mut buf, offset).unwrap();
            assert!(buf[..] == content[offset as usize..offset as usize + 4096]);
        }
        let delivered = rig.delivered();
        assert!(delivered <= 2000 * 4096 * 105 / 100, "{delivered} bytes for {}", 2000 * 4096);
    }
}

#[test]
fn all_replicas_take_part_in_one_sequential_read() {
    attempts(|| {
        let (rig, content) = one_file(48 * MIB, &Setup::default());
        // A bench measures the shares, which depend on the machine. Here no replica answers, so
        // the order of events alone decides.
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Read, Fault::Hang));
        }
        let data = rig.at("data");
        let reader = std::thread::spawn(move || fs::read(data));
        let status = rig.eventually("each replica reads for the one reader", |status| {
            status.replicas.iter().all(|replica| replica.in_flight > 0)
        });
        // Late segments are hedged to every replica, however they were planned.
        assert_eq!(status.counters.hedges, 0, "{status:?}");
        rig.scripts.iter().for_each(|script| script.heal());
        assert!(reader.join().unwrap().unwrap() == content);
        rig.expect_quiet();
    });
}

#[test]
fn sparse_files_of_five_tebibytes_are_readable() {
    let room = tree();
    const END: u64 = 5 << 40;
    let file = File::create(root(&room).join("sparse")).unwrap();
    file.set_len(END).unwrap();
    file.write_all_at(b"middle", 1 << 41).unwrap();
    file.write_all_at(b"tail", END - 4).unwrap();
    let rig = mount(room, &Setup::default());
    let mut file = File::open(rig.at("sparse")).unwrap();
    let mut buf = [0; 6];
    file.read_exact_at(&mut buf, 1 << 41).unwrap();
    assert_eq!(&buf, b"middle");
    assert_eq!(file.read_at(&mut buf, END - 4).unwrap(), 4);
    assert_eq!(&buf[..4], b"tail");
    use rustix::fs::{SeekFrom as To, seek};
    assert_eq!(seek(&file, To::Data(0)).unwrap(), 1 << 41);
    let hole = seek(&file, To::Hole(1 << 41)).unwrap();
    assert!(hole > 1 << 41 && hole < (1 << 41) + 65_536, "{hole}");
    assert_eq!(seek(&file, To::Data(END)).unwrap_err(), rustix::io::Errno::NXIO);
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), END);
}

/// As on the underlying file systems: the kernel leaves both to the file system.
#[test]
fn seek_data_and_hole_fail_outside_the_file() {
    for write in [false, true] {
        let (rig, _) = one_file(100_000, &Setup { write, ..Setup::default() });
        for path in [rig.at("data"), rig.source(0, "data")] {
            let file = OpenOptions::new().read(true).write(write).open(&path).unwrap();
            let seek = |whence, offset: i64| {
                // SAFETY: lseek(2) takes numbers alone.
                let found = unsafe { nix::libc::lseek(file.as_raw_fd(), offset, whence) };
                if found < 0 { Err(io::Error::last_os_error().raw_os_error()) } else { Ok(found) }
            };
            let none = Err(Some(nix::libc::ENXIO));
            for whence in [nix::libc::SEEK_DATA, nix::libc::SEEK_HOLE] {
                for offset in [-1, i64::MIN, 100_000, i64::MAX] {
                    assert_eq!(seek(whence, offset), none, "{whence} {offset} {}", path.display());
                }
            }
            let found = (seek(nix::libc::SEEK_DATA, 0), seek(nix::libc::SEEK_HOLE, 0));
            assert_eq!(found, (Ok(0), Ok(100_000)), "{}", path.display());
        }
        rig.expect_quiet();
    }
}

#[test]
fn tools_see_the_same_tree() {
    for exports in [false, true] {
        let room = tree();
        let dir = root(&room).join("a/b");
        fs::create_dir_all(&dir).unwrap();
        for i in 0..50 {
            fs::write(dir.join(format!("f{i}")), bytes(i * 7919, i as u64)).unwrap();
        }
        symlink("b/f3", root(&room).join("a/link")).unwrap();
        expect_same_tree(&mount(room, &Setup { copies: true, exports, ..Setup::default() }));
    }
}

fn expect_same_tree(rig: &Rig) {
    let diff =
        Command::new("diff").arg("-r").arg(rig.at("a")).arg(rig.source(0, "a")).output().unwrap();
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    let tar = Command::new("sh")
        .arg("-c")
        .arg("tar -C \"$0\" -cf - a | tar -C \"$1\" -df -")
        .arg(rig.at(""))
        .arg(rig.source(0, ""))
        .output()
        .unwrap();
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stdout));
}

#[test]
fn auto_caches_small_files_and_rereads_large_ones() {
    let room = tree();
    let small = bytes(MIB, 1);
    fs::write(root(&room).join("small"), &small).unwrap();
    // Sparse, and larger than a quarter of any machine's memory.
    File::create(root(&room).join("large")).unwrap().set_len(8 << 40).unwrap();
    let rig = mount(room, &Setup::default());
    let twice = |name: &str| {
        let file = File::open(rig.at(name)).unwrap();
        let mut block = vec![1; MIB];
        file.read_exact_at(&mut block, 0).unwrap();
        let before = rig.status().counters.bytes_delivered;
        file.read_exact_at(&mut block, 0).unwrap();
        (block, rig.status().counters.bytes_delivered - before)
    };
    let (block, again) = twice("small");
    assert!(block == small && again == 0, "{again} bytes of the small file were read again");
    let (block, again) = twice("large");
    assert!(block.iter().all(|byte| *byte == 0));
    assert_eq!(again, MIB as u64);
}

/// Bytes that were read ahead are the bytes at that time.
#[test]
fn without_splice_readahead_is_copied() {
    let room = tree();
    let (old, new) = (bytes(4 * MIB, 1), bytes(4 * MIB, 2));
    fs::write(root(&room).join("f"), &old).unwrap();
    let (read, rest) = ("cache = \"direct\"", "[fuse]\nsplice = false\nattribute_ttl = \"1h\"\n");
    let rig = mount(room, &Setup { replicas: 1, read, rest, ..Setup::default() });
    let file = File::open(rig.at("f")).unwrap();
    let mut got = vec![0; 4 * MIB];
    file.read_exact_at(&mut got[..MIB], 0).unwrap();
    rig.eventually("it is read ahead", |status| {
        let g = status.gauges;
        g.buffer_used >= 2 * MIB as u64 && g.segments_in_flight + g.segments_waiting == 0
    });
    // In place, so that an open handle finds no other version.
    File::options().write(true).open(rig.source(0, "f")).unwrap().write_all_at(&new, 0).unwrap();
    file.read_exact_at(&mut got[MIB..2 * MIB], MIB as u64).unwrap();
    assert!(got[..2 * MIB] == old[..2 * MIB], "not the bytes of the readahead");
    drop(file);
    rig.expect_quiet();
}
