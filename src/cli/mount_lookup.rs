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

use super::volume_name::has_named_config;
use super::{Failure, printable};
use crate::control;
use crate::mount_table::MountTable;
use crate::mount_table::fanfs_mounts::{DaemonState, FanfsMount};
use crate::status::{DaemonInfo, KeeperState, Status};
use crate::volume::{path_serde, shell_word};

/// How long a command waits for an answer from a mount.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval between requests to a mount whose daemon is being replaced.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The fanfs mount at `path`, which must be canonical.
pub(super) fn find_mount(path: &Path) -> Option<FanfsMount> {
    let table = MountTable::read().unwrap_or_default();
    table.top_mount_at(path).and_then(FanfsMount::from_mount)
}

/// A mount whose daemon does not answer this user.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnansweredMount {
    volume: String,
    #[serde(with = "path_serde")]
    mount_point: PathBuf,
    daemon: UnansweredReason,
    /// A command, or other advice for the user.
    remedy: String,
}

/// The state of a daemon that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum UnansweredReason {
    /// It has died and left its mount.
    Dead,
    /// It runs, but answers neither on its control socket nor through the mount.
    Silent,
    /// It serves the mount, but has no control socket in this run-time directory.
    Unreachable,
    /// It is of a version whose status this program cannot read.
    OtherVersion,
    /// It belongs to this other user, and does not answer the caller's requests.
    OtherUser(u32),
}

impl UnansweredMount {
    fn new(served: FanfsMount) -> Self {
        let own = geteuid();
        let point = shell_word(&served.mount_point.to_string_lossy());
        let (daemon, remedy) = match served.daemon_state(ANSWER_TIMEOUT) {
            DaemonState::Dead => {
                let volume = shell_word(&served.volume);
                let mounter = match served.uid {
                    user if own.is_root() && user != 0 => format!("sudo -u '#{user}' "),
                    _ => String::new(),
                };
                // Only the kernel's mount table is left, and it has only the name.
                let (file, which) = match has_named_config(&served.volume) {
                    true => (volume, String::new()),
                    false => {
                        ("FILE".to_owned(), format!("; FILE is the configuration of {volume}"))
                    }
                };
                let mount = format!("{mounter}fanfs mount {file} {point}{which}");
                let how = format!("fanfs umount {point}, then mount it again: {mount}");
                (UnansweredReason::Dead, how)
            }
            _ if served.uid != own.as_raw() => {
                let how = match served.uid {
                    0 => format!("use sudo, or ask root: sudo fanfs status {point}"),
                    user => format!("run it as that user: sudo -u '#{user}' fanfs status {point}"),
                };
                (UnansweredReason::OtherUser(served.uid), how)
            }
            DaemonState::Unresponsive => {
                let how = "see its log; fanfs umount --lazy detaches the mount".to_owned();
                (UnansweredReason::Silent, how)
            }
            DaemonState::Serving => {
                let how = format!(
                    "compare FANFS_RUNTIME_DIR with that of the daemon; if the control socket was \
                     removed, use fanfs umount {point} and mount it again"
                );
                (UnansweredReason::Unreachable, how)
            }
        };
        Self { volume: served.volume, mount_point: served.mount_point, daemon, remedy }
    }

    /// A mount whose daemon answers in a format that this program does not know.
    fn of_other_version(served: FanfsMount) -> Self {
        let point = shell_word(&served.mount_point.to_string_lossy());
        Self {
            volume: served.volume,
            mount_point: served.mount_point,
            daemon: UnansweredReason::OtherVersion,
            remedy: format!("use its program, or let this one take over: fanfs upgrade {point}"),
        }
    }

    /// The state in words, without the mount point.
    fn state_text(&self) -> String {
        match self.daemon {
            UnansweredReason::Dead => "its daemon has died".to_owned(),
            UnansweredReason::Silent => "its daemon does not answer".to_owned(),
            UnansweredReason::Unreachable => "its daemon has no control socket here".to_owned(),
            UnansweredReason::OtherVersion => {
                "its daemon is of another version of fanfs, with another format of the status"
                    .to_owned()
            }
            UnansweredReason::OtherUser(0) => {
                "root mounted it, and only root may query its daemon (permission denied)".to_owned()
            }
            UnansweredReason::OtherUser(user) if geteuid().is_root() => {
                format!(
                    "user {user} mounted it, and its control socket is in that user's directory"
                )
            }
            UnansweredReason::OtherUser(user) => {
                format!("user {user} mounted it, and only that user and root may query its daemon")
            }
        }
    }

