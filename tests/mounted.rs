//! The file system through real mounts, in this process.
//!
//! Needs root, or fusermount3 and a readable /dev/fuse.

mod check;
#[allow(dead_code, reason = "tests here need less than others")]
mod export_server;
mod fuse;
mod loopback;
#[allow(dead_code, reason = "the watch itself is for tests/nemesis.rs")]
mod machine;
mod mapped;
mod model;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[allow(dead_code, unused_imports, reason = "tests here need less than others")]
#[path = "../crates/nfs/tests/session/server.rs"]
mod nfs4_server;
#[allow(dead_code, reason = "tests here need less than others")]
mod nfs_server;
mod posix;
mod processes;
#[path = "fuse/recorder.rs"]
mod recorder;
#[path = "fuse/rig.rs"]
mod rig;
