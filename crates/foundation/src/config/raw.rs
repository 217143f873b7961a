//! The file as written: what serde sees before any check.
//!
//! Every key is optional here, even a required one: [`super::validate`] reports a missing key,
//! because it knows what to advise. Numbers are signed and wide for the same reason: "-1 is out of
//! range; use 2 to 256" says more than "expected usize".
//!
//! The doc comment of a field becomes the description of its key in fanfs.toml(5) and in the
//! file's JSON schema ([`super::schema`]): what the key sets, and when to change it. Defaults and
//! ranges come from [`defaults`]; `x-default` describes a default that is not a fixed value.
//!
//! *Invariant:* the fields of these structs are the only list of known keys. [`keys_of`] gets it
//! from serde, so suggestions are never out of date.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor, value::Error as ValueError};
use serde_json::json;

use super::choices::{self, words};
use super::defaults;
use super::range_text::{bounds, number_bounds, time_text, times};
use super::units::{Rate, Share, Size, Time};
use crate::volume::MAX_REPLICAS;

/// A fanfs volume: its name and mode, where its replicas are mounted, and how fanfs splits reads, sends
/// them to replicas and limits them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["volume", "replica"]))]
pub(super) struct RawConfig {
    /// What the volume is.
    pub(super) volume: Volume,
    /// One table for each replica, 1 to 64 of them. Errors count the replicas from 1:
    /// `replica[2].path` is the path of the second.
    #[schemars(length(min = 1, max = MAX_REPLICAS))]
    pub(super) replica: Vec<Replica>,
    /// How fanfs splits reads, sends them to replicas and limits them.
    pub(super) read: Read,
    /// Which replica makes changes, and how long the other replicas may show the state before a
    /// change.
    pub(super) write: Write,
    /// The memory budget.
    pub(super) memory: Memory,
    /// The FUSE session.
    pub(super) fuse: Fuse,
    /// Where Prometheus gets the volume's metrics.
    pub(super) metrics: Metrics,
    /// What the daemon logs, and how.
    pub(super) log: Log,
    /// Which provider tells fanfs the nodes that hold a file's chunks. A key that the chosen
    /// provider does not use is refused.
    pub(super) placement: Placement,
    /// Subtrees that fanfs reads through chosen replicas, data and metadata, while those replicas
    /// are healthy. One table for each rule; the first rule that matches a path applies.
    pub(super) affinity: Vec<Affinity>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["name", "mode"]))]
pub(super) struct Volume {
    /// The volume's name in logs, in `fanfs status` and in the mount table.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
    #[schemars(extend(
        "x-default" = "required",
        "x-range" = "1 to 64 of `[A-Za-z0-9._-]`, starting with a letter or digit",
    ))]
    pub(super) name: Option<String>,
    /// `"shared"`: the replicas are one file system seen through several paths. `"copies"`: they
    /// are independent trees with the same content. The mode decides which attributes must agree
    /// between replicas. There is no default, because the wrong mode is dangerous.
    #[schemars(extend("enum" = words(&choices::MODES), "x-default" = "required"))]
    pub(super) mode: Option<String>,
    /// The unit of placement. Set it to the cluster's chunk size: MapR 256 MiB, HDFS 128 MiB,
    /// CephFS 4 MiB. The default is a multiple of all three.
    #[schemars(extend(
        "default" = defaults::CHUNK_SIZE.to_string(),
        "x-range" = "a multiple of `read.segment_size`",
    ))]
    pub(super) chunk_size: Option<Size>,
    /// What the mount may change: nothing (`"ro"`), or everything that the write replica allows the
    /// caller (`"rw"`). `"rw"` needs `mode = "shared"` and excludes `read.passthrough`.
    #[schemars(extend("enum" = words(&choices::ACCESSES), "default" = "ro"))]
    pub(super) access: Option<String>,
    /// Replicas that must be in service before the mount is up; with `access = "rw"` the write
    /// replica must be one of them. The others join later. Raise it if few replicas would be too
    /// slow.
    #[schemars(range(min = 1, max = MAX_REPLICAS))]
    #[schemars(extend(
        "default" = defaults::MIN_REPLICAS,
        "x-range" = "1 to the number of replicas",
    ))]
    pub(super) min_replicas: Option<i64>,
    /// Whether the volume's data stays the same for as long as it is mounted. Then the kernel keeps
    /// names, attributes, data and links, and most opens ask no replica. Needs `access = "ro"`;
    /// excludes `fuse.attribute_ttl`.
    #[schemars(extend("default" = defaults::IMMUTABLE))]
    pub(super) immutable: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = json!([{ "required": ["path"] }, { "required": ["address"] }])))]
