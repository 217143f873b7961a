//! `[write]`: who carries out changes, and what the others may still show.

use std::time::Duration;

use super::checks::{check_range, parse_choice};
use super::choices::{Access, LOCKS, LockMode, Passthrough};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::{ReplicaConfig, VolumeConfig, defaults, raw};
use crate::volume::{ReplicaId, VolumeMode};

/// How changes and locks are carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteConfig {
    /// The replica that carries out every change, and holds the locks.
    pub replica: ReplicaId,
    /// By when a change ends, in success or an error.
    pub deadline: Duration,
    /// How long other replicas may show names and attributes from before a change.
    pub lag: Duration,
    /// Who keeps the locks.
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
                let what = format!("{name:?} is no replica's name; there are {}", names.join(", "));
                outline.refuse("write.replica", what)
            })?
        }
    };
    let locks = match (written.locks.as_deref(), volume.mode) {
        (None, VolumeMode::Shared) => LockMode::Forward,
        (None, VolumeMode::Copies) => LockMode::Local,
        (Some(locks), mode) => {
            let locks = parse_choice(outline, "write.locks", locks, &LOCKS)?;
            if locks == LockMode::Forward && mode == VolumeMode::Copies {
                let what = "\"forward\" needs `volume.mode` = \"shared\": a lock on one of several \
                            copies keeps nobody from another; write \"local\"";
                return Err(outline.refuse("write.locks", what.to_owned()));
            }
            locks
        }
    };
    Ok(WriteConfig { replica: ReplicaId::new(replica), deadline: deadline.0, lag: lag.0, locks })
}

/// What a volume that can be written cannot be as well.
pub(super) fn check_contradictions(
    volume: &VolumeConfig,
    passthrough: Passthrough,
    outline: &KeyIndex<'_>,
) -> Result<(), ConfigError> {
    if volume.access == Access::ReadOnly {
        return Ok(());
    }
    if volume.mode == VolumeMode::Copies {
        let what = "\"rw\" needs `volume.mode` = \"shared\": of independent copies one would get a \
                    change and the others would not; write \"ro\"";
        return Err(outline.refuse("volume.access", what.to_owned()));
    }
    if passthrough == Passthrough::WholeFile {
        let what = "\"rw\" and `read.passthrough` = \"whole-file\" exclude each other: the kernel \
                    would read one replica while another one is written; change one";
        return Err(outline.refuse("volume.access", what.to_owned()));
    }
    Ok(())
}
