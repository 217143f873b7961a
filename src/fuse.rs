//! The kernel's side: the mount itself and the FUSE session.
//!
//! A thin layer. [`adapter`] turns fuser's requests into calls of [`Fs`] and its
//! answers into replies; [`attach`] makes and ends the mount; [`handshake`] agrees
//! with the kernel, or goes on with what another process agreed on; [`parking`] lets a
//! session rest while its mount is handed over. No policy lives here, and nothing else
//! in fanfs imports fuser.
//!
//! *Invariant:* a session thread takes a request, hands it on and goes back for
//! the next; it never waits for a replica, but for room for what a request carries
//! ([`crate::fs`]'s intake), which has an end. Every request is replied to once, by
//! whoever has the answer; a reply that is dropped is answered with EIO.

mod adapter;
mod answers;
mod attach;
mod features;
mod handshake;
mod kernel;
mod names;
mod notice;
mod opening;
mod parking;
mod repeat;
mod reply;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use crate::buffer::Pipes;
use crate::fs::Fs;
use handshake::Prepared;
use parking::Parking;

pub use attach::{AttachError, abort, detach};
pub use handshake::{Agreed, Ready};

/// Where to mount.
#[derive(Clone, Debug)]
pub struct Place {
    /// The mount point's canonical path.
    pub path: PathBuf,
    /// Whether a dead mount of fanfs is there. It stays until the new mount replaces it, so
    /// no program writes to the directory beneath.
    pub is_dead: bool,
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
    pub pipes: Option<Pipes>,
}

/// What the kernel keeps of how it was mounted; nobody can change it later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    name: String,
    allow_other: bool,
    suid: bool,
    dev: bool,
    exec: bool,
    read_only: bool,
}

impl MountOptions {
    /// What the kernel keeps of them.
    pub fn fixed(&self) -> Fixed {
        Fixed {
            name: self.name.clone(),
            allow_other: self.allow_other,
            suid: self.suid,
            dev: self.dev,
            exec: self.exec,
            read_only: self.read_only,
        }
    }
}

impl Fixed {
    /// What of it `other` wants to be otherwise.
    pub fn differs_in(&self, other: &Self) -> Option<&'static str> {
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
    parking: Parking,
    agreed: Agreed,
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
        place: &Place,
        options: &MountOptions,
        first: impl FnOnce(&Agreed),
    ) -> Result<Self, AttachError> {
        let device = attach::attach(place, options)?;
        let begin = |device: OwnedFd| {
            let asked = handshake::receive(device.as_fd())?;
            let (prepared, agreed) = Prepared::new(fs, options, asked)?;
            rustix::io::write(&device, agreed.answer())?;
            first(&agreed);
            Self::run(prepared, agreed, device, &place.path)
        };
        begin(device).map_err(|error| {
            if !place.is_dead {
                let _ = detach(&place.path, true);
            }
            AttachError::Handshake(error)
        })
    }

    /// Agrees with the kernel on nothing new, for a mount that another process has
    /// served so far: what was `agreed` on then holds.
    ///
    /// # Errors
    /// Where `fs` would want something else of the kernel now.
    pub fn prepare(fs: Arc<Fs>, options: &MountOptions, agreed: &Agreed) -> io::Result<Ready> {
        let (prepared, now) = Prepared::new(fs, options, agreed.asked().to_vec())?;
        match now == *agreed {
            true => Ok(Ready(prepared)),
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
        ready: Ready,
        agreed: Agreed,
        device: OwnedFd,
        mount_point: &Path,
    ) -> io::Result<Self> {
        if agreed.resends() {
            handshake::ask_to_resend(device.as_fd())?;
        }
        Self::run(ready.0, agreed, device, mount_point)
    }

    fn run(
        prepared: Prepared,
        agreed: Agreed,
        device: OwnedFd,
        mount_point: &Path,
    ) -> io::Result<Self> {
        let (parking, threads) = prepared.run(device)?;
        let (mount_point, threads) = (mount_point.to_owned(), Some(threads));
        Ok(Self { mount_point, threads, parking, agreed })
    }

    /// What was agreed on with the kernel.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// The device.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.parking.device()
    }

    /// Takes no more requests until [`Session::unpark`]; those that were taken are
    /// answered.
    ///
    /// # Errors
    /// Where that cannot be made sure of; requests are taken as before then.
    pub fn park(&self) -> io::Result<()> {
        self.parking.park()
    }

    /// Threads that have not come back for the next request.
    ///
    /// # Errors
    /// Where that cannot be seen.
    pub fn busy(&self) -> io::Result<usize> {
        self.parking.busy()
    }

    /// Takes requests again.
    ///
    /// # Errors
    /// Where the descriptor cannot be replaced.
    pub fn unpark(&self) -> io::Result<()> {
        self.parking.unpark()
    }

    /// Lets go of the mount: no answer gets to the kernel any more. Returns the device.
    /// Parked it has to be already.
    ///
    /// # Errors
    /// Where the descriptors cannot be replaced.
    pub fn let_go(&self) -> io::Result<OwnedFd> {
        self.parking.let_go()
    }

    /// Has what [`Session::let_go`] has let go of again. What was answered meanwhile is
    /// asked again.
    ///
    /// # Errors
    /// Where the descriptors cannot be replaced.
    pub fn take_up(&self, device: &OwnedFd) -> io::Result<()> {
        self.parking.take_up(device)
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Whether the kernel has ended the session: somebody unmounted it.
    pub fn is_over(&self) -> bool {
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
