//! A file of an export. It is a handle: the server knows nothing of an open file, and closing it
//! takes no call.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::export_tree::ExportTree;
use super::tree_slot::TreeSlot;
use crate::backend::{
    Attr, BackendFile, DataRoom, ExportFileRecord, FileMutation, FileParts, Lock, LockRequest,
    Result, SeekTo, SubmitResult, SubmittedRead, SubmittedReadEnd,
};
use crate::nfs::{FileHandle, Identity, NfsError, Object, ReadResult, ReadSink, RpcError};

/// A file, which is read as the user that opened it.
pub(super) struct NfsFile(pub(super) Arc<OpenHandle>);

/// A handle, and what a read of it needs.
pub(super) struct OpenHandle {
    pub(super) slot: Arc<TreeSlot>,
    /// The root of the export when the file was opened.
    pub(super) root: FileHandle,
    pub(super) handle: FileHandle,
    pub(super) identity: Identity,
}

impl OpenHandle {
    /// `None` if the record has no handle that a server could have given.
    pub(super) fn from_record(slot: Arc<TreeSlot>, record: &ExportFileRecord) -> Option<Self> {
        let handle = |bytes: &[u8]| FileHandle::from_bytes(bytes).filter(|_| !bytes.is_empty());
        let (uid, gid, ref groups) = record.user;
        let identity = Identity { uid, gid, groups: groups.clone() };
        Some(Self { slot, root: handle(&record.root)?, handle: handle(&record.handle)?, identity })
    }

    fn to_record(&self) -> ExportFileRecord {
        let Identity { uid, gid, groups } = &self.identity;
        ExportFileRecord {
            root: self.root.as_bytes().to_vec(),
            handle: self.handle.as_bytes().to_vec(),
            user: (*uid, *gid, groups.clone()),
        }
    }

    fn submit_read(self: Arc<Self>, read: Box<dyn SubmittedRead>) -> SubmitResult {
        // Without a tree, a thread finds out why.
        let Ok(tree) = self.slot.tree_of(self.root) else { return Err(read) };
        let submitted = crate::nfs::SubmittedRead {
            offset: read.offset(),
            is_unwanted: Some(read.is_unwanted()),
            sink: Box::new(FileRead { tree: Arc::clone(&tree), file: Arc::clone(&self), read }),
        };
        tree.submit_read(&self.identity, self.handle, submitted);
        Ok(())
    }
}

/// A read in flight.
struct FileRead {
    tree: Arc<ExportTree>,
    file: Arc<OpenHandle>,
    read: Box<dyn SubmittedRead>,
}

impl ReadSink for FileRead {
    fn room(&mut self) -> &mut dyn DataRoom {
        self.read.room()
    }

    fn end(self: Box<Self>, result: ReadResult) {
        let Self { tree, file, read } = *self;
        match result {
            Ok(end) => read.end(SubmittedReadEnd::Result(Ok(end.bytes))),
            Err(NfsError::Rpc(RpcError::Unwanted)) => read.end(SubmittedReadEnd::Unwanted),
            // A thread can wait for a new session.
            Err(NfsError::NoSession) => read.end(SubmittedReadEnd::Refused),
            // Another tree has taken the place of this one.
            Err(NfsError::Rpc(RpcError::Stopped)) if tree.has_ended() => {
                if let Err(refused) = file.submit_read(read) {
                    refused.end(SubmittedReadEnd::Refused);
                }
            }
            Err(error) => read.end(SubmittedReadEnd::Result(Err(error.into()))),
        }
    }
}

impl BackendFile for NfsFile {
    fn attr(&self) -> Result<Attr> {
        let file = &*self.0;
        file.slot.call_file(file.root, |tree| {
            let attributes = tree.client().attributes(tree.caller(&file.identity), file.handle)?;
            Ok(tree.attr(&Object { handle: file.handle, attributes }))
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = &*self.0;
        file.slot.call_file(file.root, |tree| {
            Ok(tree.read(&file.identity, file.handle, offset, buf)?.bytes)
        })
    }

    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Arc::clone(&self.0).submit_read(read)
    }

    fn splice_at(&self, _offset: u64, _pipe: BorrowedFd<'_>, _len: usize) -> Option<Result<usize>> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn parts(&self) -> FileParts<'_> {
        FileParts { export: Some(self.0.to_record()), ..FileParts::default() }
    }

    fn is_deferred(&self) -> bool {
        false
    }

    /// The server is not asked for holes: all of the file is data, and its end is a hole.
    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        let size = self.attr()?.size;
        match to {
            _ if offset >= size => Err(Errno::NXIO.into()),
            SeekTo::Data => Ok(offset),
            SeekTo::Hole => Ok(size),
        }
    }

    fn mutate(&self, _change: &FileMutation<'_>) -> Result<u64> {
        Err(Errno::ROFS.into())
    }

    /// A volume with exports keeps its locks itself.
    fn lock(&self, _request: &LockRequest) -> Result<Lock> {
        Err(Errno::NOLCK.into())
    }
}
