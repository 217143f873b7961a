//! The locator of a volume, from its configuration and what its replicas are
//! mounted from.

use crate::config::Config;
use crate::config::placement::Provider;
use crate::placement::affinity::Affinities;
use crate::placement::{
    Ground, Locator, LocatorPolicy, PlacementError, Source, configured_names, source,
};
use crate::volume::ReplicaId;
use crate::volume::mounts::MountTable;

/// Files shorter than so many segments are not worth a question that starts a
/// program or crosses the network.
const WORTH_ASKING: u64 = 4;

/// A locator whose questions run on `runtime`.
pub(super) fn locator(config: &Config, source: Source, runtime: tokio::runtime::Handle) -> Locator {
    let placement = &config.placement;
    let is_free = matches!(placement.provider, Provider::Table { .. });
    let policy = LocatorPolicy {
        ttl: placement.ttl,
        retry_after: placement.retry_after,
        smallest: if is_free { 0 } else { WORTH_ASKING * config.read.segment_size },
        timeout: placement.timeout,
    };
    let mut names = configured_names(&config.replicas);
    let table = match &source {
        Source::Provider(_) => MountTable::read().ok(),
        Source::Nobody | Source::Timing(_) => None,
    };
    for (id, replica) in config.replicas.iter().enumerate() {
        let nfs = table.as_ref().and_then(|table| table.nfs(table.containing(&replica.path)?));
        let Some(nfs) = nfs else { continue };
        for name in std::iter::once(nfs.server).chain(nfs.addr) {
            names.add(ReplicaId::new(id), &name);
        }
    }
    let ground = Ground {
        names,
        directories: config.replicas.iter().map(|replica| replica.path.clone()).collect(),
        affinities: Affinities::new(&config.affinities),
    };
    Locator::new(source, policy, ground, runtime)
}

/// Who is asked where the volume's chunks are.
///
/// # Errors
/// Where the provider cannot be used as it is configured.
pub(crate) fn provider(config: &Config) -> Result<Source, PlacementError> {
    source(&config.placement, config.volume.chunk_size)
}
