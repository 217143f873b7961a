//! Examines the replicas of a volume before fanfs reads from them.
//!
//! The input is a [`SurveyRequest`]: the replicas as configured. The output is a [`Survey`]: the
//! state of each replica. Pure functions turn it into [`Finding`]s. `fanfs check` prints them;
//! start and reload refuse a configuration that can never be right. The [`Roster`] brings
//! replicas into service.
//!
//! A separate thread examines each replica, because open(2) on a hung mount does not return, not
//! even with O_NONBLOCK. A late thread is abandoned, not joined. It holds nothing but its answer,
//! and ends with the process or when the mount recovers.
//!
//! *Invariant:* [`survey`] returns soon after its limit, even if replicas hang.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::mount_table::{Mount, MountTable, NfsMount};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet, VolumeMode};

mod export;
mod findings;
mod location;
mod probe;
mod roster;
pub mod sample;

pub use export::{ExportError, ExportRoot, addresses_of_same_server, list_exports};
pub use location::{NfsExport, ReplicaLocation};
pub use probe::{EntryKind, ExportTerms, ProbeResult, RootInfo, RootListing, RootListingEntry};
pub use roster::{AdmissionRefusal, AdmittedRoot, OpenRoot, RootRecord, Roster, RosterEntry};

/// The default time limit for a replica. A healthy replica answers in milliseconds, an automount
/// over a busy network in a second or two.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// One replica as the configuration describes it.
#[derive(Clone, Debug)]
pub struct ReplicaSpec {
    /// The name.
    pub name: String,
    /// Its directory or export.
    pub location: ReplicaLocation,
    /// Whether the directory must be a mount point or on a network file system.
    pub require_mount: bool,
}

/// The replicas to survey, and the settings that the rules compare them with.
#[derive(Clone, Debug)]
pub struct SurveyRequest {
    /// The replicas, in the order of the configuration.
    pub replicas: Vec<ReplicaSpec>,
    /// The mode of the volume.
    pub mode: VolumeMode,
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// `[read] deadline`.
    pub deadline: Duration,
    /// The write replica of a writable volume.
    pub write_replica: Option<ReplicaId>,
    /// `[write] lag`: how long the other replicas may still show the state before a change.
    pub lag: Duration,
    /// The volume's mount point, canonical; `None` if it is not known.
    pub mount_point: Option<PathBuf>,
}

/// The result for one replica.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The replica as configured.
    pub spec: ReplicaSpec,
    /// The result of opening its path.
    pub probe_result: ProbeResult,
    /// The mount that contains the directory. For a replica that did not answer, its path is taken
    /// as configured, and symbolic links in it are not followed.
    pub mount: Option<Mount>,
    /// The NFS options and counters of that mount.
    pub nfs: Option<NfsMount>,
}

/// The result for all replicas.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The request.
    pub request: SurveyRequest,
    /// The time limit for each replica.
    pub limit: Duration,
    /// The results.
    pub replicas: ReplicaMap<Observation>,
    /// The error if the kernel's mount table could not be read. The survey then has no mounts.
    pub table_error: Option<String>,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A replica cannot come into service.
    Error,
    /// The volume works, but not as well as it could, or not as intended.
    Warning,
}

/// A problem with some replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// Whether fanfs refuses to mount the volume. Any other error only keeps its replicas out of
    /// service until they are healthy.
    pub is_fatal: bool,
    /// The affected replicas; the text names all of them.
    pub replicas: Vec<ReplicaId>,
    /// One line: the problem and the fix.
    pub text: String,
}

/// Examines all replicas at once and returns when all have answered or `limit` has passed. It
/// starts threads; the caller must hold no lock of a replica.
pub fn survey(question: SurveyRequest, limit: Duration) -> Survey {
    survey_with(question, limit, probe::probe)
}

