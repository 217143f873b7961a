//! The control socket and hostile peers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

/// The daemon ends such connections after 5 s.
const PATIENCE: Duration = Duration::from_secs(60);

fn socket(room: &Room) -> PathBuf {
    let mut files = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|e| e == "sock")).unwrap()
}

/// Descriptors and threads of the daemon.
fn held(room: &Room) -> [usize; 2] {
    let pid = room.first_process().as_raw_nonzero().get();
    ["fd", "task"].map(|what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count())
}

/// The status is answered at once: nothing is tried again, as [`Room::expect`] does.
fn expect_answer(room: &Room) {
    let output = room.fanfs(&["status", "mnt"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn ask(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn silent_peers_are_limited_and_disconnected() {
    attempts(connect_silent_peers);
}

fn connect_silent_peers() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    expect_answer(&room);
    let (socket, before) = (socket(&room), held(&room));
    // A few of these peers leave room for others.
    let silent = |many: usize| (0..many).map(|_| UnixStream::connect(&socket).unwrap());
    let few: Vec<_> = silent(40).collect();
    expect_answer(&room);
    // The daemon bounds their number, however many connect.
    let many: Vec<_> = silent(300).collect();
    std::thread::sleep(Duration::from_millis(300));
    let now = held(&room);
    assert!(now[0] < before[0] + 100 && now[1] < before[1] + 8, "{before:?}, then {now:?}");
    drop(many);
    // The daemon disconnects a peer that stays silent this long.
    let mut first = few.into_iter().next().unwrap();
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    room.eventually("they are gone", || held(&room)[0] <= before[0] + 2);
    expect_answer(&room);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn endless_or_unread_messages_are_cut_off() {
    attempts(send_endless_messages);
}

fn send_endless_messages() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let socket = socket(&room);
    // A line that never ends: the daemon reads a bounded part of it.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let block = [b'x'; 64 << 10];
    let mut taken = 0;
    while let Ok(written) = stream.write(&block) {
        taken += written;
        assert!(taken < 8 << 20, "it takes everything");
    }
    // One byte at a time, forever: the time is bounded.
    let mut stream = UnixStream::connect(&socket).unwrap();
    let started = Instant::now();
    while stream.write_all(b" ").is_ok() {
        assert!(started.elapsed() < PATIENCE, "it listens for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Requests whose answers are never read.
    let before = held(&room);
    let unread: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"{\"ask\":\"status\"}\n").unwrap();
            stream
        })
        .collect();
    expect_answer(&room);
    room.eventually("their answers are given up", || held(&room)[0] <= before[0] + 2);
    drop(unread);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn trace_listeners_leave_room_for_others() {
    attempts(listen_to_many_traces);
}

fn listen_to_many_traces() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let socket = socket(&room);
    let listen = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"{\"ask\":\"trace\"}\n").unwrap();
        let mut first = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut first).unwrap();
        (first.contains("\"start\""), stream)
    };
    let mut listeners = Vec::new();
    loop {
        let (is_accepted, stream) = listen();
        if !is_accepted {
            break;
        }
        listeners.push(stream);
        assert!(listeners.len() < 64, "every client gets an answer");
    }
    let refused = room.fanfs(&["trace", "mnt"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.ends_with("mnt: too many clients wait for such a request; try again later\n"),
        "{said}"
    );
    expect_answer(&room);
    listeners.pop();
    room.eventually("there is room again", || listen().0);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn other_users_are_refused_even_with_an_open_socket() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let socket = socket(&room);
    for (path, mode) in [(room.path(""), 0o755), (room.path("run"), 0o755), (socket, 0o666)] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut other = room.fanfs(&["status", "mnt"]);
    let other = other.uid(4321).gid(4321).output().unwrap();
    assert_eq!(other.status.code(), Some(1), "{}", String::from_utf8_lossy(&other.stdout));
    expect_answer(&room);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn no_request_leads_out_of_the_volume() {
    let room = Room::new();
    fs::write(room.path("other/secret"), vec![1; 9 << 20]).unwrap();
    std::os::unix::fs::symlink("../other", room.path("tree/out")).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let socket = socket(&room);
    let ways = ["../other/secret", "a/../../other/secret", "/etc/passwd", "out/secret", "./hello"];
    for path in ways.iter().copied().chain(["out", "", "/", "hello/..", "hello/x"]) {
        let request = serde_json::json!({"ask": "explain", "path": path}).to_string() + "\n";
        let answer = ask(&socket, request.as_bytes());
        let said: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let error = said["error"].as_str();
        assert!(error.is_some_and(|error| error.lines().count() == 1), "{path}: {answer}");
    }
    let request = "{\"ask\":\"explain\",\"path\":\"hello\"}\n";
    assert!(!ask(&socket, request.as_bytes()).contains("\"error\""));
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
