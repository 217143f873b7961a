//! The kernel's side: the mount itself and the FUSE session.
//!
//! A thin layer: no policy lives here, and no other module of fanfs imports fuser.
//!
//! - [`adapter`] turns fuser's requests into calls of [`Fs`] and its answers into replies.
//! - [`mount`] makes and ends the mount.
//! - [`handshake`] agrees on parameters with the kernel, or continues with those that another
//!   process agreed on.
//! - [`session_pause`] pauses a session while its mount is handed over.
//!
//! *Invariant:* the session never waits for a replica. A session thread takes a request, hands
//! it on and returns for the next one. It may carry out a counted inline call, but at least two
//! session threads never enter a replica. A thread may wait for a limited time for memory for a
//! request's data (the payload budget of [`crate::fs`]). Every request gets one reply, from the
//! thread that has the answer; a reply that is dropped is sent as EIO.

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
pub use session_pause::SESSION_THREAD_PREFIX;

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
    /// Allow access to other users.
    pub allow_other: bool,
    /// Honor set-id bits.
    pub suid: bool,
    /// Honor device nodes.
    pub dev: bool,
    /// Let programs on the mount run.
    pub exec: bool,
    /// Allow no changes.
    pub read_only: bool,
    /// Nothing changes while it is mounted.
    pub immutable: bool,
    /// Let the kernel read files without opening them, if it can.
    pub omits_opens: bool,
    /// Session threads.
    pub threads: usize,
    /// Background requests that the kernel may have in flight.
    pub max_background: u16,
    /// The most bytes that one request may ask for.
    pub max_request: u64,
    /// Pipes in which replies made of pages are assembled; `None` if there are no such pipes.
    pub pipes: Option<PipePool>,
}

/// The mount options that the kernel keeps; they cannot be changed later.
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
    /// The options that the kernel keeps.
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
    /// Whether other users may use the mount.
    pub fn allows_others(&self) -> bool {
        self.allow_other
    }

    /// The first option that differs in `other`.
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

/// A mounted file system that is being served.
pub struct Session {
    mount_point: PathBuf,
    threads: Option<JoinHandle<io::Result<()>>>,
    pauser: SessionPauser,
    init_params: InitParams,
}

impl Session {
    /// Mounts `fs` at `place` and serves it on threads of its own. Calls `first` before it
    /// takes the first request.
    ///
    /// # Errors
    /// If the mount fails, by mount(2) or fusermount3, or the kernel does not speak FUSE as
    /// expected. Then nothing is left mounted, except a dead mount if there was one.
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

    /// Prepares a session for a mount that another process has served so far. Negotiates
    /// nothing with the kernel: the parameters `agreed` on then still hold.
    ///
    /// # Errors
    /// If `fs` would now agree on other parameters.
    pub fn prepare_resume(
        fs: Arc<Fs>,
        options: &MountOptions,
        agreed: &InitParams,
    ) -> io::Result<ResumableSession> {
        // A kernel that leaves opens out does so until the mount ends.
        let options = MountOptions { omits_opens: agreed.omits_opens(), ..options.clone() };
        let (prepared, now) =
            NegotiatedSession::negotiate(fs, &options, agreed.init_request().to_vec())?;
        match now == *agreed {
            true => Ok(ResumableSession(prepared)),
            false => Err(io::Error::other(
                "the new daemon needs other FUSE parameters than the mount; unmount and mount \
                 again",
            )),
        }
    }

    /// Continues to serve the mount of `device`. If the kernel can, it resends the requests
    /// that the process before has not answered. No other process may read requests or send
    /// replies any more.
    ///
    /// # Errors
    /// If the kernel cannot be asked to resend, or the threads cannot be started.
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

    /// The parameters agreed on with the kernel.
    pub fn init_params(&self) -> &InitParams {
        &self.init_params
    }

    /// The FUSE device.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.pauser.device()
    }

    /// Takes no more requests until [`Session::unpause`]; requests that were taken are
    /// answered.
    ///
    /// # Errors
    /// If that cannot be guaranteed; then requests are taken as before.
    pub fn pause(&self) -> io::Result<()> {
        self.pauser.pause()
    }

    /// The number of threads that have not returned for the next request.
    ///
    /// # Errors
    /// If the threads' state cannot be read.
    pub fn busy_threads(&self) -> io::Result<usize> {
        self.pauser.busy_threads()
    }

    /// Makes the session take requests again.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn unpause(&self) -> io::Result<()> {
        self.pauser.unpause()
    }

    /// Drops the device: no reply reaches the kernel any more. Returns the device. The session
    /// must be paused.
    ///
    /// # Errors
    /// If the descriptors cannot be replaced.
    pub fn release_device(&self) -> io::Result<OwnedFd> {
        self.pauser.release_device()
    }

    /// Takes back the device that [`Session::release_device`] dropped. The kernel resends the
    /// requests that were answered meanwhile.
    ///
    /// # Errors
    /// If the descriptors cannot be replaced.
    pub fn reacquire_device(&self, device: &OwnedFd) -> io::Result<()> {
        self.pauser.reacquire_device(device)
    }

    /// Drops the device for good, so that the kernel fails the requests that still wait and the
    /// session's threads end. The end of the process would not do that while one of its threads
    /// hangs in a replica.
    ///
    /// # Errors
    /// If the descriptors cannot be replaced.
    pub fn disconnect(&self) -> io::Result<()> {
        self.pauser.disconnect()
    }

    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Whether the kernel has ended the session because the volume was unmounted.
    pub fn has_ended(&self) -> bool {
        self.threads.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the session's end and returns its result.
    ///
    /// # Errors
    /// The error of reading from the FUSE device.
    pub fn join(&mut self) -> io::Result<()> {
        match self.threads.take() {
            Some(threads) => threads.join().unwrap_or_else(|_| {
                Err(io::Error::other("a FUSE thread panicked; this is a bug in fanfs"))
            }),
            None => Ok(()),
        }
    }
}
