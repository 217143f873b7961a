//! Turns the settings as written into a [`Config`]: required keys, ranges, defaults, and keys that
//! contradict each other. Pure, except for the number of CPUs.

use super::checks::{check_range, parse_choice, parse_count};
use super::choices::{ACCESSES, Access, CACHES, MODES, PASSTHROUGHS};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::replica::is_label;
use super::units::{Size, Time};
use super::{Config, FuseConfig, MemoryConfig, ReadConfig, VolumeConfig};
use super::{defaults, log, metrics, placement, raw, replica, write};

const MODE_MISSING: &str = "write \"shared\" if all replicas are one file system, \
                            \"copies\" if they are independent trees with the same content";

/// Checks everything that serde cannot check.
pub(super) fn config(
    settings: raw::RawConfig,
    outline: &KeyIndex<'_>,
) -> Result<Config, ConfigError> {
    let min_replicas = settings.volume.min_replicas;
    let mut volume = volume(settings.volume, outline)?;
    let replicas = replica::validate(settings.replica, outline)?;
    let most = replicas.len() as i64;
    volume.min_replicas = parse_count(
        outline,
        "volume.min_replicas",
        min_replicas,
        defaults::MIN_REPLICAS,
        1..=most,
    )?;
    let fuse = fuse(settings.fuse, volume.immutable, outline)?;
    let config = Config {
        source: outline.file().to_path_buf(),
        write: write::validate(settings.write, &volume, &replicas, outline)?,
        volume,
        affinities: placement::affinities(settings.affinity, &replicas, outline)?,
        replicas,
        read: read(settings.read, outline)?,
        memory: MemoryConfig { budget: settings.memory.budget.unwrap_or(defaults::BUDGET).0 },
        fuse,
        metrics: metrics::validate(settings.metrics, outline)?,
        log: log::validate(settings.log, outline)?,
        placement: placement::validate(settings.placement, outline)?,
    };
    check_contradictions(&config, outline)?;
    Ok(config)
}

fn volume(written: raw::Volume, outline: &KeyIndex<'_>) -> Result<VolumeConfig, ConfigError> {
    let name = written
        .name
        .ok_or_else(|| outline.missing("volume.name", "name the volume in [volume]"))?;
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !first || name.len() > 64 || !name.bytes().all(|b| is_label(b) && b != b':') {
        let what = format!(
            "{name:?} is not a name; use 1 to 64 letters, digits, `.`, `_`, `-`, a letter or digit first"
        );
        return Err(outline.refuse("volume.name", what));
    }
    let mode = written.mode.ok_or_else(|| outline.missing("volume.mode", MODE_MISSING))?;
    let mode = parse_choice(outline, "volume.mode", &mode, &MODES)?;
    let access = match written.access.as_deref() {
        None => Access::ReadOnly,
        Some(access) => parse_choice(outline, "volume.access", access, &ACCESSES)?,
    };
    let chunk_size = written.chunk_size.unwrap_or(defaults::CHUNK_SIZE).0;
    // The caller sets it, because its range depends on the number of replicas.
    let min_replicas = defaults::MIN_REPLICAS;
    let immutable = written.immutable.unwrap_or(defaults::IMMUTABLE);
    if immutable && access == Access::ReadWrite {
        let what = "excludes `volume.access` = \"rw\": fanfs itself would change the volume; \
                    remove one of them";
        return Err(outline.refuse("volume.immutable", what));
    }
    Ok(VolumeConfig { name, mode, chunk_size, access, min_replicas, immutable })
}

fn read(written: raw::Read, outline: &KeyIndex<'_>) -> Result<ReadConfig, ConfigError> {
    let segment_size = written.segment_size.unwrap_or(defaults::SEGMENT_SIZE);
    check_range(outline, "read.segment_size", segment_size, defaults::SEGMENT_SIZE_RANGE)?;
    if !segment_size.0.is_power_of_two() {
        let what = format!(
            "{segment_size} is not a power of two; use {} or {}",
            Size(segment_size.0.next_power_of_two() / 2),
            Size(segment_size.0.next_power_of_two())
        );
        return Err(outline.refuse("read.segment_size", what));
    }
    let deadline = written.deadline.unwrap_or(defaults::DEADLINE);
    check_range(outline, "read.deadline", deadline, defaults::DEADLINE_RANGE)?;
    let deadline_all = written.deadline_all.unwrap_or(deadline.max(defaults::DEADLINE_ALL));
    check_range(outline, "read.deadline_all", deadline_all, defaults::DEADLINE_RANGE)?;
    let attempt_deadline = written.attempt_deadline.unwrap_or(defaults::ATTEMPT_DEADLINE);
    if attempt_deadline < defaults::ATTEMPT_DEADLINE_MIN {
        let min = defaults::ATTEMPT_DEADLINE_MIN;
        let what = format!("{attempt_deadline} is too short; use {min} to `read.deadline`");
        return Err(outline.refuse("read.attempt_deadline", what));
    }
    Ok(ReadConfig {
        segment_size: segment_size.0,
        readahead_max: written.readahead_max.unwrap_or(defaults::READAHEAD_MAX).0,
        threads_per_replica: parse_count(
            outline,
            "read.threads_per_replica",
            written.threads_per_replica,
            defaults::THREADS_PER_REPLICA,
            defaults::THREADS_PER_REPLICA_RANGE,
        )?,
        max_in_flight: written.max_in_flight.unwrap_or(defaults::MAX_IN_FLIGHT).0,
        deadline: deadline.0,
        deadline_all: deadline_all.0,
        attempt_deadline: attempt_deadline.0,
        compare: written.compare.unwrap_or(defaults::COMPARE),
        cache: match written.cache.as_deref() {
            None => defaults::CACHE,
            Some(cache) => parse_choice(outline, "read.cache", cache, &CACHES)?,
        },
        passthrough: match written.passthrough.as_deref() {
            None => defaults::PASSTHROUGH,
            Some(which) => parse_choice(outline, "read.passthrough", which, &PASSTHROUGHS)?,
        },
    })
}

