//! Whom a call on a replica is made for.
//!
//! A daemon that runs as root may do anything on a replica, so the replica would
//! refuse nobody anything; and where the server maps root to nobody, everybody
//! would be refused. So what a caller opens or changes is done in his name: the
//! thread takes on his user, group and supplementary groups for its calls on
//! file systems (setfsuid(2) and its like), and the replica decides as it would
//! for him. NFS sends the same identity to its server.
//!
//! *Invariants:*
//! - A thread's identity is its own; the other threads of the process keep theirs.
//! - A thread has a caller's identity while an [`CredentialsGuard`] lives, and the daemon's
//!   before and after it. So callbacks have the daemon's.
//! - Functions that open, create or remove the daemon's own files take an [`DaemonCredentials`],
//!   which only [`with_daemon_credentials`] creates.
//! - A daemon that is not root, or lets in nobody but who mounted, takes on nobody:
//!   it has no rights but its own, and everybody whom it lets in has them.

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

/// Who asks for something, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as this process sees it; 0 where it does not.
    pub pid: u32,
    /// The number of the kernel's request; 0 where it is none.
    pub request: u64,
    /// Whether the kernel sends the request again: another daemon may have made it.
    pub is_resent: bool,
}

/// Whose rights count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials(Option<Arc<User>>);

/// An identity written down: user, group, supplementary groups; `None` for the
/// daemon's.
pub type CredentialsRecord = Option<(u32, u32, Vec<u32>)>;

#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The daemon's own supplementary groups, as they were before any thread took on
/// somebody.
static DAEMON_GROUPS: LazyLock<Vec<Gid>> =
    LazyLock::new(|| rustix::process::getgroups().unwrap_or_default());

thread_local! {
    /// Who the thread is; `None` where that is not known: a new thread is who the one
    /// was that started it, and taking on somebody may fail half-way.
    static THREAD_CREDENTIALS: RefCell<Option<Credentials>> = const { RefCell::new(None) };
    /// Whether the thread has an umask of its own.
    static HAS_OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

impl RequestContext {
    /// This process.
    pub const DAEMON: Self =
        Self { uid: u32::MAX, gid: u32::MAX, pid: 0, request: 0, is_resent: false };

    /// Whether what he may do is what the daemon may do.
    pub fn is_daemon(&self) -> bool {
        let own = |uid, gid| self.uid == uid && self.gid == gid;
        Self { request: 0, is_resent: false, ..*self } == Self::DAEMON
            || !geteuid().is_root()
            || own(0, getegid().as_raw())
    }

    /// His identity, with the supplementary groups that he has now. Ask while he
    /// waits for an answer.
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
    /// The user; root's number for the daemon.
    pub fn uid(&self) -> u32 {
        self.0.as_ref().map_or(0, |user| user.uid)
    }

    /// The daemon itself.
    pub const DAEMON: Self = Self(None);

    /// Whether it is the daemon itself.
    pub fn is_daemon(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it is that of who asks, but perhaps for groups that he was given since.
    pub fn is_same_user_as(&self, requester: &RequestContext) -> bool {
        match &self.0 {
            Some(user) => (user.uid, user.gid) == (requester.uid, requester.gid),
            None => requester.is_daemon(),
        }
    }

    /// Writes it down.
    pub fn to_record(&self) -> CredentialsRecord {
        self.0.as_ref().map(|user| (user.uid, user.gid, user.groups.clone()))
    }

    /// The one that was written down.
    pub fn from_record(written: CredentialsRecord) -> Self {
        Self(written.map(|(uid, gid, groups)| Arc::new(User { uid, gid, groups })))
    }

    /// Gives it to the calling thread until the result is dropped.
    ///
    /// # Errors
    /// Where the process may not, or the user does not exist in its name space.
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
        // What can be nobody else is the daemon.
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
            None => (geteuid().as_raw(), getegid().as_raw(), own_groups),
        };
        set_thread_groups(groups)?;
        setfsgid(gid.into());
        setfsuid(uid.into());
        // These two say what was before, and not whether they did anything; told
        // something impossible, they say what is now.
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
            tracing::error!(%error, "a thread cannot go back to the daemon's own credentials");
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

/// Makes the umask of the calling thread `umask`, and of no other thread. The
/// replica applies it, or the directory's default access control list instead.
pub(super) fn set_umask(umask: u32) -> Result<()> {
    if !HAS_OWN_UMASK.get() {
        unshare(CloneFlags::CLONE_FS).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        HAS_OWN_UMASK.set(true);
    }
    rustix::process::umask(Mode::from_raw_mode(umask));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn groups_are_those_of_the_thread() {
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
    fn a_thread_started_under_a_callers_identity_can_have_the_daemons() {
        let Some(user) = user(vec![]) else { return };
        let reads = || with_daemon_credentials(|_| fs::read("/etc/shadow").is_ok()).unwrap();
        let started = std::thread::spawn(move || {
            let _user = user.assume().unwrap();
            std::thread::spawn(reads).join().unwrap()
        });
        assert!(started.join().unwrap(), "it has the caller's identity");
    }

    #[test]
    fn a_thread_has_a_callers_identity_for_so_long_and_alone() {
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
                // A nested `assume`, with the daemon's own work inside it.
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
