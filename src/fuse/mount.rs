//! Making and ending the mount: mount(2) if privileged, fusermount3 otherwise.
//!
//! Done here rather than by fuser, which unmounts by path at its session's end, and so may hit
//! a mount that was made there since.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{MountOptions, MountTarget};
use crate::capabilities;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Why a mount could not be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No FUSE device.
    #[error("cannot open {DEVICE}: {0}; load the kernel module (`modprobe fuse`)")]
    Device(Errno),
    /// This user may not use the FUSE device; then fusermount3 does not allow it either.
    #[error("this user may not open {DEVICE}; its usual mode is 0666")]
    DeviceForbidden,
    /// mount(2) refused.
    #[error("cannot mount on {}: {errno}", .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// fusermount3 refused.
    #[error("{HELPER}: {0}")]
    Helper(String),
    /// fusermount3 is not there.
    #[error("mounting as an ordinary user needs {HELPER} (package fuse3): {0}")]
    NoHelper(std::io::Error),
    /// The kernel and fanfs could not agree.
    #[error("the kernel refused the FUSE session: {0}")]
    Handshake(std::io::Error),
    /// Something still uses the mount.
    #[error(
        "{} is in use: close the files that are open there (`fuser -vm {}` lists the processes), \
         or unmount with --lazy",
        .0.display(),
        .0.display()
    )]
    Busy(PathBuf),
    /// umount2(2) refused.
    #[error("cannot unmount {}: {errno}", .path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Mounts and returns the session's descriptor.
pub(super) fn mount(place: &MountTarget, options: &MountOptions) -> Result<OwnedFd, MountError> {
    match place.has_dead_mount {
        true => replace_dead(&place.path, options),
        false => mount_new(&place.path, options),
    }
}

/// Replaces a dead mount. If the kernel can mount beneath it (Linux 6.5), there is no moment
/// without a mount.
fn replace_dead(mount_point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    match mount_beneath(&device, mount_point, options) {
        Ok(()) => {
            unmount(mount_point, true)?;
            Ok(device)
        }
        Err(errno) => {
            tracing::debug!(%errno, "cannot mount beneath the dead mount");
            unmount(mount_point, true)?;
            mount_new(mount_point, options)
        }
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS => MountError::DeviceForbidden,
        errno => MountError::Device(errno),
    })
}

fn mount_new(mount_point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    match mount_by_syscall(&device, mount_point, options) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_by_helper(mount_point, options),
        Err(errno) => Err(MountError::Mount { path: mount_point.to_owned(), errno }),
    }
}

fn mount_by_syscall(
    device: &OwnedFd,
    mount_point: &Path,
    options: &MountOptions,
) -> Result<(), Errno> {
    let mut flags = MountFlags::NOATIME;
    for (set, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
    ] {
        if set {
            flags |= flag;
        }
    }
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let other = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{other}",
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
    let _raised = capabilities::raise(capabilities::ADMIN);
    rustix::mount::mount(&*options.name, mount_point, "fuse.fanfs", flags, Some(data.as_c_str()))
}

/// Mounts beneath the mount at `mount_point`.
fn mount_beneath(
    device: &OwnedFd,
    mount_point: &Path,
    options: &MountOptions,
) -> Result<(), Errno> {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOATIME;
    for (set, attribute) in [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        if set {
            attributes |= attribute;
        }
    }
    let _raised = capabilities::raise(capabilities::ADMIN);
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", &*options.name)?;
    fsconfig_set_string(&context, "subtype", "fanfs")?;
    fsconfig_set_string(&context, "fd", device.as_raw_fd().to_string())?;
    fsconfig_set_string(&context, "rootmode", "40000")?;
    let uid = rustix::process::getuid();
    let gid = rustix::process::getgid();
    fsconfig_set_string(&context, "user_id", uid.as_raw().to_string())?;
    fsconfig_set_string(&context, "group_id", gid.as_raw().to_string())?;
    fsconfig_set_flag(&context, "default_permissions")?;
    for (set, flag) in [(options.allow_other, "allow_other"), (options.read_only, "ro")] {
        if set {
            fsconfig_set_flag(&context, flag)?;
        }
    }
    fsconfig_create(&context)?;
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(&tree, "", CWD, mount_point, flags)
}

fn mount_by_helper(mount_point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::NoHelper)?;
    // The helper finds its end by the descriptor's number, so the descriptor must survive exec.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())
        .map_err(|errno| MountError::NoHelper(errno.into()))?;
    // A comma or backslash in a name would end the option.
    let name = options.name.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("noatime,fsname={name},subtype=fanfs,default_permissions");
    for (set, option) in [
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (!options.suid, ",nosuid"),
        (!options.dev, ",nodev"),
        (!options.exec, ",noexec"),
    ] {
        if set {
            list.push_str(option);
        }
    }
    let child = Command::new(HELPER)
        .args(["-o", &list, "--"])
        .arg(mount_point)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(MountError::NoHelper)?;
    received.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("fusermount3: ");
        MountError::Helper(said.lines().next().unwrap_or("it failed and gave no reason").to_owned())
    })
}

fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, flags).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Ends the mount at `mount_point`. With `lazy`, also while it is in use: the mount disappears
/// from the tree at once, and open files stay usable until they are closed.
///
/// # Errors
/// [`MountError::Busy`] if it is in use and `lazy` is not set, and the other reasons.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let unmounted = {
        let _raised = capabilities::raise(capabilities::ADMIN);
        rustix::mount::unmount(mount_point, flags | UnmountFlags::NOFOLLOW)
    };
    match unmounted {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mount_point.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(mount_point, lazy),
        Err(errno) => Err(MountError::Unmount { path: mount_point.to_owned(), errno }),
    }
}

/// Ends the connection of the mount at `mount_point`, whose device number is `number`. The
/// mount stays, and calls on it fail with ENOTCONN. This is for a dead daemon: its threads that
/// hang in a replica would keep the connection, and callers would wait.
///
/// # Errors
/// If this user may not; then the connection ends with the dead daemon's last thread.
pub fn abort_connection(mount_point: &Path, number: (u32, u32)) -> io::Result<()> {
    // The kernel names connections by the device number, whose major is 0.
    let control = format!("/sys/fs/fuse/connections/{}/abort", number.1);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(control) = rustix::fs::open(control, flags, Mode::empty()) {
        rustix::io::write(&control, b"1")?;
        return Ok(());
    }
    // Without fusectl: a forced unmount ends the connection even if the mount is in use. This
    // descriptor keeps it in use, so that the mount stays.
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let _in_use = rustix::fs::open(mount_point, flags, Mode::empty())?;
    let _raised = capabilities::raise(capabilities::ADMIN);
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mount_point, flags) {
        Err(Errno::BUSY) => Ok(()),
        unmounted => Ok(unmounted?),
    }
}

fn unmount_by_helper(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mount_point).output().map_err(MountError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(MountError::Busy(mount_point.to_owned()));
    }
    let said = said.trim().trim_start_matches("fusermount3: ");
    Err(MountError::Helper(said.to_owned()))
}
