//! Defaults and ranges, each with its reason. `docs/CONFIGURATION.md` repeats them for operators;
//! tests compare it and `config/example.toml` with them.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::{KIB, MIB};

use super::choices::{CachePolicy, LogFormat, Passthrough};
use super::units::{Rate, Share, Size, Time};

/// MapR's default chunk size. It is a multiple of HDFS's block (128 MiB) and of CephFS's object
/// (4 MiB), so a wrong guess costs only locality.
pub(super) const CHUNK_SIZE: Size = Size(256 * MIB);

/// A volume with one replica is useful; the others join when they are healthy.
pub(super) const MIN_REPLICAS: usize = 1;

/// Only the operator knows that nothing changes.
pub(super) const IMMUTABLE: bool = false;

/// A FUSE read is at most 256 pages by default, and a READ of Linux's NFS client at most 1 MiB. So
/// one segment is one request on the wire. Other sizes: benches/results/sweep.md.
pub(super) const SEGMENT_SIZE: Size = Size(MIB);
/// Below 64 KiB the round trip costs more than the data. Above 16 MiB one late segment on a
/// replica of 100 MB/s delays its reader by more than 160 ms.
pub(super) const SEGMENT_SIZE_RANGE: RangeInclusive<Size> = Size(64 * KIB)..=Size(16 * MIB);

/// Bandwidth times latency of 2 GiB/s at 30 ms, about the bandwidth of two 10 Gbit/s replicas. It
/// is a quarter of the default memory budget, so four sequential readers run at full speed.
pub(super) const READAHEAD_MAX: Size = Size(64 * MIB);

/// Each thread has one positioned read in flight. Eight default segments in flight fill a 10 Gbit/s
/// path (1.1 GiB/s) at a latency of up to 7 ms.
pub(super) const THREADS_PER_REPLICA: usize = 8;
/// A single thread could not look up a name while it reads. 64 replicas with 256 threads each have
/// 16384 threads, half of the kernel's smallest default `pid_max`.
pub(super) const THREADS_PER_REPLICA_RANGE: RangeInclusive<i64> = 2..=256;

/// Twice the rate times latency of a 10 Gbit/s path with 14 ms. The scheduler's own limit is lower
/// for most replicas; this is its upper bound.
pub(super) const MAX_IN_FLIGHT: Size = Size(32 * MIB);

/// Half of the 60 s (`timeo=600`) after which an NFS client retries over TCP: fanfs answers before
/// the mount below does.
pub(super) const DEADLINE: Time = Time(Duration::from_secs(30));
/// Below 100 ms, a healthy disk that spins up or a server in garbage collection would be an error.
/// An application may wait for its request this long, so an hour is the limit.
pub(super) const DEADLINE_RANGE: RangeInclusive<Time> =
    Time(Duration::from_millis(100))..=Time(Duration::from_secs(3600));

/// An NFSv4 server refuses opens for 90 s after its start (its grace period), and a client over TCP
/// notices up to 60 s later that the server is back. This is twice the sum. A reader of a hard
/// mount waits forever.
pub(super) const DEADLINE_ALL: Time = Time(Duration::from_secs(300));

/// Far above a healthy replica's time for a segment, and a sixth of the deadline, so several
/// replicas in turn may fail to answer.
pub(super) const ATTEMPT_DEADLINE: Time = Time(Duration::from_secs(5));
/// Hedging covers shorter delays, and learns its delay.
pub(super) const ATTEMPT_DEADLINE_MIN: Time = Time(Duration::from_millis(50));

/// One block of 64 KiB in a thousand segments, and one per replica of a file with several segments.
/// The cost is negligible (benches/results/defaults.md), and a read notices a file that was copied
/// badly.
pub(super) const COMPARE: Share = Share(0.001);

/// Files that fit stay in memory; larger files evict nothing. Each open decides (`fs::cache_mode`);
/// figures: benches/results/cache-policies.md.
pub(super) const CACHE: CachePolicy = CachePolicy::Auto;

