//! Probes the path to a server: the interface, the MTU, whether packets of that size arrive, and
//! the server's clock.
//!
//! The route is the kernel's own answer: connecting a UDP socket sends nothing, but gives the local
//! address and the path's MTU. ICMP echoes with fragmentation forbidden show whether packets of the
//! interface's MTU arrive. If Path MTU Discovery is filtered, a switch with a smaller MTU drops
//! them silently. A small echo is the control: if it is not answered either, nothing is known.
//! Clocks are compared by ICMP timestamps (RFC 792).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with, sockopt,
};

use super::clock;
use super::facts::ServerRoute;

/// How long to wait for an echo; a path between continents takes 0.3 s.
const ECHO_TIMEOUT: Duration = Duration::from_millis(500);

/// Tries for each size, because a single loss does not prove a small MTU.
const TRIES_PER_SIZE: u16 = 2;

/// The headers of IPv4 and ICMP, bytes.
const IP_ICMP_HEADER_BYTES: u64 = 28;

/// The kernel's route to `to`, without sending a packet; `None` if there is none.
pub(super) fn find_route(to: SocketAddr) -> Option<ServerRoute> {
    let any: SocketAddr =
        if to.is_ipv4() { "0.0.0.0:0".parse().ok()? } else { "[::]:0".parse().ok()? };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    let from = socket.local_addr().ok()?.ip();
    let mtu = if to.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    Some(ServerRoute {
        to: to.ip().to_string(),
        from: from.to_string(),
        interface: interface_with_address(from),
        mtu: mtu.ok().map(u64::from),
        ..ServerRoute::default()
    })
}

/// The interface that has this address.
fn interface_with_address(address: IpAddr) -> Option<String> {
    let mut all = nix::ifaddrs::getifaddrs().ok()?;
    let has = |one: &nix::ifaddrs::InterfaceAddress| {
        let storage = one.address.as_ref()?;
        let four = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        four.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    all.find(|one| has(one) == Some(address)).map(|one| one.interface_name)
}

/// The results of the echoes.
#[derive(Default)]
pub(super) struct EchoResults {
    pub(super) is_small_answered: Option<bool>,
    pub(super) is_large_answered: Option<bool>,
    pub(super) round_trip: Option<Duration>,
    pub(super) clock_ahead_s: Option<f64>,
}

/// Sends small echoes and echoes of `mtu` bytes, and asks for the server's time. The results are
/// unknown for IPv6, and if this process may not send ICMP.
pub(super) fn send_echoes(to: IpAddr, mtu: Option<u64>) -> EchoResults {
    let IpAddr::V4(to) = to else { return EchoResults::default() };
    let Ok(icmp) = IcmpSocket::open(to) else { return EchoResults::default() };
    let mut echoes = EchoResults::default();
    let small = icmp.echo(56);
    echoes.is_small_answered = Some(small.is_some());
    echoes.round_trip = small;
    if small.is_some() {
        // The loopback's MTU of 65536 exceeds the largest packet.
        let body = mtu.map(|mtu| mtu.min(65_535).saturating_sub(IP_ICMP_HEADER_BYTES) as usize);
        echoes.is_large_answered = body.map(|body| icmp.echo(body).is_some());
        echoes.clock_ahead_s = icmp.measure_clock_ahead();
    }
    echoes
}

const ICMP_ECHO_REPLY: u8 = 0;
const ICMP_ECHO: u8 = 8;
const ICMP_TIMESTAMP: u8 = 13;
const ICMP_TIMESTAMP_REPLY: u8 = 14;

/// A raw socket for ICMP; needs CAP_NET_RAW.
struct IcmpSocket {
    socket: OwnedFd,
    id: u16,
}

impl IcmpSocket {
    fn open(to: Ipv4Addr) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        // Forbid fragmentation, and ignore the kernel's cached path MTU.
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::PROBE)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ECHO_TIMEOUT / 5))?;
        // The kernel then passes on only packets from that address.
        connect(&socket, &SocketAddrV4::new(to, 0))?;
        // The id depends on the address, because replicas are probed at the same time.
        let id = (std::process::id() as u16).rotate_left(3)
            ^ u16::from(to.octets()[2]) << 8
            ^ u16::from(to.octets()[3]);
        Ok(Self { socket, id })
    }

    /// The round-trip time of an echo with a body of this length.
    fn echo(&self, body: usize) -> Option<Duration> {
        (0..TRIES_PER_SIZE).find_map(|seq| {
            let sent = Instant::now();
            self.request(ICMP_ECHO, seq, &vec![0x5a; body], ICMP_ECHO_REPLY).map(|_| sent.elapsed())
        })
    }

    /// How far the server's clock is ahead, seconds.
    fn measure_clock_ahead(&self) -> Option<f64> {
        let sent = millis_since_midnight();
        let mut body = [0_u8; 12];
        body[..4].copy_from_slice(&sent.to_be_bytes());
        let reply = self.request(ICMP_TIMESTAMP, 0, &body, ICMP_TIMESTAMP_REPLY)?;
        clock_ahead_from_timestamps(sent, reply.get(8..20)?, millis_since_midnight())
    }

    /// Sends a message and returns its reply.
    fn request(&self, kind: u8, seq: u16, body: &[u8], wanted: u8) -> Option<Vec<u8>> {
        let message = icmp_message(kind, self.id, seq, body);
        send(&self.socket, &message, SendFlags::empty()).ok()?;
        let until = Instant::now() + ECHO_TIMEOUT;
        let mut buffer = vec![0_u8; 65_536];
        while Instant::now() < until {
            // The socket receives every ICMP message from that address, including replies to
            // others.
            let Ok((n, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()) else {
                continue;
            };
            let reply = icmp_payload(&buffer[..n]);
            if let Some(reply) = reply.filter(|reply| is_reply_to(reply, wanted, &message)) {
                return Some(reply.to_vec());
            }
        }
        None
    }
}

