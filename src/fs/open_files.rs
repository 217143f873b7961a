//! Open files: how they are opened, read and closed.
//!
//! All handles of a file read one version, from any replica that has it. While a handle may write
//! the file, all handles read what the write replica has ([`super::write_gate`]). This module
//! changes nothing on a replica, except that an open may truncate.

mod open;
mod open_immutable;
mod open_to_write;
mod pages_at_open;
mod read;
mod read_unopened;
mod replica_open;
mod write_replica_reads;
mod writer_release;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::activity::{ActivityLog, ReadActivity};
use super::handle_id::HandleId;
use super::handles::ReleasedHandle;
use super::ino::Ino;
use super::inodes::Inodes;
use super::locks::Locks;
use super::namespace::Namespace;
use super::passthrough::{Passthrough, PassthroughFile, PassthroughStatus};
use super::payload_budget::PayloadBudget;
use super::records::UnansweredEntry;
use super::replica_calls::ReplicaCalls;
use super::tables::Tables;
use crate::backend::{DroppedFiles, Lane, collect_closes};
use crate::telemetry::VolumeCounters;
use read_unopened::ImplicitHandles;
use writer_release::WriterRelease;

pub use open::OpenedFile;
pub(super) use open_to_write::{OpenForWrite, OpenedWriter, WriteHandle};
pub use read::{ReadCaller, ReadReply, SmallFileReads};

/// The open files of a volume, and the operations on them.
pub struct OpenFiles {
    tables: Arc<Tables>,
    calls: Arc<ReplicaCalls>,
    namespace: Arc<Namespace>,
    locks: Arc<Locks>,
    passthrough: Passthrough,
    activity: ActivityLog,
    implicit: ImplicitHandles,
    /// Whether the kernel maps files that are open direct.
    direct_mmap: AtomicBool,
    /// Memory for the data of requests.
    payload_budget: Arc<PayloadBudget>,
    counters: Arc<VolumeCounters>,
}

/// What a released handle leaves to do. Dropping this leaves it to the replicas' threads.
pub struct ReleasedFiles {
    /// Files of replicas that are to be closed.
    dropped: DroppedFiles,
    writer: Option<WriterRelease>,
}

/// The parts that open files use.
pub(super) struct OpenFilesParts {
    pub(super) tables: Arc<Tables>,
    pub(super) calls: Arc<ReplicaCalls>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) locks: Arc<Locks>,
    pub(super) payload_budget: Arc<PayloadBudget>,
    pub(super) counters: Arc<VolumeCounters>,
}

impl OpenFiles {
    pub(super) fn new(parts: OpenFilesParts) -> Arc<Self> {
        let OpenFilesParts { tables, calls, namespace, locks, payload_budget, counters } = parts;
        let passthrough = Passthrough::new(tables.policy.passthrough, calls.replicas.len());
        let implicit = ImplicitHandles::new(calls.replicas.len());
        Arc::new(Self {
            tables,
            calls,
            namespace,
            locks,
            passthrough,
            activity: ActivityLog::default(),
            implicit,
            direct_mmap: AtomicBool::new(false),
            payload_budget,
            counters,
        })
    }

    /// Sets whether the kernel maps files that are open direct.
    pub fn set_direct_mmap(&self, it_does: bool) {
        self.direct_mmap.store(it_does, Ordering::Relaxed);
    }

    /// Whether passthrough is configured.
    pub fn is_passthrough_wanted(&self) -> bool {
        self.passthrough.is_wanted()
    }

    /// Turns passthrough off, because the kernel cannot do it; `why` is the reason.
    pub fn disable_passthrough(&self, why: String) {
        self.passthrough.disable(why);
    }

    /// The state of passthrough.
    pub fn passthrough_status(&self) -> PassthroughStatus {
        self.passthrough.status()
    }

    /// The `most` files that were read last, the latest first. Sums of closed handles are left out
    /// last.
    pub fn recently_read_files(&self, most: usize) -> Vec<ReadActivity> {
        self.activity.recently_read(self.tables.handles.files(), most)
    }

    /// Closes a file or directory.
    pub fn release(self: &Arc<Self>, handle: HandleId) {
        drop(self.remove_released(handle));
    }

