//! The cost of one decision: the choice alone, and a segment's whole way through the scheduler.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fanfs::replicas::health_board::HealthBoard;
use fanfs::scheduler::assign::{Assigner, WaitingSegment};
use fanfs::scheduler::estimate::ReplicaLoad;
use fanfs::scheduler::lending::LendingLimit;
use fanfs::scheduler::rate::PerLocality;
use fanfs::scheduler::{AttemptOutcome, ReplicaPolicy, Scheduler, SchedulerPolicy, SegmentRequest};
use fanfs::volume::{Holders, ReplicaId, ReplicaMap, ReplicaSet};

const MIB: u64 = 1 << 20;

fn load(i: usize) -> ReplicaLoad {
    let rate = (100 + i) as f64 * MIB as f64;
    ReplicaLoad {
        rate: PerLocality { local: rate, remote: rate / 2.0 },
        is_remote_measured: true,
        is_latency_uncertain: false,
        latency: PerLocality { local: 0.001, remote: 0.002 },
        in_flight: 0,
        remote_in_flight: 0,
        in_flight_work: 0.0,
        reads_in_flight: 0,
        cap: 4 * MIB,
        max_reads: 6,
        lending: LendingLimit::Unlimited,
        lent_reads: 0,
        overdue: 0.0,
    }
}

/// Segment `i`, of a chunk of 64 segments on `copies` of the replicas.
fn demand(i: u64, replicas: usize, copies: usize) -> WaitingSegment {
    let first = i as usize / 64;
    let copies = (0..copies).map(|copy| ReplicaId::new((first + copy) % replicas));
    WaitingSegment {
        bytes: MIB,
        candidates: ReplicaSet::first(replicas),
        holders: Holders::local(copies.fold(ReplicaSet::EMPTY, ReplicaSet::with)),
        home: None,
        is_readahead: i > 0,
        file_number: 1,
        start: i * MIB,
        open_on: ReplicaSet::first(replicas),
    }
}

fn choice(c: &mut Criterion) {
    let mut group = c.benchmark_group("assign");
    for replicas in [3, 16, 64] {
        for (copies, what) in [(replicas, "all hold it"), (2, "two hold it")] {
            for queue in [1u32, 64, 512] {
                let id = BenchmarkId::new(format!("{replicas} replicas, {what}, queue"), queue);
                group.bench_function(id, |b| {
                    let loads: ReplicaMap<ReplicaLoad> = (0..replicas).map(load).collect();
                    let mut assigner = Assigner::new(replicas);
                    let mut out = Vec::new();
                    b.iter(|| {
                        out.clear();
                        let demands =
                            (0..queue).map(|i| (i, demand(u64::from(i), replicas, copies)));
                        assigner.assign(demands, black_box(&loads), &mut out);
                        out.len()
                    });
                });
            }
        }
    }
    group.finish();
}

fn cycle(c: &mut Criterion) {
    let mut group = c.benchmark_group("want, next, finished");
    for replicas in [3, 64] {
        group.bench_function(BenchmarkId::from_parameter(replicas), |b| {
            let mut now = Instant::now();
            let policy = SchedulerPolicy { segment: MIB, attempt_deadline: Duration::from_secs(5) };
            let names = ReplicaMap::from_fn(replicas, |_| String::new());
            let mut health = HealthBoard::new(names, false, now);
            let replica = ReplicaPolicy {
                weight: 1.0,
                max_in_flight: 32 * MIB,
                max_reads: 6,
                max_rate: None,
            };
            let map = ReplicaMap::from_fn(replicas, |_| replica.clone());
            let mut scheduler = Scheduler::new(policy, map, now);
            let mut out = Vec::new();
            b.iter(|| {
                let candidates = ReplicaSet::first(replicas);
                let want = SegmentRequest {
                    item: 0u64,
                    bytes: MIB,
                    is_readahead: false,
                    candidates,
                    holders: Holders::UNKNOWN,
                    pinned: ReplicaSet::EMPTY,
                    is_hedge: false,
                    file_number: 1,
                    start: 0,
                    open_on: ReplicaSet::ALL,
                };
                scheduler.enqueue(want);
                scheduler.schedule(&mut health, now, &mut out);
                for dispatch in out.drain(..) {
                    now += Duration::from_millis(1);
                    scheduler.attempt_finished(
                        dispatch.attempt,
                        AttemptOutcome::Delivered(MIB),
                        &mut health,
                        now,
                    );
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, choice, cycle);
criterion_main!(benches);
