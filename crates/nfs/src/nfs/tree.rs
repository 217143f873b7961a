//! The objects below an export's root, by their paths.
//!
//! A path is looked up component by component, so no symbolic link in it is followed and the root
//! is never left. The handles of directories are kept for a short time, for each user: another
//! user may have no right to pass a directory. As in a kernel mount, a directory that another
//! client renames may be found at its old path for that time. [`Tree::forget`] ends it earlier.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::nfs::attributes::{Attributes, FileHandle, Kind};
use crate::nfs::client::{Client, ReadRange};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::{Caller, DirEntry, Object, Page, Position, ReadEnd, ReadSink};
use crate::nfs::rpc::{Identity, IsUnwanted, RpcError};

/// The directories whose handles are kept, at most.
const MAX_KNOWN: NonZeroUsize = NonZeroUsize::new(4096).expect("it is above 0");

/// How often a listing is tried whose positions the server forgets, because the directory changes.
const LISTING_ATTEMPTS: usize = 4;

/// The most memory of a listing, bytes: a server that lies would fill all of it. Honest directories
/// of 4 million names stay below.
const MAX_LISTING: usize = 1 << 30;

/// The most parts of a listing in a row that bring no new name.
const MAX_STALE_PAGES: usize = 10_000;

/// How long a tree waits, and trusts the handles that it knows.
#[derive(Clone, Copy, Debug)]
pub struct TreeLimits {
    /// How long an operation may take, with all its calls.
    pub operation: Duration,
    /// How long a listing may take, with all its parts.
    pub listing: Duration,
    /// How long the handles of directories are kept.
    pub directories: Duration,
    /// The longest read that one call makes. Longer ones are made by several calls at once.
    pub read: NonZeroUsize,
}

/// A read that blocks no thread.
pub struct SubmittedRead {
    /// The first byte.
    pub offset: u64,
    /// Its caller.
    pub sink: Box<dyn ReadSink>,
    /// When it is given up.
    pub is_unwanted: Option<IsUnwanted>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedName {
    /// The name: any bytes but `/` and NUL, neither `.` nor `..`.
    pub name: Vec<u8>,
    /// The number of its object, as the listing shows it.
    pub number: u64,
    /// The kind of its object, if the server sent it.
    pub kind: Option<Kind>,
}

/// An export.
pub struct Tree {
    client: Client,
    root: FileHandle,
    limits: TreeLimits,
    known: Mutex<LruCache<KnownPath, KnownDir>>,
}

/// A directory's path, for one user.
#[derive(PartialEq, Eq, Hash)]
struct KnownPath {
    identity: Identity,
    path: PathBuf,
}

#[derive(Clone, Copy)]
struct KnownDir {
    dir: Object,
    until: Instant,
}

/// A directory that a path has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDirectory {
    /// The directory. If it was known, its attributes may have changed.
    pub dir: Object,
    /// Whether the whole way to it, or a part of it, is from an earlier operation.
    pub is_known: bool,
}

impl Tree {
    /// The tree below the object `root`.
    pub fn new(client: Client, root: FileHandle, limits: TreeLimits) -> Self {
        Self { client, root, limits, known: Mutex::new(LruCache::new(MAX_KNOWN)) }
    }

    /// The server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The handle of the root.
    pub fn root(&self) -> FileHandle {
        self.root
    }

