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
//! - A thread has a caller's identity while an [`Assumed`] lives, and the daemon's
//!   before and after it. So callbacks have the daemon's.
//! - Functions that open, create or remove the daemon's own files take an [`Own`],
//!   which only [`own`] creates.
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
use crate::privilege;

/// Who asks for something, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as this process sees it; 0 where it does not.
    pub pid: u32,
    /// The number of the kernel's request; 0 where it is none.
    pub request: u64,
    /// Whether the kernel sends the request again: another daemon may have made it.
    pub again: bool,
}

/// Whose rights count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(Option<Arc<User>>);

/// An identity written down: user, group, supplementary groups; `None` for the
/// daemon's.
pub type Written = Option<(u32, u32, Vec<u32>)>;

#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The daemon's own supplementary groups, as they were before any thread took on
/// somebody.
static OWN_GROUPS: LazyLock<Vec<Gid>> =
    LazyLock::new(|| rustix::process::getgroups().unwrap_or_default());

thread_local! {
    /// Who the thread is; `None` where that is not known: a new thread is who the one
    /// was that started it, and taking on somebody may fail half-way.
    static NOW: RefCell<Option<Identity>> = const { RefCell::new(None) };
    /// Whether the thread has an umask of its own.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

impl Requester {
    /// This process.
    pub const DAEMON: Self =
        Self { uid: u32::MAX, gid: u32::MAX, pid: 0, request: 0, again: false };

    /// Whether what he may do is what the daemon may do.
    pub fn is_daemon(&self) -> bool {
        let own = |uid, gid| self.uid == uid && self.gid == gid;
        Self { request: 0, again: false, ..*self } == Self::DAEMON
            || !geteuid().is_root()
            || own(0, getegid().as_raw())
    }

    /// His identity, with the supplementary groups that he has now. Ask while he
    /// waits for an answer.
    pub fn identity(&self) -> Identity {
        if self.is_daemon() {
            return Identity::DAEMON;
        }
        let groups = groups(self.pid).unwrap_or_default();
        Identity(Some(Arc::new(User { uid: self.uid, gid: self.gid, groups })))
    }
}

/// The supplementary groups of a thread.
fn groups(pid: u32) -> Option<Vec<u32>> {
    let status = privilege::status_of(pid).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    line.split_whitespace().map(|group| group.parse().ok()).collect()
}

impl Identity {
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
    pub fn is_of(&self, requester: &Requester) -> bool {
        match &self.0 {
            Some(user) => (user.uid, user.gid) == (requester.uid, requester.gid),
            None => requester.is_daemon(),
        }
    }

    /// Writes it down.
    pub fn written(&self) -> Written {
        self.0.as_ref().map(|user| (user.uid, user.gid, user.groups.clone()))
    }

    /// The one that was written down.
    pub fn read(written: Written) -> Self {
        Self(written.map(|(uid, gid, groups)| Arc::new(User { uid, gid, groups })))
    }

    /// Gives it to the calling thread until the result is dropped.
    ///
    /// # Errors
    /// Where the process may not, or the user does not exist in its name space.
    pub fn assume(&self) -> Result<Assumed> {
        let before = match NOW.with_borrow(Clone::clone) {
            Some(now) if now == *self => None,
            now => Some(now.unwrap_or(Self::DAEMON)),
        };
        // If `take_on` fails half-way, dropping this restores the identity before.
        let assumed = Assumed { before, _here: PhantomData };
        self.take_on()?;
        Ok(assumed)
    }

    fn take_on(&self) -> Result<()> {
        if NOW.with_borrow(|now| now.as_ref() == Some(self)) {
            return Ok(());
        }
        // What can be nobody else is the daemon.
        if self.is_daemon() && !privilege::may_be_others() {
            NOW.set(Some(self.clone()));
            return Ok(());
        }
        let own_groups = &*OWN_GROUPS;
        NOW.set(None);
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
        NOW.set(Some(self.clone()));
        Ok(())
    }
}

/// The calling thread has an assumed identity. Dropping this restores the one before.
#[derive(Debug)]
#[must_use = "the identity is given up at once"]
pub struct Assumed {
    /// `None` where the identity did not change.
    before: Option<Identity>,
    /// Not `Send`: the identity is the thread's.
    _here: PhantomData<*const ()>,
}

impl Drop for Assumed {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = before.take_on()
        {
            // The thread's identity is unknown now; it assumes one before its next call.
            tracing::error!(%error, "a thread cannot go back to the daemon's own credentials");
        }
    }
}

/// Proof that the calling thread has the daemon's own credentials.
#[derive(Debug)]
pub struct Own(PhantomData<*const ()>);

/// Runs `work` under the daemon's own credentials, even if the calling thread has a
/// caller's identity.
///
/// # Errors
/// The thread cannot get the daemon's credentials back; `work` has not run.
pub fn own<T>(work: impl FnOnce(&Own) -> T) -> Result<T> {
    let _own = Identity::DAEMON.assume()?;
    Ok(work(&Own(PhantomData)))
}

/// Makes the umask of the calling thread `umask`, and of no other thread. The
/// replica applies it, or the directory's default access control list instead.
pub(super) fn set_umask(umask: u32) -> Result<()> {
    if !OWN_UMASK.get() {
        unshare(CloneFlags::CLONE_FS).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        OWN_UMASK.set(true);
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
        let read = groups(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let own: Vec<u32> = own.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(read, own);
        assert_eq!(groups(0), None);
    }

    fn user(groups: Vec<u32>) -> Option<Identity> {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can have another user's identity");
            return None;
        }
        Some(Identity(Some(Arc::new(User { uid: 1234, gid: 1234, groups }))))
    }

    #[test]
    fn a_thread_started_under_a_callers_identity_can_have_the_daemons() {
        let Some(user) = user(vec![]) else { return };
        let reads = || own(|_| fs::read("/etc/shadow").is_ok()).unwrap();
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
                let own = own(|_| make("in between")).unwrap();
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
