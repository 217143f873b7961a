//! Rules about how the replicas are mounted.

use super::remount::{self, PERSIST_HINT, TooFewConnections};
use super::{
    CheckOutcome, CheckStatus, RawFinding, check_nfs_replicas, join_replica_names, replica_share,
};
use crate::doctor::facts::{DoctorFacts, ExaminedReplica, NfsFacts};
use crate::format::format_bytes;
use crate::mount_table::option_rules::OptionFault;
use crate::volume::shell_word;

/// In the lab, the rate falls to half or less from this number of calls per segment on.
const MANY_CALLS: u64 = 32;

/// The fixed cost of one call, expressed in bytes: with READs of this size, the rate is half of
/// what unlimited READs reach. From the lab: docs/DOCTOR.md, `nfs.rsize`.
const CALL_OVERHEAD_BYTES: f64 = 16.0 * 1024.0;

/// One segment. With a smaller readahead, the kernel limits a plain reader.
const MIN_READAHEAD_KIB: u64 = 1024;

/// The share that a plain reader of an NFS mount loses with a readahead of 128 KiB. A guess: the
/// loss is between nothing (short round trips) and nine tenths.
const READAHEAD_COST: f64 = 0.3;

/// Each open and stat costs a round trip; large reads are not affected.
const NOAC_COST: f64 = 0.1;

pub(super) fn answers(facts: &DoctorFacts) -> CheckOutcome {
    // A volume's configuration says for each replica whether it must be a mount.
    let want_mounts = facts.volume.is_none() && facts.replicas.iter().any(|r| r.nfs.is_some());
    let judge = |(i, replica): (usize, &ExaminedReplica)| {
        let path = &replica.path;
        let name = &replica.name;
        let from = replica.source.as_deref().filter(|_| replica.nfs.is_some());
        let from = from.map(|from| format!(" ({from})")).unwrap_or_default();
        let (text, remedy) = match replica.state {
            "ok" if replica.is_mounted || !want_mounts => return None,
            "ok" => (
                format!(
                    "{name}: {path} is not mounted: it lies in {}, {}",
                    replica.mount_point.as_deref().unwrap_or("/"),
                    replica.fs_type.as_deref().unwrap_or("another file system")
                ),
                format!("mount {}", shell_word(path)),
            ),
            "absent" => (format!("{name}: {path} does not exist"), mkdir_remedy(path)),
            "not-a-directory" => (
                format!("{name}: {path} is no directory"),
                "name the directory that the replica is mounted at".to_owned(),
            ),
            "silent" => (
                format!("{name}: {path}{from} does not answer: its server is dead or cut off"),
                hung_remedy(replica),
            ),
            _ => {
                let why = replica.failure.as_deref().map(|why| format!(": {why}"));
                let point = shell_word(replica.mount_point.as_deref().unwrap_or(path));
                (
                    format!("{name}: {path}{from} cannot be opened{}", why.unwrap_or_default()),
                    format!(
                        "`ls {}` says why; after \"Stale file handle\": umount -l {point} and \
                         mount it again",
                        shell_word(path)
                    ),
                )
            }
        };
        Some(RawFinding {
            status: CheckStatus::Bad,
            replicas: vec![i],
            cost: replica_share(facts),
            text,
            remedy,
        })
    };
    CheckOutcome::Checked(facts.replicas.iter().enumerate().filter_map(judge).collect())
}

fn mkdir_remedy(path: &str) -> String {
    format!("mkdir -p {0}, and mount it there", shell_word(path))
}

fn hung_remedy(replica: &ExaminedReplica) -> String {
    match (&replica.nfs, &replica.mount_point) {
        (Some(nfs), _) => {
            let to = shell_word(nfs.addr.as_deref().unwrap_or(&nfs.server));
            let port = nfs.port;
            format!("ping {to}; nc -z -w3 {to} {port}; journalctl -k | grep 'not responding'")
        }
        (None, Some(point)) => {
            format!(
                "find out who serves it (findmnt {0}); umount -l {0} gives it up",
                shell_word(point)
            )
        }
        (None, None) => "find out who serves it (findmnt)".to_owned(),
    }
}

pub(super) fn volume(facts: &DoctorFacts) -> CheckOutcome {
    if facts.volume.is_none() {
        return CheckOutcome::NotApplicable;
    }
    let judge = |(replicas, text): &(Vec<usize>, String)| RawFinding {
        status: CheckStatus::Bad,
        replicas: replicas.clone(),
        cost: 1.0,
        text: format!("fanfs does not mount this volume: {text}"),
        remedy: "as it says there; then fanfs check VOLUME.toml".to_owned(),
    };
    CheckOutcome::Checked(facts.refused.iter().map(judge).collect())
}

