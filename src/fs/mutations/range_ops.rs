//! Operations on ranges of open files: fallocate(2) and copy_file_range(2).

use super::Mutations;
use super::set_id::SetIdPolicy;
use super::write::{ChangeLock, FileChange};
use crate::backend::{Backend, BackendFile, FileMutation, RequestContext};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::replicas::metadata_client::ChangeClass;
use crate::volume::ByteRange;

/// A copy from one open file to another.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// The file to read.
    pub source: HandleId,
    /// The range to read.
    pub range: ByteRange,
    /// The file to write.
    pub target: HandleId,
    /// The offset to write at.
    pub target_offset: u64,
    /// Whether the kernel sends the request again.
    pub is_resent: bool,
}

/// A range to allocate or to free.
#[derive(Clone, Copy, Debug)]
pub struct FallocateRequest {
    /// The range.
    pub range: ByteRange,
    /// The mode of fallocate(2).
    pub mode: u32,
    /// Whether the kernel sends the request again.
    pub is_resent: bool,
}

impl Mutations {
    /// fallocate(2).
    pub async fn fallocate(
        &self,
        caller: RequestContext,
        handle: HandleId,
        request: FallocateRequest,
    ) -> FsResult<()> {
        let FallocateRequest { range, mode, is_resent } = request;
        let set_id = SetIdPolicy::of_caller(&caller);
        let allocate = move |file: &dyn BackendFile, _: &dyn Backend| {
            let mutation = FileMutation::Fallocate { mode, offset: range.start, len: range.len() };
            set_id.apply_change(file, || file.mutate(&mutation)).map(drop)
        };
        self.change_file(FileChange::range_op(handle, is_resent), allocate).await
    }

    /// copy_file_range(2) between open files; returns the number of bytes.
    pub async fn copy_file_range(
        &self,
        caller: RequestContext,
        request: CopyRequest,
    ) -> FsResult<u64> {
        let CopyRequest { range, target_offset, is_resent, .. } = request;
        let write = self.tables.write_policy()?;
        let source = self.tables.handles.file(request.source).ok_or(Errno::BADF)?;
        let set_id = SetIdPolicy::of_caller(&caller);
        let copy = move |file: &dyn BackendFile, backend: &dyn Backend| {
            let source = source.file_on_write_replica(write.replica, backend)?;
            let mutation = FileMutation::CopyFileRange {
                offset: range.start,
                to: file,
                to_offset: target_offset,
                len: range.len(),
            };
            set_id.apply_change(file, || source.mutate(&mutation))
        };
        self.change_file(FileChange::range_op(request.target, is_resent), copy).await
    }
}

impl FileChange {
    fn range_op(handle: HandleId, is_resent: bool) -> Self {
        let lock = ChangeLock::Exclusive { is_resent };
        Self { handle, class: ChangeClass::Long, lock, caller: None }
    }
}
