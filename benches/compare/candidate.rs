//! What is compared, and how each is mounted over the same replicas.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Failure;
use super::daemon::{Daemon, raise_readahead};
use super::null::{self, FILE};
use super::options::Options;
use super::room::Room;

/// Who caches the file's data, and so what a candidate may be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// No FUSE at all.
    Raw,
    /// Every read reaches the daemon.
    Direct,
    /// The kernel, or it may be the kernel.
    Cached,
}

impl Mode {
    /// The floor and the rival of the same mode.
    pub(super) fn references(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Raw => [None, None],
            Self::Direct => [Some("null-direct"), Some("mergerfs-direct")],
            Self::Cached => [Some("null-kernel"), Some("mergerfs-cached")],
        }
    }
}

#[derive(Clone, Debug)]
enum Server {
    /// The replica itself.
    Raw,
    /// All replicas at once, one reader each.
    RawSum,
    Null(&'static str),
    Mergerfs(&'static str),
    Bindfs(&'static [&'static str]),
    Fanfs {
        program: PathBuf,
        read: &'static str,
    },
}

/// One row of the tables.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) mode: Mode,
    server: Server,
}

/// A candidate that can be read from.
pub(super) struct Mounted {
    pub(super) candidate: Candidate,
    /// One, or one for each replica.
    pub(super) files: Vec<PathBuf>,
    pub(super) daemon: Option<Daemon>,
}

/// fanfs's cache policies and what selects them.
const POLICIES: [(&str, Mode, &str); 4] = [
    ("direct", Mode::Direct, "cache = \"direct\""),
    ("kernel", Mode::Cached, "cache = \"kernel\""),
    ("auto", Mode::Cached, "cache = \"auto\""),
    ("passthrough", Mode::Cached, "cache = \"kernel\"\npassthrough = \"whole-file\""),
];

/// All that there are, in the tables' order.
pub(super) fn all(options: &Options) -> Vec<Candidate> {
    let row = |name: &str, mode, server| Candidate { name: name.to_owned(), mode, server };
    let mut rows = vec![
        row("raw", Mode::Raw, Server::Raw),
        row("raw-sum", Mode::Raw, Server::RawSum),
        row("null-direct", Mode::Direct, Server::Null("direct")),
        row("null-kernel", Mode::Cached, Server::Null("kernel")),
        row("mergerfs-direct", Mode::Direct, Server::Mergerfs("ro,cache.files=off,direct_io=true")),
        row("mergerfs-cached", Mode::Cached, Server::Mergerfs("ro,cache.files=auto-full")),
        row("bindfs-direct", Mode::Direct, Server::Bindfs(&["--direct-io"])),
        row("bindfs", Mode::Cached, Server::Bindfs(&[])),
    ];
    for (build, program) in options.builds() {
        for (policy, mode, read) in POLICIES {
            let server = Server::Fanfs { program: program.clone(), read };
            rows.push(row(&format!("{build}-{policy}"), mode, server));
        }
    }
    rows
}

impl Candidate {
    /// Whether `word` is its name, or what stands before a dash in it.
    pub(super) fn is(&self, word: &str) -> bool {
        let rest = self.name.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    pub(super) fn is_fanfs(&self) -> bool {
        matches!(self.server, Server::Fanfs { .. })
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.server, Server::Null(_))
    }

    /// Whether more replicas are of no use to it.
    pub(super) fn reads_one_replica(&self) -> bool {
        matches!(self.server, Server::Fanfs { read, .. } if read.contains("passthrough"))
    }

    pub(super) fn needs_several(&self) -> bool {
        matches!(self.server, Server::RawSum)
    }

