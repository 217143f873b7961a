//! A read through the whole read path, from a replica that answers from memory: the cost of fanfs
//! itself, without FUSE and without a disk.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanfs::backend::{
    Attr, Backend, BackendFile, BorrowedFds, CreateOptions, Credentials, EntryRef, EntryVisitor,
    FileKind, FileMutation, Lock, LockRequest, ObjectRef, OwnedFds, PoolLimits, Replica, Result,
    SeekTo, StatFs, TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::config::units::Share;
use fanfs::placement::{Locator, LocatorPolicy, PlacementSource, ReplicaTopology};
use fanfs::read::{CallerThread, ReadParams, ReadPolicy, Reader, RequestOrigin};
use fanfs::replicas::Replicas;
use fanfs::replicas::request_deadline::Deadlines;
use fanfs::scheduler::ReplicaPolicy;
use fanfs::volume::{ByteRange, FileId, ReplicaMap, VolumeMode};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 1 << 40;

struct Memory;

impl Memory {
    fn attr() -> Attr {
        Attr {
            id: FileId { dev: FileId::ROOT_DEV, ino: 2 },
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: SIZE,
            blocks: 0,
            blksize: 4096,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            generation: Default::default(),
        }
    }
}

impl Backend for Memory {
    fn stat(&self, _: &Path) -> Result<Attr> {
        Ok(Self::attr())
    }
    fn stat_entry(&self, _: &EntryRef) -> Result<Attr> {
        Ok(Self::attr())
    }
    fn stat_entries(&self, _: &ObjectRef, _: &[OsString]) -> Result<Vec<Result<Attr>>> {
        Ok(Vec::new())
    }
    fn list(&self, _: &ObjectRef, _: &mut EntryVisitor<'_>) -> Result<()> {
        Ok(())
    }
    fn check_open_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }

    fn revalidate_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _: &ObjectRef) -> Result<OsString> {
        Ok(OsString::new())
    }
    fn open(&self, _: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        Ok((Arc::new(Memory), Self::attr()))
    }
    fn stat_fs(&self) -> Result<StatFs> {
        Err(rustix::io::Errno::NOSYS.into())
    }
    fn get_xattr(&self, _: &ObjectRef, _: &OsStr) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn list_xattr(&self, _: &ObjectRef) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn check_mount(&self) -> Result<bool> {
        Ok(true)
    }
    fn is_in_service(&self) -> bool {
        true
    }
    fn handle_unmount(&self, _: u64) {}
    fn mount_id(&self) -> Option<u64> {
        None
    }
    fn flush_closes(&self) {}
    fn adopt(&self, _: OwnedFds) -> Option<Arc<dyn BackendFile>> {
        None
    }
    fn open_to_write(&self, _: &Path, _: &WriteOpenOptions) -> Result<WritableFile> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn create(&self, _: &EntryRef, _: &WriteOpenOptions, _: CreateOptions) -> Result<WritableFile> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn mutate(&self, _: &TreeMutation) -> Result<Option<Attr>> {
        Err(rustix::io::Errno::ROFS.into())
    }
}

impl BackendFile for Memory {
    fn attr(&self) -> Result<Attr> {
        Ok(Self::attr())
    }
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(buf.len())
    }
    fn splice_at(&self, _: u64, _: BorrowedFd<'_>, _: usize) -> Option<Result<usize>> {
        None
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn fds(&self) -> BorrowedFds<'_> {
        BorrowedFds::default()
    }
    fn is_deferred(&self) -> bool {
        false
    }
    fn seek(&self, offset: u64, _: SeekTo) -> Result<u64> {
        Ok(offset)
    }
    fn mutate(&self, _: &FileMutation<'_>) -> Result<u64> {
        Err(rustix::io::Errno::ROFS.into())
    }
    fn lock(&self, _: &LockRequest) -> Result<Lock> {
        Err(rustix::io::Errno::NOLCK.into())
    }
}

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
        pipes: None,
        compare_share: Share(0.0),
    };
    let limits = PoolLimits { threads: 8, queue: 1024, max_inline_calls: 0 };
    let map = ReplicaMap::from_fn(replicas, |id| {
        Arc::new(Replica::new(id, "memory".into(), Arc::new(Memory), limits, Arc::default()))
    });
    let replica = ReplicaPolicy { weight: 1.0, max_in_flight: 32 * MIB, max_reads: 6 };
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
            let version = Memory::attr().version();
            let file = Arc::new(reader.new_open_file(
                PathBuf::from("f"),
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
                at = (at + stride) % (SIZE / 2);
                let sink = Box::new(move |answer| send.send(answer).expect("the receiver waits"));
                let asked = ReadParams {
                    range,
                    since: Instant::now(),
                    fails_fast_on_stale: false,
                    origin: RequestOrigin::default(),
                };
                reader.read(&file, &handle, asked, CallerThread::MustQueue, sink);
                let data =
                    receive.recv().expect("the sink is called").expect("memory does not fail");
                data.len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, gather);
criterion_main!(benches);