pub(super) struct Replica {
    /// The directory where the replica is mounted. Each replica needs its own mount to add
    /// bandwidth.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required, unless `address` is set",
        "x-range" = "an absolute directory without `..`; different for each replica",
    ))]
    pub(super) path: Option<String>,
    /// The NFS server and export that fanfs reads itself, over TCP, without a mount. The volume is
    /// then read-only.
    #[schemars(regex(pattern = "^nfs://"))]
    #[schemars(extend(
        "x-default" = "none: `path` is set",
        "x-range" = "`\"nfs://SERVER/EXPORT\"` or `\"nfs://SERVER:PORT/EXPORT\"`; different for each replica",
    ))]
    pub(super) address: Option<String>,
    /// The version of NFS. NFSv4.1 needs one port only. Without it, fanfs takes NFSv3 if the server
    /// offers that.
    #[schemars(extend(
        "enum" = words(&choices::NFS_VERSIONS),
        "x-default" = "the server's choice",
    ))]
    pub(super) version: Option<String>,
    /// Connections to the server of `address`. Raise it where packets are lost, or if one connection
    /// is slower than the network.
    #[schemars(range(
        min = *defaults::CONNECTIONS_RANGE.start(),
        max = *defaults::CONNECTIONS_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::CONNECTIONS,
        "x-range" = number_bounds(&defaults::CONNECTIONS_RANGE),
    ))]
    pub(super) connections: Option<i64>,
    /// The port of the MOUNT service of NFSv3 at `address`, if a firewall hides the server's
    /// portmapper. The port in `address` is that of NFS.
    #[schemars(range(
        min = *defaults::MOUNT_PORT_RANGE.start(),
        max = *defaults::MOUNT_PORT_RANGE.end(),
    ))]
    #[schemars(extend(
        "x-default" = "the portmapper's answer, otherwise 20048",
        "x-range" = number_bounds(&defaults::MOUNT_PORT_RANGE),
    ))]
    pub(super) mount_port: Option<i64>,
    /// The replica's name in logs, metrics and `fanfs status`. Set it if two replicas are on one
    /// node.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$"))]
    #[schemars(extend(
        "x-default" = "`node` if set, otherwise `r1`, `r2`, ... by position",
        "x-range" = "1 to 253 of `[A-Za-z0-9._:-]`; unique in the volume",
    ))]
    pub(super) name: Option<String>,
    /// The storage node that the replica's gateway runs on, as the cluster names it. Chunks on this
    /// node are local to the replica.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$"))]
    #[schemars(extend(
        "x-default" = "the replica's name",
        "x-range" = "as `name`, but need not be unique",
    ))]
    pub(super) node: Option<String>,
    /// Other names of that node in the placement provider's answers: host names, addresses,
    /// `host:port`, `osd.3`, `OST000a`. Without a matching name fanfs does not know that the node's
    /// chunks are local.
    #[schemars(inner(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$")))]
    #[schemars(extend("x-default" = "none", "x-range" = "each as `name`"))]
    pub(super) aliases: Option<Vec<String>>,
    /// The replica's relative speed, assumed until measured. Set it if replicas are unequal and the
    /// first second matters.
    #[schemars(range(min = *defaults::WEIGHT_RANGE.start(), max = *defaults::WEIGHT_RANGE.end()))]
    #[schemars(extend(
        "default" = defaults::WEIGHT,
        "x-range" = number_bounds(&defaults::WEIGHT_RANGE),
    ))]
    pub(super) weight: Option<f64>,
    /// Most bytes in flight to this replica. Set it for a gateway that others share.
    #[schemars(extend(
        "x-default" = "none: `read.max_in_flight`",
        "x-range" = "at least `read.segment_size`",
    ))]
    pub(super) max_in_flight: Option<Size>,
    /// Most bytes per second to read from this replica. Set it for a gateway that others share. At
    /// the minimum a default segment takes 16 s.
    #[schemars(extend(
        "x-default" = "none: no limit",
        "x-range" = format!("at least `\"{}\"`", defaults::MAX_RATE_MIN),
    ))]
    pub(super) max_rate: Option<Rate>,
    /// How fanfs reads this replica's files: through the page cache of the replica's mount
    /// (`"use"`), with O_DIRECT where the file system supports it (`"bypass"`), or with O_DIRECT on
    /// NFS only (`"auto"`). Set `"use"` on NFS if other programs read the same files through that
    /// mount.
    #[schemars(extend("enum" = words(&choices::PAGE_CACHES), "default" = "auto"))]
    pub(super) page_cache: Option<String>,
    /// Keep the replica out of service while its path is neither a mount point nor inside a network
    /// file system. An unmounted mount point looks like an empty volume. Set `false` for a plain
    /// local directory.
    #[schemars(extend("default" = defaults::REQUIRE_MOUNT))]
    pub(super) require_mount: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Read {
    /// The unit of dispatch, one read from one replica. 1 MiB is one FUSE request and one NFS READ.
    /// Smaller segments cost more processor time; a larger one delays its reader more when it is
    /// late.
    #[schemars(extend(
        "default" = defaults::SEGMENT_SIZE.to_string(),
        "x-range" = format!("a power of two, {}", bounds(&defaults::SEGMENT_SIZE_RANGE)),
    ))]
    pub(super) segment_size: Option<Size>,
    /// How far past a sequential reader fanfs fetches at most. Raise it, with `memory.budget` at
    /// four times as much, if the replicas' total rate times latency is above 64 MiB (2 GiB/s at 30
    /// ms).
    #[schemars(extend(
        "default" = defaults::READAHEAD_MAX.to_string(),
        "x-range" = "`\"0B\"` (off), or at least `segment_size`",
    ))]
    pub(super) readahead_max: Option<Size>,
    /// Threads of each replica's pool, with one read in flight each. Raise it if one replica's rate
    /// times latency is above 8 MiB (10 Gbit/s at 7 ms).
    #[schemars(range(
        min = *defaults::THREADS_PER_REPLICA_RANGE.start(),
        max = *defaults::THREADS_PER_REPLICA_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::THREADS_PER_REPLICA,
        "x-range" = number_bounds(&defaults::THREADS_PER_REPLICA_RANGE),
    ))]
    pub(super) threads_per_replica: Option<i64>,
    /// Most bytes in flight to one replica; the scheduler's own limit is usually lower. Raise it if
    /// one replica's rate times latency is above 16 MiB (10 Gbit/s at 14 ms).
    #[schemars(extend(
        "default" = defaults::MAX_IN_FLIGHT.to_string(),
        "x-range" = "at least `segment_size`",
    ))]
    pub(super) max_in_flight: Option<Size>,
    /// How long a request may make no progress before it fails. Progress is an answer to an earlier
    /// request in the replica's queue, or a part of this answer. The default is half of the 60 s
    /// after which an NFS client retries over TCP.
    #[schemars(extend(
        "default" = time_text(defaults::DEADLINE),
        "x-range" = times(&defaults::DEADLINE_RANGE),
    ))]
    pub(super) deadline: Option<Time>,
    /// The same limit while no replica that could serve the request answers, not even for its root.
    /// It covers server restarts, with the 90 s grace period of NFSv4. Once a replica answers, the
    /// request gets another `deadline`. A change waits this long for a silent write replica if
    /// `write.deadline` is shorter. Set it to `deadline` to turn the longer wait off.
    #[schemars(extend(
        "default" = time_text(defaults::DEADLINE_ALL),
        "x-range" = "`deadline` to `\"1h\"`",
    ))]
    pub(super) deadline_all: Option<Time>,
    /// How long one replica may take before fanfs also asks another. The default is far above a
    /// healthy replica's latency and a sixth of `deadline`, so several replicas can fail in turn.
    /// Raise it for busy gateways: too short a value reads data twice.
    #[schemars(extend(
        "default" = time_text(defaults::ATTEMPT_DEADLINE),
        "x-range" = format!("`\"{}\"` to `deadline`", defaults::ATTEMPT_DEADLINE_MIN),
    ))]
    pub(super) attempt_deadline: Option<Time>,
    /// In `copies` volumes, the share of segments of which fanfs compares a 64 KiB block with the
    /// deciding replica's, after delivery. It also compares each replica's first segment of files
    /// larger than one segment. fanfs avoids a replica with other bytes for that file, and reports
    /// it. No effect in `shared` volumes.
    #[schemars(extend(
        "default" = defaults::COMPARE.to_string(),
        "x-range" = "`\"0%\"` (off) to `\"100%\"`",
    ))]
    pub(super) compare: Option<Share>,
    /// Where file data is cached. `"kernel"`: in the page cache, across opens while the file is
    /// unchanged. `"direct"`: nowhere; every read reaches fanfs, which suits large blocks that are
    /// read once. `"auto"`: chosen at each open; direct for files larger than a quarter of the
    /// memory.
    #[schemars(extend("enum" = words(&choices::CACHES), "default" = "auto"))]
    pub(super) cache: Option<String>,
    /// Which files the kernel reads from one replica without the daemon: none (`"off"`) or all
    /// (`"whole-file"`). Use it if one replica alone is fast enough. Such reads have no failover,
    /// deadline or counters. Needs Linux 6.9, root (CAP_SYS_ADMIN) and replicas without `max_rate`
    /// that are not stacked file systems; otherwise fanfs reads the files as with `"off"`, and the
    /// log says why.
    #[schemars(extend("enum" = words(&choices::PASSTHROUGHS), "default" = "off"))]
    pub(super) passthrough: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Write {
    /// The write replica: it makes every change and keeps the locks. Only one replica does, because
    /// changes on two paths could overtake each other.
    #[schemars(extend("x-default" = "the first one", "x-range" = "a replica's name"))]
    pub(super) replica: Option<String>,
    /// How long a change may make no progress, as in `read.deadline`, before it fails. Writing back
    /// cached data over a slow gateway takes minutes; a shorter deadline reports successful changes
    /// as failed.
    #[schemars(extend(
        "default" = time_text(defaults::WRITE_DEADLINE),
        "x-range" = times(&defaults::DEADLINE_RANGE),
    ))]
    pub(super) deadline: Option<Time>,
    /// How long the other replicas' mounts may show names and attributes from before a change. For
    /// this long, fanfs asks only the write replica about what changed here. Set it above the
    /// largest `acregmax`, `acdirmax` (60 s by default) or `actimeo` of the mounts. If it is too
    /// short, changes made here can be invisible here. If it is too long, recent changes depend
    /// longer on the write replica.
    #[schemars(extend(
        "default" = time_text(defaults::WRITE_LAG),
        "x-range" = times(&defaults::WRITE_LAG_RANGE),
    ))]
    pub(super) lag: Option<Time>,
    /// Where fcntl and flock locks are kept: on the write replica, for all clients (`"forward"`),
    /// or in this machine's kernel, for this mount only (`"local"`). `"forward"` makes each close
    /// of a file one more request, because a close releases locks.
    #[schemars(extend(
        "enum" = words(&choices::LOCKS),
        "x-default" = "`\"forward\"`; `\"local\"` in `copies` or `immutable` volumes",
    ))]
    pub(super) locks: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Memory {
    /// Most bytes of file data, directory listings and locks that the daemon holds at once. Writes
    /// in flight use up to five sixteenths of it. The default is four readers' full readahead.
    /// Raise it for more sequential readers; if it is too small, readahead shrinks.
    #[schemars(extend(
        "default" = defaults::BUDGET.to_string(),
        "x-range" = format!("at least {} times `read.segment_size`", defaults::BUDGET_MIN_SEGMENTS),
    ))]
    pub(super) budget: Option<Size>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fuse {
    /// Threads that receive requests from the kernel. Two of them only receive; the others may also
    /// do small reads themselves. Raise it for many small random reads at once.
    #[schemars(range(
        min = *defaults::FUSE_THREADS_RANGE.start(),
        max = *defaults::FUSE_THREADS_RANGE.end(),
    ))]
    #[schemars(extend(
        "x-default" = format!(
            "four more than the CPUs, at least {} and at most {}",
            defaults::FUSE_THREADS_DEFAULT.start(),
            defaults::FUSE_THREADS_DEFAULT.end(),
        ),
        "x-range" = number_bounds(&defaults::FUSE_THREADS_RANGE),
    ))]
    pub(super) threads: Option<i64>,
    /// Let users other than the mounting user use the mount. Unless root mounts, `/etc/fuse.conf`
    /// must contain `user_allow_other`.
    #[schemars(extend("default" = defaults::ALLOW_OTHER))]
    pub(super) allow_other: Option<bool>,
    /// Let fanfs set `kernel_readahead`, and raise `fs.pipe-max-size` if `splice` needs it. Without
    /// permission the kernel's settings remain.
    #[schemars(extend("default" = defaults::KERNEL_TUNING))]
    pub(super) kernel_tuning: Option<bool>,
    /// Pass pages of a replica's page cache, and packets of exports, to the kernel without a copy.
    /// Needs pipes of 2 MiB, for packets of 1500 bytes 4 MiB (more with larger segments): root may
    /// have them, other users up to `/proc/sys/fs/pipe-max-size`. Otherwise fanfs copies.
    #[schemars(extend("default" = defaults::SPLICE))]
    pub(super) splice: Option<bool>,
    /// The kernel's readahead for this mount; needs root and `kernel_tuning`. fanfs reads ahead
    /// itself, so one FUSE request is enough. Set `"0B"` for readers that skip in small blocks with
    /// `cache = "kernel"`.
    #[schemars(extend(
        "default" = defaults::KERNEL_READAHEAD.to_string(),
        "x-range" = format!("`\"0B\"` (off) to `\"{}\"`", defaults::KERNEL_READAHEAD_RANGE.end()),
    ))]
    pub(super) kernel_readahead: Option<Size>,
    /// Most background requests (readahead, asynchronous direct reads) in the daemon; others wait
    /// in the kernel in order of arrival. The kernel's default of 12 leaves fast replicas idle.
    /// Raise it for more than 256 readers at once.
    #[schemars(range(
        min = *defaults::MAX_BACKGROUND_RANGE.start(),
        max = *defaults::MAX_BACKGROUND_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::MAX_BACKGROUND,
        "x-range" = number_bounds(&defaults::MAX_BACKGROUND_RANGE),
    ))]
    pub(super) max_background: Option<i64>,
    /// How long the kernel may cache names and attributes. Raise it for data that seldom changes;
    /// `"0s"` asks a replica at every stat.
    #[schemars(extend(
        "default" = time_text(defaults::ATTRIBUTE_TTL),
        "x-range" = times(&defaults::ATTRIBUTE_TTL_RANGE),
    ))]
    pub(super) attribute_ttl: Option<Time>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    /// The address that serves metrics over HTTP. There is no authentication, so keep it on
    /// loopback unless every host that reaches it may read the metrics. Each mounted volume needs
    /// its own address. An address that cannot be bound is an error at mount and a warning after a
    /// reload.
    #[schemars(extend(
        "x-default" = "none",
        "x-range" = "`\"ADDRESS:PORT\"`, `\"[ADDRESS]:PORT\"`, `\"PORT\"` (of 127.0.0.1), \
                     `\"unix:/PATH\"` of at most 100 bytes",
    ))]
    pub(super) listen: Option<String>,
    /// A file for node_exporter's textfile collector. fanfs removes it at unmount.
    #[schemars(regex(pattern = r"^/.*\.prom$"))]
    #[schemars(extend(
        "x-default" = "none",
        "x-range" = "an absolute path that ends in `.prom`",
    ))]
    pub(super) textfile: Option<String>,
    /// How often fanfs writes `textfile`. Use Prometheus's scrape interval, usually 15 s.
    #[schemars(extend(
        "default" = time_text(defaults::METRICS_INTERVAL),
        "x-range" = format!("{}; only with `textfile`", times(&defaults::METRICS_INTERVAL_RANGE)),
    ))]
    pub(super) interval: Option<Time>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    /// The messages to log. `$FANFS_LOG` takes precedence. Only `debug` and `trace` name files of the
    /// volume.
    #[schemars(extend(
        "default" = defaults::LOG_LEVEL,
        "x-range" = "`off`, `error`, `warn`, `info`, `debug`, `trace`, `TARGET=LEVEL`, or a \
                     comma-separated list, such as `\"info,fanfs::scheduler=debug\"`",
    ))]
    pub(super) level: Option<String>,
    /// `"text"`: lines for people. `"json"`: one object per line, with `timestamp`, `level`,
    /// `target` and `fields`, which holds `message`. `"journald"`: systemd's journal with
    /// `FANFS_...` fields, or text and a warning if there is no journal.
    #[schemars(extend("enum" = words(&choices::LOG_FORMATS), "default" = "text"))]
    pub(super) format: Option<String>,
    /// How many times in ten seconds the daemon logs the same message (one place in the source). It
    /// counts the others in one line. The default covers one message from each of a replica's eight
    /// threads.
    #[schemars(range(
        min = *defaults::LOG_RATE_RANGE.start(),
        max = *defaults::LOG_RATE_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::LOG_RATE,
        "x-range" = "0 (no limit) to 1000000",
    ))]
    pub(super) rate: Option<i64>,
    /// The size at which the daemon renames a log file to `NAME.1`, replacing the previous one, and
    /// starts a new file. It also starts a new file after logrotate(8) moves it. A log and its
    /// predecessor take up to twice this size of `/run`. Standard error and the journal are not
    /// rotated.
    #[schemars(extend(
        "default" = defaults::LOG_MAX_SIZE.to_string(),
        "x-range" = format!("`\"0B\"` (never), or {}", bounds(&defaults::LOG_MAX_SIZE_RANGE)),
    ))]
    pub(super) max_size: Option<Size>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Placement {
    /// The provider to ask; each query runs a program or crosses the network. `"learned"` asks none
    /// and infers locality from timing.
    #[schemars(extend("enum" = words(&choices::PROVIDERS), "default" = "none"))]
    pub(super) provider: Option<String>,
    /// The volume's root in the cluster's name space, or where the cluster's own file system is
    /// mounted for its tool. fanfs asks about this path joined with the file's path in the volume.
    /// Not for `"table"`, `"none"` and `"learned"`.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend("default" = "/", "x-range" = "an absolute path without `..`"))]
    pub(super) root: Option<String>,
    /// The command to run for each query. No shell runs it, so each word is one argument. fanfs
    /// replaces the placeholders and refuses any other `{...}`.
    #[schemars(length(min = 1))]
    #[schemars(extend(
        "x-default" = "the provider's own; required for `\"exec\"`, and for `\"hdfs\"` without `url`",
        "x-range" = "at least a program; placeholders are `{path}`, `{local}`, `{size}`, each also as `{path:sh}`",
    ))]
    pub(super) command: Option<Vec<String>>,
    /// The command that prints a file's layout (`"cephfs"`), or the client's volume file
    /// (`"glusterfs"`).
    #[schemars(length(min = 1))]
    #[schemars(extend(
        "x-default" = "`getfattr` for `ceph.file.layout`; the volume file of the mount at `root`",
        "x-range" = "as `command`",
    ))]
    pub(super) layout_command: Option<Vec<String>>,
    /// `"hdfs"` only: the WebHDFS address of each NameNode, in any order. fanfs first asks the
    /// NameNode that answered last.
    #[schemars(length(min = 1), inner(regex(pattern = "^https?://[A-Za-z0-9._:\\[\\]-]+/*$")))]
    #[schemars(extend(
        "x-default" = "required for `\"hdfs\"` without `command`",
        "x-range" = "one or more of `http://HOST:PORT`, `https://HOST:PORT`",
    ))]
    pub(super) url: Option<Vec<String>>,
    /// `"hdfs"` with `url` only: the value of `user.name`, for a cluster without authentication.
    #[schemars(extend("x-default" = "none"))]
    pub(super) user: Option<String>,
    /// `"hdfs"` with `url` only: the certificates to trust instead of the public ones.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "the public certificates",
        "x-range" = "the absolute path of a PEM file",
    ))]
    pub(super) ca_file: Option<String>,
    /// `"table"` only: the table; CSV if the name ends in `.csv`, otherwise TOML. fanfs reads it
    /// again when it changes.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required for `\"table\"`",
        "x-range" = "an absolute path",
    ))]
    pub(super) file: Option<String>,
    /// How long one query may take. `hadoop` and `hdfs` start a JVM, which takes seconds on a
    /// busy node. No read waits for an answer.
    #[schemars(extend(
        "default" = time_text(defaults::PLACEMENT_TIMEOUT),
        "x-range" = times(&defaults::PLACEMENT_TIMEOUT_RANGE),
    ))]
    pub(super) timeout: Option<Time>,
    /// How long an answer is valid. Lower it if chunks move often. fanfs asks earlier if a
    /// replica's timing contradicts the answer.
    #[schemars(extend(
        "default" = time_text(defaults::PLACEMENT_TTL),
        "x-range" = times(&defaults::PLACEMENT_TTL_RANGE),
    ))]
    pub(super) ttl: Option<Time>,
    /// How long after a failure fanfs asks about the same file again. The default covers a NameNode
    /// failover.
    #[schemars(extend(
        "default" = time_text(defaults::PLACEMENT_RETRY_AFTER),
        "x-range" = times(&defaults::PLACEMENT_TTL_RANGE),
    ))]
    pub(super) retry_after: Option<Time>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend(
    "required" = ["path"],
    "oneOf" = json!([{ "required": ["replica"] }, { "required": ["node"] }]),
))]
pub(super) struct Affinity {
    /// The paths that the rule pins. `*` does not match `/`, `**` does. `"/a/**"` also matches `/a`
    /// itself, so that its listing is pinned too.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required",
        "x-range" = "a glob that starts with `/`, the volume's root",
    ))]
    pub(super) path: Option<String>,
    /// The replica to read through.
    #[schemars(extend(
        "x-default" = "`replica` or `node` is required",
        "x-range" = "a replica's `name`",
    ))]
    pub(super) replica: Option<String>,
    /// Read through all replicas on this node.
    #[schemars(extend(
        "x-default" = "`replica` or `node` is required",
        "x-range" = "the exact `node` of a replica, or one of its `aliases`",
    ))]
    pub(super) node: Option<String>,
}