/// Passthrough gives one replica's rate, without failover, so it is opt-in.
pub(super) const PASSTHROUGH: Passthrough = Passthrough::Off;

/// A client needs minutes to write back its cached data over a slow gateway. A shorter deadline
/// would report a success as a failure. An NFS client never gives up.
pub(super) const WRITE_DEADLINE: Time = Time(Duration::from_secs(300));

/// An NFS client caches names and attributes for at most 60 s (`acregmax` and `acdirmax`), plus a
/// margin for the network. Measured: benches/results/defaults.md.
pub(super) const WRITE_LAG: Time = Time(Duration::from_secs(65));
/// 0 suits replicas mounted with `noac` and local directories. The maximum suits mounts with
/// `actimeo=3600`.
pub(super) const WRITE_LAG_RANGE: RangeInclusive<Time> =
    Time(Duration::ZERO)..=Time(Duration::from_secs(3700));

/// Four readers' full readahead, or the in-flight limit of eight replicas.
pub(super) const BUDGET: Size = Size(256 * MIB);
/// With fewer segments, a few readers take turns instead of reading ahead. The default budget has
/// room for 16 of the largest segments.
pub(super) const BUDGET_MIN_SEGMENTS: u64 = 16;

/// No replica is preferred before it is measured.
pub(super) const WEIGHT: f64 = 1.0;
/// A thousandth to a thousand: 100 Mbit/s and 100 Gbit/s differ by a factor of 1000.
pub(super) const WEIGHT_RANGE: RangeInclusive<f64> = 0.001..=1000.0;

/// At this rate a default segment takes 16 s, less than the default deadline.
pub(super) const MAX_RATE_MIN: Rate = Rate(64 * KIB);

/// An unmounted mount point is an empty directory, and looks like a volume without files.
pub(super) const REQUIRE_MOUNT: bool = true;

/// Chosen, not measured: several connections helped kernel mounts where packets are lost, and cost
/// nothing elsewhere (benches/results/paths.md).
pub(super) const CONNECTIONS: usize = 4;
/// The kernel's range of `nconnect`.
pub(super) const CONNECTIONS_RANGE: RangeInclusive<i64> = 1..=16;

/// Ports of TCP.
pub(super) const MOUNT_PORT_RANGE: RangeInclusive<i64> = 1..=65_535;

/// Two threads always receive requests; the others may do small reads of a replica. On two CPUs,
/// 10 threads gained nothing over 6 (benches/results/sweep.md).
pub(super) const FUSE_THREADS_DEFAULT: RangeInclusive<usize> = 6..=12;
/// One for each possible replica, more than any measurement needed.
pub(super) const FUSE_THREADS_RANGE: RangeInclusive<i64> = 1..=64;

/// The number of CPUs that this process may use plus four, from 6 to 12.
pub(super) fn fuse_threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    (cpus + 4).clamp(*FUSE_THREADS_DEFAULT.start(), *FUSE_THREADS_DEFAULT.end())
}

/// Other users stay out, as with every FUSE mount. Only the administrator can set
/// `user_allow_other` in `/etc/fuse.conf`.
pub(super) const ALLOW_OTHER: bool = false;

/// The kernel's default readahead of 128 KiB does not cover a network. Missing permission to raise
/// it is not an error.
pub(super) const KERNEL_TUNING: bool = true;

/// Passing pages on takes about two thirds of the processor time of copying them
/// (benches/results/sweep.md).
pub(super) const SPLICE: bool = true;

/// One FUSE read, one default segment. fanfs reads ahead itself. With 8 MiB of kernel readahead, a
/// plain round-robin was half as fast under Linux 6.12 as under 6.1 (benches/results/defaults.md).
pub(super) const KERNEL_READAHEAD: Size = Size(MIB);
/// 0 turns it off; 64 MiB is the default of fanfs's own readahead.
pub(super) const KERNEL_READAHEAD_RANGE: RangeInclusive<Size> = Size(0)..=Size(64 * MIB);

