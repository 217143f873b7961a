//! A daemon's log contains no file names, whatever fails, at the default level and at `info` for
//! everything.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::mount::{MountPropagationFlags, mount_change};

use crate::loopback::own_address;
use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

/// Part of every name.
const NAME: &str = "telltale";

/// Causes every kind of failure for a file below `dir` of the mount, and for queries about it.
fn mishaps(room: &Room, dir: &str) {
    let at = |name: &str| room.path("mnt").join(dir).join(name);
    let below = |name: &str| room.path("tree").join(dir).join(name);
    assert!(fs::read(at("telltale-missing")).is_err());
    assert!(fs::read_link(at("telltale-file")).is_err());
    assert!(fs::read_dir(at("telltale-file")).is_err());
    assert!(fs::read(at(&format!("telltale-{}", "x".repeat(300)))).is_err());
    assert!(
        fs::write(at("telltale-new"), "").is_err() || fs::remove_file(at("telltale-new")).is_ok()
    );
    // Truncated while it is read, and removed.
    let file = File::open(at("telltale-large")).unwrap();
    fs::OpenOptions::new().write(true).open(below("telltale-large")).unwrap().set_len(100).unwrap();
    let _ = file.read_at(&mut vec![0; 1 << 20], 4 << 20);
    fs::remove_file(below("telltale-large")).unwrap();
    let _ = file.read_at(&mut vec![0; 1 << 20], 8 << 20);
    let _ = fs::metadata(at("telltale-large"));
    // Calls that the FUSE library knows, and fanfs does not offer.
    let isatty = "import sys\nfor n in sys.argv[1:]: open(n).isatty()";
    let _ = Command::new("python3").args(["-c", isatty]).arg(at("telltale-file")).status();
    let _ = rustix::fs::getxattr(at("telltale-file"), "user.telltale", &mut [0u8; 10][..]);
    // Providers are asked about it, with and without success.
    let explained = room.fanfs(&["explain"]).arg(at("telltale-file")).output().unwrap();
    assert!(String::from_utf8_lossy(&explained.stdout).contains(NAME));
    let socket = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.into_iter().find(|p| p.extension().is_some_and(|e| e == "sock")).unwrap();
    for request in
        ["{\"ask\":\"telltale\"}\n", "{\"ask\":\"explain\",\"path\":\"telltale/../..\"}\n"]
    {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
    }
}

fn fill(room: &Room, dir: &str) {
    let tree = room.path("tree").join(dir);
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("telltale-file"), vec![1; 9 << 20]).unwrap();
    fs::write(tree.join("telltale-large"), vec![1; 9 << 20]).unwrap();
}

/// Runs the daemon through the mishaps and returns its log.
fn logged(room: &Room, level: Option<&str>) -> String {
    fill(room, "telltale-dir");
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    match level {
        Some(level) => mount.env("FANFS_LOG", level),
        None => mount.env_remove("FANFS_LOG"),
    };
    assert!(mount.status().unwrap().success());
    mishaps(room, "telltale-dir");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    room.log()
}

#[test]
fn the_log_names_no_files() {
    for level in [None, Some("info")] {
        let room = Room::new();
        let tool = room.path("tool");
        fs::write(&tool, "#!/bin/sh\necho \"no placement of $1 at all\" >&2\nexit 1\n").unwrap();
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        let placement = format!(
            "[placement]\nprovider = \"exec\"\ncommand = [\"{}\", \"{{path}}\"]\n",
            tool.display()
        );
        room.write_volume("v.toml", &placement);
        let text = logged(&room, level);
        assert!(!text.contains(NAME), "{text}");
        // It reports a failure, and reports an unknown call only once.
        assert!(text.contains("mounted") && text.contains("no placement"), "{text}");
        assert!(!text.contains("Not Implemented"), "{text}");
    }
}

