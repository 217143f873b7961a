//! The FUSE device's descriptor, and its replacement while the device is elsewhere.
//!
//! fuser knows the device by the number of a descriptor. The number refers to a socket while
//! the session negotiates with the kernel or is paused, and to `/dev/null` when the device is
//! released.

use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{DupFlags, Errno};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::volume::ByteRange;

/// `FUSE_NOTIFY_RESEND`
const FUSE_NOTIFY_RESEND: i32 = 7;

/// Makes the kernel resend the requests that were not answered.
pub(super) fn request_resend(device: BorrowedFd<'_>) -> io::Result<()> {
    // A `struct fuse_out_header` alone: length, notification code, no request.
    let mut notice = [0; 16];
    notice[..4].copy_from_slice(&16u32.to_ne_bytes());
    notice[4..8].copy_from_slice(&FUSE_NOTIFY_RESEND.to_ne_bytes());
    rustix::io::write(device, &notice)?;
    Ok(())
}

/// `FUSE_NOTIFY_INVAL_INODE`
const FUSE_NOTIFY_INVAL_INODE: i32 = 2;

/// Makes the kernel drop the pages of an inode that contain bytes of `range`. Waits for locked
/// pages.
pub(super) fn drop_pages(device: BorrowedFd<'_>, number: u64, range: ByteRange) -> io::Result<()> {
    // A `struct fuse_out_header`, and a `struct fuse_notify_inval_inode_out`: the inode, offset
    // and length.
    let mut notice = [0; 40];
    notice[..4].copy_from_slice(&40u32.to_ne_bytes());
    notice[4..8].copy_from_slice(&FUSE_NOTIFY_INVAL_INODE.to_ne_bytes());
    notice[16..24].copy_from_slice(&number.to_ne_bytes());
    notice[24..32].copy_from_slice(&range.start.to_ne_bytes());
    notice[32..].copy_from_slice(&range.len().to_ne_bytes());
    rustix::io::write(device, &notice)?;
    Ok(())
}

/// `FUSE_NOTIFY_STORE`
const FUSE_NOTIFY_STORE: i32 = 4;

/// Puts the first bytes of an inode into the page cache. Waits for locked pages.
pub(super) fn store_pages(device: BorrowedFd<'_>, number: u64, bytes: &[u8]) -> io::Result<()> {
    // A `struct fuse_out_header`, and a `struct fuse_notify_store_out`: the inode, offset, length
    // and padding.
    let mut notice = [0; 40];
    let len = u32::try_from(notice.len() + bytes.len()).map_err(|_| Errno::INVAL)?;
    notice[..4].copy_from_slice(&len.to_ne_bytes());
    notice[4..8].copy_from_slice(&FUSE_NOTIFY_STORE.to_ne_bytes());
    notice[16..24].copy_from_slice(&number.to_ne_bytes());
    notice[32..36].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
    rustix::io::writev(device, &[IoSlice::new(&notice), IoSlice::new(bytes)])?;
    Ok(())
}

/// Two ends of a socket that preserves message boundaries.
pub(super) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes the descriptor `number` refer to what `by` refers to.
pub(super) fn redirect_fd(number: BorrowedFd<'_>, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed, and `ManuallyDrop` prevents
    // this value from closing it.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number.as_raw_fd()) });
    Ok(rustix::io::dup3(by, &mut target, DupFlags::CLOEXEC)?)
}

/// A descriptor that accepts every reply and returns no request.
pub(super) fn open_dev_null() -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}
