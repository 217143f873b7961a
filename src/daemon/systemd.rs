//! systemd: readiness, status and watchdog, and its store for descriptors, which keeps a
//! mount alive between a daemon that died and the next.
//!
//! The protocols are those of sd_notify(3) and sd_listen_fds(3). The crate `sd-notify` (0.5)
//! takes an abstract socket (`@...`) for the name of a file and can wait for the service
//! manager, so it is not used.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

/// The name of the device in the store.
const FD_NAME: &str = "fuse";

/// The first descriptor that is handed to a service (`SD_LISTEN_FDS_START`).
const LISTEN_FDS_START: i32 = 3;

/// Whether a service manager may keep the device: older versions do not announce it.
pub fn has_fd_store() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Whether a message may be lost if the service manager does not receive it at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Assured,
    BestEffort,
}

fn send_notification(text: &str, along: &[BorrowedFd<'_>], delivery: Delivery) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !along.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(along));
    }
    let flags = match delivery {
        Delivery::Assured => SendFlags::NOSIGNAL,
        Delivery::BestEffort => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    let parts = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(&socket, &address, &parts, &mut control, flags)?;
    Ok(())
}

fn notify(text: &str, along: &[BorrowedFd<'_>]) {
    if let Err(error) = send_notification(text, along, Delivery::Assured) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Reports that the mount answers.
pub(super) fn notify_ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", one_line(status)), &[]);
}

/// A line break would begin another assignment.
fn one_line(status: &str) -> String {
    status.replace('\n', " ")
}

/// Asks the service manager to keep this device.
pub(super) fn store_device(device: BorrowedFd<'_>) {
    notify(&format!("FDSTORE=1\nFDNAME={FD_NAME}\nFDPOLL=0"), &[device]);
}

/// Asks the service manager to drop the device, and reports that the service ends.
pub(super) fn clear_fd_store() {
    notify(&format!("STOPPING=1\nFDSTOREREMOVE=1\nFDNAME={FD_NAME}"), &[]);
}

/// Reports that another process is now the service's main process.
pub(super) fn notify_main_pid(pid: u32) {
    notify(&format!("MAINPID={pid}"), &[]);
}

/// The shortest time between two status checks.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Watchdog messages in each watchdog interval, so that a late or lost one has no effect.
const PINGS_PER_INTERVAL: u32 = 4;

/// Reports to the service manager while a daemon serves: its status, and watchdog messages if
/// the service has a watchdog.
///
/// *Invariant:* it never waits for the service manager.
pub(super) struct ServiceReporter {
    /// Time between two watchdog messages.
    ping_interval: Option<Duration>,
    pinged_at: Option<Instant>,
    looked_at: Option<Instant>,
    status: String,
}

impl ServiceReporter {
    /// A reporter, if this process belongs to a service.
    pub(super) fn new() -> Option<Self> {
        std::env::var_os("NOTIFY_SOCKET")?;
        // WATCHDOG_PID is not compared: a successor inherits its predecessor's.
        let watchdog = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let ping_interval =
            watchdog.map(|micros| Duration::from_micros(micros) / PINGS_PER_INTERVAL);
        Some(Self { ping_interval, pinged_at: None, looked_at: None, status: String::new() })
    }

    /// Sends the messages that are due `now`. `status` returns the current status.
    pub(super) fn report(&mut self, now: Instant, status: impl FnOnce() -> String) {
        if let Some(interval) = self.ping_interval
            && is_due(self.pinged_at, interval, now)
        {
            self.pinged_at = Some(now);
            send_if_possible("WATCHDOG=1");
        }
        if is_due(self.looked_at, STATUS_INTERVAL, now) {
            self.looked_at = Some(now);
            let status = one_line(&status());
            if status != self.status && send_if_possible(&format!("STATUS={status}")) {
                self.status = status;
            }
        }
    }
}

fn is_due(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= interval)
}

/// Sends a message without waiting. Returns whether it was sent.
fn send_if_possible(text: &str) -> bool {
    let sent = send_notification(text, &[], Delivery::BestEffort);
    if let Err(error) = &sent {
        tracing::debug!(%error, "cannot notify the service manager");
    }
    sent.is_ok()
}

/// The device that the service manager kept for this process. Must be called once, before any
/// file is opened.
pub(super) fn take_stored_device() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() {
        return None;
    }
    let count = i32::try_from(number("LISTEN_FDS")?).ok()?;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut device = None;
    for (fd, name) in (LISTEN_FDS_START..LISTEN_FDS_START.checked_add(count)?).zip(names.split(':'))
    {
        // SAFETY: LISTEN_PID says that the service manager passed this descriptor to this
        // process, and no other code of this process uses it.
        let stored = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = rustix::io::fcntl_setfd(&stored, rustix::io::FdFlags::CLOEXEC);
        if name == FD_NAME {
            device = Some(stored);
        }
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_messages_keep_their_interval() {
        let begun = Instant::now();
        assert!(is_due(None, STATUS_INTERVAL, begun));
        assert!(!is_due(Some(begun), STATUS_INTERVAL, begun + STATUS_INTERVAL / 2));
        assert!(is_due(Some(begun), STATUS_INTERVAL, begun + STATUS_INTERVAL));
    }

    #[test]
    fn a_mount_point_adds_no_line_to_the_status() {
        assert_eq!(one_line("serving /mnt\nMAINPID=1 from 1"), "serving /mnt MAINPID=1 from 1");
    }
}
