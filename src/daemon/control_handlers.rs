//! Who reads what, for those who watch.

use super::VolumeCore;
use crate::control::{FileActivity, MAX_ACTIVE_FILES};
use crate::read::TraceStream;
use crate::telemetry::trace::{FORMAT, TraceLine};

impl VolumeCore {
    /// Which files are read, and by whom, the latest first.
    pub(super) fn file_activity(&self) -> Vec<FileActivity> {
        self.fs.recently_read_files(MAX_ACTIVE_FILES).into_iter().map(FileActivity::from).collect()
    }

    /// What becomes of each read from now on.
    pub(super) fn start_trace(&self) -> TraceStream {
        self.reader.subscribe_trace(TraceLine::Start {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            volume: self.config.volume.name.clone(),
            mount_point: self.mount_point.clone(),
            replicas: self.config.replicas.iter().map(|replica| replica.name.clone()).collect(),
            segment: self.config.read.segment_size,
        })
    }
}