#[test]
fn differing_copies_are_logged_without_names() {
    let room = Room::new();
    fill(&room, "telltale-dir");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(room.path("tree")).arg(room.path("copy"));
    assert!(copy.status().unwrap().success());
    fs::write(room.path("copy/telltale-dir/telltale-file"), "other").unwrap();
    fs::remove_file(room.path("copy/telltale-dir/telltale-large")).unwrap();
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"copies\"\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n",
        room.path("tree").display(),
        room.path("copy").display()
    );
    fs::write(room.path("v.toml"), text).unwrap();
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    assert!(mount.env("FANFS_LOG", "info").status().unwrap().success());
    for name in ["telltale-file", "telltale-large"] {
        let path = room.path("mnt/telltale-dir").join(name);
        assert!(fs::read(path).unwrap() == vec![1; 9 << 20]);
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    let text = room.log();
    assert!(!text.contains(NAME), "{text}");
    assert!(text.contains("another version of a file"), "{text}");
}

#[test]
fn names_are_logged_on_request() {
    // Otherwise the tests above would show nothing.
    let room = Room::new();
    room.volume("v.toml", "", "");
    assert!(logged(&room, Some("debug")).contains(NAME));
}

#[test]
fn an_invalid_filter_is_reported() {
    let room = Room::new();
    room.volume("v.toml", "", "");
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    assert!(mount.env("FANFS_LOG", "fanfs=bogus").status().unwrap().success());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    let text = room.log();
    assert!(text.contains("FANFS_LOG is not a valid filter"), "{text}");
}

/// Mounts a volume with this `[log]`, and without environment variables.
fn mount_with(room: &Room, more: &str) {
    room.volume("v.toml", "", more);
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    assert!(mount.env_remove("FANFS_LOG").status().unwrap().success());
}

#[test]
fn json_log_lines_have_the_expected_fields() {
    let room = Room::new();
    mount_with(&room, "[log]\nformat = \"json\"\n");
    room.volume("v.toml", "", "[log]\nformat = \"text\"\nlevel = \"debug\"\n");
    assert!(room.fanfs(&["reload", "mnt"]).env_remove("FANFS_LOG").status().unwrap().success());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    let log = room.log();
    let (json, text): (Vec<_>, Vec<_>) = log.lines().partition(|line| line.starts_with('{'));
    let json: Vec<serde_json::Value> =
        json.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let message = |line: &serde_json::Value| line["fields"]["message"].as_str().unwrap().to_owned();
    for line in &json {
        assert!(["ERROR", "WARN", "INFO"].contains(&line["level"].as_str().unwrap()), "{line}");
        assert!(line["target"].as_str().unwrap().starts_with("fanfs"), "{line}");
        assert!(!message(line).is_empty() && line["timestamp"].is_string(), "{line}");
    }
    let mounted = json.iter().find(|line| message(line) == "mounted").unwrap();
    assert_eq!((&mounted["fields"]["volume"], &mounted["level"]), (&"v".into(), &"INFO".into()));
    // The daemon after the reload follows the new `[log]`.
    assert!(
        text.iter().any(|line| line.contains("INFO") && line.contains("serves the mount now")),
        "{log}"
    );
    assert!(text.iter().any(|line| line.contains("DEBUG")), "{log}");
}

#[test]
fn a_repeated_message_is_not_logged_forever() {
    attempts(repeat_a_message);
}

fn repeat_a_message() {
    for (rate, logged) in [(3, 3), (0, 30)] {
        let (room, address) = (Room::new(), own_address());
        mount_with(
            &room,
            &format!(
                "[metrics]\nlisten = \"{address}\"\n\
                 [log]\nlevel = \"warn,fanfs=info,fanfs::metrics=debug\"\nrate = {rate}\n"
            ),
        );
        for _ in 0..30 {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"nonsense\r\n\r\n").unwrap();
            let _ = stream.read_to_string(&mut String::new());
        }
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
        let log = room.log();
        let times = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert_eq!(times("DEBUG a request for metrics failed"), logged, "{log}");
        let left = "DEBUG suppressed 27 more of: a request for metrics failed left_out=27";
        assert_eq!(times(left), usize::from(rate == 3), "{log}");
    }
}

#[test]
fn the_environment_overrides_the_log_setting() {
    let room = Room::new();
    mount_with(&room, "[log]\nlevel = \"off\"\n");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert_eq!(room.log(), "");
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    assert!(mount.env("FANFS_LOG", "info").status().unwrap().success());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert!(room.log().contains("INFO mounted"), "{}", room.log());
}

