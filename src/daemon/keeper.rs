//! A process that keeps a mount alive when its daemon dies.
//!
//! The kernel keeps a mount while any process has its FUSE device open, and requests wait.
//! So the keeper, which never touches a replica, keeps the device open as well. When the
//! daemon dies by a signal or a panic, the keeper starts another one. That daemon goes on
//! with the device and with the journal of the first ([`crate::fs`]). The keeper also
//! notices a dead daemon whose threads hang in a replica and hold its descriptors open.
//!
//! If no daemon can go on, the keeper starts one that replaces the mount. The dead mount stays
//! until then, and calls on it fail: otherwise programs would write to the directory beneath.
//!
//! If daemons die too often, the keeper gives the mount up and leaves it dead: [`Restarts`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::former::Former;
use super::handover::{Again, this_program};
use super::kept::{FromKeeper, ToKeeper};
use super::link::{Link, MOST as MOST_WITH_ONE};
use super::mount_point::fanfs_at;
use super::replacing::abort_at;
use crate::fuse::detach;

/// How a kept mount came to its end.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The daemon could not mount.
    #[error("{why}")]
    Failed {
        /// What it said.
        why: String,
        /// Whether the configuration or its usage is wrong.
        usage: bool,
    },
    /// It died too often.
    #[error(
        "the daemon of {at} died {MOST} times within {} s and is not started again; its log may \
         say why; fanfs umount {at}, then mount it again",
        WITHIN.as_secs()
    )]
    TooOften {
        /// The mount point.
        at: String,
    },
    /// Processes or descriptors.
    #[error("the keeper: {0}")]
    System(#[from] io::Error),
}

/// So many times within so long a daemon is started again.
const MOST: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

/// The earlier daemons, for the next one: sent with the device.
const MOST_ALONG: usize = MOST_WITH_ONE - 1;

/// How often the keeper checks that the daemon is alive.
const LOOKED_AFTER: Duration = Duration::from_millis(250);

/// Time between two attempts to replace a dead mount.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a daemon may take to end when it is told to; it gives what is under way
/// three seconds, and a replica that hangs may keep one from starting.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// When daemons were started again.
#[derive(Default)]
struct Restarts(Vec<Instant>);

impl Restarts {
    /// Whether to start another one `now`.
    fn allow(&mut self, now: Instant) -> bool {
        self.0.retain(|at| now.saturating_duration_since(*at) < WITHIN);
        self.0.push(now);
        self.0.len() <= MOST
    }
}

/// What the keeper knows.
struct Keeping {
    program: PathBuf,
    again: Again,
    /// The device of the mount, as long as a daemon may go on with it.
    device: Option<OwnedFd>,
    /// The device number of the mount.
    number: Option<(u32, u32)>,
    /// Why the last daemon could not replace the mount.
    why: String,
    restarts: Restarts,
    /// Process id of the daemon that serves now.
    daemon: u32,
    /// All daemons that have served and have not ended.
    former: Former,
}

/// What came of a daemon.
enum End {
    /// It is unmounted.
    Done,
    /// It is dead.
    Died,
    /// It could not go on with the mount of the one before.
    CannotGoOn,
    /// It could not replace the dead mount.
    CannotReplace,
}

/// Keeps the mount of the daemon that `again` starts; returns when it is unmounted.
/// `ready` is called when it is mounted for the first time. SIGTERM and SIGINT
/// unmount.
///
/// # Errors
/// [`KeeperError`]; what was mounted is a dead mount then.
pub fn keep(again: Again, ready: impl FnOnce()) -> Result<(), KeeperError> {
    // Successors of its daemon are this process's children when that one has ended.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(io::Error::from)?;
    let mut keeping = Keeping {
        program: this_program(),
        again,
        device: None,
        number: None,
        why: String::new(),
        restarts: Restarts::default(),
        daemon: 0,
        former: Former::default(),
    };
    let signals = Signals::listen(keeping.again.mount_point.clone())?;
    let mut ready = Some(ready);
    loop {
        let link = keeping.start()?;
        signals.pass_on_to(link.again()?);
        match keeping.hear(&link, &mut ready)? {
            End::Done => return Ok(()),
            End::Died if keeping.device.is_none() && keeping.number.is_none() => {
                let why = "the daemon ended without a word; its log may say why".to_owned();
                return Err(KeeperError::Failed { why, usage: false });
            }
            End::Died => tracing::warn!("the daemon has died"),
            End::CannotGoOn => {
                keeping.end_connection();
                if !keeping.is_mounted() {
                    tracing::info!("the mount was unmounted and is not replaced");
                    return Ok(());
                }
            }
            // It is alive and well; the reason may go away.
            End::CannotReplace if keeping.pause(&signals) => continue,
            End::CannotReplace => return Ok(()),
        }
        reap();
        if !keeping.restarts.allow(Instant::now()) {
            keeping.end_connection();
            let at = keeping.again.mount_point.display().to_string();
            let error = KeeperError::TooOften { at };
            tracing::error!("{error}");
            return Err(error);
        }
        tracing::warn!("the daemon is started again");
    }
}