    /// The same on a session thread. The thread passes the result to
    /// [`OpenFiles::finish_release`] once the kernel has its reply. If a call for it hangs, nothing
    /// waits for it.
    #[must_use]
    pub fn release_on_session_thread(self: &Arc<Self>, handle: HandleId) -> ReleasedFiles {
        let mut writer = None;
        let dropped = collect_closes(|| writer = self.remove_released(handle));
        ReleasedFiles { dropped, writer }
    }

    /// Finishes the release of a handle on this session thread. The thread closes one file itself at
    /// most: if that hangs, the files of other replicas must not wait for it.
    pub fn finish_release(&self, released: ReleasedFiles) {
        let ReleasedFiles { dropped: mut files, writer } = released;
        if let Some(writer) = writer {
            // The replicas' threads close files that were dropped before.
            files = writer.finish_on_session_thread();
        }
        let own = files.pop();
        // The replicas' threads close the others.
        drop(files);
        if let Some(file) = own {
            self.calls.client.close(file);
        }
    }

    /// Removes a handle that the kernel has released.
    fn remove_released(self: &Arc<Self>, handle: HandleId) -> Option<WriterRelease> {
        // A removal waits until all handles of the file are closed.
        let open = self.tables.handles.file(handle).filter(|_| self.tables.can_write());
        let _closing = open.and_then(|file| file.inode.gate.start_operation());
        let closed = self.remove_handle(&mut self.tables.inodes.lock(), handle);
        let writer = self.finish_close(handle, closed);
        self.tables.compact_journal_if_due();
        writer
    }

    /// The kernel sends a request again: removes the entries of its earlier try, which the kernel
    /// does not know.
    pub fn roll_back_request(self: &Arc<Self>, request: u64) {
        let mut closed = Vec::new();
        {
            // Held throughout, so a rewritten journal has either all entries or none.
            let mut inodes = self.tables.inodes.lock();
            let (entered, recorded) = self.tables.log.roll_back(request);
            inodes.add_unflushed(recorded);
            for entered in entered {
                match entered {
                    UnansweredEntry::Lookup(ino) => inodes.undo_lookup(Ino(ino)),
                    UnansweredEntry::Handle { number, ino } => {
                        let handle = HandleId { number, ino: Ino(ino) };
                        closed.push((handle, self.remove_handle(&mut inodes, handle)));
                    }
                }
            }
        }
        for (handle, closed) in closed {
            drop(self.finish_close(handle, closed));
        }
    }

    /// Removes a handle from the tables.
    fn remove_handle(&self, inodes: &mut Inodes, handle: HandleId) -> ReleasedHandle {
        let (closed, recorded) = self.tables.handles.remove(handle);
        inodes.add_unflushed(recorded);
        if closed.last_version.is_some()
            && let Some(ino) = closed.ino
        {
            inodes.mark_closed(ino, self.tables.next_change_seq());
        }
        closed
    }

    /// Releases the resources of a closed handle. If it may write, the rest is left to the result.
    fn finish_close(
        self: &Arc<Self>,
        handle: HandleId,
        closed: ReleasedHandle,
    ) -> Option<WriterRelease> {
        self.locks.release_handle(handle.number);
        let writer =
            closed.writer.map(|(ino, inode, writer)| WriterRelease::new(self, ino, inode, writer));
        if let Some((ino, small)) = closed.small_blocks {
            self.tables.inodes.lock().set_small_block_reads(ino, small);
        }
        if let Some((read, file)) = closed.read_totals {
            self.activity.record_closed(file.path(), read);
        }
        if let Some(read) = closed.read_handle {
            self.tables.reader.close_handle(&read);
        }
        self.return_backing(closed.backing);
        if let Some(file) = closed.last_version {
            self.tables.reader.retire_file(&file);
        }
        writer
    }

    /// Takes back a lent file that the kernel does not read, or no longer reads.
    fn return_backing(&self, backing: Option<Arc<PassthroughFile>>) {
        if let Some(backing) = backing {
            self.passthrough.release(&backing);
            // Closing may block on the replica, so one of its own threads does it.
            let replica = &self.calls.replicas[backing.replica];
            let _ = replica.submit(Lane::Metadata, move |_| drop(backing));
        }
    }
}