    /// The mount, its state and the remedy, on one line.
    pub(super) fn text(&self) -> String {
        let point = printable(&self.mount_point.to_string_lossy());
        let volume = printable(&self.volume);
        let state = self.state_text();
        format!("{volume} at {point}: {state}; {}", self.remedy)
    }

    /// Whether it belongs to another user: then the volume may well be healthy.
    pub(super) fn has_other_owner(&self) -> bool {
        matches!(self.daemon, UnansweredReason::OtherUser(_))
    }
}

/// The status of the volume at `point`, its mount point as the kernel has it.
///
/// # Errors
/// The mount whose daemon does not answer, or why there is no mount.
pub(super) fn query_mount_status(point: &Path) -> Result<Status, StatusError> {
    query_mount(point, control::query_status)
}

/// The daemon of the volume at `point`, which may be of another version.
///
/// # Errors
/// Those of [`query_mount_status`].
pub(super) fn query_mount_daemon(point: &Path) -> Result<DaemonInfo, StatusError> {
    query_mount(point, control::query_daemon)
}

fn query_mount<T>(point: &Path, query: fn(&Path) -> io::Result<T>) -> Result<T, StatusError> {
    let begun = Instant::now();
    loop {
        let error = match query(&control::socket_path(point)) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        // During a handover the mount is served, and its control socket appears soon.
        let is_changing = is_handover_error(&error)
            && begun.elapsed() < ANSWER_TIMEOUT
            && find_mount(point).is_some_and(|served| {
                served.uid == geteuid().as_raw()
                    && served.daemon_state(ANSWER_TIMEOUT) == DaemonState::Serving
            });
        if !is_changing {
            return Err(status_error(point, &error));
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Whether a handover may be the reason for this error.
fn is_handover_error(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    let kinds =
        [K::NotFound, K::ConnectionRefused, K::ConnectionReset, K::BrokenPipe, K::UnexpectedEof];
    kinds.contains(&error.kind())
}

/// Why there is no answer.
pub(super) enum StatusError {
    /// There is a mount, but its daemon does not answer.
    Unanswered(UnansweredMount),
    /// There is no mount, or the daemon refused the request.
    Failed(Failure),
}

impl From<StatusError> for Failure {
    fn from(trouble: StatusError) -> Self {
        match trouble {
            StatusError::Unanswered(mount) => Failure::failed(mount.text()),
            StatusError::Failed(failure) => failure,
        }
    }
}

/// The reason why a request to the daemon at `point` failed with `error`.
pub(super) fn status_error(point: &Path, error: &io::Error) -> StatusError {
    use io::ErrorKind as K;
    let shown = point.display();
    let nothing_listens =
        matches!(error.kind(), K::NotFound | K::ConnectionRefused | K::PermissionDenied);
    // A daemon that dies resets the connections that it has not accepted yet.
    let is_silent = matches!(
        error.kind(),
        K::WouldBlock | K::TimedOut | K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe
    );
    if (nothing_listens || is_silent)
        && let Some(served) = find_mount(point)
    {
        return StatusError::Unanswered(UnansweredMount::new(served));
    }
    if error.kind() == K::Unsupported
        && let Some(served) = find_mount(point)
    {
        return StatusError::Unanswered(UnansweredMount::of_other_version(served));
    }
    StatusError::Failed(Failure::failed(match nothing_listens {
        true => format!("no fanfs volume of this user is mounted at {shown}"),
        false => format!("{shown}: {error}"),
    }))
}

/// The mounted volumes.
#[derive(Default)]
pub(super) struct MountedVolumes {
    /// The status of each volume whose daemon answers.
    pub(super) answers: Vec<Status>,
    /// The volumes whose daemons do not answer.
    pub(super) unanswered: Vec<UnansweredMount>,
}

/// The results of `query` for all `items`, in their order. The calls run at the same time, because
/// each may take up to its timeout.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], query: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let query = &query;
        let start = |item| scope.spawn(move || query(item));
        let threads: Vec<_> = items.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a query panicked")).collect()
    })
}

