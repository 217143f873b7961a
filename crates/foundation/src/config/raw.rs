//! The file as it is written: what serde sees, before anything is checked.
//!
//! Every key is optional here, the required ones too: their absence is reported
//! by [`super::validate`], which knows what to advise. Numbers are signed and
//! wide for the same reason: "-1 is out of range; use 2 to 256" says more than
//! "expected usize".
//!
//! What a field's comment says is what fanfs.toml(5) and the file's JSON schema say of
//! that key ([`super::schema`]): meaning first, then the reason of its default. Defaults
//! and ranges come from [`defaults`]; `x-default` is a default that is no fixed value.
//!
//! *Invariant:* the fields of these structs are the only list of known keys;
//! [`keys_of`] reads it from serde, so suggestions cannot lag behind.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor, value::Error as ValueError};
use serde_json::json;

use super::choices::{self, words};
use super::defaults;
use super::range_text::{bounds, number_bounds, time_text, times};
use super::units::{Rate, Share, Size, Time};
use crate::volume::MAX_REPLICAS;

/// A volume of fanfs: what it is, where its replicas are mounted, and how reads are cut,
/// sent and bounded.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["volume", "replica"]))]
pub(super) struct RawConfig {
    /// What the volume is.
    pub(super) volume: Volume,
    /// One table for each replica, 1 to 64 of them. Errors count them from 1:
    /// `replica[2].path` is the second one's path.
    #[schemars(length(min = 1, max = MAX_REPLICAS))]
    pub(super) replica: Vec<Replica>,
    /// How reads are cut, sent and bounded.
    pub(super) read: Read,
    /// Who carries out changes, and what the other replicas may still show.
    pub(super) write: Write,
    /// The buffer budget.
    pub(super) memory: Memory,
    /// The FUSE session.
    pub(super) fuse: Fuse,
    /// Where Prometheus gets the volume's metrics.
    pub(super) metrics: Metrics,
    /// What is logged, and how.
    pub(super) log: Log,
    /// Who is asked which nodes hold a file's chunks. A key that the chosen provider does not
    /// use is refused.
    pub(super) placement: Placement,
    /// Subtrees that are read through certain replicas, data and metadata, as long as those are
    /// well. One table for each rule; the first rule that matches a path counts.
    pub(super) affinity: Vec<Affinity>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["name", "mode"]))]
pub(super) struct Volume {
    /// Names the volume in logs, in `fanfs status` and as the mount's source.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
    #[schemars(extend(
        "x-default" = "required",
        "x-range" = "1 to 64 of `A-Z a-z 0-9 . _ -`, a letter or digit first",
    ))]
    pub(super) name: Option<String>,
    /// `"shared"`: the replicas are one file system seen through several paths. `"copies"`:
    /// independent trees with the same content. It decides what two opens of a file are compared
    /// by, and the wrong one is dangerous, so there is no default.
    #[schemars(extend("enum" = words(&choices::MODES), "x-default" = "required"))]
    pub(super) mode: Option<String>,
    /// The unit of placement: the chunk size of the cluster. MapR's default is 256 MiB, HDFS's
    /// block 128 MiB, CephFS's object 4 MiB; the default is a multiple of each.
    #[schemars(extend(
        "default" = defaults::CHUNK_SIZE.to_string(),
        "x-range" = "a multiple of `read.segment_size`",
    ))]
    pub(super) chunk_size: Option<Size>,
    /// What the mount may change: nothing (`"ro"`), or everything that the write replica lets its
    /// caller change (`"rw"`: `shared` volumes only, and not with `read.passthrough`).
    #[schemars(extend("enum" = words(&choices::ACCESSES), "default" = "ro"))]
    pub(super) access: Option<String>,
    /// How many replicas must be in service before the mount is up. The others join when
    /// they are there. With 1, one dead gateway takes nothing away after a power failure.
    /// In a volume that can be written the write replica must be one of them.
    #[schemars(range(min = 1, max = MAX_REPLICAS))]
    #[schemars(extend(
        "default" = defaults::MIN_REPLICAS,
        "x-range" = "1 to the number of replicas",
    ))]
    pub(super) min_replicas: Option<i64>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["path"]))]
