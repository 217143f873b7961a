//! Messages, with descriptors, between the processes that serve one mount in turn.
//!
//! Each process has one end of a socket pair; the new process is started with its end as
//! standard input. A message is one JSON value; no other process can send on the pair.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of the socket pair.
#[derive(Debug)]
pub(super) struct FdChannel(OwnedFd);

/// Descriptors in one message; the kernel takes at most 253 (`SCM_MAX_FD`).
pub(super) const MAX_FDS_PER_MESSAGE: usize = 250;

/// The longest message, bytes.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;

impl FdChannel {
    /// Makes a pair and returns both ends.
    ///
    /// # Errors
    /// If the process has no free descriptors.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that this process was started with, as standard input.
    ///
    /// # Errors
    /// If standard input or /dev/null cannot be used.
    pub(super) fn from_stdin() -> io::Result<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
        let null = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(null)?;
        Ok(Self(own))
    }

    /// An end that came with a message.
    pub(super) fn from_fd(end: OwnedFd) -> Self {
        Self(end)
    }

    /// The descriptor of this end, for sending it to another process.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A second handle of the same end.
    ///
    /// # Errors
    /// If the process has no free descriptors.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Whether the other end is closed.
    pub(super) fn is_peer_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Without requested events, only POLLHUP and errors are reported.
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Sends a message with descriptors.
    ///
    /// # Errors
    /// If the other end is closed, or `along` is too long.
    pub(super) fn send(
        &self,
        message: &impl Serialize,
        along: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space =
            vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS_PER_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !along.is_empty() && !control.push(SendAncillaryMessage::ScmRights(along)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message with its descriptors. Waits at most `patience`, or without
    /// limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the other end is closed, [`io::ErrorKind::TimedOut`]
    /// if no message came in time.
    pub(super) fn recv<T: DeserializeOwned>(
        &self,
        patience: Option<Duration>,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        if let Some(patience) = patience {
            self.wait_readable(patience)?;
        }
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let mut space =
            vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS_PER_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut parts, &mut control, flags) {
                // The kernel reports CONNRESET once if the other end was closed with messages
                // unread. Messages that the other end sent before can still be received.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                received => break received?,
            }
        };
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut along = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                along.extend(descriptors);
            }
        }
        Ok((serde_json::from_slice(&bytes[..received.bytes])?, along))
    }

    fn wait_readable(&self, patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
