//! `fanfs check`: probes the replicas and reports problems. It changes nothing.
//!
//! Exit status: 0 without errors (warnings are allowed), 1 if a replica has an error, 2 (chosen
//! by the caller) if the configuration itself is wrong.

use std::fmt;
use std::process::ExitCode;

use super::{CommandResult, print_result, printable, to_json};
use crate::config::Config;
use crate::daemon::passthrough_findings;
use crate::format::format_bytes;
use crate::survey::{DEFAULT_LIMIT, Finding, Observation, Severity, Survey, survey};
use crate::volume::VolumeMode;
use serde::Serialize;

/// The help text after the options.
pub(super) const HELP: &str = "\
fanfs check reads the configuration and probes each replica: whether it is mounted and answers \
within 5 s, and whether it fits the other replicas. Replicas of a `shared` volume must be one file \
system; replicas of a `copies` volume should have the same names and sizes in their roots. The \
command mounts nothing and changes nothing.

Examples:
  fanfs check /etc/fanfs/genomes.toml
  fanfs check genomes --json

Exit status: 0 no errors, warnings are allowed; 1 a replica has an error; 2 wrong usage or \
configuration.";

/// The report of `fanfs check`, printed as a table ([`Display`](fmt::Display)) or as JSON. Both
/// replace bytes of paths that are not UTF-8.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The volume's name.
    pub volume: String,
    /// How the replicas relate according to the configuration.
    pub mode: VolumeMode,
    /// The replicas, in the configuration's order.
    pub replicas: Vec<CheckedReplica>,
    /// Errors first.
    pub findings: Vec<ReportedFinding>,
}

/// One replica. An unknown value is null in JSON and `-` in the table.
#[derive(Clone, Debug, Serialize)]
pub struct CheckedReplica {
    /// Its name.
    pub name: String,
    /// Its path, as configured.
    pub path: String,
    /// The storage node that its gateway runs on.
    pub node: String,
    /// `ok`, `absent`, `not-a-directory`, `failed` or `silent`.
    pub state: &'static str,
    /// The file system's type.
    pub fs_type: Option<String>,
    /// For NFS, the protocol version.
    pub nfs_version: Option<String>,
    /// The device, or for NFS `SERVER:/path`.
    pub source: Option<String>,
    /// For NFS, the server as named in the source.
    pub server: Option<String>,
    /// The mount point of that file system.
    pub mount_point: Option<String>,
    /// The file system's size, bytes.
    pub size: Option<u64>,
    /// The file system's free space, bytes.
    pub free: Option<u64>,
    /// The root's device number, `major:minor`.
    pub root_device: Option<String>,
    /// The root's inode number.
    pub root_inode: Option<u64>,
}

/// A finding about some replicas.
#[derive(Clone, Debug, Serialize)]
pub struct ReportedFinding {
    /// Error or warning.
    pub severity: Severity,
    /// The names of the replicas that it concerns.
    pub replicas: Vec<String>,
    /// The problem, on one line.
    pub text: String,
}

/// Surveys the volume's replicas, and prints the report to standard output.
pub(super) fn run(config: &Config, json: bool) -> CommandResult {
    let report = CheckReport::new(config, &survey(config.survey_request(None), DEFAULT_LIMIT));
    print_result(&if json { to_json(&report)? } else { report.to_string() })?;
    Ok(ExitCode::from(u8::from(report.has_errors())))
}

impl CheckReport {
    /// Makes the report from a survey of `config`'s replicas.
    pub fn new(config: &Config, survey: &Survey) -> CheckReport {
        let rows = config.replicas.iter().zip(survey.replicas.iter());
        let remark = |finding: Finding| ReportedFinding {
            severity: finding.severity,
            replicas: finding
                .replicas
                .iter()
                .map(|id| config.replicas[id.index()].name.clone())
                .collect(),
            text: finding.text,
        };
        CheckReport {
            volume: config.volume.name.clone(),
            mode: config.volume.mode,
            replicas: rows
                .map(|(replica, (_, sight))| CheckedReplica::new(&replica.node, sight))
                .collect(),
            findings: survey
                .findings()
                .into_iter()
                .chain(passthrough_findings(config, survey))
                .map(remark)
                .collect(),
        }
    }

    /// Whether any finding is an error, so that the volume must not be mounted as it is.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|remark| remark.severity == Severity::Error)
    }
}

impl CheckedReplica {
    fn new(node: &str, sight: &Observation) -> CheckedReplica {
        let root = sight.directory();
        let mount = sight.mount.as_ref();
        let nfs = sight.nfs.as_ref();
        CheckedReplica {
            name: sight.spec.name.clone(),
            path: sight.spec.location.to_string(),
            node: node.to_owned(),
            state: sight.probe_result.state(),
            fs_type: match sight.spec.location.export() {
                Some(_) => Some("nfs".to_owned()),
                None => mount.map(|mount| mount.fs_type.clone()),
            },
            nfs_version: nfs.and_then(|nfs| nfs.version).map(|version| match version {
                (major @ ..4, _) => major.to_string(),
                (major, minor) => format!("{major}.{minor}"),
            }),
            source: mount.map(|mount| mount.source.display().to_string()),
            server: nfs.map(|nfs| nfs.server.clone()),
            mount_point: mount.map(|mount| mount.mount_point.display().to_string()),
            size: root.map(|root| root.size),
            free: root.map(|root| root.free),
            root_device: root.map(|root| format!("{}:{}", root.dev.0, root.dev.1)),
            root_inode: root.map(|root| root.ino),
        }
    }

    fn cells(&self) -> [String; 9] {
        let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".into(), printable);
        let fs_type = match (&self.fs_type, &self.nfs_version) {
            (Some(_), Some(version)) => format!("nfs {version}"),
            (fs_type, _) => text(fs_type),
        };
        [
            self.name.clone(),
            self.node.clone(),
            printable(&self.path),
            fs_type,
            text(&self.source),
            text(&self.mount_point),
            text(&self.size.map(format_bytes)),
            text(&self.free.map(format_bytes)),
            text(&self.root_inode.map(|ino| ino.to_string())),
        ]
    }
}

const HEADER: [&str; 9] =
    ["REPLICA", "NODE", "PATH", "TYPE", "SOURCE", "MOUNT POINT", "SIZE", "FREE", "ROOT INODE"];

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            VolumeMode::Shared => "shared",
            VolumeMode::Copies => "copies",
        };
        writeln!(f, "volume {}, mode {mode}, replicas: {}\n", self.volume, self.replicas.len())?;

        let header = HEADER.map(str::to_owned);
        let rows: Vec<_> = std::iter::once(header)
            .chain(self.replicas.iter().map(CheckedReplica::cells))
            .collect();
        let widths: [usize; 9] = std::array::from_fn(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        for row in &rows {
            let line: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }

        writeln!(f)?;
        for remark in &self.findings {
            let severity = match remark.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            writeln!(f, "{severity}: {}", printable(&remark.text))?;
        }
        if self.findings.is_empty() {
            writeln!(f, "OK, no problems found")?;
        }
        Ok(())
    }
}
