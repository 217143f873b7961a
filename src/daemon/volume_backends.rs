//! A volume's replicas before any of them is in service.

use std::sync::Arc;

use crate::backend::{Backend, BackendError, DirBackend, NfsBackend, NfsTimes, RateLimited};
use crate::config::{Config, PageCache, ReplicaConfig};
use crate::survey::{AdmissionRefusal, ReplicaLocation, RootRecord, Roster};
use crate::volume::{ReplicaId, ReplicaMap};

/// The replicas of a volume, and the roster that admits them.
pub(super) struct VolumeBackends {
    pub(super) roster: Arc<Roster>,
    pub(super) backends: ReplicaMap<Arc<dyn Backend>>,
}

fn new_roster(config: &Config) -> Arc<Roster> {
    let question = config.survey_request(None);
    Roster::new(question.replicas, question.mode, question.write_replica)
}

/// Why a replica cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenReplicaError {
    /// Its directory.
    #[error(transparent)]
    Directory(#[from] BackendError),
    /// Its export; the reason.
    #[error("{0}")]
    Export(String),
}

/// Opens a replica for a command that mounts nothing. It is compared with no other replica, and not
/// limited. Blocks as long as the replica does.
///
/// # Errors
/// If it cannot be opened.
pub fn open_replica(
    config: &Config,
    replica: &ReplicaConfig,
) -> Result<Arc<dyn Backend>, OpenReplicaError> {
    match &replica.location {
        ReplicaLocation::Directory(path) => {
            Ok(Arc::new(with_page_cache(replica, DirBackend::open(path)?)))
        }
        ReplicaLocation::Export(_) => {
            let seat = Roster::single_entry(replica.spec());
            let refused = |refusal| {
                OpenReplicaError::Export(match refusal {
                    AdmissionRefusal::NoExport(_, why) => why,
                    other => format!("{other:?}"),
                })
            };
            Ok(Arc::new(NfsBackend::open(seat, nfs_times(config)).map_err(refused)?))
        }
    }
}

fn with_page_cache(replica: &ReplicaConfig, directory: DirBackend) -> DirBackend {
    match replica.page_cache {
        PageCache::Auto => directory,
        PageCache::Use => directory.with_direct_io(false),
        PageCache::Bypass => directory.with_direct_io(true),
    }
}

/// The backend, with the replica's limit.
fn limited(replica: &ReplicaConfig, backend: impl Backend + 'static) -> Arc<dyn Backend> {
    match replica.max_rate {
        Some(rate) => Arc::new(RateLimited::new(backend, rate)),
        None => Arc::new(backend),
    }
}

/// The times of exports: a call ends when that of the most patient reader does, and a directory is looked up again
/// when the kernel asks for its attributes again.
fn nfs_times(config: &Config) -> NfsTimes {
    NfsTimes { operation: config.read.deadline_all, directories: config.fuse.attribute_ttl }
}

impl VolumeBackends {
    /// The directories, exports and limits of `config`, with no replica in service. `known` returns the
    /// predecessor's record of each.
    pub(super) fn absent(config: &Config, known: impl Fn(ReplicaId) -> Option<RootRecord>) -> Self {
        let roster = new_roster(config);
        let configured = config.replicas.iter().enumerate();
        let backends = configured.map(|(index, replica)| {
            let id = ReplicaId::new(index);
            if let Some(record) = known(id) {
                roster.inherit(id, record);
            }
            match &replica.location {
                ReplicaLocation::Directory(_) => {
                    limited(replica, with_page_cache(replica, DirBackend::absent(roster.entry(id))))
                }
                ReplicaLocation::Export(_) => {
                    limited(replica, NfsBackend::absent(roster.entry(id), nfs_times(config)))
                }
            }
        });
        Self { backends: backends.collect(), roster }
    }

    /// Backends from a test or from `fanfs demo`.
    pub(super) fn from_backends(config: &Config, backends: ReplicaMap<Arc<dyn Backend>>) -> Self {
        Self { roster: new_roster(config), backends }
    }
}
