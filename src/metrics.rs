//! What a volume tells Prometheus.
//!
//! [`definitions`] is the list of all metrics: what each is called, what it means, and where
//! in a [`Status`] its value is. [`encode`] writes them down, [`http`] answers HTTP
//! requests with that, and [`textfile`] puts it into a file; [`Exporter`] is both for
//! as long as a volume is mounted.
//!
//! In goes a function that says how the volume is, as `fanfs status` does: nothing is
//! counted for metrics alone, and nothing is done between two requests for them.
//!
//! *Invariants:*
//! - Who asks costs a bounded amount of memory, for a bounded time, and there are so
//!   many of them at most.
//! - Labels are names in the volume's file, and words of fanfs: no file of the volume is
//!   named, and there are as many series as the volume's file makes it.
//! - What is left behind at the end, a socket or a file, is removed by who made it, and
//!   only if it is still his.

mod definitions;
mod encode;
mod endpoint;
mod http;
mod process;
mod textfile;

use std::sync::Arc;

use crate::config;
use crate::status::Status;
use crate::telemetry::histogram::HistogramSnapshot;

pub use definitions::{METRICS, Metric, MetricKind, Stability, markdown_table};
pub use encode::{ExpositionFormat, encode_metrics};
pub use endpoint::{BoundListener, MetricsError};
pub use process::ProcessStats;

use textfile::TextfileWriter;

/// How a volume is at some moment.
pub struct MetricsSnapshot {
    /// As `fanfs status` shows it.
    pub status: Status,
    /// What applications waited for their reads.
    pub read_latency: HistogramSnapshot,
    /// How long positioned reads took, of each replica in their order.
    pub replica_read_latency: Vec<HistogramSnapshot>,
    /// The daemon; `None` where its process is not to be published.
    pub process: Option<ProcessStats>,
}

/// Says how a volume is.
pub type SnapshotFn = Arc<dyn Fn() -> MetricsSnapshot + Send + Sync>;

/// What publishes a volume's metrics; that ends, and nothing is left behind, when it is
/// dropped.
pub struct Exporter {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    socket_path: Arc<endpoint::SharedSocketPath>,
    file: Option<Arc<TextfileWriter>>,
}

impl Exporter {
    /// Publishes what `look` sees where `config` says. `opened` is the address where it
    /// is had already; without it, it is waited for: the daemon before this one, or what
    /// is left of it, may not have let go of it yet.
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

    /// Gives up the address and writes no more; what is there stays for the next daemon.
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
