//! Keys whose value is one of a few words, and the meaning of each word.
//!
//! The lists are in the order of the documents. [`super::raw`] publishes them in the schema;
//! [`super::checks::parse_choice`] looks a word up.

use crate::nfs::Version;
use crate::volume::VolumeMode;

/// `volume.mode` as written.
pub(super) const MODES: [(&str, VolumeMode); 2] =
    [("shared", VolumeMode::Shared), ("copies", VolumeMode::Copies)];

/// What the mount may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    ReadOnly,
    /// Everything that the write replica allows the caller to change.
    ReadWrite,
}

/// `volume.access` as written.
pub(super) const ACCESSES: [(&str, Access); 2] =
    [("ro", Access::ReadOnly), ("rw", Access::ReadWrite)];

/// Whether fanfs reads a replica through the page cache of its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// `Bypass` on NFS, `Use` elsewhere.
    Auto,
    /// Through the page cache.
    Use,
    /// With O_DIRECT where the file system supports it.
    Bypass,
}

/// `replica.page_cache` as written.
pub(super) const PAGE_CACHES: [(&str, PageCache); 3] =
    [("auto", PageCache::Auto), ("use", PageCache::Use), ("bypass", PageCache::Bypass)];

/// `replica.version` as written. Without it, fanfs takes what the server offers.
pub(super) const NFS_VERSIONS: [(&str, Version); 2] = [("3", Version::V3), ("4.1", Version::V4_1)];

/// Where file data is cached between reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// The kernel's page cache, kept across opens while the file is unchanged.
    Kernel,
    /// No cache: every read reaches fanfs.
    Direct,
    /// One of the two, chosen at each open.
    Auto,
}

/// `read.cache` as written.
pub(super) const CACHES: [(&str, CachePolicy); 3] =
    [("auto", CachePolicy::Auto), ("kernel", CachePolicy::Kernel), ("direct", CachePolicy::Direct)];

/// Which files the kernel reads from one replica without the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// None.
    Off,
    /// All; each file from one replica.
    WholeFile,
}

/// `read.passthrough` as written.
pub(super) const PASSTHROUGHS: [(&str, Passthrough); 2] =
    [("off", Passthrough::Off), ("whole-file", Passthrough::WholeFile)];

/// Where locks of fcntl(2) and flock(2) are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// On the write replica, for all clients.
    Forward,
    /// In this machine's kernel, for this mount only.
    Local,
}

/// `write.locks` as written.
pub(super) const LOCKS: [(&str, LockMode); 2] =
    [("forward", LockMode::Forward), ("local", LockMode::Local)];

/// The format of log lines, and their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
    /// systemd's journal, with its fields.
    Journald,
}

/// `log.format` as written.
pub(super) const LOG_FORMATS: [(&str, LogFormat); 3] =
    [("text", LogFormat::Text), ("json", LogFormat::Json), ("journald", LogFormat::Journald)];

/// The placement provider, without its settings.
#[derive(Clone, Copy)]
pub(super) enum ProviderKind {
    None,
    Learned,
    Tool(ClusterTool),
    Hdfs,
    Table,
    Exec,
}

/// Cluster tools whose output fanfs parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterTool {
    /// `hadoop mfs -ls`
    MapRfs,
    /// `hdfs fsck`
    Hdfs,
    /// The map of the cluster, by `ceph`.
    CephFs,
    /// The `pathinfo` extended attribute.
    GlusterFs,
    /// `lfs getstripe`
    Lustre,
    /// `beegfs-ctl --getentryinfo`
    BeeGfs,
}

/// `placement.provider` as written.
pub(super) const PROVIDERS: [(&str, ProviderKind); 10] = [
    ("none", ProviderKind::None),
    ("maprfs", ProviderKind::Tool(ClusterTool::MapRfs)),
    ("hdfs", ProviderKind::Hdfs),
    ("cephfs", ProviderKind::Tool(ClusterTool::CephFs)),
    ("glusterfs", ProviderKind::Tool(ClusterTool::GlusterFs)),
    ("lustre", ProviderKind::Tool(ClusterTool::Lustre)),
    ("beegfs", ProviderKind::Tool(ClusterTool::BeeGfs)),
    ("table", ProviderKind::Table),
    ("exec", ProviderKind::Exec),
    ("learned", ProviderKind::Learned),
];

/// The words of a list of choices, in its order.
pub(super) fn words<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(word, _)| *word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_spelled_as_everywhere_else() {
        for (written, mode) in MODES {
            assert_eq!(serde_json::to_value(mode).unwrap(), written);
        }
    }
}
