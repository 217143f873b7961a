//! Replicas with servers of their own, and the program that is mounted over them.
//!
//! Each replica is a bindfs over one tree, so it can be stopped, killed and unmounted. So
//! is the nested file system, which is mounted at `nested` in each of them. Shells that
//! were started before any file was opened start the programs: a child of this process
//! would close this process's files in exec(2), which may wait for the daemon that the
//! child is to become.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::plan::{Failure, REPLICAS};
use crate::content;
use crate::schedule::Random;
use crate::signals;
use crate::world::{self, ATTEMPT, DEADLINE, Mounted, WRITE_DEADLINE, mounts_below};

/// Every command of the program ends within this time, even if replicas hang: reload and
/// upgrade wait for requests in flight, and a daemon waits for its replicas.
pub(crate) const COMMAND: Duration = Duration::from_secs(45);

/// A shell that starts programs.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn new(room: &Path) -> io::Result<Self> {
        let mut command = Command::new("bash");
        command.current_dir(room).env("FANFS_RUNTIME_DIR", room.join("run"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, stdin, stdout })
    }

    /// Runs one command line and returns the line that it prints.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.stdin, "{line}")?;
        self.stdin.flush()?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A bindfs, and where it is mounted.
struct Server {
    at: PathBuf,
    of: PathBuf,
    pid: Option<Pid>,
    failure: Option<Failure>,
}

impl Server {
    fn start(&mut self, shell: &mut Shell) -> io::Result<()> {
        let before = fs::metadata(&self.at)?.dev();
        let line = format!(
            "bindfs -f {} {} >>bindfs.log 2>&1 & echo $!",
            self.of.display(),
            self.at.display()
        );
        let pid = shell.ask(&line)?.parse().ok().and_then(Pid::from_raw);
        self.pid = Some(pid.ok_or_else(|| io::Error::other("bindfs was not started"))?);
        eventually("a bindfs is mounted", || {
            fs::metadata(&self.at).is_ok_and(|now| now.dev() != before)
        })
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
        match failure {
            Failure::Hangs => self.signal(Signal::STOP),
            Failure::Dies => self.signal(Signal::KILL),
            Failure::Goes => unmount(&self.at, UnmountFlags::DETACH).expect("it was mounted"),
        }
    }

    /// Repairs it; returns true if it had to be started again.
    fn heal(&mut self, shell: &mut Shell) -> io::Result<bool> {
        match self.failure.take() {
            None => return Ok(false),
            Some(Failure::Hangs) => {
                self.signal(Signal::CONT);
                return Ok(false);
            }
            Some(Failure::Dies) => unmount(&self.at, UnmountFlags::DETACH)?,
            // The detached mount stays while files are open in it.
            Some(Failure::Goes) => {}
        }
        let strays = fs::read_dir(&self.at)?.count();
        if strays > 0 {
            let at = self.at.display();
            return Err(io::Error::other(format!("{strays} names under the mount at {at}")));
        }
        self.start(shell)?;
        Ok(true)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = signals::try_send(pid, signal);
        }
    }
}

pub(crate) struct Site {
    room: TempDir,
    replicas: Mutex<Vec<Server>>,
    nested: Mutex<Server>,
    /// Starts servers. A second shell runs the program's commands, as those may wait.
    servers: Mutex<Shell>,
    commands: Mutex<Shell>,
}

