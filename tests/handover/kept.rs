//! A daemon that is killed while another process has the device open.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Signal, kill_process};

use super::load::Load;
use super::{Listing, daemon, kernel_resends, kill, room, unmount};
use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

#[test]
fn reads_continue_after_a_kill_of_the_daemon() {
    if !kernel_resends() {
        return;
    }
    let room = room(3, "ro");
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    assert_eq!(room.daemons().len(), 2, "the daemon and its keeper");
    let listing = Listing::begin(&room.path("mnt"));
    let open = File::open(room.path("mnt/file-007")).unwrap();
    let load = Load::begin(&room);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        kill(&room);
    }
    // The keeper also keeps a successor.
    room.expect(&["upgrade", "mnt"]);
    kill(&room);
    load.end_well();
    listing.end(&room.path("tree"));
    let mut text = [0; 2];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"7\n");
    drop(open);
    unmount(&room);
    assert!(fs::read_dir(room.path("run")).unwrap().all(|entry| {
        entry.unwrap().path().extension().is_some_and(|extension| extension == "log")
    }));
}

/// Attributes that the earlier daemon sent to the kernel are not trusted after a change.
#[test]
fn an_open_after_a_change_sees_the_new_size_in_any_daemon() {
    if !kernel_resends() {
        return;
    }
    let room = room(2, "ro");
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), format!("{text}[fuse]\nattribute_ttl = \"1h\"\n")).unwrap();
    fs::write(room.path("tree/f"), "short").unwrap();
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    assert_eq!(fs::read(room.path("mnt/f")).unwrap(), b"short");
    room.expect(&["upgrade", "mnt"]);
    fs::write(room.path("tree/f"), "a good deal longer").unwrap();
    assert_eq!(fs::read(room.path("mnt/f")).unwrap(), b"a good deal longer");
    kill(&room);
    fs::write(room.path("tree/f"), "short again").unwrap();
    assert_eq!(fs::metadata(room.path("mnt/f")).unwrap().len(), 18, "the kernel goes by its own");
    assert_eq!(fs::read(room.path("mnt/f")).unwrap(), b"short again");
    assert_eq!(fs::metadata(room.path("mnt/f")).unwrap().len(), 11);
    unmount(&room);
}

