//! An NFS mount: its options from mountinfo, its connections from mountstats.
//!
//! mountinfo shows all options that matter here (`nfs_show_options` in fs/nfs/super.c), including
//! `addr=`, which mountstats lacks. mountstats adds one `xprt:` line for each connection
//! (`xs_tcp_print_stats` in net/sunrpc/xprtsock.c), whose first number is the local port:
//!
//! ```text
//! device SERVER:/path mounted on /mnt/x with fstype nfs4 statvers=1.1
//!         opts:   rw,vers=4.2,...
//!         xprt:   tcp 795 1 2 0 2 15 15 0 15 0 2 0 0
//! ```
//!
//! `addr=` and the connections belong to the kernel's client object. After trunking detection two
//! mounts share that object, and `addr=` then shows the first mount's address in both. The sources
//! differ if each mount has its own super block (`nosharecache`). Otherwise both show the first
//! mount's source (`nfs_show_devname` uses the root's dentry).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::stats::NfsStats;
use super::{Mount, parse_number, unescape, utf8};

/// A protocol version: major and minor; minor is 0 for NFS 2 and 3.
pub type NfsVersion = (u8, u8);

/// One connection of a mount to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// `tcp`, `udp`, `rdma` or `local`.
    pub kind: String,
    /// Local port. The kernel shows none for RDMA and, on most versions, for `noresvport`.
    pub source_port: Option<u16>,
}

/// What the client does with a call that the server does not answer (nfs(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It retries forever.
    Hard,
    /// The call fails with EIO.
    Soft,
    /// The call fails with ETIMEDOUT.
    SoftErr,
}

/// How long the client caches attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeCacheTimes {
    /// `acregmin`: files, minimum.
    pub file_min: Duration,
    /// `acregmax`: files, maximum.
    pub file_max: Duration,
    /// `acdirmin`: directories, minimum.
    pub dir_min: Duration,
    /// `acdirmax`: directories, maximum.
    pub dir_max: Duration,
}

/// One NFS mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsMount {
    /// The server as in the mount(8) command, without brackets.
    pub server: String,
    /// The path on the server.
    pub export: OsString,
    /// From `vers=`; `None` if the option is missing.
    pub version: Option<NfsVersion>,
    /// The server's address of the connections. After trunking detection it is not this mount's own
    /// address.
    pub addr: Option<String>,
    /// The client's address for callbacks of an NFSv4 server.
    pub client_addr: Option<String>,
    /// `tcp`, `udp`, `rdma`, or with a 6 at the end.
    pub proto: Option<String>,
    /// The server's port, if it is not 2049.
    pub port: Option<u16>,
    /// Most bytes of one READ.
    pub rsize: Option<u64>,
    /// Most bytes of one WRITE.
    pub wsize: Option<u64>,
    /// What the client does with calls that the server does not answer.
    pub recovery: Recovery,
    /// Whether the client sends every write at once.
    pub sync: bool,
    /// Whether the client caches no attributes.
    pub noac: bool,
    /// How long the client caches attributes.
    pub attribute_times: AttributeCacheTimes,
    /// Whether its caches are separate from those of other mounts of the export.
    pub nosharecache: bool,
    /// Connections to the server's first address.
    pub nconnect: u64,
    /// How long an unanswered call takes to fail; `None` on a hard mount, where it never fails.
    pub fails_after: Option<Duration>,
    /// How many addresses of one server the kernel may connect to (Linux 5.15).
    pub max_connect: u64,
    /// The connections; empty if mountstats could not be read.
    pub transports: Vec<Transport>,
    /// The counters; `None` if mountstats could not be read.
    pub stats: Option<NfsStats>,
}

impl NfsMount {
    pub(super) fn new(mount: &Mount, all: &[MountTransports]) -> Option<NfsMount> {
        if !matches!(mount.fs_type.as_str(), "nfs" | "nfs4") {
            return None;
        }
        let (server, export) = split_source(mount.source.as_bytes());
        let string = |key| mount.option(key).map(|v| v.to_string_lossy().into_owned());
        let count = |key| mount.option(key).and_then(|v| parse_number::<u64>(v.as_bytes()));
        let flag = |key| mount.option(key).is_some();
        let recovery = match (flag("soft"), flag("softerr")) {
            (_, true) => Recovery::SoftErr,
            (true, false) => Recovery::Soft,
            (false, false) => Recovery::Hard,
        };
        // nfs(5): `timeo` is in tenths of a second. Each of the `retrans` retries adds one `timeo`
        // to the timeout, and the call fails after the last timeout. A product that overflows
        // counts as never.
        let fails_after = count("timeo")
            .and_then(|timeo| timeo.checked_mul(count("retrans")?.checked_add(1)?))
            .and_then(|tenths| tenths.checked_mul(100))
            .map(Duration::from_millis)
            .filter(|_| recovery != Recovery::Hard);
        // One source may be mounted twice at one place. Both mounts then share their connections,
        // so either entry is right.
        let counted = all
            .iter()
            .rfind(|one| one.mount_point == mount.mount_point && one.source == mount.source);
        Some(NfsMount {
            server: String::from_utf8_lossy(server).into_owned(),
            export: OsStr::from_bytes(export).to_owned(),
            version: mount.option("vers").and_then(parse_version),
            addr: string("addr"),
            client_addr: string("clientaddr"),
            proto: string("proto"),
            port: mount
                .option("port")
                .and_then(|v| parse_number(v.as_bytes()))
                .filter(|port| *port != 0),
            rsize: count("rsize"),
            wsize: count("wsize"),
            recovery,
            sync: flag("sync"),
            noac: flag("noac"),
            attribute_times: attribute_cache_times(count),
            nosharecache: flag("nosharecache"),
            nconnect: count("nconnect").unwrap_or(1),
            fails_after,
            max_connect: count("max_connect").unwrap_or(1),
            transports: counted.map(|one| one.transports.clone()).unwrap_or_default(),
            stats: counted.map(|one| one.stats.clone()),
        })
    }

