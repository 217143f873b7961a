//! The kernel's own TCP connections to NFS servers, as ss(8) shows them.
//!
//! Loss does not show in mountstats: over TCP the RPC layer sends nothing again.
//! Nor in `tcpi_total_retrans` for reads: their bytes come in, so it is the
//! server that sends again. What this end sees is that segments come out of order
//! behind a gap (`tcpi_rcv_ooopack`, Linux 5.4); with 3 % loss in the lab 4.5 % of
//! the data segments did, without loss none. /proc/net/tcp has only what is being
//! sent again at the moment. ss reads it from sock_diag, and its `key:value` text has
//! been stable for years.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use super::facts::TcpConnection;

/// Asks `ss` for the connections to a server's `port`; `None` where it cannot be asked.
pub(super) fn connections_to_port(port: u16) -> Option<Vec<TcpConnection>> {
    let output = Command::new("ss")
        .args(["-tinHO", "state", "established", &format!("dport = :{port}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| parse_ss(&String::from_utf8_lossy(&output.stdout)))
}

/// One connection a line; with a state in front or not.
pub(super) fn parse_ss(text: &str) -> Vec<TcpConnection> {
    text.lines().filter_map(parse_connection).collect()
}

fn parse_connection(line: &str) -> Option<TcpConnection> {
    let mut addresses = line.split_ascii_whitespace().filter_map(parse_address);
    let local = addresses.next()?;
    let remote = addresses.next()?;
    let value = |key: &str| {
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
    };
    let count = |key| value(key).and_then(|v| v.parse::<u64>().ok()).unwrap_or_default();
    // `retrans:NOW/ALL`, `rtt:MEAN/DEVIATION`.
    let retransmits = value("retrans").and_then(|v| v.split('/').nth(1)?.parse().ok());
    Some(TcpConnection {
        port: local.port(),
        server: canonical_address(remote.ip()).to_string(),
        segments_in: count("data_segs_in"),
        out_of_order: count("rcv_ooopack"),
        segments_out: count("data_segs_out"),
        retransmits: retransmits.unwrap_or_default(),
        bytes_in: count("bytes_received"),
        min_rtt_ms: value("minrtt").and_then(|v| v.parse().ok()),
        rtt_ms: value("rtt").and_then(|v| v.split('/').next()?.parse().ok()),
        mss: value("mss").and_then(|v| v.parse().ok()),
        advertised_mss: value("advmss").and_then(|v| v.parse().ok()),
        received_mss: value("rcvmss").and_then(|v| v.parse().ok()),
    })
}

/// `10.0.0.1:2049`, `[fd00::1]:2049`, `[::ffff:10.0.0.1]:2049`, `[fe80::1]%eth0:2049`.
fn parse_address(word: &str) -> Option<SocketAddr> {
    let (host, port) = word.rsplit_once(':')?;
    let host = host.split('%').next()?.trim_start_matches('[').trim_end_matches(']');
    Some(SocketAddr::new(host.parse().ok()?, port.parse().ok()?))
}

/// An IPv4 address that an IPv6 socket uses is an IPv4 address.
pub(super) fn canonical_address(address: IpAddr) -> IpAddr {
    address.to_canonical()
}
