//! The clock of a volume: it looks after reads and calls that wait for replicas.
//!
//! Whatever waits for a replica registers here once ([`Ticker::add`]), and wakes the clock
//! when it begins to wait ([`Ticker::wake`]). While anything is under way each of them is
//! ticked every [`TICK`]. Then the clock slows down, or stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How often late calls and passed deadlines are looked for while anything
/// is under way. A tenth of the earliest hedge is close enough.
const TICK: Duration = Duration::from_millis(25);

/// And while the only thing to look after is that a replica comes back.
const SLOW_TICK: Duration = Duration::from_millis(250);

/// After reads the clock stops when there was nothing to look after for so many ticks. To
/// start it wakes a thread, which is not to happen for each of a row of reads. After calls
/// it stops at once: it would cost more than they do.
const IDLE_TICKS: u32 = 40;

/// What there is to look after, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingWork {
    /// Nothing.
    Idle,
    /// Replicas that are not asked.
    Replicas,
    /// Reads or calls.
    Calls,
}

/// What the clock looks after.
pub trait Ticked: Send + Sync {
    /// Does what is due at `now`. Returns what there is left to look after. Does not block.
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork;

    /// The clock has stopped for good, as the volume goes away: lets go of what waits for it.
    fn stop(self: Arc<Self>);
}

/// Stops what the clock looked after when it is dropped.
struct StopOnDrop<'a>(&'a Ticker);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        let ticked = std::mem::take(&mut *self.0.ticked.lock());
        ticked.iter().filter_map(Weak::upgrade).for_each(Ticked::stop);
    }
}

/// The clock.
#[derive(Default)]
pub struct Ticker {
    /// Whether it ticks, so that nothing needs to wake it.
    is_ticking: AtomicBool,
    /// Whether it goes on ticking for a while when nothing is left ([`Ticker::wake_to_linger`]).
    lingers: AtomicBool,
    wake: Notify,
    ticked: Mutex<Vec<Weak<dyn Ticked>>>,
}

impl Ticker {
    /// Ticks `ticked` as well, for as long as it exists.
    pub fn add(&self, ticked: Weak<dyn Ticked>) {
        self.ticked.lock().push(ticked);
    }

    /// Something is under way that the clock is to look after. Never blocks.
    pub fn wake(&self) {
        self.wake_with(false);
    }

    /// The same for work that comes in rows: when nothing is left the clock goes on ticking
    /// for [`IDLE_TICKS`], unless it ticked already.
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

    /// Runs the clock; never returns. Spawn it once.
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
                // Also for what began before that was stored, and has not woken the clock.
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

/// A panic of one leaves the clock to the others, and to itself: without it no request of
/// the volume would end at its deadline.
fn tick_catching_panics(ticked: Arc<dyn Ticked>, now: Instant) -> PendingWork {
    let tick = std::panic::AssertUnwindSafe(|| ticked.tick(now));
    std::panic::catch_unwind(tick).unwrap_or_else(|_| {
        tracing::error!("a tick panicked; this is a bug in fanfs");
        // Calls that it had not looked at may be left.
        PendingWork::Calls
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sends each tick, and says what is left.
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
    fn the_clock_stops_when_nothing_is_left_and_a_wake_starts_it() {
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
        // The last tick comes after the clock says that it stops.
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
    fn a_tick_that_panics_leaves_the_clock_to_the_others() {
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