    /// Whether its calls go to several addresses of its server. If the connections are unknown, the
    /// mount options decide.
    pub fn spreads_over_addresses(&self) -> bool {
        let connections = self.transports.len() as u64;
        self.max_connect > 1 && (connections == 0 || connections > self.nconnect)
    }

    /// Whether both mounts send their calls over one connection.
    ///
    /// Such mounts use one client object of the kernel, so their address and version agree. A
    /// client in another network namespace also agrees, but has its own ports. If no port is
    /// known, equal address and version count as the same connection.
    pub fn shares_connection(&self, other: &NfsMount) -> bool {
        fn ports(nfs: &NfsMount) -> Vec<u16> {
            nfs.transports.iter().filter_map(|t| t.source_port).collect()
        }
        if self.addr != other.addr || self.version != other.version {
            return false;
        }
        let mine = ports(self);
        let theirs = ports(other);
        if mine.is_empty() || theirs.is_empty() {
            return self.addr.is_some();
        }
        mine.iter().any(|port| theirs.contains(port))
    }
}

/// The defaults of nfs(5) are 3, 60, 30 and 60 s. mountinfo shows only other values, and `noac` as
/// zeros.
fn attribute_cache_times(count: impl Fn(&'static str) -> Option<u64>) -> AttributeCacheTimes {
    let time = |key, default| Duration::from_secs(count(key).unwrap_or(default));
    AttributeCacheTimes {
        file_min: time("acregmin", 3),
        file_max: time("acregmax", 60),
        dir_min: time("acdirmin", 30),
        dir_max: time("acdirmax", 60),
    }
}

/// The connections of one mount, with the fields that mountinfo and mountstats share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountTransports {
    mount_point: PathBuf,
    source: OsString,
    transports: Vec<Transport>,
    stats: NfsStats,
}

/// Parses the NFS mounts of `/proc/self/mountstats`.
pub(super) fn parse_mountstats(bytes: &[u8]) -> Vec<MountTransports> {
    let mut all: Vec<MountTransports> = Vec::new();
    let mut in_nfs = false;
    for line in bytes.split(|b| *b == b'\n') {
        if line.starts_with(b"device ") || line.starts_with(b"no device ") {
            let mount = parse_device(line);
            in_nfs = mount.is_some();
            all.extend(mount);
        } else if in_nfs && let Some(last) = all.last_mut() {
            last.transports.extend(parse_transport(line));
            last.stats.parse_line(line);
        }
    }
    all
}

/// `device SOURCE mounted on POINT with fstype TYPE [statvers=...]`; `None` for
/// other types than NFS.
fn parse_device(line: &[u8]) -> Option<MountTransports> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let &[b"device", source, b"mounted", b"on", point, b"with", b"fstype", fs_type, ..] =
        fields.as_slice()
    else {
        return None;
    };
    matches!(fs_type, b"nfs" | b"nfs4").then(|| MountTransports {
        mount_point: unescape(point).into(),
        source: unescape(source),
        transports: Vec::new(),
        stats: NfsStats::default(),
    })
}

/// `xprt: KIND NUMBER...`; a `local` transport has no port among its numbers.
fn parse_transport(line: &[u8]) -> Option<Transport> {
    let mut words = utf8(line)?.split_ascii_whitespace();
    if words.next()? != "xprt:" {
        return None;
    }
    let kind = words.next()?.to_owned();
    let port = words.next().and_then(|word| word.parse().ok());
    let source_port = port.filter(|port| *port != 0 && kind != "local");
    Some(Transport { kind, source_port })
}

/// Splits `SERVER:/path`; an IPv6 address is in brackets.
fn split_source(source: &[u8]) -> (&[u8], &[u8]) {
    let bracketed = source.strip_prefix(b"[").and_then(|rest| {
        let end = rest.windows(2).position(|two| two == b"]:")?;
        Some((&rest[..end], &rest[end + 2..]))
    });
    bracketed.unwrap_or_else(|| match source.iter().position(|b| *b == b':') {
        Some(colon) => (&source[..colon], &source[colon + 1..]),
        None => (source, b""),
    })
}

fn parse_version(value: &OsStr) -> Option<NfsVersion> {
    let value = value.to_str()?;
    let (major, minor) = value.split_once('.').unwrap_or((value, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}
