//! Keys whose value is one of a few words, and what each of the words means.
//!
//! The lists of words are in the order of the documents. [`super::raw`] publishes them in the
//! schema; [`super::checks::parse_choice`] looks a word up.

use crate::volume::VolumeMode;

/// `volume.mode` as written.
pub(super) const MODES: [(&str, VolumeMode); 2] =
    [("shared", VolumeMode::Shared), ("copies", VolumeMode::Copies)];

/// Whether a volume may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing can be changed through the mount.
    ReadOnly,
    /// Everything that the write replica lets its caller change.
    ReadWrite,
}

/// `volume.access` as written.
pub(super) const ACCESSES: [(&str, Access); 2] =
    [("ro", Access::ReadOnly), ("rw", Access::ReadWrite)];

/// How a replica's own page cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// Past it on NFS, through it elsewhere.
    Auto,
    /// Through it.
    Use,
    /// Past it, where the file system can do that.
    Bypass,
}

/// `replica.page_cache` as written.
pub(super) const PAGE_CACHES: [(&str, PageCache); 3] =
    [("auto", PageCache::Auto), ("use", PageCache::Use), ("bypass", PageCache::Bypass)];

/// Who caches file data between reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// The kernel's page cache, kept across opens while the file is unchanged.
    Kernel,
    /// No cache: every read reaches fanfs.
    Direct,
    /// One or the other, decided for each open.
    Auto,
}

/// `read.cache` as written.
pub(super) const CACHES: [(&str, CachePolicy); 3] =
    [("auto", CachePolicy::Auto), ("kernel", CachePolicy::Kernel), ("direct", CachePolicy::Direct)];

/// Which files the kernel reads from one replica by itself, past the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// None.
    Off,
    /// All, each as a whole from one replica.
    WholeFile,
}

/// `read.passthrough` as written.
pub(super) const PASSTHROUGHS: [(&str, Passthrough); 2] =
    [("off", Passthrough::Off), ("whole-file", Passthrough::WholeFile)];

/// Who keeps the locks of fcntl(2) and flock(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// The write replica, so that they hold for other clients as well.
    Forward,
    /// This machine's kernel, for this mount alone.
    Local,
}

/// `write.locks` as written.
pub(super) const LOCKS: [(&str, LockMode); 2] =
    [("forward", LockMode::Forward), ("local", LockMode::Local)];

/// How log lines look, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
    /// To systemd's journal, with its fields.
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

/// Tools whose output fanfs reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterTool {
    /// `hadoop mfs -ls`
    MapRfs,
    /// `hdfs fsck`
    Hdfs,
    /// `ceph osd map`
    CephFs,
    /// The pathinfo attribute.
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
