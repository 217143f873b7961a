//! A backend without a mount: an NFS server's export, read by fanfs's own client.
//!
//! While the replica is in service, the backend has the export's tree ([`export_tree`]): its root,
//! and connections to its server. A call asks the server with the caller's identity, and the server
//! decides what the caller may do. Calls end after the volume's longest deadline, so no thread waits
//! for a dead server longer than that.
//!
//! A path is looked up name by name from the root, so no symbolic link is followed. The client
//! keeps the handles of directories for as long as the kernel keeps attributes. If an object is not
//! found where its path leads by kept handles, the path is looked up once more without them.
//!
//! It only reads: every change fails with EROFS.

mod export_tree;
mod file;
mod tree_slot;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::{
    Attr, Backend, BackendError, BackendFile, CreateOptions, DirEntry, EntryRef, EntryVisitor,
    ErrorOrigin, FileKind, ObjectRef, OwnedFileParts, Result, StatFs, TreeMutation, WritableFile,
    WriteOpenOptions, credentials, report_progress,
};
use crate::nfs::{
    Caller, ConnectionCounters, FileHandle, FoundDirectory, Identity, ListedName, NfsError, Rights,
};
use crate::survey::{AdmissionRefusal, OpenRoot, RosterEntry};
use credentials::User;
use export_tree::{ExportTree, kind_of};
use file::{NfsFile, OpenHandle};
use tree_slot::TreeSlot;

type NfsResult<T> = std::result::Result<T, NfsError>;

/// The names of one directory that are looked up at a time. After each such batch, the call has made
/// progress.
const LOOKUPS: usize = 256;

/// The unit of the counts of [`StatFs`].
const BLOCK_SIZE: u32 = 4096;

/// How long calls may take, and how long the handles of directories are kept.
#[derive(Clone, Copy, Debug)]
pub struct NfsTimes {
    /// How long an operation may take, with all its calls.
    pub operation: Duration,
    /// How long the handles of directories are kept.
    pub directories: Duration,
}

/// An NFS server's export.
pub struct NfsBackend {
    roster_entry: RosterEntry,
    times: NfsTimes,
    slot: Arc<TreeSlot>,
}

impl NfsBackend {
    /// A replica out of service: every call fails at once until [`Backend::check_mount`] finds the
    /// export and its roster entry admits it.
    pub fn absent(seat: RosterEntry, times: NfsTimes) -> Self {
        Self { roster_entry: seat, times, slot: Arc::default() }
    }

    /// A replica in service.
    ///
    /// # Errors
    /// Why it is not admitted.
    pub fn open(seat: RosterEntry, times: NfsTimes) -> std::result::Result<Self, AdmissionRefusal> {
        let backend = Self::absent(seat, times);
        backend.enter_service()?;
        Ok(backend)
    }

    fn enter_service(&self) -> std::result::Result<(), AdmissionRefusal> {
        let (root, _) = self.roster_entry.examine()?.into_parts();
        let OpenRoot::Export(root) = root else {
            return Err(AdmissionRefusal::Unreachable(Errno::NOTSUP));
        };
        self.slot.install(Arc::new(ExportTree::new(*root, self.times)));
        Ok(())
    }

