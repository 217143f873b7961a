//! Kernel settings for one mount and for this process.

use std::io;
use std::path::Path;

use crate::buffer::PipePool;
use crate::config::Config;
use crate::read::SegmentPipes;

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
    pub(super) segments: SegmentPipes,
    pub(super) replies: PipePool,
}

/// So many slots of a pipe for packets, for each page of data: a packet of 1500 bytes takes one.
const SLOTS_PER_PAGE: u64 = 4;

/// This part of the budget, at most, waits in packets. A page of a packet may be filled by a third,
/// and is paid for by its data.
const PACKETS_SHARE_OF_BUDGET: u64 = 4;

/// The largest pipe that an unprivileged process may make, bytes.
const PIPE_MAX_SIZE: &str = "/proc/sys/fs/pipe-max-size";

/// Makes pipes of at most `bytes`. If the kernel refuses them and `raise` is set, this raises the
/// system's limit for pipes.
///
/// # Errors
/// If this process can have no pipes of this size.
fn make_pipes<T>(bytes: u64, raise: bool, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if raise && io::Error::kind(&error) == io::ErrorKind::PermissionDenied => {
            std::fs::write(PIPE_MAX_SIZE, bytes.to_string())?;
            tracing::info!(bytes, "raised the kernel's limit {PIPE_MAX_SIZE}");
            make()
        }
        made => made,
    }
}

/// Pipes for segments of `segment` bytes and requests of at most `request`.
fn make_page_pipes(segment: u64, request: u64, raise: bool) -> io::Result<PagePipes> {
    // One page more for the header, and one for a request that begins and ends inside a page.
    let reply = (request + 2 * page_size()).next_power_of_two();
    make_pipes(reply.max(segment), raise, || {
        let cached = Some(PipePool::new(segment as usize)?);
        let segments = SegmentPipes { cached, received: None };
        Ok(PagePipes { segments, replies: PipePool::new(reply as usize)? })
    })
}

/// Adds pipes for the packets of `count` segments. Replies have as many slots as a segment then; those
/// that need more are copied.
fn add_packet_pipes(
    pipes: &mut PagePipes,
    segment: u64,
    count: u64,
    raise: bool,
) -> io::Result<()> {
    let bytes = (segment * SLOTS_PER_PAGE).max(pipes.replies.bytes() as u64);
    let count = count.max(1) as usize;
    let (received, replies) = make_pipes(bytes, raise, || {
        Ok((PipePool::with_limit(bytes as usize, count)?, PipePool::new(bytes as usize)?))
    })?;
    pipes.segments.received = Some(received);
    pipes.replies = replies;
    Ok(())
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
    let segment = config.read.segment_size;
    let raise = config.fuse.kernel_tuning;
    let mut pipes = make_page_pipes(segment, request, raise)
        .inspect_err(|error| {
            tracing::info!(%error, "cannot make pipes of the necessary size; fanfs copies file data");
        })
        .ok()?;
    if config.replicas.iter().any(|replica| replica.location.export().is_some()) {
        let count = config.memory.budget / PACKETS_SHARE_OF_BUDGET / segment;
        if let Err(error) = add_packet_pipes(&mut pipes, segment, count, raise) {
            tracing::info!(%error, "cannot make pipes for packets; fanfs copies data of exports");
        }
    }
    Some(pipes)
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
