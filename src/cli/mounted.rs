//! How commands find the volume at a mount point: by its daemon's control socket, or by
//! the mount table if no daemon answers.
//!
//! *Invariant:* no command hangs on a mount without a daemon, and no command says "not
//! mounted" about a mount that exists.

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

/// How long a command waits for an answer from a mount.
const LIMIT: Duration = Duration::from_secs(3);

/// Time between two questions to a mount whose daemon is being replaced.
const PAUSE: Duration = Duration::from_millis(50);

/// The mount point that `path` names, from the mount table: a call on the path itself may
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
    /// A command, or other advice for the user.
    remedy: String,
}

/// The state of a daemon that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Daemon {
    /// It has died and left its mount.
    Dead,
    /// It runs, and answers neither here nor through the mount.
    Silent,
    /// It serves the mount, and has no control socket here.
    Unreachable,
    /// It belongs to this other user, and does not answer the caller.
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

    /// The state in words, without the mount point.
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

    /// State and remedy, on one line.
    pub(super) fn text(&self) -> String {
        let point = printable(&self.mount_point.to_string_lossy());
        let (volume, state) = (printable(&self.volume), self.state());
        format!("{volume} at {point}: {state}; {}", self.remedy)
    }

    /// Whether it belongs to another user: that is no fault of the volume.
    pub(super) fn is_another_users(&self) -> bool {
        matches!(self.daemon, Daemon::OtherUser(_))
    }
}

/// The status of the volume at `point`, a result of [`named`].
///
/// # Errors
/// The mount whose daemon does not answer, or why there is no mount.
pub(super) fn status(point: &Path) -> Result<Status, Trouble> {
    let begun = Instant::now();
    loop {
        let error = match control::ask_status(&control::socket_path(point)) {
            Ok(status) => return Ok(status),
            Err(error) => error,
        };
        // During a handover the mount is served, and its control socket appears soon.
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

/// Whether a handover may be the reason for this error.
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
    /// There is no mount, or the daemon has refused.
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

/// The mounted volumes: those with a daemon that answers, and the others.
///
/// # Errors
/// The run-time directory cannot be read.
pub(super) fn all() -> io::Result<(Vec<Status>, Vec<Unanswered>)> {
    let sockets = match control::sockets() {
        // FANFS_RUNTIME_DIR names another user's directory.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        sockets => sockets?,
    };
    let answers: Vec<Status> =
        sockets.iter().filter_map(|socket| control::ask_status(socket).ok()).collect();
    let table = MountTable::read().unwrap_or_default();
    let own = geteuid().as_raw();
    // If FANFS_RUNTIME_DIR is set, other directories may exist, each with its own mounts.
    let is_default = std::env::var_os("FANFS_RUNTIME_DIR").is_none_or(|dir| dir.is_empty());
    let silent = |served: &Served| {
        let is_here = sockets.contains(&control::socket_path(&served.mount_point));
        answers.iter().all(|status| status.mount_point != served.mount_point)
            && (is_here || is_default || served.user != own)
    };
    let unanswered = Served::all(&table).into_iter().filter(silent).map(Unanswered::new);
    // A served mount without a socket belongs to another command, such as `fanfs bench`.
    let unanswered = unanswered.filter(|mount| mount.daemon != Daemon::Unreachable).collect();
    Ok((answers, unanswered))
}
