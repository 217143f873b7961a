//! The best way to read a replica's file on this mount: through its page cache as the backend does,
//! with the pages dropped after use, without keeping pages in the page cache (`RWF_DONTCACHE`,
//! where the file system has it), or past the page cache (`O_DIRECT`).
//!
//! `cargo bench --bench replica_reads -- [FILE] [ROUNDS]` reads FILE (by default a scratch file of
//! 256 MiB) in segments of 1 MiB by eight threads, from a cold cache and then once more, each way
//! in turn, and prints medians. It drops only FILE's own pages from the cache; it cannot drop an
//! NFS server's cache. The first row is the reference for the others.

use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfs::buffer::{Budget, BufferPool};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};

const SEGMENT: u64 = 1 << 20;
const THREADS: usize = 8;
const OWN_FILE: u64 = 256 << 20;
const ROUNDS: usize = 5;

/// Since Linux 6.14; rustix has no name for it.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Buffered,
    DropAfter,
    DontCache,
    Direct,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Buffered, "page cache"),
    (Way::DropAfter, "page cache, dropped after use"),
    (Way::DontCache, "RWF_DONTCACHE"),
    (Way::Direct, "O_DIRECT"),
];

/// The cost of one pass over the file.
struct Pass {
    rate: f64,
    /// Of this process, kernel included; without the work of a loop device's or the network's own
    /// threads.
    cpu_seconds_per_gib: f64,
}

fn main() {
    // `cargo bench` passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let rounds = words.get(1).map_or(ROUNDS, |word| word.parse().expect("a number of rounds"));
    let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = words.first().map_or_else(|| own_file(room.path()), PathBuf::from);
    let mut passes: Vec<Vec<(Pass, Pass)>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (passes, (way, _)) in passes.iter_mut().zip(WAYS) {
            match cold_and_again(&path, way) {
                Ok(pair) => passes.push(pair),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
                Err(errno) => panic!("{}: {errno}", path.display()),
            }
        }
    }
    println!("{}, {rounds} rounds\n", path.display());
    println!("| way | cold, MiB/s | to the first | CPU s/GiB | to the first | again, MiB/s |");
    println!("|---|---:|---:|---:|---:|---:|");
    let median_of = |passes: &[(Pass, Pass)], of: fn(&(Pass, Pass)) -> f64| {
        let mut values: Vec<f64> = passes.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut first = None;
    for (passes, (_, name)) in passes.iter().zip(WAYS) {
        if passes.is_empty() {
            println!("| {name} | not on this file system | | | | |");
            continue;
        }
        let rate = median_of(passes, |(cold, _)| cold.rate);
        let cpu = median_of(passes, |(cold, _)| cold.cpu_seconds_per_gib);
        let again = median_of(passes, |(_, again)| again.rate);
        let (first_rate, first_cpu) = *first.get_or_insert((rate, cpu));
        let (to_rate, to_cpu) = (rate / first_rate, cpu / first_cpu);
        println!("| {name} | {rate:.0} | {to_rate:.2} | {cpu:.3} | {to_cpu:.2} | {again:.0} |");
    }
}

fn own_file(room: &Path) -> PathBuf {
    let path = room.join("data");
    let mut file = File::create(&path).unwrap();
    let block: Vec<u8> = (0..SEGMENT).map(|i| (i % 251) as u8).collect();
    for _ in 0..OWN_FILE / SEGMENT {
        file.write_all(&block).unwrap();
    }
    // Only clean pages can be dropped.
    file.sync_all().unwrap();
    path
}

fn cold_and_again(path: &Path, way: Way) -> Result<(Pass, Pass), Errno> {
    let flags = if way == Way::Direct { OFlags::DIRECT } else { OFlags::empty() };
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(|e| Errno::from_io_error(&e).expect("an errno of open(2)"))?;
    // As the backend does, which reads ahead itself.
    fadvise(&file, 0, None, Advice::Random)?;
    fadvise(File::open(path).unwrap(), 0, None, Advice::DontNeed)?;
    Ok((pass(&file, way)?, pass(&file, way)?))
}

fn pass(file: &File, way: Way) -> Result<Pass, Errno> {
    let segments = file.metadata().unwrap().len() / SEGMENT;
    assert!(segments > 0, "the file is shorter than a segment");
    let pool = BufferPool::new(Budget::new(THREADS as u64 * SEGMENT));
    let next = AtomicU64::new(0);
    let (cpu, start) = (cpu_time(), Instant::now());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| read_segments(file, way, &pool, &next, segments)))
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().unwrap())
    })?;
    let (took, cpu) = (start.elapsed(), cpu_time() - cpu);
    let mib = ((segments * SEGMENT) >> 20) as f64;
    Ok(Pass {
        rate: mib / took.as_secs_f64(),
        cpu_seconds_per_gib: cpu.as_secs_f64() * 1024.0 / mib,
    })
}

fn read_segments(
    file: &File,
    way: Way,
    pool: &BufferPool,
    next: &AtomicU64,
    segments: u64,
) -> Result<(), Errno> {
    let claim = pool.budget().claim(SEGMENT).expect("a segment for each thread");
    let mut buffer = pool.allocate(SEGMENT as usize, claim).map_err(|_| "no memory").unwrap();
    let flags = if way == Way::DontCache { DONTCACHE } else { ReadWriteFlags::empty() };
    loop {
        let segment = next.fetch_add(1, Ordering::Relaxed);
        if segment >= segments {
            return Ok(());
        }
        let start = segment * SEGMENT;
        let mut filled = 0;
        while filled < buffer.len() {
            let part = &mut [IoSliceMut::new(&mut buffer[filled..])];
            filled += preadv2(file, part, start + filled as u64, flags)?;
        }
        if way == Way::DropAfter {
            fadvise(file, start, std::num::NonZeroU64::new(SEGMENT), Advice::DontNeed)?;
        }
    }
}

fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
