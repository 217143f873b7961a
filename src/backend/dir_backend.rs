//! The real backend: a directory, usually an NFS mount's root.
//!
//! The backend holds a descriptor of the root while the replica is in service ([`root`]). So the
//! replica stays the same mount, even if another one is mounted over its path. If that mount is
//! gone, the backend examines the path again. openat2(2) resolves every path beneath that
//! descriptor with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`: a symbolic link planted in the tree
//! leads nowhere, neither out of the replica nor to another place in it. Lookups cross mounts
//! inside a replica, as an NFS export may contain several file systems. Changes to the tree are in
//! [`mutate`].

mod base_dir;
mod file_handle;
mod mutate;
mod revalidate;
mod root;
mod root_device;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use rustix::buffer::{SpareCapacity, spare_capacity};
use rustix::fs::{
    Advice, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags, fadvise, getxattr,
    listxattr, openat, openat2, readlinkat, statx,
};
use rustix::io::{Errno, pread};
use rustix::pipe::{SpliceFlags, splice};

use super::{
    Attr, Backend, BackendError, BackendFile, CreateOptions, EntryRef, EntryVisitor, ErrorOrigin,
    FileKind, FileMutation, FileParts, Lock, LockRequest, ObjectRef, OwnedFileParts, Result,
    SeekTo, StatFs, SubmitResult, SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
    report_progress,
};
use crate::capabilities::{self, Capabilities};
use crate::survey::{AdmissionRefusal, Roster, RosterEntry};
use root::RootSlot;
use root_device::{RootDevice, kind_of};

/// The longest path that the kernel takes in one call (`PATH_MAX` less the NUL). Longer paths are
/// resolved in steps.
const MAX_PATH_LEN: usize = 4095;

/// How often a path with `..` is resolved again if the kernel answers EAGAIN. No request of the
/// mount has such a path.
const MAX_PARENT_RETRIES: u32 = 10_000;

/// The kernel's limit for an extended attribute's value and for the list of names
/// (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_MAX: usize = 64 * 1024;

/// Most attributes and lists of names are shorter.
const XATTR_USUAL: usize = 256;

/// A mounted directory.
pub struct DirBackend {
    root_slot: RootSlot,
    /// Whether its files are read with O_DIRECT; `None` means on NFS only.
    direct: Option<bool>,
}

/// The alignment of O_DIRECT offsets, lengths and memory where the file system requires one.
/// Devices have blocks of at most one page.
const DIRECT_IO_ALIGN: u64 = 4096;

impl DirBackend {
    /// A replica out of service: every call fails at once until [`Backend::check_mount`] finds the
    /// replica and its roster entry admits it. Reads bypass the page cache on NFS and use it on
    /// other file systems.
    pub fn absent(seat: RosterEntry) -> Self {
        Self { root_slot: RootSlot::absent(seat), direct: None }
    }

    /// A replica in service, without peers to compare it with.
    ///
    /// # Errors
    /// The errno of open(2); `ENOSYS` on a kernel without openat2 (before 5.6).
    pub fn open(path: &Path) -> Result<Self> {
        let directory = Self::absent(Roster::single(path));
        match directory.root_slot.enter_service() {
            Ok(()) => Ok(directory),
            Err(AdmissionRefusal::Unreachable(errno)) => Err(errno.into()),
            Err(_) => Err(BackendError::Absent),
        }
    }

    /// Reads files past the page cache, or through it, on any file system. A file that cannot be
    /// opened with O_DIRECT is still read through it.
    #[must_use]
    pub fn with_direct_io(self, direct: bool) -> Self {
        Self { direct: Some(direct), ..self }
    }

