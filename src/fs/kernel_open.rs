//! The requests to the kernel that an open(2) in progress may make.

use std::any::Any;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Identifies a lent descriptor to the kernel. Dropping it ends the loan.
pub type BackingId = Box<dyn Any + Send + Sync>;

/// The kernel's side of an open(2) that is in progress. Its methods make system calls.
pub trait KernelOpen: Send + Sync {
    /// Lends the kernel a descriptor to read through.
    ///
    /// # Errors
    /// The errno with which the kernel refuses it.
    fn register_backing(&self, file: BorrowedFd<'_>) -> std::io::Result<BackingId>;

    /// Makes the kernel forget its attributes of the file, before the reply.
    fn invalidate_attrs(&self);
}

/// A caller without a kernel: it takes no descriptor.
impl KernelOpen for () {
    fn register_backing(&self, _: BorrowedFd<'_>) -> std::io::Result<BackingId> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn invalidate_attrs(&self) {}
}