fn fuse(
    written: raw::Fuse,
    immutable: bool,
    outline: &KeyIndex<'_>,
) -> Result<FuseConfig, ConfigError> {
    let kernel_readahead = written.kernel_readahead.unwrap_or(defaults::KERNEL_READAHEAD);
    let range = defaults::KERNEL_READAHEAD_RANGE;
    check_range(outline, "fuse.kernel_readahead", kernel_readahead, range)?;
    if immutable && written.attribute_ttl.is_some() {
        let what = "has no effect with `volume.immutable`: the kernel keeps attributes for as long \
                    as it has memory; remove one of them";
        return Err(outline.refuse("fuse.attribute_ttl", what));
    }
    let attribute_ttl = written.attribute_ttl.unwrap_or(defaults::ATTRIBUTE_TTL);
    check_range(outline, "fuse.attribute_ttl", attribute_ttl, defaults::ATTRIBUTE_TTL_RANGE)?;
    Ok(FuseConfig {
        threads: parse_count(
            outline,
            "fuse.threads",
            written.threads,
            defaults::fuse_threads(),
            defaults::FUSE_THREADS_RANGE,
        )?,
        allow_other: written.allow_other.unwrap_or(defaults::ALLOW_OTHER),
        kernel_tuning: written.kernel_tuning.unwrap_or(defaults::KERNEL_TUNING),
        splice: written.splice.unwrap_or(defaults::SPLICE),
        kernel_readahead: kernel_readahead.0,
        max_background: parse_count(
            outline,
            "fuse.max_background",
            written.max_background,
            defaults::MAX_BACKGROUND,
            defaults::MAX_BACKGROUND_RANGE,
        )?,
        attribute_ttl: attribute_ttl.0,
    })
}

/// Refuses keys that are valid alone but not together. Defaults count: the error for a key that
/// contradicts another's default names the other.
fn check_contradictions(config: &Config, outline: &KeyIndex<'_>) -> Result<(), ConfigError> {
    const SEGMENT_SIZE: &str = "read.segment_size";
    const DEADLINE: &str = "read.deadline";
    let Config { volume, replicas, read, memory, .. } = config;
    let segment = Size(read.segment_size);

    let chunk = Size(volume.chunk_size);
    if chunk.0 == 0 || !chunk.0.is_multiple_of(segment.0) {
        let what = format!(
            "is not a positive multiple of `{SEGMENT_SIZE}` ({segment}); change one of them"
        );
        return Err(outline.conflict("volume.chunk_size", chunk, SEGMENT_SIZE, &what));
    }
    let below_segment =
        format!("is less than `{SEGMENT_SIZE}` ({segment}); use at least {segment}");
    let readahead = Size(read.readahead_max);
    if readahead.0 != 0 && readahead < segment {
        let what = format!("{below_segment}, or write \"0B\" to turn readahead off");
        return Err(outline.conflict("read.readahead_max", readahead, SEGMENT_SIZE, &what));
    }
    let shared = ("read.max_in_flight".to_owned(), Some(read.max_in_flight));
    let own = (1..).zip(replicas).map(|(number, replica)| {
        (format!("replica[{number}].max_in_flight"), replica.max_in_flight)
    });
    for (key, limit) in std::iter::once(shared).chain(own) {
        if let Some(limit) = limit.map(Size)
            && limit < segment
        {
            return Err(outline.conflict(&key, limit, SEGMENT_SIZE, &below_segment));
        }
    }
    let deadline = Time(read.deadline);
    let attempt = Time(read.attempt_deadline);
    if attempt > deadline {
        let what = format!("is longer than `{DEADLINE}` ({deadline}); change one of them");
        return Err(outline.conflict("read.attempt_deadline", attempt, DEADLINE, &what));
    }
    let all = Time(read.deadline_all);
    if all < deadline {
        let what = format!(
            "is shorter than `{DEADLINE}` ({deadline}); use {deadline} to {}",
            defaults::DEADLINE_RANGE.end()
        );
        return Err(outline.conflict("read.deadline_all", all, DEADLINE, &what));
    }
    let segments = defaults::BUDGET_MIN_SEGMENTS;
    let budget = Size(memory.budget);
    let least = Size(segment.0 * segments);
    if budget < least {
        let what = format!(
            "is less than {segments} times `{SEGMENT_SIZE}` ({segment}); use at least {least}"
        );
        return Err(outline.conflict("memory.budget", budget, SEGMENT_SIZE, &what));
    }
    replica::check_exports(config, outline)?;
    write::check_contradictions(volume, read.passthrough, outline)
}
