//! Rules about how the replicas are mounted.

use super::remount::{self, PERSIST_HINT, TooFewConnections};
use super::{
    CheckOutcome, CheckStatus, FindingText, RawFinding, check_nfs_replicas, replica_share,
    replicas_text,
};
use crate::doctor::facts::{DoctorFacts, ExaminedReplica, NfsFacts};
use crate::format::{format_bytes, format_count};
use crate::mount_table::option_rules::OptionFault;
use crate::volume::shell_word;

/// In the lab, the rate falls to half or less from this number of calls per segment on.
pub(super) const MANY_CALLS: u64 = 32;

/// The fixed cost of one call, expressed in bytes: with READs of this size, the rate is half of
/// what unlimited READs reach. From the lab: benches/results/doctor.md.
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
        let source = replica.source.as_deref().filter(|_| replica.nfs.is_some());
        let source = source.map(|source| format!(", {source}")).unwrap_or_default();
        let (problem, evidence, remedy) = match replica.state {
            "ok" if replica.is_mounted || !want_mounts => return None,
            "ok" => {
                let fs_type = replica.fs_type.as_deref().unwrap_or("another file system");
                let point = replica.mount_point.as_deref().unwrap_or("/");
                let evidence = format!("{path} is a directory in {point}, {fs_type} (mount table)");
                ("is not mounted", evidence, format!("mount {}", shell_word(path)))
            }
            "absent" => ("does not exist", format!("{path}: ENOENT"), mkdir_remedy(path)),
            "not-a-directory" => {
                let remedy = "name the directory where the replica is mounted".to_owned();
                ("is not a directory", format!("{path}: ENOTDIR"), remedy)
            }
            "silent" => {
                let evidence = format!(
                    "{path}{source} did not answer within --deadline; its server may be down"
                );
                ("hangs", evidence, hung_remedy(replica))
            }
            _ if replica.is_export => {
                let error = replica.failure.as_deref().unwrap_or("unknown error");
                ("cannot be opened", format!("{path}: {error}"), export_remedy(replica))
            }
            _ => {
                let error = replica.failure.as_deref().unwrap_or("unknown error");
                let point = shell_word(replica.mount_point.as_deref().unwrap_or(path));
                let remedy = format!(
                    "`ls {}` shows the error; after \"Stale file handle\": umount -l {point} and \
                     mount it again",
                    shell_word(path)
                );
                ("cannot be opened", format!("{path}{source}: {error}"), remedy)
            }
        };
        let problem = format!("replica {} {problem}", replica.name);
        let text = FindingText::new(problem, evidence);
        let cost = replica_share(facts);
        Some(RawFinding { status: CheckStatus::Bad, replicas: vec![i], cost, text, remedy })
    };
    CheckOutcome::Checked(facts.replicas.iter().enumerate().filter_map(judge).collect())
}

fn mkdir_remedy(path: &str) -> String {
    format!("mkdir -p {0}  (then mount the replica there)", shell_word(path))
}

/// The command that shows what the server of an export offers.
fn export_remedy(replica: &ExaminedReplica) -> String {
    let server = replica.path.trim_start_matches("nfs://").split('/').next().unwrap_or_default();
    let server = match server.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => server.split(':').next().unwrap_or_default(),
    };
    format!("showmount -e {}", shell_word(server))
}

