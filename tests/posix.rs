//! POSIX promises for writers, through real writable mounts.
//!
//! Foreign suites and programs, and tests of our own for the parts that those omit: permissions,
//! consistency, locks. All are functions over directories, so they also run on others: on plain
//! ones below, which must agree with themselves, on wrong ones, whose errors must be detected, and
//! on those of a lab ([`given`]).
//!
//! Needs root, and the programs that `.ci/run` installs. A test without its program is skipped with
//! a note; it fails if the variable CI is set.

mod caller;
mod consistency;
mod fsx;
mod given;
mod locks;
mod overtaken;
mod own_writes;
mod permissions;
mod pjdfstest;
mod programs;
mod python;
mod reader;
mod set_id;
mod shown;
mod stamp;
mod tool;
mod tree;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::needs;
use crate::rig::{self, Rig, Setup};

const KERNEL: &str = "cache = \"kernel\"";
const DIRECT: &str = "cache = \"direct\"";

/// A writable volume, over `replicas` views of one directory.
fn volume(replicas: usize, read: &'static str) -> Rig {
    let room = rig::tree();
    rig::mount(room, &Setup { replicas, read, write: true, plain: true, ..Setup::default() })
}

/// Runs `test` in a volume of three replicas, unless `program` is missing. After it nothing may be
/// open or in flight.
fn with(program: &str, test: impl FnOnce(&Path)) {
    if tool::installed(program) {
        let rig = volume(3, "");
        test(&rig.at(""));
        rig.expect_quiet();
        rig.end();
    }
}

#[test]
fn pjdfstest_passes_wherever_the_backing_passes() {
    if !tool::installed("pjdfstest") {
        return;
    }
    let (one, three) = (volume(1, ""), volume(3, ""));
    let backing = pjdfstest::run(&one.source(0, ""));
    let (by_one, by_three) = (pjdfstest::run(&one.at("")), pjdfstest::run(&three.at("")));
    let columns = [("backing", &backing), ("fanfs x1", &by_one), ("fanfs x3", &by_three)];
    pjdfstest::print_table(&columns);
    for (name, outcomes) in &columns[1..] {
        let mut lost = pjdfstest::lost(&backing, outcomes);
        lost.retain(|case| !pjdfstest::SKIPPED_ON_FUSE.iter().any(|(skipped, _)| case == skipped));
        assert!(lost.is_empty(), "pass on the backing and not on {name}: {lost:#?}");
    }
    assert!(backing.len() > 350, "only {} cases", backing.len());
}

#[test]
fn fsx_reads_its_own_writes_back_from_one_replica() {
    run_fsx(1, 1, KERNEL);
}

#[test]
fn fsx_reads_its_own_writes_back_from_three_replicas_directly() {
    run_fsx(2, 3, DIRECT);
}

#[test]
fn fsx_reads_its_own_writes_back_from_three_replicas() {
    run_fsx(3, 3, KERNEL);
}

#[test]
fn fsx_reads_its_own_writes_back_from_one_replica_directly() {
    run_fsx(4, 1, DIRECT);
}

/// `FANFS_FSX=1000000` for a long run: the number of operations of each of three seeds.
fn run_fsx(first_seed: u64, replicas: usize, cache: &'static str) {
    if !tool::installed("fsx") {
        return;
    }
    let long = std::env::var("FANFS_FSX").ok().map(|operations| operations.parse().unwrap());
    let operations = long.unwrap_or(10_000);
    let seeds = if long.is_some() { 3 } else { 1 };
    for seed in (first_seed..).step_by(4).take(seeds) {
        let rig = volume(replicas, cache);
        fsx::run(&rig.at(""), &rig.source(0, ""), operations, seed);
        rig.expect_quiet();
        println!("seed {seed}: {replicas} replicas, {cache}, {operations} operations");
    }
}

#[test]
fn fio_verifies_its_own_writes() {
    with("fio", programs::fio);
}

#[test]
fn stress_ng_finds_no_fault() {
    with("stress-ng", programs::stress);
}

#[test]
fn git_keeps_a_repository() {
    with("git", programs::git);
}

