//! The kernel's side: the mount itself and the FUSE session.
//!
//! A thin layer. [`adapter`] turns fuser's requests into calls of [`Fs`] and its
//! answers into replies; [`mount`] makes and ends the mount; [`handshake`] agrees
//! with the kernel, or goes on with what another process agreed on; [`session_pause`] lets a
//! session rest while its mount is handed over. No policy lives here, and nothing else
//! in fanfs imports fuser.
//!
//! *Invariant:* a session thread takes a request, hands it on and goes back for
//! the next; it never waits for a replica, but for room for what a request carries
//! ([`crate::fs`]'s intake), which has an end. Every request is replied to once, by
//! whoever has the answer; a reply that is dropped is answered with EIO.

mod adapter;
mod attr_invalidation;
mod convert;
mod device_fd;
mod features;
mod handshake;
mod mount;
mod names_only_listing;
mod notifier;
mod open_responder;
mod raw_reply;
mod readdirplus;
mod replies;
mod resend;
mod session_pause;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::buffer::PipePool;
use crate::fs::Fs;
use handshake::NegotiatedSession;
use session_pause::SessionPauser;

pub use handshake::{InitParams, ResumableSession};
pub use mount::{MountError, abort_connection, unmount};

/// Where to mount.
#[derive(Clone, Debug)]
pub struct MountTarget {
    /// The mount point's canonical path.
    pub path: PathBuf,
    /// Whether a dead mount of fanfs is there. It stays until the new mount replaces it, so
    /// no program writes to the directory beneath.
    pub has_dead_mount: bool,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Shown as the mount's source.
    pub name: String,
    /// Let other users in.
    pub allow_other: bool,
    /// Honour set-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Let programs be run.
    pub exec: bool,
    /// Let nothing be changed.
    pub read_only: bool,
    /// Session threads.
    pub threads: usize,
    /// Requests that the kernel may have under way in the background.
    pub max_background: u16,
    /// Most bytes that one request may ask for.
    pub max_request: u64,
    /// Where replies whose data are pages are put together; `None` where there
    /// are none.
    pub pipes: Option<PipePool>,
}

/// What the kernel keeps of how it was mounted; nobody can change it later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedMountOptions {
    name: String,
    allow_other: bool,
    suid: bool,
    dev: bool,
    exec: bool,
    read_only: bool,
}

impl MountOptions {
    /// What the kernel keeps of them.
    pub fn fixed_options(&self) -> FixedMountOptions {
        FixedMountOptions {
            name: self.name.clone(),
            allow_other: self.allow_other,
            suid: self.suid,
            dev: self.dev,
            exec: self.exec,
            read_only: self.read_only,
        }
    }
}

impl FixedMountOptions {
    /// What of it `other` wants to be otherwise.
    pub fn first_difference(&self, other: &Self) -> Option<&'static str> {
        let pairs = [
            (self.name != other.name, "the volume's name"),
            (self.allow_other != other.allow_other, "allow_other"),
            (self.suid != other.suid, "suid"),
            (self.dev != other.dev, "dev"),
            (self.exec != other.exec, "exec"),
            (self.read_only != other.read_only, "access"),
        ];
        pairs.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }
}

/// A mounted file system, being served.
pub struct Session {
    mount_point: PathBuf,
    threads: Option<JoinHandle<io::Result<()>>>,
    pauser: SessionPauser,
    init_params: InitParams,
}

impl Session {
    /// Mounts `fs` at `place` and serves it on threads of its own. `first` is
    /// called before the first request is taken.
    ///
    /// # Errors
    /// Where the mount fails, by mount(2) or fusermount3, or the kernel does not
    /// speak FUSE as expected. Nothing is left mounted then, except a dead mount where
    /// there was one.
    pub fn start(
        fs: Arc<Fs>,
        place: &MountTarget,
        options: &MountOptions,
        first: impl FnOnce(&InitParams),
    ) -> Result<Self, MountError> {
        let device = mount::mount(place, options)?;
        let begin = |device: OwnedFd| {
            let asked = handshake::read_message(device.as_fd())?;
            let (prepared, agreed) = NegotiatedSession::negotiate(fs, options, asked)?;
            rustix::io::write(&device, agreed.init_reply())?;
            first(&agreed);
            Self::run(prepared, agreed, device, &place.path)
        };
        begin(device).map_err(|error| {
            if !place.has_dead_mount {
                let _ = unmount(&place.path, true);
            }
            MountError::Handshake(error)
        })
    }

