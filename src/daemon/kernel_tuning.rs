//! Kernel settings for one mount and for this process.

use std::io;
use std::path::Path;

use crate::buffer::PipePool;
use crate::config::Config;

/// Sets how far the kernel reads ahead on files of this mount.
///
/// Without it the kernel reads 128 KiB at a time from a FUSE file, however large the
/// application's reads are. Only files opened afterwards are affected.
///
/// # Errors
/// If sysfs cannot be written; an unprivileged process may not.
pub(super) fn set_readahead(mount_point: &Path, bytes: u64) -> io::Result<()> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // The device number of a FUSE mount names its entry in sysfs. The kernel knows it without
    // asking the daemon.
    let flags = AtFlags::from_bits_retain(AT_STATX_DONT_SYNC) | AtFlags::NO_AUTOMOUNT;
    let s = statx(rustix::fs::CWD, mount_point, flags, StatxFlags::empty())?;
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", s.stx_dev_major, s.stx_dev_minor);
    std::fs::write(path, (bytes / 1024).to_string())
}

/// `AT_STATX_DONT_SYNC` of statx(2).
const AT_STATX_DONT_SYNC: u32 = 0x4000;

/// Pipes in which segments and replies wait as pages.
pub(super) struct PagePipes {
    pub(super) segments: PipePool,
    pub(super) replies: PipePool,
}

/// The largest pipe that an unprivileged process may make, bytes.
const PIPE_MAX_SIZE: &str = "/proc/sys/fs/pipe-max-size";

/// Pipes for segments of `segment` bytes and requests of at most `request`. If the kernel
/// refuses them and `raise` is set, this raises the system's limit for pipes.
///
/// # Errors
/// If this process can have no pipes of this size.
fn make_pipes(segment: u64, request: u64, raise: bool) -> io::Result<PagePipes> {
    // One page more for the header, and one for a request that begins and ends inside a page.
    let reply = (request + 2 * page_size()).next_power_of_two();
    let make = || {
        let replies = PipePool::new(reply as usize)?;
        Ok(PagePipes { segments: PipePool::new(segment as usize)?, replies })
    };
    match make() {
        Err(error) if raise && io::Error::kind(&error) == io::ErrorKind::PermissionDenied => {
            std::fs::write(PIPE_MAX_SIZE, reply.max(segment).to_string())?;
            tracing::info!(bytes = reply.max(segment), "raised the kernel's limit {PIPE_MAX_SIZE}");
            make()
        }
        made => made,
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The largest request that the kernel makes, bytes: 256 pages if the sysctl is not there.
fn max_kernel_request() -> u64 {
    let pages = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    pages.ok().and_then(|pages| pages.trim().parse::<u64>().ok()).unwrap_or(256) * page_size()
}

/// At least this many whole requests fit into the budget, whatever the kernel's limit for one
/// is: a request claims all its memory at once.
const MIN_REQUESTS_IN_BUDGET: u64 = 8;

/// The longest request that the budget allows, bytes.
pub(super) fn max_request(config: &Config) -> u64 {
    config.memory.budget / MIN_REQUESTS_IN_BUDGET
}

/// Pipes for pages, if `[fuse] splice` is on and the kernel allows them.
pub(super) fn page_pipes(config: &Config) -> Option<PagePipes> {
    if !config.fuse.splice {
        return None;
    }
    let request = max_request(config).min(max_kernel_request());
    let pipes = make_pipes(config.read.segment_size, request, config.fuse.kernel_tuning);
    if let Err(error) = &pipes {
        tracing::info!(%error, "cannot make pipes of the necessary size; fanfs copies file data");
    }
    pipes.ok()
}

/// Raises the soft limit of open files. An open file takes a descriptor for each replica that
/// reads it, so the usual soft limit of 1024 is soon reached.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::info!(%error, "cannot raise the limit of open files (RLIMIT_NOFILE)");
    }
}
