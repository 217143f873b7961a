//! The daemon as the kernel sees it: what every client library of Prometheus tells of
//! its process, under the same names.

use std::io;

/// What `/proc` says of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStats {
    /// User and system time, seconds.
    pub cpu_s: f64,
    /// Bytes of memory that are in use and not swapped out.
    pub resident_memory: u64,
    /// Bytes of address space.
    pub virtual_memory: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// As many there may be.
    pub max_fds: u64,
    /// When it was started, seconds since 1970.
    pub started_s: f64,
}

impl ProcessStats {
    /// This process, now.
    ///
    /// # Errors
    /// Where there is no `/proc`, or no descriptor is left to read it.
    pub fn read() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let system = std::fs::read_to_string("/proc/stat")?;
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let (second, page) = (rustix::param::clock_ticks_per_second(), rustix::param::page_size());
        let times = parse_stat(&stat, &system, second, page as u64);
        let (cpu_s, resident, addresses, started_s) =
            times.ok_or_else(|| io::Error::other("/proc looks otherwise"))?;
        Ok(Self {
            cpu_s,
            resident_memory: resident,
            virtual_memory: addresses,
            // That of the directory itself is closed again.
            open_fds: descriptors.saturating_sub(1),
            max_fds: limit.current.unwrap_or(u64::MAX),
            started_s,
        })
    }
}

/// Processor time, resident and virtual memory, and the start, from proc(5)'s
/// `/proc/PID/stat` and `/proc/stat`.
fn parse_stat(stat: &str, system: &str, second: u64, page: u64) -> Option<(f64, u64, u64, f64)> {
    // The name of the program may have spaces and parentheses in it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The third field of the file is the first here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / second as f64;
    let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim();
    let boot: u64 = boot.parse().ok()?;
    let cpu = seconds(field(14)? + field(15)?);
    Some((cpu, field(24)? * page, field(23)?, boot as f64 + seconds(field(22)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 8192 3 1 1";
        let system = "cpu 1 2 3\nbtime 1700000000\nprocesses 1\n";
        let parsed = parse_stat(stat, system, 100, 4096);
        assert_eq!(parsed, Some((3.0, 3 * 4096, 8192, 1_700_000_010.0)));
        assert_eq!(parse_stat("7 (a) S 1", system, 100, 4096), None);
    }

    #[test]
    fn this_process_is_read() {
        let process = ProcessStats::read().unwrap();
        assert!(process.resident_memory > 1 << 20 && process.open_fds > 2, "{process:?}");
        assert!(process.max_fds >= process.open_fds, "{process:?}");
    }
}
