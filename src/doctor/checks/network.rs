//! Rules about the path to the servers: calls, packets, links, clocks.

use super::rates::{is_latency_outlier, median};
use super::remount::{MIN_BACKLOG, PERSIST_HINT, replica_remount_command};
use super::{
    CheckOutcome, CheckStatus, FindingText, RawFinding, check_nfs_replicas, check_servers,
    replica_share,
};
use crate::doctor::facts::{
    DoctorFacts, ExaminedReplica, NetworkInterface, ReadCallStats, ServerRoute, TcpConnection,
};
use crate::format::{format_bytes, format_count, format_mib_rate, format_percent_precise};
use crate::volume::shell_word;

/// With fewer calls, a share of them means nothing.
pub(super) const MIN_CALLS: u64 = 100;

/// Over TCP, the client sends a call again only after `timeo` (60 s) or a broken connection. So one
/// call in a thousand indicates a server that goes away. "Managing NFS and NIS" (Stern) calls 5 %
/// of all calls bad, for UDP.
pub(super) const RETRANSMIT_SHARE: f64 = 0.001;
pub(super) const HIGH_RETRANSMIT_SHARE: f64 = 0.05;

/// With fewer READs, their mean means nothing: it may include a disk's spin-up.
const MIN_READS: u64 = 1000;

/// With fewer segments, a share of them means nothing.
const MIN_SEGMENTS: u64 = 1000;

/// The share of segments that came out of order or were retransmitted. TCP's rate is at most 1.22
/// MSS / (RTT sqrt(loss)) (Mathis 1997). With 1448 bytes and 1 ms, a loss of 1e-3 leaves 56 MB/s
/// and 1e-2 leaves 18 MB/s. The segments behind a lost one count as out of order too, so the share
/// is above the loss.
const LOSS_SHARE: f64 = 1e-3;
const HIGH_LOSS_SHARE: f64 = 1e-2;

/// The kernel's overhead takes half of a receive buffer (tcp(7), tcp_adv_win_scale 1).
const WINDOW_SHARE_OF_BUFFER: f64 = 0.5;

/// One gigabit: 118 MB/s, less than any single gateway that is worth combining with others.
const SLOW_LINK_MBIT: u64 = 1000;

/// The most that the headers and options of IP and TCP take of a packet, with a margin for tunnels,
/// bytes.
const TCP_IP_HEADER_BYTES: u64 = 100;

/// The MTU of Ethernet, bytes.
const ETHERNET_MTU: u64 = 1500;

/// NFS servers stamp changes with their own clocks. make(1) compares these times, and so does fanfs
/// for recent changes. One second is the resolution of old filesystems, and far above NTP's
/// milliseconds.
const MAX_CLOCK_SKEW_S: f64 = 1.0;

pub(super) fn retransmits(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_with_counters(facts, |i, replica| {
        let nfs = replica.nfs.as_ref()?;
        let share = nfs.retransmits as f64 / nfs.calls.max(1) as f64;
        let wrong = nfs.calls >= MIN_CALLS && share >= RETRANSMIT_SHARE;
        wrong.then(|| RawFinding {
            status: if share >= HIGH_RETRANSMIT_SHARE {
                CheckStatus::Bad
            } else {
                CheckStatus::Warn
            },
            replicas: vec![i],
            cost: (share * 5.0).min(0.9) * replica_share(facts),
            text: FindingText::new(
                format!("replica {} retransmits RPC calls", replica.name),
                format!(
                    "{} of {} calls since the mount ({}, mountstats); the server was down, or is \
                     overloaded",
                    nfs.retransmits,
                    nfs.calls,
                    format_percent_precise(share)
                ),
            ),
            remedy: format!(
                "journalctl -k | grep {}; on the server: nfsstat -s, and more threads (rpc.nfsd N)",
                shell_word(&nfs.server)
            ),
        })
    })
}

