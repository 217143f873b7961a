//! Publishes a volume's metrics for Prometheus.
//!
//! [`definitions`] lists all metrics: each one's name, meaning, and the place of its value in a
//! [`Status`]. [`encode`] writes them as text, [`http`] serves that text to HTTP requests, and
//! [`textfile`] writes it to a file. [`Exporter`] does both while a volume is mounted.
//!
//! The input is a function that returns the volume's state, the same that `fanfs status` shows.
//! Nothing is counted for metrics alone, and the endpoint does nothing between two requests.
//!
//! *Invariants:*
//! - Each request costs bounded memory and time, and the number of concurrent requests is bounded.
//! - Labels contain only names from the volume's configuration and words of fanfs, never the name
//!   of a file in the volume. The configuration bounds the number of series.
//! - At the end, each daemon removes the socket and the file that it made, unless another process
//!   has replaced them.

mod definitions;
mod encode;
mod endpoint;
mod http;
mod process;
mod textfile;

use std::sync::Arc;

use crate::config;
use crate::status::Status;

pub use definitions::{METRICS, Metric, MetricKind, Stability, markdown_table};
pub use encode::{ExpositionFormat, encode_metrics};
pub use endpoint::{BoundListener, MetricsError};
pub use process::ProcessStats;

use textfile::TextfileWriter;

/// The state of a volume at one moment.
pub struct MetricsSnapshot {
    /// The state that `fanfs status` shows.
    pub status: Status,
    /// The daemon's process; `None` if it must not be published.
    pub process: Option<ProcessStats>,
}

/// Returns the current state of a volume.
pub type SnapshotFn = Arc<dyn Fn() -> MetricsSnapshot + Send + Sync>;

/// Publishes a volume's metrics. Dropping it stops that, and removes the socket and the file.
pub struct Exporter {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    socket_path: Arc<endpoint::SharedSocketPath>,
    file: Option<Arc<TextfileWriter>>,
}

impl Exporter {
    /// Starts to publish the result of `look` as `config` says. `opened` is the listener if it is
    /// already bound. Without it, the exporter waits for the address: the previous daemon, or its
    /// remains, may still hold it.
    pub fn start(
        runtime: &tokio::runtime::Handle,
        config: &config::MetricsConfig,
        opened: Option<BoundListener>,
        look: SnapshotFn,
    ) -> Self {
        let socket = Arc::new(endpoint::SharedSocketPath::default());
        let mut tasks = Vec::new();
        if let Some(listen) = &config.listen {
            let listen = listen.clone();
            let socket = Arc::clone(&socket);
            let look = Arc::clone(&look);
            tasks.push(runtime.spawn(async move {
                if let Some(listener) = endpoint::async_listener(&listen, opened, &socket).await {
                    http::accept_loop(listener, look).await;
                }
            }));
        }
        let file = config.textfile.as_ref().map(|textfile| {
            let file = Arc::new(TextfileWriter::new(textfile.path.clone()));
            let writer = textfile::write_periodically(Arc::clone(&file), textfile.interval, look);
            tasks.push(runtime.spawn(writer));
            file
        });
        Self { tasks, socket_path: socket, file }
    }

    /// Releases the address and stops writing; the socket and the file stay for the next daemon.
    pub fn suspend(&self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        if let Some(file) = &self.file {
            file.suspend();
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.suspend();
        drop(self.socket_path.lock().take());
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

#[cfg(test)]
mod tests;
