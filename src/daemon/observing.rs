//! Who reads what, for those who watch.

use super::Core;
use crate::control::{FileUse, MOST_FILES};
use crate::read::Trace;
use crate::telemetry::trace::{FORMAT, Line};

impl Core {
    /// Which files are read, and by whom, the latest first.
    pub(super) fn busiest(&self) -> Vec<FileUse> {
        self.fs.busiest(MOST_FILES).into_iter().map(FileUse::from).collect()
    }

    /// What becomes of each read from now on.
    pub(super) fn trace(&self) -> Trace {
        self.reader.trace(Line::Start {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            volume: self.config.volume.name.clone(),
            mount_point: self.mount_point.clone(),
            replicas: self.config.replicas.iter().map(|replica| replica.name.clone()).collect(),
            segment: self.config.read.segment_size,
        })
    }
}
