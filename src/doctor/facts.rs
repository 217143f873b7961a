//! All collected facts, as `fanfs doctor --json` prints them.
//!
//! *Invariant:* a fact that could not be collected is null, never a default.

use std::net::IpAddr;

use serde::Serialize;

/// The facts, before any check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DoctorFacts {
    /// The volume's name; null for bare paths.
    pub volume: Option<String>,
    /// The volume's configuration file; null for bare paths.
    pub source: Option<String>,
    /// The volume's settings, or the defaults.
    pub settings: VolumeSettings,
    /// This machine.
    pub machine: MachineFacts,
    /// The interfaces that the replicas' routes use.
    pub interfaces: Vec<NetworkInterface>,
    /// The replicas, in the order of the command line or the configuration.
    pub replicas: Vec<ExaminedReplica>,
    /// Groups of NFS replicas, by index, that share one connection.
    pub one_connection: Vec<Vec<usize>>,
    /// Groups of exports, by index, whose addresses are of one server; null if no two of them are
    /// on NFSv4.1, which alone shows it, or a server did not answer.
    pub one_server: Option<Vec<Vec<usize>>>,
    /// Groups of other replicas, by index, that are on one filesystem.
    pub one_file_system: Vec<Vec<usize>>,
    /// Errors of `fanfs check`: the replicas, by index, the text, and whether fanfs refuses to
    /// mount the volume because of it.
    pub refused: Vec<(Vec<usize>, String, bool)>,
    /// Mount points of this volume whose daemons have died (`dead`) or do not answer
    /// (`silent`).
    pub unserved: Vec<(String, &'static str)>,
    /// Mount points of this volume whose keepers have died.
    pub unkept: Vec<String>,
    /// The measured rates; null without `--measure`.
    pub measured: Option<MeasuredRates>,
    /// What the volume's daemon knows of the placement; `None` without a provider or a daemon.
    pub placement: Option<PlacementFacts>,
}

/// What a volume's daemon knows of the placement of the files that it has read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlacementFacts {
    /// The provider.
    pub provider: String,
    /// Files whose chunks were located.
    pub located: u64,
    /// The mean time of an answer, milliseconds.
    pub answer_ms: u64,
    /// Why the last query failed, if it did.
    pub failing: Option<String>,
    /// Names of nodes that no replica has.
    pub unmatched: Vec<String>,
    /// Replicas whose nodes no answer has named.
    pub unnamed: Vec<String>,
    /// What the provider says of the cluster.
    pub notes: Vec<String>,
}

/// The configuration keys that the checks use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VolumeSettings {
    /// `[read] segment_size`, bytes.
    pub segment_size: u64,
    /// `[read] deadline`, seconds.
    pub deadline_s: f64,
    /// `[volume] access = "rw"`.
    pub writes: bool,
    /// `[read] passthrough` is not off.
    pub passthrough: bool,
    /// `[write] lag`, seconds.
    pub lag_s: f64,
    /// `[write] replica`, by index.
    pub write_replica: usize,
    /// `[fuse] attribute_ttl`, seconds.
    pub attribute_ttl_s: f64,
    /// `[fuse] allow_other`.
    pub allow_other: bool,
    /// `[fuse] max_background`.
    pub max_background: u64,
}

/// This machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MachineFacts {
    /// `uname -r`.
    pub kernel: Option<String>,
    /// Whether this process is root.
    pub root: bool,
    /// Whether `/dev/fuse` exists.
    pub fuse_device: bool,
    /// Whether `fusermount3` is in `PATH`.
    pub fusermount3: bool,
    /// Whether `/etc/fuse.conf` has `user_allow_other`.
    pub user_allow_other: bool,
    /// `fs.fuse.max_pages_limit` (Linux 6.13), pages.
    pub fuse_max_pages: Option<u64>,
    /// `max_user_bgreq` of the module fuse: the most background requests of a mount by an ordinary
    /// user.
    pub fuse_max_user_background: Option<u64>,
    /// The hard limit of open files; null if there is none.
    pub open_files: Option<u64>,
    /// The largest value of `net.ipv4.tcp_rmem`, bytes.
    pub tcp_receive_buffer: Option<u64>,
    /// The page size, bytes.
    pub page: u64,
    /// Whether the kernel listed its TCP connections to NFS servers.
    #[serde(rename = "ss")]
    pub lists_connections: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NetworkInterface {
    /// The name, such as `eth0`.
    pub name: String,
    /// Mbit/s; null if the driver does not report it.
    pub speed_mbit: Option<u64>,
    /// The MTU, bytes.
    pub mtu: Option<u64>,
    /// Whether the driver made the speed up, because the device has none (veth, bridge, tun).
    pub is_virtual: bool,
}

