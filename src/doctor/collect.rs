//! Collects [`DoctorFacts`] for a configuration, within time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::facts::{
    DoctorFacts, ExaminedReplica, ExportCallStats, ExportFacts, NfsFacts, PlacementFacts,
    ReadCallStats, VolumeSettings,
};
use super::machine::{SystemRoot, has_program};
use super::measure::{MeasureOptions, measure};
use super::{clock, network, tcp_info};
use crate::config::{Access, Config, PageCache, Passthrough, ReplicaConfig};
use crate::mount_table::fanfs_mounts::{DaemonState, FanfsMount};
use crate::mount_table::{Mount, MountTable, NfsMount, NfsStats, Recovery};
use crate::nfs::Version;
use crate::raw_replica::{RawReplica, UnopenedReplica};
use crate::survey::{Observation, ProbeResult, Severity, Survey, addresses_of_same_server, survey};
use crate::timeout::run_with_timeout;
use crate::volume::ReplicaId;

/// The time limit for probing the paths to the servers: two tries of echoes in two sizes, and a
/// timestamp, half a second each.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(4);

/// The time limit for the kernel's list of connections.
const CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(3);

/// The time limit for a replica to stamp a new file.
const CLOCK_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// What to examine, and for how long.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// Whether the configuration is a volume's, not made of bare paths.
    pub is_volume: bool,
    /// Mount points of the volume whose keepers have died.
    pub unsupervised: Vec<String>,
    /// The calls of the volume's daemons to exports, by the replicas' names.
    pub export_calls: BTreeMap<String, ExportCallStats>,
    /// What the volume's daemon knows of the placement.
    pub placement: Option<PlacementFacts>,
    /// How long a replica may take to answer.
    pub timeout: Duration,
    /// Whether a file may be created on each replica, to learn its clock.
    pub is_write_allowed: bool,
    /// How to measure the replicas; `None` does not measure.
    pub measure: Option<MeasureOptions>,
}

/// Collects all facts; calls `say` with each step's name.
pub fn examine(config: &Config, options: &DoctorOptions, say: &dyn Fn(&str)) -> DoctorFacts {
    say("probing the replicas");
    let survey = survey(config.survey_request(None), options.timeout);
    let table = MountTable::read().unwrap_or_default();
    let tree = SystemRoot::at(Path::new("/"));
    let mut facts = DoctorFacts {
        volume: options.is_volume.then(|| config.volume.name.clone()),
        placement: options.placement.clone(),
        source: options.is_volume.then(|| config.source.display().to_string()),
        settings: volume_settings(config),
        machine: tree.machine(),
        replicas: examine_replicas(config, &survey, &table, &tree),
        refused: if options.is_volume { config_errors(&survey) } else { Vec::new() },
        ..DoctorFacts::default()
    };
    facts.unserved = dead_or_silent_mounts(&table, facts.volume.as_deref(), options.timeout);
    facts.unkept.clone_from(&options.unsupervised);
    facts.machine.root = rustix::process::geteuid().is_root();
    facts.machine.fusermount3 = has_program("fusermount3");
    facts.machine.page = rustix::param::page_size() as u64;
    let redundant = redundant_groups(&survey);
    facts.one_connection = redundant.one_connection;
    facts.one_file_system = redundant.one_file_system;
    facts.one_server = exports_of_one_server(&survey, options.timeout);
    for replica in &mut facts.replicas {
        if let Some(export) = &mut replica.export {
            export.calls = options.export_calls.get(&replica.name).copied();
        }
    }
    say("probing the network");
    probe_routes(&mut facts, &tree);
    measure_clocks(&mut facts, &survey, options.is_write_allowed);
    let mut replicas = Vec::new();
    if let Some(how) = &options.measure {
        replicas = open_answering(config, &survey, options.timeout);
        facts.measured = Some(measure(&replicas, how, &tree, say));
    }
    // Last, so that connections and counters include the measurement.
    collect_connections(&mut facts);
    drop(replicas);
    recount_calls(&mut facts, &survey);
    facts
}