pub(super) struct Replica {
    /// Where the replica is mounted. Two replicas with one path are one path's bandwidth.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required",
        "x-range" = "an absolute directory without `..`; different for each replica",
    ))]
    pub(super) path: Option<String>,
    /// Names the replica in logs and in `fanfs status`. Two replicas on one node need names of
    /// their own.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$"))]
    #[schemars(extend(
        "x-default" = "the `node` where it is given, otherwise `r1`, `r2`, ... by position",
        "x-range" = "1 to 253 of `A-Z a-z 0-9 . _ - :`; unique in the volume",
    ))]
    pub(super) name: Option<String>,
    /// The storage node that the replica's gateway runs on, as the cluster calls it. Locality is
    /// a match with it.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$"))]
    #[schemars(extend(
        "x-default" = "the replica's name",
        "x-range" = "as `name`, need not be unique",
    ))]
    pub(super) node: Option<String>,
    /// Other names that the placement provider has for that node: host names, addresses,
    /// `host:port`, `osd.3`, `OST000a`. A name that matches no replica is locality that is not
    /// used.
    #[schemars(inner(regex(pattern = r"^[A-Za-z0-9._:-]{1,253}$")))]
    #[schemars(extend("x-default" = "none", "x-range" = "each as `name`"))]
    pub(super) aliases: Option<Vec<String>>,
    /// Relative speed assumed until there is a measurement; equal, because nothing is known
    /// before.
    #[schemars(range(min = *defaults::WEIGHT_RANGE.start(), max = *defaults::WEIGHT_RANGE.end()))]
    #[schemars(extend(
        "default" = defaults::WEIGHT,
        "x-range" = number_bounds(&defaults::WEIGHT_RANGE),
    ))]
    pub(super) weight: Option<f64>,
    /// Most bytes in flight to this replica: a lower limit for one that is shared with others.
    #[schemars(extend(
        "x-default" = "none: `read.max_in_flight`",
        "x-range" = "at least `read.segment_size`",
    ))]
    pub(super) max_in_flight: Option<Size>,
    /// Most bytes a second to ask of this replica. At the least rate a default segment still
    /// comes back within 16 s.
    #[schemars(extend(
        "x-default" = "none: no limit",
        "x-range" = format!("at least `\"{}\"`", defaults::MAX_RATE_MIN),
    ))]
    pub(super) max_rate: Option<Rate>,
    /// Whether this replica's files are read through its mount's own page cache: `"use"`,
    /// `"bypass"` (O_DIRECT, where the file system can), or `"auto"`: bypass on NFS, where what
    /// fanfs has read is not read again soon and the page cache costs more than it saves.
    #[schemars(extend("enum" = words(&choices::PAGE_CACHES), "default" = "auto"))]
    pub(super) page_cache: Option<String>,
    /// Leave the replica out while nothing is mounted at the path or above it. An unmounted
    /// mount point is an empty directory, and would look like a volume without files.
    #[schemars(extend("default" = defaults::REQUIRE_MOUNT))]
    pub(super) require_mount: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Read {
    /// The unit of dispatch: what one replica is asked for at once. One FUSE read is at most 256
    /// pages by default and one READ of Linux's NFS client at most 1 MiB, so one segment is one
    /// request on the wire. Smaller, the round trip costs more than the data; larger, one late
    /// segment holds its reader for long.
    #[schemars(extend(
        "default" = defaults::SEGMENT_SIZE.to_string(),
        "x-range" = format!("a power of two, {}", bounds(&defaults::SEGMENT_SIZE_RANGE)),
    ))]
    pub(super) segment_size: Option<Size>,
    /// How far past a sequential reader to fetch at most. Bandwidth times delay of 2 GiB/s over
    /// 30 ms; a quarter of the default budget.
    #[schemars(extend(
        "default" = defaults::READAHEAD_MAX.to_string(),
        "x-range" = "`\"0B\"` (off), or at least `segment_size`",
    ))]
    pub(super) readahead_max: Option<Size>,
    /// Threads of each replica's own pool. Eight default segments under way fill a 10 Gbit/s path
    /// up to 7 ms of latency.
    #[schemars(range(
        min = *defaults::THREADS_PER_REPLICA_RANGE.start(),
        max = *defaults::THREADS_PER_REPLICA_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::THREADS_PER_REPLICA,
        "x-range" = number_bounds(&defaults::THREADS_PER_REPLICA_RANGE),
    ))]
    pub(super) threads_per_replica: Option<i64>,
    /// Most bytes in flight to one replica. Twice the rate times latency of a 10 Gbit/s path of
    /// 14 ms; the scheduler's own cap is lower for most replicas.
    #[schemars(extend(
        "default" = defaults::MAX_IN_FLIGHT.to_string(),
        "x-range" = "at least `segment_size`",
    ))]
    pub(super) max_in_flight: Option<Size>,
    /// How long a request may go without progress: then it ends in an error. Progress is an
    /// answer to what was queued on its replica before it, or to a part of it. Half of the 60 s
    /// that an NFS client waits over TCP before it retries.
    #[schemars(extend(
        "default" = time_text(defaults::DEADLINE),
        "x-range" = times(&defaults::DEADLINE_RANGE),
    ))]
    pub(super) deadline: Option<Time>,
    /// The same while no replica that could serve the request answers: not even its root. Then
    /// servers that restart are waited for, as a hard mount does, an NFSv4 server's grace period
    /// (90 s) included. When one answers again, the request has another `deadline`. Changes wait
    /// as long for the write replica, where `write.deadline` is shorter. `deadline` turns it off.
    #[schemars(extend(
        "default" = time_text(defaults::DEADLINE_ALL),
        "x-range" = "`deadline` to `\"1h\"`",
    ))]
    pub(super) deadline_all: Option<Time>,
    /// How long one replica may take before another one is asked too. Far above a healthy
    /// replica's time, and a sixth of the deadline, so that several in turn may fail to answer.
    #[schemars(extend(
        "default" = time_text(defaults::ATTEMPT_DEADLINE),
        "x-range" = format!("`\"{}\"` to `deadline`", defaults::ATTEMPT_DEADLINE_MIN),
    ))]
    pub(super) attempt_deadline: Option<Time>,
    /// In `copies` volumes: the share of segments of which a block of 64 KiB is compared with the
    /// deciding replica's, after they have been delivered; of files larger than a segment also
    /// the first one of each replica. Who has other bytes is kept off the file and reported. In
    /// `shared` volumes it means nothing.
    #[schemars(extend(
        "default" = defaults::COMPARE.to_string(),
        "x-range" = "`\"0%\"` (off) to `\"100%\"`",
    ))]
    pub(super) compare: Option<Share>,
    /// Who caches file data. `"kernel"`: the page cache keeps it across opens while the file is
    /// unchanged. `"direct"`: nobody does, and every read reaches fanfs; for data that is read
    /// once, in large blocks. `"auto"`: decided for each open; a file larger than a quarter of
    /// the memory is opened direct.
    #[schemars(extend("enum" = words(&choices::CACHES), "default" = "auto"))]
    pub(super) cache: Option<String>,
    /// Which files the kernel reads from one replica by itself, past fanfs: none (`"off"`) or all
    /// (`"whole-file"`). At that replica's own speed and no more; such reads do not fail over,
    /// and nothing of them is seen in the counters. Needs Linux 6.9, root (CAP_SYS_ADMIN) and
    /// replicas that are neither limited by `max_rate` nor stacked.
    #[schemars(extend("enum" = words(&choices::PASSTHROUGHS), "default" = "off"))]
    pub(super) passthrough: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Write {
    /// The write replica: it carries out every change, and keeps the locks. One and the same, or
    /// two changes could overtake each other on their ways to the server.
    #[schemars(extend("x-default" = "the first one", "x-range" = "a replica's name"))]
    pub(super) replica: Option<String>,
    /// How long a change may go without progress, as in `read.deadline`: then it ends in an error.
    /// To write back what a client has in memory takes minutes over a slow gateway; to give up
    /// earlier would call a success a failure. An application cannot be killed while it waits.
    #[schemars(extend(
        "default" = time_text(defaults::WRITE_DEADLINE),
        "x-range" = times(&defaults::DEADLINE_RANGE),
    ))]
    pub(super) deadline: Option<Time>,
    /// How long the other replicas' mounts may show names and attributes as they were before a
    /// change: for so long only the write replica is asked about what was changed here. The
    /// largest of their `acregmax`, `acdirmax` (60 s by default), `actimeo`. Too short, and one's
    /// own change is not seen; too long, and what was changed lately is out of reach for longer
    /// when the write replica hangs.
    #[schemars(extend(
        "default" = time_text(defaults::WRITE_LAG),
        "x-range" = times(&defaults::WRITE_LAG_RANGE),
    ))]
    pub(super) lag: Option<Time>,
    /// Who keeps the locks of fcntl and flock: the write replica, for all clients (`"forward"`),
    /// or this machine's kernel, for this mount alone (`"local"`). `"forward"` makes every close
    /// of a file one more request to the daemon, as closing gives locks up.
    #[schemars(extend(
        "enum" = words(&choices::LOCKS),
        "x-default" = "`\"forward\"`; `\"local\"` in `copies`",
    ))]
    pub(super) locks: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Memory {
    /// Most bytes of file data, directory listings and locks that the daemon holds at once.
    /// Writes that wait for the write replica take up to five sixteenths of it. Four readers' full
    /// readahead, or the in-flight limit of eight replicas. Readahead shrinks to fit it.
    #[schemars(extend(
        "default" = defaults::BUDGET.to_string(),
        "x-range" = format!("at least {} times `read.segment_size`", defaults::BUDGET_MIN_SEGMENTS),
    ))]
    pub(super) budget: Option<Size>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fuse {
    /// Threads that take requests from the kernel. Two always do, if there are so many; the
    /// others may carry out small reads themselves.
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
    /// Let other users than the mounting one in. Unless root mounts, `/etc/fuse.conf` needs
    /// `user_allow_other`.
    #[schemars(extend("default" = defaults::ALLOW_OTHER))]
    pub(super) allow_other: Option<bool>,
    /// Raise the kernel's readahead and queue limits for this mount, and `fs.pipe-max-size` to
    /// 2 MiB where pipes for `splice` cannot be had otherwise. The kernel's own, 128 KiB and 16
    /// requests, do not cover a network. Where they may not be raised, that is not an error.
    #[schemars(extend("default" = defaults::KERNEL_TUNING))]
    pub(super) kernel_tuning: Option<bool>,
    /// Hand pages of the replicas' page cache on to the kernel instead of copying them. Needs
    /// pipes of 2 MiB (more with larger segments): root may have them, others as far as
    /// `/proc/sys/fs/pipe-max-size` goes. Without them bytes are copied.
    #[schemars(extend("default" = defaults::SPLICE))]
    pub(super) splice: Option<bool>,
    /// The kernel's readahead for this mount, where it may be set. One FUSE read; fanfs reads
    /// ahead itself, and more of the kernel's on top made Linux 6.12 half as fast as 6.1.
    #[schemars(extend(
        "default" = defaults::KERNEL_READAHEAD.to_string(),
        "x-range" = format!("`\"0B\"` (off) to `\"{}\"`", defaults::KERNEL_READAHEAD_RANGE.end()),
    ))]
    pub(super) kernel_readahead: Option<Size>,
    /// Requests that the kernel may have under way in the background: its readahead and
    /// asynchronous direct reads. The others wait in the kernel, in the order in which they came,
    /// whoever else is served meanwhile. The kernel's own 12 would leave fast replicas idle.
    #[schemars(range(
        min = *defaults::MAX_BACKGROUND_RANGE.start(),
        max = *defaults::MAX_BACKGROUND_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::MAX_BACKGROUND,
        "x-range" = number_bounds(&defaults::MAX_BACKGROUND_RANGE),
    ))]
    pub(super) max_background: Option<i64>,
    /// How long the kernel may trust names and attributes. libfuse's default; `"0s"` asks a
    /// replica at every stat.
    #[schemars(extend(
        "default" = time_text(defaults::ATTRIBUTE_TTL),
        "x-range" = times(&defaults::ATTRIBUTE_TTL_RANGE),
    ))]
    pub(super) attribute_ttl: Option<Time>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    /// Answers HTTP requests there. Nobody is asked who he is: whoever gets to the address reads
    /// what it says, so it is loopback unless another one is written. Each mounted volume needs
    /// its own. One that cannot be had is an error when the volume is mounted, and a warning
    /// after a reload.
    #[schemars(extend(
        "x-default" = "none: nowhere",
        "x-range" = "`\"ADDRESS:PORT\"`, `\"[ADDRESS]:PORT\"`, `\"PORT\"` (of 127.0.0.1), \
                     `\"unix:/PATH\"` of at most 100 bytes",
    ))]
    pub(super) listen: Option<String>,
    /// A file for node_exporter's textfile collector. It goes when the volume is unmounted.
    #[schemars(regex(pattern = r"^/.*\.prom$"))]
    #[schemars(extend(
        "x-default" = "none",
        "x-range" = "an absolute path that ends in `.prom`",
    ))]
    pub(super) textfile: Option<String>,
    /// How often that file is written. Prometheus is most often told to look every 15 s, and
    /// shows for five minutes what it has seen.
    #[schemars(extend(
        "default" = time_text(defaults::METRICS_INTERVAL),
        "x-range" = format!("{}; only with `textfile`", times(&defaults::METRICS_INTERVAL_RANGE)),
    ))]
    pub(super) interval: Option<Time>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    /// What is logged. `$FANFS_LOG` has precedence. At `debug` files are named, above it never.
    #[schemars(extend(
        "default" = defaults::LOG_LEVEL,
        "x-range" = "a level (`off`, `error`, `warn`, `info`, `debug`, `trace`), `TARGET=LEVEL`, \
                     or several with commas between them, such as \
                     `\"info,fanfs::scheduler=debug\"`",
    ))]
    pub(super) level: Option<String>,
    /// `"json"`: an object a line, with `timestamp`, `level`, `target` and `fields`, in which
    /// `message` is. `"journald"`: to systemd's journal by its own protocol, with fields
    /// `FANFS_...`; as text, with a warning, where there is no journal.
    #[schemars(extend("enum" = words(&choices::LOG_FORMATS), "default" = "text"))]
    pub(super) format: Option<String>,
    /// How often the same message, which is one place in the source, is logged within ten
    /// seconds. The others are left out, and then counted in one line. A replica that fails makes
    /// a message for each of its threads; more of them say nothing new.
    #[schemars(range(
        min = *defaults::LOG_RATE_RANGE.start(),
        max = *defaults::LOG_RATE_RANGE.end(),
    ))]
    #[schemars(extend(
        "default" = defaults::LOG_RATE,
        "x-range" = "0 (off) to 1000000",
    ))]
    pub(super) rate: Option<i64>,
    /// Size at which a log file is renamed to `NAME.1`, over the one before, and begun again. A
    /// file that logrotate(8) moves is begun again too. Standard error and the journal are not
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
    /// Who is asked. Nobody, unless somebody is named: a question runs a program or crosses the
    /// network. `"learned"` asks nobody and infers from timing.
    #[schemars(extend("enum" = words(&choices::PROVIDERS), "default" = "none"))]
    pub(super) provider: Option<String>,
    /// The volume's root in the cluster's own name space, or where the cluster's own file system
    /// is mounted for its tool. What is asked about is `root` and the file's path in the volume.
    /// Not with `"table"`, `"none"` and `"learned"`.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend("default" = "/", "x-range" = "an absolute path without `..`"))]
    pub(super) root: Option<String>,
    /// The command that is asked. No shell takes part, so each word is one argument; the places
    /// stand for the file. Any other `{...}` is refused.
    #[schemars(length(min = 1))]
    #[schemars(extend(
        "x-default" = "the provider's own; required for `\"exec\"`, and for `\"hdfs\"` without `url`",
        "x-range" = "at least a program; places are `{path}`, `{local}`, `{object}`, `{pool}`, \
                     `{offset}`, `{size}`, each also as `{path:sh}`",
    ))]
    pub(super) command: Option<Vec<String>>,
    /// `"cephfs"` only: the command that prints a file's layout.
    #[schemars(length(min = 1))]
    #[schemars(extend(
        "x-default" = "`getfattr` for `ceph.file.layout`",
        "x-range" = "as `command`",
    ))]
    pub(super) layout_command: Option<Vec<String>>,
    /// `"hdfs"` only: the WebHDFS address of each NameNode, in any order. The one that answers is
    /// asked first from then on.
    #[schemars(length(min = 1), inner(regex(pattern = "^https?://[A-Za-z0-9._:\\[\\]-]+/*$")))]
    #[schemars(extend(
        "x-default" = "required for `\"hdfs\"` without `command`",
        "x-range" = "at least one `http://HOST:PORT` or `https://HOST:PORT`, without a path",
    ))]
    pub(super) url: Option<Vec<String>>,
    /// `"hdfs"` with `url` only: `user.name`, for a cluster that believes it.
    #[schemars(extend("x-default" = "none"))]
    pub(super) user: Option<String>,
    /// `"hdfs"` with `url` only: the certificates to trust instead of the public ones.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "none: the public certificates",
        "x-range" = "an absolute path of a PEM file with a certificate",
    ))]
    pub(super) ca_file: Option<String>,
    /// `"table"` only: the table, CSV where the name ends in `.csv`, TOML otherwise. It is read
    /// anew when it changes.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required for `\"table\"`",
        "x-range" = "an absolute path",
    ))]
    pub(super) file: Option<String>,
    /// How long one question may take. `hadoop` and `hdfs` start a Java machine, which takes
    /// seconds on a busy node. No read waits for it.
    #[schemars(extend(
        "default" = time_text(defaults::PLACEMENT_TIMEOUT),
        "x-range" = times(&defaults::PLACEMENT_TIMEOUT_RANGE),
    ))]
    pub(super) timeout: Option<Time>,
    /// How long an answer counts. Chunks stay where they are until a node fails or a balancer
    /// runs; a replica that behaves as if they had moved makes fanfs ask before that.
    #[schemars(extend(
        "default" = time_text(defaults::PLACEMENT_TTL),
        "x-range" = times(&defaults::PLACEMENT_TTL_RANGE),
    ))]
    pub(super) ttl: Option<Time>,
    /// How long after a failure the same file is asked about again. A NameNode that fails over is
    /// back in this time.
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
    /// What is pinned. `*` does not cross a `/`, `**` does; `"/a/**"` is a rule for `/a` as well,
    /// as listing it is the first thing that is asked of it.
    #[schemars(regex(pattern = "^/"))]
    #[schemars(extend(
        "x-default" = "required",
        "x-range" = "a glob that starts with `/`, the volume's root",
    ))]
    pub(super) path: Option<String>,
    /// The replica to read through.
    #[schemars(extend(
        "x-default" = "one of the two is required",
        "x-range" = "a replica's `name`",
    ))]
    pub(super) replica: Option<String>,
    /// All replicas on that node.
    #[schemars(extend(
        "x-default" = "one of the two is required",
        "x-range" = "a replica's `node` or one of its `aliases`, as it is written there",
    ))]
    pub(super) node: Option<String>,
}

/// The tables a file may have, in the order the documentation has them.
pub(super) fn tables() -> &'static [&'static str] {
    keys_of::<RawConfig>()
}

/// The keys that `table` may have; none where there is no such table.
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

/// Whether there may be several tables of this name.
pub(super) fn is_list(table: &str) -> bool {
    matches!(table, "replica" | "affinity")
}

/// The field names that `T`'s derived `Deserialize` asks for.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Ends in an error by design: the fields are known before any value is.
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
