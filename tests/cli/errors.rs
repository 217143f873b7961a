//! Every error is reported in one line, with the right exit status.

use std::fs;
use std::os::unix::process::CommandExt;

use crate::room::Room;

/// Arguments, exit status, and the expected standard error; `{room}` stands for the room's
/// directory.
const COMMAND_LINES: &[(&str, i32, &str)] = &[
    (
        "mout v.toml mnt",
        2,
        "fanfs: unrecognized subcommand 'mout'; some similar subcommands exist: 'simulate', 'umount', 'mount'; see `fanfs --help`",
    ),
    (
        "mount",
        2,
        "fanfs: the following required arguments were not provided: <VOLUME> <MOUNTPOINT>; see `fanfs --help`",
    ),
    (
        "mount v.toml",
        2,
        "fanfs: the following required arguments were not provided: <MOUNTPOINT>; see `fanfs --help`",
    ),
    (
        "mount v.toml mnt --forground",
        2,
        "fanfs: unexpected argument '--forground' found; a similar argument exists: '--foreground'; see `fanfs --help`",
    ),
    (
        "mount v.toml mnt -o allow_othr",
        2,
        "fanfs: mount option `allow_othr` is not known; did you mean `allow_other`?",
    ),
    (
        "mount v.toml mnt -o remount,ro",
        2,
        "fanfs: mount option `remount` is not supported; unmount and mount again, or use fanfs reload",
    ),
    (
        "mount v.toml mnt -o rw,keeper=0",
        2,
        "fanfs: mount option `keeper` takes no value; write `keeper` alone, or remove it",
    ),
    ("mount v.toml mnt -o log", 2, "fanfs: mount option `log` needs a file: log=FILE"),
    (
        "mount none.toml mnt",
        2,
        "fanfs: none.toml: cannot be read: No such file or directory (os error 2); check the path",
    ),
    (
        "mount tree mnt",
        2,
        "fanfs: tree: cannot be read: Is a directory (os error 21); name a file in it",
    ),
    (
        "check none.toml",
        2,
        "fanfs: none.toml: cannot be read: No such file or directory (os error 2); check the path",
    ),
    (
        "check nfs://gw1/data",
        2,
        "fanfs: nfs://gw1/data: an export is not a volume yet; mount it with `fanfs mount`, or write a volume's file with `fanfs init`, and name the mount or the file here",
    ),
    (
        "mount nfs://gw1/x,nfs://gw2/x mnt",
        2,
        "fanfs: nfs://gw1/x,nfs://gw2/x: write nfs:// once, as in nfs://gw1,gw2/EXPORT",
    ),
    (
        "mount v.toml nowhere",
        1,
        "fanfs: mount point {room}/nowhere: No such file or directory (os error 2)",
    ),
    ("mount v.toml a-file", 1, "fanfs: mount point {room}/a-file: not a directory"),
    (
        "mount v.toml /proc",
        1,
        "fanfs: mount point /proc: already a mount point; unmount it, or choose another mount point",
    ),
    (
        "mount v.toml mnt --log nowhere/log",
        1,
        "fanfs: cannot open log file nowhere/log: No such file or directory (os error 2)",
    ),
    ("umount mnt", 1, "fanfs: {room}/mnt is not mounted"),
    ("umount nowhere", 1, "fanfs: {room}/nowhere is not mounted"),
    ("umount /proc", 1, "fanfs: /proc is a mount of type proc, not of fanfs; use umount(8)"),
    ("status mnt", 1, "fanfs: no fanfs volume of this user is mounted at {room}/mnt"),
    (
        "demo --replicas 0",
        2,
        "fanfs: invalid value '0' for '--replicas <REPLICAS>': 0 is not in 1..=64; see `fanfs --help`",
    ),
    (
        "demo --rate 100",
        2,
        "fanfs: invalid value '100' for '--rate <RATE>': \"100\" has no unit; give one, such as \"100MiB/s\"; see `fanfs --help`",
    ),
    (
        "demo --size huge",
        2,
        "fanfs: invalid value 'huge' for '--size <SIZE>': \"huge\" is not a size; write a number and a unit, such as \"1MiB\"; see `fanfs --help`",
    ),
    (
        "demo --dir nowhere --size 1MiB",
        1,
        "fanfs: cannot create a directory in nowhere: No such file or directory (os error 2) at path ",
    ),
    ("./v.toml mnt -x", 2, "fanfs: flag `-x` is not known"),
    ("./v.toml mnt -o", 2, "fanfs: `-o` needs a list of options"),
];