/// Background requests are the kernel's readahead and asynchronous direct reads. The kernel's
/// default of 12 would leave fast replicas idle. Requests above the limit wait in the kernel in
/// order of arrival, where files do not take turns. With 64, one of 256 readers waited four times
/// as long for a read as with 256 (benches/results/many-readers.md).
pub(super) const MAX_BACKGROUND: u16 = 256;
/// The kernel's range.
pub(super) const MAX_BACKGROUND_RANGE: RangeInclusive<i64> = 1..=65_535;

/// libfuse's default. Below it, every `stat` in a loop reaches the replicas.
pub(super) const ATTRIBUTE_TTL: Time = Time(Duration::from_secs(1));
/// With more than an hour, changes could stay invisible for a day.
pub(super) const ATTRIBUTE_TTL_RANGE: RangeInclusive<Time> =
    Time(Duration::ZERO)..=Time(Duration::from_secs(3600));

/// Prometheus's usual scrape interval: each scrape of node_exporter finds a newer file.
pub(super) const METRICS_INTERVAL: Time = Time(Duration::from_secs(15));
/// Below a second the metrics would mostly measure their own collection. An hour is longer than
/// Prometheus shows an old value (five minutes).
pub(super) const METRICS_INTERVAL_RANGE: RangeInclusive<Time> =
    Time(Duration::from_secs(1))..=Time(Duration::from_secs(3600));

/// fanfs's own activity, and warnings of its dependencies.
pub(super) const LOG_LEVEL: &str = "warn,fanfs=info";

/// People read a log before any log collector is set up.
pub(super) const LOG_FORMAT: LogFormat = LogFormat::Text;

/// A replica that fails causes one message for each of its threads, eight by default. More of the
/// same message within ten seconds add nothing.
pub(super) const LOG_RATE: u32 = 10;
/// 0 turns it off.
pub(super) const LOG_RATE_RANGE: RangeInclusive<i64> = 0..=1_000_000;

/// About 80,000 lines, and as many in the previous file. `/run` is a tmpfs, so this takes memory.
pub(super) const LOG_MAX_SIZE: Size = Size(10 << 20);
/// A smaller file could not hold the lines of one incident. 0 turns rotation off.
pub(super) const LOG_MAX_SIZE_RANGE: RangeInclusive<Size> = Size(16 << 10)..=Size(1 << 30);

/// `hadoop` and `hdfs` start a JVM, which takes seconds on a busy node, and the NameNode of a large
/// cluster may be in garbage collection.
pub(super) const PLACEMENT_TIMEOUT: Time = Time(Duration::from_secs(20));
/// A provider that takes longer than an hour hangs.
pub(super) const PLACEMENT_TIMEOUT_RANGE: RangeInclusive<Time> =
    Time(Duration::from_millis(100))..=Time(Duration::from_secs(3600));

/// Chunks move only if a node fails or a balancer runs, which takes minutes to hours. If a
/// replica's timing shows that chunks have moved, fanfs asks earlier.
pub(super) const PLACEMENT_TTL: Time = Time(Duration::from_secs(600));
/// Below a second every read of a file would call the provider. For placement that is stable for
/// more than a week, use a table, which fanfs reads again when it changes.
pub(super) const PLACEMENT_TTL_RANGE: RangeInclusive<Time> =
    Time(Duration::from_secs(1))..=Time(Duration::from_secs(7 * 86_400));

/// A NameNode failover takes less.
pub(super) const PLACEMENT_RETRY_AFTER: Time = Time(Duration::from_secs(30));

#[cfg(test)]
mod tests {
    use super::*;

    /// This default has no number to compare, so the test compares its words.
    #[test]
    fn docs_state_the_number_of_session_threads() {
        let least = FUSE_THREADS_DEFAULT.start();
        let most = FUSE_THREADS_DEFAULT.end();
        let words = format!("four more than the CPUs, at least {least} and at most {most}");
        let example = include_str!("../../../../config/example.toml");
        let row = include_str!("../../../../docs/CONFIGURATION.md");
        for text in [example, row] {
            assert!(text.contains(&words), "{words}");
        }
    }
}
