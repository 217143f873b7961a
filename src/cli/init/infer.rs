//! Guesses what a volume over some directories is, from a survey of them. A pure function.
//!
//! The most important guess is the mode. On local file systems, the device numbers decide. On
//! network file systems, the server's inode numbers and change times do. Two gateways of one file
//! system show the same numbers for the root and for every name in it. Two independent trees
//! agree at most in the root's number, by accident (the root of every ext4 is inode 2).
//!
//! *Invariant:* if nothing decides the mode, it is `shared`. fanfs then also compares files by
//! inode number and change time. So it never mixes the bytes of two versions; it leaves out an
//! independent copy instead.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;

use crate::survey::{Observation, RootInfo, RootListing, Survey};
use crate::volume::VolumeMode;

/// The guessed volume.
#[derive(Debug, Serialize)]
pub(super) struct InferredVolume {
    /// Its name.
    pub(super) volume: String,
    /// How the replicas relate.
    pub(super) mode: VolumeMode,
    /// How certain the mode is.
    pub(super) certainty: Certainty,
    /// The evidence for the mode: sentences without a final period.
    pub(super) reasons: Vec<String>,
    /// One for each directory, in the same order.
    pub(super) replicas: Vec<InferredReplica>,
    /// The cluster that the mounts belong to, if they show it.
    pub(super) cluster: Option<KnownCluster>,
    /// The warnings that `fanfs check` will print.
    pub(super) warnings: Vec<String>,
}

/// How certain the mode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Certainty {
    /// The survey shows it.
    Seen,
    /// The survey does not show it; the safe mode was chosen.
    Unknown,
    /// The user chose it.
    Given,
}

/// One replica.
#[derive(Debug, Serialize)]
pub(super) struct InferredReplica {
    /// Its name.
    pub(super) name: String,
    /// The node, if the mount's source names one.
    pub(super) node: Option<String>,
    /// The path or address to write into the file.
    pub(super) path: String,
    /// Whether it is the address of an export.
    pub(super) is_export: bool,
    /// The file system's type.
    pub(super) fs_type: Option<String>,
    /// The device, or `SERVER:/path`.
    pub(super) source: Option<String>,
}

/// A cluster that fanfs recognizes by its mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct KnownCluster {
    /// Its name, for users.
    pub(super) name: &'static str,
    /// Its default chunk size, if it has one.
    pub(super) chunk_size: Option<&'static str>,
    /// The placement provider for it.
    pub(super) provider: &'static str,
}

/// How two directories relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TreeRelation {
    Same,
    Unknown,
    Different,
}

/// How two directories relate, and the evidence.
struct TreeComparison {
    relation: TreeRelation,
    reason: String,
}

impl TreeComparison {
    fn same(reason: impl Into<String>) -> Self {
        Self { relation: TreeRelation::Same, reason: reason.into() }
    }

    fn unknown(reason: impl Into<String>) -> Self {
        Self { relation: TreeRelation::Unknown, reason: reason.into() }
    }

    fn different(reason: impl Into<String>) -> Self {
        Self { relation: TreeRelation::Different, reason: reason.into() }
    }
}

/// The fsid that an NFS server reports for a file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NfsFsid {
    /// The mount's device number, major and minor.
    dev: (u32, u32),
    fsid: String,
}

/// The guessed mode and its evidence.
struct InferredMode {
    mode: VolumeMode,
    certainty: Certainty,
    reasons: Vec<String>,
}

/// The output of `--json`.
#[derive(Serialize)]
pub(super) struct InitReport<'a> {
    #[serde(flatten)]
    guess: &'a InferredVolume,
    /// The file's text.
    file: String,
}

impl InferredVolume {
    /// Sets the mode that the user chose, whatever the survey shows.
    pub(super) fn override_mode(&mut self, mode: VolumeMode) {
        if mode != self.mode || self.certainty == Certainty::Unknown {
            self.certainty = Certainty::Given;
        }
        self.mode = mode;
    }

    pub(super) fn report(&self, file: String) -> InitReport<'_> {
        InitReport { guess: self, file }
    }
}

/// Guesses everything except the volume's name.
pub(super) fn infer_volume(survey: &Survey, fsids: &[NfsFsid]) -> InferredVolume {
    let sights: Vec<&Observation> = survey.replicas.iter().map(|(_, sight)| sight).collect();
    let InferredMode { mode, certainty, reasons } = infer_mode(&sights, fsids);
    InferredVolume {
        volume: String::new(),
        mode,
        certainty,
        reasons,
        replicas: infer_replicas(&sights),
        cluster: common_value(sights.iter().map(|sight| detect_cluster(sight))).flatten(),
        warnings: Vec::new(),
    }
}