fn hung_remedy(replica: &ExaminedReplica) -> String {
    if replica.is_export {
        return export_remedy(replica);
    }
    match (&replica.nfs, &replica.mount_point) {
        (Some(nfs), _) => {
            let to = shell_word(nfs.addr.as_deref().unwrap_or(&nfs.server));
            let port = nfs.port;
            format!("ping {to}; nc -z -w3 {to} {port}; journalctl -k | grep 'not responding'")
        }
        (None, Some(point)) => {
            format!(
                "findmnt {0} shows the server or daemon; umount -l {0} detaches the mount",
                shell_word(point)
            )
        }
        (None, None) => "findmnt shows the server or daemon of the mount".to_owned(),
    }
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
            text: FindingText::new(
                format!(
                    "{} are one file system, so reading from more than one of them is no faster",
                    replicas_text(facts, group)
                ),
                format!("all have device number {device} (stat)"),
            ),
            remedy: "mount each from a different server, gateway or device, or keep only one"
                .into(),
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
        let trunked = remount::is_trunked(facts, group)?;
        let to = first.addr.as_deref().unwrap_or(&first.server);
        let kept_apart = group.iter().any(|i| nfs(*i).is_some_and(|nfs| nfs.nosharecache));
        let nosharecache =
            if kept_apart { "; nosharecache separates caches, not connections" } else { "" };
        let (origin, remedy) = if trunked {
            let all: Vec<String> =
                group[1..].iter().map(|i| remount::replica_remount_command(facts, *i)).collect();
            (
                "they were mounted from different addresses, which NFSv4.1 trunking detection \
                 found to be one server",
                format!(
                    "{}  (or use vers=4.0; or max_connect={}, Linux 5.15; or a network namespace \
                     for each mount){PERSIST_HINT}",
                    all.join("; "),
                    group.len()
                ),
            )
        } else {
            // Once the kernel also shares the mount, the second mount shows the first one's source.
            let origin = if first.version.as_deref() >= Some("4.1") {
                "they were mounted from one address, or from addresses that NFSv4.1 trunking \
                 detection found to be one server"
            } else {
                "they were mounted from one address"
            };
            let remedy = "mount each from a different server, or from a different address of this \
                          server with vers=3 or vers=4.0";
            (origin, remedy.to_owned())
        };
        let text = FindingText::new(
            format!(
                "{} share one NFS connection, so reading from more than one of them is no faster",
                replicas_text(facts, group)
            ),
            format!("all calls go to {to} (mount table, mountstats); {origin}{nosharecache}"),
        );
        let cost = shared_path_cost(facts, group);
        Some(RawFinding { status: CheckStatus::Bad, replicas: group.clone(), cost, text, remedy })
    };
    CheckOutcome::Checked(facts.one_connection.iter().filter_map(judge).collect())
}

