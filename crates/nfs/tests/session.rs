//! The client against an NFSv4.1 server that keeps the rules of sessions strictly, and has the faults
//! that a test wants.

#[path = "session/server.rs"]
mod server;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfs_nfs::nfs::{
    Caller, Client, Identity, Kind, NfsError, ReadRange, Rights, Target, Tree, TreeLimits, Version,
    find_exports,
};
use rustix::io::Errno;

use server::{Fault, Moment, Server, pattern, status};

const LONG: Duration = Duration::from_secs(60);
/// Less than the file.
const READ_SIZE: NonZeroUsize = NonZeroUsize::new(40_000).unwrap();

fn me() -> Identity {
    Identity { uid: 1000, gid: 100, groups: vec![100, 7] }
}

fn target(servers: &[&Server]) -> Target {
    Target {
        addresses: servers.iter().map(|server| server.address).collect(),
        connections: 1,
        reserved_port: false,
        is_patient: true,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    }
}

fn open(target: Target) -> Result<Client, NfsError> {
    let identity = me();
    Client::version_4_1(target, Caller { identity: &identity, deadline: Instant::now() + LONG })
}

/// The tree of a server.
fn tree(server: &Server) -> Tree {
    let client = open(target(&[server])).unwrap();
    let identity = me();
    let caller = Caller { identity: &identity, deadline: Instant::now() + LONG };
    let root = client.find_export(caller, b"/export").unwrap();
    let limits = TreeLimits { operation: LONG, listing: LONG, directories: LONG, read: READ_SIZE };
    Tree::new(client, root.handle, limits)
}

/// Whether the file has its bytes; the error of a read, if one fails.
fn reads_well(tree: &Tree) -> Result<bool, Errno> {
    let file = tree.look_up(&me(), Path::new("file")).map_err(|error| error.errno())?;
    let mut all: Vec<u8> = Vec::new();
    loop {
        // A read of several pieces ends before the first that fails.
        let mut buffer = vec![0; 90_000];
        let read = tree.read(&me(), file.handle, all.len() as u64, &mut buffer);
        let end = read.map_err(|error| error.errno())?;
        all.extend(&buffer[..end.bytes]);
        if end.is_end {
            return Ok(all == pattern());
        }
    }
}

/// Reads until the server has created so many sessions: the client may not have seen yet that a
/// connection has ended.
fn read_until_created(server: &Server, tree: &Tree, sessions: u32) {
    let until = Instant::now() + LONG;
    while server.sessions_created() < sessions {
        assert!(Instant::now() < until, "{} sessions", server.sessions_created());
        assert_eq!(reads_well(tree), Ok(true));
    }
    assert_eq!(reads_well(tree), Ok(true));
    assert_eq!(server.sessions_created(), sessions);
}

#[test]
fn names_attributes_and_data_are_the_servers() {
    let server = Server::start();
    let tree = tree(&server);
    assert_eq!(tree.client().version(), Version::V4_1);
    let file = tree.look_up(&me(), Path::new("file")).unwrap();
    assert_eq!((file.attributes.kind, file.attributes.size), (Kind::Regular, 100_000));
    assert_eq!((file.attributes.uid, file.attributes.links), (1000, 3));
    assert_eq!(reads_well(&tree), Ok(true));
    let link = tree.look_up(&me(), Path::new("link")).unwrap();
    let caller = || tree.caller(Box::leak(Box::new(me())));
    assert_eq!(tree.client().read_link(caller(), link.handle).unwrap(), b"file");
    let rights = tree.client().access(caller(), file.handle, Rights::READ).unwrap();
    assert!(rights.contains(Rights::READ));
    let names = tree.list(&me(), tree.root(), &|| {}).unwrap();
    let names: Vec<_> = names.iter().map(|entry| (&*entry.name, entry.kind)).collect();
    let expected: [(&[u8], Option<Kind>); 4] = [
        (b"dir", Some(Kind::Directory)),
        (b"file", Some(Kind::Regular)),
        (b"hidden", None),
        (b"link", Some(Kind::Symlink)),
    ];
    assert_eq!(names, expected);
    assert_eq!(tree.client().max_name(caller(), tree.root()).unwrap(), 255);
    assert_eq!(tree.client().usage(caller(), tree.root()).unwrap().bytes, 1 << 30);
    assert_eq!(tree.look_up(&me(), Path::new("none")).unwrap_err().errno(), Errno::NOENT);
    // The owner that the caller is comes with each call, not with the session.
    assert_eq!(server.users(), [1000]);
}

#[test]
fn the_exports_are_where_other_file_systems_begin() {
    let server = Server::start();
    let client = open(target(&[&server])).unwrap();
    let identity = me();
    let caller = Caller { identity: &identity, deadline: Instant::now() + LONG };
    let exports = find_exports(&client, caller).unwrap();
    assert_eq!(exports.len(), 1);
    assert_eq!((&*exports[0].path, &exports[0].clients), (&b"/export"[..], &None));
}