impl Keeping {
    fn start(&mut self) -> io::Result<Link> {
        let (link, theirs) = Link::pair()?;
        let program = if self.program.exists() { self.program.clone() } else { this_program() };
        let mut command = self.again.command(&program, "--kept");
        // It is reaped with all others.
        self.daemon = command.stdin(Stdio::from(theirs)).spawn()?.id();
        self.former.tidy();
        let mut along = self.former.left();
        along.truncate(MOST_ALONG);
        match (&self.device, self.number) {
            (Some(device), _) => {
                along.push(device.as_fd());
                link.say(&FromKeeper::GoOn, &along)?;
            }
            (None, Some(dead)) => link.say(&FromKeeper::Replace { dead }, &along)?,
            (None, None) => link.say(&FromKeeper::Begin, &[])?,
        }
        self.serves(self.daemon);
        Ok(link)
    }

    /// This process serves the mount from now on. It lives.
    fn serves(&mut self, pid: u32) {
        self.daemon = pid;
        self.former.tidy();
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
            && let Err(error) = self.former.add(pid)
        {
            tracing::debug!(%error, "the end of the daemon's threads cannot be seen");
        }
    }

    fn hear(&mut self, link: &Link, ready: &mut Option<impl FnOnce()>) -> Result<End, KeeperError> {
        let mut is_dying = false;
        loop {
            match link.hear(Some(LOOKED_AFTER)) {
                // Only the second check in a row counts: by then its last message has arrived,
                // and usually the end of the link.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if is_dying && has_died(self.daemon) {
                        tracing::warn!("the daemon is dead, and its threads hang in a replica");
                        return Ok(End::Died);
                    }
                    is_dying = has_died(self.daemon);
                }
                Ok((ToKeeper::Passes { pid }, _)) => {
                    self.serves(pid);
                    is_dying = false;
                }
                Ok((ToKeeper::Mounted, mut along)) => {
                    self.device = along.pop();
                    self.number = fanfs_at(&self.again.mount_point).map(|(_, number)| number);
                    self.why.clear();
                    if let Some(ready) = ready.take() {
                        ready();
                    }
                }
                Ok((ToKeeper::Failed { why, .. }, _)) if self.device.is_some() => {
                    tracing::error!(why, "the mount is replaced; what was open is lost");
                    return Ok(End::CannotGoOn);
                }
                Ok((ToKeeper::Failed { why, .. }, _)) if self.number.is_some() => {
                    if why != self.why {
                        let at = self.again.mount_point.display();
                        tracing::error!(
                            why, %at,
                            "the dead mount cannot be replaced and stays; the next attempt is in 5 s"
                        );
                        self.why = why;
                    }
                    return Ok(End::CannotReplace);
                }
                Ok((ToKeeper::Failed { why, usage }, _)) => {
                    return Err(KeeperError::Failed { why, usage });
                }
                Ok((ToKeeper::Next { program, options, volume, mount_point }, _)) => {
                    self.program = program;
                    self.again = Again { options, volume, mount_point };
                }
                Ok((ToKeeper::Done, _)) => return Ok(End::Done),
                Err(error) if is_gone(&error) => return Ok(End::Died),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// No daemon can go on with the mount. It stays and calls on it fail, those that wait as
    /// well.
    fn end_connection(&mut self) {
        self.device = None;
        if let Some(number) = self.number {
            abort_at(&self.again.mount_point, number);
        }
    }

    fn is_mounted(&self) -> bool {
        self.number.is_some()
            && self.number == fanfs_at(&self.again.mount_point).map(|(_, number)| number)
    }

    /// Waits before the next attempt. False if the dead mount is unmounted or is to be.
    fn pause(&self, signals: &Signals) -> bool {
        let until = Instant::now() + PAUSE;
        while self.is_mounted() {
            if signals.has_come.load(Ordering::Acquire) {
                if let Err(error) = detach(&self.again.mount_point, true) {
                    tracing::error!(%error, "the dead mount is left behind");
                }
                return false;
            }
            if Instant::now() >= until {
                return true;
            }
            std::thread::sleep(LOOKED_AFTER);
        }
        tracing::info!("the dead mount was unmounted");
        false
    }
}

/// Whether a process has ended, or hangs while it ends. In that case its first thread is a
/// zombie (another one sleeps in a replica) or exiting (it closes a file there), and its
/// descriptors stay open meanwhile.
fn has_died(pid: u32) -> bool {
    // A zombie has this file as well.
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => is_over(&stat).unwrap_or(false),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether proc_pid_stat(5) shows a dead or exiting thread; `None` where it is malformed.
pub(super) fn is_over(stat: &str) -> Option<bool> {
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split(' ');
    let state = fields.next()?;
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    Some(matches!(state, "Z" | "X") || flags & EXITING != 0)
}

/// `PF_EXITING` of the kernel's sched.h.
const EXITING: u32 = 0x4;

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe)
}

