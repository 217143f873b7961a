//! An NFS server in this process that exports a directory, and misbehaves on request.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nfs3_server::nfs3_types::nfs3::{
    fattr3, filename3, ftype3, nfspath3, nfsstat3, nfstime3, specdata3,
};
use nfs3_server::nfs3_types::xdr_codec::Opaque;
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use nfs3_server::vfs::{
    DirEntryPlus, FileHandleU64, NextResult, NfsReadFileSystem, ReadDirPlusIterator,
};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::loopback::own_address;

/// A server with an address of its own. It ends when this is dropped.
pub(crate) struct NfsServer {
    root: PathBuf,
    runtime: Option<Runtime>,
    address: SocketAddr,
    habits: watch::Sender<Habits>,
}

/// What a server does otherwise than it should.
#[derive(Clone, Copy)]
struct Habits {
    is_hung: bool,
    is_busy: bool,
    max_read: usize,
    reads: BadReads,
}

/// Reads that hang or fail, by the offset of their first byte.
#[derive(Clone, Copy)]
pub(crate) struct BadReads {
    /// Those from here on hang.
    pub(crate) hung_from: u64,
    /// Of the others, those before it fail.
    pub(crate) failing_before: u64,
    /// Of the others, those from here on find the end of the file.
    pub(crate) ending_from: u64,
}

impl BadReads {
    /// All reads are good.
    pub(crate) const NONE: Self =
        Self { hung_from: u64::MAX, failing_before: 0, ending_from: u64::MAX };
}

impl NfsServer {
    /// Exports `root` as `/`.
    pub(crate) fn new(root: &Path) -> Self {
        let good =
            Habits { is_hung: false, is_busy: false, max_read: usize::MAX, reads: BadReads::NONE };
        let (habits, _) = watch::channel(good);
        let mut server =
            Self { root: root.to_owned(), runtime: None, address: own_address(), habits };
        server.start();
        server
    }

    fn start(&mut self) {
        let runtime = Runtime::new().unwrap();
        let root_ino = self.root.symlink_metadata().unwrap().ino();
        let paths = Mutex::new(HashMap::from([(root_ino, self.root.clone())]));
        let mirror = Mirror { root_ino, paths, habits: self.habits.subscribe() };
        let address = self.address.to_string();
        let listener = runtime.block_on(NFSTcpListener::bind_ro(&address, mirror)).unwrap();
        runtime.spawn(async move { listener.handle_forever().await });
        self.runtime = Some(runtime);
    }

    /// Ends the server and starts another one at its address, which does not know its handles.
    pub(crate) fn restart(&mut self) {
        let before = self.runtime.take().unwrap();
        before.shutdown_timeout(std::time::Duration::from_secs(30));
        // The handles have the time of the start.
        std::thread::sleep(std::time::Duration::from_millis(5));
        self.start();
    }

    /// The keys of a `[[replica]]` of a configuration.
    pub(crate) fn replica_keys(&self) -> String {
        let (address, port) = (self.address, self.address.port());
        format!("address = \"nfs://{address}/\"\nmount_port = {port}\n")
    }

    /// From now on, or no longer, the server takes calls and answers none of them.
    pub(crate) fn hang(&self, is_hung: bool) {
        self.habits.send_modify(|habits| habits.is_hung = is_hung);
    }

