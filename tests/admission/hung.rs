//! A handover, or a restart after a kill, while a replica hangs with files open on it.
//!
//! Closing such a file waits for the replica. So do an exec and the exit of the process
//! that has it open.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::with_mounts;
use super::world::{State, World};

/// Content that differs at every offset.
fn large() -> Vec<u8> {
    (0..24u64 << 20 >> 3).flat_map(|i| (i * 0x9e37_79b9).to_le_bytes()).collect()
}

/// A volume with a large file and the write replica `writer`.
fn world(writer: &str) -> World {
    world_with(writer, "")
}

/// With the tables `more`.
fn world_with(writer: &str, more: &str) -> World {
    let world = World::new("");
    fs::write(world.path("tree/large"), large()).unwrap();
    let text = fs::read_to_string(world.path("v.toml")).unwrap();
    let text = text.replace("[write]\n", &format!("[write]\nreplica = \"{writer}\"\n"));
    fs::write(world.path("v.toml"), text + more).unwrap();
    world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
    world
}

/// Opens the file past the page cache, and reads it until `n3` has it open.
fn open_on_the_fuse_replica(world: &World) -> File {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let open = || File::options().read(true).custom_flags(direct).open(world.path("mnt/large"));
    let file = open().unwrap();
    let fds = format!("/proc/{}/fd", world.daemon());
    let at = world.path("n3/large");
    world.eventually("the FUSE replica has it open", || {
        expect_right(&file);
        let mut entries = fs::read_dir(&fds).unwrap();
        entries.any(|entry| fs::read_link(entry.unwrap().path()).is_ok_and(|to| to == at))
    });
    file
}

fn expect_right(file: &File) {
    let mut space = vec![0u8; (1 << 20) + 4096];
    let start = space.as_ptr().align_offset(4096);
    let expected = large();
    for (i, part) in expected.chunks(1 << 20).enumerate() {
        let buffer = &mut space[start..start + part.len()];
        file.read_exact_at(buffer, (i << 20) as u64).unwrap();
        assert!(buffer == part, "MiB {i} has other bytes");
    }
}

/// Waits until a thread of the daemon hangs in `n3`.
fn have_one_stuck(world: &World) {
    world.eventually("a thread hangs there", || {
        let _ = fs::read(world.path("mnt/large"));
        let _ = rustix::fs::statvfs(world.path("mnt"));
        let status = world.status().unwrap_or_default();
        status["replicas"][2]["active_threads"].as_u64() > Some(0)
    });
}

/// Waits for another daemon than `before`.
fn expect_another(world: &World, before: i64) {
    world.eventually("another daemon serves", || {
        world.status().is_some_and(|status| status["pid"] != before)
    });
}

fn launcher(daemon: i64) -> i64 {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let (pid, rest) = stat.split_once(" (fanfs-launcher) ")?;
        let parent: i64 = rest.split(' ').nth(1)?.parse().ok()?;
        (parent == daemon).then(|| pid.parse().unwrap())
    });
    let found: Vec<i64> = processes.collect();
    assert_eq!(found.len(), 1, "launchers of {daemon}: {found:?}");
    found[0]
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Upgrade,
    Reload,
    Kill,
}

fn read_on(way: Way) {
    let mut world = world("n1");
    let file = open_on_the_fuse_replica(&world);
    let written = File::create(world.path("mnt/written")).unwrap();
    written.write_all_at(b"before ", 0).unwrap();
    let before = world.daemon();
    world.becomes(State::Hung);
    have_one_stuck(&world);
    match way {
        Way::Upgrade => world.expect(&["upgrade", "mnt"]),
        Way::Reload => world.expect(&["reload", "mnt"]),
        Way::Kill => {
            kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
        }
    }
    expect_another(&world, before);
    assert_eq!(world.health()["n3"], "absent");
    expect_right(&file);
    world.expect_whole();
    written.write_all_at(b"after", 7).unwrap();
    assert_eq!(fs::read(world.path("tree/written")).unwrap(), b"before after");
    world.heals();
    world.expect_all_in_service();
    expect_right(&file);
}

#[test]
fn an_upgrade_does_not_wait_for_a_hung_replica() {
    with_mounts("hung::an_upgrade_does_not_wait_for_a_hung_replica", || read_on(Way::Upgrade));
}

#[test]
fn a_reload_does_not_wait_for_a_hung_replica() {
    with_mounts("hung::a_reload_does_not_wait_for_a_hung_replica", || read_on(Way::Reload));
}

