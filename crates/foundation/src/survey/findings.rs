//! Turns a survey into findings. Pure.
//!
//! Each rule is one function over the whole [`Survey`]. Comparisons leave out a replica that has
//! an error itself: an unmounted directory differs from the others anyway, and would hide other
//! differences.

mod root_differences;

use std::time::Duration;

use bytesize::ByteSize;

use super::{
    Finding, Observation, ProbeResult, ReplicaSpec, RootInfo, RootListing, Severity, Survey, roster,
};
use crate::mount_table::option_rules::{CheckedOptions, MountUse, OptionFault, find_faults};
use crate::mount_table::{Mount, NfsMount, Recovery};
use crate::volume::{ReplicaId, VolumeMode};
use root_differences::{NamedListing, differences};

/// The number of differences between two roots that a finding lists.
const MAX_SHOWN_DIFFERENCES: usize = 3;

type FindingRule = fn(&Survey) -> Vec<Finding>;

const RULES: &[FindingRule] = &[
    unreachable_paths,
    not_mounted,
    different_file_systems,
    listed_twice,
    write_replica_is_read_only,
    shared_connections,
    same_file_system,
    shared_servers,
    different_content,
    aliased_copies,
    overlap_with_mount_point,
    local_file_systems,
    mount_options,
];

pub(super) fn findings(survey: &Survey) -> Vec<Finding> {
    let mut all: Vec<Finding> = RULES.iter().flat_map(|rule| rule(survey)).collect();
    all.sort_by_key(|finding| finding.severity);
    all
}

/// An error that keeps the replicas out of service until it is fixed.
fn error(replicas: Vec<ReplicaId>, text: String) -> Finding {
    Finding { severity: Severity::Error, is_fatal: false, replicas, text }
}

/// An error that waiting cannot fix: fanfs refuses to mount the volume.
fn fatal_error(replicas: Vec<ReplicaId>, text: String) -> Finding {
    Finding { is_fatal: true, ..error(replicas, text) }
}

fn warning(replicas: Vec<ReplicaId>, text: String) -> Finding {
    Finding { severity: Severity::Warning, is_fatal: false, replicas, text }
}

fn unreachable_paths(survey: &Survey) -> Vec<Finding> {
    let judge = |(id, sight): (ReplicaId, &Observation)| {
        let Observation { spec: subject, mount, .. } = sight;
        let replica = subject.label();
        let text = match &sight.probe_result {
            ProbeResult::Directory(_) => return None,
            ProbeResult::Absent => roster::absent_text(subject),
            ProbeResult::NotADirectory => roster::not_a_directory_text(subject),
            ProbeResult::Failed(why) => format!("{replica} cannot be opened: {why}"),
            ProbeResult::TimedOut => {
                let from = mount.as_ref().filter(|mount| mount.is_network());
                let server = from.map(|mount| format!(" {}", mount.source.display()));
                let server = server.unwrap_or_default();
                let limit = survey.limit;
                format!("{replica} did not answer within {limit:?}; check its server{server}")
            }
        };
        // Under autofs, the directory of a server that is down does not exist.
        let is_automounted = mount.as_ref().is_some_and(|mount| mount.fs_type == "autofs");
        Some(match sight.probe_result {
            ProbeResult::Absent if is_automounted => error(vec![id], text),
            ProbeResult::Absent | ProbeResult::NotADirectory => fatal_error(vec![id], text),
            _ => error(vec![id], text),
        })
    };
    survey.replicas.iter().filter_map(judge).collect()
}

/// Whether the volume requires a mount that is missing. Without a mount table this is unknown, and
/// [`not_mounted`] reports that once.
fn is_mount_missing(survey: &Survey, sight: &Observation) -> bool {
    survey.table_error.is_none() && sight.spec.require_mount && !sight.is_mounted()
}