    /// From now on, or no longer, the server cannot read files yet.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.habits.send_modify(|habits| habits.is_busy = is_busy);
    }

    /// From now on, reads behave so, also those that hang.
    pub(crate) fn set_bad_reads(&self, reads: BadReads) {
        self.habits.send_modify(|habits| habits.reads = reads);
    }

    /// From now on, the server sends at most so many bytes for a read.
    pub(crate) fn limit_reads(&self, max_read: usize) {
        self.habits.send_modify(|habits| habits.max_read = max_read);
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.hang(false);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A directory. A handle is an inode number.
struct Mirror {
    root_ino: u64,
    /// The last known path of each inode.
    paths: Mutex<HashMap<u64, PathBuf>>,
    habits: watch::Receiver<Habits>,
}

type Answer<T> = Result<T, nfsstat3>;

fn status(error: &std::io::Error) -> nfsstat3 {
    match error.kind() {
        std::io::ErrorKind::NotFound => nfsstat3::NFS3ERR_NOENT,
        std::io::ErrorKind::NotADirectory => nfsstat3::NFS3ERR_NOTDIR,
        std::io::ErrorKind::PermissionDenied => nfsstat3::NFS3ERR_ACCES,
        _ => nfsstat3::NFS3ERR_IO,
    }
}

impl Mirror {
    async fn pass(&self) {
        let mut habits = self.habits.clone();
        habits
            .wait_for(|habits| !habits.is_hung)
            .await
            .expect("the server opens it before it ends");
    }

    /// The path of an object, and its metadata.
    fn find(&self, handle: FileHandleU64) -> Answer<(PathBuf, Metadata)> {
        let path = self.paths.lock().unwrap().get(&handle.as_u64()).cloned();
        let path = path.ok_or(nfsstat3::NFS3ERR_STALE)?;
        let found = path.symlink_metadata().map_err(|_| nfsstat3::NFS3ERR_STALE)?;
        match found.ino() == handle.as_u64() {
            true => Ok((path, found)),
            false => Err(nfsstat3::NFS3ERR_STALE),
        }
    }

    fn learn(&self, path: PathBuf) -> Answer<Metadata> {
        let found = path.symlink_metadata().map_err(|error| status(&error))?;
        self.paths.lock().unwrap().insert(found.ino(), path);
        Ok(found)
    }
}

fn attributes(found: &Metadata) -> fattr3 {
    let kind = found.file_type();
    let time = |seconds: i64, nanoseconds: i64| nfstime3 {
        seconds: seconds as u32,
        nseconds: nanoseconds as u32,
    };
    fattr3 {
        type_: match kind {
            _ if kind.is_dir() => ftype3::NF3DIR,
            _ if kind.is_symlink() => ftype3::NF3LNK,
            _ if kind.is_fifo() => ftype3::NF3FIFO,
            _ if kind.is_socket() => ftype3::NF3SOCK,
            _ => ftype3::NF3REG,
        },
        mode: found.mode() & 0o7777,
        nlink: found.nlink() as u32,
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        used: found.blocks() * 512,
        rdev: specdata3::default(),
        fsid: found.dev(),
        fileid: found.ino(),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
    }
}

impl NfsReadFileSystem for Mirror {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        self.root_ino.into()
    }

    async fn lookup(&self, dir: &FileHandleU64, name: &filename3<'_>) -> Answer<FileHandleU64> {
        self.pass().await;
        let (path, found) = self.find(*dir)?;
        if !found.is_dir() {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        }
        let name = std::ffi::OsStr::from_bytes(name.as_ref());
        Ok(self.learn(path.join(name))?.ino().into())
    }

    async fn getattr(&self, id: &FileHandleU64) -> Answer<fattr3> {
        self.pass().await;
        self.find(*id).map(|(_, found)| attributes(&found))
    }

    async fn read(&self, id: &FileHandleU64, offset: u64, count: u32) -> Answer<(Vec<u8>, bool)> {
        let is_hung = |habits: &Habits| match habits.reads.hung_from {
            u64::MAX => habits.is_hung,
            from => offset >= from,
        };
        let mut changes = self.habits.clone();
        let habits = *changes.wait_for(|habits| !is_hung(habits)).await.expect("as in `pass`");
        match habits.reads {
            _ if habits.is_busy => return Err(nfsstat3::NFS3ERR_JUKEBOX),
            reads if offset < reads.failing_before => return Err(nfsstat3::NFS3ERR_IO),
            reads if offset >= reads.ending_from => return Ok((Vec::new(), true)),
            _ => {}
        }
        let (path, _) = self.find(*id)?;
        let file = File::open(path).map_err(|error| status(&error))?;
        let mut bytes = vec![0; habits.max_read.min(count as usize)];
        let mut filled = 0;
        loop {
            let read = file.read_at(&mut bytes[filled..], offset + filled as u64);
            match read.map_err(|error| status(&error))? {
                0 => break,
                n => filled += n,
            }
        }
        bytes.truncate(filled);
        let size = file.metadata().map_err(|error| status(&error))?.size();
        Ok((bytes, offset + filled as u64 >= size))
    }

    async fn readdirplus(
        &self,
        dir: &FileHandleU64,
        cookie: u64,
    ) -> Answer<impl ReadDirPlusIterator<FileHandleU64>> {
        self.pass().await;
        let (path, found) = self.find(*dir)?;
        if !found.is_dir() {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        }
        let listed = std::fs::read_dir(path).map_err(|error| status(&error))?;
        let mut entries: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        let entry = |(index, path): (usize, PathBuf)| {
            let name = path.file_name()?.to_owned().into_vec();
            let found = self.learn(path).ok()?;
            Some(DirEntryPlus {
                fileid: found.ino(),
                name: filename3(Opaque::owned(name)),
                cookie: index as u64 + 1,
                name_attributes: Some(attributes(&found)),
                name_handle: Some(found.ino().into()),
            })
        };
        let all: Vec<_> = entries.into_iter().enumerate().filter_map(entry).collect();
        let rest = all.into_iter().filter(move |entry| entry.cookie > cookie);
        Ok(Listing(rest.collect::<Vec<_>>().into_iter()))
    }

    async fn readlink(&self, id: &FileHandleU64) -> Answer<nfspath3<'_>> {
        self.pass().await;
        let (path, found) = self.find(*id)?;
        if !found.is_symlink() {
            return Err(nfsstat3::NFS3ERR_INVAL);
        }
        let target = std::fs::read_link(path).map_err(|error| status(&error))?;
        Ok(nfspath3(Opaque::owned(target.into_os_string().into_vec())))
    }
}

struct Listing(std::vec::IntoIter<DirEntryPlus<FileHandleU64>>);

impl ReadDirPlusIterator<FileHandleU64> for Listing {
    async fn next(&mut self) -> NextResult<DirEntryPlus<FileHandleU64>> {
        self.0.next().map_or(NextResult::Eof, NextResult::Ok)
    }
}
