//! Finishing the close of a handle that may write: the kernel has its reply already.

use std::sync::Arc;

use super::OpenFiles;
use crate::backend::{DroppedFiles, Lane, collect_closes};
use crate::fs::handles::{OpenInode, VersionAge};
use crate::fs::ino::Ino;
use crate::fs::write_gate::{MutationGuard, Writer};
use crate::read::OpenFile;
use crate::replicas::metadata_client::ChangeClass;
use crate::replicas::task;

/// How often the last handle that may write asks for the version of a file that is being changed.
const MAX_VERSION_QUESTIONS: usize = 3;

/// A handle that may write and is no longer in the tables. Dropping this finishes its close.
pub(super) struct WriterRelease {
    open_files: Arc<OpenFiles>,
    /// `None` once the close is being finished.
    writer: Option<ReleasedWriter>,
}

struct ReleasedWriter {
    ino: Ino,
    inode: Arc<OpenInode>,
    writer: Arc<Writer>,
    /// A request that removes the file waits until it is closed. `None` if a change that was given
    /// up may still be made.
    closing: Option<Arc<MutationGuard>>,
}

impl WriterRelease {
    pub(super) fn new(
        open_files: &Arc<OpenFiles>,
        ino: Ino,
        inode: Arc<OpenInode>,
        writer: Arc<Writer>,
    ) -> Self {
        let closing = inode.gate.start_operation();
        // Before the reply: the journal has the close already.
        open_files.tables.record_inode_change(ino);
        let writer = ReleasedWriter { ino, inode, writer, closing };
        Self { open_files: Arc::clone(open_files), writer: Some(writer) }
    }

    /// Finishes the close on this session thread, which owes no reply. Returns the replica's file
    /// that is to be closed.
    #[must_use]
    pub(super) fn finish_on_session_thread(mut self) -> DroppedFiles {
        let Some(writer) = self.writer.take() else { return DroppedFiles::new() };
        let finish = Arc::clone(&self.open_files).finish_writer(writer);
        collect_closes(|| task::run_on_session_thread(finish))
    }
}

impl Drop for WriterRelease {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            task::run(Arc::clone(&self.open_files).finish_writer(writer));
        }
    }
}

impl OpenFiles {
    /// Asks for the file's version, so that all replicas that have it serve reads again. The last
    /// handle asks once more if the file was changed since it asked: another handle may have written
    /// and closed.
    async fn finish_writer(self: Arc<Self>, released: ReleasedWriter) {
        let ReleasedWriter { ino, inode, writer, closing } = released;
        let Ok(write) = self.tables.write_policy() else { return };
        let mode = self.tables.policy.mode;
        let mut questions = 0;
        let retired = loop {
            let asked = self.tables.change_seq();
            let kernel_attrs = inode.kernel_attrs();
            let mut once = self.calls.single_call(write, Lane::Metadata, &writer.credentials);
            once.class = ChangeClass::Flush;
            let file = Arc::clone(&writer.file);
            let answer = self.calls.client.call_once(once, move |_| file.attr()).await;
            questions += 1;
            self.tables.record_inode_change(ino);
            let mut inodes = self.tables.inodes.lock();
            let is_overtaken = !inodes.is_unchanged_since(ino, asked);
            let can_repeat = answer.is_ok() && questions < MAX_VERSION_QUESTIONS;
            let is_open = || {
                let open = self.tables.handles.find_inode(ino);
                open.is_some_and(|open| Arc::ptr_eq(&open, &inode))
            };
            if is_overtaken && can_repeat && inode.is_last_writer(&writer) && is_open() {
                continue;
            }
            // Attributes that the kernel got meanwhile may be later, and it has them.
            let is_latest = !is_overtaken && inode.kernel_attrs() == kernel_attrs
                // A change that was given up may still be made.
                && closing.is_some();
            let age = match answer {
                Ok(_) if is_latest => VersionAge::Latest,
                _ => VersionAge::Unknown,
            };
            let path = inodes.path(ino);
            inodes.mark_cache_mixed(ino);
            inodes.mark_changed(ino, self.tables.next_change_seq());
            break inode.remove_writer(&writer, age, |old: &OpenFile| {
                let version = answer.map_or(old.version(), |attr| attr.version());
                let path = path.unwrap_or_else(|| old.path().to_owned());
                self.tables.reader.new_open_file(path, version, mode, old.credentials()).reopening()
            });
        };
        if let Some(old) = retired {
            self.tables.reader.retire_file(&old);
        }
    }
}
