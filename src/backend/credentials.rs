//! The identity under which a thread calls a replica.
//!
//! A daemon that runs as root may do anything on a replica, so the replica would refuse nothing. If
//! the server maps root to `nobody`, it would refuse everything. So fanfs opens and changes files
//! under the caller's identity. The thread takes the caller's user, group and supplementary groups
//! for its file system calls (setfsuid(2) and similar). The replica then decides as it would for
//! the caller. NFS sends the same identity to its server.
//!
//! *Invariants:*
//! - A thread's identity is its own; the other threads of the process keep theirs.
//! - A thread has a caller's identity while a [`CredentialsGuard`] lives, and the daemon's before
//!   and after it. So callbacks run under the daemon's.
//! - Functions that open, create or remove the daemon's own files take a [`DaemonCredentials`],
//!   which only [`with_daemon_credentials`] creates.
//! - A daemon that is not root, or that admits only the user that mounted it, assumes no caller's
//!   identity: it has only its own rights, and every user that it admits has them.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{setfsgid, setfsuid};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use rustix::thread::{Gid, set_thread_groups};

use super::Result;
use crate::capabilities;

/// The caller of a request, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Thread id in this process's PID namespace; 0 if the thread is not visible there.
    pub pid: u32,
    /// The number of the kernel's request; 0 if the kernel sent none.
    pub request: u64,
    /// Whether the kernel sends the request again: an earlier daemon may already have carried it
    /// out.
    pub is_resent: bool,
}

/// An identity whose rights apply: a caller's or the daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials(Option<Arc<User>>);

/// An identity as a record: user, group, supplementary groups; `None` for the daemon's.
pub type CredentialsRecord = Option<(u32, u32, Vec<u32>)>;

/// A user, with the group and the supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// The daemon's own supplementary groups, read before any thread assumes another identity.
static DAEMON_GROUPS: LazyLock<Vec<Gid>> =
    LazyLock::new(|| rustix::process::getgroups().unwrap_or_default());

/// The daemon's own user and group.
static DAEMON_IDS: LazyLock<(u32, u32)> =
    LazyLock::new(|| (geteuid().as_raw(), getegid().as_raw()));

thread_local! {
    /// The thread's identity; `None` if it is unknown. A new thread inherits its creator's
    /// identity, and a failed `assume` may have changed a part of it.
    static THREAD_CREDENTIALS: RefCell<Option<Credentials>> = const { RefCell::new(None) };
    /// The thread's umask, if it has its own.
    static OWN_UMASK: Cell<Option<u32>> = const { Cell::new(None) };
}

impl RequestContext {
    /// This process.
    pub const DAEMON: Self =
        Self { uid: u32::MAX, gid: u32::MAX, pid: 0, request: 0, is_resent: false };

    /// Whether the caller has the same rights as the daemon.
    pub fn is_daemon(&self) -> bool {
        let (daemon_uid, daemon_gid) = *DAEMON_IDS;
        Self { request: 0, is_resent: false, ..*self } == Self::DAEMON
            || daemon_uid != 0
            || (self.uid, self.gid) == (0, daemon_gid)
    }

    /// The caller's identity, with its current supplementary groups. Call this while the caller
    /// waits for its answer.
    pub fn credentials(&self) -> Credentials {
        if self.is_daemon() {
            return Credentials::DAEMON;
        }
        let groups = supplementary_groups(self.pid).unwrap_or_default();
        Credentials(Some(Arc::new(User { uid: self.uid, gid: self.gid, groups })))
    }
}

/// The supplementary groups of a thread.
fn supplementary_groups(pid: u32) -> Option<Vec<u32>> {
    let status = capabilities::proc_status(pid).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    line.split_whitespace().map(|group| group.parse().ok()).collect()
}

impl Credentials {
    /// The user id; 0 for the daemon.
    pub fn uid(&self) -> u32 {
        self.0.as_ref().map_or(0, |user| user.uid)
    }

    /// The daemon's own identity.
    pub const DAEMON: Self = Self(None);

