//! A scenario's keys as they appear in the file, before any check.

use std::path::PathBuf;

use serde::Deserialize;

use crate::config::units::{Rate, Size, Time};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioToml {
    #[serde(default = "one")]
    pub(super) seed: u64,
    pub(super) policies: Option<Vec<String>>,
    pub(super) placement: Option<String>,
    pub(super) cluster: Option<ClusterToml>,
    #[serde(default)]
    pub(super) node: Vec<NodeToml>,
    #[serde(default)]
    pub(super) replica: Vec<ReplicaToml>,
    pub(super) file: Option<FileToml>,
    #[serde(default)]
    pub(super) reader: Vec<ReaderToml>,
    #[serde(default)]
    pub(super) change: Vec<ChangeToml>,
    #[serde(default)]
    pub(super) read: ReadToml,
    pub(super) metadata: Option<MetadataToml>,
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterToml {
    pub(super) nodes: usize,
    pub(super) disk: Rate,
    pub(super) network: Option<Rate>,
    pub(super) replicas: Option<usize>,
    pub(super) latency: Option<Time>,
    pub(super) remote_from: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeToml {
    pub(super) number: usize,
    pub(super) disk: Option<Rate>,
    pub(super) network: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplicaToml {
    pub(super) node: usize,
    pub(super) name: Option<String>,
    pub(super) latency: Option<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileToml {
    pub(super) size: Size,
    pub(super) chunk: Option<Size>,
    pub(super) replication: Option<usize>,
    pub(super) first: Option<usize>,
    #[serde(default)]
    pub(super) random: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReaderToml {
    pub(super) count: Option<usize>,
    #[serde(default)]
    pub(super) same_file: bool,
    pub(super) reads: Option<String>,
    pub(super) number: Option<u64>,
    pub(super) block: Option<Size>,
    pub(super) start: Option<Time>,
    pub(super) burst: Option<Size>,
    pub(super) pause: Option<Time>,
    pub(super) trace: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeToml {
    pub(super) at: Time,
    pub(super) node: usize,
    pub(super) factor: f64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadToml {
    pub(super) segment_size: Option<Size>,
    pub(super) readahead_max: Option<Size>,
    pub(super) max_in_flight: Option<Size>,
    pub(super) reads_per_replica: Option<usize>,
    pub(super) budget: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetadataToml {
    pub(super) calls: u64,
    pub(super) times: Vec<Time>,
    pub(super) workers: Option<usize>,
    pub(super) threads: Option<usize>,
    pub(super) directories: Option<u64>,
}