impl Site {
    pub(crate) fn new(seed: u64) -> io::Result<Self> {
        let room = tempfile::Builder::new().prefix("fanfs-second-").tempdir()?;
        let path = |name: &str| room.path().join(name);
        fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755))?;
        world::set_room(room.path());
        for name in ["mnt", "run", "inner", "nest", "r0", "r1", "r2"] {
            fs::create_dir(path(name))?;
        }
        content::fill(&path("tree"), content::USUAL)?;
        for name in ["tree/nested", "tree/w"] {
            fs::create_dir(path(name))?;
        }
        fs::write(path("tree/private"), "root's alone")?;
        fs::set_permissions(path("tree/private"), fs::Permissions::from_mode(0o600))?;
        for i in 0..super::load::NESTED {
            fs::write(path(&format!("inner/n{i}")), format!("nested {i}\n"))?;
        }
        let mut servers = Shell::new(room.path())?;
        let commands = Shell::new(room.path())?;
        let server =
            |at: &str, of: &str| Server { at: path(at), of: path(of), pid: None, failure: None };
        let mut nested = server("nest", "inner");
        nested.start(&mut servers)?;
        let mut replicas: Vec<Server> =
            (0..REPLICAS).map(|i| server(&format!("r{i}"), "tree")).collect();
        for replica in &mut replicas {
            replica.start(&mut servers)?;
            mount_bind(&nested.at, replica.at.join("nested"))?;
        }
        fs::write(path("v.toml"), text(seed, room.path()))?;
        let site = Self {
            room,
            replicas: Mutex::new(replicas),
            nested: Mutex::new(nested),
            servers: Mutex::new(servers),
            commands: Mutex::new(commands),
        };
        let (status, said) = site.command("mount v.toml mnt -o keeper,allow_other")?;
        if status != 0 {
            return Err(io::Error::other(format!("fanfs mount: {said}")));
        }
        Ok(site)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    pub(crate) fn fail(&self, replica: usize, failure: Failure) {
        self.replicas.lock()[replica].fail(failure);
    }

    pub(crate) fn fail_nested(&self, failure: Failure) {
        self.nested.lock().fail(failure);
    }

    /// Heals everything; fails if a file was written below a mount point.
    pub(crate) fn heal(&self) -> io::Result<()> {
        let mut shell = self.servers.lock();
        let mut nested = self.nested.lock();
        let nested_is_new = nested.heal(&mut shell)?;
        for replica in &mut *self.replicas.lock() {
            let at = replica.at.join("nested");
            let is_new = replica.heal(&mut shell)?;
            if nested_is_new && !is_new {
                unmount(&at, UnmountFlags::DETACH)?;
            }
            if nested_is_new || is_new {
                mount_bind(&nested.at, &at)?;
            }
        }
        Ok(())
    }

    /// Runs the program; returns its exit status (124 if it did not end) and its output.
    pub(crate) fn command(&self, arguments: &str) -> io::Result<(i32, String)> {
        let program = env!("CARGO_BIN_EXE_fanfs");
        let limit = COMMAND.as_secs();
        let line = format!("timeout -k 1 {limit} {program} {arguments} >said 2>&1; echo $?");
        let status = self.commands.lock().ask(&line)?;
        let said = fs::read_to_string(self.path("said")).unwrap_or_default();
        Ok((status.parse().unwrap_or(-1), said.trim().to_owned()))
    }

    pub(crate) fn status(&self) -> Option<Value> {
        let (status, said) = self.command("status mnt --json").ok()?;
        (status == 0).then(|| serde_json::from_str(&said).ok())?
    }

    /// Kills the process that serves the mount, as its status names it.
    pub(crate) fn kill_daemon(&self) -> Result<(), String> {
        let status = self.status().ok_or("no status")?;
        let pid = status["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        kill_process(pid.ok_or("no process in the status")?, Signal::KILL)
            .map_err(|error| error.to_string())
    }

    /// Unmounts everything; the error names processes and files that are left.
    pub(crate) fn end(self) -> Result<(), String> {
        self.heal().map_err(|error| error.to_string())?;
        let (status, said) = self.command("umount mnt").map_err(|error| error.to_string())?;
        if status != 0 {
            return Err(format!("fanfs umount: {said}"));
        }
        let left = || processes(&self.path("run"));
        eventually("all processes of fanfs are gone", || left().is_empty())
            .map_err(|error| format!("{error}: {:?}", left()))?;
        let strays: Vec<_> = fs::read_dir(self.path("run"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| !name.to_string_lossy().contains(".log"))
            .collect();
        if !strays.is_empty() {
            return Err(format!("left in the run-time directory: {strays:?}"));
        }
        Ok(())
    }

    /// Makes the kernel fail all calls that wait for a mount of this site.
    pub(crate) fn abort(&self) {
        for server in &*self.replicas.lock() {
            server.signal(Signal::CONT);
        }
        self.nested.lock().signal(Signal::CONT);
        world::abort_all();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let servers = self.replicas.get_mut().iter().chain([&*self.nested.get_mut()]);
        servers.for_each(|server| server.signal(Signal::KILL));
        world::abort_all();
        for Mounted { at, .. } in mounts_below(self.room.path()).into_iter().rev() {
            let _ = unmount(at, UnmountFlags::DETACH);
        }
    }
}

fn text(seed: u64, room: &Path) -> String {
    let mut random = Random::new(!seed);
    let cache = ["direct", "kernel", "auto"][random.below(3) as usize];
    let threads = [4, 6, 8][random.below(3) as usize];
    let mut text = format!(
        "[volume]\nname = \"second\"\nmode = \"shared\"\naccess = \"rw\"\n\
         [memory]\nbudget = \"32MiB\"\n[fuse]\nattribute_ttl = \"100ms\"\n\
         [write]\nreplica = \"r0\"\ndeadline = \"{}ms\"\nlag = \"2s\"\n\
         [read]\ncache = \"{cache}\"\nthreads_per_replica = {threads}\n\
         deadline = \"{all}ms\"\ndeadline_all = \"{all}ms\"\nattempt_deadline = \"{}ms\"\n",
        WRITE_DEADLINE.as_millis(),
        ATTEMPT.as_millis(),
        all = DEADLINE.as_millis(),
    );
    for i in 0..REPLICAS {
        let at = room.join(format!("r{i}"));
        text.push_str(&format!("[[replica]]\nname = \"r{i}\"\npath = \"{}\"\n", at.display()));
    }
    text
}

/// The program's processes of this run-time directory, with their names.
pub(crate) fn processes(run: &Path) -> Vec<(i32, String)> {
    let wanted = format!("FANFS_RUNTIME_DIR={}", run.display());
    processes_where("fanfs", "environ", |variable| variable == wanted)
}

/// The processes whose names begin with `name`, and that have such a string in this file of /proc.
fn processes_where(name: &str, file: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<(i32, String)> {
    let process = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let found = fs::read_to_string(entry.path().join("comm")).ok()?;
        if !found.starts_with(name) {
            return None;
        }
        let strings = fs::read(entry.path().join(file)).ok()?;
        let mut strings = strings.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        strings.any(|string| is_wanted(&string)).then(|| (pid, found.trim().to_owned()))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(process).collect()
}

/// Ends the program and the servers of the site in this directory.
pub(crate) fn kill_processes(room: &Path) {
    let is_server = |cmdline: &str| cmdline.contains(&*room.to_string_lossy());
    let servers = processes_where("bindfs", "cmdline", is_server);
    for (pid, _) in processes(&room.join("run")).into_iter().chain(servers) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        if Instant::now() > until {
            return Err(io::Error::other(format!("it never came to this: {what}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