/// Opens the replicas that have answered, all at once; `None` for the others.
fn open_answering(
    config: &Config,
    survey: &Survey,
    timeout: Duration,
) -> Vec<Option<Result<RawReplica, UnopenedReplica>>> {
    let open = |replica: &ReplicaConfig, sight: &Observation| match root_directory(sight) {
        Some(root) => Some(Ok(RawReplica::Directory(root.to_owned()))),
        None => sight.directory().map(|_| RawReplica::open_within(config, replica, timeout)),
    };
    std::thread::scope(|scope| {
        let replicas = config.replicas.iter().zip(survey.replicas.iter());
        let start = |(replica, (_, sight))| scope.spawn(move || open(replica, sight));
        let threads: Vec<_> = replicas.map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect()
    })
}

/// The root of a replica that is a directory.
fn root_directory(sight: &Observation) -> Option<&Path> {
    sight.spec.location.directory()?;
    Some(&sight.directory()?.canonical)
}

fn volume_settings(config: &Config) -> VolumeSettings {
    VolumeSettings {
        segment_size: config.read.segment_size,
        deadline_s: config.read.deadline.as_secs_f64(),
        writes: config.volume.access == Access::ReadWrite,
        passthrough: config.read.passthrough != Passthrough::Off,
        lag_s: config.write.lag.as_secs_f64(),
        write_replica: config.write.replica.index(),
        attribute_ttl_s: config.fuse.attribute_ttl.as_secs_f64(),
        allow_other: config.fuse.allow_other,
        max_background: config.fuse.max_background.into(),
    }
}

/// The volume's mounts whose daemons are dead or do not answer. Bare paths belong to no volume.
fn dead_or_silent_mounts(
    table: &MountTable,
    volume: Option<&str>,
    limit: Duration,
) -> Vec<(String, &'static str)> {
    let all = FanfsMount::all_visible(table).into_iter();
    let all = all.filter(|served| volume == Some(&served.volume));
    all.filter_map(|served| {
        let state = match served.daemon_state(limit) {
            DaemonState::Serving => return None,
            DaemonState::Dead => "dead",
            DaemonState::Unresponsive => "silent",
        };
        Some((served.mount_point.display().to_string(), state))
    })
    .collect()
}

/// The errors of `fanfs check`, except replicas that do not answer, which have their own check.
fn config_errors(survey: &Survey) -> Vec<(Vec<usize>, String, bool)> {
    let answers = |id: &ReplicaId| survey.replicas[*id].directory().is_some();
    let errors = survey.findings().into_iter().filter(|f| f.severity == Severity::Error);
    errors
        .filter(|finding| finding.replicas.iter().all(answers))
        .map(|finding| {
            let replicas = finding.replicas.iter().map(|id| id.index()).collect();
            (replicas, finding.text, finding.is_fatal)
        })
        .collect()
}

fn examine_replicas(
    config: &Config,
    survey: &Survey,
    table: &MountTable,
    tree: &SystemRoot,
) -> Vec<ExaminedReplica> {
    let one = |(replica, (_, sight)): (&ReplicaConfig, (ReplicaId, &Observation))| {
        let mount = sight.mount.as_ref();
        let device = match (sight.directory(), mount) {
            _ if sight.spec.location.export().is_some() => None,
            (Some(directory), _) => Some(directory.dev),
            (None, mount) => mount.map(|mount| mount.dev),
        };
        let device = device.map(|(major, minor)| format!("{major}:{minor}"));
        ExaminedReplica {
            name: replica.name.clone(),
            path: replica.location.to_string(),
            is_export: replica.location.export().is_some(),
            mount_point: mount.map(|mount| mount.mount_point.display().to_string()),
            is_mounted: sight.is_mounted(),
            failure: match &sight.probe_result {
                ProbeResult::Failed(why) => Some(why.clone()),
                _ => None,
            },
            state: sight.probe_result.state(),
            fs_type: mount.map(|mount| mount.fs_type.clone()),
            source: mount.map(|mount| mount.source.display().to_string()),
            read_ahead_kib: device.as_deref().and_then(|device| tree.read_ahead(device)),
            device,
            page_cache: match replica.page_cache {
                PageCache::Use => true,
                PageCache::Bypass => false,
                PageCache::Auto => mount.is_some() && sight.nfs.is_none(),
            },
            export: export_facts(sight),
            nfs: mount.zip(sight.nfs.as_ref()).map(|(mount, nfs)| nfs_facts(mount, nfs, table)),
            ..ExaminedReplica::default()
        }
    };
    config.replicas.iter().zip(survey.replicas.iter()).map(one).collect()
}