    /// Whether it is the daemon's own identity.
    pub fn is_daemon(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the user and group are the requester's. Supplementary groups may have changed since.
    pub fn is_same_user_as(&self, requester: &RequestContext) -> bool {
        match &self.0 {
            Some(user) => (user.uid, user.gid) == (requester.uid, requester.gid),
            None => requester.is_daemon(),
        }
    }

    /// Its record.
    pub fn to_record(&self) -> CredentialsRecord {
        self.0.as_ref().map(|user| (user.uid, user.gid, user.groups.clone()))
    }

    /// The identity in a record.
    pub fn from_record(written: CredentialsRecord) -> Self {
        Self(written.map(|(uid, gid, groups)| Arc::new(User { uid, gid, groups })))
    }

    /// Gives this identity to the calling thread until the result is dropped.
    ///
    /// # Errors
    /// The process may not change its identity, or the user does not exist in its user namespace.
    pub fn assume(&self) -> Result<CredentialsGuard> {
        let before = match THREAD_CREDENTIALS.with_borrow(Clone::clone) {
            Some(now) if now == *self => None,
            now => Some(now.unwrap_or(Self::DAEMON)),
        };
        // If `apply_to_thread` fails half-way, dropping this restores the identity before.
        let assumed = CredentialsGuard { previous: before, _here: PhantomData };
        self.apply_to_thread()?;
        Ok(assumed)
    }

    fn apply_to_thread(&self) -> Result<()> {
        if THREAD_CREDENTIALS.with_borrow(|now| now.as_ref() == Some(self)) {
            return Ok(());
        }
        // A process that cannot change its user always has the daemon's identity.
        if self.is_daemon() && !capabilities::can_change_user() {
            THREAD_CREDENTIALS.set(Some(self.clone()));
            return Ok(());
        }
        let own_groups = &*DAEMON_GROUPS;
        THREAD_CREDENTIALS.set(None);
        let theirs: Vec<Gid>;
        let (uid, gid, groups) = match &self.0 {
            Some(user) => {
                theirs = user.groups.iter().copied().map(Gid::from_raw).collect();
                (user.uid, user.gid, &theirs)
            }
            None => (DAEMON_IDS.0, DAEMON_IDS.1, own_groups),
        };
        set_thread_groups(groups)?;
        setfsgid(gid.into());
        setfsuid(uid.into());
        // These calls return the previous id and do not report success. With an invalid id they
        // change nothing and return the current one.
        let is_now = (setfsuid(u32::MAX.into()).as_raw(), setfsgid(u32::MAX.into()).as_raw());
        if is_now != (uid, gid) {
            return Err(Errno::PERM.into());
        }
        THREAD_CREDENTIALS.set(Some(self.clone()));
        Ok(())
    }
}

/// The calling thread has an assumed identity. Dropping this restores the one before.
#[derive(Debug)]
#[must_use = "the identity is given up at once"]
pub struct CredentialsGuard {
    /// `None` where the identity did not change.
    previous: Option<Credentials>,
    /// Not `Send`: the identity is the thread's.
    _here: PhantomData<*const ()>,
}

impl Drop for CredentialsGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.previous
            && let Err(error) = before.apply_to_thread()
        {
            // The thread's identity is unknown now; it assumes one before its next call.
            tracing::error!(%error, "a thread cannot restore the daemon's own credentials");
        }
    }
}

/// Proof that the calling thread has the daemon's own credentials.
#[derive(Debug)]
pub struct DaemonCredentials(PhantomData<*const ()>);

/// Runs `work` under the daemon's own credentials, even if the calling thread has a
/// caller's identity.
///
/// # Errors
/// The thread cannot get the daemon's credentials back; `work` has not run.
pub fn with_daemon_credentials<T>(work: impl FnOnce(&DaemonCredentials) -> T) -> Result<T> {
    let _own = Credentials::DAEMON.assume()?;
    Ok(work(&DaemonCredentials(PhantomData)))
}

/// The user whose identity the calling thread has.
pub(super) fn thread_user() -> User {
    match THREAD_CREDENTIALS.with_borrow(Clone::clone) {
        Some(Credentials(Some(user))) => User::clone(&user),
        _ => User {
            uid: DAEMON_IDS.0,
            gid: DAEMON_IDS.1,
            groups: DAEMON_GROUPS.iter().map(|group| group.as_raw()).collect(),
        },
    }
}

/// Sets the umask of the calling thread only. The replica applies it, or the directory's default
/// access control list instead.
pub(super) fn set_umask(umask: u32) -> Result<()> {
    let own = OWN_UMASK.get();
    if own.is_none() {
        unshare(CloneFlags::CLONE_FS).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    }
    if own != Some(umask) {
        rustix::process::umask(Mode::from_raw_mode(umask));
        OWN_UMASK.set(Some(umask));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn groups_are_read_from_the_thread() {
        let own = rustix::process::getgroups().unwrap();
        let read =
            supplementary_groups(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let own: Vec<u32> = own.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(read, own);
        assert_eq!(supplementary_groups(0), None);
    }

    fn user(groups: Vec<u32>) -> Option<Credentials> {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can have another user's identity");
            return None;
        }
        Some(Credentials(Some(Arc::new(User { uid: 1234, gid: 1234, groups }))))
    }

    #[test]
    fn a_thread_with_caller_credentials_can_use_the_daemons() {
        let Some(user) = user(vec![]) else { return };
        let reads = || with_daemon_credentials(|_| fs::read("/etc/shadow").is_ok()).unwrap();
        let started = std::thread::spawn(move || {
            let _user = user.assume().unwrap();
            std::thread::spawn(reads).join().unwrap()
        });
        assert!(started.join().unwrap(), "it has the caller's identity");
    }

    #[test]
    fn only_one_thread_has_the_credentials_and_only_for_a_call() {
        let Some(user) = user(vec![4321]) else { return };
        let room = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = room.path().join(name);
            fs::write(&path, "x").unwrap();
            let made = fs::metadata(&path).unwrap();
            std::os::unix::fs::MetadataExt::uid(&made)
        };
        fs::set_permissions(room.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let assumed = user.assume().unwrap();
                let owner = make("theirs");
                assert!(fs::read("/etc/shadow").is_err());
                // A nested `assume`, with work under the daemon's own credentials inside it.
                let again = user.assume().unwrap();
                let own = with_daemon_credentials(|_| make("in between")).unwrap();
                assert_eq!((own, make("theirs again")), (0, 1234));
                drop(again);
                assert_eq!(make("still theirs"), 1234);
                drop(assumed);
                (owner, make("ours again"))
            });
            assert_eq!(other.join().unwrap(), (1234, 0));
        });
        assert_eq!(make("ours"), 0);
    }
}
