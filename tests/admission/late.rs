//! A replica joins after the start, and the daemon is killed.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::with_mounts;
use super::world::{State, World};

/// The rule that a replica stays the same file system applies to it as well. In `copies` mode no
/// other rule keeps the wrong one out.
#[test]
fn after_a_kill_a_different_file_system_is_rejected() {
    with_mounts("late::after_a_kill_a_different_file_system_is_rejected", || {
        let mut world = World::new("");
        let text = fs::read_to_string(world.path("v.toml")).unwrap();
        let text = text.replace("\"shared\"", "\"copies\"").replace("\"rw\"", "\"ro\"");
        fs::write(world.path("v.toml"), text).unwrap();
        world.becomes(State::Absent);
        world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
        let before = world.daemon();
        assert_eq!(world.health()["n2"], "absent");
        world.heals();
        world.expect_all_in_service();

        world.becomes(State::Wrong);
        kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
        world.eventually("the next daemon answers", || {
            world.status().is_some_and(|status| status["pid"] != before)
        });
        world.eventually("the next daemon has looked at the replica", || {
            world.health()["n2"] != "absent" || says_changed(&world)
        });
        let health = world.health();
        assert_eq!(health["n2"], "absent", "{health:?}\n{}", world.log());
        world.expect_whole();

        world.heals();
        world.expect_all_in_service();
        world.expect_whole();
    });
}

fn says_changed(world: &World) -> bool {
    let said = String::from_utf8(world.room.expect(&["status", "mnt"]).stdout).unwrap();
    said.lines().any(|line| {
        line.contains("warning: replica n2 is absent: ")
            && line.contains("different file system than before")
    })
}
