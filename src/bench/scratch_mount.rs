//! A mount of fanfs over some of a volume's replicas, for the time of a run.
//!
//! The volume keeps its configuration, with these exceptions: it is read-only, keeps no page cache
//! (`cache = "direct"`), passes no file through, admits no other user, has no control socket, and
//! publishes no metrics.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::{
    Access, AffinityConfig, CachePolicy, Config, LockMode, MetricsConfig, Passthrough,
};
use crate::daemon::{Mount, MountOverrides, StartError};
use crate::timeout::run_with_timeout;
use crate::volume::{ReplicaId, ReplicaSet};

/// A mount; dropping the value unmounts it.
pub(super) struct ScratchMount {
    mount: Mount,
    pub(super) path: PathBuf,
}

/// Why fanfs could not be mounted, or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum ScratchMountError {
    /// The mount point cannot be made.
    #[error("cannot create the mount point {}: {error}", .path.display())]
    CreateDir {
        /// The mount point.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A replica hung.
    #[error("cannot mount fanfs: a replica did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The mount failed.
    #[error(transparent)]
    Start(StartError),
    /// The unmount failed.
    #[error(transparent)]
    Stop(StartError),
}

/// How long to wait after a pass for reads that are still in flight.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);

impl ScratchMount {
    /// Mounts `config` over `set` at a directory that it makes in `scratch_dir`.
    pub(super) fn start(
        config: &Config,
        set: ReplicaSet,
        scratch_dir: &Path,
        deadline: Duration,
    ) -> Result<Self, ScratchMountError> {
        let config = read_only_subset(config, set);
        let path = scratch_dir.join(format!("fanfs-{}", set.len()));
        if let Err(error) = std::fs::create_dir(&path) {
            return Err(ScratchMountError::CreateDir { path, error });
        }
        let extra =
            MountOverrides { no_control: true, read_only: true, ..MountOverrides::default() };
        let mount_point = path.clone();
        let started = run_with_timeout(deadline, move || {
            Mount::start_from_config(config, ReplicaSet::EMPTY, &mount_point, &extra)
        });
        let started = started.ok_or(ScratchMountError::TimedOut(deadline))?;
        let mount = started.map_err(ScratchMountError::Start)?;
        Ok(Self { mount, path })
    }

    /// Bytes that each replica has delivered since the mount, in the volume's order.
    pub(super) fn delivered_bytes(&self) -> Vec<u64> {
        self.mount.status().replicas.iter().map(|replica| replica.counters.bytes).collect()
    }

    /// Waits until no readahead is in flight: it would take bandwidth from the next pass.
    pub(super) fn wait_quiet(&self) {
        let until = Instant::now() + QUIET_TIMEOUT;
        let is_busy = || self.mount.status().replicas.iter().any(|replica| replica.in_flight > 0);
        while is_busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn stop(self) -> Result<(), ScratchMountError> {
        self.mount.stop().map_err(|error| ScratchMountError::Stop(error.into()))
    }
}

/// The volume with some of its replicas, read-only.
fn read_only_subset(config: &Config, set: ReplicaSet) -> Config {
    let mut narrow = config.clone();
    narrow.replicas = set.iter().map(|id| config.replicas[id.index()].clone()).collect();
    let kept: Vec<ReplicaId> = set.iter().collect();
    let renamed = |rule: &AffinityConfig| {
        let members = kept.iter().enumerate().filter(|(_, old)| rule.replicas.contains(**old));
        let replicas = members.fold(ReplicaSet::EMPTY, |s, (new, _)| s.with(ReplicaId::new(new)));
        (!replicas.is_empty()).then(|| AffinityConfig { path: rule.path.clone(), replicas })
    };
    narrow.affinities = config.affinities.iter().filter_map(renamed).collect();
    narrow.volume.access = Access::ReadOnly;
    // A benchmark needs every replica that it measures.
    narrow.volume.min_replicas = narrow.replicas.len();
    narrow.write.replica = ReplicaId::new(0);
    narrow.write.locks = LockMode::Local;
    narrow.read.cache = CachePolicy::Direct;
    narrow.read.passthrough = Passthrough::Off;
    narrow.fuse.allow_other = false;
    // Several mounts exist at once, and the volume itself may be mounted: they would use the same
    // port and write the same file.
    narrow.metrics = MetricsConfig::default();
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrowed_volume_names_the_same_replicas() {
        let text = "[volume]\nname = \"v\"\nmode = \"shared\"\naccess = \"rw\"\n\
                    [[replica]]\npath = \"/a\"\nname = \"r1\"\nnode = \"n\"\n\
                    [[replica]]\npath = \"/b\"\nname = \"r2\"\n\
                    [[replica]]\npath = \"/c\"\nname = \"r3\"\nnode = \"n\"\n\
                    [write]\nreplica = \"r3\"\n\
                    [metrics]\nlisten = \"127.0.0.1:9999\"\ntextfile = \"/run/v.prom\"\n\
                    [[affinity]]\npath = \"/x/**\"\nreplica = \"r1\"\n\
                    [[affinity]]\npath = \"/y/**\"\nnode = \"n\"\n";
        let config = crate::config::parse(text, Path::new("v.toml")).unwrap();
        let set = ReplicaSet::EMPTY.with(ReplicaId::new(1)).with(ReplicaId::new(2));
        let narrow = read_only_subset(&config, set);
        let names: Vec<&str> = narrow.replicas.iter().map(|r| &*r.name).collect();
        assert_eq!(names, ["r2", "r3"]);
        assert_eq!(narrow.affinities.len(), 1);
        assert_eq!(narrow.affinities[0].path, "/y/**");
        let second = ReplicaSet::EMPTY.with(ReplicaId::new(1));
        assert_eq!(narrow.affinities[0].replicas, second);
        assert_ne!(config.metrics, MetricsConfig::default());
        assert_eq!(narrow.metrics, MetricsConfig::default());
        assert_eq!((narrow.volume.access, narrow.write.locks), (Access::ReadOnly, LockMode::Local));
    }
}