pub(super) fn timeouts(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_with_counters(facts, |i, replica| {
        let nfs = replica.nfs.as_ref()?;
        (nfs.timeouts > 0).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.0,
            text: FindingText::new(
                format!(
                    "the server {} left calls of replica {} unanswered",
                    nfs.server, replica.name
                ),
                format!(
                    "{} since the mount (mountstats): no reply after all retransmissions",
                    format_count(nfs.timeouts, "major timeout")
                ),
            ),
            remedy: format!("journalctl -k | grep 'server {} not'", nfs.server),
        })
    })
}

pub(super) fn backlog(facts: &DoctorFacts) -> CheckOutcome {
    check_nfs_with_counters(facts, |i, replica| {
        let nfs = replica.nfs.as_ref()?;
        let backlog = nfs.backlog.filter(|backlog| *backlog >= MIN_BACKLOG)?;
        // The kernel counts the slots of the connection, not those of an NFSv4.1 session.
        let rdma = nfs.proto.as_deref().is_some_and(|proto| proto.starts_with("rdma"));
        let remedy = if rdma {
            "sysctl -w sunrpc.rdma_slot_table_entries=1024, then mount again".to_owned()
        } else {
            let key = "tcp_max_slot_table_entries=65536";
            format!(
                "sysctl -w sunrpc.{key} (the kernel's default), then mount again (permanently: \
                 `options sunrpc {key}` in /etc/modprobe.d); or {}{PERSIST_HINT}",
                replica_remount_command(facts, i)
            )
        };
        Some(RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.2 * replica_share(facts),
            text: FindingText::new(
                format!("replica {} has too few RPC slots", replica.name),
                format!(
                    "on average {backlog:.1} calls wait for a slot of the connection at each send \
                     (mountstats, since the mount)"
                ),
            ),
            remedy,
        })
    })
}

/// Finds a slow gateway from past traffic, without reading anything.
pub(super) fn round_trips(facts: &DoctorFacts) -> CheckOutcome {
    let reads = |replica: &ExaminedReplica| -> Option<ReadCallStats> {
        replica.nfs.as_ref()?.reads.clone().filter(|reads| reads.calls >= MIN_READS)
    };
    check_nfs_with_counters(facts, |i, replica| {
        let mine = reads(replica)?;
        let like_mine = |reads: &ReadCallStats| {
            // Compare only READs of similar size: large ones take longer.
            reads.bytes_each <= 2 * mine.bytes_each && mine.bytes_each <= 2 * reads.bytes_each
        };
        let others = facts.replicas.iter().enumerate().filter(|(j, _)| *j != i);
        let others = others.filter_map(|(_, other)| reads(other)).filter(like_mine);
        let other = median(others.map(|reads| reads.round_trip_ms).collect())?;
        is_latency_outlier(mine.round_trip_ms, other).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: (1.0 - other / mine.round_trip_ms) * replica_share(facts),
            text: FindingText::new(
                format!("replica {} answers READs late", replica.name),
                format!(
                    "a READ of {} KiB has a mean round trip of {:.1} ms, on the other replicas \
                     {other:.1} ms (mountstats, since the mount)",
                    mine.bytes_each / 1024,
                    mine.round_trip_ms
                ),
            ),
            remedy: "nfsiostat 1 shows whether it is still slow; check the network path (ping, \
                     traceroute), and the server's load and disks (iostat -x 1 there); --measure \
                     compares the replicas now"
                .to_owned(),
        })
    })
}

/// Applies a rule to each NFS replica, if mountstats has counters.
fn check_nfs_with_counters(
    facts: &DoctorFacts,
    rule: impl Fn(usize, &ExaminedReplica) -> Option<RawFinding>,
) -> CheckOutcome {
    let mut of_nfs_mounts = facts.replicas.iter().filter_map(|replica| replica.nfs.as_ref());
    if facts.replicas.iter().any(|r| r.nfs.is_some()) && of_nfs_mounts.all(|n| n.age_s.is_none()) {
        return CheckOutcome::Unknown(
            "/proc/self/mountstats has no counters of these mounts".to_owned(),
        );
    }
    check_nfs_replicas(facts, |i, replica, _| rule(i, replica))
}

