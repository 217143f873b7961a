//! An NFSv3 server in this process that exports a directory, and misbehaves on request.

#[path = "nfs_server/mirror.rs"]
pub(crate) mod mirror;

use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
pub(crate) use mirror::BadReads;
use mirror::{CallFault, CallKind, Habits, Mirror, MirrorEntry, Status};

/// A server with an address of its own. It ends when this is dropped.
pub(crate) struct NfsServer {
    root: PathBuf,
    other: Option<PathBuf>,
    runtime: Option<Runtime>,
    mirror: Option<Arc<Mirror>>,
    address: SocketAddr,
    habits: watch::Sender<Habits>,
}

impl NfsServer {
    /// Exports `root` as `/`, or `other` while it is turned.
    pub(crate) fn new(root: &Path, other: Option<&Path>) -> Self {
        let (habits, _) = watch::channel(Habits::GOOD);
        let (root, other) = (root.to_owned(), other.map(Path::to_owned));
        let address = own_address();
        let mut server = Self { root, other, runtime: None, mirror: None, address, habits };
        server.start();
        server
    }

    /// Starts it, if it was stopped. It does not know the handles that it gave before.
    pub(crate) fn start(&mut self) {
        if self.runtime.is_some() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        let mirror = Mirror::new(&self.root, self.other.as_deref(), self.habits.subscribe());
        let mirror = Arc::new(mirror);
        self.mirror = Some(Arc::clone(&mirror));
        let address = self.address.to_string();
        let listener = runtime.block_on(NFSTcpListener::bind_ro(&address, Front(mirror))).unwrap();
        runtime.spawn(async move { listener.handle_forever().await });
        self.runtime = Some(runtime);
    }

    /// Ends it; its connections are reset.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(30));
            // The handles have the time of the start.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Ends the server and starts another one at its address.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// The keys of a `[[replica]]` of a configuration.
    pub(crate) fn replica_keys(&self) -> String {
        let (address, port) = (self.address, self.address.port());
        format!("address = \"nfs://{address}/\"\nmount_port = {port}\n")
    }

    /// Shows the server where an object is that was renamed, so that its handle stays valid.
    pub(crate) fn learn(&self, path: PathBuf) {
        self.mirror.as_ref().expect("it runs").learn(path).unwrap();
    }

    /// Changes its behaviour.
    pub(crate) fn behave(&self, change: impl FnOnce(&mut Habits)) {
        self.habits.send_modify(change);
    }

    /// From now on, or no longer, the server takes calls and answers none of them.
    pub(crate) fn hang(&self, is_hung: bool) {
        let fault = if is_hung { CallFault::Hang } else { CallFault::None };
        self.behave(|habits| habits.set_all(fault));
    }

    /// From now on, or no longer, the server cannot read files yet.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        let fault = if is_busy { CallFault::Fail(mirror::JUKEBOX) } else { CallFault::None };
        self.behave(|habits| habits.reads = fault);
    }

    /// From now on, reads behave so, also those that hang.
    pub(crate) fn set_bad_reads(&self, reads: BadReads) {
        self.behave(|habits| habits.bad_reads = reads);
    }

    /// From now on, the server sends at most so many bytes for a read.
    pub(crate) fn limit_reads(&self, max_read: usize) {
        self.behave(|habits| habits.max_read = max_read);
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

type Answer<T> = Result<T, nfsstat3>;

/// A mirror, as NFSv3 shows it.
struct Front(Arc<Mirror>);

fn nfsstat(status: Status) -> nfsstat3 {
    match status {
        mirror::NOENT => nfsstat3::NFS3ERR_NOENT,
        mirror::IO => nfsstat3::NFS3ERR_IO,
        mirror::ACCES => nfsstat3::NFS3ERR_ACCES,
        mirror::NOTDIR => nfsstat3::NFS3ERR_NOTDIR,
        mirror::INVAL => nfsstat3::NFS3ERR_INVAL,
        mirror::STALE => nfsstat3::NFS3ERR_STALE,
        mirror::JUKEBOX => nfsstat3::NFS3ERR_JUKEBOX,
        _ => nfsstat3::NFS3ERR_SERVERFAULT,
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

impl NfsReadFileSystem for Front {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        self.0.root_ino().into()
    }

    async fn lookup(&self, dir: &FileHandleU64, name: &filename3<'_>) -> Answer<FileHandleU64> {
        self.0.pass(CallKind::LookUp).await.map_err(nfsstat)?;
        let found = self.0.look_up(dir.as_u64(), name.as_ref()).map_err(nfsstat)?;
        Ok(found.ino().into())
    }

    async fn getattr(&self, id: &FileHandleU64) -> Answer<fattr3> {
        self.0.pass(CallKind::Other).await.map_err(nfsstat)?;
        self.0.find(id.as_u64()).map(|(_, found)| attributes(&found)).map_err(nfsstat)
    }

    async fn read(&self, id: &FileHandleU64, offset: u64, count: u32) -> Answer<(Vec<u8>, bool)> {
        self.0.pass_read(offset).await.map_err(nfsstat)?;
        self.0.read(id.as_u64(), offset, count as usize).map_err(nfsstat)
    }

    async fn readdirplus(
        &self,
        dir: &FileHandleU64,
        cookie: u64,
    ) -> Answer<impl ReadDirPlusIterator<FileHandleU64>> {
        self.0.pass(CallKind::Other).await.map_err(nfsstat)?;
        let entries = self.0.list(dir.as_u64()).map_err(nfsstat)?;
        let entry = |(index, MirrorEntry { name, found }): (usize, MirrorEntry)| DirEntryPlus {
            fileid: found.ino(),
            name: filename3(Opaque::owned(name)),
            cookie: index as u64 + 1,
            name_attributes: Some(attributes(&found)),
            name_handle: Some(found.ino().into()),
        };
        let all = entries.into_iter().enumerate().map(entry);
        let rest: Vec<_> = all.filter(|entry| entry.cookie > cookie).collect();
        Ok(Listing(rest.into_iter()))
    }

    async fn readlink(&self, id: &FileHandleU64) -> Answer<nfspath3<'_>> {
        self.0.pass(CallKind::Other).await.map_err(nfsstat)?;
        let target = self.0.read_link(id.as_u64()).map_err(nfsstat)?;
        Ok(nfspath3(Opaque::owned(target)))
    }
}

struct Listing(std::vec::IntoIter<DirEntryPlus<FileHandleU64>>);

impl ReadDirPlusIterator<FileHandleU64> for Listing {
    async fn next(&mut self) -> NextResult<DirEntryPlus<FileHandleU64>> {
        self.0.next().map_or(NextResult::Eof, NextResult::Ok)
    }
}
