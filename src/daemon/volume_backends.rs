//! A volume's replicas before any of them is in service.

use std::sync::Arc;

use crate::backend::{Backend, DirBackend, RateLimited};
use crate::config::{Config, PageCache};
use crate::survey::{RootRecord, Roster};
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

impl VolumeBackends {
    /// The directories and limits of `config`, with no replica in service. `known` returns the
    /// predecessor's record of each.
    pub(super) fn absent(config: &Config, known: impl Fn(ReplicaId) -> Option<RootRecord>) -> Self {
        let roster = new_roster(config);
        let configured = config.replicas.iter().enumerate();
        let backends = configured.map(|(index, replica)| {
            let id = ReplicaId::new(index);
            if let Some(record) = known(id) {
                roster.inherit(id, record);
            }
            let directory = DirBackend::absent(roster.entry(id));
            let directory = match replica.page_cache {
                PageCache::Auto => directory,
                PageCache::Use => directory.with_direct_io(false),
                PageCache::Bypass => directory.with_direct_io(true),
            };
            match replica.max_rate {
                Some(rate) => Arc::new(RateLimited::new(directory, rate)) as Arc<dyn Backend>,
                None => Arc::new(directory),
            }
        });
        Self { backends: backends.collect(), roster }
    }

    /// Backends from a test or from `fanfs demo`.
    pub(super) fn from_backends(config: &Config, backends: ReplicaMap<Arc<dyn Backend>>) -> Self {
        Self { roster: new_roster(config), backends }
    }
}
