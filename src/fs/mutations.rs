//! Changes of data, names and attributes: each is made on the write replica, once.
//!
//! A change is noted ([`super::recent_changes`]) before it is sent and again when it has ended,
//! because other requests may look at the same names meanwhile. The names that the kernel knows are
//! changed here once the write replica has confirmed the change.

mod append;
mod create;
mod entries;
mod fsync;
mod range_ops;
mod rename;
mod set_id;
mod setattr;
mod write;
mod xattr;

use std::sync::Arc;

use super::locks::Locks;
use super::namespace::Namespace;
use super::open_files::OpenFiles;
use super::payload_budget::PayloadBudget;
use super::replica_calls::ReplicaCalls;
use super::tables::Tables;
use crate::telemetry::VolumeCounters;

pub use create::{CreateRequest, CreatedFile};
pub use range_ops::{CopyRequest, FallocateRequest};
pub use rename::RenameRequest;
pub use write::WriteRequest;

/// The operations that change something.
pub struct Mutations {
    pub(super) tables: Arc<Tables>,
    pub(super) calls: Arc<ReplicaCalls>,
    /// Makes the replies for new entries.
    pub(super) namespace: Arc<Namespace>,
    /// Opens files that are created or truncated.
    pub(super) open_files: Arc<OpenFiles>,
    /// Releases locks when a descriptor is closed.
    pub(super) locks: Arc<Locks>,
    /// Memory for the data of requests.
    pub(super) payload_budget: Arc<PayloadBudget>,
    pub(super) counters: Arc<VolumeCounters>,
}