/// The share of the volume that a group of replicas loses because they share one path to the data.
fn shared_path_cost(facts: &DoctorFacts, group: &[usize]) -> f64 {
    (group.len() as f64 - 1.0) * replica_share(facts)
}

pub(super) fn one_file_system(facts: &DoctorFacts) -> CheckOutcome {
    if facts.replicas.iter().all(|replica| replica.nfs.is_some()) || facts.replicas.len() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let judge = |group: &Vec<usize>| {
        let device = facts.replicas[group[0]].device.as_deref().unwrap_or("?");
        RawFinding {
            status: CheckStatus::Bad,
            replicas: group.clone(),
            cost: shared_path_cost(facts, group),
            text: format!(
                "{} are one file system through one mount (device {device}): nothing is gained by \
                 reading more than one of them",
                join_replica_names(facts, group)
            ),
            remedy: "mount each from another server, gateway or device, or keep one of them".into(),
        }
    };
    CheckOutcome::Checked(facts.one_file_system.iter().map(judge).collect())
}

pub(super) fn one_connection(facts: &DoctorFacts) -> CheckOutcome {
    let nfs = |i: usize| facts.replicas[i].nfs.as_ref();
    if facts.replicas.iter().filter(|replica| replica.nfs.is_some()).count() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let judge = |group: &Vec<usize>| {
        let first = nfs(group[0])?;
        let who = join_replica_names(facts, group);
        let trunked = remount::is_trunked(facts, group)?;
        let to = first.addr.as_deref().unwrap_or(&first.server);
        let kept_apart = group.iter().any(|i| nfs(*i).is_some_and(|nfs| nfs.nosharecache));
        let nosharecache =
            if kept_apart { "; nosharecache parts caches, not connections" } else { "" };
        let (text, remedy) = if trunked {
            let all: Vec<String> =
                group[1..].iter().map(|i| remount::replica_remount_command(facts, *i)).collect();
            (
                format!(
                    "{who} are mounted from different addresses and share one connection, to {to}: \
                     NFSv4.1 trunking found them to be one server, and nothing is gained by reading \
                     both{nosharecache}"
                ),
                format!(
                    "{}  (or vers=4.0; or mount them with max_connect={}, Linux 5.15; or each in a \
                     network namespace of its own){PERSIST_HINT}",
                    all.join("; "),
                    group.len()
                ),
            )
        } else {
            // Once the kernel also shares the mount, the second mount shows the first one's source.
            let trunking = if first.version.as_deref() >= Some("4.1") {
                ", or NFSv4.1 trunking found their addresses to be one server"
            } else {
                ""
            };
            (
                format!(
                    "{who} are read through one connection, to {to}: they were mounted from one \
                     address{trunking}; nothing is gained by reading both{nosharecache}"
                ),
                "mount each from another server, or from another address of this one with vers=3 \
                 or vers=4.0"
                    .to_owned(),
            )
        };
        let cost = shared_path_cost(facts, group);
        Some(RawFinding { status: CheckStatus::Bad, replicas: group.clone(), cost, text, remedy })
    };
    CheckOutcome::Checked(facts.one_connection.iter().filter_map(judge).collect())
}

/// The share of the rate that calls of `size` bytes lose to the fixed cost of calls, compared with
/// calls of `best` bytes.
fn call_overhead_share(size: u64, best: u64) -> f64 {
    let rate = |size: u64| size as f64 / (size as f64 + CALL_OVERHEAD_BYTES);
    1.0 - rate(size) / rate(best)
}