    /// A caller whose operation begins now.
    pub fn caller<'a>(&self, identity: &'a Identity) -> Caller<'a> {
        Caller { identity, deadline: Instant::now() + self.limits.operation }
    }

    /// The object at a path relative to the root; the empty path is the root.
    ///
    /// # Errors
    /// ELOOP if a component but the last is a symbolic link, ENOTDIR if it is no directory, EINVAL
    /// if the path is absolute or leads upwards; otherwise the server's error.
    pub fn look_up(&self, identity: &Identity, path: &Path) -> Result<Object, NfsError> {
        check_path(path)?;
        let caller = self.caller(identity);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            let attributes = self.client.attributes(caller, self.root)?;
            return Ok(Object { handle: self.root, attributes });
        };
        let mut tries_known = true;
        loop {
            let dir = self.reach(caller, parent, tries_known);
            let was_known = dir.as_ref().map_or(tries_known, |dir| dir.is_known);
            let found =
                dir.and_then(|dir| self.client.look_up(caller, dir.handle, name.as_bytes()));
            match found {
                // A directory that was kept is gone. Without it the path leads to the present one.
                Err(NfsError::Status(status)) if status.is_stale() && was_known => {
                    tries_known = false;
                }
                answer => {
                    self.learn(identity, path, answer.as_ref().ok());
                    return answer;
                }
            }
        }
    }

    /// The directory at a path, as it was within the last [`TreeLimits::directories`]; if not
    /// `tries_known`, as it is now.
    ///
    /// # Errors
    /// As [`Tree::look_up`]. ESTALE if a directory that was known is gone.
    pub fn directory(
        &self,
        caller: Caller<'_>,
        path: &Path,
        tries_known: bool,
    ) -> Result<FoundDirectory, NfsError> {
        check_path(path)?;
        let ReachedDir { handle, attributes, is_known } = self.reach(caller, path, tries_known)?;
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.client.attributes(caller, handle)?,
        };
        Ok(FoundDirectory { dir: Object { handle, attributes }, is_known })
    }

    /// Forgets the handles of the directory at `path` and of those on the way to it.
    pub fn forget(&self, path: &Path) {
        let mut known = self.known.lock();
        let way: Vec<_> = known
            .iter()
            .filter(|(dir, _)| path.starts_with(&dir.path))
            .map(|(dir, _)| KnownPath { identity: dir.identity.clone(), path: dir.path.clone() })
            .collect();
        for dir in &way {
            known.pop(dir);
        }
    }

    /// All names of a directory. Calls `progress` after each part.
    ///
    /// # Errors
    /// The server's; EIO if its listing does not end.
    pub fn list(
        &self,
        identity: &Identity,
        dir: FileHandle,
        progress: &dyn Fn(),
    ) -> Result<Vec<ListedName>, NfsError> {
        let end = Instant::now() + self.limits.listing;
        let mut attempt = 1;
        loop {
            let is_last = attempt == LISTING_ATTEMPTS;
            let page = |position| {
                let deadline = end.min(Instant::now() + self.limits.operation);
                let page = self.client.list(Caller { identity, deadline }, dir, position)?;
                progress();
                Ok(page)
            };
            match list_pages(page, is_last) {
                Err(NfsError::Status(Status::BAD_COOKIE | Status::NOT_SAME)) if !is_last => {
                    attempt += 1;
                }
                answer => return answer,
            }
        }
    }

    /// Reads a file from `offset` into `buffer`.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read(
        &self,
        identity: &Identity,
        file: FileHandle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<ReadEnd, NfsError> {
        let range = ReadRange { file, offset, piece: self.limits.read };
        self.client.read(self.caller(identity), range, buffer)
    }

    /// Begins to read a file from `offset` into `sink` ([`Client::submit_read`]).
    pub fn submit_read(&self, identity: &Identity, file: FileHandle, read: SubmittedRead) {
        let range = ReadRange { file, offset: read.offset, piece: self.limits.read };
        let caller = self.caller(identity);
        self.client.submit_read(caller, range, read.sink, read.is_unwanted);
    }

    /// The directory at a path that was checked.
    fn reach(
        &self,
        caller: Caller<'_>,
        path: &Path,
        tries_known: bool,
    ) -> Result<ReachedDir, NfsError> {
        let now = Instant::now();
        let known = |dir: &Path| match tries_known {
            true => self.known_directory(caller.identity, dir, now),
            false => None,
        };
        let nearest = path.ancestors().find_map(|at| Some(Nearest { at, dir: known(at)? }));
        let is_known = nearest.is_some();
        let mut dir = nearest.as_ref().map(|nearest| nearest.dir);
        let reached = nearest.map_or(Path::new(""), |nearest| nearest.at);
        let rest = path.strip_prefix(reached).unwrap_or(path);
        let mut reached = reached.to_owned();
        for name in rest {
            let handle = dir.map_or(self.root, |dir| dir.handle);
            let found = self.client.look_up(caller, handle, name.as_bytes())?;
            check_directory(&found.attributes)?;
            dir = Some(found);
            reached.push(name);
            self.learn(caller.identity, &reached, Some(&found));
        }
        let handle = dir.map_or(self.root, |dir| dir.handle);
        Ok(ReachedDir { handle, attributes: dir.map(|dir| dir.attributes), is_known })
    }

    /// Keeps what a path has led to, if that is a directory, and nothing else.
    fn learn(&self, identity: &Identity, path: &Path, found: Option<&Object>) {
        let dir = KnownPath { identity: identity.clone(), path: path.to_owned() };
        let mut known = self.known.lock();
        match found.filter(|found| found.attributes.kind == Kind::Directory) {
            Some(found) => {
                let until = Instant::now() + self.limits.directories;
                known.put(dir, KnownDir { dir: *found, until });
            }
            None => {
                known.pop(&dir);
            }
        }
    }

    fn known_directory(&self, identity: &Identity, path: &Path, now: Instant) -> Option<Object> {
        let dir = KnownPath { identity: identity.clone(), path: path.to_owned() };
        let found = self.known.lock().get(&dir).copied()?;
        (now < found.until).then_some(found.dir)
    }
}

