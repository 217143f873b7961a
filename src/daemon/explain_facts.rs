//! The facts about one file, for `fanfs explain`.
use std::sync::Arc;

use std::io;
use std::path::{Component, Path, PathBuf};

use super::locator_setup;
use super::volume_core::VolumeCore;
use crate::backend::{Attr, FileKind};
use crate::config::Config;
use crate::explain::{ExplainFacts, ReplicaFacts};
use crate::fs::run;
use crate::placement::{Locator, PlacementError};
use crate::scheduler::ReplicaSnapshot;
use crate::scheduler::estimate::{ASSUMED_RATE, REMOTE_PRIOR};
use crate::volume::{FileVersion, ReplicaMap, ReplicaSet};

/// Measurements of a mounted volume's replicas.
struct MeasuredReplicas {
    standings: ReplicaMap<ReplicaSnapshot>,
    usable: ReplicaSet,
}

/// Asks the provider about the file at `path` and combines the answer with the facts about the
/// replicas. `measured` is `None` for a volume that is not mounted.
async fn collect_facts(
    config: &Config,
    locator: &Locator,
    path: &Path,
    version: FileVersion,
    measured: Option<MeasuredReplicas>,
) -> ExplainFacts {
    let (chunks, failure) = match locator.query_now(path, version).await {
        Ok(chunks) => (chunks.unwrap_or_default(), None),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let replica = |(i, replica): (usize, &crate::config::ReplicaConfig)| {
        let id = crate::volume::ReplicaId::new(i);
        let standing = measured.as_ref().map(|measured| &measured.standings[id]);
        let limit = replica.max_rate.map_or(f64::INFINITY, |rate| rate as f64);
        let assumed = (ASSUMED_RATE * replica.weight).min(limit);
        ReplicaFacts {
            name: replica.name.clone(),
            node: replica.node.clone(),
            rate: standing.map_or(assumed, |standing| standing.rate.local),
            rate_remote: standing.map_or(assumed * REMOTE_PRIOR, |standing| standing.rate.remote),
            is_measured: standing.is_some_and(|standing| standing.is_measured.local),
            is_usable: measured.as_ref().is_none_or(|measured| measured.usable.contains(id)),
        }
    };
    let mut facts = ExplainFacts {
        path: Path::new("/").join(path).display().to_string(),
        size: version.size,
        provider: locator.provider_name().to_owned(),
        failure,
        reads_any_copy: locator.reads_any_copy(),
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

/// The facts about a file of a volume that need not be mounted. Nothing is measured then, and
/// this process asks the provider itself.
///
/// # Errors
/// [`ExplainError`] if the provider cannot be asked.
pub fn explain_facts_unmounted(
    config: &Config,
    path: &Path,
    attr: &Attr,
) -> Result<ExplainFacts, ExplainError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(ExplainError::Runtime)?;
    let source = locator_setup::configured_source(config)?;
    let locator = locator_setup::build_locator(config, source, runtime.handle().clone());
    Ok(runtime.block_on(collect_facts(config, &locator, path, attr.version(), None)))
}

/// Why there are no facts about a file.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The threads for the provider's query cannot be started.
    #[error(transparent)]
    Runtime(io::Error),
    /// The provider cannot be used as it is configured.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The path leads out of the volume.
    #[error("{} is not a path in the volume", .0.display())]
    NotInVolume(PathBuf),
    /// It is a directory or a special file.
    #[error("{}: not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// Its attributes cannot be read.
    #[error("{}: {error}", .path.display())]
    Stat {
        /// Its path in the volume.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// No replica answered.
    #[error("{}: no replica answered", .0.display())]
    NoAnswer(PathBuf),
}

impl VolumeCore {
    /// The facts about a file of the mounted volume.
    pub(super) async fn file_facts(&self, path: PathBuf) -> Result<ExplainFacts, ExplainError> {
        if path.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(ExplainError::NotInVolume(path));
        }
        let (send, receive) = tokio::sync::oneshot::channel();
        let fs = Arc::clone(&self.fs);
        let of = path.clone();
        // Run as a request, so that the call is dropped when the volume is unmounted.
        run(async move {
            let _ = send.send(fs.namespace.stat_path(of).await);
        });
        let shown = Path::new("/").join(&path);
        let attr = match receive.await {
            Ok(Ok(attr)) if attr.kind == FileKind::Regular => attr,
            Ok(Ok(_)) => return Err(ExplainError::NotRegular(shown)),
            Ok(Err(errno)) => {
                let error = io::Error::from_raw_os_error(errno.raw());
                return Err(ExplainError::Stat { path: shown, error });
            }
            Err(_) => return Err(ExplainError::NoAnswer(shown)),
        };
        let measured = MeasuredReplicas {
            standings: self.reader.replica_snapshots(),
            usable: self.replicas.availability().usable,
        };
        let locator = self.reader.locator();
        Ok(collect_facts(&self.config, locator, &path, attr.version(), Some(measured)).await)
    }
}