/// Of an export that answers.
fn export_facts(sight: &Observation) -> Option<ExportFacts> {
    let export = sight.spec.location.export()?;
    let terms = sight.directory()?.terms.as_ref()?;
    Some(ExportFacts {
        server: export.address.server.clone(),
        addresses: terms.addresses.iter().map(|address| address.ip().to_string()).collect(),
        port: terms.addresses.first().map_or(0, |address| address.port()),
        version: match terms.version {
            Version::V3 => "3",
            Version::V4_1 => "4.1",
        },
        max_read: terms.max_read.into(),
        calls: None,
    })
}

/// Groups of exports, by index, whose addresses are of one server; `None` if that is unknown. The
/// server of the first one of a group is asked about the others.
fn exports_of_one_server(survey: &Survey, limit: Duration) -> Option<Vec<Vec<usize>>> {
    let version_4 = |(id, sight): (ReplicaId, &Observation)| {
        let terms = sight.directory()?.terms.as_ref()?;
        let first = *terms.addresses.first()?;
        (terms.version == Version::V4_1).then_some((id.index(), first))
    };
    let mut left: Vec<(usize, SocketAddr)> = survey.replicas.iter().filter_map(version_4).collect();
    if left.len() < 2 {
        return None;
    }
    let mut groups = Vec::new();
    let mut is_silent = false;
    while left.len() > 1 {
        let (index, first) = left.remove(0);
        let others: BTreeSet<SocketAddr> =
            left.iter().map(|(_, address)| *address).filter(|other| *other != first).collect();
        let others: Vec<SocketAddr> = others.into_iter().collect();
        let ask = move || addresses_of_same_server(first, &others, limit).ok();
        let same = run_with_timeout(limit, ask).flatten();
        is_silent |= same.is_none();
        let same = same.unwrap_or_default();
        let (group, rest): (Vec<_>, _) =
            left.into_iter().partition(|(_, other)| *other == first || same.contains(other));
        left = rest;
        if !group.is_empty() {
            groups.push([index].into_iter().chain(group.iter().map(|found| found.0)).collect());
        }
    }
    (!is_silent || !groups.is_empty()).then_some(groups)
}

/// Options that are not passed to mount(8): the kernel or mount.nfs adds them.
const IMPLICIT_OPTIONS: &[&str] = &[
    "addr",
    "clientaddr",
    "mountaddr",
    "mountport",
    "mountvers",
    "mountproto",
    "namlen",
    "seclabel",
];

/// Options of the mount, not of its filesystem, that were passed to mount(8). The kernel adds the
/// others itself.
const PER_MOUNT_OPTIONS: &[&str] = &["ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime"];

/// The options of a command that mounts it again unchanged.
fn mount_options(mount: &Mount) -> Vec<String> {
    let own = mount.options.to_string_lossy();
    let shared = mount.super_options.to_string_lossy();
    let own: Vec<&str> =
        own.split(',').filter(|option| PER_MOUNT_OPTIONS.contains(option)).collect();
    let read_only = own.contains(&"ro");
    let shared = shared.split(',').filter(|option| {
        let key = option.split('=').next().unwrap_or_default();
        // A filesystem that is mounted read-only here may be writable through another mount.
        let is_said = read_only && matches!(key, "ro" | "rw");
        !is_said && !IMPLICIT_OPTIONS.contains(&key) && *option != "local_lock=none"
    });
    own.iter().copied().chain(shared).map(str::to_owned).collect()
}

pub(super) fn nfs_facts(mount: &Mount, nfs: &NfsMount, table: &MountTable) -> NfsFacts {
    let of_server = table
        .iter()
        .filter_map(|other| table.nfs(other))
        .filter(|other| other.server == nfs.server || other.addr == nfs.addr)
        .filter_map(|other| other.rsize)
        .max();
    let times = nfs.attribute_times;
    let seconds = |time: Duration| time.as_secs();
    let mut facts = NfsFacts {
        server: nfs.server.clone(),
        addr: nfs.addr.clone(),
        port: nfs.port.unwrap_or(2049),
        version: nfs.version.map(|version| match version {
            (major @ ..4, _) => major.to_string(),
            (major, minor) => format!("{major}.{minor}"),
        }),
        proto: nfs.proto.clone(),
        rsize: nfs.rsize,
        wsize: nfs.wsize,
        rsize_of_server: of_server,
        recovery: match nfs.recovery {
            Recovery::Hard => "hard",
            Recovery::Soft => "soft",
            Recovery::SoftErr => "softerr",
        },
        fails_after_s: nfs.fails_after.map(|after| after.as_secs_f64()),
        sync: nfs.sync,
        noac: nfs.noac,
        attribute_times_s: [times.file_min, times.file_max, times.dir_min, times.dir_max]
            .map(seconds),
        nosharecache: nfs.nosharecache,
        nconnect: nfs.nconnect,
        max_connect: nfs.max_connect,
        options: mount_options(mount),
        ..NfsFacts::default()
    };
    if let Some(stats) = &nfs.stats {
        count_calls(&mut facts, stats);
    }
    facts
}

