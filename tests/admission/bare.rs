//! No daemon can continue the mount of a killed one: the mount is replaced, and its mount point is
//! never bare. A program that creates files all the time creates none beneath it.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::table::Manager;
use super::with_mounts;
use super::world::{State, World};
use crate::signals;

/// Waits until the mount is not that of a dead daemon. The next daemon answers for its status
/// before it replaces a mount that it cannot continue.
pub(crate) fn expect_replaced(world: &World) {
    world.eventually("the dead mount is replaced", || {
        let looked = fs::metadata(world.path("mnt"));
        looked.map_err(|error| Errno::from_io_error(&error)).err() != Some(Some(Errno::NOTCONN))
    });
}

/// Kills the daemon after removing its journal.
pub(crate) fn kill_without_journal(world: &World) -> i64 {
    let pid = Pid::from_raw(world.daemon() as i32).unwrap();
    signals::send(pid, Signal::STOP);
    let journals = fs::read_dir(world.path("run")).unwrap();
    let journals = journals.map(|entry| entry.unwrap().path());
    let journals: Vec<_> = journals
        .filter(|path| path.extension().is_some_and(|extension| extension == "journal"))
        .collect();
    assert_eq!(journals.len(), 1);
    fs::remove_file(&journals[0]).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    i64::from(pid.as_raw_nonzero().get())
}

/// A mounted volume. `beneath` shows the directory under the mount, where a process tries
/// to create files.
///
/// No thread of the test may do that. A program that the test starts has a copy of the thread's
/// file, and exec(2) waits for the daemon when it closes that copy. A daemon that the test starts
/// would wait for itself, and so would all reads of its `/proc/PID/environ`.
struct Covered {
    world: World,
    writer: Option<Child>,
}

/// Creates files in a directory, with pauses of 2 ms, until its standard input ends.
const WRITER: &str = r#"
for ((i = 0; ; i++)); do
    echo made >"$0/made$i"
    read -rt 0.002
    [ $? -gt 128 ] || exit
done"#;

