//! What a volume over some directories probably is, from what was seen of them. Pure.
//!
//! The mode is the guess that matters. Of two directories on local file systems the devices
//! tell. On a network, the server's inode numbers and change times do: two gateways of one
//! file system show the same for the root and for every name in it, two independent trees
//! agree by accident at most in the root's number (the root of every ext4 is inode 2).
//!
//! *Invariant:* where it cannot be told, it is `shared`: files are then compared by inode
//! number and change time as well, so that the bytes of two versions are never mixed, and
//! what would have been a copy is left out instead.

use std::path::Path;

use serde::Serialize;

use crate::survey::{Observation, RootInfo, RootListing, Survey};
use crate::volume::VolumeMode;

/// What the volume probably is.
#[derive(Debug, Serialize)]
pub(super) struct InferredVolume {
    /// Its name.
    pub(super) volume: String,
    /// How the replicas relate.
    pub(super) mode: VolumeMode,
    /// Who says so.
    pub(super) certainty: Certainty,
    /// What was seen that speaks for it; a sentence each, without a full stop.
    pub(super) reasons: Vec<String>,
    /// One for each directory, in their order.
    pub(super) replicas: Vec<InferredReplica>,
    /// The cluster whose mounts these are.
    pub(super) cluster: Option<KnownCluster>,
    /// What `fanfs check` will warn of.
    pub(super) warnings: Vec<String>,
}

/// How sure the mode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Certainty {
    /// By what was seen.
    Seen,
    /// It cannot be told; the safe one.
    Unknown,
    /// The user says so.
    Given,
}

/// One replica.
#[derive(Debug, Serialize)]
pub(super) struct InferredReplica {
    /// Its name.
    pub(super) name: String,
    /// The node, where the mount has one.
    pub(super) node: Option<String>,
    /// As it is to be written.
    pub(super) path: String,
    /// The file system's type.
    pub(super) fs_type: Option<String>,
    /// The device, or `SERVER:/path`.
    pub(super) source: Option<String>,
}

/// A cluster that is known by its mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct KnownCluster {
    /// As people call it.
    pub(super) name: &'static str,
    /// Its chunk size, where it has one by default.
    pub(super) chunk_size: Option<&'static str>,
    /// Who knows where its chunks are.
    pub(super) provider: &'static str,
}

/// How two directories relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TreeRelation {
    Same,
    Unknown,
    Different,
}

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct InitReport<'a> {
    #[serde(flatten)]
    guess: &'a InferredVolume,
    /// The file's text.
    file: String,
}

