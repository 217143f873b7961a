//! Asking the daemon in each interval, on a thread of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::sample::Sample;

/// The thread that asks.
pub(super) struct Sampler {
    results: Receiver<io::Result<Sample>>,
    interval: Arc<AtomicU64>,
}

impl Sampler {
    pub(super) fn start(socket: PathBuf, interval: Duration) -> Self {
        let (sender, results) = channel();
        let interval = Arc::new(AtomicU64::new(interval.as_millis() as u64));
        let thread_interval = Arc::downgrade(&interval);
        // The thread may be inside a call that takes long: it ends by itself.
        std::thread::spawn(move || sample_loop(&socket, &thread_interval, &sender));
        Self { results, interval }
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        self.interval.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    /// The next sample, or why there is none, if either has come.
    pub(super) fn try_recv(&self) -> Option<io::Result<Sample>> {
        self.results.try_recv().ok()
    }
}

/// Asks in each interval, until the [`Sampler`] is dropped.
fn sample_loop(socket: &Path, interval: &Weak<AtomicU64>, sender: &Sender<io::Result<Sample>>) {
    loop {
        let begun = Instant::now();
        if sender.send(Sample::take(socket)).is_err() {
            return;
        }
        loop {
            let Some(interval) = interval.upgrade() else { return };
            let interval = Duration::from_millis(interval.load(Ordering::Relaxed));
            let left = interval.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
