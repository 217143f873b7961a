//! Whether the kernel can read files of a volume by itself (`[read] passthrough`).

use rustix::thread::CapabilitySet;

use crate::config::{Config, Passthrough};
use crate::survey::{Finding, Severity, Survey};
use crate::volume::ReplicaId;

/// The obstacles to passthrough, if it is configured.
pub fn passthrough_findings(config: &Config, survey: &Survey) -> Vec<Finding> {
    if config.read.passthrough == Passthrough::Off {
        return Vec::new();
    }
    let warning = |replicas: Vec<ReplicaId>, why: &str| Finding {
        severity: Severity::Warning,
        is_fatal: false,
        replicas,
        text: format!(
            "[read] passthrough is not possible: {why}; the daemon reads the files itself"
        ),
    };
    let mut found = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if KernelVersion::parse(&release).is_some_and(|version| version < PASSTHROUGH_VERSION) {
        found.push(warning(Vec::new(), "it needs Linux 6.9"));
    }
    let ours = rustix::thread::capabilities(None);
    if ours.is_ok_and(|sets| !sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
        found.push(warning(Vec::new(), "it needs CAP_SYS_ADMIN, so mount as root"));
    }
    for (id, sight) in survey.replicas.iter() {
        let name = &sight.spec.name;
        if config.replicas[id.index()].max_rate.is_some() {
            found.push(warning(vec![id], &format!("replica {name} has a max_rate")));
        }
        if sight.mount.as_ref().is_some_and(|mount| mount.fs_type == "overlay") {
            found.push(warning(vec![id], &format!("replica {name} is an overlayfs")));
        }
    }
    found
}

/// The first kernel with FUSE passthrough.
const PASSTHROUGH_VERSION: KernelVersion = KernelVersion { major: 6, minor: 9 };

/// A kernel's version; the older one is less.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KernelVersion {
    major: u32,
    minor: u32,
}

impl KernelVersion {
    /// The version in a kernel's release, such as `6.12.3-amd64`.
    fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
        Some(Self { major: parts.next()?, minor: parts.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_release_is_parsed_to_a_version() {
        let is_older = |release| KernelVersion::parse(release).map(|v| v < PASSTHROUGH_VERSION);
        assert_eq!(is_older("6.1.0-18-amd64\n"), Some(true));
        assert_eq!(is_older("6.9\n"), Some(false));
        assert_eq!(is_older("6.12.3-amd64"), Some(false));
        assert_eq!(is_older("rolling"), None);
    }
}