#[test]
fn recovery_after_a_kill_does_not_wait_for_a_hung_replica() {
    with_mounts("hung::recovery_after_a_kill_does_not_wait_for_a_hung_replica", || {
        read_on(Way::Kill);
    });
}

/// A file on the hung write replica survives; it can be written when the replica is back.
fn write_on(way: Way) {
    let mut world = world("n3");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(world.path("mnt/written")).unwrap();
    file.write_all_at(b"before ", 0).unwrap();
    let before = world.daemon();
    world.becomes(State::Hung);
    match way {
        Way::Upgrade => world.expect(&["upgrade", "mnt"]),
        // `fanfs mount` would refuse it as well: the write replica hangs.
        Way::Reload => {
            let refused = world.run(&["reload", "mnt"]);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && said.contains("write replica"), "{said}");
        }
        Way::Kill => {
            kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
        }
    }
    if !matches!(way, Way::Reload) {
        expect_another(&world, before);
        assert_eq!(world.health()["n3"], "absent");
    }
    // Other files can be read meanwhile.
    let (done, answer) = mpsc::channel();
    let path = world.path("mnt/f03");
    std::thread::spawn(move || done.send(fs::read(path).map(|bytes| bytes.len())));
    let read = answer.recv_timeout(Duration::from_secs(60)).expect("an answer");
    if !matches!(way, Way::Kill) {
        // For `lag` after a kill only the write replica answers lookups; `lag` is 0 here.
        assert!(read.is_ok(), "{read:?}");
    }
    world.heals();
    world.expect_all_in_service();
    file.write_all_at(b"after", 7).unwrap();
    assert_eq!(fs::read(world.path("tree/written")).unwrap(), b"before after");
    world.expect_whole();
}

#[test]
fn an_upgrade_keeps_files_open_for_writing() {
    with_mounts("hung::an_upgrade_keeps_files_open_for_writing", || {
        write_on(Way::Upgrade);
    });
}

#[test]
fn a_reload_that_cannot_be_mounted_changes_nothing() {
    with_mounts("hung::a_reload_that_cannot_be_mounted_changes_nothing", || {
        write_on(Way::Reload);
    });
}

#[test]
fn files_open_for_writing_survive_a_kill_of_the_daemon() {
    with_mounts("hung::files_open_for_writing_survive_a_kill_of_the_daemon", || {
        write_on(Way::Kill);
    });
}

/// The dead daemon may have made the change, and the next one does not make it again.
#[test]
fn an_unrepeatable_change_at_a_kill_ends_with_etimedout() {
    let name = "hung::an_unrepeatable_change_at_a_kill_ends_with_etimedout";
    with_mounts(name, || {
        // The kernel must not ask for attributes first, to check permissions.
        let mut world = world_with("n3", "[fuse]\nattribute_ttl = \"10min\"\n");
        let file = File::create(world.path("mnt/written")).unwrap();
        let before = world.daemon();
        world.becomes(State::Hung);
        let (done, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let create = rustix::fs::XattrFlags::CREATE;
            done.send(rustix::fs::fsetxattr(&file, "user.x", b"1", create))
        });
        world.eventually("the change hangs there", || {
            let status = world.status().unwrap_or_default();
            status["replicas"][2]["active_threads"].as_u64() > Some(0)
        });
        kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
        expect_another(&world, before);
        let answer = answer.recv_timeout(Duration::from_secs(60)).expect("an answer");
        assert_eq!(answer, Err(rustix::io::Errno::TIMEDOUT));
        world.heals();
        world.expect_all_in_service();
    });
}

#[test]
fn a_dead_launcher_is_an_error_and_blocks_nothing() {
    with_mounts("hung::a_dead_launcher_is_an_error_and_blocks_nothing", || {
        let world = world("n1");
        let daemon = world.daemon();
        let dead = launcher(daemon);
        kill_process(Pid::from_raw(dead as i32).unwrap(), Signal::KILL).unwrap();
        let output = world.run(&["upgrade", "mnt"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("process that starts programs has ended"), "{said}");
        assert_eq!(world.daemon(), daemon);
        world.expect_whole();
        // The keeper's next daemon has a launcher again.
        kill_process(Pid::from_raw(daemon as i32).unwrap(), Signal::KILL).unwrap();
        expect_another(&world, daemon);
        world.expect(&["upgrade", "mnt"]);
        let last = launcher(world.daemon());
        world.expect(&["umount", "mnt"]);
        let stat = format!("/proc/{last}/stat");
        world.eventually("the launcher has ended", || {
            // It stays a zombie if no process reaps orphans.
            fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
        });
    });
}
