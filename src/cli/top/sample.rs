//! Asking the daemon, on a thread of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::{self, FileActivity};
use crate::status::Status;

/// What the daemon said at one moment.
pub(super) struct Sample {
    pub(super) taken_at: Instant,
    pub(super) status: Status,
    /// None where it did not tell.
    pub(super) files: Option<Vec<FileActivity>>,
}

impl Sample {
    /// Asks the daemon that listens at `socket`.
    ///
    /// # Errors
    /// Where nobody listens, or it does not answer.
    pub(super) fn take(socket: &Path) -> io::Result<Self> {
        let status = control::query_status(socket)?;
        let at = Instant::now();
        // A daemon from before there was such a question refuses it.
        let files = control::query_file_activity(socket).ok();
        Ok(Self { taken_at: at, status, files })
    }
}

/// A sample, or why there is none.
pub(super) type SampleResult = Result<Sample, String>;

/// The thread that asks.
pub(super) struct Sampler {
    results: Receiver<SampleResult>,
    interval: Arc<AtomicU64>,
}

impl Sampler {
    pub(super) fn start(socket: PathBuf, interval: Duration) -> Self {
        let (send, news) = channel();
        let interval = Arc::new(AtomicU64::new(interval.as_millis() as u64));
        let every = Arc::downgrade(&interval);
        // It may be inside a question that takes long: it ends by itself.
        std::thread::spawn(move || sample_loop(&socket, &every, &send));
        Self { results: news, interval }
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        self.interval.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    /// What has come.
    pub(super) fn try_recv(&self) -> Option<SampleResult> {
        self.results.try_recv().ok()
    }
}

/// Asks in each interval, until nobody wants to know.
fn sample_loop(socket: &Path, every: &Weak<AtomicU64>, to: &Sender<SampleResult>) {
    loop {
        let begun = Instant::now();
        let news = Sample::take(socket).map_err(|error| error.to_string());
        if to.send(news).is_err() {
            return;
        }
        loop {
            let Some(interval) = every.upgrade() else { return };
            let interval = Duration::from_millis(interval.load(Ordering::Relaxed));
            let left = interval.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
