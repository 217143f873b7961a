//! Builds the one command that mounts a replica again with all changes of its options.
//!
//! Every finding about a mount's options proposes this command. Commands that change one option
//! each would undo each other, because each starts from the current options.

use std::time::Duration;

use super::{DoctorFacts, ExaminedReplica, NfsFacts};
use crate::mount_table::option_rules::{
    CheckedOptions, MountUse, OptionChange, OptionFault, find_faults, remount_command,
};

/// nfsiostat's "avg bklog". With one call waiting at each send, reads wait for slots.
pub(super) const MIN_BACKLOG: f64 = 1.0;

/// The hint that follows commands that mount again.
pub const PERSIST_HINT: &str = "  (unmount the volume first, with fanfs umount; put the same \
                                   options in /etc/fstab or the .mount unit)";

/// Four calls per segment: below a quarter of the segment, READs are small enough to cost rate. In
/// the lab (benches/results/doctor.md), 256 KiB and more deliver the same rate.
pub(super) const MAX_CALLS_PER_SEGMENT: u64 = 4;

/// One TCP connection is limited to one core at either end and carries 10 to 25 Gbit/s. From 25
/// Gbit/s on, one connection is the limit (`nconnect` in nfs(5) adds more).
const ONE_CONNECTION_MBIT: u64 = 25_000;

/// The faults that the rules find in the options of a replica's mount.
pub(super) fn option_faults(facts: &DoctorFacts, i: usize) -> Vec<OptionFault> {
    let Some(nfs) = &facts.replicas[i].nfs else { return Vec::new() };
    let [_, file_max, _, dir_max] = nfs.attribute_times_s;
    let longest = if nfs.noac { 0 } else { file_max.max(dir_max) };
    let have = CheckedOptions {
        read_only: nfs.options.iter().any(|option| option == "ro"),
        rsize: nfs.rsize,
        wsize: nfs.wsize,
        soft: nfs.recovery != "hard",
        fails_after: nfs.fails_after_s.and_then(|s| Duration::try_from_secs_f64(s).ok()),
        sync: nfs.sync,
        attribute_cache_max: Some(Duration::from_secs(longest)),
    };
    let settings = &facts.settings;
    let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let want = MountUse {
        segment_size: settings.segment_size,
        deadline: time(settings.deadline_s),
        is_volume_writable: settings.writes,
        is_write_replica: settings.writes && i == settings.write_replica,
        lag: time(settings.lag_s),
    };
    let is_felt = |fault: &OptionFault| match fault {
        OptionFault::Rsize { calls, .. } | OptionFault::Wsize { calls, .. } => {
            *calls > MAX_CALLS_PER_SEGMENT
        }
        _ => true,
    };
    find_faults(&have, &want).into_iter().filter(is_felt).collect()
}

/// Whether the protocol is outdated: `Some(true)` for NFSv2, `Some(false)` for UDP.
pub(super) fn outdated_protocol(nfs: &NfsFacts) -> Option<bool> {
    let old = nfs.version.as_deref() == Some("2");
    let udp = nfs.proto.as_deref().is_some_and(|proto| proto.starts_with("udp"));
    (old || udp).then_some(old)
}

/// A number of connections that cannot fill their link.
pub(super) struct TooFewConnections {
    pub(super) connections: u64,
    pub(super) link_mbit: u64,
}

/// Whether the connections through a replica's interface are too few to fill the link.
pub(super) fn too_few_connections(facts: &DoctorFacts, i: usize) -> Option<TooFewConnections> {
    let replica = &facts.replicas[i];
    let nfs = replica.nfs.as_ref()?;
    let interface = replica.route.as_ref()?.interface.as_ref()?;
    let link = facts.interfaces.iter().find(|one| one.name == *interface)?;
    let speed = link.speed_mbit.filter(|_| !link.is_virtual)?;
    // Replicas behind one interface already have one connection each.
    let beside = facts.replicas.iter().filter(|other| {
        other.route.as_ref().and_then(|route| route.interface.as_ref()) == Some(interface)
    });
    let connections: u64 = beside.filter_map(|r| Some(r.nfs.as_ref()?.nconnect)).sum();
    let needed = speed.div_ceil(ONE_CONNECTION_MBIT);
    // RDMA is not limited in this way.
    let tcp = nfs.proto.as_deref().is_some_and(|proto| proto.starts_with("tcp"));
    let is_enough = !tcp || speed < ONE_CONNECTION_MBIT || connections > needed;
    (!is_enough && nfs.nconnect < 2).then_some(TooFewConnections { connections, link_mbit: speed })
}

/// Whether NFSv4.1 trunking found that the addresses of the group belong to one server. `None` if
/// the kernel spreads each mount's calls over all of these addresses.
pub(super) fn is_trunked(facts: &DoctorFacts, group: &[usize]) -> Option<bool> {
    let nfs = |i: usize| facts.replicas[i].nfs.as_ref();
    let first = nfs(group[0])?;
    let trunked = group.iter().any(|i| nfs(*i).is_some_and(|nfs| nfs.server != first.server));
    (!trunked || first.max_connect < 2).then_some(trunked)
}

/// All option changes for one replica's mount.
fn option_changes(facts: &DoctorFacts, i: usize) -> Vec<OptionChange> {
    let Some(nfs) = &facts.replicas[i].nfs else { return Vec::new() };
    let with = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect();
    let mut all = Vec::new();
    let is_second = |group: &&Vec<usize>| group[1..].contains(&i);
    let second = facts.one_connection.iter().find(is_second);
    if second.is_some_and(|group| is_trunked(facts, group) == Some(true)) {
        all.push(OptionChange { removed: &["minorversion"], added: with(&["vers=3", "nolock"]) });
    }
    if outdated_protocol(nfs).is_some() {
        let added = with(&["vers=3", "proto=tcp"]);
        all.push(OptionChange { removed: &["rsize", "wsize"], added });
    }
    let backlog = nfs.backlog.is_some_and(|backlog| backlog >= MIN_BACKLOG);
    let is_rdma = nfs.proto.as_deref().is_some_and(|proto| proto.starts_with("rdma"));
    if too_few_connections(facts, i).is_some() || backlog && !is_rdma {
        all.push(OptionChange { removed: &[], added: with(&["nconnect=4"]) });
    }
    all.extend(option_faults(facts, i).iter().map(OptionFault::fix));
    all
}

/// The command that mounts a replica again with all option changes, including those for other
/// replicas on the same mount. Empty if it is not an NFS mount.
pub(super) fn replica_remount_command(facts: &DoctorFacts, i: usize) -> String {
    let replica = &facts.replicas[i];
    let Some((nfs, point)) = replica.nfs.as_ref().zip(replica.mount_point.as_deref()) else {
        return String::new();
    };
    let is_there =
        |(_, other): &(usize, &ExaminedReplica)| other.mount_point == replica.mount_point;
    let there = facts.replicas.iter().enumerate().filter(is_there);
    let changes: Vec<OptionChange> = there.flat_map(|(j, _)| option_changes(facts, j)).collect();
    remount_command(point, replica.source.as_deref().unwrap_or_default(), &nfs.options, &changes)
}
