//! systemd: readiness, and its store for descriptors, which keeps a mount alive between
//! a daemon that died and the next.
//!
//! The protocols are those of sd_notify(3) and sd_listen_fds(3).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

/// The name of the device in the store.
const NAME: &str = "fuse";

/// The first descriptor that is handed to a service (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// Whether there may be somebody to keep the device: older versions do not say.
pub fn keeps() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn tell(text: &str, along: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !along.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(along));
    }
    let parts = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(&socket, &address, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn say(text: &str, along: &[BorrowedFd<'_>]) {
    if let Err(error) = tell(text, along) {
        tracing::warn!(%error, "the service manager does not listen");
    }
}

/// The mount answers.
pub(super) fn ready() {
    say("READY=1", &[]);
}

/// The mount of this device is to be kept.
pub(super) fn keep(device: BorrowedFd<'_>) {
    say(&format!("FDSTORE=1\nFDNAME={NAME}\nFDPOLL=0"), &[device]);
}

/// There is nothing to be kept any more.
pub fn keep_no_more() {
    say(&format!("STOPPING=1\nFDSTOREREMOVE=1\nFDNAME={NAME}"), &[]);
}

/// Another process is the service now.
pub(super) fn main_process(pid: u32) {
    say(&format!("MAINPID={pid}"), &[]);
}

/// The device that was kept for this process. Ask once, before anything is opened.
pub fn kept() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() {
        return None;
    }
    let count = i32::try_from(number("LISTEN_FDS")?).ok()?;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut device = None;
    for (fd, name) in (FIRST..FIRST.checked_add(count)?).zip(names.split(':')) {
        // SAFETY: the service manager says that this descriptor is ours, and nobody
        // else in this process looks for it.
        let given = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = rustix::io::fcntl_setfd(&given, rustix::io::FdFlags::CLOEXEC);
        if name == NAME {
            device = Some(given);
        }
    }
    device
}