/// Runs the daemon in the foreground where `/run` is another directory, until `is_done`.
fn in_another_run(room: &Room, mut is_done: impl FnMut() -> bool) -> Option<String> {
    if !needs::root() {
        return None;
    }
    room.volume("v.toml", "", "[log]\nformat = \"journald\"\n");
    let script = "mount --bind another-run /run && exec \"$0\" mount --foreground v.toml mnt";
    let mut daemon = Command::new("unshare");
    daemon.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fanfs")]);
    daemon.current_dir(room.path("")).env("FANFS_RUNTIME_DIR", room.path("run"));
    daemon.env_remove("FANFS_LOG").env_remove("NOTIFY_SOCKET");
    daemon.stderr(fs::File::create(room.path("said")).unwrap());
    let mut daemon = daemon.spawn().unwrap();
    room.eventually("it has logged everything", &mut is_done);
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    Some(fs::read_to_string(room.path("said")).unwrap())
}

#[test]
fn the_systemd_journal_gets_fields() {
    let room = Room::new();
    fs::create_dir_all(room.path("another-run/systemd/journal")).unwrap();
    let path = room.path("another-run/systemd/journal/socket");
    let journal = std::os::unix::net::UnixDatagram::bind(path).unwrap();
    journal.set_nonblocking(true).unwrap();
    let mut entries = String::new();
    let heard = || {
        let mut entry = vec![0; 1 << 16];
        while let Ok(length) = journal.recv(&mut entry) {
            entries.push_str(&String::from_utf8_lossy(&entry[..length]));
        }
        entries.contains("FANFS_VOLUME")
    };
    let Some(said) = in_another_run(&room, heard) else { return };
    assert_eq!(said, "");
    for part in ["mounted\n", "SYSLOG_IDENTIFIER", "\x006\nTARGET\n", "fanfs::daemon::process\n"] {
        assert!(entries.contains(part), "{part} is not in {entries}");
    }
}

#[test]
fn without_a_journal_lines_go_to_standard_error() {
    let room = Room::new();
    fs::create_dir(room.path("another-run")).unwrap();
    let is_mounted = || fs::read_to_string(room.path("said")).unwrap().contains("INFO mounted");
    let Some(said) = in_another_run(&room, is_mounted) else { return };
    assert!(said.contains("WARN systemd's journal cannot be reached"), "{said}");
}

