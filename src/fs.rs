//! The file system: what each operation means, whichever replica carries it out.
//!
//! Operations come from `fuse` in fanfs's own terms, as futures. [`run`] polls each future on the
//! threads that complete the calls that it waits for ([`crate::replicas::task`]). Four types carry
//! out the operations, and each holds only the parts that it may touch: [`Namespace`] looks up
//! names and attributes, [`OpenFiles`] opens, reads and closes, [`Mutations`] changes, and
//! [`Locks`] keeps locks. Below them are the tables ([`tables`]), which never wait, and the calls
//! on replicas ([`replica_calls`]). File data goes through [`crate::read`]. Only [`error`] chooses
//! errnos.
//!
//! *Invariant:* no function here blocks on a replica, except those whose documentation says so.
//! They run inside a call on that replica.

mod activity;
mod append_queue;
mod attribute_demand;
mod cache_mode;
mod entry_name;
mod error;
mod file_transfer;
mod handle_id;
mod handles;
mod ino;
mod inode_barrier;
mod inodes;
mod journal;
mod journal_replay;
mod kernel_open;
mod listing;
mod listing_cache;
mod listing_memory;
mod locks;
mod mutations;
mod name_freshness;
mod namespace;
mod open_files;
mod passthrough;
mod payload_budget;
mod pending_writes;
mod policy;
mod recent_changes;
mod records;
mod renames;
mod replica_calls;
mod snapshot;
mod stale_pages;
mod step_log;
mod tables;
mod unanswered;
mod unsettled;
mod write_gate;

use std::sync::Arc;
use std::time::Duration;

use crate::read::Reader;
use crate::replicas::Replicas;
use crate::replicas::metadata_client::{CallPolicy, MetadataClient};
use crate::telemetry::VolumeCounters;
use listing_memory::ListingMemory;
use open_files::OpenFilesParts;
use payload_budget::PayloadBudget;
use replica_calls::ReplicaCalls;
use tables::Tables;

pub use activity::ReadActivity;
pub use cache_mode::{CacheMode, CacheModePolicy};
pub use entry_name::{EntryName, InodeAttr};
pub use error::{Errno, FsResult};
pub use file_transfer::SnapshotError;
pub use handle_id::HandleId;
pub use ino::{Ino, ROOT};
pub use journal_replay::recover_journal;
pub use kernel_open::{BackingId, KernelOpen};
pub use listing::{ListedEntry, Listing};
pub use locks::{LockOwner, LockWait, Locks};
pub use mutations::{
    CopyRequest, CreateRequest, CreatedFile, FallocateRequest, Mutations, RenameRequest,
    WriteRequest,
};
pub use namespace::{DIRENTPLUS_BYTES, Namespace, ReaddirPlusEntry, ReaddirPlusPage, entry_bytes};
pub use open_files::{OpenFiles, OpenedFile, ReadCaller, ReadReply, SmallFileReads};
pub use passthrough::{PassthroughFile, PassthroughStatus};
pub use policy::{FsPolicy, WritePolicy};
pub use records::{FsSnapshot, SNAPSHOT_FORMAT};
pub use stale_pages::KernelPages;

pub use crate::read::{ReadBytes, ReadData};
pub use crate::replicas::metadata_client::PinnedLatencies;
pub use crate::replicas::task::{run, run_on_session_thread};

/// One volume as a file system.
pub struct Fs {
    /// Names, attributes and listings.
    pub namespace: Arc<Namespace>,
    /// Open files: how they are opened, read and closed.
    pub open_files: Arc<OpenFiles>,
    /// Changes of data, names and attributes.
    pub mutations: Arc<Mutations>,
    /// Locks of fcntl(2) and flock(2).
    pub locks: Arc<Locks>,
    tables: Arc<Tables>,
    calls: Arc<ReplicaCalls>,
    listing_memory: Arc<ListingMemory>,
    payload_budget: Arc<PayloadBudget>,
}

