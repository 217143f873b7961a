//! What a volume wants of the options of its mounts. Pure.
//!
//! One table for `fanfs check` and `fanfs doctor`: each [`Rule`] looks at one option, finds a
//! [`Fault`], and the fault knows its [`Change`]. [`command`] puts all changes of one mount
//! into one line that mounts it again, because lines for single options would undo each other.

use std::time::Duration;

use super::super::name::shell_word;

/// nfs(5): the client asks for at most this much in one READ, so a larger segment takes
/// several calls however the replica is mounted.
pub const LARGEST_RSIZE: u64 = 1 << 20;

/// The options of one mount that the rules look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Nothing can be written through it.
    pub read_only: bool,
    /// Most bytes of one READ, where that is known.
    pub rsize: Option<u64>,
    /// Most bytes of one WRITE, where that is known.
    pub wsize: Option<u64>,
    /// A call that is not answered fails: `soft` or `softerr`.
    pub soft: bool,
    /// After how long it fails, where that is known.
    pub fails_after: Option<Duration>,
    /// Each write is sent at once.
    pub sync: bool,
    /// How long attributes are believed at most; zero where they are not cached. `None` for
    /// other file systems than NFS.
    pub attributes: Option<Duration>,
}

/// What a volume does with the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The unit of dispatch, bytes.
    pub segment_size: u64,
    /// By when a read ends.
    pub deadline: Duration,
    /// Whether the volume is written.
    pub writes: bool,
    /// Whether it is written through this mount.
    pub is_writer: bool,
    /// How long other replicas may show the state before a change.
    pub lag: Duration,
}

/// An option that is not as the volume wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A volume that is written has a mount that cannot be.
    ReadOnly,
    /// A segment takes `calls` READs of `size` bytes, where they could have `best`.
    Rsize { size: u64, best: u64, calls: u64 },
    /// The same of WRITEs, on the write replica.
    Wsize { size: u64, best: u64, calls: u64 },
    /// Calls fail: on the write replica, which loses what is written, or `early`, before the
    /// volume's deadline.
    Soft { writer: bool, early: bool },
    /// Each write waits for the server's disk.
    Sync,
    /// Attributes are not cached.
    Uncached,
    /// Attributes are believed for so long, longer than the lag.
    BeyondLag(Duration),
}

/// How the options of a mount change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Keys that go.
    pub without: &'static [&'static str],
    /// Options that come, in the place of those with the same keys.
    pub with: Vec<String>,
}

type Rule = fn(&Options, &Use) -> Option<Fault>;

const RULES: &[Rule] = &[
    |have, want| (want.writes && have.read_only).then_some(Fault::ReadOnly),
    |have, want| {
        let early = have.fails_after.is_some_and(|after| after < want.deadline);
        have.soft.then_some(Fault::Soft { writer: want.is_writer, early })
    },
    |have, want| {
        let (size, best, calls) = calls(have.rsize?, want.segment_size)?;
        Some(Fault::Rsize { size, best, calls })
    },
    |have, want| {
        let (size, best, calls) = calls(have.wsize.filter(|_| want.is_writer)?, want.segment_size)?;
        Some(Fault::Wsize { size, best, calls })
    },
    // `noac` brings it along, and has a fault of its own.
    |have, want| {
        let is_cached = have.attributes.is_some_and(|longest| !longest.is_zero());
        (have.sync && want.is_writer && is_cached).then_some(Fault::Sync)
    },
    |have, _| have.attributes?.is_zero().then_some(Fault::Uncached),
    // The write replica made the change, so its cache is right.
    |have, want| {
        let longest = have.attributes.filter(|longest| *longest > want.lag)?;
        (want.writes && !want.is_writer).then_some(Fault::BeyondLag(longest))
    },
];

/// Size, best size, and calls of a segment, if it takes more than it has to.
fn calls(size: u64, segment: u64) -> Option<(u64, u64, u64)> {
    let best = segment.min(LARGEST_RSIZE);
    (1..best).contains(&size).then(|| (size, best, best.div_ceil(size)))
}

/// Everything that is not as the volume wants it.
pub fn faults(have: &Options, want: &Use) -> Vec<Fault> {
    RULES.iter().filter_map(|rule| rule(have, want)).collect()
}

