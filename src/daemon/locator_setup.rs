//! The locator of a volume, from its configuration and the servers that its replicas are
//! mounted from.

use std::path::Path;

use crate::config::Config;
use crate::config::placement::ProviderConfig;
use crate::mount_table::MountTable;
use crate::placement::affinity::AffinityRules;
use crate::placement::{
    Locator, LocatorPolicy, PlacementError, PlacementSource, ReplicaTopology, build_source,
    configured_names,
};
use crate::volume::ReplicaId;

/// For files of fewer segments, placement is not worth a query that starts a program or crosses
/// the network.
const MIN_QUERY_SEGMENTS: u64 = 4;

/// A locator whose queries run on `runtime`.
pub(super) fn build_locator(
    config: &Config,
    source: PlacementSource,
    runtime: tokio::runtime::Handle,
) -> Locator {
    let placement = &config.placement;
    let is_free = matches!(placement.provider, ProviderConfig::Table { .. });
    let policy = LocatorPolicy {
        ttl: placement.ttl,
        retry_after: placement.retry_after,
        min_file_size: if is_free { 0 } else { MIN_QUERY_SEGMENTS * config.read.segment_size },
        timeout: placement.timeout,
    };
    let mut names = configured_names(&config.replicas);
    let table = match &source {
        PlacementSource::Provider(_) => MountTable::read().ok(),
        PlacementSource::None | PlacementSource::Timing(_) => None,
    };
    for (id, replica) in config.replicas.iter().enumerate() {
        if let Some(export) = replica.location.export() {
            names.add(ReplicaId::new(id), &export.address.server);
        }
        let mounted = table.as_ref().zip(replica.location.directory());
        let nfs = mounted.and_then(|(table, path)| table.nfs(table.containing(path)?));
        let Some(nfs) = nfs else { continue };
        for name in std::iter::once(nfs.server).chain(nfs.addr) {
            names.add(ReplicaId::new(id), &name);
        }
    }
    let ground = ReplicaTopology {
        names,
        replicas: config.replicas.iter().map(|replica| replica.name.clone()).collect(),
        directory: config
            .replicas
            .iter()
            .find_map(|replica| replica.location.directory())
            .map(Path::to_owned)
            .unwrap_or_default(),
        affinities: AffinityRules::new(&config.affinities),
    };
    Locator::new(source, policy, ground, runtime)
}

/// The provider that knows where the volume's chunks are.
///
/// # Errors
/// If the provider cannot be used as it is configured.
pub(super) fn configured_source(config: &Config) -> Result<PlacementSource, PlacementError> {
    build_source(&config.placement, config.volume.chunk_size)
}
