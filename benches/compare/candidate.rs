//! The candidates of the comparison, and how each is mounted over the same replicas.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Failure;
use super::daemon::{Daemon, raise_readahead};
use super::null::{self, FILE};
use super::options::Options;
use super::room::Room;

/// The cache that holds the file's data. It decides which candidates are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// No FUSE at all.
    Raw,
    /// Every read reaches the daemon.
    Direct,
    /// The kernel caches the data, or may cache it.
    Cached,
}

impl Mode {
    /// The two floors, and the competitor with the same cache mode.
    pub(super) fn references(self) -> [Option<&'static str>; 3] {
        match self {
            Self::Raw => [None; 3],
            Self::Direct => ["null-direct", "memory-direct", "mergerfs-direct"].map(Some),
            Self::Cached => ["null-kernel", "memory-kernel", "mergerfs-cached"].map(Some),
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
    /// The null server with a clone of the device for each thread.
    Clone(&'static str),
    /// The null server with the replica's bytes in its memory.
    Memory(&'static str),
    Mergerfs(&'static str),
    Bindfs(&'static [&'static str]),
    Fanfs {
        program: PathBuf,
        read: &'static str,
        /// A table of the configuration and its content.
        other: Option<(String, String)>,
    },
}

/// One row of the tables.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) mode: Mode,
    /// Its name without the varied setting.
    base: String,
    server: Server,
}

/// A candidate that can be read from.
pub(super) struct Mounted {
    pub(super) candidate: Candidate,
    /// One mount point, or one for each replica.
    pub(super) files: Vec<PathBuf>,
    pub(super) daemon: Option<Daemon>,
}

/// fanfs's cache policies, each with the setting that selects it.
const POLICIES: [(&str, Mode, &str); 4] = [
    ("direct", Mode::Direct, "cache = \"direct\""),
    ("kernel", Mode::Cached, "cache = \"kernel\""),
    ("auto", Mode::Cached, "cache = \"auto\""),
    ("passthrough", Mode::Cached, "cache = \"kernel\"\npassthrough = \"whole-file\""),
];

/// All candidates, in the tables' order.
pub(super) fn all(options: &Options) -> Vec<Candidate> {
    let row = |name: &str, mode, server| Candidate {
        name: name.to_owned(),
        base: name.to_owned(),
        mode,
        server,
    };
    let mut rows = vec![
        row("raw", Mode::Raw, Server::Raw),
        row("raw-sum", Mode::Raw, Server::RawSum),
        row("null-direct", Mode::Direct, Server::Null("direct")),
        row("null-kernel", Mode::Cached, Server::Null("kernel")),
        row("clone-direct", Mode::Direct, Server::Clone("direct")),
        row("clone-kernel", Mode::Cached, Server::Clone("kernel")),
        row("memory-direct", Mode::Direct, Server::Memory("direct")),
        row("memory-kernel", Mode::Cached, Server::Memory("kernel")),
        row("mergerfs-direct", Mode::Direct, Server::Mergerfs("ro,cache.files=off,direct_io=true")),
        row("mergerfs-cached", Mode::Cached, Server::Mergerfs("ro,cache.files=auto-full")),
        row("bindfs-direct", Mode::Direct, Server::Bindfs(&["--direct-io"])),
        row("bindfs", Mode::Cached, Server::Bindfs(&[])),
    ];
    for (build, program) in options.builds() {
        for (policy, mode, read) in POLICIES {
            let base = format!("{build}-{policy}");
            let server = |other| Server::Fanfs { program: program.clone(), read, other };
            rows.push(row(&base, mode, server(None)));
            for (name, other) in variations(options) {
                let name = format!("{build}@{name}-{policy}");
                rows.push(Candidate {
                    name,
                    base: base.clone(),
                    mode,
                    server: server(Some(other)),
                });
            }
        }
    }
    rows
}

/// A varied setting: a name, and the table with its content.
fn variations(options: &Options) -> impl Iterator<Item = (String, (String, String))> {
    options.vary.iter().flat_map(|vary| {
        vary.values.iter().map(|value| {
            let is_bare = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
            let written = if is_bare { value.clone() } else { format!("\"{value}\"") };
            let line = format!("{} = {written}\n", vary.key);
            (format!("{}={value}", vary.key), (vary.table.clone(), line))
        })
    })
}

impl Candidate {
    /// Whether `word` is its name, or the part of the name before a dash.
    pub(super) fn is(&self, word: &str) -> bool {
        let rest = self.base.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    pub(super) fn is_fanfs(&self) -> bool {
        matches!(self.server, Server::Fanfs { .. })
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.server, Server::Null(_) | Server::Clone(_))
    }

    /// Whether its server has the whole file in its memory.
    pub(super) fn holds_the_file(&self) -> bool {
        matches!(self.server, Server::Memory(_))
    }

    /// Whether it takes part only if named.
    pub(super) fn is_asked_for(&self) -> bool {
        matches!(self.server, Server::Clone(_))
    }

    /// Whether it cannot use more than one replica.
    pub(super) fn reads_one_replica(&self) -> bool {
        matches!(self.server, Server::Fanfs { read, .. } if read.contains("passthrough"))
    }

    pub(super) fn needs_several(&self) -> bool {
        matches!(self.server, Server::RawSum)
    }

    /// Whether it can take part here.
    ///
    /// # Errors
    /// The reason why it cannot, in a few words.
    pub(super) fn check(&self, room: &Room) -> Result<(), String> {
        match &self.server {
            Server::Raw
            | Server::RawSum
            | Server::Null(_)
            | Server::Clone(_)
            | Server::Memory(_) => Ok(()),
            Server::Mergerfs(_) => installed("mergerfs").map(drop),
            Server::Bindfs(options) => {
                let help = installed("bindfs")?;
                match options.iter().find(|option| !help.contains(**option)) {
                    Some(option) => Err(format!("this bindfs has no {option}")),
                    None => Ok(()),
                }
            }
            Server::Fanfs { program, read, other } => {
                // Any directory works: only the configuration counts.
                let volume = volume_file(
                    room,
                    &self.name,
                    (read, other.as_ref()),
                    &[room.path().to_owned()],
                    "",
                )
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

    /// Mounts it over `replicas`. `replica_keys` goes into each replica's table of fanfs's
    /// configuration.
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
            Server::Null(cache) | Server::Clone(cache) | Server::Memory(cache) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["null", "--cache", cache, "--size", &size.to_string()]);
                match self.server {
                    Server::Memory(_) => {
                        command.arg("--content").arg(replicas[0].join(FILE));
                    }
                    Server::Clone(_) => {
                        command.arg("--clone-fd");
                    }
                    _ => {}
                }
                command.arg("--");
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
            Server::Fanfs { program, read, other } => {
                let read = (*read, other.as_ref());
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

/// A program's help text, if the program is installed.
fn installed(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--help").output();
    let output = output.map_err(|_| format!("{program} is not installed"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr))
}

/// The error in a volume's file, without its position and without suggestions.
fn refusal(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().next().unwrap_or("without a reason");
    let reason = line.split_once(": key ").map_or(line, |(_, reason)| reason);
    reason.split(';').next().unwrap_or(reason).to_owned()
}

fn volume_file(
    room: &Room,
    name: &str,
    (read, other): (&str, Option<&(String, String)>),
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
    match other {
        Some((table, line)) if table == "read" => text.push_str(line),
        Some((table, line)) => {
            let _ = write!(text, "[{table}]\n{line}");
        }
        None => {}
    }
    let path = room.path().join(format!("{name}.toml"));
    std::fs::write(&path, text)?;
    Ok(path)
}

fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}