/// One replica.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExaminedReplica {
    /// Its name.
    pub name: String,
    /// Its path or address, as configured.
    pub path: String,
    /// Whether it is an NFS server's export, which needs no mount.
    pub is_export: bool,
    /// The mount point of its filesystem.
    pub mount_point: Option<String>,
    /// Whether it is itself a mount point, or on a network filesystem. False if it did not answer.
    pub is_mounted: bool,
    /// `ok`, `absent`, `not-a-directory`, `failed` or `silent`.
    pub state: &'static str,
    /// The system's error message if the state is `failed`.
    pub failure: Option<String>,
    /// The filesystem type.
    pub fs_type: Option<String>,
    /// The device, or `SERVER:/path`.
    pub source: Option<String>,
    /// `major:minor`.
    pub device: Option<String>,
    /// Whether fanfs reads it through the page cache.
    pub page_cache: bool,
    /// The kernel's readahead for it, KiB.
    pub read_ahead_kib: Option<u64>,
    /// For NFS, the mount.
    pub nfs: Option<NfsFacts>,
    /// The export, if it is one and answers.
    pub export: Option<ExportFacts>,
    /// For NFS, the path to the server.
    pub route: Option<ServerRoute>,
    /// Its TCP connections; null where they cannot be seen.
    pub connections: Option<Vec<TcpConnection>>,
    /// How far the server's clock is ahead of this machine's, seconds.
    pub clock_ahead_s: Option<f64>,
}

impl ExaminedReplica {
    /// The server of an NFS mount or of an export, as it was named.
    pub(super) fn server(&self) -> Option<&str> {
        let of_mount = self.nfs.as_ref().map(|nfs| nfs.server.as_str());
        of_mount.or(self.export.as_ref().map(|export| export.server.as_str()))
    }

    /// The server's port.
    pub(super) fn server_port(&self) -> Option<u16> {
        let of_mount = self.nfs.as_ref().map(|nfs| nfs.port);
        of_mount.or(self.export.as_ref().map(|export| export.port))
    }

    /// The addresses that calls are sent to.
    pub(super) fn server_addresses(&self) -> Vec<IpAddr> {
        let of_mount = self.nfs.iter().filter_map(|nfs| nfs.addr.as_ref()?.parse().ok());
        let of_export = self.export.iter().flat_map(|export| &export.addresses);
        of_mount.chain(of_export.filter_map(|address| address.parse().ok())).collect()
    }
}

/// An NFS server's export, which fanfs reads itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportFacts {
    /// The server, as the volume names it.
    pub server: String,
    /// The addresses that calls are sent to.
    pub addresses: Vec<String>,
    /// The server's port.
    pub port: u16,
    /// The protocol version: `3` or `4.1`.
    pub version: &'static str,
    /// The longest READ of the server, bytes.
    pub max_read: u64,
    /// The calls of the volume's daemons since they were started; null if the volume is not
    /// mounted.
    pub calls: Option<ExportCallStats>,
}

/// Calls to an export's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportCallStats {
    /// All calls.
    pub calls: u64,
    /// Calls that were sent again on another connection.
    pub resends: u64,
    /// Connections that were made.
    pub connects: u64,
    /// Replies that came after their call had ended.
    pub late_replies: u64,
}

