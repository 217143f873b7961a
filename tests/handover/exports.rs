//! Upgrades of a mount whose replicas are exports.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::{daemon, unmount};
use crate::nfs_server::NfsServer;
use crate::room::Room;

/// By its handle: fanfs knows one path of it, which leads to another file by then.
#[test]
fn a_file_of_an_export_stays_open_over_an_upgrade() {
    let room = Room::new();
    fs::write(room.path("tree/file"), "still here").unwrap();
    let server = NfsServer::new(&room.path("tree"), None);
    let volume = format!(
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[[replica]]\n{}[read]\ncache = \"direct\"\n",
        server.replica_keys()
    );
    fs::write(room.path("v.toml"), volume).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let file = File::open(room.path("mnt/file")).unwrap();
    let read = || {
        let mut block = [0; 10];
        file.read_exact_at(&mut block, 0).map(|()| String::from_utf8_lossy(&block).into_owned())
    };
    assert_eq!(read().unwrap(), "still here");
    fs::rename(room.path("tree/file"), room.path("tree/moved")).unwrap();
    fs::write(room.path("tree/file"), "other text").unwrap();
    server.learn(room.path("tree/moved"));
    let before = daemon(&room);
    for _ in 0..2 {
        room.expect(&["upgrade", "mnt"]);
        assert_eq!(read().unwrap(), "still here");
    }
    assert_ne!(daemon(&room), before);
    drop(file);
    unmount(&room);
}