/// Why the connections are unknown, if they are.
fn connections_unknown(facts: &DoctorFacts) -> Option<CheckOutcome> {
    let mut tcp = facts.replicas.iter().filter(|r| r.server().is_some()).peekable();
    tcp.peek()?;
    if !facts.machine.lists_connections {
        let why = "the kernel does not list its TCP connections (module tcp_diag)";
        return Some(CheckOutcome::Unknown(why.to_owned()));
    }
    let seen = |r: &ExaminedReplica| r.connections.as_ref().is_some_and(|all| !all.is_empty());
    let why = match facts.replicas.iter().any(|replica| replica.nfs.is_some()) {
        true => {
            "no TCP connection to the servers is visible: the mounts belong to another network \
             namespace, or do not use TCP"
        }
        false => {
            "no TCP connection to the servers is visible: the volume is not mounted, or in another \
             network namespace; --measure makes some"
        }
    };
    (!tcp.any(seen)).then(|| CheckOutcome::Unknown(why.to_owned()))
}

pub(super) fn loss(facts: &DoctorFacts) -> CheckOutcome {
    if let Some(unknown) = connections_unknown(facts) {
        return unknown;
    }
    check_servers(facts, |i, replica, server| {
        let all = replica.connections.as_ref()?;
        let sum = |field: fn(&TcpConnection) -> u64| all.iter().map(field).sum::<u64>();
        let received = sum(|c| c.segments_in);
        let late = sum(|c| c.out_of_order);
        let sent = sum(|c| c.segments_out);
        let again = sum(|c| c.retransmits);
        let share = |part: u64, of: u64| {
            if of < MIN_SEGMENTS { 0.0 } else { part as f64 / of as f64 }
        };
        let worst = share(late, received).max(share(again, sent));
        if worst < LOSS_SHARE {
            return None;
        }
        let much = worst >= HIGH_LOSS_SHARE;
        let interface = replica.route.as_ref().and_then(|route| route.interface.as_deref());
        let interface = interface.unwrap_or("INTERFACE");
        let percent = |part: u64, of: u64| format_percent_precise(part as f64 / of.max(1) as f64);
        Some(RawFinding {
            status: if much { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: if much { 0.5 } else { 0.2 } * replica_share(facts),
            text: FindingText::new(
                format!("replica {} loses or reorders packets from {server}", replica.name),
                format!(
                    "{late} of {received} received segments came out of order ({}), {again} of \
                     {sent} sent segments were retransmitted ({}) (tcp_info, as in ss -ti)",
                    percent(late, received),
                    percent(again, sent)
                ),
            ),
            remedy: format!(
                "ethtool -S {interface} | grep -iE 'err|drop|crc'; check the same counters at the \
                 switch port and the server; look for a duplex mismatch, a bad cable or a full \
                 queue (a new connection resets the counts of segments)"
            ),
        })
    })
}

fn interface_of<'a>(
    facts: &'a DoctorFacts,
    replica: &ExaminedReplica,
) -> Option<&'a NetworkInterface> {
    let name = replica.route.as_ref()?.interface.as_ref()?;
    facts.interfaces.iter().find(|one| one.name == *name)
}

/// The link speed, if it is real: the driver of a virtual device reports a made-up one.
fn known_speed_mbit(interface: &NetworkInterface) -> Option<u64> {
    interface.speed_mbit.filter(|_| !interface.is_virtual)
}

