//! The metrics of the daemon's process that every Prometheus client library exports, under the same
//! names.

use std::io;

use procfs::process::Process;

/// The state of this process according to `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStats {
    /// User and system CPU time, seconds.
    pub cpu_s: f64,
    /// Resident memory, bytes.
    pub resident_memory: u64,
    /// Virtual memory, bytes.
    pub virtual_memory: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// The limit on open descriptors.
    pub max_fds: u64,
    /// Its start time, seconds since 1970.
    pub started_s: f64,
}

impl ProcessStats {
    /// Reads the state of this process.
    ///
    /// # Errors
    /// If there is no `/proc`, or no descriptor is left to read it.
    pub fn read() -> io::Result<Self> {
        // Without the descriptor that lists the directory.
        let open_fds = (std::fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1);
        let stat = Process::myself().and_then(|own| own.stat()).map_err(io::Error::other)?;
        let boot_time = procfs::boot_time_secs().map_err(io::Error::other)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        Ok(Self {
            cpu_s: seconds(stat.utime + stat.stime),
            resident_memory: stat.rss * procfs::page_size(),
            virtual_memory: stat.vsize,
            open_fds,
            max_fds: limit.current.unwrap_or(u64::MAX),
            started_s: boot_time as f64 + seconds(stat.starttime),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_this_process_are_read() {
        let process = ProcessStats::read().unwrap();
        assert!(process.resident_memory > 1 << 20 && process.open_fds > 2, "{process:?}");
        assert!(process.virtual_memory >= process.resident_memory, "{process:?}");
        assert!(process.max_fds >= process.open_fds, "{process:?}");
        // The process started after boot, and its start time counts from 1970.
        let boot_time = procfs::boot_time_secs().unwrap() as f64;
        assert!(process.started_s >= boot_time && boot_time > 1e9, "{process:?}");
    }

    #[test]
    fn used_cpu_time_is_counted() {
        let before = ProcessStats::read().unwrap().cpu_s;
        while ProcessStats::read().unwrap().cpu_s < before + 0.02 {
            std::hint::spin_loop();
        }
    }
}
