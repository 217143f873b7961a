//! Turns facts into findings. Pure.
//!
//! One [`Check`] examines one aspect. It says that it does not apply, that its facts are unknown,
//! or the problem. A finding's cost is the share, from 0 to 1, of the read rate that the problem
//! may take. It is measured if it comes from a measurement. Otherwise it is an estimate, only good
//! enough to order the findings. A problem that costs no rate, but may cause failures or stale
//! data, has cost 0.
//!
//! Thresholds are constants beside the rules, with their sources; docs/DOCTOR.md lists them.

use std::fmt;

use serde::{Serialize, Serializer};

use super::facts::{DoctorFacts, ExaminedReplica, ExportFacts, NfsFacts};

mod config_errors;
mod exports;
mod machine;
mod mounts;
mod network;
mod option_match;
mod placement;
mod rates;
mod remount;

pub use remount::PERSIST_HINT;

/// The result of a check, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Checked; nothing is wrong.
    Ok,
    /// The facts are missing.
    Unknown,
    /// A problem that costs something, or may.
    Warn,
    /// A problem that costs much, or causes failures.
    Bad,
}

impl CheckStatus {
    /// The name in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Unknown => "unknown",
            CheckStatus::Warn => "warn",
            CheckStatus::Bad => "bad",
        }
    }
}

/// What a finding says. JSON has it as one string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingText {
    /// The problem: one sentence.
    pub problem: String,
    /// The figures that show it, with their units and their source.
    pub evidence: String,
}

impl FindingText {
    fn new(problem: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { problem: problem.into(), evidence: evidence.into() }
    }
}

impl fmt::Display for FindingText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem, self.evidence)
    }
}

impl Serialize for FindingText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A problem that limits the rate of reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The id of the check.
    pub id: &'static str,
    /// The severity.
    pub severity: CheckStatus,
    /// The affected replicas; empty for the machine as a whole.
    pub replicas: Vec<String>,
    /// The share of the read rate that the problem may take, 0 to 1.
    pub cost: f64,
    /// The problem and its evidence.
    pub text: FindingText,
    /// The fix: commands, or a key of the volume's file.
    pub remedy: String,
    /// The commands in `remedy` that mount a replica again. Findings about one mount share its
    /// command.
    #[serde(skip)]
    pub mounts: Vec<String>,
}

/// A check's line in the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckResult {
    /// The id of the check.
    pub id: &'static str,
    /// The worst severity of its findings.
    pub state: CheckStatus,
    /// What the check examines.
    pub title: &'static str,
    /// The replicas that the findings affect; empty without findings, and for the machine.
    pub replicas: Vec<String>,
    /// Why the result is unknown.
    pub note: Option<String>,
}

/// A rule's finding, before the check's id is added.
struct RawFinding {
    status: CheckStatus,
    replicas: Vec<usize>,
    cost: f64,
    text: FindingText,
    remedy: String,
}

enum CheckOutcome {
    /// Nothing on this machine is of the kind that the check examines.
    NotApplicable,
    /// The facts are missing; the reason.
    Unknown(String),
    /// Checked; the findings.
    Checked(Vec<RawFinding>),
}

struct Check {
    id: &'static str,
    title: &'static str,
    rule: fn(&DoctorFacts) -> CheckOutcome,
}

const fn check(
    id: &'static str,
    title: &'static str,
    rule: fn(&DoctorFacts) -> CheckOutcome,
) -> Check {
    Check { id, title, rule }
}

const CHECKS: &[Check] = &[
    check("volume.daemon", "mount daemons", machine::daemons),
    check("replica.answers", "replica access", mounts::answers),
    check("replica.volume", "fanfs check", config_errors::reported),
    check("replica.device", "separate file systems", mounts::one_file_system),
    check("nfs.connection", "separate NFS connections", mounts::one_connection),
    check("nfs.rsize", "NFS rsize", mounts::rsize),
    check("nfs.wsize", "NFS wsize", mounts::wsize),
    check("nfs.protocol", "NFS version and transport", mounts::protocol),
    check("nfs.nconnect", "TCP connections per link", mounts::nconnect),
    check("nfs.soft", "hard or soft mounts", mounts::soft),
    check("nfs.read_only", "read-write mounts", mounts::read_only),
    check("nfs.sync", "asynchronous writes", mounts::sync),
    check("nfs.attributes", "attribute caching", mounts::attributes),
    check("nfs.nosharecache", "shared page cache", mounts::nosharecache),
    check("nfs.alike", "matching mount options", option_match::options_match),
    check("rpc.retransmits", "RPC retransmissions", network::retransmits),
    check("rpc.timeouts", "RPC timeouts", network::timeouts),
    check("rpc.backlog", "RPC backlog", network::backlog),
    check("rpc.latency", "READ round-trip time", network::round_trips),
    check("tcp.loss", "packet loss", network::loss),
    check("tcp.window", "TCP receive buffer", network::window),
    check("net.mtu", "path MTU", network::mtu),
    check("net.link", "link speed", network::link),
    check("export.server", "separate servers of exports", exports::one_server),
    check("export.reads", "READ size of exports", exports::read_size),
    check("export.calls", "repeated calls to exports", exports::repeated_calls),
    check("placement.answers", "placement provider", placement::answers),
    check("placement.names", "names of nodes", placement::names),
    check("placement.storage", "gateways on storage nodes", placement::storage),
    check("placement.primaries", "primary copies", placement::primaries),
    check("cache.readahead", "kernel readahead", mounts::readahead),
    check("clock.skew", "clock skew", network::clocks),
    check("fuse.access", "FUSE access", machine::access),
    check("fuse.requests", "FUSE request limits", machine::requests),
    check("machine.descriptors", "open file limit", machine::descriptors),
    check("machine.kernel", "kernel version", machine::kernel),
    check("measure.replica", "read rate per replica", rates::slow),
    check("measure.latency", "read latency per replica", rates::latency),
    check("measure.together", "combined read rate", rates::together),
];

