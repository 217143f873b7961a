//! Watches the mount table for replicas whose mount disappears.
//!
//! Descriptors on a replica stay valid after its mount is detached, so no failing call shows
//! that. The kernel reports each change of the table. A replica whose mount is missing from it
//! leaves service ([`crate::backend::Backend::handle_unmount`]). It is absent until its path
//! shows the same mount again ([`crate::backend::Backend::check_mount`]).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::mount_table::MountTable;
use crate::replicas::Replicas;

/// The interval between tries to read a table that could not be read: for want of a descriptor, or of
/// memory.
const RETRY: Duration = Duration::from_secs(1);

/// Reports each mount that disappeared to `replicas`. Returns only if the table cannot be
/// watched.
pub(super) async fn watch_mounts(replicas: Arc<Replicas>) {
    if let Err(error) = watch_table(&replicas).await {
        tracing::warn!(%error, "cannot watch the mount table for replicas that are unmounted");
    }
}

async fn watch_table(replicas: &Replicas) -> io::Result<()> {
    // The kernel signals a change as a priority event on an open mountinfo (proc(5)).
    let table = OwnedFd::from(File::open("/proc/self/mountinfo")?);
    // SAFETY: the `OwnedFd` owns the descriptor, and nothing closes or replaces it before the
    // registration ends.
    let table = unsafe { AsyncFd::register_with_interest(table, Interest::PRIORITY)? };
    let mut has_failed = false;
    loop {
        // The mount ids are read before the table: a mount that is newer than the table would
        // look as if it had disappeared.
        let mounts = replicas.map(|_, replica| replica.mount_id());
        let now = match MountTable::read() {
            Ok(now) => now,
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "cannot read the mount table; fanfs tries again");
                }
                has_failed = true;
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        has_failed = false;
        replicas.mounts_changed();
        for (id, mount) in mounts.iter() {
            if let Some(mount) = mount.filter(|mount| now.by_id(*mount).is_none()) {
                replicas.mount_gone(id, mount);
            }
        }
        table.ready(Interest::PRIORITY).await?.clear_ready();
    }
}
