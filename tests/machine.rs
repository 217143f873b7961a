//! How late this machine runs a thread that is ready. Time limits of tests allow for that delay, so
//! that a busy machine fails no test.
//!
//! - A limit on a time: [`timed`].
//! - An outcome that follows from rates or times that the program itself measures: [`attempts`].
//! - What the kernel has cached: [`with_kept_pages`].
//! - Anything else asserts an order of events, or counters.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::needs;

/// Threads that a call passes through; each may have to wait for a processor.
pub(crate) const HOPS: u32 = 8;

/// The watch keeps one figure for each slot of this length.
const SLOT: Duration = Duration::from_millis(100);

/// The sleep whose end shows how late a thread runs.
const NAP: Duration = Duration::from_millis(10);

/// Measures the machine's delays.
pub(crate) struct Machine {
    started: Instant,
    /// The worst oversleeping in each [`SLOT`], microseconds.
    late: Mutex<Vec<u32>>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), late: Mutex::default() }
    }

    /// Measures until it `is_over`: it only sleeps.
    pub(crate) fn watch(&self, is_over: impl Fn() -> bool) {
        while !is_over() {
            let from = Instant::now();
            std::thread::sleep(NAP);
            let over = from.elapsed().saturating_sub(NAP);
            let slot = Self::slot(self.started.elapsed());
            let mut late = self.late.lock().unwrap();
            if late.len() <= slot {
                late.resize(slot + 1, 0);
            }
            late[slot] = late[slot].max(over.as_micros() as u32);
        }
    }

    fn slot(time: Duration) -> usize {
        (time.as_millis() / SLOT.as_millis()) as usize
    }

    /// The largest delay of a thread between two times, which count from [`Self::new`].
    pub(crate) fn late(&self, from: Duration, until: Duration) -> Duration {
        let late = self.late.lock().unwrap();
        let slots = late.iter().take(Self::slot(until) + 1);
        let worst = slots.skip(Self::slot(from).saturating_sub(1)).max();
        Duration::from_micros(worst.copied().unwrap_or(0).into())
    }

    /// The largest delay of all.
    pub(crate) fn worst(&self) -> Duration {
        self.late(Duration::ZERO, self.started.elapsed())
    }
}

/// Does `work`, and returns its duration minus [`HOPS`] times the machine's delay meanwhile.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let watched = watch(work);
    let result = watched.result.unwrap_or_else(|panic| resume_unwind(panic));
    (result, watched.took.saturating_sub(watched.late * HOPS))
}

struct Watched<T> {
    result: std::thread::Result<T>,
    took: Duration,
    late: Duration,
}

fn watch<T>(work: impl FnOnce() -> T) -> Watched<T> {
    let (machine, is_over) = (Machine::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| machine.watch(|| is_over.load(Ordering::Relaxed)));
        let result = catch_unwind(AssertUnwindSafe(work));
        let took = machine.started.elapsed();
        is_over.store(true, Ordering::Relaxed);
        Watched { result, took, late: machine.worst() }
    })
}

/// How often a test is tried whose outcome follows from measured rates.
const ATTEMPTS: usize = 4;

/// A machine that never ran a thread this late spoils no attempt.
pub(crate) const LATE: Duration = Duration::from_millis(5);

/// Runs a test whose outcome follows from rates or times that the program measures. A busy machine
/// spoils some attempts, so one that passes is enough: without the feature none passes.
/// The end of `cargo test` shows the failed ones.
#[track_caller]
pub(crate) fn attempts(attempt: impl Fn()) {
    for left in (0..ATTEMPTS).rev() {
        let Watched { result, late, .. } = watch(&attempt);
        let Err(panic) = result else { return };
        eprintln!("an attempt failed, {left} are left; the machine was {late:?} late");
        if left == 0 || late < LATE {
            resume_unwind(panic);
        }
        needs::repeated(message(&*panic), &format!("the machine was {} ms late", late.as_millis()));
    }
}

/// Does `work`, which relies on pages in the kernel's cache. Does it again if another program made
/// the kernel drop all pages meanwhile.
#[track_caller]
pub(crate) fn with_kept_pages<T>(mut work: impl FnMut() -> T) -> T {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        let before = page_cache_drops();
        match catch_unwind(AssertUnwindSafe(&mut work)) {
            Ok(result) => return result,
            Err(panic) if left == 0 || page_cache_drops() == before => resume_unwind(panic),
            Err(panic) => needs::repeated(message(&*panic), "the page cache was dropped"),
        }
    }
}

/// How often all of the page cache was dropped since the machine started.
fn page_cache_drops() -> String {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap();
    let drops = counters.lines().find(|line| line.starts_with("drop_pagecache "));
    drops.expect("Linux 3.16 and later count them").to_owned()
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a thread panicked")
}
