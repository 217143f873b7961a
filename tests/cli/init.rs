//! `fanfs init`: its output, and the input that it refuses.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use crate::needs;
use crate::room::Room;

/// Mounts in a room; dropping this unmounts them.
struct Mounts<'a> {
    room: &'a Room,
    points: Vec<PathBuf>,
}

impl<'a> Mounts<'a> {
    /// `None` without root.
    fn new(room: &'a Room) -> Option<Self> {
        if !needs::root() {
            return None;
        }
        Some(Self { room, points: Vec::new() })
    }

    fn mount(&mut self, name: &str, args: &[&str]) -> String {
        let point = self.room.path(name);
        fs::create_dir_all(&point).unwrap();
        assert!(Command::new("mount").args(args).arg(&point).status().unwrap().success());
        self.points.push(point.clone());
        point.display().to_string()
    }

    fn tmpfs(&mut self, name: &str) -> String {
        self.mount(name, &["-t", "tmpfs", "tmpfs"])
    }
}

impl Drop for Mounts<'_> {
    fn drop(&mut self) {
        for point in self.points.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}

/// Exit status and output.
fn refused(room: &Room, args: &[&str]) -> (i32, String) {
    let output = room.fanfs(args).output().unwrap();
    assert_eq!(output.stdout, b"", "{args:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code().unwrap(), said.trim_end().to_owned())
}

#[test]
fn init_writes_copies_that_pass_the_check() {
    let room = Room::new();
    let Some(mut mounts) = Mounts::new(&room) else { return };
    let points = ["n1", "n2", "n 3"].map(|name| mounts.tmpfs(name));
    for point in &points {
        fs::write(format!("{point}/file"), "content").unwrap();
    }
    let [a, b, c] = &points;
    let file = room.path("genomes.toml").display().to_string();
    let said = room.expect(&["init", a, b, c, "--output", &file]).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("fanfs: warning: ") && said.contains("not on a network"), "{said}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("name = \"genomes\"") && text.contains("mode = \"copies\""), "{text}");
    assert!(text.contains("\n# Warning: ") && text.contains("not on a network"), "{text}");
    room.expect(&["check", &file]);
    room.expect(&["mount", &file, "mnt"]);
    assert_eq!(fs::read_to_string(room.path("mnt/file")).unwrap(), "content");

    let mnt = room.path("mnt").display().to_string();
    let (status, said) = refused(&room, &["init", a, &mnt]);
    assert_eq!(status, 2);
    assert!(said.ends_with("mnt is on a fanfs volume; list the mounts of its replicas"), "{said}");
    room.expect(&["umount", "mnt"]);

    let again = ["init", a, b, "--output", &file];
    let (status, said) = refused(&room, &again);
    assert_eq!(status, 1);
    let expected = "genomes.toml exists; choose another file, or overwrite it with --force";
    assert!(said.ends_with(expected), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "and left it alone");
    room.expect(&[&again[..], &["--force", "--name", "other"]].concat());
    assert!(fs::read_to_string(&file).unwrap().contains("name = \"other\""));
}

#[test]
fn init_refuses_paths_that_are_not_utf8() {
    let room = Room::new();
    let dir = room.path("").join(OsStr::from_bytes(b"n\xff"));
    fs::create_dir(&dir).unwrap();
    let output = room.fanfs(&[OsStr::new("init"), dir.as_os_str()]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("n\\xFF\" is not UTF-8"), "{said}");
}

#[test]
fn one_file_system_seen_twice_is_shared() {
    let room = Room::new();
    let Some(mut mounts) = Mounts::new(&room) else { return };
    let tree = room.path("tree").display().to_string();
    let points = ["n1", "n2"].map(|name| mounts.mount(name, &["--bind", &tree]));
    let [a, b] = &points;
    let output = room.expect(&["init", a, b, "--json"]);
    let guess: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&guess["mode"], &guess["certainty"]), (&"shared".into(), &"seen".into()));
    assert_eq!(guess["replicas"][1]["name"], "n2");
    assert_eq!(guess["replicas"][1]["path"], b.as_str());
    fs::write(room.path("j.toml"), guess["file"].as_str().unwrap()).unwrap();
    room.expect(&["check", "j.toml"]);
    // One is enough, with a note.
    let one = String::from_utf8(room.expect(&["init", a]).stdout).unwrap();
    assert!(one.contains("# Note: with one replica"), "{one}");
    // The mode may be said, where that is no nonsense.
    let copies =
        String::from_utf8(room.expect(&["init", a, b, "--mode", "copies"]).stdout).unwrap();
    assert!(copies.contains("mode = \"copies\""), "{copies}");
}

#[test]
fn invalid_replica_sets_are_refused() {
    let room = Room::new();
    let Some(mut mounts) = Mounts::new(&room) else { return };
    let points = ["n1", "n2"].map(|name| mounts.tmpfs(name));
    let [a, b] = &points;
    let here = room.path("").display().to_string();
    let here = here.trim_end_matches('/');
    let (tree, none) = (format!("{here}/tree"), format!("{here}/none"));
    let twice = format!("{here}/tree/../n1");
    for (args, status, expected) in [
        (vec!["init", a, &tree], 1, format!("fanfs: {tree} is neither a mount nor on a network file system; mount it, or write the configuration by hand, with `require_mount = false`")),
        (vec!["init", a, &none], 1, format!("fanfs: {none} does not exist")),
        (vec!["init", a, &twice], 2, format!("fanfs: {a} and {a} are one directory; list each mount once")),
        (vec!["init", a, b, "--name", "a b"], 2, "fanfs: \"a b\" is not a name; use 1 to 64 letters, digits, `.`, `_`, `-`, a letter or digit first".to_owned()),
        (vec!["init", "--force", a], 2, "fanfs: the following required arguments were not provided: --output <FILE>; see `fanfs --help`".to_owned()),
    ] {
        assert_eq!(refused(&room, &args), (status, expected), "{args:?}");
    }
    // Two tmpfs are not one file system, whatever the mode.
    let (status, said) = refused(&room, &["init", a, b, "--mode", "shared"]);
    assert_eq!(status, 1);
    assert!(said.starts_with("fanfs: the replicas are not the same file system: "), "{said}");
}

#[test]
fn init_without_directories_lists_mounts() {
    let room = Room::new();
    let output = room.expect(&["init", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["mounts"].is_array() && found["candidates"].is_array(), "{found}");
    assert_ne!(room.expect(&["init"]).stdout, b"");
}
