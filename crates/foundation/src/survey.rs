//! What the replicas of a volume look like before anything is read from them.
//!
//! In goes a [`SurveyRequest`], what the configuration says of the replicas; out
//! comes a [`Survey`], what was found at each, and from it, by pure functions,
//! [`Finding`]s. `fanfs check` prints them; start and reload refuse a configuration that
//! can never be right. The [`Roster`] brings replicas into service.
//!
//! Every replica is looked at in a thread of its own, because open(2) on a hung
//! mount does not return, not even with O_NONBLOCK. A thread that is late is
//! abandoned, not joined: it holds nothing but its answer, and ends with the
//! process or with the mount's recovery.
//!
//! *Invariant:* [`survey`] returns soon after its limit, whatever the replicas do.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::mount_table::{Mount, MountTable, NfsMount};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet, VolumeMode};

mod findings;
mod probe;
mod roster;
pub mod sample;

pub use probe::{EntryKind, ProbeResult, RootInfo, RootListing, RootListingEntry};
pub use roster::{AdmissionRefusal, AdmittedRoot, RootRecord, Roster, RosterEntry};

/// How long a replica may take by default. A healthy one answers in
/// milliseconds; an automount over a busy network in a second or two.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// One replica as the configuration describes it.
#[derive(Clone, Debug)]
pub struct ReplicaSpec {
    /// Its name in findings.
    pub name: String,
    /// An absolute directory.
    pub path: PathBuf,
    /// Whether it is an error that the path is not (in) a mounted file system.
    pub require_mount: bool,
}

/// What is to be surveyed, and what the findings are judged against.
#[derive(Clone, Debug)]
pub struct SurveyRequest {
    /// The replicas, in the configuration's order.
    pub replicas: Vec<ReplicaSpec>,
    /// How they should relate.
    pub mode: VolumeMode,
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// By when a read ends in the volume.
    pub deadline: Duration,
    /// The write replica of a writable volume.
    pub write_replica: Option<ReplicaId>,
    /// How long the other replicas may still show the state before a change.
    pub lag: Duration,
    /// Where the volume is to be mounted, canonical; `None` where that is not known.
    pub mount_point: Option<PathBuf>,
}

/// What was found at one replica.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The question's part about it.
    pub spec: ReplicaSpec,
    /// What its path answered.
    pub probe_result: ProbeResult,
    /// The mount that the path lies in. For a replica that did not answer, by
    /// its path as written: symbolic links in it are not followed.
    pub mount: Option<Mount>,
    /// The same mount's NFS side.
    pub nfs: Option<NfsMount>,
}

/// What was found at all of them.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The question that this answers.
    pub request: SurveyRequest,
    /// How long each replica was waited for.
    pub limit: Duration,
    /// What was found.
    pub replicas: ReplicaMap<Observation>,
    /// Why there are no mounts in it, where the kernel's table was unreadable.
    pub table_error: Option<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A replica cannot come into service like this.
    Error,
    /// It works, but not as well or not as meant.
    Warning,
}

/// Something that the user should know about some replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Whether the volume is not mounted because of it. Any other error only keeps its
    /// replicas out of service until they are well.
    pub is_fatal: bool,
    /// Whom it is about; all named in the text.
    pub replicas: Vec<ReplicaId>,
    /// One line: what is wrong and what to do.
    pub text: String,
}

/// Looks at all replicas at once and returns when all have answered or `limit`
/// is over. Call it without a replica's lock held; it starts threads.
pub fn survey(question: SurveyRequest, limit: Duration) -> Survey {
    survey_with(question, limit, probe::probe)
}

fn survey_with<P>(question: SurveyRequest, limit: Duration, probe: P) -> Survey
where
    P: Fn(&ReplicaSpec, probe::ProbeOptions) -> ProbeResult + Clone + Send + 'static,
{
    let end = Instant::now() + limit;
    // Names and sizes are a second opinion: half the time is left for getting
    // the answer home, so a slow but living replica is not called silent.
    let listing_until = (question.mode == VolumeMode::Copies).then(|| end - limit / 2);
    let wanted = probe::ProbeOptions { listing_until };

    let n = question.replicas.len();
    let mut answers = ReplicaMap::from_fn(n, |_| ProbeResult::TimedOut);
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0;
    for (id, subject) in answers.ids().zip(question.replicas.iter().cloned()) {
        let probe = probe.clone();
        let sender = sender.clone();
        let thread = std::thread::Builder::new().name(format!("survey-{}", id.index()));
        // Nobody listens to an answer that comes after the limit.
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
    // Only now: looking at a path may have mounted it (autofs).
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
        let mount = match answer {
            ProbeResult::Directory(directory) => directory
                .mount_id
                .and_then(|mount| table.by_id(mount))
                .or_else(|| table.containing(&directory.canonical)),
            _ => table.containing(&subject.path),
        };
        let nfs = mount.and_then(|mount| table.nfs(mount));
        Observation { spec: subject, probe_result: answer.clone(), mount: mount.cloned(), nfs }
    });
    Survey { request: question, limit, replicas, table_error }
}

impl Observation {
    /// The directory, where there is one.
    pub fn directory(&self) -> Option<&RootInfo> {
        match &self.probe_result {
            ProbeResult::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Whether the directory is a mount point or on the network; `false` also
    /// where there is no directory.
    pub fn is_mounted(&self) -> bool {
        let directory = self.directory();
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