impl Covered {
    fn new() -> Self {
        Self::mounted(|world| world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]))
    }

    fn mounted(mount: impl FnOnce(&World)) -> Self {
        let world = World::new("");
        fs::create_dir(world.path("beneath")).unwrap();
        mount_bind(world.path("mnt"), world.path("beneath")).unwrap();
        mount(&world);
        let mut bash = Command::new("bash");
        bash.args(["-c", WRITER]).arg(world.path("mnt"));
        bash.stdin(Stdio::piped()).stderr(Stdio::null());
        let writer = Some(bash.spawn().unwrap());
        Self { world, writer }
    }

    fn stop_writing(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            assert_eq!(writer.try_wait().unwrap(), None, "it wrote until now");
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
    }

    fn kill(&self) -> i64 {
        let daemon = self.world.daemon();
        kill_process(Pid::from_raw(daemon as i32).unwrap(), Signal::KILL).unwrap();
        daemon
    }

    fn expect_another(&self, before: i64) {
        self.world.eventually("another daemon serves", || {
            let pid = self.world.status().and_then(|status| status["pid"].as_i64());
            pid.is_some_and(|pid| pid != before)
        });
        expect_replaced(&self.world);
    }

    fn expect_refused(&self) {
        self.world.eventually("the next daemon is refused", || {
            self.world.log().contains("the dead mount cannot be replaced")
        });
        let made = fs::write(self.world.path("mnt/f99"), "made").unwrap_err();
        assert_eq!(Errno::from_io_error(&made), Some(Errno::NOTCONN), "{}", self.world.log());
        let output = self.world.run(&["status", "mnt"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("its daemon has died; fanfs umount"), "{said}");
        assert_eq!(self.world.room.daemons().len(), 1, "the keeper");
        self.expect_nothing_beneath();
    }

    fn expect_writes(&self) {
        self.world.eventually("it can be written", || {
            fs::write(self.world.path("mnt/after"), "after").is_ok()
        });
        assert_eq!(fs::read(self.world.path("tree/after")).unwrap(), b"after");
    }

    fn expect_nothing_beneath(&self) {
        let names: Vec<_> = fs::read_dir(self.world.path("beneath"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        let log = self.world.log();
        assert!(names.is_empty(), "beneath the mount: {} files\n{log}", names.len());
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        // Not waited for: where the test has failed its mount may never answer.
        let _ = self.writer.as_mut().map(Child::kill);
        let _ = unmount(self.world.path("beneath"), UnmountFlags::DETACH);
    }
}

#[test]
fn a_hung_replica_leaves_no_bare_mount_point() {
    with_mounts("bare::a_hung_replica_leaves_no_bare_mount_point", || {
        let mut covered = Covered::new();
        covered.world.becomes(State::Hung);
        let before = kill_without_journal(&covered.world);
        covered.expect_another(before);
        covered.expect_writes();
        covered.stop_writing();
        covered.expect_nothing_beneath();
        covered.world.heals();
        covered.world.expect_all_in_service();
        covered.world.expect_whole();
        // The keeper serves it as it served the first one.
        let before = covered.kill();
        covered.expect_another(before);
        covered.world.expect_whole();
    });
}

/// The same with systemd's descriptor store instead of the keeper.
#[test]
fn a_hung_replica_leaves_no_bare_mount_point_under_systemd() {
    with_mounts("bare::a_hung_replica_leaves_no_bare_mount_point_under_systemd", || {
        let mut manager = None;
        let mut covered = Covered::mounted(|world| {
            manager.insert(Manager::new(world)).start(world);
        });
        let mut manager = manager.unwrap();
        covered.world.becomes(State::Hung);
        let before = kill_without_journal(&covered.world);
        manager.service.take().unwrap().wait().unwrap();
        manager.start(&covered.world);
        covered.expect_another(before);
        covered.expect_writes();
        covered.stop_writing();
        covered.expect_nothing_beneath();
        covered.world.heals();
        covered.world.expect_all_in_service();
        covered.world.expect_whole();
        let end = Pid::from_raw(covered.world.daemon() as i32).unwrap();
        kill_process(end, Signal::TERM).unwrap();
        manager.device = None;
        manager.service.take().unwrap().wait().unwrap();
    });
}

#[test]
fn without_its_write_replica_a_volume_can_be_read() {
    with_mounts("bare::without_its_write_replica_a_volume_can_be_read", || {
        let mut covered = Covered::new();
        covered.world.becomes(State::NoWriter);
        let before = kill_without_journal(&covered.world);
        covered.expect_another(before);
        let made = fs::write(covered.world.path("mnt/after"), "made").unwrap_err();
        assert_eq!(Errno::from_io_error(&made), Some(Errno::IO), "{}", covered.world.log());
        covered.world.eventually("it can be read", || {
            fs::read(covered.world.path("mnt/f00")).is_ok_and(|read| read.starts_with(b"file 0\n"))
        });
        covered.world.expect_writes_well("made");
        covered.expect_nothing_beneath();
        covered.world.heals();
        covered.expect_writes();
        covered.stop_writing();
        covered.world.expect_all_in_service();
        covered.world.expect_whole();
        covered.expect_nothing_beneath();
    });
}

#[test]
fn the_keeper_retries_while_the_configuration_is_refused() {
    let name = "bare::the_keeper_retries_while_the_configuration_is_refused";
    with_mounts(name, || {
        let mut covered = Covered::new();
        let text = fs::read_to_string(covered.world.path("v.toml")).unwrap();
        fs::write(covered.world.path("v.toml"), text.replace("\"shared\"", "\"joint\"")).unwrap();
        let before = covered.kill();
        covered.expect_refused();
        fs::write(covered.world.path("v.toml"), text).unwrap();
        covered.expect_another(before);
        covered.expect_writes();
        covered.stop_writing();
        covered.expect_nothing_beneath();
        covered.world.expect_whole();
    });
}

/// Without the dead daemon's records any of the two file systems could be the right one.
#[test]
fn a_wrong_replica_is_refused_until_it_is_repaired() {
    with_mounts("bare::a_wrong_replica_is_refused_until_it_is_repaired", || {
        let mut covered = Covered::new();
        covered.world.becomes(State::Wrong);
        let before = kill_without_journal(&covered.world);
        covered.expect_refused();
        covered.world.heals();
        covered.expect_another(before);
        covered.expect_writes();
        covered.stop_writing();
        covered.expect_nothing_beneath();
        covered.world.expect_whole();
    });
}

#[test]
fn a_dead_mount_is_unmounted_by_umount_and_by_sigterm() {
    with_mounts("bare::a_dead_mount_is_unmounted_by_umount_and_by_sigterm", || {
        for by_signal in [false, true] {
            let mut covered = Covered::new();
            fs::write(covered.world.path("v.toml"), "nonsense").unwrap();
            covered.kill();
            covered.expect_refused();
            covered.stop_writing();
            if by_signal {
                let keeper = covered.world.room.first_process();
                kill_process(keeper, Signal::TERM).unwrap();
            } else {
                covered.world.expect(&["umount", "mnt"]);
            }
            covered.world.room.expect_gone();
            covered.expect_nothing_beneath();
        }
    });
}
