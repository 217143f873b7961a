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

/// Pipes in which segments and replies wait as pages, if there are any.
#[derive(Default)]
pub(super) struct PagePipes {
    pub(super) segments: SegmentPipes,
    pub(super) replies: Option<PipePool>,
}

/// So many slots of a pipe for packets, for each page of data: a packet of 1500 bytes takes one.
const SLOTS_PER_PAGE: u64 = 4;

/// An ordinary user's pipes have fewer slots. They suffice where packets are large, as between
/// containers of one machine. The kernel limits the slots of all pipes of a user, to those of 64 such
/// pipes by default, so these are a part of them.
const MAX_USER_PIPES: u64 = 16;

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

/// Pipes for segments of `segment` bytes, and for replies to requests of at most `request`.
fn cached_pipes(segment: u64, request: u64, raise: bool) -> io::Result<(PipePool, PipePool)> {
    // One page more for the header, and one for a request that begins and ends inside a page.
    let reply = (request + 2 * page_size()).next_power_of_two();
    make_pipes(reply.max(segment), raise, || {
        Ok((PipePool::new(segment as usize)?, PipePool::new(reply as usize)?))
    })
}

/// Pipes for the packets of `count` segments, and for replies of packets. Replies have as many slots
/// as a segment; those that need more are copied.
fn packet_pipes(segment: u64, count: u64, raise: bool) -> io::Result<(PipePool, PipePool)> {
    let make = |bytes: u64, count: u64| {
        let received = PipePool::with_limit(bytes as usize, count.max(1) as usize)?;
        Ok((received, PipePool::new(bytes as usize)?))
    };
    let bytes = segment * SLOTS_PER_PAGE;
    make_pipes(bytes, raise, || make(bytes, count)).or_else(|error| {
        let limit = std::fs::read_to_string(PIPE_MAX_SIZE).ok().and_then(|n| n.trim().parse().ok());
        match limit {
            Some(limit) if limit >= segment => make(limit, count.min(MAX_USER_PIPES)),
            _ => Err(error),
        }
    })
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
pub(super) fn page_pipes(config: &Config) -> PagePipes {
    if !config.fuse.splice {
        return PagePipes::default();
    }
    let request = max_request(config).min(max_kernel_request());
    let segment = config.read.segment_size;
    let raise = config.fuse.kernel_tuning;
    let log =
        |what: &str, error: &io::Error| tracing::info!(%error, "fanfs copies {what}: no pipes");
    let mut pools = PagePipes::default();
    match cached_pipes(segment, request, raise) {
        Ok((cached, replies)) => {
            pools.segments.cached = Some(cached);
            pools.replies = Some(replies);
        }
        Err(error) => log("cached data", &error),
    }
    if config.replicas.iter().any(|replica| replica.location.export().is_some()) {
        let count = config.memory.budget / PACKETS_SHARE_OF_BUDGET / segment;
        match packet_pipes(segment, count, raise) {
            Ok((received, replies)) => {
                pools.segments.received = Some(received);
                let other = pools.replies.take().filter(|other| other.bytes() > replies.bytes());
                pools.replies = Some(other.unwrap_or(replies));
            }
            Err(error) => log("data of exports", &error),
        }
    }
    pools
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