    /// Agrees with the kernel on nothing new, for a mount that another process has
    /// served so far: what was `agreed` on then holds.
    ///
    /// # Errors
    /// Where `fs` would want something else of the kernel now.
    pub fn prepare_resume(
        fs: Arc<Fs>,
        options: &MountOptions,
        agreed: &InitParams,
    ) -> io::Result<ResumableSession> {
        let (prepared, now) =
            NegotiatedSession::negotiate(fs, options, agreed.init_request().to_vec())?;
        match now == *agreed {
            true => Ok(ResumableSession(prepared)),
            false => Err(io::Error::other(
                "it would agree on something else with the kernel than was agreed on when this was mounted; unmount and mount again",
            )),
        }
    }

    /// Goes on serving the mount of `device`. Has the kernel send again what the
    /// process before has not answered, where the kernel can; nobody else may read
    /// requests or give answers any more.
    ///
    /// # Errors
    /// Where there are no threads.
    pub fn resume(
        ready: ResumableSession,
        agreed: InitParams,
        device: OwnedFd,
        mount_point: &Path,
    ) -> io::Result<Self> {
        if agreed.can_resend() {
            device_fd::request_resend(device.as_fd())?;
        }
        Self::run(ready.0, agreed, device, mount_point)
    }

    fn run(
        prepared: NegotiatedSession,
        agreed: InitParams,
        device: OwnedFd,
        mount_point: &Path,
    ) -> io::Result<Self> {
        let (parking, threads) = prepared.run(device)?;
        let mount_point = mount_point.to_owned();
        let threads = Some(threads);
        Ok(Self { mount_point, threads, pauser: parking, init_params: agreed })
    }

    /// What was agreed on with the kernel.
    pub fn init_params(&self) -> &InitParams {
        &self.init_params
    }

    /// The device.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.pauser.device()
    }

    /// Takes no more requests until [`Session::unpause`]; those that were taken are
    /// answered.
    ///
    /// # Errors
    /// Where that cannot be made sure of; requests are taken as before then.
    pub fn pause(&self) -> io::Result<()> {
        self.pauser.pause()
    }

    /// Threads that have not come back for the next request.
    ///
    /// # Errors
    /// Where that cannot be seen.
    pub fn busy_threads(&self) -> io::Result<usize> {
        self.pauser.busy_threads()
    }

    /// Takes requests again.
    ///
    /// # Errors
    /// Where the descriptor cannot be replaced.
    pub fn unpause(&self) -> io::Result<()> {
        self.pauser.unpause()
    }

    /// Lets go of the mount: no answer gets to the kernel any more. Returns the device.
    /// Parked it has to be already.
    ///
    /// # Errors
    /// Where the descriptors cannot be replaced.
    pub fn release_device(&self) -> io::Result<OwnedFd> {
        self.pauser.release_device()
    }

    /// Has what [`Session::release_device`] has let go of again. What was answered meanwhile is
    /// asked again.
    ///
    /// # Errors
    /// Where the descriptors cannot be replaced.
    pub fn reacquire_device(&self, device: &OwnedFd) -> io::Result<()> {
        self.pauser.reacquire_device(device)
    }

    /// Lets go of the device for good, so that the kernel fails the requests that still wait
    /// and the session's threads end. The end of the process does not do that while one of
    /// its threads hangs in a replica.
    ///
    /// # Errors
    /// Where the descriptors cannot be replaced.
    pub fn disconnect(&self) -> io::Result<()> {
        self.pauser.disconnect()
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Whether the kernel has ended the session: somebody unmounted it.
    pub fn has_ended(&self) -> bool {
        self.threads.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the session's end and says how it ended.
    ///
    /// # Errors
    /// What reading from the FUSE device failed with.
    pub fn join(&mut self) -> io::Result<()> {
        match self.threads.take() {
            Some(threads) => {
                threads.join().unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked")))
            }
            None => Ok(()),
        }
    }
}
