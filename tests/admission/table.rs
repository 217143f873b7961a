//! The table of ways and states. In each cell everything can be listed and read, no write
//! goes to the disk below a mount point, and the status names the replica and its problem.
//! After the repair the replica joins.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};

use super::with_mounts;
use super::world::{State, World};
use crate::machine::attempts;

/// How a daemon begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Start,
    Reload,
    Hangup,
    Upgrade,
    /// Killed; the keeper starts another one.
    Kill,
    /// Killed; systemd starts another one, with the device from its descriptor store.
    Systemd,
}

const MOUNT: [&str; 5] = ["mount", "v.toml", "mnt", "-o", "keeper,log=log"];

fn kill(pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Keeps the device between two daemons, as systemd does.
pub(crate) struct Manager {
    socket: UnixDatagram,
    pub(crate) device: Option<OwnedFd>,
    pub(crate) service: Option<Child>,
}

impl Manager {
    pub(crate) fn new(world: &World) -> Self {
        let socket = UnixDatagram::bind(world.path("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, device: None, service: None }
    }

    pub(crate) fn start(&mut self, world: &World) {
        // As in sd_listen_fds(3).
        let script = match self.device {
            Some(_) => {
                "exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=fuse \
                        \"$1\" mount -f v.toml mnt -o log=log 3<&0 </dev/null"
            }
            None => "exec \"$1\" mount -f v.toml mnt -o log=log",
        };
        let args = ["-c", script, "sh", env!("CARGO_BIN_EXE_fanfs")];
        let mut command = world.room.program(Path::new("sh"), &args);
        command.env("NOTIFY_SOCKET", world.path("notify"));
        command.stdin(self.device.take().map_or(Stdio::null(), Stdio::from));
        self.service = Some(command.spawn().unwrap());
        while !self.hear(world).contains("READY=1") {}
    }

    fn hear(&mut self, world: &World) -> String {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let n =
            received.unwrap_or_else(|e| panic!("the service is not ready: {e}\n{}", world.log()));
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                self.device = descriptors.next();
            }
        }
        String::from_utf8(bytes[..n.bytes].to_vec()).unwrap()
    }
}

fn cell(way: Way, state: State) {
    eprintln!("{way:?} with {state:?}");
    let mut world = World::new("");
    let mut manager = (way == Way::Systemd).then(|| Manager::new(&world));
    // Start and reload refuse the same configurations.
    let is_judged = matches!(way, Way::Start | Way::Reload | Way::Hangup);
    let is_refused = is_judged && matches!(state, State::Wrong | State::NoWriter);
    let why = if state == State::Wrong { "same file system" } else { "write replica" };
    if way == Way::Start {
        world.becomes(state);
        let output = world.run(&MOUNT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(is_refused)), "{said}");
        if is_refused {
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
            world.room.expect_gone();
            return;
        }
    } else {
        match &mut manager {
            Some(manager) => manager.start(&world),
            None => world.expect(&MOUNT),
        }
        world.expect_whole();
        let before = world.daemon();
        world.becomes(state);
        match way {
            Way::Start => unreachable!(),
            Way::Reload => {
                let output = world.run(&["reload", "mnt"]);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.success(), !is_refused, "{said}\n{}", world.log());
                assert!(!is_refused || said.contains(why), "{said}");
            }
            Way::Hangup => {
                kill_process(Pid::from_raw(before as i32).unwrap(), Signal::HUP).unwrap();
                world.eventually("it has reloaded, or says why not", || match is_refused {
                    true => world.log().contains("not handed over"),
                    false => world.status().is_some_and(|s| s["pid"] != before),
                });
                assert!(!is_refused || world.log().contains(why), "{}", world.log());
            }
            Way::Upgrade => world.expect(&["upgrade", "mnt"]),
            Way::Kill => kill(before),
            Way::Systemd => {
                let manager = manager.as_mut().unwrap();
                kill(before);
                manager.service.take().unwrap().wait().unwrap();
                manager.start(&world);
            }
        }
        world.eventually("a daemon answers", || {
            world.status().is_some_and(|s| (s["pid"] != before) != is_refused)
        });
    }
    if let Some(ailing) = world.ailing()
        && !is_refused
    {
        let health = world.health();
        for (name, state) in &health {
            let is_absent = state == "absent";
            assert_eq!(is_absent, name == ailing, "{health:?}\n{}", world.log());
        }
        let said = world.room.expect(&["status", "mnt"]).stdout;
        let said = String::from_utf8(said).unwrap();
        let is_warning = |line: &str| line.contains("warning: ") && line.contains(ailing);
        assert!(said.lines().any(is_warning), "{said}");
    }
    world.expect_whole();
    world.expect_writes_well("during");
    world.heals();
    world.expect_all_in_service();
    world.expect_whole();
    world.expect_writes_well("after");
    let end = world.daemon();
    if let Some(manager) = &mut manager {
        kill_process(Pid::from_raw(end as i32).unwrap(), Signal::TERM).unwrap();
        manager.device = None;
        if let Some(mut service) = manager.service.take() {
            service.wait().unwrap();
        }
    }
}

macro_rules! table {
    ($($name:ident: $way:ident,)*) => {$(
        mod $name {
            use super::*;
            table!(@row $name $way
                healthy Healthy, one_absent Absent, one_hung Hung, one_wrong Wrong,
                no_write_replica NoWriter,
            );
        }
    )*};
    (@row $row:ident $way:ident $($name:ident $state:ident,)*) => {$(
        #[test]
        fn $name() {
            let test = concat!("table::", stringify!($row), "::", stringify!($name));
            // The daemon waits 2 s for a replica.
            with_mounts(test, || attempts(|| cell(Way::$way, State::$state)));
        }
    )*};
}

table! {
    start: Start,
    reload: Reload,
    hangup: Hangup,
    upgrade: Upgrade,
    kill: Kill,
    systemd: Systemd,
}
