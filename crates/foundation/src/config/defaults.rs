//! Defaults and ranges, each with its reason; `docs/CONFIGURATION.md` repeats
//! them for operators and a test compares `config/example.toml` with them.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::{KIB, MIB};

use super::choices::{CachePolicy, LogFormat, Passthrough};
use super::units::{Rate, Share, Size, Time};

/// MapR's default chunk; a multiple of HDFS's block (128 MiB) and of CephFS's
/// object (4 MiB), so that a wrong guess costs locality and nothing else.
pub(super) const CHUNK_SIZE: Size = Size(256 * MIB);

/// A volume with one replica is useful; the others join when they are well.
pub(super) const MIN_REPLICAS: usize = 1;

/// One FUSE read is at most 256 pages by default, and one READ of Linux's NFS
/// client at most 1 MiB: one segment is one request on the wire.
pub(super) const SEGMENT_SIZE: Size = Size(MIB);
/// Below 64 KiB the round trip costs more than the data; above 16 MiB one late
/// segment on a 100 MB/s replica holds its reader for more than 160 ms.
pub(super) const SEGMENT_SIZE_RANGE: RangeInclusive<Size> = Size(64 * KIB)..=Size(16 * MIB);

/// Bandwidth times delay of 2 GiB/s over 30 ms, about what two 10 Gbit/s
/// replicas have together; a quarter of the default memory budget, so
/// that four sequential readers run at full speed.
pub(super) const READAHEAD_MAX: Size = Size(64 * MIB);

/// A thread is one positioned read under way. Eight default segments under way
/// fill a 10 Gbit/s path (1.1 GiB/s) up to 7 ms of latency.
pub(super) const THREADS_PER_REPLICA: usize = 8;
/// One thread could not look up a name while it reads. 64 replicas of 256
/// threads are 16384, half of the kernel's smallest default `pid_max`.
pub(super) const THREADS_PER_REPLICA_RANGE: RangeInclusive<i64> = 2..=256;

/// Twice the rate times latency of a 10 Gbit/s path of 14 ms. The scheduler's
/// own cap is lower for most replicas; this one bounds it.
pub(super) const MAX_IN_FLIGHT: Size = Size(32 * MIB);

/// Half of what the NFS client waits over TCP before it retries (`timeo=600`,
/// 60 s): fanfs answers before the mount below has made up its mind.
pub(super) const DEADLINE: Time = Time(Duration::from_secs(30));
/// Below 100 ms a healthy disk that spins up or a server that collects garbage
/// is an error; an application cannot be killed before its request ends, so
/// no user waits longer than an hour.
pub(super) const DEADLINE_RANGE: RangeInclusive<Time> =
    Time(Duration::from_millis(100))..=Time(Duration::from_secs(3600));

/// An NFSv4 server refuses opens for 90 s after it has started (its grace period), and a
/// client notices after up to 60 s over TCP that it is back; twice that. A reader of a hard
/// mount waits for ever.
pub(super) const DEADLINE_ALL: Time = Time(Duration::from_secs(300));

/// Far above what a healthy replica takes for a segment, and a sixth of the
/// deadline, so that several replicas in turn may fail to answer.
pub(super) const ATTEMPT_DEADLINE: Time = Time(Duration::from_secs(5));
/// Shorter is what hedging is for, which learns its delay instead.
pub(super) const ATTEMPT_DEADLINE_MIN: Time = Time(Duration::from_millis(50));

/// A block of 64 KiB in a thousand segments, and one for each replica of a file of
/// several: next to nothing (docs/CONFIGURATION.md), and a file that was copied
/// badly is noticed when it is read.
pub(super) const COMPARE: Share = Share(0.001);

/// Files that fit stay in memory, files that do not push nothing out of it; which
/// is which is decided for each open (`fs::cache_mode`).
pub(super) const CACHE: CachePolicy = CachePolicy::Auto;

/// One replica's rate, and no other one when it fails: whoever wants that says so.
pub(super) const PASSTHROUGH: Passthrough = Passthrough::Off;

/// To write back what a client has in memory takes minutes over a slow gateway, and
/// to give up earlier would call a success a failure. An NFS client never does.
pub(super) const WRITE_DEADLINE: Time = Time(Duration::from_secs(300));

/// For as long an NFS client may take names and attributes to be what it saw last
/// (acregmax and acdirmax, 60 s), and something on top for the way.
pub(super) const WRITE_LAG: Time = Time(Duration::from_secs(65));
/// 0 is for replicas mounted with `noac`, or directories of one machine; an hour for
/// mounts with `actimeo=3600`.
pub(super) const WRITE_LAG_RANGE: RangeInclusive<Time> =
    Time(Duration::ZERO)..=Time(Duration::from_secs(3700));

/// Four readers' full readahead, or the in-flight limit of eight replicas.
pub(super) const BUDGET: Size = Size(256 * MIB);
/// With fewer segments than this a few readers take turns instead of reading
/// ahead; the default budget has 16 of the largest segments.
pub(super) const BUDGET_MIN_SEGMENTS: u64 = 16;

/// No replica is preferred before there is a measurement.
pub(super) const WEIGHT: f64 = 1.0;
/// A thousandth to a thousand: 100 Mbit/s and 100 Gbit/s differ by that much.
pub(super) const WEIGHT_RANGE: RangeInclusive<f64> = 0.001..=1000.0;

/// A default segment comes back within 16 s, before the default deadline.
pub(super) const MAX_RATE_MIN: Rate = Rate(64 * KIB);

