//! The program and its processes, as users start them.

mod admission;
mod cli;
mod handover;
mod loopback;
#[allow(dead_code, reason = "the watch itself is for tests/nemesis.rs")]
mod machine;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[allow(dead_code, unused_imports, reason = "tests here need less than others")]
#[path = "../crates/nfs/tests/session/server.rs"]
mod nfs4_server;
#[allow(dead_code, reason = "tests here need less than others")]
mod nfs_server;
#[path = "cli/room.rs"]
mod room;
mod signals;