    /// Opens a file for direct reads, for cached reads, or for both.
    fn open_file(&self, path: &Path) -> Result<DirFile> {
        let flags = OFlags::RDONLY;
        let root = self.root_slot.root()?;
        let device = root.device;
        // NFS has no blocks; its O_DIRECT takes any range.
        let any_range = root.is_nfs();
        let is_direct = self.direct.unwrap_or(any_range);
        if is_direct && any_range {
            match self.resolve_file(path, flags | OFlags::DIRECT) {
                Err(BackendError::Os(Errno::INVAL)) => {}
                opened => return Ok(DirFile { direct: Some(opened?), cached: None, device }),
            }
        }
        let cached = self.resolve_file(path, flags)?;
        // Not by its name, which may refer to another file by now.
        let again = flags | OFlags::NONBLOCK | OFlags::DIRECT | OFlags::CLOEXEC;
        let reopen = || openat(rustix::fs::CWD, proc_path(&cached), again, Mode::empty()).ok();
        let direct = if is_direct { reopen() } else { None };
        Ok(DirFile { direct, cached: Some(cached), device })
    }

    /// The device of the root. Open files need it even out of service.
    fn device(&self) -> Result<RootDevice> {
        self.root_slot.device().ok_or(BackendError::Absent)
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() <= MAX_PATH_LEN {
            return open_beneath(self.root_slot.root()?.fd.as_fd(), bytes, flags, Mode::empty());
        }
        self.resolve_in_steps(bytes, flags)
    }

    /// A descriptor of an object: its open file's, or a new one.
    fn object_fd<'a>(&self, target: &'a ObjectRef) -> Result<ObjectFd<'a>> {
        match target.open_file().and_then(BackendFile::descriptor) {
            Some(open) => Ok(ObjectFd::Borrowed(open)),
            None => self.resolve_target(target, OFlags::PATH).map(ObjectFd::Opened),
        }
    }

    /// Opens a regular file. The first try has O_NONBLOCK, as a named pipe may have taken its
    /// place. If a lease on a regular file causes EAGAIN, the second try waits for it.
    fn open_regular(
        &self,
        flags: OFlags,
        open: impl Fn(OFlags) -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        match open(flags | OFlags::NONBLOCK) {
            Err(BackendError::Os(Errno::AGAIN)) => {
                let object = open(OFlags::PATH)?;
                match self.device()?.attr(object.as_fd())?.kind {
                    FileKind::Regular => open(flags),
                    _ => Err(Errno::AGAIN.into()),
                }
            }
            opened => opened,
        }
    }

    fn resolve_file(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.open_regular(flags, |flags| self.resolve(path, flags))
    }

    fn resolve_in_steps(&self, mut rest: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let root = self.root_slot.root()?;
        let mut dir: Option<OwnedFd> = None;
        while rest.len() > MAX_PATH_LEN {
            let cut = rest[..=MAX_PATH_LEN]
                .iter()
                .rposition(|byte| *byte == b'/')
                .ok_or(Errno::NAMETOOLONG)?;
            let at = dir.as_ref().map_or(root.fd.as_fd(), AsFd::as_fd);
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = Some(open_beneath(at, &rest[..cut], step, Mode::empty())?);
            rest = &rest[cut + 1..];
        }
        let last = dir.as_ref().map_or(root.fd.as_fd(), AsFd::as_fd);
        open_beneath(last, rest, flags, Mode::empty())
    }
}

/// A descriptor of an object.
enum ObjectFd<'a> {
    Borrowed(BorrowedFd<'a>),
    /// Opened here with `O_PATH`.
    Opened(OwnedFd),
}

impl AsRawFd for ObjectFd<'_> {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Borrowed(open) => open.as_raw_fd(),
            Self::Opened(found) => found.as_raw_fd(),
        }
    }
}

fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut retries = 0;
    loop {
        match openat2(dir, OsStr::from_bytes(path), flags, mode, resolve) {
            // The kernel does not follow `..` while anything is renamed or mounted anywhere.
            Err(Errno::AGAIN) if retries < MAX_PARENT_RETRIES && has_parent(path) => retries += 1,
            result => return Ok(result?),
        }
    }
}

