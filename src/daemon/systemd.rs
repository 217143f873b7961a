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
const FD_NAME: &str = "fuse";

/// The first descriptor that is handed to a service (`SD_LISTEN_FDS_START`).
const LISTEN_FDS_START: i32 = 3;

/// Whether there may be somebody to keep the device: older versions do not say.
pub fn has_fd_store() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn send_notification(text: &str, along: &[BorrowedFd<'_>]) -> io::Result<()> {
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

fn notify(text: &str, along: &[BorrowedFd<'_>]) {
    if let Err(error) = send_notification(text, along) {
        tracing::warn!(%error, "the service manager does not listen");
    }
}

/// The mount answers.
pub(super) fn notify_ready() {
    notify("READY=1", &[]);
}

/// The mount of this device is to be kept.
pub(super) fn store_device(device: BorrowedFd<'_>) {
    notify(&format!("FDSTORE=1\nFDNAME={FD_NAME}\nFDPOLL=0"), &[device]);
}

/// There is nothing to be kept any more.
pub fn clear_fd_store() {
    notify(&format!("STOPPING=1\nFDSTOREREMOVE=1\nFDNAME={FD_NAME}"), &[]);
}

/// Another process is the service now.
pub(super) fn notify_main_pid(pid: u32) {
    notify(&format!("MAINPID={pid}"), &[]);
}

/// The device that was kept for this process. Ask once, before anything is opened.
pub fn take_stored_device() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() {
        return None;
    }
    let count = i32::try_from(number("LISTEN_FDS")?).ok()?;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut device = None;
    for (fd, name) in (LISTEN_FDS_START..LISTEN_FDS_START.checked_add(count)?).zip(names.split(':'))
    {
        // SAFETY: the service manager says that this descriptor is ours, and nobody
        // else in this process looks for it.
        let given = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = rustix::io::fcntl_setfd(&given, rustix::io::FdFlags::CLOEXEC);
        if name == FD_NAME {
            device = Some(given);
        }
    }
    device
}
