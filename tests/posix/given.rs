//! The same tests on existing directories, for a lab with real mounts:
//!
//!     FANFS_MOUNT=/fan/dir FANFS_DIRECT=/nfs/dir cargo test --test mounted given -- \
//!         --ignored --nocapture
//!
//! Both are the same directory, in the mount and beside it. Also: `FANFS_BUILD`, the same where
//! root is not squashed; `FANFS_WRITE`, the directory for stamped blocks if it is not in the mount
//! (later opens must see them then, and open handles need not see them at once); `FANFS_READS`;
//! `FANFS_NO_TEARS`, if blocks may not tear.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{consistency, locks, own_writes, permissions};

fn given(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

fn mount() -> PathBuf {
    given("FANFS_MOUNT").expect("FANFS_MOUNT is to be set")
}

fn direct() -> PathBuf {
    given("FANFS_DIRECT").expect("FANFS_DIRECT is to be set")
}

/// A new directory below one of those, usable by every user.
fn new(below: &Path, name: &str) -> PathBuf {
    let dir = below.join(format!("{name}-{}", std::process::id()));
    if !dir.exists() {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    }
    dir
}

#[test]
#[ignore = "needs directories"]
fn lab_directories_have_the_same_permissions() {
    let build = given("FANFS_BUILD").unwrap_or_else(direct);
    let oracle = new(&build, "oracle");
    let built = new(&build, "matrix");
    let name = |dir: &Path| dir.file_name().unwrap().to_owned();
    let (seen, matrix) = (direct().join(name(&oracle)), mount().join(name(&built)));
    permissions::expect_same((&seen, &oracle), (&matrix, &built), &[]);
    [oracle, built].iter().for_each(|dir| fs::remove_dir(dir).unwrap());
}

#[test]
#[ignore = "needs directories"]
fn readers_of_a_lab_directory_see_written_data() {
    let read = new(&mount(), "stamped");
    let write = given("FANFS_WRITE").map(|dir| dir.join(read.file_name().unwrap()));
    let reads = std::env::var("FANFS_READS").map_or(100_000, |reads| reads.parse().unwrap());
    let setup = consistency::Setup {
        reads,
        at_once: write.is_none(),
        may_tear: given("FANFS_NO_TEARS").is_none(),
        write: write.unwrap_or_else(|| read.clone()),
        ..consistency::Setup::of(&read)
    };
    let report = consistency::attempt(&setup);
    fs::remove_dir_all(&read).unwrap();
    println!("{:?}", report.unwrap_or_else(|wrong| panic!("{wrong}")));
}

#[test]
#[ignore = "needs directories"]
fn an_open_handle_sees_writes_in_a_lab_directory() {
    let dir = new(&mount(), "own");
    println!("mapped: {}", own_writes::run(&dir));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
#[ignore = "needs directories"]
fn locks_conflict_in_a_lab_directory() {
    let dir = new(&mount(), "locks");
    locks::run(&dir, &direct().join(dir.file_name().unwrap()));
    fs::remove_dir_all(dir).unwrap();
}
