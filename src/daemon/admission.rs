//! Replicas come into service: at a start, and when one daemon follows another.
//!
//! All replicas begin absent. Each is looked at by one of its own threads, and comes
//! into service when it has passed the checks of the roster
//! ([`crate::volume::survey::Roster`]); there is no other way. One that hangs, or whose
//! mount is not there, holds up nothing: it joins when it is well, as one that was lost
//! does ([`crate::read::Reader::bring_in`]).
//!
//! *Invariant:* when a mount answers, every replica that answered within [`QUICK`] is in
//! service, or has said why not.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::{Core, StartError};
use crate::backend::{Backend, Directory, RateLimited, Replica};
use crate::config::{Access, Config, PageCache};
use crate::scheduler::health::Proof;
use crate::volume::survey::{Record, Roster, Severity, Survey, survey};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// How long every replica is waited for that may answer. A healthy one answers in
/// milliseconds; an automount over a busy network in a second or two.
const QUICK: Duration = Duration::from_secs(2);

/// How long those are waited for without which there is no mount.
const NEEDED_WITHIN: Duration = Duration::from_secs(5);

/// The replicas of a volume, and what must hold among them.
pub(super) struct Members {
    pub(super) roster: Arc<Roster>,
    pub(super) backends: ReplicaMap<Arc<dyn Backend>>,
}

/// What there must be for a mount to go on.
#[derive(Clone, Copy)]
pub(super) struct Needed {
    /// So many replicas.
    least: usize,
    /// This one among them.
    writer: Option<ReplicaId>,
    /// Nothing that can never be right.
    strict: bool,
}

fn roster(config: &Config) -> Arc<Roster> {
    let question = config.question(None);
    Roster::new(question.subjects, question.mode, question.writer)
}

impl Members {
    /// The directories that `config` names, with the limits that it sets, none of them
    /// in service. `known` has what the daemon before knew of each.
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

    /// Backends that a test or a demonstration has made.
    pub(super) fn made(config: &Config, backends: ReplicaMap<Arc<dyn Backend>>) -> Self {
        Self { roster: roster(config), backends }
    }
}

impl Needed {
    /// By a volume that is mounted, or reloaded.
    pub(super) fn by(config: &Config) -> Self {
        let is_written = config.volume.access == Access::ReadWrite;
        let writer = is_written.then_some(config.write.replica);
        Self { least: config.volume.min_replicas, writer, strict: true }
    }

    /// By a mount that is served already and gets another program.
    pub(super) const UPGRADE: Self = Self { least: 1, writer: None, strict: false };

    /// By a mount whose daemon was killed: without any replica it is still worth more
    /// than none.
    pub(super) const RECOVERY: Self = Self { least: 0, writer: None, strict: false };
}

/// Looks at the replicas before a volume is mounted or reloaded, and logs what is not as
/// it might be.
///
/// # Errors
/// [`StartError::Refused`] where the configuration can never be right.
pub fn look_around(config: &Config, mount_point: &Path) -> Result<Survey, StartError> {
    let survey = survey(config.question(Some(mount_point)), QUICK);
    for finding in survey.findings() {
        match finding.severity {
            _ if finding.refuses => return Err(StartError::Refused(finding.text)),
            // The roster says so where it matters.
            Severity::Error => {}
            Severity::Warning => tracing::warn!("{}", finding.text),
        }
    }
    Ok(survey)
}

impl Core {
    /// Brings into service what is not, and waits for it: for those that are `silent`
    /// already only where they are `needed`.
    ///
    /// # Errors
    /// [`StartError::Refused`] where there is too little to go on with.
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
