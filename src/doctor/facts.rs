//! Everything that was looked at, as it is printed by `fanfs doctor --json`.
//!
//! *Invariant:* a fact that could not be had is null, never a default.

use serde::Serialize;

/// What was found, before it is judged.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DoctorFacts {
    /// The volume's name; null where bare paths were given.
    pub volume: Option<String>,
    /// What the volume's file says, or its defaults.
    pub settings: VolumeSettings,
    /// This machine.
    pub machine: MachineFacts,
    /// The interfaces that the replicas' routes use.
    pub interfaces: Vec<NetworkInterface>,
    /// The replicas, in the order in which they were given.
    pub replicas: Vec<ExaminedReplica>,
    /// Groups of NFS replicas, by index, that send over one connection.
    pub one_connection: Vec<Vec<usize>>,
    /// Groups of other replicas, by index, that are one file system.
    pub one_file_system: Vec<Vec<usize>>,
    /// Errors of `fanfs check`: the replicas, by index, and the text.
    pub refused: Vec<(Vec<usize>, String)>,
    /// Mount points of this volume whose daemons have died (`dead`) or do not answer
    /// (`silent`).
    pub unserved: Vec<(String, &'static str)>,
    /// Mount points of this volume whose keepers have died.
    pub unkept: Vec<String>,
    /// What reading them gave; null without `--measure`.
    pub measured: Option<MeasuredRates>,
}

/// The keys of the volume's file that matter here.
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
    /// Whether `/dev/fuse` is there.
    pub fuse_device: bool,
    /// Whether `fusermount3` is in `UTAB_PATH`.
    pub fusermount3: bool,
    /// Whether `/etc/fuse.conf` has `user_allow_other`.
    pub user_allow_other: bool,
    /// `fs.fuse.max_pages_limit` (Linux 6.13), pages.
    pub fuse_max_pages: Option<u64>,
    /// `max_user_bgreq` of the module fuse: most background requests of a mount
    /// that is not root's.
    pub fuse_max_user_background: Option<u64>,
    /// The hard limit of open files; null: none.
    pub open_files: Option<u64>,
    /// `net.ipv4.tcp_rmem`, the largest, bytes.
    pub tcp_receive_buffer: Option<u64>,
    /// A page, bytes.
    pub page: u64,
    /// Whether the kernel could be asked about its TCP connections to NFS servers.
    #[serde(rename = "ss")]
    pub lists_connections: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NetworkInterface {
    /// `eth0`.
    pub name: String,
    /// Mbit/s; null where the driver does not say.
    pub speed_mbit: Option<u64>,
    /// Largest packet, bytes.
    pub mtu: Option<u64>,
    /// Whether the speed is a driver's word for a device that has none (veth, bridge, tun).
    pub is_virtual: bool,
}

/// One replica.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExaminedReplica {
    /// Its name.
    pub name: String,
    /// Its path, as given.
    pub path: String,
    /// Where the file system that it lies in is mounted.
    pub mount_point: Option<String>,
    /// Whether it is a mount point itself, or on a network file system; false where it did not
    /// answer.
    pub is_mounted: bool,
    /// `ok`, `absent`, `not-a-directory`, `failed` or `silent`.
    pub state: &'static str,
    /// The system's words where it is `failed`.
    pub failure: Option<String>,
    /// The file system's type.
    pub fs_type: Option<String>,
    /// The device, or `SERVER:/path`.
    pub source: Option<String>,
    /// `major:minor`.
    pub device: Option<String>,
    /// Whether fanfs reads it through its page cache.
    pub page_cache: bool,
    /// The kernel's readahead for it, KiB.
    pub read_ahead_kib: Option<u64>,
    /// For NFS, the mount.
    pub nfs: Option<NfsFacts>,
    /// For NFS, the way to the server.
    pub route: Option<ServerRoute>,
    /// Its TCP connections; null where they cannot be seen.
    pub connections: Option<Vec<TcpConnection>>,
    /// How far the server's clock is ahead of this machine's, seconds.
    pub clock_ahead_s: Option<f64>,
}

