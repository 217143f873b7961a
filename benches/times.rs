//! The cost of recording a duration, from one thread and from several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use fanfs::telemetry::histogram::{LatencyHistogram, LatencySummary};

fn times(c: &mut Criterion) {
    let mut group = c.benchmark_group("times");
    let mut next = 0u64;
    let mut took = move || {
        next = next.wrapping_add(997);
        Duration::from_micros(next & 0xffff)
    };
    let shared = Arc::new(LatencyHistogram::default());
    group.bench_function("record", |b| b.iter(|| shared.record(took())));
    group.bench_function("clock and record", |b| {
        let since = Instant::now();
        b.iter(|| shared.record(since.elapsed()));
    });
    let over = Arc::new(AtomicBool::new(false));
    let others = (0..3).map(|_| {
        let (shared, over) = (Arc::clone(&shared), Arc::clone(&over));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                shared.record(Duration::from_micros(100));
            }
        })
    });
    let others: Vec<_> = others.collect();
    group.bench_function("record beside three others", |b| b.iter(|| shared.record(took())));
    over.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    group.bench_function("reading", |b| b.iter(|| LatencySummary::from(shared.snapshot())));
    group.finish();
}

criterion_group!(benches, times);
criterion_main!(benches);
