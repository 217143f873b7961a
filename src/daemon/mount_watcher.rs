//! Watching the mount table for replicas whose mount goes.
//!
//! Descriptors on a replica stay valid after its mount is detached, so no failing call
//! shows that. The kernel reports each change of the table. A replica whose mount is gone
//! from it leaves service ([`crate::backend::Backend::handle_unmount`]). It is absent until its
//! path shows the same mount again ([`crate::backend::Backend::check_mount`]).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::mount_table::MountTable;
use crate::replicas::Replicas;

/// Tells `replicas` of those whose mount has gone; never returns while the table can be
/// watched.
pub(super) async fn watch_mounts(replicas: Arc<Replicas>) {
    if let Err(error) = watch_table(&replicas).await {
        tracing::warn!(%error, "the mount table is not watched");
    }
}

async fn watch_table(replicas: &Replicas) -> io::Result<()> {
    // That it has changed is a priority event of an open mountinfo (proc(5)).
    let table = OwnedFd::from(File::open("/proc/self/mountinfo")?);
    // SAFETY: the descriptor is this one's own, and nobody closes or replaces it
    // before the registration ends.
    let table = unsafe { AsyncFd::register_with_interest(table, Interest::PRIORITY)? };
    loop {
        // Before the table is read: a mount that is newer than the table would look as if
        // it had gone.
        let mounts = replicas.map(|_, replica| replica.mount_id());
        let now = MountTable::read()?;
        replicas.mounts_changed();
        for (id, mount) in mounts.iter() {
            if let Some(mount) = mount.filter(|mount| now.by_id(*mount).is_none()) {
                replicas.mount_gone(id, mount);
            }
        }
        table.ready(Interest::PRIORITY).await?.clear_ready();
    }
}
