//! The cost of one read before anything is sent: splitting it into pieces, and deciding how far to
//! read ahead.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fanfs::read::readahead::Readahead;
use fanfs::read::split::split_range;
use fanfs::volume::ByteRange;

const MIB: u64 = 1 << 20;

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for known in [0u64, 1, 16] {
        group.bench_with_input(
            BenchmarkId::new("cover 16 MiB, known", known),
            &known,
            |b, known| {
                let ranges: Vec<_> =
                    (0..*known).map(|i| (ByteRange::at(i * MIB + MIB / 2, MIB / 4), i)).collect();
                let wanted = ByteRange::at(1000, 16 * MIB);
                b.iter(|| split_range(black_box(wanted), ranges.iter().copied(), MIB));
            },
        );
    }
    group.finish();
}

fn readahead(c: &mut Criterion) {
    let mut group = c.benchmark_group("readahead");
    for (name, stride) in [("sequential", 128 << 10), ("strided", 2 * MIB)] {
        group.bench_function(name, |b| {
            let mut readahead = Readahead::new(MIB);
            let mut at = 0;
            b.iter(|| {
                let read = ByteRange::at(at, 128 << 10);
                at = (at + stride) % (1 << 40);
                let advice = readahead.observe(black_box(read), u64::MAX, 64 * MIB);
                readahead.set_fetched(read, advice.fetch.end);
                advice
            });
        });
    }
    group.finish();
}

criterion_group!(benches, plan, readahead);
criterion_main!(benches);