#[test]
fn a_server_that_has_restarted_gets_a_new_session() {
    let server = Server::start();
    let tree = tree(&server);
    assert_eq!(reads_well(&tree), Ok(true));
    server.forget_sessions();
    assert_eq!(reads_well(&tree), Ok(true));
    assert_eq!(server.sessions_created(), 2);
}

#[test]
fn a_call_whose_reply_was_lost_is_made_again() {
    let server = Server::start();
    let tree = tree(&server);
    for moment in [Moment::LookUp, Moment::Read] {
        for in_sequence in [false, true] {
            server.replay_in_sequence(in_sequence);
            server.inject(moment, Fault::CloseAfter);
            assert_eq!(reads_well(&tree), Ok(true), "{moment:?}");
        }
        server.inject(moment, Fault::CloseBefore);
        assert_eq!(reads_well(&tree), Ok(true), "{moment:?}");
    }
    assert_eq!(server.sessions_created(), 1);
}

#[test]
fn a_busy_server_is_asked_again() {
    let server = Server::start();
    let tree = tree(&server);
    for moment in [Moment::LookUp, Moment::Read] {
        for fault in [
            Fault::Sequence(status::DELAY),
            Fault::Operation(status::DELAY),
            Fault::Operation(status::GRACE),
            Fault::Sequence(status::SEQ_MISORDERED),
        ] {
            server.inject(moment, fault);
            assert_eq!(reads_well(&tree), Ok(true), "{moment:?} {fault:?}");
        }
    }
}

#[test]
fn an_ended_session_is_replaced_in_the_middle() {
    let server = Server::start();
    let tree = tree(&server);
    for fault in [status::BADSESSION, status::DEADSESSION] {
        server.inject(Moment::Read, Fault::Sequence(fault));
        assert_eq!(reads_well(&tree), Ok(true));
    }
    assert_eq!(server.sessions_created(), 3);
}

/// The server sees to it that no number of a slot is given to two different calls.
#[test]
fn a_late_reply_gives_its_slot_back() {
    let server = Server::with_slots(2);
    let tree = tree(&server);
    let identity = me();
    server.inject(Moment::LookUp, Fault::Silent);
    let soon = Caller { identity: &identity, deadline: Instant::now() + Duration::from_millis(60) };
    let late = tree.client().look_up(soon, tree.root(), b"file").unwrap_err();
    assert_eq!(late.errno(), Errno::TIMEDOUT);
    server.reply_late();
    // With one slot lost of two, the session would be replaced.
    let until = Instant::now() + LONG;
    while server.late_replies_left() > 0 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    // The reply is on its way before that to this call, on the same connection.
    tree.client().attributes(tree.caller(&identity), tree.root()).unwrap();
    assert_eq!(reads_well(&tree), Ok(true));
    assert_eq!(server.sessions_created(), 1);
}

#[test]
fn a_session_whose_slots_are_lost_is_replaced() {
    let server = Server::with_slots(2);
    let tree = tree(&server);
    let identity = me();
    server.inject(Moment::LookUp, Fault::Silent);
    let soon = Caller { identity: &identity, deadline: Instant::now() + Duration::from_millis(60) };
    tree.client().look_up(soon, tree.root(), b"file").unwrap_err();
    server.close_connections();
    read_until_created(&server, &tree, 2);
}

/// The server may still execute a call when it hangs no more.
#[test]
fn a_slot_is_not_used_again_after_a_silent_connection() {
    let server = Server::with_slots(8);
    let tree = tree(&server);
    let identity = me();
    server.inject(Moment::LookUp, Fault::Hang);
    server.set_down(true);
    let late = Caller { identity: &identity, deadline: Instant::now() + Duration::from_secs(2) };
    let error = tree.client().look_up(late, tree.root(), b"file").unwrap_err();
    assert_eq!(error.errno(), Errno::TIMEDOUT, "{error}");
    server.set_down(false);
    // Another call than the one that may have been executed.
    tree.client().attributes(tree.caller(&identity), tree.root()).unwrap();
    assert_eq!(reads_well(&tree), Ok(true));
    assert_eq!(server.sessions_created(), 1);
}

/// A session of two slots, one of which is lost.
fn worn(server: &Server) -> Tree {
    let tree = tree(server);
    server.inject(Moment::LookUp, Fault::Silent);
    let identity = me();
    let deadline = Instant::now() + Duration::from_millis(60);
    let soon = Caller { identity: &identity, deadline };
    tree.client().look_up(soon, tree.root(), b"file").unwrap_err();
    server.close_connections();
    tree
}

#[test]
fn a_server_that_restarts_while_a_session_is_replaced_gets_another_one() {
    let server = Server::with_slots(2);
    let tree = worn(&server);
    server.forget_next_session();
    read_until_created(&server, &tree, 3);
}

#[test]
fn calls_that_end_while_the_server_is_down_block_no_slots() {
    let server = Server::with_slots(2);
    let tree = tree(&server);
    server.inject(Moment::LookUp, Fault::Silent);
    server.inject(Moment::LookUp, Fault::Silent);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let identity = me();
                let deadline = Instant::now() + Duration::from_millis(500);
                let soon = Caller { identity: &identity, deadline };
                tree.client().look_up(soon, tree.root(), b"file").unwrap_err();
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        server.set_down(true);
        server.close_connections();
    });
    server.set_down(false);
    assert_eq!(reads_well(&tree), Ok(true));
}

