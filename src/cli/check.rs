//! `fanfs check`: look at the replicas, say what is wrong, touch nothing.
//!
//! Exit status: 0 where there is nothing or only warnings, 1 where a replica has
//! an error, 2 (chosen by the caller) where the configuration itself is wrong.

use std::fmt;
use std::process::ExitCode;

use bytesize::ByteSize;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::{Outcome, printable, say, to_json};
use crate::config::{Config, Passthrough};
use crate::volume::survey::{Answer, DEFAULT_LIMIT, Finding, Severity, Sight, Survey, survey};
use crate::volume::{Mode, ReplicaId};

/// What `fanfs check` prints: a table with `Display`, or JSON. Bytes of paths
/// that are not UTF-8 are replaced in both.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The volume's name.
    pub volume: String,
    /// How the replicas should relate.
    pub mode: Mode,
    /// One for each replica, in the configuration's order.
    pub replicas: Vec<Row>,
    /// Errors first.
    pub findings: Vec<Remark>,
}

/// One replica. What could not be found out is null in JSON, `-` in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
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
    /// Where that file system is mounted.
    pub mount_point: Option<String>,
    /// The file system's size, bytes.
    pub size: Option<u64>,
    /// Its free space, bytes.
    pub free: Option<u64>,
    /// The root's device number, `major:minor`.
    pub root_device: Option<String>,
    /// The root's inode number.
    pub root_inode: Option<u64>,
}

/// A finding, with the replicas' names.
#[derive(Clone, Debug, Serialize)]
pub struct Remark {
    /// How bad it is.
    pub severity: Severity,
    /// Whom it is about.
    pub replicas: Vec<String>,
    /// One line.
    pub text: String,
}

/// Surveys the volume's replicas, prints the report on stdout.
pub(super) fn run(config: &Config, json: bool) -> Outcome {
    let report = Report::new(config, &survey(config.question(None), DEFAULT_LIMIT));
    say(&if json { to_json(&report)? } else { report.to_string() })?;
    Ok(ExitCode::from(u8::from(report.has_errors())))
}

/// What keeps the kernel from reading files by itself, where that is configured.
pub fn passthrough(config: &Config, survey: &Survey) -> Vec<Finding> {
    if config.read.passthrough == Passthrough::Off {
        return Vec::new();
    }
    let warning = |replicas: Vec<ReplicaId>, why: &str| Finding {
        severity: Severity::Warning,
        refuses: false,
        replicas,
        text: format!("[read] passthrough is not possible: {why}; files are read as without it"),
    };
    let mut found = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if older_than(&release, (6, 9)) {
        found.push(warning(Vec::new(), "Linux 6.9 is needed"));
    }
    let ours = rustix::thread::capabilities(None);
    if ours.is_ok_and(|sets| !sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
        found.push(warning(Vec::new(), "CAP_SYS_ADMIN is needed, mount as root"));
    }
    for (id, sight) in survey.replicas.iter() {
        let name = &sight.subject.name;
        if config.replicas[id.index()].max_rate.is_some() {
            found.push(warning(vec![id], &format!("{name} has a max_rate")));
        }
        if sight.mount.as_ref().is_some_and(|mount| mount.fs_type == "overlay") {
            found.push(warning(vec![id], &format!("{name} is an overlayfs")));
        }
    }
    found
}

/// Whether a kernel's release is older than a version; not where it says nothing.
fn older_than(release: &str, version: (u32, u32)) -> bool {
    let mut parts = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    parts.next().zip(parts.next()).is_some_and(|release| release < version)
}

impl Report {
    /// The report on a survey of `config`'s replicas.
    pub fn new(config: &Config, survey: &Survey) -> Report {
        let rows = config.replicas.iter().zip(survey.replicas.iter());
        let remark = |finding: Finding| Remark {
            severity: finding.severity,
            replicas: finding
                .replicas
                .iter()
                .map(|id| config.replicas[id.index()].name.clone())
                .collect(),
            text: finding.text,
        };
        Report {
            volume: config.volume.name.clone(),
            mode: config.volume.mode,
            replicas: rows.map(|(replica, (_, sight))| Row::new(&replica.node, sight)).collect(),
            findings: survey
                .findings()
                .into_iter()
                .chain(passthrough(config, survey))
                .map(remark)
                .collect(),
        }
    }

    /// Whether the volume must not be mounted like this.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|remark| remark.severity == Severity::Error)
    }
}

impl Row {
    fn new(node: &str, sight: &Sight) -> Row {
        let root = sight.directory();
        let mount = sight.mount.as_ref();
        let nfs = sight.nfs.as_ref();
        Row {
            name: sight.subject.name.clone(),
            path: sight.subject.path.display().to_string(),
            node: node.to_owned(),
            state: match sight.answer {
                Answer::Directory(_) => "ok",
                Answer::Absent => "absent",
                Answer::NotADirectory => "not-a-directory",
                Answer::Failed(_) => "failed",
                Answer::Silent => "silent",
            },
            fs_type: mount.map(|mount| mount.fs_type.clone()),
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
        let bytes = |value: Option<u64>| value.map(|n| ByteSize(n).display().iec().to_string());
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
            text(&bytes(self.size)),
            text(&bytes(self.free)),
            text(&self.root_inode.map(|ino| ino.to_string())),
        ]
    }
}

const HEADER: [&str; 9] =
    ["REPLICA", "NODE", "PATH", "TYPE", "SOURCE", "MOUNT POINT", "SIZE", "FREE", "ROOT INODE"];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Shared => "shared",
            Mode::Copies => "copies",
        };
        writeln!(f, "volume {}, mode {mode}, replicas: {}\n", self.volume, self.replicas.len())?;

        let header = HEADER.map(str::to_owned);
        let rows: Vec<_> =
            std::iter::once(header).chain(self.replicas.iter().map(Row::cells)).collect();
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
            writeln!(f, "nothing to remark")?;
        }
        Ok(())
    }
}
