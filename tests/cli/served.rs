//! Replicas served by a separate process, which is stopped or killed: a dead gateway, as the kernel
//! sees it.

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::{attempts, timed};
use crate::room::Room;
use crate::signals;

const SIZE: usize = 4 << 20;

fn content() -> Vec<u8> {
    (0..SIZE).map(|i| ((i * 31) >> 7) as u8).collect()
}

/// A daemon that mounts the tree of `room` at its own path.
pub(crate) struct Server {
    pub(crate) room: Room,
}

impl Server {
    pub(crate) fn new(of: &Room) -> Self {
        Self::with(of, "ro")
    }

    /// The same, writable.
    pub(crate) fn writable(of: &Room) -> Self {
        Self::with(of, "rw")
    }

    fn with(of: &Room, access: &str) -> Self {
        let room = Room::new();
        let replica = format!(
            "[volume]\nname = \"served\"\nmode = \"shared\"\naccess = \"{access}\"\n\
             [fuse]\nattribute_ttl = \"0s\"\n\
             [[replica]]\npath = \"{}\"\nrequire_mount = false\n",
            of.path("tree").display()
        );
        fs::write(room.path("served.toml"), replica).unwrap();
        let server = Self { room };
        server.start();
        server
    }

    fn start(&self) {
        self.room.expect(&["mount", "served.toml", "mnt"]);
    }

    pub(crate) fn send(&self, signal: Signal) {
        signals::send(self.room.first_process(), signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A process that waits for it would wait forever.
        for pid in self.room.daemons() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT);
        }
    }
}

/// A volume over the mounts of these servers.
fn volume(room: &Room, servers: &[&Server], read: &str) {
    fs::write(room.path("tree/data"), content()).unwrap();
    let mut text = format!(
        "[volume]\nname = \"v\"\nmode = \"shared\"\n[read]\ncache = \"direct\"\n{read}\n\
         segment_size = \"256KiB\"\n[fuse]\nattribute_ttl = \"0s\"\n"
    );
    for server in servers {
        let place = server.room.path("mnt");
        text += &format!("[[replica]]\npath = \"{}\"\nrequire_mount = false\n", place.display());
    }
    fs::write(room.path("outer.toml"), text).unwrap();
    room.expect(&["mount", "outer.toml", "mnt"]);
}

fn second(room: &Room) -> Value {
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: Value = serde_json::from_slice(&status).unwrap();
    status["replicas"][1].clone()
}

fn read(room: &Room) {
    assert!(fs::read(room.path("mnt/data")).unwrap() == content(), "wrong bytes");
}

#[test]
fn a_dead_replica_is_used_again_once_it_is_mounted() {
    let room = Room::new();
    let server = Server::new(&room);
    let other = Server::new(&room);
    volume(&room, &[&other, &server], "");
    let open = fs::File::open(room.path("mnt/data")).unwrap();
    let reads = || {
        use std::os::unix::fs::FileExt;
        read(&room);
        let mut whole = vec![0; SIZE];
        open.read_exact_at(&mut whole, 0).unwrap();
        assert!(whole == content(), "wrong bytes");
    };
    room.eventually("both are read from", || {
        reads();
        second(&room)["bytes"].as_u64() > Some(0)
    });
    server.send(Signal::KILL);
    room.eventually("it is not asked", || {
        reads();
        second(&room)["health"] == "ejected"
    });
    // The dead mount is removed, and another one mounted in its place.
    server.start();
    let before = second(&room)["bytes"].as_u64();
    room.eventually("it is used again", || {
        reads();
        second(&room)["health"] == "healthy" && second(&room)["bytes"].as_u64() > before
    });
    drop(open);
    room.expect(&["umount", "mnt"]);
    server.room.expect(&["umount", "mnt"]);
    other.room.expect(&["umount", "mnt"]);
}

#[test]
fn upgrade_and_reload_skip_and_name_a_hung_replica() {
    let room = Room::new();
    let servers = [Server::new(&room), Server::new(&room)];
    volume(&room, &[&servers[0], &servers[1]], "");
    servers[1].send(Signal::STOP);
    room.eventually("it is found out", || {
        read(&room);
        second(&room)["hung_threads"].as_u64() > Some(0)
    });
    attempts(|| {
        let status = room.fanfs(&["status", "mnt"]).output().unwrap();
        assert!(status.status.success(), "the status waits for the hung replica");
    });
    room.expect(&["upgrade", "mnt"]);
    read(&room);
    assert_eq!(second(&room)["health"], "absent");
    let said = String::from_utf8(room.expect(&["status", "mnt"]).stdout).unwrap();
    assert!(
        said.contains("warning: replica r2 is absent: ") && said.contains("does not answer"),
        "{said}"
    );
    let text = fs::read_to_string(room.path("outer.toml")).unwrap();
    let without = text.rsplit_once("[[replica]]").unwrap().0;
    fs::write(room.path("without.toml"), without).unwrap();
    room.expect(&["reload", "mnt", "without.toml"]);
    read(&room);
    servers[1].send(Signal::CONT);
    room.expect(&["umount", "mnt"]);
    servers.iter().for_each(|server| drop(server.room.expect(&["umount", "mnt"])));
}

