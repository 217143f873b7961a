//! A directory with a volume in it, and the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;

const INSIDE: &str = "FANFS_TEST_INSIDE";
const RAN: &str = "the test ran";

/// The state of a daemon that does not answer, in the JSON output of `fanfs status`.
const SILENT: &str = "\"daemon\": \"silent\"";

/// Runs `body` in its own process: `starts` is the beginning of a command line that starts it, or
/// `None` where that is not possible, and the test passes.
#[allow(dead_code)]
pub(crate) fn in_a_process(
    test: &str,
    starts: impl FnOnce(PathBuf) -> Option<Command>,
    body: impl FnOnce(),
) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        // A child without a test of that name succeeds as well; this line shows that it ran.
        println!("{RAN}");
        return;
    }
    let Some(mut child) = starts(std::env::current_exe().unwrap()) else { return };
    let output = child.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} failed:\n{said}\n{errors}");
    assert!(said.contains(RAN), "{test} is not the test's name");
}

/// This process's mounts, as mountinfo has them. A mount point of another program may have any
/// bytes.
pub(crate) fn mount_table() -> String {
    let table = fs::read("/proc/thread-self/mountinfo").unwrap();
    String::from_utf8_lossy(&table).into_owned()
}

/// Two names of one tree (`tree`), two different trees (`other`), a mount point.
pub(crate) struct Room {
    dir: TempDir,
}

impl Room {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("fanfs-cli-").tempdir().unwrap();
        for sub in ["tree", "other", "mnt", "run"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        fs::write(dir.path().join("tree/hello"), "hello\n").unwrap();
        fs::write(dir.path().join("a-file"), "").unwrap();
        let room = Self { dir };
        room.volume("v.toml", "", "");
        room
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a volume over `tree`, twice, with more keys for both replicas and
    /// more tables.
    pub(crate) fn volume(&self, name: &str, replica: &str, more: &str) {
        let tree = self.path("tree");
        let (one, two) = (tree.display(), self.dir.path().join("tree2"));
        if !two.exists() {
            std::os::unix::fs::symlink(&tree, &two).unwrap();
        }
        let text = format!(
            "[volume]\nname = \"v\"\nmode = \"shared\"\n\
             [[replica]]\npath = \"{one}\"\nrequire_mount = false\n{replica}\n\
             [[replica]]\npath = \"{}\"\nrequire_mount = false\n{replica}\n{more}\n",
            two.display()
        );
        fs::write(self.path(name), text).unwrap();
    }

    /// The program, in this room.
    pub(crate) fn fanfs<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_fanfs")), args)
    }

    pub(crate) fn program<S: AsRef<std::ffi::OsStr>>(&self, program: &Path, args: &[S]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir.path()).env("FANFS_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Runs the program and expects success. On a busy machine a daemon may answer a query later
    /// than the program waits; then it is asked again. A mount may be in use for a moment by
    /// children that another test has started, which have all open files of this process until they
    /// execute their program; then it is unmounted again.
    pub(crate) fn expect<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Output {
        let until = Instant::now() + Duration::from_secs(60);
        let is_command = |name: &str| args.first().is_some_and(|first| first.as_ref() == name);
        loop {
            let output = self.fanfs(args).output().unwrap();
            let said = [&*output.stdout, &*output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let is_silent = said.contains("its daemon does not answer") || said.contains(SILENT);
            let is_in_use = said.contains("is in use: close the files");
            if output.status.success() {
                return output;
            }
            let is_passing = is_command("status") && is_silent || is_command("umount") && is_in_use;
            assert!(is_passing && Instant::now() < until, "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The mount's line in mountinfo.
    pub(crate) fn mounted(&self) -> Option<String> {
        let mnt = self.path("mnt").display().to_string();
        let table = mount_table();
        table.lines().find(|line| line.split(' ').nth(4) == Some(&mnt)).map(str::to_owned)
    }

    /// The daemons started in this room.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let wanted = format!("FANFS_RUNTIME_DIR={}", self.path("run").display());
        let process = |entry: fs::DirEntry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let ours = environment.split(|byte| *byte == 0).any(|var| var == wanted.as_bytes());
            let is_fanfs = name.starts_with("fanfs") || name.starts_with("mount.fanfs");
            // The launcher is a part of its daemon and ends with it.
            let is_fanfs = is_fanfs && name.trim() != "fanfs-launcher";
            (ours && is_fanfs).then_some(pid)
        };
        fs::read_dir("/proc").unwrap().filter_map(|entry| process(entry.ok()?)).collect()
    }

    /// The process of the mount that none of the others has started: its keeper, or the daemon if
    /// it has no keeper. A child of the daemon may have its name for a moment.
    pub(crate) fn first_process(&self) -> Pid {
        let all = self.daemons();
        let is_first = |pid: &i32| parent(*pid).is_none_or(|parent| !all.contains(&parent));
        let first = all.iter().copied().find(is_first);
        Pid::from_raw(first.expect("a daemon runs")).unwrap()
    }

    /// The daemon that a keeper has started.
    pub(crate) fn daemon_of(&self, keeper: Pid) -> Pid {
        let keeper = keeper.as_raw_nonzero().get();
        let daemon = self.daemons().into_iter().find(|pid| parent(*pid) == Some(keeper));
        Pid::from_raw(daemon.expect("the keeper keeps a daemon")).unwrap()
    }

    /// Soon nothing is mounted and no daemon runs.
    pub(crate) fn expect_gone(&self) {
        self.eventually("everything is gone", || {
            self.mounted().is_none() && self.daemons().is_empty()
        });
    }

    /// Waits until `holds`; the limit allows for a busy machine.
    pub(crate) fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < until, "it never came to this: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The process that started a process, if that still runs.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

impl Drop for Room {
    fn drop(&mut self) {
        while self.mounted().is_some() {
            if !Command::new("umount").arg("-l").arg(self.path("mnt")).status().unwrap().success() {
                break;
            }
        }
        for pid in self.daemons() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
