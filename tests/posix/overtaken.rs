//! A read that overtakes a write on its way to the daemon.
//!
//! The kernel copies the pages of a write one by one before it sends the request. If the memory of
//! a later page must be read from a file that hangs, the copy waits for that, with the first pages
//! in its cache and unlocked.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use fanfs::backend::{Fault, FaultOp, FaultRule};

use super::stamp::BLOCK;
use crate::mapped::{Mapper, Mapping};
use crate::rig::{PATIENCE, Rig};

/// The first block of the write.
const AT: u64 = 5;

/// Returns once mapped memory and read(2) show the written bytes, though an open between the two
/// halves of the write has put the old bytes back into the page cache.
pub(crate) fn run(rig: &Rig) {
    fs::write(rig.source(0, "f"), vec![b'o'; 8 * BLOCK as usize]).unwrap();
    fs::write(rig.source(0, "hangs"), vec![b'n'; BLOCK as usize]).unwrap();
    let reader = File::open(rig.at("f")).unwrap();
    let mut mapped = Mapper::of(&rig.at("f"), Mapping::Shared).unwrap();
    let mut hanging = Mapper::of(&rig.at("hangs"), Mapping::Shared).unwrap();
    let hang = FaultRule::always(FaultOp::Read, Fault::Hang).beneath("hangs");
    rig.scripts[0].add(hang);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| {
            let first = [b'n'; BLOCK as usize];
            hanging.write(&rig.at("f"), AT * BLOCK, &first, 0..BLOCK).unwrap()
        });
        let mut first = || mapped.read(AT * BLOCK, BLOCK).unwrap()[0];
        until("the kernel has copied the first block", || first() == b'n');
        let mut block = vec![0; BLOCK as usize];
        let later = File::open(rig.at("f")).unwrap();
        later.read_exact_at(&mut block, AT * BLOCK).unwrap();
        let seen = (block[0], first());
        rig.scripts[0].heal();
        assert_eq!(write.join().unwrap(), 2 * BLOCK as usize);
        assert_eq!(seen, (b'o', b'o'), "the write had not come to the daemon");
        until("mapped memory shows the written bytes", || first() == b'n');
        reader.read_exact_at(&mut block, AT * BLOCK).unwrap();
        assert_eq!(block[0], b'n', "read after the write");
    });
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to this: {what}");
        std::thread::yield_now();
    }
}