#[test]
fn a_grace_period_does_not_delay_reads() {
    let server = Server::start();
    let tree = tree(&server);
    server.set_grace(true);
    assert_eq!(reads_well(&tree), Ok(true));
}

/// Half of its slots are lost, and the server creates no other session.
#[test]
fn a_worn_session_is_used_while_there_is_no_other() {
    let server = Server::with_slots(2);
    let tree = tree(&server);
    let identity = me();
    server.inject(Moment::LookUp, Fault::Silent);
    let soon =
        || Caller { identity: &identity, deadline: Instant::now() + Duration::from_millis(60) };
    tree.client().look_up(soon(), tree.root(), b"file").unwrap_err();
    server.close_connections();
    server.create_none(true);
    let begun = Instant::now();
    let found = tree.client().attributes(soon(), tree.root());
    assert!(found.is_ok() || begun.elapsed() < LONG / 2, "it ends by its deadline");
    server.create_none(false);
    assert_eq!(reads_well(&tree), Ok(true));
}

#[test]
fn a_read_of_a_dead_server_ends_by_its_deadline() {
    let server = Server::with_slots(2);
    let tree = tree(&server);
    let identity = me();
    let file = tree.look_up(&identity, Path::new("file")).unwrap().handle;
    server.inject(Moment::Read, Fault::Silent);
    let soon =
        || Caller { identity: &identity, deadline: Instant::now() + Duration::from_millis(60) };
    let range = ReadRange { file, offset: 0, piece: READ_SIZE };
    assert!(tree.client().read(soon(), range, &mut [0; 100]).is_err());
    server.set_down(true);
    server.close_connections();
    // Also one that begins after half of the slots are lost.
    let error = tree.client().read(soon(), range, &mut [0; 100]).unwrap_err();
    assert_eq!(error.errno(), Errno::TIMEDOUT, "{error}");
    server.set_down(false);
    assert_eq!(reads_well(&tree), Ok(true));
}

#[test]
fn many_calls_share_few_slots() {
    let server = Server::with_slots(3);
    let tree = Arc::new(tree(&server));
    let identity = me();
    let names = vec![&b"file"[..]; 200];
    let found = tree.client().look_up_all(tree.caller(&identity), tree.root(), &names);
    assert!(found.iter().all(|found| found.is_ok()));
    // Each reads in pieces.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let file = tree.look_up(&me(), Path::new("file")).unwrap().handle;
                let whole = pattern();
                let mut read = 0;
                while read < whole.len() {
                    let mut buffer = vec![0; whole.len() - read];
                    let end = tree.read(&me(), file, read as u64, &mut buffer).unwrap();
                    assert!(buffer[..end.bytes] == whole[read..read + end.bytes]);
                    read += end.bytes;
                }
            });
        }
    });
    assert_eq!(server.sessions_created(), 1);
}

#[test]
fn lies_harm_only_their_call() {
    let server = Server::start();
    let tree = tree(&server);
    server.inject(Moment::LookUp, Fault::OtherSlot);
    assert_eq!(reads_well(&tree), Err(Errno::IO));
    server.inject(Moment::Read, Fault::OtherSlot);
    assert_eq!(reads_well(&tree), Err(Errno::IO));
    assert_eq!(reads_well(&tree), Ok(true));
}

#[test]
fn other_servers_are_refused_with_the_reason() {
    for (fault, errno) in [
        (Fault::Compound(status::MINOR_VERS_MISMATCH), Errno::PROTONOSUPPORT),
        (Fault::OnlyVersion3, Errno::PROTONOSUPPORT),
    ] {
        let server = Server::start();
        server.inject(Moment::ExchangeId, fault);
        let refused = open(target(&[&server])).err().unwrap();
        assert_eq!(refused.errno(), errno, "{refused}");
    }
}

#[test]
fn addresses_of_one_server_share_a_session() {
    let server = Server::start();
    let same = server.at_another_address();
    let other = Server::start();
    let client = open(target(&[&server, &other, &same])).unwrap();
    assert_eq!(client.addresses(), [server.address, same.address]);
    assert_eq!(client.counters().len(), 2, "a connection for each");
    let identity = me();
    let until = Instant::now() + LONG;
    while client.counters().iter().any(|connection| connection.received == 0) {
        assert!(Instant::now() < until, "one of them is never used");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let caller = Caller { identity: &identity, deadline: Instant::now() + LONG };
                    client.find_export(caller, b"/export").unwrap();
                });
            }
        });
    }
    assert_eq!(server.sessions_created(), 1);
}

#[test]
fn a_session_that_is_not_used_any_more_is_ended() {
    let server = Server::start();
    drop(tree(&server));
    let until = Instant::now() + LONG;
    while server.open_sessions() > 0 {
        assert!(Instant::now() < until, "the server keeps it");
        std::thread::sleep(Duration::from_millis(5));
    }
}
