//! Writes a file for node_exporter's textfile collector.
//!
//! The file is written under a temporary name and renamed, so a reader always sees a complete one.
//! It is removed when the volume is unmounted, because node_exporter would keep showing its values.
//! It has no metrics of the process, because node_exporter has its own under the same names.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{ExpositionFormat, SnapshotFn, encode};
use crate::owned_path::DevIno;

/// The file, and whether it belongs to this daemon.
pub(super) struct TextfileWriter {
    path: PathBuf,
    state: Mutex<TextfileState>,
}

struct TextfileState {
    /// The file that was written last.
    dev_ino: Option<DevIno>,
    is_suspended: bool,
}

impl TextfileWriter {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, state: Mutex::new(TextfileState { dev_ino: None, is_suspended: false }) }
    }

    /// Stops writing.
    pub(super) fn suspend(&self) {
        self.state.lock().is_suspended = true;
    }

    /// Removes the file, unless another process has replaced it.
    pub(super) fn remove(&self) {
        if let Some(own) = self.state.lock().dev_ino.take() {
            let _ = own.remove_from(&self.path);
        }
    }

    fn write(&self, content: &str) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        // The collector reads only names that end in .prom.
        let mut file = tempfile::Builder::new().prefix(".fanfs-").tempfile_in(directory)?;
        file.write_all(content.as_bytes())?;
        // Readable for the user that node_exporter runs as.
        file.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
        let mut state = self.state.lock();
        if !state.is_suspended {
            let own = DevIno::at(file.path())?;
            file.persist(&self.path).map_err(|error| error.error)?;
            state.dev_ino = Some(own);
        }
        Ok(())
    }
}

/// Writes the file periodically.
pub(super) async fn write_periodically(
    file: Arc<TextfileWriter>,
    every: Duration,
    look: SnapshotFn,
) {
    let mut is_reported = false;
    loop {
        let writer = Arc::clone(&file);
        let look = Arc::clone(&look);
        let write = move || {
            let snapshot = super::MetricsSnapshot { process: None, ..look() };
            writer.write(&encode::encode_metrics(&snapshot, ExpositionFormat::PrometheusText))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => is_reported = false,
            Ok(Err(error)) if !is_reported => {
                let path = file.path.display();
                tracing::warn!(key = "metrics.textfile", %path, %error, "cannot write metrics");
                is_reported = true;
            }
            _ => {}
        }
        tokio::time::sleep(every).await;
    }
}
