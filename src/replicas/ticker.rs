//! The ticker of a volume: the clock for reads and calls that wait for replicas.
//!
//! Each component that waits for replicas registers once ([`Ticker::add`]), and wakes the ticker
//! when a wait starts ([`Ticker::wake`]). While anything is in progress, the ticker ticks all of
//! them every [`TICK`]. Afterwards it slows down, or stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The interval of checks for late calls and passed deadlines while anything is in progress. It is
/// a quarter of [`MIN_HEDGE_DELAY`](super::lateness::MIN_HEDGE_DELAY), which is precise enough.
const TICK: Duration = Duration::from_millis(25);

/// The interval while the only work is to wait for a replica's return.
const SLOW_TICK: Duration = Duration::from_millis(250);

/// After reads, the ticker stops only after this many ticks without work: starting it wakes a
/// thread, and each of many reads in sequence would do that. After calls it stops at once, because
/// these ticks would cost more than the calls.
const IDLE_TICKS: u32 = 40;

/// The work that is left, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingWork {
    /// Nothing.
    Idle,
    /// Replicas that are not asked, or are being checked.
    Replicas,
    /// Reads or calls in progress.
    Calls,
}

/// A component that the ticker drives.
pub trait Ticked: Send + Sync {
    /// Does the work that is due at `now`, without blocking. Returns the work that is left.
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork;

    /// The ticker has stopped because the volume is stopping: releases everything that waits for
    /// it.
    fn stop(self: Arc<Self>);
}

/// Stops the registered components when it is dropped.
struct StopOnDrop<'a>(&'a Ticker);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        let ticked = std::mem::take(&mut *self.0.ticked.lock());
        ticked.iter().filter_map(Weak::upgrade).for_each(Ticked::stop);
    }
}

/// The ticker.
#[derive(Default)]
pub struct Ticker {
    /// Whether it ticks, so that no wake-up is needed.
    is_ticking: AtomicBool,
    /// Whether it keeps ticking for a while without work ([`Ticker::wake_to_linger`]).
    lingers: AtomicBool,
    wake: Notify,
    ticked: Mutex<Vec<Weak<dyn Ticked>>>,
}

impl Ticker {
    /// Registers `ticked` for as long as it exists.
    pub fn add(&self, ticked: Weak<dyn Ticked>) {
        self.ticked.lock().push(ticked);
    }

    /// Reports work for the ticker. Never blocks.
    pub fn wake(&self) {
        self.wake_with(false);
    }

    /// The same for work that comes in series: without work the ticker continues for
    /// [`IDLE_TICKS`], unless it was ticking already.
    pub fn wake_to_linger(&self) {
        self.wake_with(true);
    }

    fn wake_with(&self, lingers: bool) {
        if !self.is_ticking.load(Ordering::SeqCst) && !self.is_ticking.swap(true, Ordering::SeqCst)
        {
            self.lingers.store(lingers, Ordering::SeqCst);
            self.wake.notify_one();
        }
    }

    fn tick(&self, now: Instant) -> PendingWork {
        let ticked: Vec<Arc<dyn Ticked>> = {
            let mut ticked = self.ticked.lock();
            ticked.retain(|one| one.strong_count() > 0);
            ticked.iter().filter_map(Weak::upgrade).collect()
        };
        let left = ticked.into_iter().map(|one| tick_catching_panics(one, now));
        left.max().unwrap_or(PendingWork::Idle)
    }