/// An ICMP message with its checksum.
fn icmp_message(kind: u8, id: u16, seq: u16, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(id.to_be_bytes());
    message.extend(seq.to_be_bytes());
    message.extend(body);
    let mut sum: u32 = message
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    message
}

/// The ICMP message in an IPv4 packet.
fn icmp_payload(packet: &[u8]) -> Option<&[u8]> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    packet.get(header..).filter(|message| message.len() >= 8)
}

/// Whether `reply` has the expected type, and the id, sequence number and length of `asked`. An
/// echo reply returns the whole body, and a timestamp reply has the request's length.
fn is_reply_to(reply: &[u8], wanted: u8, asked: &[u8]) -> bool {
    reply[0] == wanted && reply[4..8] == asked[4..8] && reply.len() == asked.len()
}

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since midnight UTC.
fn millis_since_midnight() -> u32 {
    (clock::unix_time().as_millis() % DAY_MS as u128) as u32
}

/// The clock difference from a timestamp reply (RFC 792), computed as in NTP; seconds.
fn clock_ahead_from_timestamps(sent: u32, times: &[u8], back: u32) -> Option<f64> {
    let time = |at: usize| Some(u32::from_be_bytes(times.get(at..at + 4)?.try_into().ok()?));
    let received = time(4)?;
    let transmitted = time(8)?;
    // The highest bit means that the value is not in milliseconds since midnight.
    if (received | transmitted) >> 31 != 0 {
        return None;
    }
    let difference = |a: u32, b: u32| {
        let d = i64::from(a) - i64::from(b);
        (d + DAY_MS / 2).rem_euclid(DAY_MS) - DAY_MS / 2
    };
    let ahead = difference(received, sent) + difference(transmitted, back);
    Some(ahead as f64 / 2000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_follow_rfc_1071() {
        // An echo as ping(8) sends it: id 1, sequence 1, no data.
        assert_eq!(icmp_message(8, 1, 1, &[]), [8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
        assert_eq!(icmp_message(8, 1, 1, &[0xff])[2..4], [0xf8, 0xfc]);
    }

    #[test]
    fn a_message_is_found_behind_options() {
        let mut packet = vec![0x46; 24];
        packet.extend(icmp_message(0, 7, 9, b"x"));
        let reply = icmp_payload(&packet).expect("a message");
        assert!(is_reply_to(reply, 0, &icmp_message(8, 7, 9, b"x")));
        assert!(!is_reply_to(reply, 0, &icmp_message(8, 7, 8, b"x")), "another sequence");
        assert!(!is_reply_to(reply, 0, &icmp_message(8, 6, 9, b"x")), "another asker");
        assert!(!is_reply_to(reply, 0, &icmp_message(8, 7, 9, b"xx")), "another size");
        assert!(!is_reply_to(reply, 14, &icmp_message(8, 7, 9, b"x")), "another kind");
        assert_eq!(icmp_payload(&packet[..27]), None);
        assert_eq!(icmp_payload(&[]), None);
    }

    #[test]
    fn the_clock_offset_is_the_mean_of_both_directions() {
        let times = |received: u32, sent: u32| {
            let mut bytes = [0; 12];
            bytes[4..8].copy_from_slice(&received.to_be_bytes());
            bytes[8..].copy_from_slice(&sent.to_be_bytes());
            bytes
        };
        // Sent at 1000, received at 1020; the other clock is 5 s ahead, and it answered midway.
        assert_eq!(clock_ahead_from_timestamps(1000, &times(6010, 6010), 1020), Some(5.0));
        assert_eq!(clock_ahead_from_timestamps(1000, &times(1010, 1010), 1020), Some(0.0));
        // Across midnight.
        assert_eq!(clock_ahead_from_timestamps(86_399_990, &times(10, 10), 86_399_990), Some(0.02));
        assert_eq!(clock_ahead_from_timestamps(0, &times(1 << 31, 5), 0), None);
        assert_eq!(clock_ahead_from_timestamps(0, &[0; 3], 0), None);
    }

    #[test]
    fn this_machine_is_reached_through_the_loopback() {
        let route = find_route(SocketAddr::from(([127, 0, 0, 1], 2049))).expect("a route");
        assert_eq!((route.from.as_str(), route.interface.as_deref()), ("127.0.0.1", Some("lo")));
        assert!(route.mtu.expect("an MTU") > 1000);
        let echoes = send_echoes(IpAddr::V4(Ipv4Addr::LOCALHOST), Some(1500));
        // This needs root. If the machine does not answer, the test checks nothing.
        if echoes.is_small_answered == Some(true) {
            assert_eq!(echoes.is_large_answered, Some(true));
            assert!(echoes.clock_ahead_s.is_none_or(|ahead| ahead.abs() < 1.0));
        }
    }
}
