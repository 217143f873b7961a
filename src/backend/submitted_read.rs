//! Reads that hold no thread.

use super::Result;

pub use crate::nfs::{DataRoom, IsUnwanted};

/// A read that holds no thread ([`super::BackendFile::submit_read`]). The backend has it until the
/// read has ended, and ends it on a thread of its own, which must not be blocked.
pub trait SubmittedRead: Send {
    /// The first byte to read.
    fn offset(&self) -> u64;

    /// The room for the bytes.
    fn room(&mut self) -> &mut dyn DataRoom;

    /// Says when the read may end early. The backend asks from time to time.
    fn is_unwanted(&self) -> IsUnwanted;

    /// The read has ended.
    fn end(self: Box<Self>, end: SubmittedReadEnd);
}

/// How a submitted read has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmittedReadEnd {
    /// As [`super::BackendFile::read_at`] ends.
    Result(Result<usize>),
    /// Nothing waited for it any more.
    Unwanted,
    /// No call was made: only [`super::BackendFile::read_at`] can make this read now.
    Refused,
}

/// The result of submitting a read: the read itself if only
/// [`super::BackendFile::read_at`] can make it.
pub type SubmitResult = std::result::Result<(), Box<dyn SubmittedRead>>;
