//! Bringing replicas into service, at a start and in a successor.
//!
//! All replicas begin absent. A thread of each replica's own pool examines it. The replica
//! comes into service when it has passed the roster's checks ([`crate::survey::Roster`]); there
//! is no other way. A replica that hangs or is not mounted delays nothing: it joins when it is
//! well, as a lost replica does ([`crate::replicas::Replicas::start_admission`]).
//!
//! *Invariant:* when a mount answers its first request, every replica that answered
//! within [`OPTIONAL_TIMEOUT`] is in service, or its refusal is known.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::error::AdmissionError;
use super::volume_core::VolumeCore;
use crate::backend::Replica;
use crate::config::{Access, Config};
use crate::replicas::health::MountCheck;
use crate::survey::{Severity, Survey, survey};
use crate::volume::{ReplicaId, ReplicaSet};

/// How long a start waits for each replica that may still answer. A healthy replica answers in
/// milliseconds, an automount over a busy network in a second or two.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a start waits while it has fewer replicas than it needs.
const REQUIRED_TIMEOUT: Duration = Duration::from_secs(5);

/// The replicas without which a daemon does not serve a mount.
#[derive(Clone, Copy)]
pub(super) struct ReplicaRequirement {
    /// At least this many replicas.
    min_replicas: usize,
    /// This replica among them.
    writer: Option<ReplicaId>,
    /// Whether a wrong configuration of any replica is an error.
    is_strict: bool,
}

impl ReplicaRequirement {
    /// For a mount or a reload.
    pub(super) fn from_config(config: &Config) -> Self {
        let is_written = config.volume.access == Access::ReadWrite;
        let writer = is_written.then_some(config.write.replica);
        Self { min_replicas: config.volume.min_replicas, writer, is_strict: true }
    }

    /// For an upgrade: a mount in use continues with another program.
    pub(super) const UPGRADE: Self = Self { min_replicas: 1, writer: None, is_strict: false };

    /// For a mount whose daemon was killed. Without replicas it still keeps its open files
    /// until replicas join.
    pub(super) const RECOVERY: Self = Self { min_replicas: 0, writer: None, is_strict: false };

    /// For a mount that replaces one whose daemon was killed: as above, but no record of that
    /// daemon shows which of two different replicas is the right one.
    pub(super) const REPLACEMENT: Self = Self { min_replicas: 0, writer: None, is_strict: true };
}

/// Surveys the replicas before a mount or a reload, and logs warnings.
///
/// # Errors
/// [`AdmissionError::Configuration`] if the configuration can never be right.
pub(super) fn survey_replicas(
    config: &Config,
    mount_point: &Path,
) -> Result<Survey, AdmissionError> {
    let survey = survey(config.survey_request(Some(mount_point)), OPTIONAL_TIMEOUT);
    for finding in survey.findings() {
        match finding.severity {
            _ if finding.is_fatal => return Err(AdmissionError::Configuration(finding.text)),
            // The roster reports it, if the replica is still unwell then.
            Severity::Error => {}
            Severity::Warning => tracing::warn!("{}", finding.text),
        }
    }
    Ok(survey)
}

impl VolumeCore {
    /// Brings absent replicas into service and waits for them. It waits for the `silent` ones
    /// only while too few replicas are in service for `needed`.
    ///
    /// # Errors
    /// [`AdmissionError`] if the replicas in service do not meet `needed`.
    pub(super) fn admit_replicas(
        &self,
        silent: ReplicaSet,
        needed: ReplicaRequirement,
    ) -> Result<(), AdmissionError> {
        let (send, answers) = mpsc::channel();
        let mut awaited = self.out_of_service_replicas();
        for id in awaited.iter() {
            let send = send.clone();
            let replica = self.replicas[id].name.clone();
            self.replicas.start_admission(id, move |proof| {
                if send.send(id).is_err() && proof == MountCheck::SameMount {
                    tracing::info!(%replica, "the replica is in service now");
                }
            });
        }
        drop(send);
        let begun = Instant::now();
        while !awaited.is_empty() {
            let limit = match self.has_required_replicas(needed) {
                true if awaited.minus(silent).is_empty() => break,
                true => OPTIONAL_TIMEOUT,
                false => REQUIRED_TIMEOUT,
            };
            let left = (begun + limit).saturating_duration_since(Instant::now());
            let Ok(id) = answers.recv_timeout(left) else { break };
            awaited = awaited.minus(ReplicaSet::EMPTY.with(id));
        }
        drop(answers);
        let out = self.out_of_service_replicas();
        let refused = out.iter().find_map(|id| self.roster.config_refusal(id));
        if let Some(why) = refused.filter(|_| needed.is_strict) {
            return Err(AdmissionError::Configuration(why));
        }
        if !self.has_required_replicas(needed) {
            return Err(self.too_few_error(needed, out));
        }
        for id in out.iter() {
            tracing::warn!(
                "{}; fanfs serves the mount without this replica until it is usable",
                self.absence_reason(id)
            );
        }
        Ok(())
    }

    fn out_of_service_replicas(&self) -> ReplicaSet {
        let out = |(_, replica): &(ReplicaId, &Arc<Replica>)| !replica.is_in_service();
        self.replicas.iter().filter(out).fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    fn has_required_replicas(&self, needed: ReplicaRequirement) -> bool {
        let out = self.out_of_service_replicas();
        self.replicas.len() - out.len() >= needed.min_replicas
            && !needed.writer.is_some_and(|writer| out.contains(writer))
    }

    /// Why a replica is out of service.
    pub(super) fn absence_reason(&self, id: ReplicaId) -> String {
        let subject = self.roster.spec(id);
        let silent = || {
            let location = &subject.location;
            let checked = if location.export().is_some() { "server" } else { "mount and server" };
            format!("replica {} ({location}) does not answer; check its {checked}", subject.name)
        };
        self.roster.refusal(id).unwrap_or_else(silent)
    }

    fn too_few_error(&self, needed: ReplicaRequirement, out: ReplicaSet) -> AdmissionError {
        let reasons: Vec<String> = out.iter().map(|id| self.absence_reason(id)).collect();
        let reasons = reasons.join("; ");
        let all = self.replicas.len();
        if all == 1 {
            return AdmissionError::OnlyReplica(reasons);
        }
        if let Some(writer) = needed.writer.filter(|writer| out.contains(*writer)) {
            return AdmissionError::WriteReplica(self.absence_reason(writer));
        }
        match all - out.len() {
            0 => AdmissionError::NoReplica(reasons),
            in_service => {
                AdmissionError::TooFew { in_service, all, required: needed.min_replicas, reasons }
            }
        }
    }
}