fn infer_mode(sights: &[&Observation], fsids: &[NfsFsid]) -> InferredMode {
    let mode = |mode, certainty, reasons| InferredMode { mode, certainty, reasons };
    let Some((first, others)) = sights.split_first() else {
        return mode(VolumeMode::Shared, Certainty::Unknown, Vec::new());
    };
    let mut reasons = Vec::new();
    let mut worst = None;
    for other in others {
        let TreeComparison { relation, reason } = compare_trees(first, other, fsids);
        worst = worst.max(Some(relation));
        let a = &first.spec.location;
        let b = &other.spec.location;
        reasons.push(format!("{a} and {b}: {reason}"));
    }
    match worst {
        None => {
            reasons.push("there is only one replica".to_owned());
            mode(VolumeMode::Shared, Certainty::Seen, reasons)
        }
        Some(TreeRelation::Same) => mode(VolumeMode::Shared, Certainty::Seen, reasons),
        Some(TreeRelation::Unknown) => mode(VolumeMode::Shared, Certainty::Unknown, reasons),
        Some(TreeRelation::Different) => mode(VolumeMode::Copies, Certainty::Seen, reasons),
    }
}

fn compare_trees(a: &Observation, b: &Observation, fsids: &[NfsFsid]) -> TreeComparison {
    let (Some(one), Some(other)) = (a.directory(), b.directory()) else {
        return TreeComparison::unknown("one of them could not be probed");
    };
    let is_local =
        |sight: &Observation| sight.mount.as_ref().is_some_and(|mount| !mount.is_network());
    match (is_local(a), is_local(b)) {
        (true, true) => compare_local(one, other),
        (false, false) => compare_network(one, other, fsids),
        _ => TreeComparison::different("only one of them is on a network file system"),
    }
}

fn compare_local(one: &RootInfo, other: &RootInfo) -> TreeComparison {
    let device = format_device(one.dev);
    if one.dev != other.dev {
        let other = format_device(other.dev);
        return TreeComparison::different(format!(
            "two local file systems, devices {device} and {other}"
        ));
    }
    match one.ino == other.ino {
        true => TreeComparison::same(format!("one directory of one file system, device {device}")),
        false => TreeComparison::different(format!(
            "two directories of one file system, device {device}"
        )),
    }
}

fn format_device(dev: (u32, u32)) -> String {
    format!("{}:{}", dev.0, dev.1)
}

fn compare_network(one: &RootInfo, other: &RootInfo, fsids: &[NfsFsid]) -> TreeComparison {
    if one.ino != other.ino {
        return TreeComparison::different(format!("root inodes {} and {}", one.ino, other.ino));
    }
    let fsid = |dev| fsids.iter().find(|known| known.dev == dev).map(|known| known.fsid.as_str());
    let fsids = fsid(one.dev).zip(fsid(other.dev));
    let same_time = one.ctime == other.ctime;
    let listings = one.listing.as_ref().zip(other.listing.as_ref());
    let names = listings.map(|(a, b)| CommonNames::of(a, b));
    let root = format!("root inode {} in both", one.ino);
    match (names, same_time) {
        (Some(CommonNames { same_inode: 0, all }), _) if all > 0 => TreeComparison::different(
            format!("{root}, but the names in it have different inode numbers"),
        ),
        (Some(names), true) if names.same_inode == names.all => {
            let names = match names.all {
                0 => String::new(),
                n => format!(", and the same inode number for each of the {n} names in it"),
            };
            let seen = format!("{root}, changed at the same time{names}");
            match fsids {
                // Either these are clones, or gateways with fsids of their own.
                Some((a, b)) if a != b => TreeComparison::unknown(format!(
                    "{seen}; but the servers report the fsids {a} and {b}"
                )),
                Some((fsid, _)) => TreeComparison::same(format!("{seen}; fsid {fsid}")),
                None => TreeComparison::same(seen),
            }
        }
        (names, same_time) => {
            let time = if same_time { "the same" } else { "different" };
            let names = match names {
                Some(CommonNames { same_inode, all }) => {
                    format!("; {same_inode} of {all} names have the same inode number")
                }
                None => String::new(),
            };
            TreeComparison::unknown(format!("{root}, {time} change times{names}"))
        }
    }
}

/// How many names two roots have in common.
#[derive(Default)]
struct CommonNames {
    all: usize,
    /// The number of these with the same inode number in both.
    same_inode: usize,
}

impl CommonNames {
    fn of(one: &RootListing, other: &RootListing) -> Self {
        let mut names = Self::default();
        for (name, entry) in &one.entries {
            if let Some(twin) = other.entries.get(name) {
                names.all += 1;
                names.same_inode += usize::from(entry.ino == twin.ino);
            }
        }
        names
    }
}

/// The columns of `/proc/fs/nfsfs/volumes` (`nfs_volume_list_show` in fs/nfs/client.c): `NV
/// SERVER PORT DEV FSID FSC`. 0:0 means that the server reports no fsid.
pub(super) fn parse_nfs_fsids(volumes: &str) -> Vec<NfsFsid> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (major, minor) = words.next()?.split_once(':')?;
        let fsid = words.next().filter(|fsid| *fsid != "0:0")?;
        let dev = (major.parse().ok()?, minor.parse().ok()?);
        Some(NfsFsid { dev, fsid: fsid.to_owned() })
    };
    volumes.lines().skip(1).filter_map(line).collect()
}

