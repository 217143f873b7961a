//! A read through the whole read path, from a replica that answers from memory: the cost of fanfs
//! itself, without FUSE and without a disk.

#[path = "scripted/mod.rs"]
mod scripted;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanfs::backend::{Credentials, PoolLimits, Replica};
use fanfs::config::units::Share;
use fanfs::placement::{Locator, LocatorPolicy, PlacementSource, ReplicaTopology};
use fanfs::read::{
    CallerThread, ReadBytes, ReadParams, ReadPolicy, Reader, RequestOrigin, SegmentPipes,
};
use fanfs::replicas::Replicas;
use fanfs::replicas::request_deadline::Deadlines;
use fanfs::scheduler::ReplicaPolicy;
use fanfs::volume::{ByteRange, ReplicaMap, VolumeMode};
use scripted::{LARGE, Memory};

const MIB: u64 = 1 << 20;
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("threads can be started"));

fn reader(replicas: usize) -> Arc<Reader> {
    let policy = ReadPolicy {
        segment: MIB,
        readahead_max: 64 * MIB,
        budget: 256 * MIB,
        deadlines: Deadlines {
            while_responsive: Duration::from_secs(30),
            while_unresponsive: Duration::from_secs(300),
        },
        attempt_deadline: Duration::from_secs(5),
        pipes: SegmentPipes::default(),
        compare_share: Share(0.0),
    };
    let limits = PoolLimits { threads: 8, queue: 1024, max_inline_calls: 0 };
    let map = ReplicaMap::from_fn(replicas, |id| {
        Arc::new(Replica::new(id, "memory".into(), Arc::new(Memory), limits, Arc::default()))
    });
    let replica =
        ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6, max_rate: None };
    let limits = ReplicaMap::from_fn(replicas, |_| replica.clone());
    let locating = LocatorPolicy {
        ttl: Duration::from_secs(600),
        retry_after: Duration::from_secs(30),
        min_file_size: 0,
        timeout: Duration::from_secs(20),
    };
    let locator = Locator::new(
        PlacementSource::None,
        locating,
        ReplicaTopology::default(),
        RUNTIME.handle().clone(),
    );
    let replicas = Replicas::new(map, 0);
    Reader::new(policy, replicas, limits, Arc::default(), Arc::new(locator))
}

fn gather(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    for (name, len, stride) in [
        ("sequential", 128 << 10, 128 << 10),
        ("sequential", MIB, MIB),
        ("random", 4096, 997 * 4096),
        ("across segments", MIB, 3 * MIB + 512),
    ] {
        group.throughput(Throughput::Bytes(len));
        group.bench_function(BenchmarkId::new(name, len), |b| {
            let reader = reader(3);
            let version = scripted::attr_of(Path::new("large")).version();
            let file = Arc::new(reader.new_open_file(
                PathBuf::from("large"),
                version,
                VolumeMode::Shared,
                Credentials::DAEMON,
            ));
            let handle = reader.new_handle();
            let (send, receive) = std::sync::mpsc::sync_channel(1);
            let mut at = 0;
            b.iter(|| {
                let send = send.clone();
                let range = ByteRange::at(at, len);
                at = (at + stride) % (LARGE / 2);
                let sink = move |answer: Result<ReadBytes<'_>, _>| {
                    let len = answer.map(|bytes| match bytes {
                        ReadBytes::Slice(bytes) => bytes.len(),
                        ReadBytes::Segments(data) => data.len(),
                    });
                    send.send(len).expect("the receiver waits");
                };
                let asked = ReadParams {
                    range,
                    since: Instant::now(),
                    fails_fast_on_stale: false,
                    origin: RequestOrigin::default(),
                };
                reader.read(&file, &handle, asked, CallerThread::MustQueue, sink);
                receive.recv().expect("the sink is called").expect("memory does not fail")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, gather);
criterion_main!(benches);