/// The finding about an rsize or wsize of `size` bytes that could be `best`.
fn transfer_size_finding(
    facts: &DoctorFacts,
    i: usize,
    key: &str,
    [size, best, calls]: [u64; 3],
) -> RawFinding {
    let replica = &facts.replicas[i];
    let server = replica.nfs.as_ref().and_then(|nfs| nfs.rsize_of_server);
    let known = match server {
        Some(server) if server > size && key == "rsize" => format!(
            "; another mount of the same server on this machine has {}, so the server takes that",
            format_bytes(server)
        ),
        _ => "; the server may be the limit: it clamps what is asked for, and what is left stands \
              in /proc/mounts after mounting (Linux's server: /proc/fs/nfsd/max_block_size)"
            .to_owned(),
    };
    let point = shell_word(replica.mount_point.as_deref().unwrap_or_default());
    RawFinding {
        status: if calls >= MANY_CALLS { CheckStatus::Bad } else { CheckStatus::Warn },
        replicas: vec![i],
        cost: call_overhead_share(size, best) * replica_share(facts),
        text: format!(
            "{}: {key} is {}, so {} of a segment take {calls} calls{known}",
            replica.name,
            format_bytes(size),
            format_bytes(best)
        ),
        remedy: format!(
            "{}; grep {point} /proc/mounts{PERSIST_HINT}",
            remount::replica_remount_command(facts, i)
        ),
    }
}

/// Applies a rule to each fault in the options of the NFS mounts.
fn check_option_faults(
    facts: &DoctorFacts,
    judge: impl Fn(usize, &OptionFault) -> Option<RawFinding>,
) -> CheckOutcome {
    check_nfs_replicas(facts, |i, _, _| {
        remount::option_faults(facts, i).iter().find_map(|fault| judge(i, fault))
    })
}

pub(super) fn rsize(facts: &DoctorFacts) -> CheckOutcome {
    check_option_faults(facts, |i, fault| match *fault {
        OptionFault::Rsize { size: now, best, calls } => {
            Some(transfer_size_finding(facts, i, "rsize", [now, best, calls]))
        }
        _ => None,
    })
}

/// Only the write replica is written.
pub(super) fn wsize(facts: &DoctorFacts) -> CheckOutcome {
    if !facts.settings.writes {
        return CheckOutcome::NotApplicable;
    }
    check_option_faults(facts, |i, fault| match *fault {
        OptionFault::Wsize { size: now, best, calls } => {
            let problem = transfer_size_finding(facts, i, "wsize", [now, best, calls]);
            // Reads are not affected.
            Some(RawFinding { cost: 0.0, ..problem })
        }
        _ => None,
    })
}