pub(super) fn window(facts: &DoctorFacts) -> CheckOutcome {
    let Some(buffer) = facts.machine.tcp_receive_buffer else {
        return CheckOutcome::Unknown("net.ipv4.tcp_rmem cannot be read".to_owned());
    };
    if let Some(unknown) = connections_unknown(facts) {
        return unknown;
    }
    check_servers(facts, |i, replica, server| {
        let all = replica.connections.as_ref()?;
        let rtt = all.iter().filter_map(|c| c.min_rtt_ms.or(c.rtt_ms)).fold(None, min_of)?;
        let link = interface_of(facts, replica).and_then(known_speed_mbit)?;
        let needed = link as f64 * 1e6 / 8.0 * rtt / 1e3;
        let has = buffer as f64 * WINDOW_SHARE_OF_BUFFER * all.len().max(1) as f64;
        if needed <= has {
            return None;
        }
        let wanted = ((needed / WINDOW_SHARE_OF_BUFFER) as u64).next_power_of_two();
        Some(RawFinding {
            status: if has < needed / 2.0 { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: (1.0 - has / needed) * replica_share(facts),
            text: FindingText::new(
                format!("replica {} has too small a TCP receive buffer for its link", replica.name),
                format!(
                    "{link} Mbit/s x {rtt:.1} ms round trip need {} in flight; {} can hold {} \
                     (half of net.ipv4.tcp_rmem's maximum, {buffer} bytes)",
                    format_bytes(needed as u64),
                    format_count(all.len() as u64, "connection"),
                    format_bytes(has as u64)
                ),
            ),
            remedy: format!(
                "sysctl -w net.ipv4.tcp_rmem='4096 131072 {wanted}' (and tcp_wmem on {server}), \
                 then mount again"
            ),
        })
    })
}

fn min_of(least: Option<f64>, one: f64) -> Option<f64> {
    Some(least.map_or(one, |least| least.min(one)))
}

pub(super) fn mtu(facts: &DoctorFacts) -> CheckOutcome {
    let routed = || facts.replicas.iter().filter_map(|replica| replica.route.as_ref());
    if facts.replicas.iter().any(|r| r.server().is_some()) && routed().next().is_none() {
        return CheckOutcome::Unknown("no route to the servers was found".to_owned());
    }
    check_servers(facts, |i, replica, _| {
        let small = SmallPathMtu::find(facts, replica)?;
        let name = &small.interface.name;
        let status = if small.stalls { CheckStatus::Bad } else { CheckStatus::Warn };
        Some(RawFinding {
            status,
            replicas: vec![i],
            cost: if small.stalls { 0.5 } else { 0.1 } * replica_share(facts),
            text: FindingText::new(
                format!(
                    "the path to replica {} has a smaller MTU than the interface {name}",
                    replica.name
                ),
                format!(
                    "{name} has an MTU of {} bytes; {}; {}",
                    small.mtu,
                    small.cause(),
                    if small.stalls {
                        "connections stall when the path silently drops large segments"
                    } else {
                        "small segments cost CPU time, and new connections may stall"
                    }
                ),
            ),
            remedy: format!(
                "set one MTU on the server, the switches and this machine; `ping -M do -s {} {}` \
                 gets answers when it is right{}",
                small.mtu.saturating_sub(28),
                small.route.to,
                small.workaround().unwrap_or_default()
            ),
        })
    })
}

/// A path whose MTU is smaller than its interface's.
struct SmallPathMtu<'a> {
    route: &'a ServerRoute,
    interface: &'a NetworkInterface,
    /// The interface's MTU.
    mtu: u64,
    /// The path's MTU, if the kernel knows it.
    believed: Option<u64>,
    /// Whether this machine sends large segments that the path drops.
    stalls: bool,
}

impl<'a> SmallPathMtu<'a> {
    fn find(facts: &'a DoctorFacts, replica: &'a ExaminedReplica) -> Option<Self> {
        let route = replica.route.as_ref()?;
        let interface = interface_of(facts, replica)?;
        let mtu = interface.mtu?;
        let believed = route.mtu.filter(|path| *path < mtu);
        let connections = replica.connections.as_deref().unwrap_or_default();
        // Firewalls drop large echoes too. Received segments of that size prove that the path
        // carries them.
        let came = connections
            .iter()
            .filter_map(|connection| connection.received_mss)
            .any(|mss| mss + TCP_IP_HEADER_BYTES >= mtu);
        let is_dropped = route.small_echo == Some(true) && route.large_echo == Some(false) && !came;
        if !is_dropped && believed.is_none() {
            return None;
        }
        // If TCP agreed on smaller segments at the start, data gets through.
        let largest = connections.iter().filter_map(|connection| connection.mss).max();
        let is_agreed = largest.is_some_and(|mss| mss + TCP_IP_HEADER_BYTES < mtu);
        let stalls = is_dropped && !is_agreed && mtu > ETHERNET_MTU;
        Some(Self { route, interface, mtu, believed, stalls })
    }