    /// Whether it can take part here.
    ///
    /// # Errors
    /// Why not, in a few words.
    pub(super) fn check(&self, room: &Room) -> Result<(), String> {
        match &self.server {
            Server::Raw | Server::RawSum | Server::Null(_) => Ok(()),
            Server::Mergerfs(_) => installed("mergerfs").map(drop),
            Server::Bindfs(options) => {
                let help = installed("bindfs")?;
                match options.iter().find(|option| !help.contains(**option)) {
                    Some(option) => Err(format!("this bindfs has no {option}")),
                    None => Ok(()),
                }
            }
            Server::Fanfs { program, read } => {
                // Any directory does: only what the configuration says counts.
                let volume = volume_file(room, &self.name, read, &[room.path().to_owned()], "")
                    .map_err(|failure| failure.0)?;
                let output = Command::new(program).arg("check").arg(volume).output();
                let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
                match output.status.code() {
                    Some(0 | 1) => Ok(()),
                    _ => Err(format!("this build refuses it: {}", refusal(&output.stderr))),
                }
            }
        }
    }

    /// Mounts it over `replicas`. `replica_keys` goes into each replica's table
    /// of fanfs's configuration.
    pub(super) fn start(
        &self,
        room: &Room,
        replicas: &[PathBuf],
        replica_keys: &str,
        size: u64,
    ) -> Result<Mounted, Failure> {
        let files = |dirs: &[PathBuf]| dirs.iter().map(|dir| dir.join(FILE)).collect();
        let mounted = |files, daemon| Mounted { candidate: self.clone(), files, daemon };
        let mut command = match &self.server {
            Server::Raw => return Ok(mounted(files(&replicas[..1]), None)),
            Server::RawSum => return Ok(mounted(files(replicas), None)),
            Server::Null(cache) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["null", "--cache", cache, "--size", &size.to_string(), "--"]);
                command
            }
            Server::Mergerfs(list) => {
                let mut command = Command::new("mergerfs");
                let dirs: Vec<_> = replicas.iter().map(|dir| dir.display().to_string()).collect();
                command.args(["-f", "-o", list, &dirs.join(":")]);
                command
            }
            Server::Bindfs(options) => {
                let mut command = Command::new("bindfs");
                command.args(["-f", "-o", "ro"]).args(*options).arg(&replicas[0]);
                command
            }
            Server::Fanfs { program, read } => {
                let volume = volume_file(room, &self.name, read, replicas, replica_keys)?;
                let mut command = Command::new(program);
                command.env("FANFS_RUNTIME_DIR", room.path().join("run"));
                command.args(["mount", "--foreground", "--"]).arg(volume);
                command
            }
        };
        let mount_point = room.mount_point(&self.name)?;
        let log = room.path().join(format!("{}.log", self.name));
        let daemon = Daemon::start(command.arg(&mount_point), &mount_point, &log)?;
        if self.mode == Mode::Cached && !self.is_fanfs() {
            raise_readahead(&mount_point, null::defaults().fuse.kernel_readahead)?;
        }
        Ok(mounted(files(&[mount_point]), Some(daemon)))
    }
}

/// A program's help text, if there is such a program.
fn installed(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--help").output();
    let output = output.map_err(|_| format!("{program} is not installed"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr))
}

/// What is wrong with a volume's file, without where it is and what else there
/// could be.
fn refusal(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().next().unwrap_or("without a reason");
    let reason = line.split_once(": key ").map_or(line, |(_, reason)| reason);
    reason.split(';').next().unwrap_or(reason).to_owned()
}

fn volume_file(
    room: &Room,
    name: &str,
    read: &str,
    replicas: &[PathBuf],
    replica_keys: &str,
) -> Result<PathBuf, Failure> {
    let mut text = "[volume]\nname = \"compare\"\nmode = \"copies\"\n".to_owned();
    for dir in replicas {
        // The tmpfs is mounted above them.
        let _ = write!(
            text,
            "[[replica]]\npath = {}\nrequire_mount = false\n{replica_keys}",
            quoted(dir)
        );
    }
    let _ = writeln!(text, "[read]\n{read}");
    let path = room.path().join(format!("{name}.toml"));
    std::fs::write(&path, text)?;
    Ok(path)
}

fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}