impl InferredVolume {
    /// Takes `mode` whatever was seen.
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

/// Guesses all but the volume's name. `fsids` are those of NFS mounts, by device number.
pub(super) fn infer_volume(survey: &Survey, fsids: &[((u32, u32), String)]) -> InferredVolume {
    let sights: Vec<&Observation> = survey.replicas.iter().map(|(_, sight)| sight).collect();
    let (mode, certainty, reasons) = infer_mode(&sights, fsids);
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

fn infer_mode(
    sights: &[&Observation],
    fsids: &[((u32, u32), String)],
) -> (VolumeMode, Certainty, Vec<String>) {
    let Some((first, others)) = sights.split_first() else {
        return (VolumeMode::Shared, Certainty::Unknown, Vec::new());
    };
    let mut all = Vec::new();
    for other in others {
        let (kinship, why) = compare_trees(first, other, fsids);
        let (a, b) = (first.spec.path.display(), other.spec.path.display());
        all.push((kinship, format!("{a} and {b}: {why}")));
    }
    let worst = all.iter().map(|(kinship, _)| *kinship).max();
    let (mode, certainty) = match worst {
        None => {
            all.push((TreeRelation::Same, "there is one replica only".to_owned()));
            (VolumeMode::Shared, Certainty::Seen)
        }
        Some(TreeRelation::Same) => (VolumeMode::Shared, Certainty::Seen),
        Some(TreeRelation::Unknown) => (VolumeMode::Shared, Certainty::Unknown),
        Some(TreeRelation::Different) => (VolumeMode::Copies, Certainty::Seen),
    };
    (mode, certainty, all.into_iter().map(|(_, why)| why).collect())
}

fn compare_trees(
    a: &Observation,
    b: &Observation,
    fsids: &[((u32, u32), String)],
) -> (TreeRelation, String) {
    let (Some(one), Some(other)) = (a.directory(), b.directory()) else {
        return (TreeRelation::Unknown, "one of them could not be looked at".to_owned());
    };
    let is_local =
        |sight: &Observation| sight.mount.as_ref().is_some_and(|mount| !mount.is_network());
    match (is_local(a), is_local(b)) {
        (true, true) => compare_local(one, other),
        (false, false) => compare_network(one, other, fsids),
        _ => (TreeRelation::Different, "one is on a network, the other one is not".to_owned()),
    }
}

fn compare_local(one: &RootInfo, other: &RootInfo) -> (TreeRelation, String) {
    let show = |(major, minor): (u32, u32)| format!("{major}:{minor}");
    if one.dev != other.dev {
        let devices = format!("{} and {}", show(one.dev), show(other.dev));
        return (TreeRelation::Different, format!("two local file systems, devices {devices}"));
    }
    match one.ino == other.ino {
        true => (
            TreeRelation::Same,
            format!("one directory of one file system, device {}", show(one.dev)),
        ),
        false => {
            let what = format!("two directories of one file system, device {}", show(one.dev));
            (TreeRelation::Different, what)
        }
    }
}

fn compare_network(
    one: &RootInfo,
    other: &RootInfo,
    fsids: &[((u32, u32), String)],
) -> (TreeRelation, String) {
    if one.ino != other.ino {
        return (TreeRelation::Different, format!("root inodes {} and {}", one.ino, other.ino));
    }
    let fsid = |dev| fsids.iter().find(|(known, _)| *known == dev).map(|(_, fsid)| fsid.as_str());
    let fsids = fsid(one.dev).zip(fsid(other.dev));
    let same_time = one.ctime == other.ctime;
    let names =
        one.listing.as_ref().zip(other.listing.as_ref()).map(|(a, b)| count_same_inodes(a, b));
    let root = format!("root inode {} in both", one.ino);
    match (names, same_time) {
        (Some((0, n)), _) if n > 0 => {
            let what = format!("{root}, but the names in it have other inode numbers");
            (TreeRelation::Different, what)
        }
        (Some((same, n)), true) if same == n => {
            let names = match n {
                0 => String::new(),
                n => format!(", and the same inode number for each of the {n} names in it"),
            };
            let seen = format!("{root}, changed at the same time{names}");
            match fsids {
                Some((a, b)) if a != b => {
                    // Clones look like this, and so do gateways that number themselves.
                    let what = format!("{seen}; but the servers call it {a} and {b} (fsid)");
                    (TreeRelation::Unknown, what)
                }
                Some((fsid, _)) => (TreeRelation::Same, format!("{seen}; fsid {fsid}")),
                None => (TreeRelation::Same, seen),
            }
        }
        (names, same_time) => {
            let time = if same_time { "the same" } else { "another" };
            let names = match names {
                Some((same, n)) => format!("; {same} of {n} names with the same inode number"),
                None => String::new(),
            };
            (TreeRelation::Unknown, format!("{root}, {time} time of change{names}"))
        }
    }
}

/// Of the names that both have, how many have the same inode number, and how many there are.
fn count_same_inodes(one: &RootListing, other: &RootListing) -> (usize, usize) {
    let both = one.entries.iter().filter_map(|(name, a)| Some((a, other.entries.get(name)?)));
    both.fold((0, 0), |(same, n), (a, b)| (same + usize::from(a.ino == b.ino), n + 1))
}

/// The columns of `/proc/fs/nfsfs/volumes` (`nfs_volume_list_show` in fs/nfs/client.c): `NV
/// SERVER PORT DEV FSID FSC`. 0:0 is said by servers that do not number what they export.
pub(super) fn parse_nfs_fsids(volumes: &str) -> Vec<((u32, u32), String)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (major, minor) = words.next()?.split_once(':')?;
        let fsid = words.next().filter(|fsid| *fsid != "0:0")?;
        Some(((major.parse().ok()?, minor.parse().ok()?), fsid.to_owned()))
    };
    volumes.lines().skip(1).filter_map(line).collect()
}

fn infer_replicas(sights: &[&Observation]) -> Vec<InferredReplica> {
    let hosts: Vec<Option<String>> = sights.iter().map(|sight| source_host(sight)).collect();
    let last = |sight: &Observation, up: usize| {
        let part = sight.spec.path.ancestors().nth(up)?.file_name()?;
        sanitize_name(&part.to_string_lossy())
    };
    // The part of the paths in which they differ: the last one, or the one above.
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
            path: sight.spec.path.to_string_lossy().into_owned(),
            fs_type: sight.mount.as_ref().map(|mount| mount.fs_type.clone()),
            source: sight.mount.as_ref().map(|mount| mount.source.to_string_lossy().into_owned()),
        };
    sights.iter().zip(hosts).zip(names).map(replica).collect()
}

/// The host that a mount's source names, as a node.
fn source_host(sight: &Observation) -> Option<String> {
    let mount = sight.mount.as_ref()?;
    let source = mount.source.to_str()?;
    match (&sight.nfs, mount.fs_type.as_str()) {
        (Some(nfs), _) => sanitize_name(&nfs.server),
        (None, "cifs" | "smb3") => sanitize_name(source.strip_prefix("//")?.split('/').next()?),
        (None, "fuse.sshfs") => sanitize_name(source.split_once(':')?.0.rsplit('@').next()?),
        _ => None,
    }
}

/// `text` with what a name may not have replaced.
fn sanitize_name(text: &str) -> Option<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    let name: String = text.chars().take(200).map(|c| if fine(c) { c } else { '-' }).collect();
    Some(name).filter(|name| name.contains(|c: char| c.is_ascii_alphanumeric()))
}

/// Whether a volume may have this name.
pub(super) fn is_valid_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// What all exports, or else all paths, end with.
pub(super) fn infer_volume_name(survey: &Survey) -> Option<String> {
    let all = || survey.replicas.iter().map(|(_, sight)| sight);
    let last = |path: &Path| {
        path.file_name()?.to_str().filter(|name| is_valid_name(name)).map(str::to_owned)
    };
    let export = |sight: &Observation| last(Path::new(&sight.nfs.as_ref()?.export));
    // One replica's path has nothing to agree with, and is as good as any.
    common_value(all().map(export))
        .or_else(|| common_value(all().map(|sight| last(&sight.spec.path))))?
}

/// What all are, where they are all the same.
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
    // HDFS's gateway speaks version 3 only, knows no locks, and exports the root by default,
    // in which every HDFS has these two.
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
