//! A daemon whose mount's kernel reads files without opening them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::{kernel_resends, kill, room, unmount};

#[test]
fn files_are_read_without_opens_by_every_daemon() {
    if !kernel_resends() {
        return;
    }
    let room = room(3, "ro");
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    let text = text.replacen("[volume]\n", "[volume]\nimmutable = true\n", 1);
    let text = format!("{text}[read]\ncache = \"kernel\"\n");
    fs::write(room.path("v.toml"), &text).unwrap();
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let large = File::open(room.path("mnt/large")).unwrap();
    let small = File::open(room.path("mnt/file-007")).unwrap();
    let expected = fs::read(room.path("tree/large")).unwrap();
    let handles = || {
        let status = room.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["gauges"]["handles"].as_u64().unwrap()
    };
    // Each daemon opens the files that it reads, and hands none of them over.
    let read = |at: usize| {
        let mut got = vec![0; 1 << 20];
        large.read_exact_at(&mut got, at as u64).unwrap();
        assert!(got == expected[at..at + (1 << 20)], "{at}");
    };
    assert_eq!(handles(), 0, "nothing is open before it is read");
    read(0);
    assert!(handles() <= 1);
    room.expect(&["upgrade", "mnt"]);
    assert_eq!(handles(), 0);
    read(16 << 20);
    assert!(handles() <= 1);
    kill(&room);
    assert_eq!(handles(), 0);
    read(32 << 20);
    let mut text_of_small = [0; 2];
    small.read_exact_at(&mut text_of_small, 0).unwrap();
    assert_eq!(&text_of_small, b"7\n");
    // The kernel leaves opens out until the mount ends, so every daemon must allow it.
    fs::write(room.path("bad.toml"), text.replace("\"kernel\"", "\"direct\"")).unwrap();
    let refused = room.fanfs(&["reload", "mnt", "bad.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("cannot be changed"), "{said}");
    drop((large, small));
    unmount(&room);
}