#[test]
fn cargo_finds_a_second_build_fresh() {
    with("cargo", programs::cargo);
}

#[test]
fn sqlite_sees_no_partial_transactions() {
    with("sqlite3", programs::sqlite);
}

#[test]
fn tar_restores_a_tree() {
    with("tar", programs::tar);
}

#[test]
fn cp_preserves_files_and_holes() {
    with("cp", programs::cp);
}

#[test]
fn permissions_match_the_replica() {
    let rig = volume(3, "");
    let dirs = ["direct", "mounted"].map(|name| rig.source(0, name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let (direct, mounted) = (rig.source(0, "direct"), rig.at("mounted"));
    permissions::expect_same((&direct, &direct), (&mounted, &rig.source(0, "mounted")), &[]);
}

/// `FANFS_READS=1000000` for a long run.
#[test]
fn readers_see_data_written_before_their_open() {
    let reads = std::env::var("FANFS_READS").map_or(30_000, |reads| reads.parse().unwrap());
    for cache in [KERNEL, DIRECT] {
        let rig = volume(3, cache);
        // Pages of the kernel's cache tear, as on other file systems. A caller that looks a name up
        // and opens it during two renames over it in a row gets ESTALE.
        let setup = consistency::Setup {
            reads,
            may_tear: cache == KERNEL,
            may_be_stale: true,
            ..consistency::Setup::of(&rig.at(""))
        };
        let report = consistency::attempt(&setup).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{cache}: {report:?}");
        assert!(report.stale * 200 <= report.opens, "{report:?}");
        assert!(report.passes > 50 && report.quiet > 50, "{report:?}");
        assert!(report.at_rest > 1000 && report.by_old_handles > 10, "{report:?}");
        rig.expect_quiet();
    }
}

#[test]
fn an_open_handle_sees_a_write_at_once() {
    if !needs::program("python3") {
        return;
    }
    for cache in [KERNEL, DIRECT] {
        assert!(own_writes::run(&volume(3, cache).at("")), "memory was not mapped");
    }
}

/// This may happen to any write on a busy machine.
#[test]
fn a_returned_write_is_visible_after_a_racing_read() {
    if !needs::program("python3") {
        return;
    }
    let setup = Setup { replicas: 1, read: KERNEL, write: true, ..Setup::default() };
    let rig = rig::mount(rig::tree(), &setup);
    overtaken::run(&rig);
    rig.expect_quiet();
}

#[test]
fn locks_conflict_through_the_mount_and_beside_it() {
    let rig = volume(3, "");
    locks::run(&rig.at(""), &rig.source(0, ""));
    rig.expect_quiet();
}

/// Two directories of one file system.
fn two() -> (tempfile::TempDir, [PathBuf; 2]) {
    let room = tempfile::Builder::new().prefix("fanfs-test-").tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| room.path().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    (room, dirs)
}

#[test]
fn two_plain_directories_have_the_same_permissions() {
    let (_room, [a, b]) = two();
    permissions::expect_same((&a, &a), (&b, &b), &[]);
}

/// Copies every file that has changed, a little later and as a whole.
fn follow(from: &Path, to: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for entry in fs::read_dir(from).unwrap().map_while(Result::ok) {
            // A file that is replaced meanwhile is copied next time.
            let Ok(content) = fs::read(entry.path()) else { continue };
            fs::write(to.join("next"), content).unwrap();
            fs::rename(to.join("next"), to.join(entry.file_name())).unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_test_detects_a_lagging_copy() {
    let (_room, [a, b]) = two();
    for size in ["4096", "307200", "5242880"] {
        fs::write(b.join(format!("stamped-{size}")), "").unwrap();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| follow(&a, &b, &over));
        let setup = consistency::Setup {
            read: b.clone(),
            at_once: false,
            rest: Duration::from_millis(3),
            ..consistency::Setup::of(&a)
        };
        let found = consistency::attempt(&setup);
        over.store(true, Ordering::Relaxed);
        println!("{}", found.expect_err("the lagging copy was not detected"));
    });
}
