//! Takes a sample in each interval, on a separate thread.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::sample::Sample;

/// The sampling thread.
pub(super) struct Sampler {
    results: Receiver<io::Result<Sample>>,
    interval: Arc<AtomicU64>,
}

impl Sampler {
    pub(super) fn start(socket: PathBuf, interval: Duration) -> Self {
        let (sender, results) = channel();
        let interval = Arc::new(AtomicU64::new(interval.as_millis() as u64));
        let thread_interval = Arc::downgrade(&interval);
        // Nothing joins the thread, which may be inside a long call. It ends after `Sampler` is
        // dropped.
        std::thread::spawn(move || sample_loop(&socket, &thread_interval, &sender));
        Self { results, interval }
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        self.interval.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    /// The next sample or error, if one has arrived.
    pub(super) fn try_recv(&self) -> Option<io::Result<Sample>> {
        self.results.try_recv().ok()
    }
}

/// Takes samples until the [`Sampler`] is dropped.
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