/// An NFS mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NfsFacts {
    /// The server as named to mount(8).
    pub server: String,
    /// The address that its calls go to.
    pub addr: Option<String>,
    /// Its port.
    pub port: u16,
    /// `4.2`.
    pub version: Option<String>,
    /// `tcp`, `udp`, `rdma`.
    pub proto: Option<String>,
    /// Most bytes of one READ.
    pub rsize: Option<u64>,
    /// Most bytes of one WRITE.
    pub wsize: Option<u64>,
    /// The largest rsize of this machine's mounts of the same server.
    pub rsize_of_server: Option<u64>,
    /// `hard`, `soft` or `softerr`.
    pub recovery: &'static str,
    /// After how long a call fails, seconds; null: never.
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
    /// The options of a line that mounts it again as it is.
    pub options: Vec<String>,
    /// Since when the kernel has counted, seconds; null without mountstats.
    pub age_s: Option<u64>,
    /// Calls of all kinds.
    pub calls: u64,
    /// Times that calls were sent again.
    pub retransmits: u64,
    /// Times that the server was given up for a while.
    pub timeouts: u64,
    /// READs.
    pub reads: Option<ReadCallStats>,
    /// Calls that waited for a slot, on average at each send.
    pub backlog: Option<f64>,
}

/// READs since the mount was made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReadCallStats {
    /// How many.
    pub calls: u64,
    /// Bytes received a call.
    pub bytes_each: u64,
    /// Mean time that one waited to be sent, ms.
    pub queue_ms: f64,
    /// Mean time from sending to the answer, ms.
    pub round_trip_ms: f64,
    /// Mean time from call to end, ms.
    pub whole_ms: f64,
}

/// The way to a replica's server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerRoute {
    /// The server's address.
    pub to: String,
    /// This machine's address.
    pub from: String,
    /// The interface that has it.
    pub interface: Option<String>,
    /// What the kernel believes to be the path's MTU, bytes.
    pub mtu: Option<u64>,
    /// Whether a small echo came back; null where echoes may not be sent.
    pub small_echo: Option<bool>,
    /// Whether one of the interface's MTU did, which may not be divided.
    pub large_echo: Option<bool>,
    /// The small echo's time, ms.
    pub echo_ms: Option<f64>,
}

/// A TCP connection, as the kernel shows it (`struct tcp_info`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TcpConnection {
    /// This machine's port.
    pub port: u16,
    /// The server's address.
    pub server: String,
    /// Segments with data received.
    pub segments_in: u64,
    /// Of those, how many came out of order, as all behind a lost one do.
    pub out_of_order: u64,
    /// Segments with data sent.
    pub segments_out: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Round trip, smallest seen, ms.
    pub min_rtt_ms: Option<f64>,
    /// Round trip, smoothed, ms.
    pub rtt_ms: Option<f64>,
    /// Largest segment that may be sent, bytes.
    pub mss: Option<u64>,
    /// Largest segment that this machine asks for, bytes.
    pub advertised_mss: Option<u64>,
    /// Size of the segments that came, bytes.
    pub received_mss: Option<u64>,
}

/// What reading the replicas gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MeasuredRates {
    /// The file, relative to the replicas' roots.
    pub file: String,
    /// Its size, bytes.
    pub size: u64,
    /// How long each step was to take, seconds.
    pub seconds: f64,
    /// Each replica alone, in their order.
    pub alone: Vec<RateMeasurement>,
    /// All at once.
    pub together: RateMeasurement,
    /// The part of this machine's processor time that was idle then, 0 to 1.
    pub idle: Option<f64>,
    /// Why nothing was measured, where that is so.
    pub failed: Option<String>,
}

/// One step of the measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RateMeasurement {
    /// Bytes read.
    pub bytes: u64,
    /// In what time, seconds.
    pub seconds: f64,
    /// Bytes a second; null where too little was read to tell.
    pub rate: Option<f64>,
    /// Median time of a read of 4 KiB, ms.
    pub latency_ms: Option<f64>,
    /// Whether the file was read past the page cache.
    pub direct: bool,
    /// Whether nothing came back in the time.
    pub silent: bool,
    /// The first error.
    pub error: Option<String>,
}
