//! The mount options that a volume needs. Pure.
//!
//! One table serves `fanfs check` and `fanfs doctor`. Each [`OptionRule`] checks one option and
//! returns an [`OptionFault`], which has its [`OptionChange`]. [`remount_command`] combines all
//! changes of one mount into one command, because commands for single options would undo each
//! other.

use std::time::Duration;

use crate::volume::shell_word;

/// nfs(5): the client reads at most this much in one READ, so a larger segment takes several calls
/// with any mount options.
pub const MAX_RSIZE: u64 = 1 << 20;

/// The options of one mount that the rules check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedOptions {
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Most bytes of one READ, if known.
    pub rsize: Option<u64>,
    /// Most bytes of one WRITE, if known.
    pub wsize: Option<u64>,
    /// Whether an unanswered call fails: `soft` or `softerr`.
    pub soft: bool,
    /// How long an unanswered call takes to fail, if known.
    pub fails_after: Option<Duration>,
    /// Whether the client sends every write at once.
    pub sync: bool,
    /// How long the client caches attributes at most; zero if it does not cache them. `None` for
    /// file systems other than NFS.
    pub attribute_cache_max: Option<Duration>,
}

/// How a volume uses the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountUse {
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// How long a read may make no progress.
    pub deadline: Duration,
    /// Whether the volume is writable.
    pub is_volume_writable: bool,
    /// Whether this mount is the write replica.
    pub is_write_replica: bool,
    /// How long the other replicas may show the state before a change.
    pub lag: Duration,
}

/// An option that does not suit the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionFault {
    /// A read-only mount in a writable volume.
    ReadOnly,
    /// A segment takes `calls` READs of `size` bytes; each could have `best` bytes.
    Rsize { size: u64, best: u64, calls: u64 },
    /// The same for WRITEs, on the write replica.
    Wsize { size: u64, best: u64, calls: u64 },
    /// Calls can fail: on the write replica, which then loses written data, or before the volume's
    /// deadline.
    Soft { is_write_replica: bool, is_before_deadline: bool },
    /// Each write waits for the server's disk.
    Sync,
    /// The client does not cache attributes.
    AttributesUncached,
    /// The client caches attributes for this long, which is more than the lag.
    AttributesBeyondLag(Duration),
}

/// A change of a mount's options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionChange {
    /// Keys to remove.
    pub removed: &'static [&'static str],
    /// Options to add; they replace options with the same keys.
    pub added: Vec<String>,
}

type OptionRule = fn(&CheckedOptions, &MountUse) -> Option<OptionFault>;

const RULES: &[OptionRule] = &[
    |have, want| (want.is_volume_writable && have.read_only).then_some(OptionFault::ReadOnly),
    |have, want| {
        let early = have.fails_after.is_some_and(|after| after < want.deadline);
        have.soft.then_some(OptionFault::Soft {
            is_write_replica: want.is_write_replica,
            is_before_deadline: early,
        })
    },
    |have, want| {
        let (size, best, calls) = excess_calls(have.rsize?, want.segment_size)?;
        Some(OptionFault::Rsize { size, best, calls })
    },
    |have, want| {
        let (size, best, calls) =
            excess_calls(have.wsize.filter(|_| want.is_write_replica)?, want.segment_size)?;
        Some(OptionFault::Wsize { size, best, calls })
    },
    // `noac` implies `sync`, and has its own fault.
    |have, want| {
        let is_cached = have.attribute_cache_max.is_some_and(|longest| !longest.is_zero());
        (have.sync && want.is_write_replica && is_cached).then_some(OptionFault::Sync)
    },
    |have, _| have.attribute_cache_max?.is_zero().then_some(OptionFault::AttributesUncached),
    // The write replica made the change, so its cache is current.
    |have, want| {
        let longest = have.attribute_cache_max.filter(|longest| *longest > want.lag)?;
        (want.is_volume_writable && !want.is_write_replica)
            .then_some(OptionFault::AttributesBeyondLag(longest))
    },
];

/// Size, best size, and calls per segment, if a segment takes more calls than necessary.
fn excess_calls(size: u64, segment: u64) -> Option<(u64, u64, u64)> {
    let best = segment.min(MAX_RSIZE);
    (1..best).contains(&size).then(|| (size, best, best.div_ceil(size)))
}

/// All options that do not suit the volume.
pub fn find_faults(have: &CheckedOptions, want: &MountUse) -> Vec<OptionFault> {
    RULES.iter().filter_map(|rule| rule(have, want)).collect()
}

impl OptionFault {
    /// The fix.
    pub fn fix(&self) -> OptionChange {
        const TIMES: &[&str] =
            &["noac", "sync", "actimeo", "acregmin", "acregmax", "acdirmin", "acdirmax"];
        let (without, with): (&[_], _) = match self {
            Self::ReadOnly => (&["ro"], vec!["rw".to_owned()]),
            Self::Rsize { best, .. } => (&[], vec![format!("rsize={best}")]),
            Self::Wsize { best, .. } => (&[], vec![format!("wsize={best}")]),
            Self::Soft { .. } => {
                (&["soft", "softerr", "timeo", "retrans"], vec!["hard".to_owned()])
            }
            Self::Sync => (&["sync"], vec!["async".to_owned()]),
            Self::AttributesUncached | Self::AttributesBeyondLag(_) => (TIMES, Vec::new()),
        };
        OptionChange { removed: without, added: with }
    }
}

