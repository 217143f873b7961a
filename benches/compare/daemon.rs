//! One FUSE daemon under measurement: start, observation from outside, end.
//!
//! *Invariant:* dropping a [`Daemon`] leaves neither a mount nor a process, even after a failed
//! measurement.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::process::{Pid, Signal, kill_process};

use super::Failure;

/// The longest time to mount, or to end after the unmount.
const PATIENCE: Duration = Duration::from_secs(10);

/// The polling interval.
const LOOK: Duration = Duration::from_millis(20);

/// A child that serves a mount.
pub(super) struct Daemon {
    child: Child,
    mount_point: PathBuf,
    device: Option<(u32, u32)>,
}

impl Daemon {
    /// Starts `command`, which stays in the foreground, and waits until it has mounted on
    /// `mount_point`. Its output goes to `log`.
    pub(super) fn start(
        command: &mut Command,
        mount_point: &Path,
        log: &Path,
    ) -> Result<Self, Failure> {
        use std::os::unix::process::CommandExt as _;
        let before = device(mount_point)?;
        let said = File::create(log)?;
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        // Ctrl-C goes to the comparison, which then ends its daemons in order.
        command.process_group(0);
        let child = command
            .spawn()
            .map_err(|error| Failure(format!("{}: {error}", command.get_program().display())))?;
        let mut daemon = Self { child, mount_point: mount_point.to_owned(), device: None };
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && daemon.child.try_wait()?.is_none() {
            match device(mount_point) {
                Ok(now) if now != before => {
                    daemon.device = Some(now);
                    return Ok(daemon);
                }
                _ => std::thread::sleep(LOOK),
            }
        }
        let said = std::fs::read_to_string(log).unwrap_or_default();
        let said = said.lines().last().unwrap_or("nothing is mounted").to_owned();
        Err(Failure(format!("{}: {said}", command.get_program().display())))
    }

    /// Processor seconds used so far, user and kernel.
    pub(super) fn cpu_seconds(&self) -> Result<f64, Failure> {
        let stat = std::fs::read_to_string(self.proc("stat"))?;
        // The name, in parentheses, may hold spaces; utime and stime are the
        // twelfth and thirteenth of what follows it.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let ticks = |n: usize| after.split_whitespace().nth(n).and_then(|w| w.parse::<u64>().ok());
        let (Some(user), Some(system)) = (ticks(11), ticks(12)) else {
            return Err(Failure(format!("{}: not as in proc(5)", self.proc("stat"))));
        };
        Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// The most memory that it had resident since [`Self::reset_peak`], bytes.
    pub(super) fn peak(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(self.proc("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| Failure("no VmHWM in proc".to_owned()))
    }

    /// Resets the peak.
    pub(super) fn reset_peak(&self) -> Result<(), Failure> {
        Ok(std::fs::write(self.proc("clear_refs"), "5")?)
    }

    fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }

    fn ends_by(&mut self, until: Instant) -> bool {
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(LOOK);
        }
        false
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Without a device nothing is mounted, or the mount does not answer.
        let _ = fanfs::fuse::unmount(&self.mount_point, true);
        if self.device.is_none() {
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        }
        if self.ends_by(Instant::now() + PATIENCE) {
            return;
        }
        if let Some((_, minor)) = self.device {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(path: &Path) -> Result<(u32, u32), Failure> {
    let s = statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::empty())?;
    Ok((s.stx_dev_major, s.stx_dev_minor))
}

/// Sets the kernel's readahead for a mount, as fanfs does for its own. Later opens use it.
pub(super) fn raise_readahead(mount_point: &Path, bytes: u64) -> Result<(), Failure> {
    let (major, minor) = device(mount_point)?;
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    Ok(std::fs::write(path, (bytes / 1024).to_string())?)
}
