//! The root's attributes, which are known whatever happens to the replicas.
//!
//! Who looks whether the mount is there (df, a shell's prompt, a service manager)
//! looks at the root. Where no replica answers in a call's usual time, that one is
//! told what it was last seen to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::call::Rights;
use super::replaced::Looked;
use super::{Answer, Entry, Errno, Fs, ROOT};
use crate::backend::{Attr, FileKind};
use crate::volume::ReplicaId;

impl Fs {
    /// Finds out the root's identity. Ask it once, before anything else.
    pub fn start(self: &Arc<Self>, done: impl FnOnce(Answer<Entry>) + Send + 'static) {
        self.root_attributes(Rights::DAEMON, Instant::now(), done);
    }

    pub(super) fn root_attributes(
        self: &Arc<Self>,
        rights: Rights,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let path = PathBuf::new();
        let (fs, asked) = (Arc::clone(self), self.now());
        let spot = self.spot_of(ROOT, &path).since(since);
        // What was changed here is not to look as if it had not been.
        let known = if spot.is_only() { None } else { *self.root.lock() };
        let look = {
            let path = path.clone();
            move |_: ReplicaId, backend: &dyn crate::backend::Backend| backend.stat(&path)
        };
        let again = rights.clone();
        self.caller.call_or(known, spot, rights, look, move |answer| match answer {
            Ok((replica, _)) if fs.is_overtaken(replica, &path, ROOT) => {
                fs.root_attributes(again, since, done);
            }
            Ok(found) => done(fs.root_seen(found, asked)),
            Err(error) => done(Err(error.into())),
        });
    }

    fn root_seen(&self, found: (ReplicaId, Attr), asked: u64) -> Answer<Entry> {
        if found.1.kind != FileKind::Directory {
            return Err(Errno::STALE);
        }
        *self.root.lock() = Some(found);
        Ok(self.seen(ROOT, found.1, &Looked::default(), asked))
    }
}
