//! fanfs over some of a volume's replicas, mounted for the time of a run.
//!
//! The volume is as it is configured, but for this: nothing can be changed through it,
//! no page cache is kept (`cache = "direct"`), no file is passed through, nobody else
//! is let in, it has no control socket, and nothing is published of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::{
    Access, AffinityConfig, CachePolicy, Config, LockMode, MetricsConfig, Passthrough,
};
use crate::daemon::{Mount, MountOverrides};
use crate::timeout::run_with_timeout;
use crate::volume::{ReplicaId, ReplicaSet};

/// A mount; it ends with its value.
pub(super) struct ScratchMount {
    mount: Mount,
    pub(super) path: PathBuf,
}

/// How long is waited for what is under way after a pass.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);

impl ScratchMount {
    /// Mounts `config` over `set` at a directory that it makes in `room`.
    pub(super) fn start(
        config: &Config,
        set: ReplicaSet,
        room: &Path,
        deadline: Duration,
    ) -> Result<Self, String> {
        let config = read_only_subset(config, set);
        let path = room.join(format!("fanfs-{}", set.len()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let extra =
            MountOverrides { no_control: true, read_only: true, ..MountOverrides::default() };
        let (of, at) = (config.clone(), path.clone());
        let started = run_with_timeout(deadline, move || {
            Mount::start_from_config(of, ReplicaSet::EMPTY, &at, &extra)
        });
        let mount = started
            .ok_or_else(|| format!("a replica did not answer within {} s", deadline.as_secs_f64()))?
            .map_err(|error| error.to_string())?;
        Ok(Self { mount, path })
    }

    /// Bytes that each replica has delivered since the mount, in the volume's order.
    pub(super) fn delivered_bytes(&self) -> Vec<u64> {
        self.mount.status().replicas.iter().map(|replica| replica.counters.bytes).collect()
    }

    /// Waits until nothing is under way that was fetched ahead: it would take from who
    /// is measured next.
    pub(super) fn wait_quiet(&self) {
        let until = Instant::now() + QUIET_TIMEOUT;
        let is_busy = || self.mount.status().replicas.iter().any(|replica| replica.in_flight > 0);
        while is_busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Unmounts.
    pub(super) fn stop(self) -> Result<(), String> {
        self.mount.stop().map_err(|error| error.to_string())
    }
}

/// The volume with some of its replicas, to be read only.
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
    // Several are mounted at once, and the volume itself may be: they would want one port,
    // and write one file.
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
