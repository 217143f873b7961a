//! The commands' reports about a mount whose daemon does not answer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::room::Room;

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(text).unwrap()
}

fn run(room: &Room, args: &[&str]) -> (Option<i32>, String) {
    let output = room.fanfs(args).output().unwrap();
    (output.status.code(), said(&output))
}

/// A volume whose daemon was killed. No other test uses its name: `doctor` finds mounts
/// by it.
fn killed() -> Room {
    let room = Room::new();
    let volume = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), volume.replace("name = \"v\"", "name = \"killed\"")).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let daemon = Pid::from_raw(room.daemons()[0]).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    room.eventually("it is dead", || room.daemons().is_empty());
    room
}

#[test]
fn a_dead_daemon_is_reported_with_the_command_that_helps() {
    let room = killed();
    let point = room.path("mnt").display().to_string();
    let umount = format!("fanfs umount {point}");
    for args in [&["status"][..], &["status", "mnt"], &["status", "--check"]] {
        let (status, text) = run(&room, args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        assert!(text.contains("its daemon has died"), "{args:?}: {text}");
        assert!(text.contains(&umount), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    }
    for (args, one) in [(&["status", "--json"][..], false), (&["status", "mnt", "--json"], true)] {
        let output = room.fanfs(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let dead = if one { &value } else { &value[0] };
        assert_eq!(
            (&dead["volume"], &dead["daemon"]),
            (&"killed".into(), &"dead".into()),
            "{value}"
        );
        assert_eq!(dead["mount_point"], point.as_str());
        assert!(dead["remedy"].as_str().unwrap().contains(&umount), "{value}");
    }
    for args in [
        &["reload", "mnt"][..],
        &["upgrade", "mnt"],
        &["top", "mnt", "--once"],
        &["trace", "mnt"],
        &["status", "mnt", "--check"],
    ] {
        let (status, text) = run(&room, args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        assert!(text.contains("its daemon has died"), "{args:?}: {text}");
    }
    let doctor = room.fanfs(&["doctor", "v.toml", "--json"]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(1));
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let findings = doctor["findings"].as_array().unwrap();
    let about = |finding: &&Value| {
        finding["id"] == "volume.daemon" && finding["text"].as_str().unwrap().contains(&point)
    };
    let finding = findings.iter().find(about).unwrap_or_else(|| panic!("{findings:?}"));
    assert!(finding["remedy"].as_str().unwrap().contains(&umount), "{finding}");

    // The command from the report works.
    room.expect(&["umount", "mnt"]);
    let (status, text) = run(&room, &["status", "mnt"]);
    assert_eq!(status, Some(1));
    assert!(text.contains("no fanfs volume of this user is mounted at"), "{text}");
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(run(&room, &["status", "--check"]), (Some(0), String::new()));
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_daemon_that_hangs_does_not_hang_the_commands() {
    let room = Room::new();
    room.volume("v.toml", "", "[fuse]\nattribute_ttl = \"0s\"\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    let daemon = Pid::from_raw(room.daemons()[0]).unwrap();
    room.stop(daemon);
    let args = [&["status", "mnt"][..], &["status", "--check"]];
    let all: Vec<_> = args.iter().map(|args| run(&room, args)).collect();
    kill_process(daemon, Signal::CONT).unwrap();
    for (args, (status, text)) in args.iter().zip(all) {
        assert_eq!(status, Some(1), "{args:?}: {text}");
        assert!(text.contains("does not answer"), "{args:?}: {text}");
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_replica_that_is_out_of_service_fails_the_check() {
    let room = Room::new();
    for sub in ["second", "tree3"] {
        fs::create_dir(room.path(sub)).unwrap();
    }
    fs::copy(room.path("tree/hello"), room.path("tree3/hello")).unwrap();
    let times = std::process::Command::new("cp")
        .args(["-a", "--no-target-directory"])
        .args([room.path("tree"), room.path("tree3")])
        .status();
    assert!(times.unwrap().success());
    // A mount of fanfs is the replica that dies.
    room.volume("inner.toml", "", "");
    room.expect(&["mount", "inner.toml", "mnt"]);
    let inner = room.daemons();
    let text = format!(
        "[volume]\nname = \"outer\"\nmode = \"copies\"\n\
         [fuse]\nattribute_ttl = \"0s\"\n[read]\ncache = \"direct\"\n\
         [[replica]]\nname = \"dying\"\npath = \"{}\"\n\
         [[replica]]\nname = \"other\"\npath = \"{}\"\nrequire_mount = false\n",
        room.path("mnt").display(),
        room.path("tree3").display()
    );
    fs::write(room.path("outer.toml"), text).unwrap();
    room.expect(&["mount", "outer.toml", "second"]);
    assert_eq!(run(&room, &["status", "second", "--check"]), (Some(0), String::new()));
    kill_process(Pid::from_raw(inner[0]).unwrap(), Signal::KILL).unwrap();
    room.eventually("the replica is out of service", || {
        let _ = fs::read_dir(room.path("second")).map(Iterator::count);
        let _ = fs::read(room.path("second/hello"));
        run(&room, &["status", "second", "--check"]).0 == Some(1)
    });
    let (_, text) = run(&room, &["status", "second", "--check"]);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("replica dying is "), "{text}");
    room.expect(&["umount", "second"]);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn an_ordinary_user_is_told_whose_mount_it_is() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: becoming another user needs root");
        return;
    }
    let room = Room::new();
    room.volume("v.toml", "", "[fuse]\nallow_other = true\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    for args in [&["status", "mnt"][..], &["reload", "mnt"], &["top", "mnt", "--once"]] {
        let output = room.fanfs(args).uid(4321).gid(4321).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("root mounted it") && text.contains("sudo"), "{args:?}: {text}");
    }
    let all = room.fanfs(&["status"]).uid(4321).gid(4321).output().unwrap();
    let text = said(&all);
    assert!(text.contains("no volume of this user is mounted\n"), "{text}");
    assert!(text.contains(&format!("{}: root mounted it", room.path("mnt").display())), "{text}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn reload_and_upgrade_say_what_changed() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let (status, text) = run(&room, &["reload", "mnt"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("replicas 2 -> 2: the same\n"), "{text}");
    let more = "name = \"r1\"\n[[replica]]\nname = \"n3\"\nrequire_mount = false\n";
    let link = room.path("tree3");
    std::os::unix::fs::symlink(room.path("tree"), &link).unwrap();
    let volume = fs::read_to_string(room.path("v.toml")).unwrap();
    let more = format!("{}path = \"{}\"\n", more.split_once('\n').unwrap().1, link.display());
    fs::write(room.path("v.toml"), volume + &more).unwrap();
    let (status, text) = run(&room, &["reload", "mnt"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("replicas 2 -> 3: added n3\n"), "{text}");
    // The predecessor may not have ended yet.
    let (_, text) = run(&room, &["status", "mnt", "--json"]);
    let before = serde_json::from_str::<serde_json::Value>(&text).unwrap()["pid"].clone();
    let (status, text) = run(&room, &["upgrade", "mnt"]);
    assert_eq!(status, Some(0), "{text}");
    let (program, version) = (env!("CARGO_BIN_EXE_fanfs"), env!("CARGO_PKG_VERSION"));
    let line = format!("program {program}, version {version} -> {version}, process {before} -> ");
    assert!(text.contains(&line), "{text}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