fn has_parent(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

impl Backend for DirBackend {
    fn stat(&self, path: &Path) -> Result<Attr> {
        // The root is open, so it is shown even if there are no other descriptors.
        if path.as_os_str().is_empty() {
            let root = self.root_slot.root()?;
            return root.device.attr(root.fd.as_fd());
        }
        self.device()?.attr(self.resolve(path, OFlags::PATH)?.as_fd())
    }

    fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
        let (dir, name) = self.resolve_entry(name)?;
        self.device()?.attr_at(dir.as_fd(), name)
    }

    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        let dir = self.open_base_dir(dir)?;
        let device = self.device()?;
        let look = |name: &OsString| {
            let attr = device.attr_at(dir.as_fd(), name);
            report_progress();
            attr
        };
        Ok(names.iter().map(look).collect())
    }

    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        let dir = self.resolve_target(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        // Not by opening its `.`: the right to list a directory does not include the right to
        // search it.
        let listing = rustix::fs::Dir::new(rustix::io::fcntl_dupfd_cloexec(&dir, 0)?)?;
        for entry in listing {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                // Not every NFS server sends the type. An entry that has gone since is left out.
                None => match statx(&dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
                    Ok(s) => self.device()?.attr_from_statx(&s)?.kind,
                    Err(Errno::NOENT) => continue,
                    // A dead mount must not hide the other names: list it as a directory.
                    Err(errno) if BackendError::Os(errno).origin() == ErrorOrigin::Unclear => {
                        FileKind::Directory
                    }
                    Err(errno) => return Err(errno.into()),
                },
            };
            each(OsStr::from_bytes(name.to_bytes()), entry.ino(), kind);
        }
        Ok(())
    }

    fn read_link(&self, link: &ObjectRef) -> Result<OsString> {
        let link = self.resolve_target(link, OFlags::PATH)?;
        let target = readlinkat(&link, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        let file = self.open_file(path)?;
        let attr = file.attr()?;
        if attr.kind != FileKind::Regular {
            return Err(BackendError::Os(Errno::STALE));
        }
        if let Some(cached) = &file.cached {
            // fanfs reads ahead itself and reads neighboring segments from other replicas. Most of
            // the kernel's readahead here would be wasted.
            let _ = fadvise(cached, 0, None, Advice::Random);
        }
        Ok((Arc::new(file), attr))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let s = rustix::fs::fstatvfs(&self.root_slot.root()?.fd)?;
        Ok(StatFs {
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            bsize: s.f_bsize as u32,
            frsize: s.f_frsize as u32,
            namelen: s.f_namemax as u32,
        })
    }

    fn get_xattr(&self, object: &ObjectRef, name: &OsStr) -> Result<Vec<u8>> {
        let file = self.object_fd(object)?;
        // To read other attributes takes no capability.
        let _raised = is_trusted_xattr(name).then(|| capabilities::raise(xattr_capabilities(name)));
        read_xattrs(|buffer| getxattr(proc_path(&file), name, buffer))
    }

    fn list_xattr(&self, object: &ObjectRef) -> Result<Vec<u8>> {
        let file = self.object_fd(object)?;
        // Only a privileged process sees the `trusted` names.
        let _raised = capabilities::raise(capabilities::ADMIN);
        read_xattrs(|buffer| listxattr(proc_path(&file), buffer))
    }

    fn check_mount(&self) -> Result<bool> {
        self.root_slot.check_mount()
    }

    fn handle_unmount(&self, mount: u64) {
        self.root_slot.handle_unmount(mount);
    }

    fn mount_id(&self) -> Option<u64> {
        self.root_slot.root().ok()?.watched_mount()
    }

    fn reads_without_threads(&self) -> bool {
        false
    }

    fn is_in_service(&self) -> bool {
        self.root_slot.root().is_ok()
    }

    fn check_open_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.resolve_target(dir, OFlags::RDONLY | OFlags::DIRECTORY).map(drop)
    }

    fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.revalidate_opened(self.resolve_target(dir, OFlags::PATH | OFlags::DIRECTORY)?)
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        self.open_writable(path, how)
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        self.create_writable(name, how, create)
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        self.apply(change)
    }

    /// Its files are closed where they are dropped.
    fn flush_closes(&self) {}

    fn adopt(&self, mut parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        if parts.direct.is_none() && parts.cached.is_none() {
            return None;
        }
        let device = self.root_slot.device()?;
        let direct = parts.direct.take();
        let cached = parts.cached.take();
        Some(Arc::new(DirFile { direct, cached, device }))
    }
}