/// An unmounted mount point is an empty directory, and an empty replica looks
/// like a volume without files.
pub(super) const REQUIRE_MOUNT: bool = true;

/// Two take requests at any time; the others may be inside a small read of a
/// replica. With 10 on two CPUs nothing more was gained (docs/PERFORMANCE.md).
pub(super) const FUSE_THREADS_DEFAULT: RangeInclusive<usize> = 6..=12;
/// One for every replica there may be is more than any measurement asked for.
pub(super) const FUSE_THREADS_RANGE: RangeInclusive<i64> = 1..=64;

/// Four more than the CPUs that this process may use, clamped to 6 and 12.
pub(super) fn fuse_threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    (cpus + 4).clamp(*FUSE_THREADS_DEFAULT.start(), *FUSE_THREADS_DEFAULT.end())
}

/// Other users stay out, as with every FUSE mount; `user_allow_other` in
/// `/etc/fuse.conf` is the administrator's to give.
pub(super) const ALLOW_OTHER: bool = false;

/// The kernel's own limits, 128 KiB of readahead and 16 requests in the
/// background, do not cover a network. Where they may not be raised, that is not
/// an error.
pub(super) const KERNEL_TUNING: bool = true;

/// Pages are handed on rather than copied wherever that can be done: it halves
/// the processor time of a read (docs/PERFORMANCE.md).
pub(super) const SPLICE: bool = true;

/// One FUSE read, one default segment. fanfs reads ahead itself; with more of
/// the kernel's on top, Linux 6.12 was slower than 6.1 by half (measured).
pub(super) const KERNEL_READAHEAD: Size = Size(MIB);
/// 0 turns it off; 64 MiB is fanfs's own readahead by default.
pub(super) const KERNEL_READAHEAD_RANGE: RangeInclusive<Size> = Size(0)..=Size(64 * MIB);

/// The kernel's own readahead and asynchronous direct reads. The kernel's
/// default of 12 would leave fast replicas idle. What is beyond it waits in the
/// kernel, first come, first served, where files do not take turns: with 64, one
/// of 256 readers waited four times as long for a read as with 256.
pub(super) const MAX_BACKGROUND: u16 = 256;
/// What the kernel takes.
pub(super) const MAX_BACKGROUND_RANGE: RangeInclusive<i64> = 1..=65_535;

/// libfuse's default; below it every `stat` in a loop reaches the replicas.
pub(super) const ATTRIBUTE_TTL: Time = Time(Duration::from_secs(1));
/// Longer than an hour is a changed file that nobody sees the same day.
pub(super) const ATTRIBUTE_TTL_RANGE: RangeInclusive<Time> =
    Time(Duration::ZERO)..=Time(Duration::from_secs(3600));

/// What Prometheus is most often told to scrape by: each of its looks at
/// node_exporter finds a file that is newer than the one before.
pub(super) const METRICS_INTERVAL: Time = Time(Duration::from_secs(15));
/// Below a second it is the collector's own work that is measured; an hour is
/// longer than Prometheus goes on showing what it has last seen (five minutes).
pub(super) const METRICS_INTERVAL_RANGE: RangeInclusive<Time> =
    Time(Duration::from_secs(1))..=Time(Duration::from_secs(3600));

/// What fanfs does, and what is wrong with what it is made of.
pub(super) const LOG_LEVEL: &str = "warn,fanfs=info";

/// A log is read by people before there is somebody who collects it.
pub(super) const LOG_FORMAT: LogFormat = LogFormat::Text;

/// A replica that fails makes a message for each of its threads, eight by default; more
/// of the same message within ten seconds say nothing new.
pub(super) const LOG_RATE: u32 = 10;
/// 0 turns it off.
pub(super) const LOG_RATE_RANGE: RangeInclusive<i64> = 0..=1_000_000;

/// Some 80,000 lines, and the same again in the file before: little memory for `/run`,
/// which is a tmpfs.
pub(super) const LOG_MAX_SIZE: Size = Size(10 << 20);
/// Below, hardly an incident fits into it; 0 turns rotation off.
pub(super) const LOG_MAX_SIZE_RANGE: RangeInclusive<Size> = Size(16 << 10)..=Size(1 << 30);

/// `hadoop` and `hdfs` start a JVM, which takes seconds on a busy node, and the
/// namenode of a large cluster may be collecting garbage.
pub(super) const PLACEMENT_TIMEOUT: Time = Time(Duration::from_secs(20));
/// Longer than an hour is a provider that hangs.
pub(super) const PLACEMENT_TIMEOUT_RANGE: RangeInclusive<Time> =
    Time(Duration::from_millis(100))..=Time(Duration::from_secs(3600));

/// Chunks stay where they are until a node fails or a balancer runs, which are
/// matters of minutes to hours; a replica that behaves as if they had moved
/// makes fanfs ask before that.
pub(super) const PLACEMENT_TTL: Time = Time(Duration::from_secs(600));
/// Below a second every file read is a call to the provider; longer than a week
/// is a table, which is read anew when it changes.
pub(super) const PLACEMENT_TTL_RANGE: RangeInclusive<Time> =
    Time(Duration::from_secs(1))..=Time(Duration::from_secs(7 * 86_400));

/// A namenode that fails over is back in this time.
pub(super) const PLACEMENT_RETRY_AFTER: Time = Time(Duration::from_secs(30));

#[cfg(test)]
mod tests {
    use super::*;

    /// It has no figure that could be compared, so its words are.
    #[test]
    fn the_documents_say_how_many_session_threads_there_are() {
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
