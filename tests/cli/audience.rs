//! A command ends when it has no audience: its terminal was closed, its reader has exited, or a
//! signal asks it to end.

use std::fs::{self, File};
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::room::Room;

/// A pseudo terminal: the emulator's side and the programs' side.
fn terminal() -> (File, File) {
    // Linux: TIOCSPTLCK unlocks the other side, TIOCGPTPEER opens it.
    const UNLOCK: rustix::ioctl::Opcode = 0x4004_5431;
    const PEER: rustix::ioctl::Opcode = 0x5441;
    struct Peer;
    // SAFETY: the kernel takes flags in place of a pointer, and returns a new descriptor.
    unsafe impl rustix::ioctl::Ioctl for Peer {
        type Output = OwnedFd;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> rustix::ioctl::Opcode {
            PEER
        }
        fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
            (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY).bits() as usize as *mut _
        }
        unsafe fn output_from_ptr(
            fd: rustix::ioctl::IoctlOutput,
            _: *mut rustix::ffi::c_void,
        ) -> rustix::io::Result<OwnedFd> {
            // SAFETY: the call has succeeded, so this is a descriptor that nothing else owns.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
    }
    let emulator = File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    // SAFETY: the opcode takes a pointer to an int.
    unsafe {
        rustix::ioctl::ioctl(&emulator, rustix::ioctl::Setter::<UNLOCK, i32>::new(0)).unwrap();
        let program = rustix::ioctl::ioctl(&emulator, Peer).unwrap();
        (emulator, File::from(program))
    }
}

/// A command that would run for minutes, in its own room.
struct Work {
    room: Room,
    args: Vec<&'static str>,
    /// Checks the room after the command's end.
    ended: fn(&Room),
    /// Daemons that never answer.
    _silent: Vec<UnixListener>,
}

fn work(command: &str) -> Work {
    let room = Room::new();
    let silent = Vec::new();
    let nothing: fn(&Room) = |_| {};
    match command {
        "status" => {
            // The command waits 5 s for each, one after the other.
            let socket = |n| UnixListener::bind(room.path(&format!("run/{n}.sock"))).unwrap();
            let silent = (0..60).map(socket).collect();
            Work { room, args: vec!["status"], ended: nothing, _silent: silent }
        }
        "top" | "trace" => {
            room.expect(&["mount", "v.toml", "mnt"]);
            let args = if command == "top" {
                vec!["top", "mnt", "--interval", "60s"]
            } else {
                vec!["trace", "mnt"]
            };
            let ended = |room: &Room| {
                room.expect(&["umount", "mnt"]);
                room.expect_gone();
            };
            Work { room, args, ended, _silent: silent }
        }
        "verify" => {
            fs::write(room.path("tree/large"), vec![7; 64 << 20]).unwrap();
            let args = vec!["verify", "v.toml", "--full", "--rate", "1MiB/s"];
            Work { room, args, ended: nothing, _silent: silent }
        }
        "bench" => {
            room.volume("rw.toml", "", "");
            let text = fs::read_to_string(room.path("rw.toml")).unwrap();
            let text = text.replace("mode = \"shared\"\n", "mode = \"shared\"\naccess = \"rw\"\n");
            fs::write(room.path("rw.toml"), &text).unwrap();
            let args = ["bench", "rw.toml", "--make", "16MiB", "--rounds", "50"];
            let small = ["--block", "64KiB", "--random-block", "4KiB", "--deadline", "1min"];
            let args = args.into_iter().chain(small).collect();
            let ended = |room: &Room| {
                let left = fs::read_dir(room.path("tree")).unwrap().count();
                assert_eq!(left, 1, "the file that bench made is still there");
                let tmp = fs::read_dir(room.path("mnt")).unwrap().count();
                assert_eq!(tmp, 0, "a mount of bench is still there");
                let table = crate::room::mount_table();
                assert!(!table.contains(&*room.path("").to_string_lossy()), "{table}");
            };
            Work { room, args, ended, _silent: silent }
        }
        other => panic!("{other}"),
    }
}

impl Work {
    /// Starts it with these standard streams; `input` is the terminal, if any.
    fn start(&self, input: Stdio, output: impl AsFd, error: impl AsFd) -> Child {
        // Under nohup(1) the tests ignore SIGHUP, and the commands would inherit that.
        self.start_with("--default-signal=HUP", input, output, error)
    }