fn not_mounted(survey: &Survey) -> Vec<Finding> {
    if let Some(why) = &survey.table_error {
        let demanding = survey.replicas.iter().filter(|(_, sight)| sight.spec.require_mount);
        let demanding: Vec<ReplicaId> = demanding.map(|(id, _)| id).collect();
        let text = format!(
            "fanfs cannot read /proc/self/mountinfo: {why}; it cannot check the mounts of {}",
            join_names(survey, &demanding)
        );
        return if demanding.is_empty() { vec![] } else { vec![fatal_error(demanding, text)] };
    }
    let judge = |(id, sight): (ReplicaId, &Observation)| {
        sight.directory()?;
        let text = roster::not_mounted_text(&sight.spec);
        is_mount_missing(survey, sight).then(|| error(vec![id], text))
    };
    survey.replicas.iter().filter_map(judge).collect()
}

/// The replicas without an error of their own, which can be compared with each other.
fn comparable(survey: &Survey) -> impl Iterator<Item = (ReplicaId, &Observation, &RootInfo)> {
    survey
        .replicas
        .iter()
        .filter(|(_, sight)| !is_mount_missing(survey, sight))
        .filter_map(|(id, sight)| Some((id, sight, sight.directory()?)))
}

fn different_file_systems(survey: &Survey) -> Vec<Finding> {
    if survey.request.mode != VolumeMode::Shared {
        return vec![];
    }
    let local = |sight: &Observation| sight.mount.as_ref().is_some_and(|mount| !mount.is_network());
    // The inode number comes from the server. The device number comes from this machine and
    // differs between two network mounts of one export. It decides between local file systems,
    // because the root of every ext4 is inode 2.
    let roots: Vec<_> = comparable(survey).collect();
    let differs = |(_, a, one): &(_, &Observation, &RootInfo),
                   (_, b, other): &(_, &Observation, &RootInfo)| {
        one.ino != other.ino || (local(a) && local(b) && one.dev != other.dev)
    };
    if !roots.iter().any(|one| roots.iter().any(|other| differs(one, other))) {
        return vec![];
    }
    let shown: Vec<String> = roots
        .iter()
        .map(|(_, sight, root)| {
            let name = &sight.spec.name;
            let ino = root.ino;
            let (major, minor) = root.dev;
            match sight.spec.location.directory() {
                Some(_) => format!("{name} has root inode {ino} on device {major}:{minor}"),
                None => format!("{name} has root inode {ino} on its server"),
            }
        })
        .collect();
    let text = format!(
        "the replicas are not the same file system: {}; mount the same export everywhere, or set \
         mode = \"copies\" if they are independent copies",
        shown.join(", ")
    );
    vec![fatal_error(roots.iter().map(|(id, ..)| *id).collect(), text)]
}

fn listed_twice(survey: &Survey) -> Vec<Finding> {
    let mounts = comparable(survey).filter(|(_, sight, _)| sight.spec.require_mount);
    let is_one = |(_, _, a): (_, &Observation, &RootInfo),
                  (_, _, b): (_, &Observation, &RootInfo)| {
        a.mount_id == b.mount_id && a.canonical == b.canonical
    };
    let judge = |group: Vec<(ReplicaId, &Observation, &RootInfo)>| {
        let text = roster::same_mount_text(&group[0].1.spec.name, &group[1].1.spec.name);
        fatal_error(group.iter().map(|(id, ..)| *id).collect(), text)
    };
    groups(mounts, is_one).into_iter().map(judge).collect()
}

fn write_replica_is_read_only(survey: &Survey) -> Vec<Finding> {
    let mut writer =
        comparable(survey).filter(|(id, ..)| survey.request.write_replica == Some(*id));
    let is_read_only = |(_, _, root): &(_, _, &RootInfo)| root.is_read_only;
    let found = writer.next().filter(is_read_only);
    found
        .map(|(id, sight, _)| fatal_error(vec![id], roster::read_only_text(&sight.spec)))
        .into_iter()
        .collect()
}