pub(super) fn read_only(facts: &DoctorFacts) -> CheckOutcome {
    if !facts.settings.writes {
        return CheckOutcome::NotApplicable;
    }
    check_option_faults(facts, |i, fault| {
        let is_writer = i == facts.settings.write_replica;
        (*fault == OptionFault::ReadOnly).then(|| RawFinding {
            status: if is_writer { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: 0.0,
            text: format!(
                "{}: mounted read-only, in a volume with access = \"rw\": {}",
                facts.replicas[i].name,
                match is_writer {
                    true => "changes go to it, and fail",
                    false => "it cannot take the place of the write replica",
                }
            ),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn protocol(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let (what, cost) = match remount::outdated_protocol(nfs)? {
            true => ("NFSv2: READs of 8 KiB at most, files of 2 GiB", 0.5),
            false => ("UDP: a lost fragment costs a READ, and READs are 32 KiB at most", 0.3),
        };
        Some(RawFinding {
            status: CheckStatus::Bad,
            replicas: vec![i],
            cost: cost * replica_share(facts),
            text: format!("{}: mounted with {what}", replica.name),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn nconnect(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, _| {
        let TooFewConnections { connections, link_mbit } = remount::too_few_connections(facts, i)?;
        Some(RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.25 * replica_share(facts),
            text: format!(
                "{}: {connections} TCP connection{} for a link of {} Gbit/s; one is one processor \
                 core's work",
                replica.name,
                if connections == 1 { "" } else { "s" },
                link_mbit / 1000
            ),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn soft(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let found = remount::option_faults(facts, i).into_iter().find_map(|fault| match fault {
            OptionFault::Soft { is_write_replica: writer, is_before_deadline: early } => {
                Some((writer, early))
            }
            _ => None,
        });
        let (written, early) = found?;
        let after = nfs.fails_after_s.map(|s| format!(" after {s} s")).unwrap_or_default();
        let mut text = format!(
            "{}: mounted {}: calls that are not answered fail{after}",
            replica.name, nfs.recovery
        );
        text.push_str(match (written, early) {
            (true, _) => ", and what was being written is lost without a word",
            (_, true) => ", before the volume's deadline: a slow server becomes read errors",
            _ => "; programs that use the mount itself see read errors then",
        });
        Some(RawFinding {
            status: if written || early { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: 0.0,
            text,
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn sync(facts: &DoctorFacts) -> CheckOutcome {
    if !facts.settings.writes {
        return CheckOutcome::NotApplicable;
    }
    check_option_faults(facts, |i, fault| {
        let name = &facts.replicas[i].name;
        (*fault == OptionFault::Sync).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.0,
            text: format!("{name}: mounted sync: each write waits for the server's disk"),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn attributes(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let [_, file_max, _, dir_max] = nfs.attribute_times_s;
        let longest = file_max.max(dir_max);
        let name = &replica.name;
        let found = remount::option_faults(facts, i);
        let mounted = || remount::replica_remount_command(facts, i) + PERSIST_HINT;
        let is_old = |fault: &OptionFault| matches!(fault, OptionFault::AttributesBeyondLag(_));
        let (status, cost, text, remedy) = if found.contains(&OptionFault::AttributesUncached) {
            let text = format!(
                "{name}: attributes are not cached: each lookup, open and stat is a call to the \
                 server (with [fuse] attribute_ttl = {} s fanfs asks again after that)",
                facts.settings.attribute_ttl_s
            );
            (CheckStatus::Warn, NOAC_COST * replica_share(facts), text, mounted())
        } else if found.iter().any(is_old) {
            let text = format!(
                "{name}: attributes are believed for up to {longest} s, longer than [write] lag = \
                 {} s: what was changed here may be seen as it was before",
                facts.settings.lag_s
            );
            let remedy = format!(
                "[write] lag = \"{}s\" in the volume's file, or {}",
                longest + 5,
                mounted()
            );
            (CheckStatus::Bad, 0.0, text, remedy)
        } else if facts.settings.attribute_ttl_s > longest as f64 {
            let text = format!(
                "{name}: attributes are believed for {longest} s by the mount, and for {} s by \
                 fanfs's ([fuse] attribute_ttl): changes are seen that much later",
                facts.settings.attribute_ttl_s
            );
            let remedy = format!("[fuse] attribute_ttl = \"{longest}s\" in the volume's file");
            (CheckStatus::Warn, 0.0, text, remedy)
        } else {
            return None;
        };
        Some(RawFinding { status, replicas: vec![i], cost, text, remedy })
    })
}

/// With reads past the page cache, the mounts have no data caches that nosharecache would keep
/// apart.
pub(super) fn nosharecache(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let same = |(j, other): (usize, &ExaminedReplica)| {
            j != i && other.page_cache && other.source == replica.source
        };
        let twice = facts.replicas.iter().enumerate().any(same);
        (nfs.nosharecache && replica.page_cache && twice).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.0,
            text: format!(
                "{}: nosharecache and page_cache = \"use\": the same bytes are kept in memory once \
                 for each mount of {}",
                replica.name,
                replica.source.as_deref().unwrap_or_default()
            ),
            remedy: "page_cache = \"auto\" of the replica in the volume's file".to_owned(),
        })
    })
}

/// fanfs reads ahead itself, and turns the kernel's readahead off on replicas (`POSIX_FADV_RANDOM`,
/// or O_DIRECT). The kernel's readahead still matters for passthrough, and for programs that read
/// the mounts directly.
pub(super) fn readahead(facts: &DoctorFacts) -> CheckOutcome {
    if facts.volume.is_some() && !facts.settings.passthrough {
        return CheckOutcome::NotApplicable;
    }
    if facts.replicas.iter().any(|r| r.nfs.is_some() && r.read_ahead_kib.is_none()) {
        return CheckOutcome::Unknown("/sys/class/bdi does not show it".to_owned());
    }
    check_nfs_replicas(facts, |i, replica, _: &NfsFacts| {
        let kib = replica.read_ahead_kib.filter(|kib| *kib < MIN_READAHEAD_KIB)?;
        let device = replica.device.as_deref()?;
        let (whose, cost) = if facts.volume.is_some() {
            (
                "files that are passed through are read with it",
                READAHEAD_COST * replica_share(facts),
            )
        } else {
            let whose = "a program that reads the mount itself has it; reads through fanfs do not \
                         use it, and do not need it";
            (whose, 0.0)
        };
        Some(RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost,
            text: format!("{}: the kernel reads {kib} KiB ahead: {whose}", replica.name),
            remedy: format!(
                "echo 8192 >/sys/class/bdi/{device}/read_ahead_kb  (after each mount; \
                 nfsrahead(5) of nfs-utils does that by udev: [nfsrahead] default=8192 in \
                 /etc/nfs.conf)"
            ),
        })
    })
}
