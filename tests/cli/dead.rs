//! The commands' reports about a mount whose daemon does not answer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Output;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::needs;
use crate::room::Room;
use crate::signals;

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
    let daemon = room.first_process();
    kill_process(daemon, Signal::KILL).unwrap();
    room.eventually("it is dead", || room.daemons().is_empty());
    room
}

#[test]
fn a_dead_daemon_is_reported_with_a_fix() {
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
        &["top", "--once"],
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
    room.eventually("all is well", || {
        run(&room, &["status", "--check"]) == (Some(0), String::new())
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_hung_daemon_does_not_block_commands() {
    let room = Room::new();
    room.volume("v.toml", "", "[fuse]\nattribute_ttl = \"0s\"\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    let daemon = room.first_process();
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
    room.eventually("both replicas are in service", || {
        run(&room, &["status", "second", "--check"]) == (Some(0), String::new())
    });
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
fn an_ordinary_user_sees_who_owns_the_mount() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    room.volume("v.toml", "", "[fuse]\nallow_other = true\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    for args in
        [&["status", "mnt"][..], &["reload", "mnt"], &["top", "mnt", "--once"], &["umount", "mnt"]]
    {
        let output = room.fanfs(args).uid(4321).gid(4321).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("root mounted it") && text.contains("sudo"), "{args:?}: {text}");
    }
    let all = room.fanfs(&["status"]).uid(4321).gid(4321).output().unwrap();
    let text = said(&all);
    // Other mounts of this machine are named as well, and of dead daemons before all else.
    let is_none = text.contains("no volume of this user is mounted\n");
    assert!(is_none || text.contains("its daemon has died"), "{text}");
    assert!(text.contains(&format!("{}: root mounted it", room.path("mnt").display())), "{text}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn reload_and_upgrade_report_the_changes() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let (status, text) = run(&room, &["reload", "mnt"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with("replicas 2 -> 2: unchanged\n"), "{text}");
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

#[test]
fn a_mount_without_its_runtime_directory_is_reported() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::remove_dir_all(room.path("run")).unwrap();
    let point = room.path("mnt").display().to_string();
    for args in [&["status"][..], &["status", "--check"], &["status", "mnt"]] {
        let (status, text) = run(&room, args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        let said = format!("v at {point}: its daemon has no control socket here");
        assert!(text.contains(&said), "{args:?}: {text}");
    }
    let output = room.fanfs(&["status", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = all.as_array().unwrap().iter().find(|one| one["mount_point"] == point.as_str());
    assert_eq!(one.unwrap()["daemon"], "unreachable", "{all}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_removed_control_socket_is_reported() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    remove(&room, "sock");
    let (status, text) = run(&room, &["status", "--check"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("its daemon has no control socket here"), "{text}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// The files in the run-time directory with this suffix.
fn of_the_daemon(room: &Room, extension: &str) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|its| its == extension)).collect()
}

fn remove(room: &Room, extension: &str) {
    of_the_daemon(room, extension).iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn a_dead_keeper_is_reported() {
    let room = Room::new();
    let volume = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), volume.replace("name = \"v\"", "name = \"unkept\"")).unwrap();
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let state = || {
        let output = room.expect(&["status", "mnt", "--json"]).stdout;
        serde_json::from_slice::<Value>(&output).unwrap()["keeper"].clone()
    };
    assert_eq!(state(), "running");
    kill_process(room.first_process(), Signal::KILL).unwrap();
    room.eventually("the daemon sees it", || state() == "gone");
    let reported = || {
        let umount = format!("fanfs umount {}", room.path("mnt").display());
        let (_, text) = run(&room, &["status", "mnt"]);
        assert!(text.contains("the keeper has died") && text.contains(&umount), "{text}");
        let (status, text) = run(&room, &["status", "--check"]);
        assert_eq!((status, text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains("the keeper has died") && text.contains(&umount), "{text}");
        let (_, text) = run(&room, &["doctor", "v.toml"]);
        assert!(text.contains("the keeper of") && text.contains(&umount), "{text}");
    };
    reported();
    room.expect(&["upgrade", "mnt"]);
    assert_eq!(state(), "gone");
    reported();
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_missing_journal_is_reported_with_its_path() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let journal = of_the_daemon(&room, "journal").remove(0);
    let log = of_the_daemon(&room, "log").remove(0);
    fs::remove_file(&journal).unwrap();
    kill_process(room.daemon_of(room.first_process()), Signal::KILL).unwrap();
    let said = format!("journal {}: No such file", journal.display());
    room.eventually("the log names it", || fs::read_to_string(&log).unwrap().contains(&said));
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains(&format!("make sure that {} has free space", room.path("run").display())));
    room.eventually("it is mounted again", || {
        fs::read(room.path("mnt/hello")).is_ok_and(|content| content == b"hello\n")
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// The daemon is replaced while it answers; a socket that hangs up stands in for it here.
#[test]
fn a_daemon_replaced_before_it_answers_is_reported() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let socket = of_the_daemon(&room, "sock").remove(0);
    let own = room.path("run/daemon");
    fs::rename(&socket, &own).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = own.clone();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = peer.unwrap();
            let mut asked = String::new();
            BufReader::new(&peer).read_line(&mut asked).unwrap();
            if asked.contains("status") {
                let mut daemon = UnixStream::connect(&daemon).unwrap();
                daemon.write_all(asked.as_bytes()).unwrap();
                let mut answer = Vec::new();
                daemon.read_to_end(&mut answer).unwrap();
                peer.write_all(&answer).unwrap();
            }
        }
    });
    for args in [["upgrade", "mnt"], ["reload", "mnt"]] {
        let (status, text) = run(&room, &args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        let see = format!("see fanfs status {}", room.path("mnt").display());
        assert!(text.contains("was replaced or ended") && text.contains(&see), "{text}");
        assert!(!text.contains("still serves"), "{args:?}: {text}");
    }
    fs::rename(&own, &socket).unwrap();
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_configuration_that_is_a_fifo_is_refused() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let fifo = room.path("fifo.toml");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let program = env!("CARGO_BIN_EXE_fanfs");
    for args in [
        &["reload", "mnt", "fifo.toml"][..],
        &["mount", "fifo.toml", "other"],
        &["check", "fifo.toml"],
        &["doctor", "fifo.toml"],
        &["verify", "fifo.toml"],
    ] {
        let limited = [&["60", program], args].concat();
        let output = room.program(std::path::Path::new("timeout"), &limited).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        let expected = format!("{}: ", fifo.display());
        let names_it = text.contains(&expected) || text.contains("fifo.toml: ");
        assert!(names_it && text.contains("it is not a regular file"), "{args:?}: {text}");
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// Without a limit a read of these would never end.
#[test]
fn commands_refuse_files_that_are_not_regular() {
    let room = Room::new();
    let fifo = room.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/config/scenarios/mapr-r3.toml");
    for file in ["/dev/zero", fifo.to_str().unwrap()] {
        let all: [&[&str]; 3] = [
            &["simulate", file],
            &["simulate", scenario, "--trace", file],
            &["verify", "v.toml", "--state", file],
        ];
        for args in all {
            let said = room.fanfs(args).output().unwrap();
            let text = String::from_utf8_lossy(&said.stderr);
            assert!(!said.status.success() && text.contains("regular file"), "{args:?}: {text}");
            assert!(text.contains(file) && text.lines().count() == 1, "{args:?}: {text}");
        }
    }
}

/// A daemon from before the status had a format number: a socket that answers with a recorded
/// status stands in for it here, and passes other requests on to the real one.
#[test]
fn a_daemon_of_another_version_is_named_and_can_be_upgraded() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let mut old: Value =
        serde_json::from_str(include_str!("../fixtures/status-without-format.json")).unwrap();
    old["version"] = "0.0.9".into();
    old["mount_point"] = room.path("mnt").to_str().into();
    old["source"] = room.path("v.toml").to_str().into();
    let old = format!("{old}\n");
    let socket = of_the_daemon(&room, "sock").remove(0);
    let own = room.path("run/daemon");
    fs::rename(&socket, &own).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = peer.unwrap();
            let mut asked = String::new();
            BufReader::new(&peer).read_line(&mut asked).unwrap();
            if asked.contains("status") {
                let _ = peer.write_all(old.as_bytes());
                continue;
            }
            let mut daemon = UnixStream::connect(&own).unwrap();
            daemon.write_all(asked.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let _ = daemon.read_to_end(&mut answer);
            let _ = peer.write_all(&answer);
        }
    });
    let remedy = format!("fanfs upgrade {}", room.path("mnt").display());
    for args in [&["status"][..], &["status", "mnt"], &["status", "--check"], &["top", "--json"]] {
        let (status, text) = run(&room, args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        assert!(text.contains("another version of fanfs"), "{args:?}: {text}");
        assert!(text.contains(&remedy), "{args:?}: {text}");
    }
    let json = room.fanfs(&["status", "mnt", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["daemon"], "other-version", "{json}");
    let (status, text) = run(&room, &["upgrade", "mnt"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("version 0.0.9 -> "), "{text}");
    room.expect(&["status", "mnt"]);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_daemon_that_dies_while_it_is_asked_is_reported() {
    for args in [&["status", "mnt"][..], &["status", "mnt", "--check"], &["top", "mnt", "--once"]] {
        let room = Room::new();
        room.expect(&["mount", "v.toml", "mnt"]);
        let daemon = room.first_process();
        signals::send(daemon, Signal::STOP);
        let mut asked = room.fanfs(args);
        let asked = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        kill_process(daemon, Signal::KILL).unwrap();
        let output = asked.wait_with_output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("its daemon has died"), "{args:?}: {text}");
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
    }
}