/// Adds each item to the first group that has a member related to it.
fn groups<T: Copy>(items: impl Iterator<Item = T>, related: impl Fn(T, T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| group.iter().any(|other| related(*other, item))) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// NFS mounts with one device number use one NFS client of the kernel, even if their ports
/// differ.
fn is_same_connection(a: (&NfsMount, &RootInfo), b: (&NfsMount, &RootInfo)) -> bool {
    a.1.dev == b.1.dev || a.0.shares_connection(b.0)
}

fn shared_connections(survey: &Survey) -> Vec<Finding> {
    let nfs =
        comparable(survey).filter_map(|(id, sight, root)| Some((id, sight.nfs.as_ref()?, root)));
    let shared =
        groups(nfs, |(_, a, root_a), (_, b, root_b)| is_same_connection((a, root_a), (b, root_b)));
    let judge = |group: Vec<(ReplicaId, &NfsMount, &RootInfo)>| {
        let ids: Vec<ReplicaId> = group.iter().map(|(id, ..)| *id).collect();
        let who = replicas_text(survey, &ids);
        let (_, first, _) = group[0];
        let trunked = group.iter().any(|(_, nfs, _)| nfs.server != first.server);
        let can_trunk = first.version >= Some((4, 1));
        if (trunked || can_trunk) && first.spreads_over_addresses() {
            // The kernel spreads the calls of each mount over all addresses.
            return None;
        }
        let addr = first.addr.as_deref().unwrap_or(&first.server);
        let remedy = format!(
            "mount them with vers=3 or vers=4.0, with max_connect={} (Linux 5.15), or each in its \
             own network namespace (nconnect adds connections to the first address only)",
            group.len()
        );
        let text = if trunked && can_trunk {
            format!(
                "{who} share one connection, so reading from more than one of them is no faster: \
                 NFSv4.1 trunking detection found that their addresses belong to one server; \
                 {remedy}"
            )
        } else if can_trunk {
            // Mounts with one super block all show the source of the first.
            format!(
                "{who} share one connection to {addr}, so reading from more than one of them is no \
                 faster: they were mounted from one address, or NFSv4.1 trunking detection found \
                 that their addresses belong to one server (the kernel then shows the first \
                 address for all); mount each from a different address, and {remedy}"
            )
        } else {
            format!(
                "{who} share one connection to {addr}, so reading from more than one of them is no \
                 faster; mount each from a different server, or from a different address of this \
                 server"
            )
        };
        Some(warning(ids, text))
    };
    shared.into_iter().filter_map(judge).collect()
}

fn same_file_system(survey: &Survey) -> Vec<Finding> {
    // For NFS, the finding about connections is more specific.
    let others = comparable(survey)
        .filter(|(_, sight, _)| sight.nfs.is_none() && sight.spec.location.directory().is_some());
    let judge = |group: Vec<(ReplicaId, &Observation, &RootInfo)>| {
        let ids: Vec<ReplicaId> = group.iter().map(|(id, ..)| *id).collect();
        let (major, minor) = group[0].2.dev;
        let text = format!(
            "{} are on one file system (device {major}:{minor}), so reading from more than one of \
             them is no faster; mount each from a different server or device, or keep only one",
            replicas_text(survey, &ids)
        );
        warning(ids, text)
    };
    groups(others, |(_, _, a), (_, _, b)| a.dev == b.dev).into_iter().map(judge).collect()
}

/// Exports on one server.
fn shared_servers(survey: &Survey) -> Vec<Finding> {
    let is_one = |(_, _, a): (_, &Observation, &RootInfo),
                  (_, _, b): (_, &Observation, &RootInfo)| {
        a.servers.iter().any(|address| b.servers.contains(address))
    };
    let judge = |group: Vec<(ReplicaId, &Observation, &RootInfo)>| {
        let ids: Vec<ReplicaId> = group.iter().map(|(id, ..)| *id).collect();
        let text = format!(
            "{} are on one server ({}), so reading from more than one of them is no faster; use a \
             different server or address for each, or one replica with more `connections`",
            replicas_text(survey, &ids),
            group[0].2.servers[0]
        );
        warning(ids, text)
    };
    groups(comparable(survey), is_one).into_iter().map(judge).collect()
}

fn different_content(survey: &Survey) -> Vec<Finding> {
    let mut listings = comparable(survey)
        .filter_map(|(id, sight, root)| Some((id, sight, root.listing.as_ref()?)))
        .filter(|(_, _, listing)| listing.complete);
    let Some((first_id, first, first_listing)) = listings.next() else { return vec![] };
    let compare = |(id, other, listing): (ReplicaId, &Observation, &RootListing)| {
        let a = &first.spec.name;
        let b = &other.spec.name;
        let differences = differences(
            NamedListing { replica: a, listing: first_listing },
            NamedListing { replica: b, listing },
        );
        let more = match differences.len() {
            0 => return None,
            n @ ..=MAX_SHOWN_DIFFERENCES => &differences[..n].join(", "),
            n => {
                let shown = differences[..MAX_SHOWN_DIFFERENCES].join(", ");
                &format!("{shown} and {} more", n - MAX_SHOWN_DIFFERENCES)
            }
        };
        Some(warning(
            vec![first_id, id],
            format!("the root directories of replicas {a} and {b} differ: {more}"),
        ))
    };
    listings.filter_map(compare).collect()
}

/// Replicas of a `copies` volume that are several paths to one tree. Trees that were copied differ
/// in the inode number or, to the nanosecond, in the change time of the root.
fn aliased_copies(survey: &Survey) -> Vec<Finding> {
    if survey.request.mode != VolumeMode::Copies {
        return vec![];
    }
    let is_network = |sight: &Observation| {
        sight.spec.location.export().is_some()
            || sight.mount.as_ref().is_some_and(Mount::is_network)
    };
    let one_tree = |(_, a, one): (_, &Observation, &RootInfo),
                    (_, b, other): (_, &Observation, &RootInfo)| {
        let may_be = one.dev == other.dev || is_network(a) && is_network(b);
        may_be && one.ino == other.ino && one.ctime == other.ctime
    };
    let judge = |group: Vec<(ReplicaId, &Observation, &RootInfo)>| {
        let ids: Vec<ReplicaId> = group.iter().map(|(id, ..)| *id).collect();
        let text = format!(
            "{} appear to be one directory tree, not independent copies: their roots have the same \
             inode number, {}, and the same change time to the nanosecond; a server that fails or \
             corrupts a file affects all of them; set mode = \"shared\"",
            replicas_text(survey, &ids),
            group[0].2.ino
        );
        warning(ids, text)
    };
    groups(comparable(survey), one_tree).into_iter().map(judge).collect()
}

fn overlap_with_mount_point(survey: &Survey) -> Vec<Finding> {
    let Some(point) = &survey.request.mount_point else { return vec![] };
    let judge = |(id, sight): (ReplicaId, &Observation)| {
        let configured = sight.spec.location.directory()?;
        let path = sight.directory().map_or(configured, |root| &root.canonical);
        let name = &sight.spec.name;
        let at = point.display();
        let text = if path.starts_with(point) {
            format!(
                "replica {name} ({}) is under the volume's mount point {at}, which will hide it; \
                 choose another mount point",
                path.display()
            )
        } else if point.starts_with(path) {
            format!(
                "replica {name} ({}) contains the volume's mount point {at}, so the volume will \
                 contain itself; choose another mount point",
                path.display()
            )
        } else {
            return None;
        };
        Some(warning(vec![id], text))
    };
    survey.replicas.iter().filter_map(judge).collect()
}

fn local_file_systems(survey: &Survey) -> Vec<Finding> {
    let local = |mount: &Mount| !mount.is_network();
    let ids: Vec<ReplicaId> = comparable(survey)
        .filter(|(_, sight, _)| sight.mount.as_ref().is_some_and(local))
        .map(|(id, ..)| id)
        .collect();
    let verb = if ids.len() == 1 { "is" } else { "are" };
    let text = format!(
        "{} {verb} not on a network file system; rates add up only across different devices",
        replicas_text(survey, &ids)
    );
    if ids.is_empty() { vec![] } else { vec![warning(ids, text)] }
}

/// The options that the rules check.
fn checked_options(sight: &Observation, root: &RootInfo) -> CheckedOptions {
    let read_only = root.is_read_only;
    let Some(nfs) = &sight.nfs else {
        return CheckedOptions { read_only, ..CheckedOptions::default() };
    };
    let times = nfs.attribute_times;
    let longest = times.file_max.max(times.dir_max);
    CheckedOptions {
        read_only,
        rsize: nfs.rsize,
        wsize: nfs.wsize,
        soft: nfs.recovery != Recovery::Hard,
        fails_after: nfs.fails_after,
        sync: nfs.sync,
        attribute_cache_max: Some(if nfs.noac { Duration::ZERO } else { longest }),
    }
}

fn mount_options(survey: &Survey) -> Vec<Finding> {
    let asked = &survey.request;
    let judge = |(id, sight, root): (ReplicaId, &Observation, &RootInfo)| {
        let want = MountUse {
            segment_size: asked.segment_size,
            deadline: asked.deadline,
            is_volume_writable: asked.write_replica.is_some(),
            is_write_replica: asked.write_replica == Some(id),
            lag: asked.lag,
        };
        let have = checked_options(sight, root);
        let found = find_faults(&have, &want).into_iter();
        let texts =
            found.filter_map(|fault| finding_text(survey, &sight.spec, &have, fault, &want));
        texts.map(|text| warning(vec![id], text)).collect::<Vec<_>>()
    };
    comparable(survey).flat_map(judge).collect()
}

/// The text of `fanfs check` for an option. `fanfs doctor` reports options that cost some rate, or
/// may lose written data on any NFS mount.
fn finding_text(
    survey: &Survey,
    spec: &ReplicaSpec,
    have: &CheckedOptions,
    fault: OptionFault,
    want: &MountUse,
) -> Option<String> {
    let replica = spec.label();
    match fault {
        // For the write replica, this is an error that another rule reports.
        OptionFault::ReadOnly if want.is_write_replica => None,
        OptionFault::ReadOnly => {
            let writer = &survey.replicas[survey.request.write_replica?].spec.name;
            Some(format!(
                "{replica} is mounted read-only in a volume with access = \"rw\", so it cannot \
                 take the place of the write replica {writer}; mount it read-write, or set access \
                 = \"ro\""
            ))
        }
        OptionFault::Rsize { size, best, .. } => Some(format!(
            "{replica} has rsize={size}, less than the segment size of {}, so each segment takes \
             {} calls; mount it with rsize={best} if the server allows it",
            ByteSize(want.segment_size).display().iec(),
            want.segment_size.div_ceil(size)
        )),
        // A hard mount is not a finding: a call that never returns costs a thread of that
        // replica's own pool, and the deadline protects the reader. A soft mount that fails before
        // the deadline turns a slow server into read errors.
        OptionFault::Soft { is_before_deadline: true, .. } => Some(format!(
            "{replica} is mounted soft: its calls fail after {:?}, before the volume's deadline of \
             {:?}; mount it hard, or raise timeo and retrans",
            have.fails_after?, want.deadline
        )),
        // fanfs must not ask a replica about a change while its NFS client may still use
        // cached attributes from before it.
        OptionFault::AttributesBeyondLag(longest) => Some(format!(
            "{replica} caches attributes for up to {} s, longer than [write] lag = {} s, so \
             readers may see the state before a change; set lag = \"{}s\", or mount it with \
             smaller acregmax and acdirmax",
            longest.as_secs(),
            want.lag.as_secs_f64(),
            longest.as_secs() + 5
        )),
        OptionFault::Soft { .. }
        | OptionFault::Wsize { .. }
        | OptionFault::Sync
        | OptionFault::AttributesUncached => None,
    }
}

/// "replica a", "replicas a and b".
fn replicas_text(survey: &Survey, ids: &[ReplicaId]) -> String {
    let noun = if ids.len() == 1 { "replica" } else { "replicas" };
    format!("{noun} {}", join_names(survey, ids))
}

/// "a", "a and b", "a, b and c".
fn join_names(survey: &Survey, ids: &[ReplicaId]) -> String {
    let names: Vec<&str> = ids.iter().map(|id| survey.replicas[*id].spec.name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