/// Gives this thread, and the programs that it starts, a mount namespace of their own.
fn own_mounts() -> bool {
    if !needs::root() {
        return false;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let apart = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", apart).unwrap();
    true
}

#[test]
fn lines_lost_on_a_full_disk_are_counted() {
    if !own_mounts() {
        return;
    }
    let (room, address) = (Room::new(), own_address());
    let Some(small) = super::limits::Small::new(&room, "small") else { return };
    let more = format!(
        "[metrics]\nlisten = \"{address}\"\n\
         [log]\nlevel = \"warn,fanfs=info,fanfs::metrics=debug\"\nrate = 0\n"
    );
    room.volume("v.toml", "", &more);
    let mut mount = room.fanfs(&["mount", "--log", "small/log", "v.toml", "mnt"]);
    assert!(mount.env_remove("FANFS_LOG").status().unwrap().success());
    // Each request becomes a line in the log.
    let ask = |times: usize| {
        for _ in 0..times {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"nonsense\r\n\r\n").unwrap();
            let _ = stream.read_to_string(&mut String::new());
        }
    };
    let log = || fs::read_to_string(small.at.join("log")).unwrap();
    let lost = || {
        let status = room.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["log"]["lines_lost"].as_u64().unwrap_or(0)
    };
    // The number of lost lines, as reported in the log.
    let reported = || -> u64 {
        let log = log();
        let reports = log.lines().filter_map(|line| {
            let (number, _) = line.split_once(" log lines were lost")?;
            number.rsplit(' ').next()?.parse::<u64>().ok()
        });
        reports.sum()
    };
    ask(1);
    assert_eq!((lost(), reported()), (0, 0));

    let full = fs::write(small.at.join("filler"), vec![7; 8 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    // More lines than fit into the rest of the log's last page.
    ask(200);
    room.eventually("status counts lost lines", || lost() > 0);
    let status = room.expect(&["status", "mnt"]).stdout;
    let status = String::from_utf8(status).unwrap();
    let warning = status.lines().find(|line| line.contains(" could not be written: "));
    let is_reported = |line: &str| {
        line.starts_with("  warning: ") && line.ends_with("No space left on device (os error 28)")
    };
    assert!(warning.is_some_and(is_reported), "{status}");
    let text = super::metrics::get(address, "/metrics").unwrap();
    let counted = "fanfs_log_lines_lost_total{volume=\"v\"}";
    assert!(super::metrics::value(&text, counted).unwrap() > 0.0, "{text}");

    fs::remove_file(small.at.join("filler")).unwrap();
    ask(3);
    room.eventually("the log reports all of them", || reported() == lost());
    let log = log();
    let line = log.lines().find(|line| line.contains(" log lines were lost")).unwrap();
    assert!(line.contains("WARN") && line.contains("No space left on device"), "{line}");
    // No line begins in the middle of another.
    let day = log.split('T').next().unwrap();
    assert!(log.lines().all(|line| line.matches(day).count() <= 1), "{log}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// A `[log]` that logs a line for each malformed request.
fn with_a_line_a_request(address: SocketAddr, more: &str) -> String {
    format!(
        "[metrics]\nlisten = \"{address}\"\n\
         [log]\nlevel = \"warn,fanfs=info,fanfs::metrics=debug\"\nrate = 0\n{more}"
    )
}

/// Makes the daemon whose metrics are at `address` log this many lines.
fn have_logged(address: SocketAddr, lines: usize) {
    for _ in 0..lines {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"nonsense\r\n\r\n").unwrap();
        let _ = stream.read_to_string(&mut String::new());
    }
}

/// The number of these lines in the files.
fn failed_requests(room: &Room, files: &[&str]) -> usize {
    let text = |name: &&str| fs::read_to_string(room.path(name)).unwrap_or_default();
    let lines = |text: String| text.matches("DEBUG a request for metrics failed").count();
    files.iter().map(text).map(lines).sum()
}

#[test]
fn two_processes_rotate_one_log_without_loss() {
    let room = Room::new();
    fs::create_dir(room.path("mnt2")).unwrap();
    let mounts = ["mnt", "mnt2"].map(|at| (at, own_address()));
    for (at, address) in mounts {
        room.volume(
            &format!("{at}.toml"),
            "",
            &with_a_line_a_request(address, "max_size = \"16KiB\""),
        );
        let mut mount = room.fanfs(&["mount", "--log", "log", &format!("{at}.toml"), at]);
        assert!(mount.env_remove("FANFS_LOG").status().unwrap().success());
    }
    have_logged(mounts[0].1, 1);
    let log = || fs::read_to_string(room.path("log")).unwrap();
    let line = log().lines().last().unwrap().len();
    // One and a half files, half of it from each.
    let each = (24 << 10) / line / 2;
    std::thread::scope(|scope| {
        for (_, address) in mounts {
            scope.spawn(move || have_logged(address, each));
        }
    });
    room.eventually("each line is there once", || {
        failed_requests(&room, &["log", "log.1"]) == 2 * each + 1
    });
    for name in ["log", "log.1"] {
        let size = fs::metadata(room.path(name)).unwrap().len();
        assert!((1..=16 << 10).contains(&size), "{name}: {size}");
    }

    // The launcher that starts the next daemon has the older file as standard error.
    room.expect(&["reload", "mnt2"]);
    let logs = |line: &str| room.eventually(line, || log().contains(line));
    logs("this daemon serves the mount now");
    for (at, _) in mounts {
        room.expect(&["umount", at]);
    }
    room.expect_gone();
    logs("ending");
}

#[test]
fn a_log_moved_by_logrotate_is_created_again() {
    let (room, address) = (Room::new(), own_address());
    mount_with(&room, &with_a_line_a_request(address, ""));
    have_logged(address, 3);
    let log = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.extension().is_some_and(|e| e == "log")).unwrap();
    let log = format!("run/{}", log.file_name().unwrap().to_str().unwrap());
    room.eventually("three lines are there", || failed_requests(&room, &[&log]) == 3);
    fs::rename(room.path(&log), room.path("moved")).unwrap();
    have_logged(address, 2);
    room.eventually("two lines are in the new file", || failed_requests(&room, &[&log]) == 2);
    assert_eq!(failed_requests(&room, &["moved"]), 3);
    let mode = fs::metadata(room.path(&log)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
