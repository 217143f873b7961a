//! What time brings: late segments, passed deadlines, memory to be handed on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{ReadError, Reader, attempt};

/// How often late segments and passed deadlines are looked for while anything
/// is under way. A tenth of the earliest hedge is close enough.
const TICK: Duration = Duration::from_millis(25);

/// The clock stops when there was nothing to look after for so many ticks. To
/// start it wakes a thread, which is not to happen for each of a row of reads.
const IDLE_TICKS: u32 = 40;

/// Answered requests behind one that is not are swept out past this number.
const ANSWERED_KEPT: usize = 1024;

impl Reader {
    /// Something is under way that the clock is to look after.
    pub(super) fn wake_clock(&self) {
        if !self.ticking.load(Ordering::SeqCst) && !self.ticking.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Looks after what takes too long; true while there is anything to look
    /// after.
    fn tick(self: &Arc<Self>, now: Instant) -> bool {
        let mut late = Vec::new();
        let mut dispatches = Vec::new();
        {
            let mut scheduler = self.scheduler.lock();
            scheduler.late(now, &mut late);
            for late in late {
                attempt::hedge(self, &mut scheduler, late);
            }
            scheduler.next(now, &mut dispatches);
        }
        self.dispatch(dispatches);
        let overdue: Vec<_> = {
            let mut requests = self.requests.lock();
            let mut overdue = Vec::new();
            while let Some(first) = requests.front() {
                let late = now.saturating_duration_since(first.since) >= self.policy.deadline;
                if !late && !first.is_over() {
                    break;
                }
                overdue.extend(requests.pop_front());
            }
            if requests.len() > ANSWERED_KEPT {
                requests.retain(|gather| !gather.is_over());
            }
            overdue
        };
        for gather in overdue {
            self.fail(&gather, ReadError::Deadline);
        }
        self.make_room();
        !self.requests.lock().is_empty() || !self.scheduler.lock().is_idle()
    }

    /// Runs the read path's clock; never returns. Spawn it once.
    pub async fn run_clock(self: Arc<Self>) {
        loop {
            let mut idle = 0;
            while idle < IDLE_TICKS {
                idle = if self.tick(Instant::now()) { 0 } else { idle + 1 };
                tokio::time::sleep(TICK).await;
            }
            self.ticking.store(false, Ordering::SeqCst);
            // Who came before that was stored has not woken anybody.
            if self.tick(Instant::now()) {
                self.ticking.store(true, Ordering::SeqCst);
                continue;
            }
            self.wake.notified().await;
        }
    }
}