#[test]
fn written_data_survives_and_unlinked_files_do_not() {
    if !kernel_resends() {
        return;
    }
    let room = room(2, "rw");
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let written = File::create_new(room.path("mnt/written")).unwrap();
    let nameless = File::create_new(room.path("mnt/nameless")).unwrap();
    let renamed = File::create_new(room.path("mnt/before")).unwrap();
    fs::create_dir(room.path("mnt/dir")).unwrap();
    fs::rename(room.path("mnt/before"), room.path("mnt/dir/after")).unwrap();
    nameless.write_all_at(b"x", 0).unwrap();
    fs::remove_file(room.path("mnt/nameless")).unwrap();
    for i in 0..3u64 {
        written.write_all_at(b"0123456789", i * 10).unwrap();
        kill(&room);
        renamed.write_all_at(b"abc", i * 3).unwrap();
    }
    written.sync_all().unwrap();
    assert_eq!(fs::read(room.path("tree/written")).unwrap(), b"0123456789".repeat(3));
    assert_eq!(fs::read(room.path("mnt/dir/after")).unwrap(), b"abcabcabc");
    let error = nameless.write_all_at(b"y", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    drop((written, nameless, renamed));
    fs::write(room.path("mnt/new"), "new").unwrap();
    unmount(&room);
}

/// A recovered handle opens its file at the next use. Until then a handover passes it on
/// unopened.
#[test]
fn a_file_open_for_writing_survives_kills() {
    if !kernel_resends() {
        return;
    }
    let room = room(2, "rw");
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let untouched = File::create_new(room.path("mnt/untouched")).unwrap();
    let used = File::create_new(room.path("mnt/used")).unwrap();
    let nameless = File::create_new(room.path("mnt/nameless")).unwrap();
    fs::remove_file(room.path("mnt/nameless")).unwrap();
    for (i, follow) in ["upgrade", "reload", "upgrade"].into_iter().enumerate() {
        kill(&room);
        used.write_all_at(b"used ", 5 * i as u64).unwrap();
        room.expect(&[follow, "mnt"]);
        room.expect(&["upgrade", "mnt"]);
        used.write_all_at(b"USED ", 5 * i as u64).unwrap();
    }
    fs::rename(room.path("mnt/untouched"), room.path("mnt/renamed")).unwrap();
    room.expect(&["upgrade", "mnt"]);
    untouched.write_all_at(b"written", 0).unwrap();
    untouched.sync_all().unwrap();
    assert_eq!(fs::read(room.path("tree/renamed")).unwrap(), b"written");
    assert_eq!(fs::read(room.path("tree/used")).unwrap(), b"USED USED USED ");
    let error = nameless.write_all_at(b"x", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    drop((untouched, used, nameless));
    unmount(&room);
}

/// Kills each daemon until the keeper starts no other one: after the sixth death within a minute.
fn kill_until_given_up(room: &Room) {
    let mut deaths = Vec::new();
    while !room.daemons().is_empty() {
        let dead = daemon(room);
        deaths.push(Instant::now());
        kill_process(dead, Signal::KILL).unwrap();
        room.eventually("another daemon serves the mount, or the keeper ends", || {
            let status = room.fanfs(&["status", "mnt", "--json"]).output().unwrap();
            let status = serde_json::from_slice::<serde_json::Value>(&status.stdout);
            let pid = status.ok().and_then(|status| status["pid"].as_i64());
            let is_another = pid.is_some_and(|pid| pid != i64::from(dead.as_raw_nonzero().get()));
            is_another || room.daemons().is_empty()
        });
        // On a busy machine six deaths may take longer than that.
        let is_given_up = room.daemons().is_empty();
        let sixth = deaths.len().checked_sub(6).map(|i| deaths[i]);
        let is_soon = sixth.is_some_and(|sixth| sixth.elapsed() < Duration::from_secs(60));
        assert!(is_given_up || !is_soon, "it is started again: {}", deaths.len());
        assert!(is_given_up || deaths.len() < 20, "it is started again and again");
    }
    assert!(deaths.len() >= 6, "it is given up after {} deaths", deaths.len());
}

#[test]
fn a_daemon_that_keeps_dying_is_given_up() {
    let room = room(1, "ro");
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    kill_until_given_up(&room);
    // The mount stays, so no program writes to the directory beneath.
    let error = fs::metadata(room.path("mnt")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    assert!(room.mounted().is_some());
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    // Asked to end, the keeper unmounts.
    kill_process(room.first_process(), Signal::TERM).unwrap();
    room.expect_gone();
}

/// The relevant part of systemd's behavior for a service with FileDescriptorStoreMax.
struct Manager {
    socket: UnixDatagram,
    device: Option<OwnedFd>,
    said: Vec<String>,
}

impl Manager {
    fn new(room: &Room) -> Self {
        let socket = UnixDatagram::bind(room.path("notify")).unwrap();
        // A failing test closes the device, and so ends the processes that wait for the mount.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, device: None, said: Vec::new() }
    }

    /// The unit's command before each start, also when the device is kept.
    fn prepare(room: &Room) {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/fanfs@.service");
        let unit = fs::read_to_string(unit).unwrap();
        let here = room.path("mnt").parent().unwrap().to_str().unwrap().to_owned();
        let mut commands = unit.lines().filter_map(|line| line.strip_prefix("ExecStartPre="));
        let first = commands.next().expect("the unit makes its mount point");
        for command in std::iter::once(first).chain(commands) {
            let command = command.replace("/mnt/fanfs", &here).replace("%i", "mnt");
            let command = command.replace("$$", "$");
            let ended = Command::new("timeout").args(["60", "sh", "-c", &command]).status();
            assert!(ended.unwrap().success(), "{command}");
        }
    }

    fn start(&mut self, room: &Room) -> Child {
        Self::prepare(room);
        let program = env!("CARGO_BIN_EXE_fanfs");
        let mut command = room.program(Path::new("sh"), &["-c", LISTENING, "sh", program]);
        command.env("NOTIFY_SOCKET", room.path("notify"));
        command.stdin(self.device.take().map_or(Stdio::null(), Stdio::from));
        let child = command.spawn().unwrap();
        while !self.hear().contains("READY=1") {}
        child
    }

    /// One message.
    fn hear(&mut self) -> &str {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let n = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let along = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let text = String::from_utf8(bytes[..n.bytes].to_vec()).unwrap();
        if text.contains("FDSTORE=1") {
            assert!(text.contains("FDNAME=fuse"), "{text}");
            self.device = along;
        }
        self.said.push(text);
        self.said.last().unwrap()
    }
}

/// Starts a service as sd_listen_fds(3) requires.
const LISTENING: &str = "exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=fuse \
    \"$1\" mount -f v.toml mnt 3<&0 </dev/null";

/// Readers in a separate process. This process starts daemons: its children have its open files for
/// a moment, and closing those waits for the daemon that is about to start.
fn readers(room: &Room) -> Option<Child> {
    if !needs::program("python3") {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/handover/readers.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(room.path("tree")).arg(room.path("mnt")).arg("4");
    Some(command.spawn().unwrap())
}

#[test]
fn systemd_keeps_the_device() {
    attempts(keep_the_device);
}

fn keep_the_device() {
    if !kernel_resends() {
        return;
    }
    let room = room(2, "ro");
    for name in fs::read_dir(room.path("tree")).unwrap() {
        let path = name.unwrap().path();
        if !path.ends_with("large") {
            fs::remove_file(path).unwrap();
        }
    }
    let mut manager = Manager::new(&room);
    let mut first = {
        // The first daemon gets no descriptor.
        let mut command = room.fanfs(&["mount", "-f", "v.toml", "mnt"]);
        command.env("NOTIFY_SOCKET", room.path("notify")).env("WATCHDOG_USEC", "4000000");
        let child = command.spawn().unwrap();
        while !manager.hear().contains("READY=1") {}
        child
    };
    assert!(manager.device.is_some(), "{:?}", manager.said);
    let status = format!("STATUS=serving {} from 2 of 2 replicas", room.path("mnt").display());
    assert!(manager.said.last().is_some_and(|said| said.contains(&status)), "{:?}", manager.said);
    while !manager.hear().contains("WATCHDOG=1") {}
    let readers = readers(&room);
    std::thread::sleep(Duration::from_secs(1));
    first.kill().unwrap();
    first.wait().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut second = manager.start(&room);
    std::thread::sleep(Duration::from_millis(300));
    room.expect(&["upgrade", "mnt"]);
    let third = daemon(&room);
    assert!(second.wait().unwrap().success());
    let main = format!("MAINPID={}", third.as_raw_nonzero());
    while !manager.hear().contains(&main) {}
    if let Some(mut readers) = readers {
        assert!(readers.wait().unwrap().success(), "a read failed or was wrong");
    }
    kill_process(third, Signal::TERM).unwrap();
    while !manager.hear().contains("FDSTOREREMOVE=1") {}
    manager.device = None;
    room.expect_gone();
}
