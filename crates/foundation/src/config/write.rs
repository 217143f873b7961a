//! `[write]`: which replica makes changes, and how long the others may show the state before them.

use std::time::Duration;

use super::checks::{check_range, parse_choice};
use super::choices::{Access, LOCKS, LockMode, Passthrough};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::{ReplicaConfig, VolumeConfig, defaults, raw};
use crate::volume::{ReplicaId, VolumeMode};

/// How fanfs makes changes and keeps locks.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteConfig {
    /// The replica that makes every change and keeps the locks.
    pub replica: ReplicaId,
    /// How long a change may make no progress before it fails.
    pub deadline: Duration,
    /// How long the other replicas may show names and attributes from before a change.
    pub lag: Duration,
    /// Where locks are kept.
    pub locks: LockMode,
}

/// Checks `[write]` of a volume with these replicas.
pub(super) fn validate(
    written: raw::Write,
    volume: &VolumeConfig,
    replicas: &[ReplicaConfig],
    outline: &KeyIndex<'_>,
) -> Result<WriteConfig, ConfigError> {
    let deadline = written.deadline.unwrap_or(defaults::WRITE_DEADLINE);
    check_range(outline, "write.deadline", deadline, defaults::DEADLINE_RANGE)?;
    let lag = written.lag.unwrap_or(defaults::WRITE_LAG);
    check_range(outline, "write.lag", lag, defaults::WRITE_LAG_RANGE)?;
    let replica = match &written.replica {
        None => 0,
        Some(name) => {
            replicas.iter().position(|replica| replica.name == *name).ok_or_else(|| {
                let names: Vec<_> =
                    replicas.iter().map(|replica| format!("`{}`", replica.name)).collect();
                let what =
                    format!("{name:?} is not the name of a replica; use {}", names.join(" or "));
                outline.refuse("write.replica", what)
            })?
        }
    };
    let is_export = replicas[replica].location.export().is_some();
    let locks = match (written.locks.as_deref(), volume.mode) {
        (None, _) if is_export => LockMode::Local,
        // No writer has to be excluded from data that never changes.
        (None, VolumeMode::Shared) if !volume.immutable => LockMode::Forward,
        (None, _) => LockMode::Local,
        (Some(locks), mode) => {
            let locks = parse_choice(outline, "write.locks", locks, &LOCKS)?;
            if locks == LockMode::Forward && mode == VolumeMode::Copies {
                let what = "\"forward\" needs `volume.mode` = \"shared\": a lock on one copy \
                            does not exclude users of another; use \"local\"";
                return Err(outline.refuse("write.locks", what.to_owned()));
            }
            if locks == LockMode::Forward && is_export {
                let what = "\"forward\" needs a write replica with `path`: fanfs does not lock files \
                            on an `address`; use \"local\"";
                return Err(outline.refuse("write.locks", what.to_owned()));
            }
            locks
        }
    };
    Ok(WriteConfig { replica: ReplicaId::new(replica), deadline: deadline.0, lag: lag.0, locks })
}

/// Refuses a writable volume with settings that exclude writes.
pub(super) fn check_contradictions(
    volume: &VolumeConfig,
    passthrough: Passthrough,
    outline: &KeyIndex<'_>,
) -> Result<(), ConfigError> {
    if volume.access == Access::ReadOnly {
        return Ok(());
    }
    if volume.mode == VolumeMode::Copies {
        let what = "\"rw\" needs `volume.mode` = \"shared\": a change would reach only one of the \
                    copies; use \"ro\"";
        return Err(outline.refuse("volume.access", what.to_owned()));
    }
    if passthrough == Passthrough::WholeFile {
        let what = "\"rw\" and `read.passthrough` = \"whole-file\" exclude each other: the kernel \
                    would read one replica while fanfs writes to another; change one of them";
        return Err(outline.refuse("volume.access", what.to_owned()));
    }
    Ok(())
}