/// Computes the counters as nfsiostat does.
fn count_calls(facts: &mut NfsFacts, stats: &NfsStats) {
    facts.age_s = Some(stats.age.as_secs());
    facts.calls = stats.calls.iter().map(|call| call.calls).sum();
    facts.retransmits = stats.calls.iter().map(|call| call.sent.saturating_sub(call.calls)).sum();
    facts.timeouts = stats.calls.iter().map(|call| call.timeouts).sum();
    facts.reads = stats.call_stats("READ").map(|read| {
        let each = |time: Duration| time.as_secs_f64() * 1e3 / read.calls as f64;
        ReadCallStats {
            calls: read.calls,
            bytes_each: read.received / read.calls,
            queue_ms: each(read.queued),
            round_trip_ms: each(read.round_trip),
            whole_ms: each(read.execute),
        }
    });
    let sends: u64 = stats.queues.iter().map(|queue| queue.sends).sum();
    let backlog: u64 = stats.queues.iter().map(|queue| queue.backlog).sum();
    facts.backlog = (sends > 0).then(|| backlog as f64 / sends as f64);
}

/// Reads the counters again.
fn recount_calls(facts: &mut DoctorFacts, survey: &Survey) {
    let Ok(table) = MountTable::read() else { return };
    for (replica, (_, sight)) in facts.replicas.iter_mut().zip(survey.replicas.iter()) {
        let stats = sight.mount.as_ref().and_then(|mount| table.nfs(mount)?.stats);
        if let Some((nfs, stats)) = replica.nfs.as_mut().zip(stats) {
            count_calls(nfs, &stats);
        }
    }
}

/// Groups of replicas, by index, where reading more than one of the group gains nothing.
struct RedundantGroups {
    /// NFS mounts that share a connection.
    one_connection: Vec<Vec<usize>>,
    /// Other replicas that are on one filesystem.
    one_file_system: Vec<Vec<usize>>,
}

