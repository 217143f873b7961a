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

/// Whether a service manager may keep the device: older versions do not say.
pub fn has_fd_store() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Whether a message may be lost where the service manager does not take messages at once.
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
        tracing::warn!(%error, "the service manager does not listen");
    }
}

/// The mount answers.
pub(super) fn notify_ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", one_line(status)), &[]);
}

/// A line break would begin another assignment.
fn one_line(status: &str) -> String {
    status.replace('\n', " ")
}

/// The mount of this device is to be kept.
pub(super) fn store_device(device: BorrowedFd<'_>) {
    notify(&format!("FDSTORE=1\nFDNAME={FD_NAME}\nFDPOLL=0"), &[device]);
}

/// No device is to be kept any more.
pub(super) fn clear_fd_store() {
    notify(&format!("STOPPING=1\nFDSTOREREMOVE=1\nFDNAME={FD_NAME}"), &[]);
}

/// Another process is the service now.
pub(super) fn notify_main_pid(pid: u32) {
    notify(&format!("MAINPID={pid}"), &[]);
}

/// How often the status may change.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Messages in each interval of the watchdog: one that is late or lost has no effect.
const PINGS_PER_INTERVAL: u32 = 4;

/// What the main loop of a daemon sends to the service manager while it serves: its status,
/// and a sign of life where the service has a watchdog.
///
/// *Invariant:* it does not wait for the service manager.
pub(super) struct ServiceReporter {
    /// Time between two signs of life.
    ping_interval: Option<Duration>,
    pinged_at: Option<Instant>,
    looked_at: Option<Instant>,
    status: String,
}

impl ServiceReporter {
    /// A reporter for the service of this process, if it is one's.
    pub(super) fn new() -> Option<Self> {
        std::env::var_os("NOTIFY_SOCKET")?;
        // WATCHDOG_PID is not compared: a successor has inherited its predecessor's.
        let watchdog = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let ping_interval =
            watchdog.map(|micros| Duration::from_micros(micros) / PINGS_PER_INTERVAL);
        Some(Self { ping_interval, pinged_at: None, looked_at: None, status: String::new() })
    }

    /// Sends what is due `now`. `status` is the present one.
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

/// Whether the message was sent.
fn send_if_possible(text: &str) -> bool {
    let sent = send_notification(text, &[], Delivery::BestEffort);
    if let Err(error) = &sent {
        tracing::debug!(%error, "the service manager does not listen");
    }
    sent.is_ok()
}

/// The device that was kept for this process. Ask once, before anything is opened.
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
        // SAFETY: the service manager says that this descriptor is ours, and no
        // other code of this process looks for it.
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
    fn signs_of_life_and_looks_have_their_intervals() {
        let begun = Instant::now();
        assert!(is_due(None, STATUS_INTERVAL, begun));
        assert!(!is_due(Some(begun), STATUS_INTERVAL, begun + STATUS_INTERVAL / 2));
        assert!(is_due(Some(begun), STATUS_INTERVAL, begun + STATUS_INTERVAL));
    }

    #[test]
    fn a_mount_point_adds_no_assignment() {
        assert_eq!(one_line("serving /mnt\nMAINPID=1 from 1"), "serving /mnt MAINPID=1 from 1");
    }
}
