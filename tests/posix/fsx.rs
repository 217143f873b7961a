//! The file system exerciser fsx: random operations on one file, whose content is checked after
//! each of them.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::tool::{bounded, ended};

/// Relative frequencies of the operations.
const WEIGHTS: &[(&str, u32)] = &[
    ("read", 10),
    ("write", 10),
    ("mapread", 10),
    ("mapwrite", 10),
    ("truncate", 5),
    ("close_open", 2),
    ("fsync", 1),
    ("fdatasync", 1),
    ("invalidate", 1),
    ("posix_fadvise", 3),
    ("sendfile", 5),
    ("punch_hole", 5),
    ("posix_fallocate", 3),
    ("copy_file_range", 5),
];

/// Runs `operations` that follow from `seed` on a new file in `dir`: those that `backing`, the
/// directory in which `dir`'s files really are, supports.
///
/// With an odd seed the kernel writes a mapping's changes back itself; with an even one msync
/// follows each time.
pub(crate) fn run(dir: &Path, backing: &Path, operations: u64, seed: u64) {
    let refused = refused(backing);
    // fallocate would refuse a length of 0.
    let mut config = format!(
        "flen = 1048576\nnomsyncafterwrite = {}\n[opsize]\nmin = 1\nmax = 131072\n[weights]\n",
        seed % 2 == 1,
    );
    for (name, weight) in WEIGHTS {
        let weight = if refused.contains(name) { 0 } else { *weight };
        config.push_str(&format!("{name} = {weight}\n"));
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("fsx.toml"), config).unwrap();
    let file = dir.join(format!("fsx-{seed}"));

    // With all operations printed: after a failed call fsx ends without its log.
    let seconds = 120 + u32::try_from(operations / 200).unwrap();
    let mut command = bounded(seconds, "fsx", scratch.path());
    command.args(["-v", "-f", "fsx.toml", "-P", "."]);
    command.arg("-N").arg(operations.to_string()).arg("-S").arg(seed.to_string()).arg(&file);
    let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
    let done = String::from_utf8_lossy(&output.stdout).contains("All operations completed A-OK!");
    assert!(
        output.status.success() && done,
        "fsx with seed {seed}, {operations} operations, without {refused:?}, on {}: {}",
        file.display(),
        ended(&output),
    );
    fs::remove_file(&file).unwrap();
}

/// The operations that no file in `backing` supports.
pub(crate) fn refused(backing: &Path) -> Vec<&'static str> {
    let file: File = tempfile::tempfile_in(backing).unwrap();
    file.set_len(65536).unwrap();
    let allocate = |mode| rustix::fs::fallocate(&file, mode, 4096, 8192).is_ok();
    let punched = allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut 0), &file, Some(&mut 32768), 4096).is_ok();
    let can = [
        ("punch_hole", punched),
        ("posix_fallocate", allocate(FallocateFlags::empty())),
        ("copy_file_range", copied),
    ];
    can.into_iter().filter(|(_, can)| !can).map(|(name, _)| name).collect()
}
