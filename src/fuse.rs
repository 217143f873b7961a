//! The kernel's side: the mount itself and the FUSE session.
//!
//! A thin layer. [`adapter`] turns fuser's requests into calls of [`Fs`] and its
//! answers into replies; [`attach`] makes and ends the mount. No policy lives
//! here, and nothing else in fanfs imports fuser.
//!
//! *Invariant:* a session thread takes a request, hands it on and goes back for
//! the next; it never waits for a replica. Every request is replied to once, by
//! whoever has the answer; a reply that is dropped is answered with EIO.

mod adapter;
mod answers;
mod attach;
mod features;
mod kernel;
mod opening;
mod reply;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::buffer::Pipes;
use crate::fs::Fs;
use adapter::Adapter;
use kernel::Kernel;
use reply::Replies;

pub use attach::{AttachError, detach};

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

/// What the kernel granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Granted {
    /// Protocol version.
    pub version: (u32, u32),
}

/// A mounted file system, being served.
pub struct Session {
    mount_point: PathBuf,
    threads: Option<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Mounts `fs` at `mount_point` and serves it on threads of its own.
    ///
    /// # Errors
    /// Where the mount fails, by mount(2) or fusermount3, or the kernel does not
    /// speak FUSE as expected. Nothing is left mounted then.
    pub fn start(
        fs: Arc<Fs>,
        mount_point: &Path,
        options: &MountOptions,
    ) -> Result<Self, AttachError> {
        let device = attach::attach(mount_point, options)?;
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads);
        // Replies are given on one descriptor, whoever gives them.
        config.clone_fd = false;
        config.acl =
            if options.allow_other { fuser::SessionACL::All } else { fuser::SessionACL::Owner };
        let acl = config.acl;
        let replies = match device.try_clone() {
            Ok(device) => Replies { device, pipes: options.pipes.clone() },
            Err(error) => {
                let _ = detach(mount_point, true);
                return Err(AttachError::Handshake(error));
            }
        };
        let kernel = Arc::new(Kernel::default());
        let adapter = Adapter::new(fs, options, replies, Arc::clone(&kernel));
        let session = fuser::Session::from_fd(adapter, device, acl, config)
            .map_err(AttachError::Handshake)
            .and_then(|session| {
                kernel.is_there(session.notifier());
                let run = move || session.run();
                let builder = std::thread::Builder::new().name("fuse".to_owned());
                builder.spawn(run).map_err(AttachError::Handshake)
            });
        match session {
            Ok(threads) => Ok(Self { mount_point: mount_point.to_owned(), threads: Some(threads) }),
            Err(error) => {
                let _ = detach(mount_point, true);
                Err(error)
            }
        }
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
