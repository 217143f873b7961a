//! Bringing replicas into service, at a start and in a successor.
//!
//! All replicas begin absent. One of its own threads examines each, and the replica comes
//! into service when it has passed the roster's checks
//! ([`crate::volume::survey::Roster`]); there is no other way. A replica that hangs or is
//! not mounted delays nothing: it joins when it is well, as a lost replica does
//! ([`crate::read::Reader::bring_in`]).
//!
//! *Invariant:* when a mount answers its first request, every replica that answered
//! within [`QUICK`] is in service, or its refusal is known.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::{Core, StartError};
use crate::backend::{Backend, Directory, RateLimited, Replica};
use crate::config::{Access, Config, PageCache};
use crate::scheduler::health::Proof;
use crate::volume::survey::{Record, Roster, Severity, Survey, survey};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// How long a start waits for each replica that may still answer. A healthy one answers
/// in milliseconds; an automount over a busy network in a second or two.
const QUICK: Duration = Duration::from_secs(2);

/// How long a start waits while it has fewer replicas than it needs.
const NEEDED_WITHIN: Duration = Duration::from_secs(5);

/// The replicas of a volume, and the roster that admits them.
pub(super) struct Members {
    pub(super) roster: Arc<Roster>,
    pub(super) backends: ReplicaMap<Arc<dyn Backend>>,
}

/// The replicas without which a daemon does not serve a mount.
#[derive(Clone, Copy)]
pub(super) struct Needed {
    /// At least so many.
    least: usize,
    /// This one among them.
    writer: Option<ReplicaId>,
    /// Whether a wrong configuration of any replica is an error.
    strict: bool,
}

fn roster(config: &Config) -> Arc<Roster> {
    let question = config.question(None);
    Roster::new(question.subjects, question.mode, question.writer)
}

impl Members {
    /// The directories and limits of `config`, with no replica in service. `known` gives
    /// the predecessor's record of each.
    pub(super) fn absent(config: &Config, known: impl Fn(ReplicaId) -> Option<Record>) -> Self {
        let roster = roster(config);
        let configured = config.replicas.iter().enumerate();
        let backends = configured.map(|(index, replica)| {
            let id = ReplicaId::new(index);
            if let Some(record) = known(id) {
                roster.inherit(id, record);
            }
            let directory = Directory::absent(roster.seat(id));
            let directory = match replica.page_cache {
                PageCache::Auto => directory,
                PageCache::Use => directory.past_page_cache(false),
                PageCache::Bypass => directory.past_page_cache(true),
            };
            match replica.max_rate {
                Some(rate) => Arc::new(RateLimited::new(directory, rate)) as Arc<dyn Backend>,
                None => Arc::new(directory),
            }
        });
        Self { backends: backends.collect(), roster }
    }

    /// Backends from a test or from `fanfs demo`.
    pub(super) fn made(config: &Config, backends: ReplicaMap<Arc<dyn Backend>>) -> Self {
        Self { roster: roster(config), backends }
    }
}

impl Needed {
    /// For a mount or a reload.
    pub(super) fn by(config: &Config) -> Self {
        let is_written = config.volume.access == Access::ReadWrite;
        let writer = is_written.then_some(config.write.replica);
        Self { least: config.volume.min_replicas, writer, strict: true }
    }

    /// For a mount in use that gets another program.
    pub(super) const UPGRADE: Self = Self { least: 1, writer: None, strict: false };

    /// For a mount whose daemon was killed. Without replicas it still keeps its open files
    /// until replicas join.
    pub(super) const RECOVERY: Self = Self { least: 0, writer: None, strict: false };

    /// For a mount that replaces one whose daemon was killed: as above, but no record of that
    /// daemon shows which of two different replicas is the right one.
    pub(super) const REPLACEMENT: Self = Self { least: 0, writer: None, strict: true };
}

/// Surveys the replicas before a mount or a reload, and logs warnings.
///
/// # Errors
/// [`StartError::Refused`] if the configuration can never be right.
pub fn look_around(config: &Config, mount_point: &Path) -> Result<Survey, StartError> {
    let survey = survey(config.question(Some(mount_point)), QUICK);
    for finding in survey.findings() {
        match finding.severity {
            _ if finding.refuses => return Err(StartError::Refused(finding.text)),
            // The roster reports it, if the replica is still unwell then.
            Severity::Error => {}
            Severity::Warning => tracing::warn!("{}", finding.text),
        }
    }
    Ok(survey)
}

impl Core {
    /// Brings absent replicas into service and waits for them. It waits for the `silent`
    /// ones only while the replicas in service are fewer than `needed`.
    ///
    /// # Errors
    /// [`StartError::Refused`] if the mount does not get what is `needed`.
    pub(super) fn bring_in(&self, silent: ReplicaSet, needed: Needed) -> Result<(), StartError> {
        let (send, answers) = mpsc::channel();
        let mut awaited = self.out_of_service();
        for id in awaited.iter() {
            let (send, replica) = (send.clone(), self.replicas[id].name.clone());
            self.reader.bring_in(id, move |proof| {
                if send.send(id).is_err() && proof == Proof::Same {
                    tracing::info!(%replica, "it is there and joins");
                }
            });
        }
        drop(send);
        let begun = Instant::now();
        while !awaited.is_empty() {
            let limit = match self.is_enough(needed) {
                true if awaited.minus(silent).is_empty() => break,
                true => QUICK,
                false => NEEDED_WITHIN,
            };
            let left = (begun + limit).saturating_duration_since(Instant::now());
            let Ok(id) = answers.recv_timeout(left) else { break };
            awaited = awaited.minus(ReplicaSet::EMPTY.with(id));
        }
        drop(answers);
        let out = self.out_of_service();
        let refused = out.iter().find_map(|id| self.roster.refused(id));
        if let Some(why) = refused.filter(|_| needed.strict) {
            return Err(StartError::Refused(why));
        }
        if !self.is_enough(needed) {
            return Err(StartError::Refused(self.too_few(needed, out)));
        }
        for id in out.iter() {
            tracing::warn!("{}; the mount does without it until it is well", self.why_out(id));
        }
        Ok(())
    }

    fn out_of_service(&self) -> ReplicaSet {
        let out = |(_, replica): &(ReplicaId, &Arc<Replica>)| !replica.is_in_service();
        self.replicas.iter().filter(out).fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    fn is_enough(&self, needed: Needed) -> bool {
        let out = self.out_of_service();
        self.replicas.len() - out.len() >= needed.least
            && !needed.writer.is_some_and(|writer| out.contains(writer))
    }

    /// Why a replica is out of service.
    pub(super) fn why_out(&self, id: ReplicaId) -> String {
        let subject = self.roster.subject(id);
        let silent = || format!("{}: {} does not answer", subject.name, subject.path.display());
        self.roster.refusal(id).unwrap_or_else(silent)
    }

    fn too_few(&self, needed: Needed, out: ReplicaSet) -> String {
        let whys: Vec<String> = out.iter().map(|id| self.why_out(id)).collect();
        let (all, whys) = (self.replicas.len(), whys.join("; "));
        let there = all - out.len();
        if all == 1 {
            return whys;
        }
        if let Some(writer) = needed.writer.filter(|writer| out.contains(*writer)) {
            return format!(
                "the write replica cannot be brought into service: {}",
                self.why_out(writer)
            );
        }
        if there == 0 {
            return format!("no replica can be brought into service: {whys}");
        }
        let least = needed.least;
        format!(
            "{there} of {all} replicas can be brought into service, and [volume] min_replicas is \
             {least}: {whys}"
        )
    }
}