/// The results of all checks.
#[derive(Debug)]
pub struct CheckReport {
    /// The table's rows.
    pub rows: Vec<CheckResult>,
    /// The findings, the most expensive first.
    pub findings: Vec<Finding>,
}

/// Applies all checks.
pub fn run_checks(facts: &DoctorFacts) -> CheckReport {
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    for Check { id, title, rule } in CHECKS {
        let mut row =
            CheckResult { id, state: CheckStatus::Ok, title, replicas: Vec::new(), note: None };
        match rule(facts) {
            CheckOutcome::NotApplicable => continue,
            CheckOutcome::Unknown(why) => {
                row.state = CheckStatus::Unknown;
                row.note = Some(why);
            }
            CheckOutcome::Checked(problems) => {
                let found = problems.into_iter().map(|problem| to_finding(facts, id, problem));
                let found: Vec<Finding> = found.collect();
                row.state = found.iter().map(|f| f.severity).max().unwrap_or(CheckStatus::Ok);
                let about = |replica: &&ExaminedReplica| {
                    found.iter().any(|finding| finding.replicas.contains(&replica.name))
                };
                row.replicas =
                    facts.replicas.iter().filter(about).map(|r| r.name.clone()).collect();
                findings.extend(found);
            }
        }
        rows.push(row);
    }
    // The sort is stable: equal findings keep the order of the checks.
    findings.sort_by(|a, b| b.cost.total_cmp(&a.cost).then_with(|| b.severity.cmp(&a.severity)));
    CheckReport { rows, findings }
}

/// The rate of all replicas together divided by the best replica's alone, if both were measured.
pub fn measured_gain(facts: &DoctorFacts) -> Option<f64> {
    rates::measured_gain(facts)
}

fn to_finding(facts: &DoctorFacts, id: &'static str, problem: RawFinding) -> Finding {
    let name = |i: &usize| facts.replicas[*i].name.clone();
    let mounts = problem.replicas.iter().map(|i| remount::replica_remount_command(facts, *i));
    let mounts = mounts.filter(|line| !line.is_empty() && problem.remedy.contains(line)).collect();
    Finding {
        mounts,
        id,
        severity: problem.status,
        replicas: problem.replicas.iter().map(name).collect(),
        // Two decimals: it is an estimate.
        cost: (problem.cost.clamp(0.0, 1.0) * 100.0).round() / 100.0,
        text: problem.text,
        remedy: problem.remedy,
    }
}

/// Applies a rule to each NFS replica.
fn check_nfs_replicas(
    facts: &DoctorFacts,
    rule: impl Fn(usize, &ExaminedReplica, &NfsFacts) -> Option<RawFinding>,
) -> CheckOutcome {
    check_each(facts, |replica| replica.nfs.as_ref(), rule)
}

/// Applies a rule to each replica of an NFS server, mounted or not.
fn check_servers(
    facts: &DoctorFacts,
    rule: impl Fn(usize, &ExaminedReplica, &str) -> Option<RawFinding>,
) -> CheckOutcome {
    check_each(facts, ExaminedReplica::server, rule)
}

/// Applies a rule to each export, which fanfs reads without a mount.
fn check_exports(
    facts: &DoctorFacts,
    rule: impl Fn(usize, &ExaminedReplica, &ExportFacts) -> Option<RawFinding>,
) -> CheckOutcome {
    check_each(facts, |replica| replica.export.as_ref(), rule)
}

/// Applies a rule to each replica that has `part`.
fn check_each<'a, T>(
    facts: &'a DoctorFacts,
    part: impl Fn(&'a ExaminedReplica) -> Option<T>,
    rule: impl Fn(usize, &'a ExaminedReplica, T) -> Option<RawFinding>,
) -> CheckOutcome {
    let replicas = facts.replicas.iter().enumerate();
    let parts: Vec<_> = replicas.filter_map(|(i, r)| Some((i, r, part(r)?))).collect();
    if parts.is_empty() {
        return CheckOutcome::NotApplicable;
    }
    CheckOutcome::Checked(parts.into_iter().filter_map(|(i, r, part)| rule(i, r, part)).collect())
}

/// One replica's share of the volume: the cost of a replica that delivers nothing.
fn replica_share(facts: &DoctorFacts) -> f64 {
    1.0 / facts.replicas.len().max(1) as f64
}

/// "replica a", "replicas a and b".
fn replicas_text(facts: &DoctorFacts, replicas: &[usize]) -> String {
    let noun = if replicas.len() == 1 { "replica" } else { "replicas" };
    format!("{noun} {}", join_replica_names(facts, replicas))
}

/// "a", "a and b", "a, b and c".
fn join_replica_names(facts: &DoctorFacts, replicas: &[usize]) -> String {
    let names: Vec<&str> = replicas.iter().map(|i| facts.replicas[*i].name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests;