    /// What `operation` finds in a directory.
    fn in_directory<T>(
        &self,
        dir: &ObjectRef,
        operation: impl Fn(&DirectoryCall<'_>) -> NfsResult<T>,
    ) -> Result<T> {
        self.slot.call(|tree| {
            let identity = thread_identity();
            call_in_directory(tree, &identity, dir, &operation, |error| error)
        })
    }

    /// What `operation` finds about names in a directory.
    fn in_base_dir<T>(
        &self,
        dir: &ObjectRef,
        operation: impl Fn(&DirectoryCall<'_>) -> NfsResult<T>,
    ) -> Result<T> {
        let search_error = |error| match error {
            // The path of the directory leads nowhere. That says nothing about a name in it.
            BackendError::Os(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
                if dir.is_identity_checked() =>
            {
                BackendError::WrongObject
            }
            error => error,
        };
        self.slot.call(|tree| {
            let identity = thread_identity();
            call_in_directory(tree, &identity, dir, &operation, search_error)
        })
    }
}

/// An operation on a directory that was found.
struct DirectoryCall<'a> {
    tree: &'a ExportTree,
    caller: Caller<'a>,
    dir: FileHandle,
}

/// Finds a directory and carries out an operation in it. `search_error` translates the errors of
/// the search.
fn call_in_directory<T>(
    tree: &ExportTree,
    identity: &Identity,
    dir: &ObjectRef,
    operation: &dyn Fn(&DirectoryCall<'_>) -> NfsResult<T>,
    search_error: impl Fn(BackendError) -> BackendError,
) -> Result<T> {
    let found = find_directory(tree, identity, dir).map_err(&search_error)?;
    let call =
        |dir: FileHandle| operation(&DirectoryCall { tree, caller: tree.caller(identity), dir });
    match call(found.dir.handle) {
        // A directory that was kept has gone. Its path may lead to another one now.
        Err(error) if error.errno() == Errno::STALE && found.is_known => {
            tree.forget(dir.path());
            let now = find_directory(tree, identity, dir).map_err(&search_error)?;
            Ok(call(now.dir.handle)?)
        }
        answer => Ok(answer?),
    }
}

/// The directory that the caller means.
fn find_directory(
    tree: &ExportTree,
    identity: &Identity,
    dir: &ObjectRef,
) -> Result<FoundDirectory> {
    let find = |tries_known: bool| {
        let found = tree.directory(tree.caller(identity), dir.path(), tries_known)?;
        dir.check_identity(&tree.attr(&found.dir))?;
        Ok(found)
    };
    let is_outdated = |error: &BackendError| match error {
        BackendError::Os(Errno::STALE) => true,
        BackendError::WrongObject
        | BackendError::Os(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => dir.is_identity_checked(),
        _ => false,
    };
    find(true).or_else(|error| match is_outdated(&error) {
        // By handles that were kept, the path may lead elsewhere than it does now.
        true => {
            tree.forget(dir.path());
            find(false)
        }
        false => Err(error),
    })
}

/// The identity of the calling thread.
fn thread_identity() -> Identity {
    let User { uid, gid, groups } = credentials::thread_user();
    Identity { uid, gid, groups }
}

/// The kinds of some names for which the server has sent none: `None` for a name that has gone.
fn look_up_kinds(call: &DirectoryCall<'_>, names: &[&[u8]]) -> NfsResult<Vec<Option<FileKind>>> {
    let mut kinds = Vec::with_capacity(names.len());
    for names in names.chunks(LOOKUPS) {
        let caller = call.tree.caller(call.caller.identity);
        for found in call.tree.client().look_up_all(caller, call.dir, names) {
            kinds.push(match found {
                Ok(object) => Some(kind_of(object.attributes.kind)),
                Err(error) if error.errno() == Errno::NOENT => None,
                Err(error) => return Err(error),
            });
        }
        report_progress();
    }
    Ok(kinds)
}

impl From<NfsError> for BackendError {
    fn from(error: NfsError) -> Self {
        tracing::debug!(%error, "an NFS call failed");
        Self::Os(error.errno())
    }
}

impl Backend for NfsBackend {
    fn stat(&self, path: &Path) -> Result<Attr> {
        let identity = thread_identity();
        self.slot.call(|tree| Ok(tree.attr(&tree.look_up(&identity, path)?)))
    }

    fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
        let plain = name.name().as_bytes();
        if matches!(plain, b"" | b"." | b"..") || plain.contains(&b'/') {
            return Err(Errno::INVAL.into());
        }
        self.in_base_dir(name.dir(), |call| {
            let found = call.tree.client().look_up(call.caller, call.dir, plain)?;
            Ok(call.tree.attr(&found))
        })
    }

    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        let plain: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        self.in_base_dir(dir, |call| {
            let mut all = Vec::with_capacity(plain.len());
            for names in plain.chunks(LOOKUPS) {
                let caller = call.tree.caller(call.caller.identity);
                for found in call.tree.client().look_up_all(caller, call.dir, names) {
                    all.push(match found {
                        Ok(found) => Ok(call.tree.attr(&found)),
                        // The directory has gone, or the tree has been replaced.
                        Err(error) if matches!(error.errno(), Errno::STALE | Errno::NOTCONN) => {
                            return Err(error);
                        }
                        Err(error) => Err(error.into()),
                    });
                }
                report_progress();
            }
            Ok(all)
        })
    }

    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        let names = self.in_directory(dir, |call| {
            let mut names = call.tree.list(call.caller.identity, call.dir, &report_progress)?;
            let unknown = |name: &&ListedName| name.kind.is_none();
            let asked: Vec<&[u8]> = names.iter().filter(unknown).map(|name| &*name.name).collect();
            let kinds = match asked.is_empty() {
                true => Vec::new(),
                false => match look_up_kinds(call, &asked) {
                    Err(error)
                        if BackendError::from(error.clone()).origin() == ErrorOrigin::Unclear =>
                    {
                        // A server that hangs must not hide the names: list them as directories.
                        vec![Some(FileKind::Directory); asked.len()]
                    }
                    kinds => kinds?,
                },
            };
            let mut kinds = kinds.into_iter();
            let listed = |name: ListedName| {
                let kind = match name.kind {
                    Some(kind) => kind_of(kind),
                    // An entry that has gone since is left out.
                    None => kinds.next()??,
                };
                Some(DirEntry { name: OsString::from_vec(name.name), ino: name.number, kind })
            };
            Ok(names.drain(..).filter_map(listed).collect::<Vec<_>>())
        })?;
        names.iter().for_each(|entry| each(&entry.name, entry.ino, entry.kind));
        Ok(())
    }

    fn check_open_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.in_directory(dir, |call| call.tree.check_right(call.caller, call.dir, Rights::READ))
    }

    fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.slot.current()?.forget(dir.path());
        self.in_directory(dir, |call| {
            call.tree.client().attributes(call.caller, call.dir).map(drop)
        })
    }

    fn read_link(&self, link: &ObjectRef) -> Result<OsString> {
        let identity = thread_identity();
        let read = |tree: &ExportTree| {
            let found = tree.look_up(&identity, link.path())?;
            link.check_identity(&tree.attr(&found))?;
            if kind_of(found.attributes.kind) != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            Ok(tree.client().read_link(tree.caller(&identity), found.handle)?)
        };
        let is_outdated = |error: &BackendError| {
            let is_listed = matches!(
                error,
                BackendError::WrongObject | BackendError::Os(Errno::NOENT | Errno::STALE)
            );
            is_listed && link.is_identity_checked()
        };
        let target = self.slot.call(|tree| {
            read(tree).or_else(|error| match is_outdated(&error) {
                true => {
                    tree.forget(link.path());
                    read(tree)
                }
                false => Err(error),
            })
        })?;
        Ok(OsString::from_vec(target))
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        let identity = thread_identity();
        self.slot.call(|tree| {
            let found = tree.look_up(&identity, path)?;
            match kind_of(found.attributes.kind) {
                FileKind::Regular => {}
                FileKind::Symlink => return Err(Errno::LOOP.into()),
                _ => return Err(Errno::STALE.into()),
            }
            tree.check_right(tree.caller(&identity), found.handle, Rights::READ)?;
            let file = OpenHandle {
                slot: Arc::clone(&self.slot),
                root: tree.root(),
                handle: found.handle,
                identity: identity.clone(),
            };
            Ok((Arc::new(NfsFile(Arc::new(file))) as Arc<dyn BackendFile>, tree.attr(&found)))
        })
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let identity = thread_identity();
        self.slot.call(|tree| {
            let usage = tree.client().usage(tree.caller(&identity), tree.root())?;
            let blocks = |bytes: u64| bytes / u64::from(BLOCK_SIZE);
            Ok(StatFs {
                blocks: blocks(usage.bytes),
                bfree: blocks(usage.free_bytes),
                bavail: blocks(usage.available_bytes),
                files: usage.files,
                ffree: usage.free_files,
                bsize: BLOCK_SIZE,
                frsize: BLOCK_SIZE,
                namelen: tree.max_name(&identity),
            })
        })
    }

    /// The client asks for no extended attributes, which NFSv3 and NFSv4.1 do not have.
    fn get_xattr(&self, _object: &ObjectRef, _name: &OsStr) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn list_xattr(&self, _object: &ObjectRef) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn check_mount(&self) -> Result<bool> {
        let before = self.slot.current().ok();
        if let Some(tree) = &before {
            match tree.is_alive() {
                Ok(true) => return Ok(true),
                Ok(false) => self.slot.leave_service(tree),
                // The server may have another address or port by now.
                Err(_) => {}
            }
        }
        match self.enter_service() {
            Ok(()) => Ok(true),
            Err(AdmissionRefusal::NoExport(errno, _))
                if before.is_some() && !BackendError::from(errno).is_definite() =>
            {
                Err(errno.into())
            }
            Err(_) => {
                before.iter().for_each(|tree| self.slot.leave_service(tree));
                Ok(false)
            }
        }
    }

    fn is_in_service(&self) -> bool {
        self.slot.is_in_service()
    }

    fn reads_without_threads(&self) -> bool {
        true
    }

    fn connections(&self) -> Vec<ConnectionCounters> {
        self.slot.last().map(|tree| tree.client().counters()).unwrap_or_default()
    }

    /// It lies in no mount.
    fn handle_unmount(&self, _mount: u64) {}

    fn mount_id(&self) -> Option<u64> {
        None
    }

    /// No file needs to be closed.
    fn flush_closes(&self) {}

    fn open_to_write(&self, _path: &Path, _how: &WriteOpenOptions) -> Result<WritableFile> {
        Err(Errno::ROFS.into())
    }

    fn create(
        &self,
        _name: &EntryRef,
        _how: &WriteOpenOptions,
        _create: CreateOptions,
    ) -> Result<WritableFile> {
        Err(Errno::ROFS.into())
    }

    fn mutate(&self, _change: &TreeMutation) -> Result<Option<Attr>> {
        Err(Errno::ROFS.into())
    }

    /// The file can be read once the export is in service with the same root.
    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        let file = OpenHandle::from_record(Arc::clone(&self.slot), parts.export.as_ref()?)?;
        Some(Arc::new(NfsFile(Arc::new(file))))
    }
}