/// A path to the object of an `O_PATH` descriptor, symbolic links included: the xattr calls do not
/// take such a descriptor itself.
fn proc_path(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Reads an extended attribute, or the names of all.
fn read_xattrs(
    read: impl Fn(SpareCapacity<'_, u8>) -> rustix::io::Result<usize>,
) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(XATTR_USUAL);
    match read(spare_capacity(&mut value)) {
        Err(Errno::RANGE) => {
            value.reserve_exact(XATTR_MAX);
            read(spare_capacity(&mut value))?;
        }
        read => drop(read?),
    }
    Ok(value)
}

/// Whether only a privileged process can read this attribute.
fn is_trusted_xattr(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"trusted.")
}

/// The capabilities to read or change this attribute. The kernel has already checked the caller's
/// rights.
fn xattr_capabilities(name: &OsStr) -> Capabilities {
    if is_trusted_xattr(name) {
        capabilities::ADMIN
    } else if name.as_bytes().starts_with(b"security.") {
        capabilities::ADMIN | capabilities::FILE_CAPS
    } else {
        Capabilities::empty()
    }
}

/// A file that is open for direct reads, for cached reads, or for both.
struct DirFile {
    direct: Option<OwnedFd>,
    /// Always present if `direct` does not take every range.
    cached: Option<OwnedFd>,
    device: RootDevice,
}

impl DirFile {
    fn any_fd(&self) -> BorrowedFd<'_> {
        let any = self.cached.as_ref().or(self.direct.as_ref());
        any.expect("a file is open in some way").as_fd()
    }

    /// The descriptor for a read of `buf.len()` bytes from `offset`.
    fn fd_for_range(&self, offset: u64, buf: &[u8]) -> BorrowedFd<'_> {
        let in_blocks = [offset, buf.len() as u64, buf.as_ptr() as u64]
            .iter()
            .all(|number| number.is_multiple_of(DIRECT_IO_ALIGN));
        match (&self.direct, &self.cached) {
            (Some(direct), None) => direct.as_fd(),
            (Some(direct), Some(_)) if in_blocks => direct.as_fd(),
            _ => self.any_fd(),
        }
    }
}

impl BackendFile for DirFile {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any_fd())
    }

    fn parts(&self) -> FileParts<'_> {
        let [direct, cached] = [&self.direct, &self.cached].map(|fd| fd.as_ref().map(AsFd::as_fd));
        FileParts { direct, cached, export: None }
    }

    fn is_deferred(&self) -> bool {
        false
    }

    fn attr(&self) -> Result<Attr> {
        self.device.attr(self.any_fd())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.fd_for_range(offset, buf);
        loop {
            match pread(file, &mut *buf, offset) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// The kernel's reads hold their threads.
    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        let file = self.cached.as_ref().filter(|_| self.direct.is_none())?;
        let mut at = offset;
        loop {
            match splice(file, Some(&mut at), pipe, None, len, SpliceFlags::NONBLOCK) {
                Err(Errno::INTR) => {}
                // The file system does not support splice.
                Err(Errno::INVAL) => return None,
                result => return Some(result.map_err(BackendError::from)),
            }
        }
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        let to = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        Ok(rustix::fs::seek(self.any_fd(), to)?)
    }

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        self.apply(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.lock_range(request)
    }
}
