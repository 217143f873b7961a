//! The root's attributes, which are known whatever happens to the replicas.
//!
//! Who looks whether the mount is there (df, a shell's prompt, a service manager)
//! looks at the root. Where no replica answers in a call's usual time, that one is
//! told what it was last seen to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::file_replacement::OpenFileCheck;
use super::metadata_client::RunAs;
use super::{Errno, Fs, FsResult, InodeAttr, ROOT};
use crate::backend::{Attr, FileKind};
use crate::volume::ReplicaId;

impl Fs {
    /// Finds out the root's identity. Ask it once, before anything else.
    pub fn init_root(self: &Arc<Self>, done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static) {
        self.getattr_root(RunAs::DAEMON, Instant::now(), done);
    }

    pub(super) fn getattr_root(
        self: &Arc<Self>,
        rights: RunAs,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let path = PathBuf::new();
        let (fs, asked) = (Arc::clone(self), self.change_seq());
        let spot = self.call_target_of_inode(ROOT, &path).requested_at(since);
        // After a change through this mount, older attributes would hide it.
        let known = if spot.has_sole_replica() { None } else { *self.last_root_attr.lock() };
        let look = {
            let path = path.clone();
            move |_: ReplicaId, backend: &dyn crate::backend::Backend| backend.stat(&path)
        };
        let again = rights.clone();
        self.client.call_with_fallback(known, spot, rights, look, move |answer| match answer {
            Ok((replica, _)) if fs.is_possibly_stale(replica, &path, ROOT) => {
                fs.getattr_root(again, since, done);
            }
            Ok(found) => done(fs.root_attr_reply(found, asked)),
            Err(error) => done(Err(error.into())),
        });
    }

    fn root_attr_reply(&self, found: (ReplicaId, Attr), asked: u64) -> FsResult<InodeAttr> {
        if found.1.kind != FileKind::Directory {
            return Err(Errno::STALE);
        }
        *self.last_root_attr.lock() = Some(found);
        Ok(self.attr_reply(ROOT, found.1, &OpenFileCheck::default(), asked))
    }
}
