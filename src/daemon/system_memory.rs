//! How much memory there is for cached pages.

use std::fs;
use std::path::Path;

/// The memory of this machine, or of the control group that this process runs in
/// where that has less, bytes. Pages count for the group of whoever reads them;
/// in a container that is the daemon's own, and elsewhere it mostly has no limit.
pub(super) fn memory_limit() -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let total = read(Path::new("/proc/meminfo")).and_then(|text| parse_mem_total(&text));
    let group = read(Path::new("/proc/self/cgroup")).and_then(|text| {
        let (root, file, path) = parse_cgroup(&text)?;
        let root = Path::new(root);
        // A limit holds for everything below it as well.
        let limits = Path::new(path.trim_start_matches('/')).ancestors();
        limits.filter_map(|path| read(&root.join(path).join(file))?.trim().parse().ok()).min()
    });
    // Unknown memory is all the memory there could be: nothing counts as large.
    total.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX))
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn parse_mem_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Where groups are, the file with the limit, and the group that /proc/self/cgroup
/// names; version 1's memory controller first, as a machine that has it uses it.
fn parse_cgroup(text: &str) -> Option<(&'static str, &'static str, &str)> {
    let fields = |line| -> Option<(&str, &str)> {
        let mut parts = str::splitn(line, 3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    };
    let all = || text.lines().filter_map(fields);
    let first = all().find(|(controllers, _)| controllers.split(',').any(|one| one == "memory"));
    match first {
        Some((_, path)) => Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path)),
        None => all()
            .find(|(controllers, _)| controllers.is_empty())
            .map(|(_, path)| ("/sys/fs/cgroup", "memory.max", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_comes_in_bytes() {
        let text = "MemTotal:       24683020 kB\nMemFree:         3088880 kB\n";
        assert_eq!(parse_mem_total(text), Some(24_683_020 * 1024));
        assert_eq!(parse_mem_total("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn both_versions_name_the_group() {
        let second = ("/sys/fs/cgroup", "memory.max", "/a.slice/b:c");
        assert_eq!(parse_cgroup("0::/a.slice/b:c\n"), Some(second));
        let first = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/m");
        assert_eq!(parse_cgroup("12:cpu,cpuacct:/x\n4:memory:/m\n0::/u\n"), Some(first));
        assert_eq!(parse_cgroup(""), None);
    }

    #[test]
    fn this_machine_has_some() {
        assert!(memory_limit() > 1 << 20 && memory_limit() < u64::MAX);
    }
}
