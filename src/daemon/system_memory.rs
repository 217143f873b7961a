//! The memory that is available for cached pages.

use std::fs;
use std::path::{Path, PathBuf};

use procfs::process::Process;
use procfs::{Current, Meminfo, ProcessCGroup};

/// The memory of this machine, or of the control group that this process runs in if that has
/// less, bytes. Pages count for the group of the process that reads them. In a container that
/// is the daemon's own group; elsewhere the group mostly has no limit.
pub(super) fn memory_limit() -> u64 {
    let total = Meminfo::current().ok().map(|memory| memory.mem_total);
    let groups = Process::myself().and_then(|process| process.cgroups());
    let group = groups.ok().and_then(|groups| LimitedGroup::find(&groups.0)?.limit());
    // If the limit is unknown, no file counts as large.
    total.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX))
}

/// The control group that limits the memory of a process.
#[derive(Debug, PartialEq, Eq)]
struct LimitedGroup {
    /// The root of its hierarchy.
    root: &'static Path,
    /// The file with the limit.
    file: &'static str,
    /// The group below `root`.
    path: PathBuf,
}

impl LimitedGroup {
    /// Looks for version 1's memory controller first: a machine that has it uses it.
    fn find(groups: &[ProcessCGroup]) -> Option<Self> {
        let group = |root, file, group: &ProcessCGroup| {
            let path = group.pathname.trim_start_matches('/').into();
            Self { root: Path::new(root), file, path }
        };
        let has_memory = |group: &&ProcessCGroup| group.controllers.iter().any(|c| c == "memory");
        let first = groups.iter().find(has_memory);
        let second = || groups.iter().find(|group| group.controllers.is_empty());
        first
            .map(|found| group("/sys/fs/cgroup/memory", "memory.limit_in_bytes", found))
            .or_else(|| second().map(|found| group("/sys/fs/cgroup", "memory.max", found)))
    }

    /// The limit on the group, bytes. A group's limit also holds for all groups below it.
    fn limit(&self) -> Option<u64> {
        let read = |group: &Path| {
            let text = fs::read_to_string(self.root.join(group).join(self.file)).ok()?;
            text.trim().parse().ok()
        };
        self.path.ancestors().filter_map(read).min()
    }
}

#[cfg(test)]
mod tests {
    use procfs::{FromBufRead, ProcessCGroups};

    use super::*;

    #[test]
    fn both_cgroup_versions_are_supported() {
        let find = |text: &str| {
            let groups = ProcessCGroups::from_buf_read(text.as_bytes()).unwrap();
            LimitedGroup::find(&groups.0)
        };
        let group = |root, file, path: &str| {
            Some(LimitedGroup { root: Path::new(root), file, path: path.into() })
        };
        let second = group("/sys/fs/cgroup", "memory.max", "a.slice/b:c");
        assert_eq!(find("0::/a.slice/b:c\n"), second);
        let first = group("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "m");
        assert_eq!(find("12:cpu,cpuacct:/x\n4:memory:/m\n0::/u\n"), first);
        assert_eq!(find(""), None);
    }

    #[test]
    fn this_machine_has_a_plausible_memory_limit() {
        assert!(memory_limit() > 1 << 20 && memory_limit() < u64::MAX);
    }
}