/// All mounted volumes that this user can see.
///
/// # Errors
/// The run-time directory cannot be read.
pub(super) fn list_volumes() -> io::Result<MountedVolumes> {
    let sockets = match control::list_sockets() {
        // FANFS_RUNTIME_DIR may name another user's directory.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        sockets => sockets?,
    };
    let query = |socket: &PathBuf| control::query_status(socket).ok();
    let mut answers: Vec<Status> = in_parallel(&sockets, query).into_iter().flatten().collect();
    let table = MountTable::read().unwrap_or_default();
    let own = geteuid().as_raw();
    // If FANFS_RUNTIME_DIR is set, other directories may exist, each with its own mounts. If
    // the directory is gone, it cannot show which mounts are its own.
    let is_default = std::env::var_os("FANFS_RUNTIME_DIR").is_none_or(|dir| dir.is_empty());
    let may_be_any = is_default || !control::runtime_dir().exists();
    let is_silent = |served: &FanfsMount| {
        answers.iter().all(|status| status.mount_point != served.mount_point)
            && (may_be_any || served.uid != own || has_runtime_files(&served.mount_point))
    };
    let silent: Vec<FanfsMount> =
        FanfsMount::all_visible(&table).into_iter().filter(is_silent).collect();
    let found = in_parallel(&silent, |served| retry_unanswered(served.clone()));
    let mut unanswered = Vec::new();
    for mount in found.into_iter().flatten() {
        match mount {
            Ok(status) => answers.push(*status),
            Err(mount) => unanswered.push(mount),
        }
    }
    Ok(MountedVolumes { answers, unanswered })
}

/// The reason why this user may not unmount the volume at `point`, if another user mounted it.
pub(super) fn unmount_denied_reason(point: &Path) -> Option<String> {
    let served = find_mount(point)?;
    let own = geteuid();
    if own.is_root() || served.uid == own.as_raw() {
        return None;
    }
    let shown = printable(&served.mount_point.to_string_lossy());
    let word = shell_word(&served.mount_point.to_string_lossy());
    let volume = printable(&served.volume);
    Some(match served.uid {
        0 => format!(
            "{volume} at {shown}: root mounted it, and only root may unmount it (permission \
             denied); use sudo, or ask root: sudo fanfs umount {word}"
        ),
        user => format!(
            "{volume} at {shown}: user {user} mounted it, and only that user and root may unmount \
             it; run it as that user: sudo -u '#{user}' fanfs umount {word}"
        ),
    })
}

/// Mount points of the volume whose keepers have died.
pub(super) fn unsupervised_mounts(volume: &str) -> Vec<String> {
    let sockets = control::list_sockets().unwrap_or_default();
    let answers = sockets.iter().filter_map(|socket| control::query_daemon(socket).ok());
    let unkept =
        answers.filter(|one| one.volume == volume && one.keeper == Some(KeeperState::Gone));
    unkept.map(|one| one.mount_point.display().to_string()).collect()
}

/// What the volume's daemons answer.
pub(super) fn statuses_of_volume(volume: &str) -> Vec<Status> {
    let sockets = control::list_sockets().unwrap_or_default();
    let statuses = sockets.iter().filter_map(|socket| control::query_status(socket).ok());
    statuses.filter(|status| status.volume == volume).collect()
}

/// Whether a mount whose daemon does not answer belongs to this run-time directory, or is dead.
pub(super) fn is_local_or_dead(served: &FanfsMount) -> bool {
    has_runtime_files(&served.mount_point)
        || served.daemon_state(ANSWER_TIMEOUT) == DaemonState::Dead
}

/// Whether the run-time directory has any file of the mount's daemon.
fn has_runtime_files(mount_point: &Path) -> bool {
    [control::socket_path, control::journal_path, control::log_path]
        .iter()
        .any(|path| path(mount_point).exists())
}

/// Retries a mount that has not answered, if its daemon serves it: a daemon that starts, ends
/// or is being replaced has no control socket for a moment. `None` if there is nothing to
/// report.
fn retry_unanswered(served: FanfsMount) -> Option<Result<Box<Status>, UnansweredMount>> {
    let point = served.mount_point.clone();
    let is_private = served.is_private;
    let mount = UnansweredMount::new(served);
    if mount.daemon != UnansweredReason::Unreachable {
        return Some(Err(mount));
    }
    if is_private {
        return None;
    }
    match query_mount_status(&point) {
        Ok(status) => Some(Ok(Box::new(status))),
        Err(StatusError::Unanswered(mount)) => Some(Err(mount)),
        Err(StatusError::Failed(_)) => find_mount(&point).map(|_| Err(mount)),
    }
}
