//! Translates the volume's configuration into policies for the modules that serve it.

use std::sync::Arc;
use std::time::Duration;

use super::volume_setup::MountOverrides;
use super::{kernel_tuning, system_memory};
use crate::backend::{Backend, PoolLimits, Replica};
use crate::buffer::PipePool;
use crate::config::units::Share;
use crate::config::{Access, CachePolicy, Config, LockMode, Passthrough};
use crate::fs::{CacheModePolicy, FsPolicy, WritePolicy};
use crate::fuse::MountOptions;
use crate::mount_table::fanfs_mounts;
use crate::read::{ReadPolicy, SegmentPipes};
use crate::replicas::Replicas;
use crate::replicas::request_deadline::Deadlines;
use crate::scheduler::ReplicaPolicy;
use crate::telemetry::ReplicaCounters;
use crate::volume::{ReplicaMap, VolumeMode};

/// Session threads that never call a replica: one takes requests, and another takes them while
/// the first answers.
const RESERVED_SESSION_THREADS: usize = 2;

/// Jobs that may wait for one replica's threads.
const POOL_QUEUE_DEPTH: usize = 4096;

/// How long the kernel keeps names and attributes of an immutable volume: longer than any mount
/// lives.
const IMMUTABLE_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How long it keeps the knowledge that such a volume does not have a name. This ends, in case the
/// replica that was asked had only a part of the tree then.
const MISSING_NAME_TTL: Duration = Duration::from_secs(60);

/// How long at most the kernel keeps that knowledge of a writable volume. A change that timed out
/// may have made the name.
const MAX_MISSING_NAME_TTL: Duration = Duration::from_secs(1);

/// Session threads that may call replicas at the same time.
fn max_inline_calls(config: &Config) -> usize {
    config.fuse.threads.saturating_sub(RESERVED_SESSION_THREADS)
}

/// The limits of each of `replicas` replicas.
pub(super) fn pool_limits(config: &Config, replicas: usize) -> PoolLimits {
    // With several replicas, no single one may occupy all session threads.
    let all = max_inline_calls(config);
    let max_inline_calls = if replicas > 1 { all.div_ceil(2) } else { all };
    PoolLimits {
        threads: config.read.threads_per_replica,
        queue: POOL_QUEUE_DEPTH,
        max_inline_calls,
    }
}

/// The replicas over `backends`, with their threads.
pub(super) fn start_replicas(
    config: &Config,
    backends: &ReplicaMap<Arc<dyn Backend>>,
    limits: PoolLimits,
) -> Arc<Replicas> {
    let replicas = backends.map(|id, backend| {
        let name = config.replicas[id.index()].name.clone();
        let counters = Arc::new(ReplicaCounters::default());
        let replica = Replica::new(id, name, Arc::clone(backend), limits, counters);
        let is_written = config.volume.access == Access::ReadWrite && id == config.write.replica;
        Arc::new(if is_written { replica.as_write_replica() } else { replica })
    });
    Replicas::new(replicas, max_inline_calls(config))
}

/// The most reads in flight at a replica where they hold no threads. Small ones reach it: for large
/// ones, `max_in_flight` is less.
const MAX_THREADLESS_READS: usize = 256;

/// The scheduler's limits for a replica.
pub(super) fn replica_policy(config: &Config, host: &Replica, limits: PoolLimits) -> ReplicaPolicy {
    let replica = &config.replicas[host.id.index()];
    let max_in_flight = replica.max_in_flight.unwrap_or(u64::MAX).min(config.read.max_in_flight);
    ReplicaPolicy {
        weight: replica.weight,
        max_in_flight,
        max_reads: match host.reads_without_threads() {
            true => MAX_THREADLESS_READS,
            false => limits.max_readers() + limits.max_inline_calls,
        },
        max_rate: replica.max_rate,
    }
}

fn read_deadlines(config: &Config) -> Deadlines {
    Deadlines::new(config.read.deadline, config.read.deadline_all)
}

/// The policy for reads, into `pipes` if there are any.
pub(super) fn read_policy(config: &Config, pipes: SegmentPipes) -> ReadPolicy {
    ReadPolicy {
        segment: config.read.segment_size,
        readahead_max: config.read.readahead_max,
        budget: config.memory.budget,
        deadlines: read_deadlines(config),
        attempt_deadline: config.read.attempt_deadline,
        compare_share: match config.volume.mode {
            VolumeMode::Shared => Share(0.0),
            VolumeMode::Copies => config.read.compare,
        },
        pipes,
    }
}

/// The policy of the file system.
pub(super) fn fs_policy(config: &Config) -> FsPolicy {
    let immutable = config.volume.immutable;
    FsPolicy {
        mode: config.volume.mode,
        deadlines: read_deadlines(config),
        attempt_deadline: config.read.attempt_deadline,
        attribute_ttl: if immutable { IMMUTABLE_TTL } else { config.fuse.attribute_ttl },
        missing_name_ttl: match config.volume.access {
            _ if immutable => MISSING_NAME_TTL,
            Access::ReadOnly => config.fuse.attribute_ttl,
            Access::ReadWrite => config.fuse.attribute_ttl.min(MAX_MISSING_NAME_TTL),
        },
        immutable,
        cache_mode: CacheModePolicy {
            cache: config.read.cache,
            memory: system_memory::memory_limit(),
        },
        passthrough: config.read.passthrough == Passthrough::WholeFile,
        write: (config.volume.access == Access::ReadWrite).then_some(WritePolicy {
            replica: config.write.replica,
            deadlines: Deadlines::new(config.write.deadline, config.read.deadline_all),
            lag: config.write.lag,
        }),
        lock_replica: (config.write.locks == LockMode::Forward).then_some(config.write.replica),
    }
}

/// Whether the kernel may read files without opening them: an open would decide nothing. Data never
/// changes, all of it goes through the kernel's page cache, no replica keeps locks, and every caller
/// has the daemon's own rights, so no server need be asked for a caller's.
pub(super) fn can_omit_opens(config: &Config, allow_other: bool) -> bool {
    config.volume.immutable
        && config.volume.mode == VolumeMode::Shared
        && config.read.cache == CachePolicy::Kernel
        && config.read.passthrough == Passthrough::Off
        && config.write.locks == LockMode::Local
        && !(allow_other && rustix::process::geteuid().is_root())
}

/// The mount's options; replies wait in `pipes` if there are any.
pub(super) fn mount_options(
    config: &Config,
    overrides: &MountOverrides,
    pipes: Option<PipePool>,
) -> MountOptions {
    let source = if overrides.no_control {
        fanfs_mounts::PRIVATE_SOURCE_PREFIX
    } else {
        fanfs_mounts::SOURCE_PREFIX
    };
    let allow_other = config.fuse.allow_other || overrides.allow_other;
    MountOptions {
        name: format!("{source}{}", config.volume.name),
        allow_other,
        suid: overrides.suid,
        dev: overrides.dev,
        exec: !overrides.noexec,
        read_only: config.volume.access == Access::ReadOnly,
        immutable: config.volume.immutable,
        omits_opens: can_omit_opens(config, allow_other),
        threads: config.fuse.threads,
        max_background: config.fuse.max_background,
        max_request: kernel_tuning::max_request(config),
        pipes,
    }
}