const SOON_OVER: &str = "deadline = \"2s\"\ndeadline_all = \"2s\"\nattempt_deadline = \"1s\"";

/// Threads inside cannot end before their kernel releases them; the mount can.
#[test]
fn with_all_replicas_stopped_calls_end_by_their_deadline() {
    attempts(call_stopped_replicas);
}

fn call_stopped_replicas() {
    let room = Room::new();
    let servers = [Server::new(&room), Server::new(&room)];
    volume(&room, &[&servers[0], &servers[1]], SOON_OVER);
    read(&room);
    servers.iter().for_each(|server| server.send(Signal::STOP));
    let within = |what: &str, most: Duration, call: &dyn Fn() -> std::io::Result<()>| {
        let (answer, took) = timed(call);
        assert!(took < most, "{what} took {took:?}");
        answer
    };
    thread::scope(|scope| {
        let data = scope.spawn(|| {
            within("an open", Duration::from_secs(4), &|| fs::read(room.path("mnt/data")).map(drop))
        });
        let answer = within("a lookup", Duration::from_secs(4), &|| {
            fs::metadata(room.path("mnt/hello")).map(drop)
        });
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(data.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        // A call on a replica would fail.
        fs::metadata(room.path("mnt")).unwrap();
        // A process waits while the mount ends.
        let waiting = scope.spawn(|| fs::read(room.path("mnt/data")));
        thread::sleep(Duration::from_millis(200));
        let ((), took) = timed(|| {
            kill_process(room.first_process(), Signal::TERM).unwrap();
            room.eventually("the mount is gone", || room.mounted().is_none());
        });
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(waiting.join().unwrap().is_err());
    });
    servers.iter().for_each(|server| server.send(Signal::CONT));
    room.expect_gone();
    for server in &servers {
        server.room.expect(&["umount", "mnt"]);
    }
}

/// A thread of the daemon hangs in the kernel, which has passed its request on, and does not
/// end with the process.
#[test]
fn waiting_calls_fail_when_the_mount_ends() {
    let inner_room = Room::new();
    let innermost = Server::new(&inner_room);
    let served_room = Room::new();
    volume(&served_room, &[&innermost], "");
    let room = Room::new();
    let replica = served_room.path("mnt");
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"shared\"\n\
         [fuse]\nattribute_ttl = \"0s\"\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n",
        replica.display()
    );
    fs::write(room.path("outer.toml"), text).unwrap();
    fs::write(inner_room.path("tree/data"), content()).unwrap();
    room.expect(&["mount", "outer.toml", "mnt"]);
    read(&room);
    innermost.send(Signal::STOP);
    let (send, receive) = std::sync::mpsc::channel();
    let file = room.path("mnt/data");
    thread::spawn(move || send.send(fs::read(file)));
    thread::sleep(Duration::from_secs(2));
    // It has taken the request, and does not notice that its caller is killed.
    let middle = served_room.first_process();
    signals::send(middle, Signal::STOP);
    kill_process(room.first_process(), Signal::TERM).unwrap();
    let answer = receive.recv_timeout(Duration::from_secs(60));
    kill_process(middle, Signal::CONT).unwrap();
    innermost.send(Signal::CONT);
    assert!(answer.expect("the reader still waits").is_err());
    room.expect_gone();
    served_room.expect(&["umount", "--lazy", "mnt"]);
    innermost.room.expect(&["umount", "--lazy", "mnt"]);
}

#[test]
fn a_long_stop_of_all_servers_fails_nothing() {
    attempts(stop_all_servers_for_long);
}

fn stop_all_servers_for_long() {
    let room = Room::new();
    let servers = [Server::new(&room), Server::new(&room)];
    volume(&room, &[&servers[0], &servers[1]], "deadline = \"2s\"\nattempt_deadline = \"500ms\"");
    read(&room);
    let stop = || servers.iter().for_each(|server| server.send(Signal::STOP));
    let go_on = || servers.iter().for_each(|server| server.send(Signal::CONT));
    stop();
    thread::scope(|scope| {
        let data = scope.spawn(|| fs::read(room.path("mnt/data")));
        let name = scope.spawn(|| fs::metadata(room.path("mnt/hello")));
        thread::sleep(Duration::from_secs(4));
        let ended = [data.is_finished(), name.is_finished()];
        go_on();
        assert_eq!(ended, [false; 2]);
        assert!(data.join().unwrap().unwrap() == content(), "wrong bytes");
        name.join().unwrap().unwrap();
    });
    room.eventually("both are asked again", || {
        read(&room);
        second(&room)["health"] == "healthy"
    });
    stop();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| fs::read(room.path("mnt/data")));
        thread::sleep(Duration::from_secs(3));
        let waits = !waiting.is_finished();
        kill_process(room.first_process(), Signal::TERM).unwrap();
        room.eventually("the mount is gone", || room.mounted().is_none());
        assert!(waiting.join().unwrap().is_err() && waits);
    });
    go_on();
    room.expect_gone();
    for server in &servers {
        server.room.expect(&["umount", "mnt"]);
    }
}