/// The text of the volume's file, the exit status of `fanfs mount` and its error.
const VOLUMES: &[(&str, i32, &str)] = &[
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n",
        2,
        "fanfs: t.toml: key `replica` is missing; add at least one [[replica]] with a path or an address",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"share\"\n[[replica]]\npath = \"/x\"\n",
        2,
        "fanfs: t.toml:3: key `volume.mode`: \"share\" is not valid; use \"shared\" or \"copies\" (did you mean \"shared\"?)",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\npath = \"x\"\n",
        2,
        "fanfs: t.toml:5: key `replica[1].path`: \"x\" is not absolute; start it with /",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\nchunk_sise = \"1MiB\"\n[[replica]]\npath = \"/x\"\n",
        2,
        "fanfs: t.toml:4: key `volume.chunk_sise` is not known; did you mean `chunk_size`?",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\nchunk_size = 1024\n[[replica]]\npath = \"/x\"\n",
        2,
        "fanfs: t.toml:4: key `volume.chunk_size`: 1024 has no unit; give one, such as \"1MiB\"",
    ),
    ("[volume\n", 2, "fanfs: t.toml:1: "),
    (
        "[volume]\nname = \"v\"\nmode = \"copies\"\naccess = \"rw\"\n[[replica]]\npath = \"/x\"\n",
        2,
        "fanfs: t.toml:4: key `volume.access`: ",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\npath = \"{room}/nowhere\"\n",
        1,
        "fanfs: replica r1 ({room}/nowhere) does not exist; create the directory and mount it there",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\npath = \"{room}/a-file\"\n",
        1,
        "fanfs: replica r1 ({room}/a-file) is not a directory; set `path` to its mount point",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\npath = \"{room}/tree\"\n",
        1,
        "fanfs: replica r1 ({room}/tree) is not a mount point and not on a network file system; mount it: `mount {room}/tree`",
    ),
    (
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\npath = \"{room}/tree\"\nrequire_mount = false\n\
         [[replica]]\npath = \"{room}/other\"\nrequire_mount = false\n",
        1,
        "fanfs: the replicas are not the same file system: r1 has root inode ",
    ),
];

/// The unexpected result, if any.
fn check(room: &Room, args: &[&str], status: i32, expected: &str) -> Option<String> {
    let output = room.fanfs(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let here = room.path("").display().to_string();
    let expected = expected.replace("{room}", here.trim_end_matches('/'));
    // An expectation that ends in a blank is a prefix of the line.
    let as_expected = if expected.ends_with(' ') {
        said.starts_with(&expected) && said.len() > expected.len() + 1
    } else {
        said.trim_end() == expected
    };
    let one_line = said.lines().count() == 1 && output.stdout.is_empty();
    let code = output.status.code();
    (!as_expected || !one_line || code != Some(status))
        .then(|| format!("fanfs {args:?}: status {code:?}\n said: {said} not:  {expected}\n"))
}

#[test]
fn wrong_command_lines_are_refused() {
    let room = Room::new();
    let wrong: Vec<_> = COMMAND_LINES
        .iter()
        .filter_map(|(line, status, expected)| {
            check(&room, &line.split(' ').collect::<Vec<_>>(), *status, expected)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    room.expect_gone();
}

#[test]
fn invalid_volumes_are_refused() {
    let room = Room::new();
    let here = room.path("").display().to_string();
    let mut wrong = Vec::new();
    for (text, status, expected) in VOLUMES {
        fs::write(room.path("t.toml"), text.replace("{room}", here.trim_end_matches('/'))).unwrap();
        // In the foreground, and as a daemon whose start the command awaits.
        wrong.extend(check(&room, &["mount", "t.toml", "mnt", "--foreground"], *status, expected));
        wrong.extend(check(&room, &["mount", "t.toml", "mnt"], *status, expected));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    room.expect_gone();
}

#[test]
fn a_relative_runtime_directory_is_refused() {
    let room = Room::new();
    room.volume("v.toml", "", "");
    let command_lines: [(&str, &[&str]); 3] = [
        ("fanfs", &["mount", "v.toml", "mnt"]),
        ("fanfs", &["status"]),
        ("mount.fanfs", &["v.toml", "mnt"]),
    ];
    for (name, args) in command_lines {
        let mut fanfs = room.fanfs(args);
        let output = fanfs.arg0(name).env("FANFS_RUNTIME_DIR", "run").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            said,
            "fanfs: FANFS_RUNTIME_DIR is run, a relative path; set it to an absolute one\n"
        );
        // As mount.fanfs says it to mount(8).
        assert_eq!(output.status.code(), Some(if name == "fanfs" { 2 } else { 1 }));
    }
    assert!(room.mounted().is_none());
}

/// The volume's file of a list of servers, too.
#[test]
fn a_failed_mount_of_servers_leaves_no_file() {
    let room = Room::new();
    let own = room.path("run");
    for (options, status, reason) in
        [("ro", 1, "Connection refused"), ("rw", 2, "mount them to write, or remove the option")]
    {
        let mut fanfs = room.fanfs(&["mount", "nfs://127.0.0.1:1/data", "mnt", "-o", options]);
        let output = fanfs.env("FANFS_RUNTIME_DIR", &own).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(reason) && output.status.code() == Some(status), "{said}");
        let left = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path());
        let left: Vec<_> =
            left.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert!(room.mounted().is_none());
}

#[test]
fn help_is_not_an_error() {
    let room = Room::new();
    let help = String::from_utf8(room.expect(&["--help"]).stdout).unwrap();
    for word in ["fanfs demo", "/etc/fstab", "Exit status", "docs/CONFIGURATION.md"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
    for command in ["mount", "umount", "check", "status", "verify", "demo"] {
        assert!(help.contains(command));
        room.expect(&[command, "--help"]);
    }
    assert!(String::from_utf8(room.expect(&["--version"]).stdout).unwrap().starts_with("fanfs "));
}
