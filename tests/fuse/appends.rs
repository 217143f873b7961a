//! O_DIRECT appends, which the kernel splits into parts and sends together.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use crate::recorder::Call;
use crate::rig::{Rig, Setup, bytes, mount, tree};

const MIB: usize = 1 << 20;

/// How a descriptor gets O_DIRECT.
#[derive(Clone, Copy, Debug)]
enum Made {
    AtOpen,
    /// By fcntl(2): the kernel sends the parts of one write together.
    Later,
}

fn rig() -> Rig {
    mount(tree(), &Setup { write: true, ..Setup::default() })
}

fn appender(rig: &Rig, made: Made) -> File {
    let mut options = File::options();
    options.append(true).create(true);
    match made {
        Made::AtOpen => options.custom_flags(nix::libc::O_DIRECT).open(rig.at("log")).unwrap(),
        Made::Later => {
            let file = options.open(rig.at("log")).unwrap();
            fcntl_setfl(&file, OFlags::APPEND | OFlags::DIRECT).unwrap();
            file
        }
    }
}

/// One complete write(2) from page-aligned memory, so that its parts are whole blocks.
fn append(mut file: &File, data: &[u8]) {
    let mut space = vec![0; data.len() + 4096];
    let start = space.as_ptr().align_offset(4096);
    let data_there = &mut space[start..start + data.len()];
    data_there.copy_from_slice(data);
    assert_eq!(file.write(data_there).unwrap(), data.len());
}

#[test]
fn large_direct_appends_are_stored_in_order() {
    for made in [Made::AtOpen, Made::Later] {
        let rig = rig();
        let file = appender(&rig, made);
        let mut expected = Vec::new();
        for round in 0..12 {
            // In two of three rounds the last part is a short one.
            let data = bytes(8 * MIB + round % 3 * 1000, round as u64);
            append(&file, &data);
            expected.extend_from_slice(&data);
            assert!(fs::read(rig.source(0, "log")).unwrap() == expected, "{made:?} {round}");
        }
        drop(file);
        rig.expect_quiet();
    }
}

/// Two handles of this mount and a program on another client append at the same time, so
/// the kernel mostly has a wrong end of file. Each append stays in its own order; only
/// another client's append may lie inside it.
#[test]
fn large_direct_appends_keep_order_beside_other_writers() {
    const ROUNDS: usize = 6;
    for made in [Made::AtOpen, Made::Later] {
        let rig = rig();
        let files = [appender(&rig, made), appender(&rig, made)];
        let other = File::options().append(true).open(rig.source(0, "log")).unwrap();
        // Each block holds its owner, its round and its position in the append.
        let block = |owner: usize, round: usize, part: usize| {
            let mut block = vec![0u8; 64 << 10];
            // `owner + 1` is never 0, so a hole does not look like a block.
            block[..3].copy_from_slice(&[owner as u8 + 1, round as u8, part as u8]);
            block
        };
        let data = |owner, round, parts: usize| {
            (0..parts).flat_map(|part| block(owner, round, part)).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            for (owner, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    (0..ROUNDS).for_each(|round| append(file, &data(owner, round, 64)));
                });
            }
            scope.spawn(|| {
                (0..40).for_each(|round| {
                    append(&other, &data(2, round, 1));
                    std::thread::sleep(std::time::Duration::from_millis(2));
                });
            });
        });
        let stored = fs::read(rig.source(0, "log")).unwrap();
        let stored: Vec<_> = stored.chunks(64 << 10).map(|b| (b[0], b[1], b[2])).collect();
        for owner in 0..2 {
            let own = stored.iter().filter(|block| block.0 == owner + 1).copied();
            let expected = (0..ROUNDS as u8).flat_map(|r| (0..64).map(move |p| (owner + 1, r, p)));
            let first = own.clone().zip(expected.clone()).find(|(own, expected)| own != expected);
            assert_eq!(first, None, "{made:?}");
            assert!(own.eq(expected), "{made:?}");
        }
        assert_eq!(stored.iter().filter(|block| block.0 == 3).count(), 40);
        drop(files);
        rig.expect_quiet();
    }
}

/// After a failed part no later one is stored: it would leave a hole.
#[test]
fn no_part_is_stored_after_a_failed_part() {
    // Where the first part fails, others have not arrived yet.
    for (made, good, size) in [
        (Made::AtOpen, 2, 8 * MIB),
        (Made::Later, 2, 8 * MIB),
        (Made::Later, 0, 8 * MIB),
        (Made::Later, 0, 48 * MIB),
    ] {
        let rig = rig();
        let mut file = appender(&rig, made);
        append(&file, &bytes(2 * MIB, 1));
        let rule = FaultRule::always(FaultOp::Write, Fault::Errno(Errno::NOSPC));
        rig.scripts[0].add(FaultRule { after: good, count: 1, ..rule });
        let data = bytes(size, 2);
        rig.record();
        // The file must hold as many bytes as write(2) returned, or none after an error.
        let wrote = file.write(&data);
        let stored = *wrote.as_ref().unwrap_or(&0);
        assert!(stored < data.len(), "{made:?}");
        // The kernel cuts the file back after an error, so its content does not show them.
        let is_write = |call: &&Call| matches!(call, Call::Write(_));
        let calls = rig.recorded().swap_remove(0);
        let asked = calls.iter().filter(is_write).count() as u64;
        assert_eq!(asked, good + 1, "{made:?}, {wrote:?} of {size} bytes: {calls:?}");
        rig.scripts[0].heal();
        append(&file, &bytes(3 * MIB, 3));
        let expected = [&bytes(2 * MIB, 1), &data[..stored], &bytes(3 * MIB, 3)].concat();
        assert!(fs::read(rig.source(0, "log")).unwrap() == expected, "{made:?}");
        drop(file);
        rig.expect_quiet();
    }
}