/// The share of the rate that calls of `size` bytes lose to the fixed cost of calls, compared with
/// calls of `best` bytes.
pub(super) fn call_overhead_share(size: u64, best: u64) -> f64 {
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
            "another mount of this server on this machine has {}, so the server allows it",
            format_bytes(server)
        ),
        _ => "the server may limit it (Linux: /proc/fs/nfsd/max_block_size); /proc/mounts shows \
              the granted size"
            .to_owned(),
    };
    let point = shell_word(replica.mount_point.as_deref().unwrap_or_default());
    RawFinding {
        status: if calls >= MANY_CALLS { CheckStatus::Bad } else { CheckStatus::Warn },
        replicas: vec![i],
        cost: call_overhead_share(size, best) * replica_share(facts),
        text: FindingText::new(
            format!(
                "replica {} needs {calls} {} calls for {}",
                replica.name,
                if key == "rsize" { "READ" } else { "WRITE" },
                format_bytes(best)
            ),
            format!("{key} is {} (mount table); {known}", format_bytes(size)),
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
            text: FindingText::new(
                format!("replica {} is mounted read-only", facts.replicas[i].name),
                match is_writer {
                    true => "ro (mount table); it is the write replica, so all changes fail",
                    false => {
                        "ro (mount table), in a volume with access = \"rw\"; it cannot take the \
                         place of the write replica"
                    }
                },
            ),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn protocol(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let (protocol, evidence, cost) = match remount::outdated_protocol(nfs)? {
            true => ("NFSv2", "vers=2 (mount table): a READ has at most 8 KiB, a file 2 GiB", 0.5),
            false => {
                let evidence = "proto=udp (mount table): a READ has at most 32 KiB, and one lost \
                                fragment loses all of it";
                ("NFS over UDP", evidence, 0.3)
            }
        };
        Some(RawFinding {
            status: CheckStatus::Bad,
            replicas: vec![i],
            cost: cost * replica_share(facts),
            text: FindingText::new(format!("replica {} uses {protocol}", replica.name), evidence),
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
            text: FindingText::new(
                format!("replica {} has too few TCP connections for its link", replica.name),
                format!(
                    "{} through a link of {} Gbit/s; each is limited to one CPU core",
                    format_count(connections, "connection"),
                    link_mbit / 1000
                ),
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
        let effect = match (written, early) {
            (true, _) => {
                "; it is the write replica, so written data can be lost silently".to_owned()
            }
            (_, true) => format!(
                ", before [read] deadline = {} s, so a slow server causes read errors",
                facts.settings.deadline_s
            ),
            _ => ", so programs that use the mount directly get read errors".to_owned(),
        };
        let text = FindingText::new(
            format!("replica {} is mounted {}", replica.name, nfs.recovery),
            format!("unanswered calls fail{after} (mount table){effect}"),
        );
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
            text: FindingText::new(
                format!("replica {name} is mounted sync"),
                "sync (mount table): each write waits for the server's disk",
            ),
            remedy: remount::replica_remount_command(facts, i) + PERSIST_HINT,
        })
    })
}

pub(super) fn attributes(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_replicas(facts, |i, replica, nfs| {
        let [_, file_max, _, dir_max] = nfs.attribute_times_s;
        let longest = file_max.max(dir_max);
        let name = &replica.name;
        let ttl = facts.settings.attribute_ttl_s;
        let found = remount::option_faults(facts, i);
        let mounted = || remount::replica_remount_command(facts, i) + PERSIST_HINT;
        let is_old = |fault: &OptionFault| matches!(fault, OptionFault::AttributesBeyondLag(_));
        let (status, cost, text, remedy) = if found.contains(&OptionFault::AttributesUncached) {
            let evidence = format!(
                "noac or actimeo=0 (mount table): each lookup, open and stat is a call to the \
                 server; only fanfs caches, for [fuse] attribute_ttl = {ttl} s"
            );
            let text =
                FindingText::new(format!("replica {name} does not cache attributes"), evidence);
            (CheckStatus::Warn, NOAC_COST * replica_share(facts), text, mounted())
        } else if found.iter().any(is_old) {
            let text = FindingText::new(
                format!("replica {name} may show the state before a change"),
                format!(
                    "it caches attributes for up to {longest} s (mount table), longer than [write] \
                     lag = {} s",
                    facts.settings.lag_s
                ),
            );
            let remedy = format!(
                "set [write] lag = \"{}s\" in the volume's file, or {}",
                longest + 5,
                mounted()
            );
            (CheckStatus::Bad, 0.0, text, remedy)
        } else if ttl > longest as f64 {
            let text = FindingText::new(
                format!("changes on replica {name} appear later than its mount allows"),
                format!(
                    "[fuse] attribute_ttl = {ttl} s; the mount caches attributes for {longest} s \
                     (mount table)"
                ),
            );
            let remedy = format!("set [fuse] attribute_ttl = \"{longest}s\" in the volume's file");
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
            text: FindingText::new(
                format!("replica {} uses memory for a second copy of cached data", replica.name),
                format!(
                    "nosharecache (mount table) and page_cache = \"use\", and another replica \
                     mounts {} too",
                    replica.source.as_deref().unwrap_or_default()
                ),
            ),
            remedy: "set page_cache = \"auto\" for the replica in the volume's file".to_owned(),
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
        return CheckOutcome::Unknown("/sys/class/bdi does not show the readahead".to_owned());
    }
    check_nfs_replicas(facts, |i, replica, _: &NfsFacts| {
        let kib = replica.read_ahead_kib.filter(|kib| *kib < MIN_READAHEAD_KIB)?;
        let device = replica.device.as_deref()?;
        let (effect, cost) = if facts.volume.is_some() {
            ("it limits reads by passthrough", READAHEAD_COST * replica_share(facts))
        } else {
            ("it limits programs that read the mount directly; fanfs does not use it", 0.0)
        };
        Some(RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost,
            text: FindingText::new(
                format!("replica {} has a small kernel readahead", replica.name),
                format!("{kib} KiB, less than {MIN_READAHEAD_KIB} KiB (/sys/class/bdi): {effect}"),
            ),
            remedy: format!(
                "echo 8192 >/sys/class/bdi/{device}/read_ahead_kb  (repeat after each mount, or \
                 set [nfsrahead] default=8192 in /etc/nfs.conf: nfsrahead(5) of nfs-utils)"
            ),
        })
    })
}