/// The command that unmounts an NFS file system and mounts it with these changes of its options. A
/// remount cannot change most of them.
pub fn remount_command(
    point: &str,
    source: &str,
    options: &[String],
    changes: &[OptionChange],
) -> String {
    let key = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
    for change in changes {
        all.retain(|option| !change.removed.contains(&key(option).as_str()));
        for with in &change.added {
            all.retain(|option| key(option) != key(with));
            all.push(with);
        }
    }
    let point = shell_word(point);
    let source = shell_word(source);
    format!("umount {point} && mount -t nfs -o {} {source} {point}", shell_word(&all.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    fn want() -> MountUse {
        MountUse {
            segment_size: 1 << 20,
            deadline: SECONDS(30),
            is_volume_writable: true,
            is_write_replica: false,
            lag: SECONDS(65),
        }
    }

    fn good() -> CheckedOptions {
        CheckedOptions {
            rsize: Some(1 << 20),
            wsize: Some(1 << 20),
            attribute_cache_max: Some(SECONDS(60)),
            ..CheckedOptions::default()
        }
    }

    #[test]
    fn each_bad_mount_option_is_reported() {
        for is_writer in [false, true] {
            assert_eq!(
                find_faults(&good(), &MountUse { is_write_replica: is_writer, ..want() }),
                []
            );
        }
        let writer = MountUse { is_write_replica: true, ..want() };
        let reads = MountUse { is_volume_writable: false, ..want() };
        let size = (4096, 1 << 20, 256);
        let (size, best, calls) = size;
        let soft = CheckedOptions { soft: true, fails_after: Some(SECONDS(9)), ..good() };
        let sync = CheckedOptions { sync: true, ..good() };
        let noac = CheckedOptions { attribute_cache_max: Some(Duration::ZERO), ..sync };
        let old = CheckedOptions { attribute_cache_max: Some(SECONDS(600)), ..good() };
        for (have, want, found) in [
            (CheckedOptions { read_only: true, ..good() }, want(), vec![OptionFault::ReadOnly]),
            (CheckedOptions { read_only: true, ..good() }, writer, vec![OptionFault::ReadOnly]),
            (CheckedOptions { read_only: true, ..good() }, reads, vec![]),
            (
                CheckedOptions { rsize: Some(4096), ..good() },
                reads,
                vec![OptionFault::Rsize { size, best, calls }],
            ),
            (CheckedOptions { wsize: Some(4096), ..good() }, want(), vec![]),
            (
                CheckedOptions { wsize: Some(4096), ..good() },
                writer,
                vec![OptionFault::Wsize { size, best, calls }],
            ),
            (
                soft,
                want(),
                vec![OptionFault::Soft { is_write_replica: false, is_before_deadline: true }],
            ),
            (
                soft,
                writer,
                vec![OptionFault::Soft { is_write_replica: true, is_before_deadline: true }],
            ),
            (
                CheckedOptions { fails_after: None, ..soft },
                reads,
                vec![OptionFault::Soft { is_write_replica: false, is_before_deadline: false }],
            ),
            (sync, want(), vec![]),
            (sync, writer, vec![OptionFault::Sync]),
            (noac, writer, vec![OptionFault::AttributesUncached]),
            (old, want(), vec![OptionFault::AttributesBeyondLag(SECONDS(600))]),
            (old, writer, vec![]),
            (old, reads, vec![]),
        ] {
            assert_eq!(find_faults(&have, &want), found, "{have:?}, {want:?}");
        }
    }

    #[test]
    fn one_command_fixes_all_options_of_a_mount() {
        let all = CheckedOptions {
            read_only: true,
            rsize: Some(4096),
            wsize: Some(4096),
            soft: true,
            fails_after: Some(SECONDS(1)),
            sync: true,
            attribute_cache_max: Some(SECONDS(600)),
        };
        let line = |want: &MountUse| {
            let options = "ro,nosuid,vers=4.2,rsize=4096,wsize=4096,soft,timeo=10,retrans=1,sync,\
                           acregmin=600,acregmax=600,acdirmin=600,acdirmax=600,sec=sys";
            let options: Vec<String> = options.split(',').map(str::to_owned).collect();
            let changes: Vec<OptionChange> =
                find_faults(&all, want).iter().map(OptionFault::fix).collect();
            remount_command("/mnt/a b", "s:/", &options, &changes)
        };
        assert_eq!(
            line(&want()),
            "umount '/mnt/a b' && mount -t nfs -o \
             nosuid,vers=4.2,wsize=4096,sec=sys,rw,hard,rsize=1048576 s:/ '/mnt/a b'"
        );
        let writer = line(&MountUse { is_write_replica: true, ..want() });
        assert!(writer.contains(",rw,hard,rsize=1048576,wsize=1048576,async s:/ "), "{writer}");
    }
}