/// Lets go of processes that have ended.
fn reap() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// SIGTERM and SIGINT, for whoever is the daemon now.
struct Signals {
    daemon: tokio::sync::watch::Sender<Option<Arc<Link>>>,
    /// Whether one of them has come.
    has_come: Arc<AtomicBool>,
}

impl Signals {
    fn listen(mount_point: PathBuf) -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (daemon, mut now) = tokio::sync::watch::channel(None::<Arc<Link>>);
        let has_come = Arc::new(AtomicBool::new(false));
        let comes = Arc::clone(&has_come);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listen = move || {
            runtime.block_on(async move {
                let (Ok(mut terminate), Ok(mut interrupt), Ok(mut child), Ok(mut hangup)) = (
                    signal(SignalKind::terminate()),
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::child()),
                    signal(SignalKind::hangup()),
                ) else {
                    return;
                };
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        _ = hangup.recv() => continue,
                        _ = child.recv() => {
                            reap();
                            continue;
                        }
                    }
                    comes.store(true, Ordering::Release);
                    let link = now.borrow_and_update().clone();
                    if let Some(link) = link {
                        let _ = link.say(&FromKeeper::End, &[]);
                    }
                    let mount_point = mount_point.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(ENDS_WITHIN).await;
                        tracing::error!("the daemon does not end; the mount is given up");
                        let _ = detach(&mount_point, true);
                        std::process::exit(1);
                    });
                }
            });
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(Self { daemon, has_come })
    }

    fn pass_on_to(&self, link: Link) {
        let _ = self.daemon.send(Some(Arc::new(link)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_ending_is_told_from_one_that_waits() {
        let stat = |state: &str, flags: u32| format!("7 (a ) b) {state} 1 7 7 0 -1 {flags} 1 2");
        assert_eq!(is_over(&stat("S", 0x40_0040)), Some(false));
        assert_eq!(is_over(&stat("D", 0x40_0040)), Some(false), "it waits for a disk");
        assert_eq!(is_over(&stat("D", 0x40_0044)), Some(true));
        assert_eq!(is_over(&stat("Z", 0x40_0040)), Some(true));
        assert_eq!(is_over("nonsense"), None);
        assert!(!has_died(std::process::id()));
    }

    #[test]
    fn a_daemon_is_started_again_so_often_and_no_oftener() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        assert!((0..MOST).all(|_| restarts.allow(now)));
        assert!(!restarts.allow(now));
        assert!(restarts.allow(now + WITHIN));
    }
}
