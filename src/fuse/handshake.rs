//! INIT: the parameters that the kernel and fanfs agree on once for a mount.
//!
//! The kernel sends INIT when it mounts and never again, but fuser begins every session with
//! it. So fuser gets a socket instead of the device. It receives there the INIT that the kernel
//! sent, to this process or to an earlier one. When fuser has answered, the device takes the
//! socket's place. A process that continues a mount must send the same answer as then, byte for
//! byte, because the kernel relies on that one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::MountOptions;
use super::adapter::Adapter;
use super::device_fd::{open_dev_null, redirect_fd, seqpacket_pair};
use super::notifier::KernelNotifier;
use super::raw_reply::RawReplies;
use super::session_pause::SessionPauser;
use crate::fs::Fs;

/// The kernel's INIT request, and the reply to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitParams {
    asked: Vec<u8>,
    answer: Vec<u8>,
}

/// A session that is ready to continue a mount.
pub struct ResumableSession(pub(super) NegotiatedSession);

/// A session that has negotiated its parameters and has no device yet.
pub(super) struct NegotiatedSession {
    session: fuser::Session<Adapter>,
    notifier: Arc<KernelNotifier>,
    /// The device for replies; /dev/null until the session runs.
    reply_device: Arc<OwnedFd>,
}

/// No INIT is longer; the kernel requires a buffer with room to spare.
const INIT_BUFFER_BYTES: usize = 64 * 1024;

/// The offset of the flags: the length of `struct fuse_in_header`, and their offset in
/// `struct fuse_init_in`.
const INIT_FLAGS_OFFSET: usize = 40 + 12;

/// The offset of the flags in the reply: the length of `struct fuse_out_header`, and their offset
/// in `struct fuse_init_out`.
const REPLY_FLAGS_OFFSET: usize = 16 + 12;

/// `FUSE_CACHE_SYMLINKS`: the kernel keeps the targets of symbolic links.
const FUSE_CACHE_SYMLINKS: u32 = 1 << 23;

/// `FUSE_NO_OPEN_SUPPORT`: the kernel can read files without opening them.
const FUSE_NO_OPEN_SUPPORT: u32 = 1 << 17;

/// `FUSE_INIT_EXT`: a second word of flags follows.
const FUSE_INIT_EXT: u32 = 1 << 30;

/// `FUSE_HAS_RESEND`, in the second word.
const FUSE_HAS_RESEND: u32 = 1 << (39 - 32);

impl InitParams {
    pub(super) fn init_request(&self) -> &[u8] {
        &self.asked
    }

    pub(super) fn init_reply(&self) -> &[u8] {
        &self.answer
    }

    /// Whether the kernel can resend requests that were not answered (Linux 6.9).
    pub fn can_resend(&self) -> bool {
        let has = |at, flag| word_at(&self.asked, at).is_some_and(|flags| flags & flag != 0);
        has(INIT_FLAGS_OFFSET, FUSE_INIT_EXT) && has(INIT_FLAGS_OFFSET + 4, FUSE_HAS_RESEND)
    }

    /// Whether the kernel may read files without opening them.
    pub fn omits_opens(&self) -> bool {
        word_at(&self.answer, REPLY_FLAGS_OFFSET)
            .is_some_and(|flags| flags & FUSE_NO_OPEN_SUPPORT != 0)
    }

    /// Whether the mount is of an immutable volume. `None` if the kernel does not distinguish them
    /// (before Linux 4.20).
    pub fn is_immutable(&self) -> Option<bool> {
        let has =
            |bytes, at| word_at(bytes, at).is_some_and(|flags| flags & FUSE_CACHE_SYMLINKS != 0);
        has(&self.asked, INIT_FLAGS_OFFSET).then(|| has(&self.answer, REPLY_FLAGS_OFFSET))
    }
}

/// The 32-bit number at this offset.
fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*word))
}

/// Receives the kernel's INIT.
pub(super) fn read_message(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; INIT_BUFFER_BYTES];
    loop {
        match rustix::io::read(device, &mut bytes[..]) {
            Ok(n) => {
                bytes.truncate(n);
                return Ok(bytes);
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl NegotiatedSession {
    /// Agrees on the needs of `options` and `fs` with a kernel that sent the INIT `asked`.
    pub(super) fn negotiate(
        fs: Arc<Fs>,
        options: &MountOptions,
        asked: Vec<u8>,
    ) -> io::Result<(Self, InitParams)> {
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads);
        // All threads write replies to the same descriptor.
        config.clone_fd = false;
        config.acl =
            if options.allow_other { fuser::SessionACL::All } else { fuser::SessionACL::Owner };
        let acl = config.acl;
        let (ours, theirs) = seqpacket_pair()?;
        rustix::io::write(&ours, &asked)?;
        let device = Arc::new(open_dev_null()?);
        let replies = RawReplies { device: Arc::clone(&device), pipes: options.pipes.clone() };
        let kernel = Arc::new(KernelNotifier::default());
        let adapter = Adapter::new(fs, options, replies, Arc::clone(&kernel));
        let session = fuser::Session::from_fd(adapter, theirs, acl, config)?;
        let answer = read_message(ours.as_fd())?;
        kernel.set_notifier(session.notifier());
        Ok((Self { session, notifier: kernel, reply_device: device }, InitParams { asked, answer }))
    }

    /// Serves `device` on threads of its own.
    pub(super) fn run(
        self,
        device: OwnedFd,
    ) -> io::Result<(SessionPauser, JoinHandle<io::Result<()>>)> {
        let Self { session, notifier: kernel, reply_device: replies } = self;
        redirect_fd(replies.as_fd(), device.as_fd())?;
        redirect_fd(session.as_fd(), device.as_fd())?;
        let parking = SessionPauser::new(session.as_fd(), kernel, replies);
        let run = move || session.run();
        let threads = std::thread::Builder::new().name("fuse".to_owned()).spawn(run)?;
        Ok((parking, threads))
    }
}
