//! This machine's limits and FUSE settings, and what the kernel knows of network interfaces and
//! backing devices. Read from /proc, /sys and /etc, below a root that tests replace.

use std::path::{Path, PathBuf};

use super::facts::{MachineFacts, NetworkInterface};

/// CPU time, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessorTicks {
    /// The time in all states.
    pub(super) total: u64,
    /// The idle part of it, including iowait.
    pub(super) idle: u64,
}

impl ProcessorTicks {
    /// The idle share of the time from `before` until now; `None` if no time has passed.
    pub(super) fn idle_share_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        Some(self.idle.saturating_sub(before.idle) as f64 / total as f64)
    }
}

/// The directory that contains /proc, /sys, /etc and /dev.
#[derive(Clone)]
pub(super) struct SystemRoot {
    root: PathBuf,
}

impl SystemRoot {
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The text of a small file, trimmed.
    fn read_trimmed(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    fn read_number(&self, path: &str) -> Option<u64> {
        // A speed of -1, which means unknown, does not parse.
        self.read_trimmed(path)?.parse().ok()
    }

    /// The machine's facts, except those of this process.
    pub(super) fn machine(&self) -> MachineFacts {
        let conf = self.read_trimmed("etc/fuse.conf").unwrap_or_default();
        MachineFacts {
            kernel: self.read_trimmed("proc/sys/kernel/osrelease"),
            root: false,
            fuse_device: self.root.join("dev/fuse").exists(),
            fusermount3: false,
            user_allow_other: conf.lines().any(|line| line.trim() == "user_allow_other"),
            fuse_max_pages: self.read_number("proc/sys/fs/fuse/max_pages_limit"),
            fuse_max_user_background: self.read_number("sys/module/fuse/parameters/max_user_bgreq"),
            open_files: self
                .read_trimmed("proc/self/limits")
                .and_then(|text| open_files_hard_limit(&text)),
            tcp_receive_buffer: self
                .read_trimmed("proc/sys/net/ipv4/tcp_rmem")
                .and_then(|text| text.split_ascii_whitespace().nth(2)?.parse().ok()),
            page: 4096,
            lists_connections: false,
        }
    }

    pub(super) fn interface(&self, name: &str) -> NetworkInterface {
        let at = |file: &str| format!("sys/class/net/{name}/{file}");
        let mut below = std::fs::read_dir(self.root.join(at(""))).into_iter().flatten().flatten();
        // A bond, a VLAN or a team reports the speed of its lower devices.
        let is_made_of = below.any(|one| one.file_name().to_string_lossy().starts_with("lower_"));
        NetworkInterface {
            name: name.to_owned(),
            speed_mbit: self.read_number(&at("speed")).filter(|speed| *speed > 0),
            mtu: self.read_number(&at("mtu")),
            is_virtual: !is_made_of && !self.root.join(at("device")).exists(),
        }
    }

    /// The kernel's readahead for a device, KiB.
    pub(super) fn read_ahead(&self, device: &str) -> Option<u64> {
        self.read_number(&format!("sys/class/bdi/{device}/read_ahead_kb"))
    }

    /// CPU time since boot.
    pub(super) fn processor_ticks(&self) -> Option<ProcessorTicks> {
        let text = self.read_trimmed("proc/stat")?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // proc_stat(5): user nice system idle iowait irq softirq steal. Guest time is part of user.
        let ticks: Vec<u64> =
            line.split_ascii_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        Some(ProcessorTicks { total: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
    }
}

/// The hard limit in `/proc/self/limits`; `None` if it is unlimited.
fn open_files_hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a program is in `PATH`.
pub(super) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