/// The tables that a file may have, in the order of the documentation.
pub(super) fn tables() -> &'static [&'static str] {
    keys_of::<RawConfig>()
}

/// The keys that `table` may have; empty if there is no such table.
pub(super) fn keys(table: &str) -> &'static [&'static str] {
    match table {
        "volume" => keys_of::<Volume>(),
        "replica" => keys_of::<Replica>(),
        "read" => keys_of::<Read>(),
        "write" => keys_of::<Write>(),
        "memory" => keys_of::<Memory>(),
        "fuse" => keys_of::<Fuse>(),
        "metrics" => keys_of::<Metrics>(),
        "log" => keys_of::<Log>(),
        "placement" => keys_of::<Placement>(),
        "affinity" => keys_of::<Affinity>(),
        _ => &[],
    }
}

/// Whether a file may have several tables of this name.
pub(super) fn is_list(table: &str) -> bool {
    matches!(table, "replica" | "affinity")
}

/// The field names that `T`'s derived `Deserialize` requests.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Always an error: serde passes the field names before it reads a value.
    let _ = T::deserialize(FieldNames(&mut fields));
    fields
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = fields;
        Err(de::Error::custom("only the names were wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ValueError> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_keys() {
        assert_eq!(
            tables(),
            [
                "volume",
                "replica",
                "read",
                "write",
                "memory",
                "fuse",
                "metrics",
                "log",
                "placement",
                "affinity"
            ]
        );
        for table in tables() {
            assert!(!keys(table).is_empty(), "{table} is missing in `keys`");
        }
        assert_eq!(keys("memory"), ["budget"]);
        assert_eq!(keys("volume")[1], "mode");
    }

    #[test]
    fn the_example_shows_every_key_in_its_table() {
        let example = include_str!("../../../../config/example.toml");
        for table in tables() {
            let single = format!("\n[{table}]\n");
            let double = format!("\n[[{table}]]\n");
            let optional = format!("\n#[[{table}]]\n");
            let starts = [&single, &double, &optional];
            let start = starts.iter().find_map(|start| example.find(&***start)).expect(table);
            let section = &example[start + 3..];
            let ends = ["\n[", "\n#[["].iter().filter_map(|end| section.find(end));
            let section = &section[..ends.min().unwrap_or(section.len())];
            for key in keys(table) {
                let shown =
                    |line: &str| line.trim_start_matches('#').starts_with(&format!("{key} = "));
                assert!(section.lines().any(shown), "{table}.{key} is not in config/example.toml");
            }
        }
    }
}