/// Sizes of the tables, as `fanfs status` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGauges {
    /// Inodes that the kernel knows.
    pub inodes: usize,
    /// Open files and directories.
    pub handles: usize,
    /// Metadata calls that have not been answered.
    pub calls: usize,
}

impl Fs {
    /// A file system over `replicas`. `runtime` runs the timers of deadlines.
    pub fn new(
        policy: FsPolicy,
        replicas: Arc<Replicas>,
        reader: Arc<Reader>,
        counters: Arc<VolumeCounters>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let write_replica = policy.write.map_or("", |write| &replicas[write.replica].name);
        let patience = policy.attempt_deadline;
        let payload_budget = PayloadBudget::new(Arc::clone(&reader), patience, write_replica);
        let payload_budget = Arc::new(payload_budget);
        let call_policy = CallPolicy {
            mode: policy.mode,
            deadlines: policy.deadlines,
            attempt_deadline: policy.attempt_deadline,
        };
        let rules = reader.locator().affinities().rules().len();
        let own = Arc::clone(&counters);
        let client = MetadataClient::new(call_policy, Arc::clone(&replicas), rules, own);
        let listing_memory = Arc::new(ListingMemory::new(Arc::clone(&reader)));
        let budget = reader.budget().clone();
        let tables = Tables::new(policy, reader);
        let calls = ReplicaCalls::new(Arc::clone(&tables), client, replicas, runtime);
        let namespace = Arc::new(Namespace::new(
            Arc::clone(&tables),
            Arc::clone(&calls),
            Arc::clone(&listing_memory),
        ));
        let locks = Arc::new(Locks::new(Arc::clone(&tables), Arc::clone(&calls), budget));
        let open_files = OpenFiles::new(OpenFilesParts {
            tables: Arc::clone(&tables),
            calls: Arc::clone(&calls),
            namespace: Arc::clone(&namespace),
            locks: Arc::clone(&locks),
            payload_budget: Arc::clone(&payload_budget),
            counters: Arc::clone(&counters),
        });
        let mutations = Arc::new(Mutations {
            tables: Arc::clone(&tables),
            calls: Arc::clone(&calls),
            namespace: Arc::clone(&namespace),
            open_files: Arc::clone(&open_files),
            locks: Arc::clone(&locks),
            payload_budget: Arc::clone(&payload_budget),
            counters,
        });
        Arc::new(Self {
            namespace,
            open_files,
            mutations,
            locks,
            tables,
            calls,
            listing_memory,
            payload_budget,
        })
    }

    /// Latencies of the affinity rules, in the order of the rules.
    pub fn pinned_latencies(&self) -> Vec<PinnedLatencies> {
        self.calls.client.pinned_latencies()
    }

    /// Sets the interface to the kernel's page cache.
    pub fn set_kernel_pages(&self, kernel: Arc<dyn KernelPages>) {
        let is_first = self.tables.kernel_pages.set(kernel).is_ok();
        assert!(is_first, "a volume has one kernel");
    }

    /// Whether the volume accepts changes.
    pub fn can_write(&self) -> bool {
        self.tables.can_write()
    }

    /// Whether a replica keeps the locks.
    pub fn has_lock_replica(&self) -> bool {
        self.tables.policy.lock_replica.is_some()
    }

    /// How long the kernel may trust names and attributes.
    pub fn attribute_ttl(&self) -> Duration {
        self.tables.policy.attribute_ttl
    }

    /// How long the kernel may trust that a name does not exist.
    pub fn missing_name_ttl(&self) -> Duration {
        self.tables.policy.missing_name_ttl
    }

    /// The present sizes.
    pub fn gauges(&self) -> FsGauges {
        FsGauges {
            inodes: self.tables.inodes.lock().len(),
            handles: self.tables.handles.len(),
            calls: self.calls.client.pending(),
        }
    }
}
