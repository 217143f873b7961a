//! The kernel's counters of one NFS mount's calls, from mountstats.
//!
//! The formats are those of `rpc_print_iostats` in net/sunrpc/stats.c, and of `xs_tcp_print_stats`
//! and similar functions in net/sunrpc/xprtsock.c. nfsiostat and mountstats(8) read the same:
//!
//! ```text
//!         age:    16
//!         xprt:   tcp 889 0 2 0 0 159 158 0 357 0 2 0 65
//!         per-op statistics
//!                 READ: 130 130 0 23400 67122384 2 74 87 0
//! ```
//!
//! All counters start at the mount. A connection that several mounts share counts the calls of all
//! of them.

use std::time::Duration;

use super::utf8;

/// Counters of one mount, since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfsStats {
    /// The age of the mount.
    pub age: Duration,
    /// One for each kind of call that the client made, in the kernel's order.
    pub calls: Vec<CallStats>,
    /// One for each connection, in the order of [`super::NfsMount::transports`].
    pub queues: Vec<QueueStats>,
}

/// The calls of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStats {
    /// `READ`, `GETATTR`, ...
    pub name: String,
    /// Number of calls.
    pub calls: u64,
    /// Transmissions; more than `calls` if the client retransmitted some.
    pub sent: u64,
    /// Major timeouts: `retrans` retries without an answer.
    pub timeouts: u64,
    /// Bytes received, headers included.
    pub received: u64,
    /// Total time in the send queue.
    pub queued: Duration,
    /// Total time from sending to the answer.
    pub round_trip: Duration,
    /// Total time from the call to its end.
    pub execute: Duration,
}

/// One connection's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Calls sent.
    pub sends: u64,
    /// Sum, over all sends, of the calls that waited for a slot. Divided by `sends` it is
    /// nfsiostat's "avg bklog".
    pub backlog: u64,
    /// Most calls in flight at once.
    pub max_slots: Option<u64>,
}

impl NfsStats {
    /// The calls of that name.
    pub fn call_stats(&self, name: &str) -> Option<&CallStats> {
        self.calls.iter().find(|call| call.name == name)
    }

    /// Parses one line of the mount's section of mountstats.
    pub(super) fn parse_line(&mut self, line: &[u8]) {
        let Some(line) = utf8(line) else { return };
        let mut words = line.split_ascii_whitespace();
        let Some(key) = words.next().and_then(|word| word.strip_suffix(':')) else { return };
        match key {
            "age" => {
                let seconds = words.next().and_then(|word| word.parse().ok());
                self.age = Duration::from_secs(seconds.unwrap_or_default());
            }
            "xprt" => self.queues.extend(parse_xprt(words)),
            // Only names of calls are in capitals.
            name if name.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                self.calls.extend(parse_call(name, words));
            }
            _ => {}
        }
    }
}

/// `KIND NUMBER...`; how many numbers come before `sends` depends on the kind.
fn parse_xprt<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<QueueStats> {
    let before = match words.next()? {
        "tcp" | "rdma" => 5,
        "local" => 4,
        "udp" => 2,
        _ => return None,
    };
    let rest: Vec<u64> = words.map_while(|word| word.parse().ok()).skip(before).collect();
    let [sends, _received, _bad, _requests, backlog, rest @ ..] = rest.as_slice() else {
        return None;
    };
    // RDMA has other counters after that.
    let max_slots = if before == 5 && rest.len() > 3 { None } else { rest.first().copied() };
    Some(QueueStats { sends: *sends, backlog: *backlog, max_slots })
}

/// `CALLS SENT TIMEOUTS BYTES_SENT BYTES_RECEIVED QUEUE_LEN RTT EXECUTE [ERRORS]`,
/// times in milliseconds; `None` if there was no call.
fn parse_call<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Option<CallStats> {
    let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let &[calls, sent, timeouts, _, received, queued, round_trip, whole, ..] = numbers.as_slice()
    else {
        return None;
    };
    let time = Duration::from_millis;
    let queued = time(queued);
    let round_trip = time(round_trip);
    let whole = time(whole);
    let name = name.to_owned();
    let stats =
        CallStats { name, calls, sent, timeouts, received, queued, round_trip, execute: whole };
    (calls > 0).then_some(stats)
}
