//! A file of an export. It is a handle: the server knows nothing of an open file, and closing it
//! takes no call.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::export_tree::ExportTree;
use super::tree_slot::TreeSlot;
use crate::backend::{
    Attr, BackendFile, BorrowedFds, FileMutation, Lock, LockRequest, Result, SeekTo, SubmitResult,
    SubmittedRead,
};
use crate::nfs::{FileHandle, Identity, NfsError, Object, ReadResult, ReadSink, RpcError};

/// A file, which is read as the user that opened it.
pub(super) struct NfsFile {
    pub(super) slot: Arc<TreeSlot>,
    /// The root of the export when the file was opened.
    pub(super) root: FileHandle,
    pub(super) handle: FileHandle,
    pub(super) identity: Identity,
}

/// A read in flight.
struct FileRead {
    tree: Arc<ExportTree>,
    read: Box<dyn SubmittedRead>,
}

impl ReadSink for FileRead {
    fn bytes(&mut self) -> &mut [u8] {
        self.read.bytes()
    }

    fn end(self: Box<Self>, result: ReadResult) {
        let Self { tree, read } = *self;
        match result {
            Ok(end) => read.end(Ok(end.bytes)),
            // The server cannot read yet, or another tree has taken the place of this one.
            Err(error) if error.is_jukebox() => read.end_as_blocking(),
            Err(NfsError::Rpc(RpcError::Stopped)) if tree.has_ended() => read.end_as_blocking(),
            Err(error) => read.end(Err(error.into())),
        }
    }
}

impl BackendFile for NfsFile {
    fn attr(&self) -> Result<Attr> {
        self.slot.call_file(self.root, |tree| {
            let attributes = tree.client().attributes(tree.caller(&self.identity), self.handle)?;
            Ok(tree.attr(&Object { handle: self.handle, attributes }))
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.slot.call_file(self.root, |tree| {
            Ok(tree.read(&self.identity, self.handle, offset, buf)?.bytes)
        })
    }

    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        // Without a tree, a thread finds out why.
        let Ok(tree) = self.slot.tree_of(self.root) else { return Err(read) };
        let submitted = crate::nfs::SubmittedRead {
            offset: read.offset(),
            is_unwanted: Some(read.is_unwanted()),
            sink: Box::new(FileRead { tree: Arc::clone(&tree), read }),
        };
        tree.submit_read(&self.identity, self.handle, submitted);
        Ok(())
    }

    fn splice_at(&self, _offset: u64, _pipe: BorrowedFd<'_>, _len: usize) -> Option<Result<usize>> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn fds(&self) -> BorrowedFds<'_> {
        BorrowedFds { direct: None, cached: None }
    }

    fn is_deferred(&self) -> bool {
        false
    }

    /// NFSv3 shows no holes: all of the file is data, and its end is a hole.
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
