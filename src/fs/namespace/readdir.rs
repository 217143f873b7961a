//! Directory listings with stable offsets.
//!
//! A directory is listed when it is first read through a handle, and the handle keeps the listing
//! if there is memory for it. Offsets are positions in that listing, so they stay valid whichever
//! replica answers next, and however the directory changes. If there is not enough memory, the
//! handle keeps a window of the listing, and lists the directory again for the next window
//! ([`crate::fs::listing`]). A read from the start (rewinddir) begins another listing.

use std::sync::{Arc, Weak};

use super::Namespace;
use crate::backend::{Backend, Credentials, RequestContext};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::DirHandle;
use crate::fs::ino::Ino;
use crate::fs::listing::{ListedEntry, Listing, ListingBuilder};
use crate::fs::listing_cache::ListingCache;
use crate::fs::replica_calls::RetriedCall;
use crate::replicas::metadata_client::RunAs;
use crate::volume::{ReplicaId, VolumeMode};

impl Namespace {
    /// Opens a directory; it is listed when it is read. The replica checks now whether the caller
    /// may list it, unless the caller has the daemon's own credentials.
    pub async fn opendir(&self, caller: RequestContext, ino: Ino) -> FsResult<HandleId> {
        let credentials = caller.credentials();
        if !credentials.is_daemon() {
            let check = || self.check_open_dir(ino, &credentials);
            self.calls.with_rename_retry(&[ino], RetriedCall::Lookup, check).await?;
        }
        Ok(self.tables.handles.insert_dir(ino, credentials, caller.request))
    }

    async fn check_open_dir(&self, ino: Ino, credentials: &Credentials) -> FsResult<()> {
        let path = self.tables.path(ino)?;
        let target = self.calls.target_of_inode(ino, &path);
        let dir = self.tables.dir_ref(ino, path);
        let check = move |replica: ReplicaId, backend: &dyn Backend| {
            backend.check_open_dir(&dir.target_on(replica))
        };
        self.calls.client.call(target, RunAs::Only(credentials.clone()), check).await?;
        Ok(())
    }

    /// The directory's entries, for a reader at `offset`.
    pub async fn readdir(&self, handle: HandleId, offset: u64) -> FsResult<Arc<Listing>> {
        let dir = self.tables.handles.dir(handle).ok_or(Errno::BADF)?;
        if let Some(listing) = dir.listing.get(offset) {
            return Ok(listing);
        }
        let list = || self.list_dir(handle, &dir, offset);
        self.calls.with_rename_retry(&[dir.ino], RetriedCall::Lookup, list).await
    }

    async fn list_dir(
        &self,
        handle: HandleId,
        dir: &Arc<DirHandle>,
        offset: u64,
    ) -> FsResult<Arc<Listing>> {
        let path = self.tables.path(dir.ino)?;
        let target = self.calls.target_of_listing(&path);
        let parent = self.tables.inodes.lock().parent(dir.ino).unwrap_or(dir.ino);
        let list = {
            let memory = Arc::clone(&self.listing_memory);
            let object = self.tables.inode_at(dir.ino, path);
            // In `copies` mode the numbers in the listing are valid only in that one tree.
            let has_numbers = self.tables.policy.mode != VolumeMode::Copies;
            move |replica: ReplicaId, backend: &dyn Backend| {
                let mut builder = match ListingBuilder::new(&memory, offset) {
                    Ok(builder) => builder,
                    Err(errno) => return Ok(Err(errno)),
                };
                backend.list(&object.target_on(replica), &mut |name, number, kind| {
                    builder.push(name, if has_numbers { number } else { 0 }, kind);
                })?;
                Ok(builder.finish(offset))
            }
        };
        let run_as = RunAs::CallerThenDaemon(dir.credentials.clone());
        let (_, packed) = self.calls.client.call(target.long(), run_as, list).await?;
        let listing = Arc::new(Listing { ino: dir.ino, parent, packed: packed? });
        // In another listing the offset may be another position.
        if !self.tables.handles.set_listing(handle.number, dir, &listing, offset) {
            return Err(Errno::STALE);
        }
        if !listing.packed.is_whole() {
            let keeper: Weak<ListingCache> = Arc::downgrade(&dir.listing);
            self.listing_memory.track_window(handle.number, keeper);
        }
        Ok(listing)
    }

    /// The inode number to show for an entry without attributes.
    pub fn listed_ino(&self, dir: Ino, entry: &ListedEntry<'_>) -> Ino {
        self.tables.inodes.lock().listed_ino(dir, entry.name, entry.number)
    }
}
