//! The facts about one file, for `fanfs explain`.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::VolumeCore;
use crate::backend::FileKind;
use crate::config::Config;
use crate::explain::{ExplainFacts, ReplicaFacts};
use crate::placement::Locator;
use crate::scheduler::ReplicaSnapshot;
use crate::scheduler::estimate::{ASSUMED_RATE, REMOTE_PRIOR};
use crate::volume::{ByteRange, FileVersion, ReplicaMap, ReplicaSet};

/// Asks the provider about the file at `path` and puts the answer together with
/// what is known of the replicas. Without `standings` nothing was measured.
pub(crate) async fn collect_facts(
    config: &Config,
    locator: &Locator,
    path: &Path,
    version: FileVersion,
    standings: Option<(ReplicaMap<ReplicaSnapshot>, ReplicaSet)>,
) -> ExplainFacts {
    let whole = ByteRange::new(0, version.size);
    let (chunks, failure) = match locator.query_now(path, version, whole).await {
        Ok(chunks) => (chunks.unwrap_or_default(), None),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let replica = |(i, replica): (usize, &crate::config::ReplicaConfig)| {
        let id = crate::volume::ReplicaId::new(i);
        let standing = standings.as_ref().map(|(standings, _)| &standings[id]);
        let assumed = ASSUMED_RATE * replica.weight;
        ReplicaFacts {
            name: replica.name.clone(),
            node: replica.node.clone(),
            rate: standing.map_or(assumed, |standing| standing.rate.local),
            rate_remote: standing.map_or(assumed * REMOTE_PRIOR, |standing| standing.rate.remote),
            is_measured: standing.is_some_and(|standing| standing.is_measured),
            is_usable: standings.as_ref().is_none_or(|(_, usable)| usable.contains(id)),
        }
    };
    let mut facts = ExplainFacts {
        path: Path::new("/").join(path).display().to_string(),
        size: version.size,
        provider: locator.provider_name().to_owned(),
        failure,
        nodes: Vec::new(),
        regions: Vec::new(),
        replicas_on: chunks
            .nodes()
            .iter()
            .map(|node| locator.replicas_on(node).iter().map(|id| id.index()).collect())
            .collect(),
        replicas: config.replicas.iter().enumerate().map(replica).collect(),
        pinned: locator
            .pin(path)
            .map_or(Vec::new(), |pin| pin.replicas.iter().map(|id| id.index()).collect()),
        segment: config.read.segment_size,
        readahead_max: config.read.readahead_max.min(config.memory.budget / 2),
        budget: config.memory.budget,
    };
    facts.set_chunks(&chunks);
    facts
}

impl VolumeCore {
    /// The facts about a file of the mounted volume.
    pub(super) async fn file_facts(&self, path: PathBuf) -> Result<ExplainFacts, String> {
        if path.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(format!("{} is not a path in the volume", path.display()));
        }
        let wrong = |error: String| format!("{}: {error}", Path::new("/").join(&path).display());
        let attr = match self.fs.stat_path(path.clone()).await {
            Ok(attr) if attr.kind == FileKind::Regular => attr,
            Ok(_) => return Err(wrong("not a regular file".to_owned())),
            Err(errno) => {
                return Err(wrong(io::Error::from_raw_os_error(errno.raw()).to_string()));
            }
        };
        let standings = (self.reader.replica_snapshots(), self.reader.availability().usable);
        let locator = self.reader.locator();
        Ok(collect_facts(&self.config, locator, &path, attr.version(), Some(standings)).await)
    }
}