/// An NFS mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NfsFacts {
    /// The server as it was named to mount(8).
    pub server: String,
    /// The address that calls are sent to.
    pub addr: Option<String>,
    /// The server's port.
    pub port: u16,
    /// The protocol version, such as `4.2`.
    pub version: Option<String>,
    /// `tcp`, `udp`, `rdma`.
    pub proto: Option<String>,
    /// The most bytes of one READ.
    pub rsize: Option<u64>,
    /// The most bytes of one WRITE.
    pub wsize: Option<u64>,
    /// The largest rsize of this machine's mounts of the same server.
    pub rsize_of_server: Option<u64>,
    /// `hard`, `soft` or `softerr`.
    pub recovery: &'static str,
    /// The time after which a call fails, seconds; null if it never does.
    pub fails_after_s: Option<f64>,
    /// Mounted `sync`.
    pub sync: bool,
    /// Mounted `noac`.
    pub noac: bool,
    /// `acregmin`, `acregmax`, `acdirmin`, `acdirmax`, seconds.
    pub attribute_times_s: [u64; 4],
    /// Mounted `nosharecache`.
    pub nosharecache: bool,
    /// `nconnect`.
    pub nconnect: u64,
    /// `max_connect`.
    pub max_connect: u64,
    /// The options of a command that mounts it again unchanged.
    pub options: Vec<String>,
    /// How long the kernel has been counting, seconds; null without mountstats.
    pub age_s: Option<u64>,
    /// The number of calls of all kinds.
    pub calls: u64,
    /// The number of retransmitted calls.
    pub retransmits: u64,
    /// The number of major timeouts: a call had no reply after all its retransmissions.
    pub timeouts: u64,
    /// READ calls.
    pub reads: Option<ReadCallStats>,
    /// The mean number of calls that were waiting for a slot at each send.
    pub backlog: Option<f64>,
}

/// READs since the mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReadCallStats {
    /// The number of READs.
    pub calls: u64,
    /// Bytes received per READ.
    pub bytes_each: u64,
    /// The mean time that a READ waited to be sent, ms.
    pub queue_ms: f64,
    /// The mean time from sending to the reply, ms.
    pub round_trip_ms: f64,
    /// The mean time from call to completion, ms.
    pub whole_ms: f64,
}

/// The path to a replica's server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerRoute {
    /// The server's address.
    pub to: String,
    /// This machine's address on that path.
    pub from: String,
    /// The interface that has it.
    pub interface: Option<String>,
    /// The path's MTU according to the kernel, bytes.
    pub mtu: Option<u64>,
    /// Whether a small echo was answered; null if this process may not send echoes.
    pub small_echo: Option<bool>,
    /// Whether an echo of the interface's MTU was answered, with fragmentation forbidden.
    pub large_echo: Option<bool>,
    /// The small echo's round-trip time, ms.
    pub echo_ms: Option<f64>,
}

/// A TCP connection, as the kernel reports it (`struct tcp_info`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TcpConnection {
    /// This machine's port.
    pub port: u16,
    /// The server's address.
    pub server: String,
    /// Segments with data received.
    pub segments_in: u64,
    /// How many of those came out of order, as all segments behind a lost one do.
    pub out_of_order: u64,
    /// Segments with data sent.
    pub segments_out: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// The smallest round-trip time, ms.
    pub min_rtt_ms: Option<f64>,
    /// The smoothed round-trip time, ms.
    pub rtt_ms: Option<f64>,
    /// The largest segment that may be sent, bytes.
    pub mss: Option<u64>,
    /// The largest segment that this machine advertises, bytes.
    pub advertised_mss: Option<u64>,
    /// The size of the segments that arrive, bytes.
    pub received_mss: Option<u64>,
}

/// The measured rates of the replicas.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MeasuredRates {
    /// The file, relative to the replicas' roots.
    pub file: String,
    /// Its size, bytes.
    pub size: u64,
    /// The time limit of each step, seconds.
    pub seconds: f64,
    /// The rate of each replica alone, in the order of the replicas.
    pub alone: Vec<RateMeasurement>,
    /// The rate of all at once.
    pub together: RateMeasurement,
    /// The idle share of this machine's CPU time during that step, 0 to 1.
    pub idle: Option<f64>,
    /// Why nothing was measured.
    pub failed: Option<String>,
}

/// One step of the measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RateMeasurement {
    /// Bytes read.
    pub bytes: u64,
    /// The time in which they were read, seconds.
    pub seconds: f64,
    /// Bytes per second; null if too little was read to tell.
    pub rate: Option<f64>,
    /// The median latency of reads of 4 KiB, ms.
    pub latency_ms: Option<f64>,
    /// Whether the file was read past the page cache.
    pub direct: bool,
    /// Whether nothing was delivered in the time.
    pub silent: bool,
    /// The first error.
    pub error: Option<String>,
}