fn survey_with<P>(question: SurveyRequest, limit: Duration, probe: P) -> Survey
where
    P: Fn(&ReplicaSpec, probe::ProbeOptions) -> ProbeResult + Clone + Send + 'static,
{
    let end = Instant::now() + limit;
    // The listing may take half of the time. The rest is for returning the answer, so that a
    // slow replica does not count as hung.
    let listing_until = (question.mode == VolumeMode::Copies).then(|| end - limit / 2);
    let wanted = probe::ProbeOptions { end, listing_until };

    let n = question.replicas.len();
    let mut answers = ReplicaMap::from_fn(n, |_| ProbeResult::TimedOut);
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0;
    for (id, subject) in answers.ids().zip(question.replicas.iter().cloned()) {
        let probe = probe.clone();
        let sender = sender.clone();
        let thread = std::thread::Builder::new().name(format!("survey-{}", id.index()));
        // After the limit, the receiver is gone and the answer is dropped.
        let spawned = thread.spawn(move || drop(sender.send((id, probe(&subject, wanted)))));
        match spawned {
            Ok(_) => waiting += 1,
            Err(error) => answers[id] = ProbeResult::Failed(error.to_string()),
        }
    }
    drop(sender);
    while waiting > 0 {
        let left = end.saturating_duration_since(Instant::now());
        let Ok((id, answer)) = receiver.recv_timeout(left) else { break };
        answers[id] = answer;
        waiting -= 1;
    }
    // The table is read last, because opening a path may have mounted it (autofs).
    let table = MountTable::read();
    assemble(question, limit, answers, table)
}

fn assemble(
    question: SurveyRequest,
    limit: Duration,
    answers: ReplicaMap<ProbeResult>,
    table: io::Result<MountTable>,
) -> Survey {
    let (table, table_error) = match table {
        Ok(table) => (table, None),
        Err(error) => (MountTable::default(), Some(error.to_string())),
    };
    let replicas = answers.map(|id, answer| {
        let subject = question.replicas[id.index()].clone();
        let mount = match (answer, subject.location.directory()) {
            (_, None) => None,
            (ProbeResult::Directory(directory), Some(_)) => directory
                .mount_id
                .and_then(|mount| table.by_id(mount))
                .or_else(|| table.containing(&directory.canonical)),
            (_, Some(path)) => table.containing(path),
        };
        let nfs = mount.and_then(|mount| table.nfs(mount));
        Observation { spec: subject, probe_result: answer.clone(), mount: mount.cloned(), nfs }
    });
    Survey { request: question, limit, replicas, table_error }
}

impl ReplicaSpec {
    /// The name and location, as findings show them: "replica n1 (/mnt/n1)".
    pub(crate) fn label(&self) -> String {
        format!("replica {} ({})", self.name, self.location)
    }
}

impl Observation {
    /// The root directory, if the replica could be opened.
    pub fn directory(&self) -> Option<&RootInfo> {
        match &self.probe_result {
            ProbeResult::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Whether the directory is a mount point or on a network file system; an export is, in this
    /// sense. `false` also if it could not be opened.
    pub fn is_mounted(&self) -> bool {
        let directory = self.directory();
        if self.spec.location.export().is_some() {
            return directory.is_some();
        }
        let mount = self.mount.as_ref();
        directory
            .zip(mount)
            .is_some_and(|(directory, mount)| mount.is_mounted_replica_at(&directory.canonical))
    }
}

impl Survey {
    /// All findings, errors first.
    pub fn findings(&self) -> Vec<Finding> {
        findings::findings(self)
    }

    /// Replicas that did not answer in time.
    pub fn timed_out(&self) -> ReplicaSet {
        let silent =
            self.replicas.iter().filter(|(_, sight)| sight.probe_result == ProbeResult::TimedOut);
        silent.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    /// Whether any replica has an error.
    pub fn has_errors(&self) -> bool {
        self.findings().iter().any(|finding| finding.severity == Severity::Error)
    }
}

#[cfg(test)]
mod tests;