/// Lists a directory page by page. The last attempt accepts that the server begins again in
/// between, as some do when the directory changes: then names come twice.
fn list_pages(
    page_at: impl Fn(Position) -> Result<Page, NfsError>,
    is_last: bool,
) -> Result<Vec<ListedName>, NfsError> {
    let mut entries: Vec<ListedName> = Vec::new();
    let mut position = Position::START;
    let mut passed = HashSet::new();
    let mut names = HashSet::new();
    let mut used = 0;
    let mut stale_pages = 0;
    loop {
        let page = page_at(position)?;
        let before = entries.len();
        let is_new = |entry: &DirEntry| !is_last || names.insert(entry.name.clone());
        entries.extend(page.entries.into_iter().filter(is_new).map(ListedName::from));
        let Some(next) = page.next else { return Ok(entries) };
        let was_passed = !passed.insert(next.cookie);
        if was_passed && !is_last {
            // The server has begun again: the directory may have changed.
            return Err(NfsError::Status(Status::BAD_COOKIE));
        }
        // A name that must not come twice is kept twice.
        let copies = if is_last { 2 } else { 1 };
        let size = |entry: &ListedName| size_of::<ListedName>() + entry.name.len() * copies;
        used += entries[before..].iter().map(size).sum::<usize>();
        stale_pages = if entries.len() == before { stale_pages + 1 } else { 0 };
        // A listing that began again brings new names after the pages that are known.
        if stale_pages > MAX_STALE_PAGES || used > MAX_LISTING {
            return Err(RpcError::Malformed("a listing that does not end").into());
        }
        position = if is_last { next.without_verifier() } else { next };
    }
}

impl From<DirEntry> for ListedName {
    fn from(entry: DirEntry) -> Self {
        let DirEntry { name, number, object } = entry;
        Self { name, number, kind: object.map(|object| object.kind) }
    }
}

/// A directory, and whether its handle is from an earlier operation.
struct ReachedDir {
    handle: FileHandle,
    /// `None` of the root.
    attributes: Option<Attributes>,
    is_known: bool,
}

/// The nearest directory on the way to a path whose handle is known.
struct Nearest<'a> {
    at: &'a Path,
    dir: Object,
}

/// A path that leads down from the root.
fn check_path(path: &Path) -> Result<(), NfsError> {
    let leads_down = path.components().all(|part| matches!(part, Component::Normal(_)));
    match leads_down && !path.as_os_str().as_bytes().contains(&0) {
        true => Ok(()),
        false => Err(NfsError::Object(Errno::INVAL)),
    }
}

fn check_directory(attributes: &Attributes) -> Result<(), NfsError> {
    match attributes.kind {
        Kind::Directory => Ok(()),
        Kind::Symlink => Err(NfsError::Object(Errno::LOOP)),
        _ => Err(NfsError::Object(Errno::NOTDIR)),
    }
}
