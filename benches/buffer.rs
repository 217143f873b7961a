//! The cost of one segment's memory: claim, use, release.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fanfs::buffer::{Budget, BufferPool, size_class};

fn pool(c: &mut Criterion) {
    let mut group = c.benchmark_group("claim, take and give back");
    for len in [4 << 10, 128 << 10, 1 << 20] {
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            let pool = BufferPool::new(Budget::new(256 << 20));
            b.iter(|| {
                let claim = pool.budget().claim(size_class(len as u64)).expect("an empty budget");
                pool.allocate(len, claim)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pool);
criterion_main!(benches);