impl Fault {
    /// The fix.
    pub fn change(&self) -> Change {
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
            Self::Uncached | Self::BeyondLag(_) => (TIMES, Vec::new()),
        };
        Change { without, with }
    }
}

/// The commands that mount an NFS file system again, with these changes of its options. The
/// kernel takes most of them by no remount.
pub fn command(point: &str, source: &str, options: &[String], changes: &[Change]) -> String {
    let key = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
    for change in changes {
        all.retain(|option| !change.without.contains(&key(option).as_str()));
        for with in &change.with {
            all.retain(|option| key(option) != key(with));
            all.push(with);
        }
    }
    let (point, source) = (shell_word(point), shell_word(source));
    format!("umount {point} && mount -t nfs -o {} {source} {point}", shell_word(&all.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    fn want() -> Use {
        Use {
            segment_size: 1 << 20,
            deadline: SECONDS(30),
            writes: true,
            is_writer: false,
            lag: SECONDS(65),
        }
    }

    fn good() -> Options {
        Options {
            rsize: Some(1 << 20),
            wsize: Some(1 << 20),
            attributes: Some(SECONDS(60)),
            ..Options::default()
        }
    }

    #[test]
    fn each_option_has_its_fault_and_a_good_mount_none() {
        for is_writer in [false, true] {
            assert_eq!(faults(&good(), &Use { is_writer, ..want() }), []);
        }
        let writer = Use { is_writer: true, ..want() };
        let reads = Use { writes: false, ..want() };
        let size = (4096, 1 << 20, 256);
        let (size, best, calls) = size;
        let soft = Options { soft: true, fails_after: Some(SECONDS(9)), ..good() };
        let sync = Options { sync: true, ..good() };
        let noac = Options { attributes: Some(Duration::ZERO), ..sync };
        let old = Options { attributes: Some(SECONDS(600)), ..good() };
        for (have, want, found) in [
            (Options { read_only: true, ..good() }, want(), vec![Fault::ReadOnly]),
            (Options { read_only: true, ..good() }, writer, vec![Fault::ReadOnly]),
            (Options { read_only: true, ..good() }, reads, vec![]),
            (
                Options { rsize: Some(4096), ..good() },
                reads,
                vec![Fault::Rsize { size, best, calls }],
            ),
            (Options { wsize: Some(4096), ..good() }, want(), vec![]),
            (
                Options { wsize: Some(4096), ..good() },
                writer,
                vec![Fault::Wsize { size, best, calls }],
            ),
            (soft, want(), vec![Fault::Soft { writer: false, early: true }]),
            (soft, writer, vec![Fault::Soft { writer: true, early: true }]),
            (
                Options { fails_after: None, ..soft },
                reads,
                vec![Fault::Soft { writer: false, early: false }],
            ),
            (sync, want(), vec![]),
            (sync, writer, vec![Fault::Sync]),
            (noac, writer, vec![Fault::Uncached]),
            (old, want(), vec![Fault::BeyondLag(SECONDS(600))]),
            (old, writer, vec![]),
            (old, reads, vec![]),
        ] {
            assert_eq!(faults(&have, &want), found, "{have:?}, {want:?}");
        }
    }

    #[test]
    fn one_command_has_all_changes_of_a_mount() {
        let all = Options {
            read_only: true,
            rsize: Some(4096),
            wsize: Some(4096),
            soft: true,
            fails_after: Some(SECONDS(1)),
            sync: true,
            attributes: Some(SECONDS(600)),
        };
        let line = |want: &Use| {
            let options = "ro,nosuid,vers=4.2,rsize=4096,wsize=4096,soft,timeo=10,retrans=1,sync,\
                           acregmin=600,acregmax=600,acdirmin=600,acdirmax=600,sec=sys";
            let options: Vec<String> = options.split(',').map(str::to_owned).collect();
            let changes: Vec<Change> = faults(&all, want).iter().map(Fault::change).collect();
            command("/mnt/a b", "s:/", &options, &changes)
        };
        assert_eq!(
            line(&want()),
            "umount '/mnt/a b' && mount -t nfs -o \
             nosuid,vers=4.2,wsize=4096,sec=sys,rw,hard,rsize=1048576 s:/ '/mnt/a b'"
        );
        let writer = line(&Use { is_writer: true, ..want() });
        assert!(writer.contains(",rw,hard,rsize=1048576,wsize=1048576,async s:/ "), "{writer}");
    }
}