    /// Runs the ticker; never returns. Spawn it once.
    pub async fn run(&self) {
        let _stop = StopOnDrop(self);
        loop {
            let limit = if self.lingers.load(Ordering::SeqCst) { IDLE_TICKS } else { 1 };
            let mut idle = 0;
            while idle < limit {
                let left = self.tick(Instant::now());
                idle = if left == PendingWork::Calls { 0 } else { idle + 1 };
                tokio::time::sleep(TICK).await;
            }
            self.is_ticking.store(false, Ordering::SeqCst);
            loop {
                // This tick also finds work that started before the store and did not wake the
                // ticker.
                match self.tick(Instant::now()) {
                    PendingWork::Calls => break,
                    PendingWork::Idle => break self.wake.notified().await,
                    PendingWork::Replicas => {
                        if tokio::time::timeout(SLOW_TICK, self.wake.notified()).await.is_ok() {
                            break;
                        }
                    }
                }
            }
            self.is_ticking.store(true, Ordering::SeqCst);
        }
    }
}

/// Ticks one component. A panic must not stop the ticker, or no request of the volume would end at
/// its deadline.
fn tick_catching_panics(ticked: Arc<dyn Ticked>, now: Instant) -> PendingWork {
    let tick = std::panic::AssertUnwindSafe(|| ticked.tick(now));
    std::panic::catch_unwind(tick).unwrap_or_else(|_| {
        tracing::error!("a periodic task panicked; this is a bug in fanfs");
        // It may have calls left that it has not checked.
        PendingWork::Calls
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sends a message for each tick, and returns the work in `left`.
    struct Reporter {
        ticks: mpsc::Sender<()>,
        left: Mutex<PendingWork>,
    }

    impl Ticked for Reporter {
        fn tick(self: Arc<Self>, _: Instant) -> PendingWork {
            let _ = self.ticks.send(());
            *self.left.lock()
        }

        fn stop(self: Arc<Self>) {
            *self.left.lock() = PendingWork::Idle;
        }
    }

    fn reporter(left: PendingWork) -> (Arc<Reporter>, mpsc::Receiver<()>) {
        let (ticks, ticked) = mpsc::channel();
        (Arc::new(Reporter { ticks, left: Mutex::new(left) }), ticked)
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn the_ticker_stops_when_idle_and_restarts_on_a_wake() {
        let ticker = Arc::new(Ticker::default());
        let (busy, busy_ticks) = reporter(PendingWork::Calls);
        let (idle, idle_ticks) = reporter(PendingWork::Idle);
        ticker.add(Arc::downgrade(&busy) as Weak<dyn Ticked>);
        ticker.add(Arc::downgrade(&idle) as Weak<dyn Ticked>);
        ticker.wake_to_linger();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let own = Arc::clone(&ticker);
        runtime.spawn(async move { own.run().await });
        for _ in 0..2 * IDLE_TICKS {
            busy_ticks.recv_timeout(SOON).expect("there are calls to look after");
            idle_ticks.recv_timeout(SOON).expect("all are ticked");
        }
        assert!(ticker.is_ticking.load(Ordering::SeqCst));
        *busy.left.lock() = PendingWork::Idle;
        let until = Instant::now() + SOON;
        while ticker.is_ticking.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "the clock does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(busy);
        // The ticker ticks once more after it clears `is_ticking`.
        idle_ticks.try_iter().for_each(drop);
        ticker.wake_to_linger();
        for _ in 0..IDLE_TICKS / 2 {
            idle_ticks.recv_timeout(SOON).expect("it was woken");
        }
        runtime.shutdown_background();
    }

    struct Panicker;

    impl Ticked for Panicker {
        fn tick(self: Arc<Self>, _: Instant) -> PendingWork {
            panic!("on purpose");
        }

        fn stop(self: Arc<Self>) {}
    }

    #[test]
    fn a_panicking_tick_does_not_stop_the_others() {
        let ticker = Ticker::default();
        let panicker = Arc::new(Panicker);
        let (idle, idle_ticks) = reporter(PendingWork::Idle);
        ticker.add(Arc::downgrade(&panicker) as Weak<dyn Ticked>);
        ticker.add(Arc::downgrade(&idle) as Weak<dyn Ticked>);
        for _ in 0..2 {
            assert_eq!(ticker.tick(Instant::now()), PendingWork::Calls);
            idle_ticks.try_recv().expect("the other is ticked");
        }
    }
}