    fn cause(&self) -> String {
        match self.believed {
            Some(path) => format!("the kernel's path MTU is {path} bytes"),
            None => format!(
                "{} answers small echoes, but not unfragmented echoes of {} bytes",
                self.route.to, self.mtu
            ),
        }
    }

    /// A workaround for the time until the fix. It names an MTU only if one is known that is
    /// smaller than the current one.
    fn workaround(&self) -> Option<String> {
        let smaller = self.believed.or((self.mtu > ETHERNET_MTU).then_some(ETHERNET_MTU))?;
        let to = &self.route.to;
        Some(format!(
            "; until then: ip route replace {to} dev {} mtu {smaller} (add `via GATEWAY` if \
             `ip route get {to}` shows one), then mount again",
            self.interface.name
        ))
    }
}

pub(super) fn link(facts: &DoctorFacts) -> CheckOutcome {
    if facts.replicas.iter().all(|replica| replica.server().is_none()) {
        return CheckOutcome::NotApplicable;
    }
    let known: Vec<_> =
        facts.interfaces.iter().filter_map(|i| Some((i, known_speed_mbit(i)?))).collect();
    if known.is_empty() {
        return CheckOutcome::Unknown("no interface reports its speed".to_owned());
    }
    let judge = |(interface, mbit): (&NetworkInterface, u64)| {
        let behind = facts.replicas.iter().enumerate();
        let behind = behind.filter(|(_, replica)| {
            replica.route.as_ref().and_then(|r| r.interface.as_ref()) == Some(&interface.name)
        });
        let behind: Vec<usize> = behind.map(|(i, _)| i).collect();
        let few = mbit <= SLOW_LINK_MBIT
            && !behind.is_empty()
            && (behind.len() > 1 || mbit < SLOW_LINK_MBIT);
        few.then(|| RawFinding {
            status: if mbit < SLOW_LINK_MBIT { CheckStatus::Bad } else { CheckStatus::Warn },
            cost: (behind.len() as f64 - 1.0).max(0.5) * replica_share(facts),
            text: FindingText::new(
                format!(
                    "the interface {} limits {}",
                    interface.name,
                    format_count(behind.len() as u64, "replica")
                ),
                format!(
                    "its speed is {mbit} Mbit/s (/sys/class/net), at most {} for all of them",
                    format_mib_rate(mbit as f64 * 1e6 / 8.0)
                ),
            ),
            remedy: format!(
                "ethtool {} shows whether it negotiated its full speed; otherwise use a faster \
                 interface, a bond, or replicas behind another interface",
                interface.name
            ),
            replicas: behind,
        })
    };
    CheckOutcome::Checked(known.into_iter().filter_map(judge).collect())
}

pub(super) fn clocks(facts: &DoctorFacts) -> CheckOutcome {
    let nfs = facts.replicas.iter().any(|replica| replica.server().is_some());
    if facts.replicas.iter().all(|replica| replica.clock_ahead_s.is_none()) {
        let why = "the servers' clocks are unknown: no answer to ICMP timestamps, which need root; \
                   --write compares the time of a new file";
        return if nfs {
            CheckOutcome::Unknown(why.to_owned())
        } else {
            CheckOutcome::NotApplicable
        };
    }
    let judge = |(i, replica): (usize, &ExaminedReplica)| {
        let ahead = replica.clock_ahead_s.filter(|ahead| ahead.abs() >= MAX_CLOCK_SKEW_S)?;
        let way = if ahead > 0.0 { "ahead of" } else { "behind" };
        Some(RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.0,
            text: FindingText::new(
                format!(
                    "the clock of replica {}'s server is wrong, or this machine's is",
                    replica.name
                ),
                format!(
                    "it is {:.1} s {way} this machine's (ICMP timestamp, new file, or time of the \
                     root); file times are misleading",
                    ahead.abs()
                ),
            ),
            remedy: "run chronyc tracking or timedatectl on both; use one NTP server for all"
                .to_owned(),
        })
    };
    CheckOutcome::Checked(facts.replicas.iter().enumerate().filter_map(judge).collect())
}
