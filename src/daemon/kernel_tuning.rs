//! Kernel settings for one mount and for this process.

use std::io;
use std::path::Path;

use crate::buffer::PipePool;
use crate::capabilities;
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

/// The slots of a pipe for packets, for each page of data: a packet of 1500 bytes takes one slot.
const SLOTS_PER_PAGE: u64 = 4;

/// This part of the budget, at most, waits in packets. A packet may fill only a third of its page,
/// and the budget counts its data.
const PACKETS_SHARE_OF_BUDGET: u64 = 4;

/// The most pipes for packets: each has two descriptors.
const MAX_PACKET_PIPES: u64 = 1024;

/// Pipes for packets are this part, at most, of an ordinary user's pipes.
const SHARE_OF_USER_PIPES: u64 = 4;

/// The pages of all pipes of an ordinary user.
const USER_PIPE_PAGES: &str = "/proc/sys/fs/pipe-user-pages-soft";

/// The largest pipe for which the system's limit is raised, bytes.
const MAX_RAISED: u64 = 16 << 20;

/// The largest pipe that an unprivileged process may make, bytes.
const PIPE_MAX_SIZE: &str = "/proc/sys/fs/pipe-max-size";

/// Makes pipes of at most `bytes`. If the kernel refuses them and `raise` is set, this raises the
/// system's limit for pipes.
///
/// # Errors
/// If this process can have no pipes of this size.
fn make_pipes<T>(bytes: u64, raise: bool, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error)
            if raise
                && bytes <= MAX_RAISED
                && read_number(PIPE_MAX_SIZE).is_some_and(|limit| limit < bytes)
                && io::Error::kind(&error) == io::ErrorKind::PermissionDenied =>
        {
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

/// Pipes for the packets of `count` segments, and for replies of packets to requests of at most
/// `request`. An ordinary user's pipes have fewer slots, and are fewer. They suffice where packets
/// are large, as between containers of one machine.
fn packet_pipes(
    segment: u64,
    request: u64,
    count: u64,
    raise: bool,
) -> io::Result<(PipePool, PipePool)> {
    let user_pages = match capabilities::has(capabilities::PIPES) {
        true => u64::MAX,
        // 0 is no limit.
        false => read_number(USER_PIPE_PAGES).filter(|pages| *pages > 0).unwrap_or(u64::MAX),
    };
    let make = |most: u64| {
        let bytes = (segment * SLOTS_PER_PAGE).min(most);
        let of_user = user_pages / SHARE_OF_USER_PIPES / (bytes / page_size()).max(1);
        let received = PipePool::with_limit(
            bytes as usize,
            count.min(of_user).clamp(1, MAX_PACKET_PIPES) as usize,
        )?;
        Ok((received, PipePool::new((request * SLOTS_PER_PAGE).min(most) as usize)?))
    };
    let most = segment.max(request) * SLOTS_PER_PAGE;
    make_pipes(most, raise, || make(u64::MAX)).or_else(|error| match read_number(PIPE_MAX_SIZE) {
        Some(limit) if limit >= segment => make(limit),
        _ => Err(error),
    })
}

fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The largest request that the kernel makes, bytes: 256 pages if the sysctl is not there.
fn max_kernel_request() -> u64 {
    read_number("/proc/sys/fs/fuse/max_pages_limit").unwrap_or(256) * page_size()
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
        match packet_pipes(segment, request, count, raise) {
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