    /// The same; `signals` is an option of env(1).
    fn start_with(
        &self,
        signals: &str,
        input: Stdio,
        output: impl AsFd,
        error: impl AsFd,
    ) -> Child {
        let copy = |fd: &dyn AsFd| Stdio::from(fd.as_fd().try_clone_to_owned().unwrap());
        let program = [signals, env!("CARGO_BIN_EXE_fanfs")];
        let mut child =
            self.room.program(std::path::Path::new("env"), &[&program, &self.args[..]].concat());
        child.env("TMPDIR", self.room.path("mnt")).env("TERM", "xterm");
        child.stdin(input).stdout(copy(&output)).stderr(copy(&error)).spawn().unwrap()
    }

    /// Waits until the command is running.
    fn under_way(&self, child: &mut Child) {
        let pid = child.id();
        self.room.eventually("it has begun", || {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            name.starts_with("fanfs") && threads > 1
        });
        if self.args[0] == "bench" {
            let names = || fs::read_dir(self.room.path("tree")).unwrap().count();
            self.room.eventually("it has made its file", || names() == 2);
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(child.try_wait().unwrap(), None, "it has ended by itself");
    }

    fn expect_end(&self, mut child: Child, why: &str) -> ExitStatus {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if std::time::Instant::now() > until {
                // No wait for its end: a stuck process would block the test.
                let _ = child.kill();
                panic!("{} runs on 60 s after {why}", self.args[0]);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        (self.ended)(&self.room);
        status
    }
}

fn ends_with_its_terminal(command: &str) {
    let work = work(command);
    let (emulator, program) = terminal();
    let input = Stdio::from(program.try_clone().unwrap());
    let mut child = work.start(input, &program, &program);
    drop(program);
    // Reads the output, as a terminal emulator does.
    let mut reader = emulator.try_clone().unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let reading = std::thread::spawn(move || {
        let mut block = [0; 4096];
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let mut ready = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            if rustix::event::poll(&mut ready, Some(&wait)).unwrap_or(0) > 0 {
                let _ = reader.read(&mut block);
            }
        }
    });
    work.under_way(&mut child);
    stop.send(()).unwrap();
    reading.join().unwrap();
    drop(emulator);
    work.expect_end(child, "its terminal was closed");
}

/// Without SIGHUP, as under nohup(1), only the terminal itself shows that it was closed.
fn ends_with_its_terminal_without_sighup(command: &str) {
    let work = work(command);
    let (emulator, program) = terminal();
    let input = Stdio::from(program.try_clone().unwrap());
    let mut child = work.start_with("--ignore-signal=HUP", input, &program, &program);
    drop(program);
    work.under_way(&mut child);
    drop(emulator);
    work.expect_end(child, "its terminal was closed, with SIGHUP ignored");
}

fn ends_with_its_reader(command: &str) {
    let work = work(command);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = work.start(Stdio::null(), &writer, &writer);
    drop(writer);
    work.under_way(&mut child);
    drop::<PipeReader>(reader);
    work.expect_end(child, "its reader has gone");
}

fn ends_by_a_signal(command: &str, signal: Signal) {
    let work = work(command);
    let (emulator, program) = terminal();
    let input = Stdio::from(program.try_clone().unwrap());
    // The emulator does not read, so writes to the terminal block once it is full.
    let mut child = work.start(input, &program, &program);
    drop(program);
    work.under_way(&mut child);
    kill_process(Pid::from_child(&child), signal).unwrap();
    work.expect_end(child, "a signal");
    drop(emulator);
}

macro_rules! each {
    ($($command:ident)*) => { $(
        mod $command {
            #[test]
            fn a_command_ends_when_its_terminal_closes() {
                super::ends_with_its_terminal(stringify!($command));
            }

            #[test]
            fn a_command_ends_when_its_reader_goes_away() {
                super::ends_with_its_reader(stringify!($command));
            }

            #[test]
            fn a_command_ends_on_sigterm_and_sighup() {
                super::ends_by_a_signal(stringify!($command), super::Signal::TERM);
                super::ends_by_a_signal(stringify!($command), super::Signal::HUP);
            }
        }
    )* };
}

each!(top trace bench verify status);

/// The commands that are useless without their terminal; the others continue under nohup(1).
macro_rules! without_sighup {
    ($($command:ident)*) => {
        mod without_sighup { $(
            #[test]
            fn $command() {
                super::ends_with_its_terminal_without_sighup(stringify!($command));
            }
        )* }
    };
}

without_sighup!(top trace verify);
