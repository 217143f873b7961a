//! The volume at a mount point, as commands find it: by its daemon's control socket, and
//! where no daemon answers by the mount table.
//!
//! *Invariant:* no command hangs on a mount that nothing serves, and none says "not mounted"
//! of a mount that is there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::Serialize;

use super::{Failure, absolute, printable};
use crate::control::{self, Status};
use crate::volume::mounts::MountTable;
use crate::volume::name::{self, shell_word};
use crate::volume::served::{Life, Served};
use crate::volume::survey::within;

/// How long a mount may take to say whether it is served.
const LIMIT: Duration = Duration::from_secs(3);

/// Between two questions to a mount whose daemon is being replaced.
const PAUSE: Duration = Duration::from_millis(50);

/// The mount point that `path` names, without a look at what is mounted there: that may
/// hang.
pub(super) fn named(path: &Path) -> PathBuf {
    let path = absolute(path);
    if let Some(served) = at(&path) {
        return served.mount_point;
    }
    let asked = path.clone();
    within(LIMIT, move || asked.canonicalize().ok()).flatten().unwrap_or(path)
}

fn at(path: &Path) -> Option<Served> {
    let table = MountTable::read().unwrap_or_default();
    table.at(path).and_then(Served::of)
}

/// A mount whose daemon does not answer this user.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unanswered {
    volume: String,
    #[serde(with = "name")]
    mount_point: PathBuf,
    daemon: Daemon,
    /// What to do.
    remedy: String,
}

/// What is known of a daemon that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Daemon {
    /// It has ended and left its mount.
    Dead,
    /// It runs, and answers neither here nor through the mount.
    Silent,
    /// It serves the mount, and has no control socket here.
    Unreachable,
    /// It is another user's: this one may not ask.
    OtherUser(u32),
}

impl Unanswered {
    fn new(served: Served) -> Self {
        let own = geteuid();
        let point = shell_word(&served.mount_point.to_string_lossy());
        let (daemon, remedy) = match served.life(LIMIT) {
            Life::Dead => {
                let (volume, again) = (shell_word(&served.volume), "then mount it again");
                let how = format!("fanfs umount {point}, {again}: fanfs mount {volume} {point}");
                (Daemon::Dead, how)
            }
            _ if served.user != own.as_raw() => {
                let how = match served.user {
                    0 => format!("ask root, or use sudo: sudo fanfs status {point}"),
                    user => format!("ask as that user: sudo -u '#{user}' fanfs status {point}"),
                };
                (Daemon::OtherUser(served.user), how)
            }
            Life::Silent => {
                let how = "its log may say why; fanfs umount --lazy detaches the mount".to_owned();
                (Daemon::Silent, how)
            }
            Life::Served => {
                let how = "compare FANFS_RUNTIME_DIR with that of the daemon".to_owned();
                (Daemon::Unreachable, how)
            }
        };
        Self { volume: served.volume, mount_point: served.mount_point, daemon, remedy }
    }

    /// What is wrong, on one line, without the mount point.
    fn state(&self) -> String {
        match self.daemon {
            Daemon::Dead => "its daemon has died".to_owned(),
            Daemon::Silent => "its daemon does not answer".to_owned(),
            Daemon::Unreachable => "its daemon has no control socket here".to_owned(),
            Daemon::OtherUser(0) => {
                "root mounted it, and only root may ask its daemon (permission denied)".to_owned()
            }
            Daemon::OtherUser(user) => {
                format!("user {user} mounted it, and only that user and root may ask its daemon")
            }
        }
    }

    /// On one line.
    pub(super) fn text(&self) -> String {
        let point = printable(&self.mount_point.to_string_lossy());
        let (volume, state) = (printable(&self.volume), self.state());
        format!("{volume} at {point}: {state}; {}", self.remedy)
    }

    /// Whether it is another user's, which is no fault of the volume.
    pub(super) fn is_another_users(&self) -> bool {
        matches!(self.daemon, Daemon::OtherUser(_))
    }
}

/// The state of the volume at `point`, which [`named`] has found.
///
/// # Errors
/// The mount that nothing answers for, or why there is none.
pub(super) fn status(point: &Path) -> Result<Status, Trouble> {
    let begun = Instant::now();
    loop {
        let error = match control::ask_status(&control::socket_path(point)) {
            Ok(status) => return Ok(status),
            Err(error) => error,
        };
        // One daemon follows another: the mount is served, and its socket is there soon.
        let is_changing = changes_hands(&error)
            && begun.elapsed() < LIMIT
            && at(point).is_some_and(|served| {
                served.user == geteuid().as_raw() && served.life(LIMIT) == Life::Served
            });
        if !is_changing {
            return Err(trouble(point, &error));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a daemon that is just being replaced may be why nothing answers.
fn changes_hands(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    let kinds =
        [K::NotFound, K::ConnectionRefused, K::ConnectionReset, K::BrokenPipe, K::UnexpectedEof];
    kinds.contains(&error.kind())
}

/// Why there is no answer.
pub(super) enum Trouble {
    /// There is a mount.
    Mount(Unanswered),
    /// There is none, or the daemon has refused.
    Other(Failure),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Mount(mount) => Failure::failed(mount.text()),
            Trouble::Other(failure) => failure,
        }
    }
}

/// Why asking the daemon at `point` failed with `error`.
pub(super) fn trouble(point: &Path, error: &io::Error) -> Trouble {
    use io::ErrorKind as K;
    let shown = point.display();
    let nothing_listens =
        matches!(error.kind(), K::NotFound | K::ConnectionRefused | K::PermissionDenied);
    let is_silent = matches!(error.kind(), K::WouldBlock | K::TimedOut | K::UnexpectedEof);
    if (nothing_listens || is_silent)
        && let Some(served) = at(point)
    {
        return Trouble::Mount(Unanswered::new(served));
    }
    Trouble::Other(Failure::failed(match nothing_listens {
        true => format!("no fanfs volume of this user is mounted at {shown}"),
        false => format!("{shown}: {error}"),
    }))
}

/// The volumes that are mounted: those whose daemons answer, and the others.
///
/// # Errors
/// Where the run-time directory cannot be read.
pub(super) fn all() -> io::Result<(Vec<Status>, Vec<Unanswered>)> {
    let sockets = match control::sockets() {
        // Another user's, by FANFS_RUNTIME_DIR.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        sockets => sockets?,
    };
    let answers: Vec<Status> =
        sockets.iter().filter_map(|socket| control::ask_status(socket).ok()).collect();
    let table = MountTable::read().unwrap_or_default();
    let own = geteuid().as_raw();
    // With a run-time directory of its own there may be other ones, whose mounts are theirs.
    let is_default = std::env::var_os("FANFS_RUNTIME_DIR").is_none_or(|dir| dir.is_empty());
    let silent = |served: &Served| {
        let is_here = sockets.contains(&control::socket_path(&served.mount_point));
        answers.iter().all(|status| status.mount_point != served.mount_point)
            && (is_here || is_default || served.user != own)
    };
    let unanswered = Served::all(&table).into_iter().filter(silent).map(Unanswered::new);
    // A mount that is served without a socket is a part of another command, as of bench.
    let unanswered = unanswered.filter(|mount| mount.daemon != Daemon::Unreachable).collect();
    Ok((answers, unanswered))
}
