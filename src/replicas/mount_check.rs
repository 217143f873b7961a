//! How a replica comes into service, leaves it, and returns.
//!
//! A replica that was ejected, or was never in service, must first prove that it is the right
//! mount. The check runs on one of the replica's own threads: if the replica hangs, the check hangs
//! too, and it ends when the replica recovers.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::Replicas;
use super::health::MountCheck;
use crate::backend::{Backend, ErrorOrigin, JobOptions, Lane, PathKey, with_daemon_credentials};
use crate::volume::{ReplicaId, ReplicaSet};

impl Replicas {
    /// Starts a mount check on each of these replicas.
    pub(super) fn start_mount_checks(self: &Arc<Self>, due: ReplicaSet) {
        for replica in due.iter() {
            self.start_mount_check(replica, |_| {});
            self.ticker.wake_to_linger();
        }
    }

    fn start_mount_check(
        self: &Arc<Self>,
        id: ReplicaId,
        done: impl FnOnce(MountCheck) + Send + 'static,
    ) {
        let replicas = Arc::clone(self);
        let prove = move |backend: &dyn Backend| {
            let same = with_daemon_credentials(|_| backend.check_mount()).and_then(|same| same);
            let proof = match same {
                Ok(true) => MountCheck::SameMount,
                Ok(false) => MountCheck::MountGone,
                Err(error) => {
                    tracing::debug!(replica = %replicas[id].name, %error, "cannot check the mount");
                    match error.origin() {
                        ErrorOrigin::Machine => MountCheck::Inconclusive,
                        _ => MountCheck::Failed,
                    }
                }
            };
            let proof = {
                // Under one lock, as in `mount_gone`: a replica out of service is absent, whatever
                // the check found before it left. So it will be checked again.
                let mut health = replicas.lock_health();
                let is_in = replicas[id].is_in_service();
                let proof = if is_in { proof } else { MountCheck::MountGone };
                health.mount_checked(id, proof, Instant::now());
                proof
            };
            replicas.ticker.wake_to_linger();
            done(proof);
        };
        let path_key = PathKey::from_path(Path::new(""));
        let options = JobOptions { path_key, is_probe: true, ..JobOptions::default() };
        if self[id].submit_with(Lane::Metadata, options, prove).is_err() {
            self.lock_health().mount_checked(id, MountCheck::Inconclusive, Instant::now());
        }
    }

    /// Starts the admission of a replica that has not been in service, and retries until it
    /// succeeds; `done` gets the result of the first check. The check blocks on one of the
    /// replica's own threads if the replica hangs.
    pub fn start_admission(
        self: &Arc<Self>,
        id: ReplicaId,
        done: impl FnOnce(MountCheck) + Send + 'static,
    ) {
        self.lock_health().mark_awaiting_admission(id, Instant::now());
        self.start_mount_check(id, done);
        self.ticker.wake_to_linger();
    }

    /// A replica's `mount` is gone: the replica leaves service. Its path is checked soon, as
    /// another mount may be there already.
    pub fn mount_gone(&self, replica: ReplicaId, mount: u64) {
        let now = Instant::now();
        let mut health = self.lock_health();
        self[replica].handle_unmount(mount);
        health.mount_gone(replica, now);
        health.mounts_changed(now);
        drop(health);
        self.ticker.wake_to_linger();
    }

    /// Something was mounted or unmounted: an absent replica may be back.
    pub fn mounts_changed(&self) {
        self.lock_health().mounts_changed(Instant::now());
        self.ticker.wake_to_linger();
    }
}
