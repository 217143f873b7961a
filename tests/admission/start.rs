//! How many replicas a start waits for, and for how long: up to 5 s.

use super::with_mounts;
use super::world::{State, World};
use crate::machine::attempts;

#[test]
fn no_usable_replica_is_one_clear_error() {
    with_mounts("start::no_usable_replica_is_one_clear_error", || attempts(start_without_replicas));
}

fn start_without_replicas() {
    let mut world = World::new("");
    for state in [State::Absent, State::NoWriter] {
        world.becomes(state);
    }
    let text = std::fs::read_to_string(world.path("v.toml")).unwrap();
    let text = text.replace("access = \"rw\"", "access = \"ro\"");
    let hung = format!("[[replica]]\nname = \"n3\"\npath = \"{}\"\n", world.path("n3").display());
    std::fs::write(world.path("v.toml"), text.replace(&hung, "")).unwrap();
    let output = world.run(&["mount", "v.toml", "mnt"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for name in ["n1", "n2"] {
        let path = world.path(name);
        assert!(said.contains(&format!("mount it: `mount {}`", path.display())), "{said}");
    }
}

#[test]
fn a_start_needs_min_replicas() {
    with_mounts("start::a_start_needs_min_replicas", || attempts(start_with_too_few_replicas));
}

fn start_with_too_few_replicas() {
    let mut world = World::new("min_replicas = 3");
    world.becomes(State::Absent);
    let output = world.run(&["mount", "v.toml", "mnt"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("min_replicas is 3") && said.contains("replica n2 ("), "{said}");
    assert!(world.room.mounted().is_none());
    world.heals();
    world.expect(&["mount", "v.toml", "mnt"]);
    world.expect_whole();
}