fn infer_replicas(sights: &[&Observation]) -> Vec<InferredReplica> {
    let hosts: Vec<Option<String>> = sights.iter().map(|sight| source_host(sight)).collect();
    let last = |sight: &Observation, up: usize| {
        let path = sight.spec.location.directory()?;
        let part = path.ancestors().nth(up)?.file_name()?;
        sanitize_name(&part.to_string_lossy())
    };
    // The path component that differs: the last one, or the one above it.
    let differing = (0..2).find(|up| {
        let mut parts: Vec<_> = sights.iter().map(|sight| last(sight, *up)).collect();
        parts.sort();
        parts.windows(2).all(|two| two[0] != two[1]) && parts.iter().all(Option::is_some)
    });
    let mut names: Vec<String> = Vec::new();
    for (index, (sight, host)) in sights.iter().zip(&hosts).enumerate() {
        let by_path = differing.and_then(|up| last(sight, up));
        let base = host.clone().or(by_path).unwrap_or_else(|| format!("r{}", index + 1));
        let numbered = (2..).map(|n| format!("{base}-{n}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|n| !names.contains(n));
        names.push(name.unwrap_or(base));
    }
    let replica =
        |((sight, node), name): ((&&Observation, Option<String>), String)| InferredReplica {
            name,
            node,
            path: sight.spec.location.to_string(),
            is_export: sight.spec.location.export().is_some(),
            fs_type: sight.mount.as_ref().map(|mount| mount.fs_type.clone()),
            source: sight.mount.as_ref().map(|mount| mount.source.to_string_lossy().into_owned()),
        };
    sights.iter().zip(hosts).zip(names).map(replica).collect()
}

/// The host in a mount's source or an export's address, as the name of a node.
fn source_host(sight: &Observation) -> Option<String> {
    if let Some(export) = sight.spec.location.export() {
        return sanitize_name(&export.address.server);
    }
    let mount = sight.mount.as_ref()?;
    let source = mount.source.to_str()?;
    match (&sight.nfs, mount.fs_type.as_str()) {
        (Some(nfs), _) => sanitize_name(&nfs.server),
        (None, "cifs" | "smb3") => sanitize_name(source.strip_prefix("//")?.split('/').next()?),
        (None, "fuse.sshfs") => sanitize_name(source.split_once(':')?.0.rsplit('@').next()?),
        _ => None,
    }
}

/// `text` with the characters that a name must not contain replaced by `-`.
fn sanitize_name(text: &str) -> Option<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    let name: String = text.chars().take(200).map(|c| if fine(c) { c } else { '-' }).collect();
    Some(name).filter(|name| name.contains(|c: char| c.is_ascii_alphanumeric()))
}

/// Whether `text` is a valid name of a volume.
pub(super) fn is_valid_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The last component of all exports, or else of all paths, if it is the same for all.
pub(super) fn infer_volume_name(survey: &Survey) -> Option<String> {
    let all = || survey.replicas.iter().map(|(_, sight)| sight);
    let last = |path: &Path| {
        path.file_name()?.to_str().filter(|name| is_valid_name(name)).map(str::to_owned)
    };
    let export = |sight: &Observation| match sight.spec.location.export() {
        Some(export) => last(Path::new(OsStr::from_bytes(&export.address.export))),
        None => last(Path::new(&sight.nfs.as_ref()?.export)),
    };
    // With one replica, the last component of its export or path is the name.
    common_value(all().map(export))
        .or_else(|| common_value(all().map(|sight| last(&sight.spec.location.to_path()))))?
}

/// The first value, if all are equal to it.
fn common_value<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn detect_cluster(sight: &Observation) -> Option<KnownCluster> {
    let mount = sight.mount.as_ref()?;
    let of = |name, chunk_size, provider| Some(KnownCluster { name, chunk_size, provider });
    match mount.fs_type.as_str() {
        "ceph" => return of("CephFS", Some("4MiB"), "cephfs"),
        "lustre" => return of("Lustre", None, "lustre"),
        "beegfs" => return of("BeeGFS", None, "beegfs"),
        "fuse.glusterfs" => return of("GlusterFS", None, "glusterfs"),
        _ => {}
    }
    let is_posix = mount.source.to_string_lossy().starts_with("posix-client");
    let nfs = sight.nfs.as_ref();
    let export = nfs.map(|nfs| Path::new(&nfs.export));
    if is_posix || export.is_some_and(|export| export.starts_with("/mapr")) {
        return of("MapR", Some("256MiB"), "maprfs");
    }
    // HDFS's gateway supports only NFS version 3 without locks, and exports the root by default.
    // The root of an HDFS contains these two directories.
    let listing = sight.directory().and_then(|root| root.listing.as_ref());
    let has = |name: &str| {
        listing.is_some_and(|list| list.entries.contains_key(name.as_ref() as &std::ffi::OsStr))
    };
    let is_hdfs = nfs.is_some_and(|nfs| nfs.version == Some((3, 0)))
        && export == Some(Path::new("/"))
        && mount.option("nolock").is_some()
        && has("user")
        && has("tmp");
    if is_hdfs { of("HDFS", Some("128MiB"), "hdfs") } else { None }
}

#[cfg(test)]
mod tests;