fn redundant_groups(survey: &Survey) -> RedundantGroups {
    let sight = |i: usize| &survey.replicas[ReplicaId::new(i)];
    let one_path = |i: usize, j: usize| {
        let one = sight(i);
        let other = sight(j);
        let Some((a, b)) = one.directory().zip(other.directory()) else { return false };
        match (&one.nfs, &other.nfs) {
            (Some(one), Some(other)) => a.dev == b.dev || one.shares_connection(other),
            (None, None) => root_directory(one).is_some() && a.dev == b.dev,
            _ => false,
        }
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in 0..survey.replicas.len() {
        match groups.iter_mut().find(|group| group.iter().any(|j| one_path(i, *j))) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups.retain(|group| group.len() > 1);
    let (one_connection, one_file_system) =
        groups.into_iter().partition(|group| sight(group[0]).nfs.is_some());
    RedundantGroups { one_connection, one_file_system }
}

/// Whether a mount's `addr=` may belong to another mount. After trunking detection it is the first
/// mount's address, and the server's name resolves to this mount's own. Otherwise `addr=` is right,
/// and the name may have further addresses.
fn is_address_ambiguous(facts: &DoctorFacts, nfs: &NfsFacts) -> bool {
    let mounts = facts.replicas.iter().filter_map(|replica| replica.nfs.as_ref());
    let trunked = |other: &NfsFacts| other.server != nfs.server && other.addr == nfs.addr;
    nfs.addr.is_none() || mounts.into_iter().any(trunked)
}

/// Probes all routes at once, and the interfaces that they use.
fn probe_routes(facts: &mut DoctorFacts, tree: &SystemRoot) {
    let (sender, receiver) = mpsc::channel();
    for (i, replica) in facts.replicas.iter().enumerate() {
        let Some(port) = replica.server_port() else { continue };
        let is_ambiguous = |nfs: &&NfsFacts| is_address_ambiguous(facts, nfs);
        let name = replica.nfs.as_ref().filter(is_ambiguous).map(|nfs| nfs.server.clone());
        let addr = replica.server_addresses().first().copied();
        let sender = sender.clone();
        let tree = tree.clone();
        let look = move || {
            let named = name.and_then(|name| (name, port).to_socket_addrs().ok()?.next());
            let to = named.or_else(|| addr.map(|addr| SocketAddr::new(addr, port)))?;
            let mut route = network::find_route(to)?;
            let interface = route.interface.as_deref().map(|name| tree.interface(name));
            let mtu = interface.as_ref().and_then(|interface| interface.mtu).or(route.mtu);
            let echoes = network::send_echoes(to.ip(), mtu);
            route.small_echo = echoes.is_small_answered;
            route.large_echo = echoes.is_large_answered;
            route.echo_ms = echoes.round_trip.map(|time| time.as_secs_f64() * 1e3);
            sender.send((i, route, interface, echoes.clock_ahead_s)).ok()
        };
        // If the thread cannot start, the facts stay unknown.
        let _ = std::thread::Builder::new().name("doctor".into()).spawn(look);
    }
    drop(sender);
    let until = Instant::now() + NETWORK_TIMEOUT;
    while let Ok((i, route, interface, ahead)) =
        receiver.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        facts.replicas[i].route = Some(route);
        facts.replicas[i].clock_ahead_s = ahead;
        facts.interfaces.extend(interface);
    }
    facts.interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    facts.interfaces.dedup_by(|a, b| a.name == b.name);
}

/// Learns the servers' clocks: from new files if `write` is set, and from the roots' times where
/// nothing else gave an answer.
fn measure_clocks(facts: &mut DoctorFacts, survey: &Survey, write: bool) {
    for (replica, (_, sight)) in facts.replicas.iter_mut().zip(survey.replicas.iter()) {
        let Some(root) = root_directory(sight).map(Path::to_owned) else { continue };
        if write {
            let at = root.clone();
            let stamped = run_with_timeout(CLOCK_PROBE_TIMEOUT, move || {
                clock::clock_ahead_by_new_file(&at).ok()
            })
            .flatten();
            replica.clock_ahead_s = stamped.or(replica.clock_ahead_s);
        }
        if replica.clock_ahead_s.is_none() {
            replica.clock_ahead_s =
                run_with_timeout(CLOCK_PROBE_TIMEOUT, move || clock::root_time_ahead(&root))
                    .flatten();
        }
    }
}

fn collect_connections(facts: &mut DoctorFacts) {
    let ports: BTreeSet<u16> =
        facts.replicas.iter().filter_map(ExaminedReplica::server_port).collect();
    for port in ports {
        let asked =
            run_with_timeout(CONNECTIONS_TIMEOUT, move || tcp_info::connections_to_port(port).ok());
        let Some(all) = asked.flatten() else { continue };
        facts.machine.lists_connections = true;
        for replica in &mut facts.replicas {
            if replica.server_port() != Some(port) {
                continue;
            }
            let addresses = replica.server_addresses().into_iter();
            let addresses: Vec<String> =
                addresses.map(|address| tcp_info::canonical_address(address).to_string()).collect();
            let own = all.iter().filter(|one| addresses.contains(&one.server));
            replica.connections = Some(own.cloned().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_several_servers_is_ambiguous() {
        let mut facts = crate::doctor::checks::tests::healthy();
        let nfs = |facts: &DoctorFacts, i: usize| facts.replicas[i].nfs.clone().expect("NFS");
        assert!((0..3).all(|i| !is_address_ambiguous(&facts, &nfs(&facts, i))));
        // Mounted by a name that has several addresses: `addr=` says which one.
        for replica in &mut facts.replicas {
            replica.nfs.as_mut().expect("NFS").server = "filer".into();
        }
        assert!((0..3).all(|i| !is_address_ambiguous(&facts, &nfs(&facts, i))));
        let third = facts.replicas[2].nfs.as_mut().expect("NFS");
        (third.server, third.addr) = ("filer-2".into(), Some("10.0.1.2".into()));
        let in_doubt = [0, 1, 2].map(|i| is_address_ambiguous(&facts, &nfs(&facts, i)));
        assert_eq!(in_doubt, [true, false, true]);
    }
}
