//! The nemesis: readers, writers and verifiers over replicas that fail by a seeded plan, on a real
//! mount.
//!
//!     cargo test --release --test nemesis -- --seed 7 --minutes 3
//!     cargo test --release --test nemesis -- --seed 1 --seeds 20 --minutes 3
//!     cargo test --release --test nemesis -- --exports --seed 1 --seeds 20 --minutes 3
//!
//! Without arguments it runs CI's seeds: one of second failures where that is possible, beside the
//! others. The plan of a seed is printed first and is the same each time; the order in which
//! threads run is not. docs/RELIABILITY.md lists the checks and the results.

#[path = "nemesis/census.rs"]
mod census;
#[path = "nemesis/content.rs"]
mod content;
mod export_server;
#[path = "nemesis/exports.rs"]
mod exports;
#[path = "nemesis/judge.rs"]
mod judge;
mod loopback;
#[allow(dead_code, reason = "what tests/mounted.rs and tests/program.rs alone ask of it")]
mod machine;
mod mapped;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[allow(dead_code, unused_imports, reason = "tests here need less than others")]
#[path = "../crates/nfs/tests/session/server.rs"]
mod nfs4_server;
#[allow(dead_code, reason = "tests here need less than others")]
mod nfs_server;
#[allow(dead_code, reason = "tests/mounted.rs needs more")]
mod processes;
#[path = "nemesis/readers.rs"]
mod readers;
#[path = "nemesis/schedule.rs"]
mod schedule;
#[allow(dead_code, reason = "tests/program.rs needs more")]
mod signals;
// Writers of other lengths use its shortest block.
#[path = "nemesis/second.rs"]
mod second;
#[allow(dead_code)]
#[path = "posix/stamp.rs"]
mod stamp;
#[path = "nemesis/watch.rs"]
mod watch;
#[path = "nemesis/world.rs"]
mod world;
#[path = "nemesis/writers.rs"]
mod writers;

use std::io::Write;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use fanfs::replicas::health::MAX_EJECTION;
use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;
use serde::Serialize;

use census::Census;
use judge::{Judge, Report};
use mapped::Mapper;
use readers::{CREW, Reader};
use schedule::{Random, Schedule};
use watch::{SetOnDrop, TimeLimit, watch_calls};
use world::{Setup, World};
use writers::{StampReader, Stamped, Writer};

/// The runs of CI, one process each.
///
/// The seeds, 20 s each: in one process, whose memory may not grow from the first to the last.
const CI_SEEDS: &[&str] = &["--seed=1", "--seeds=6", "--minutes=0.333333333333"];
/// The same over exports: of NFSv3, of both versions in one volume, and of NFSv4.1.
const CI_EXPORTS: &[&str] = &["--exports", "--seed=3", "--seeds=3", "--minutes=0.333333333333"];
/// The seed of second failures. Its 45 s have three kills, two upgrades and a reload, beside
/// replicas that are dead, hang and have lost their mounts.
const CI_SECOND: &[&str] = &["--second", "--seed=1", "--minutes=0.75"];

/// After the last heal all replicas must serve reads again within this time: the longest pause
/// between two probes, plus the time until a replica is measured as fast again.
const RECOVERY: Duration = MAX_EJECTION.saturating_add(Duration::from_secs(10));

/// Permitted growth of resident memory, from the first quarter of a round to its end, beside that of
/// the data in the budget, and from the first rounds to the last: small allocations leave holes.
const RESIDENT: u64 = 16 << 20;

#[derive(Parser)]
#[command(about = "Readers and writers over replicas that break as a seed says")]
struct Arguments {
    /// The first seed. Without it, the runs of CI.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// How long each seed runs.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Append each seed's result, one line of JSON each.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Second failures: kill, replace and reload the program while its replicas are in
    /// trouble. Needs root and bindfs.
    #[arg(long, requires = "seed")]
    second: bool,
    /// The replicas are exports of NFS servers, and the volume is only read.
    #[arg(long, requires = "seed", conflicts_with = "second")]
    exports: bool,
    /// Print the schedule and exit.
    #[arg(long)]
    dry: bool,
    /// The arguments that `cargo test NAME` passes to every test.
    #[arg(hide = true)]
    filter: Vec<String>,
    #[arg(long, hide = true)]
    list: bool,
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, hide = true)]
    test_threads: Option<usize>,
}

/// Memory at one moment of a round, bytes.
#[derive(Default)]
struct MemorySample {
    resident: u64,
    /// The buffers of file data, which have a budget.
    data: u64,
}

/// One seed's result.
#[derive(Serialize)]
struct Round {
    seed: u64,
    seconds: f64,
    setup: String,
    episodes: usize,
    report: Report,
    /// The volume's counters, as `fanfs status --json` shows them.
    counters: serde_json::Value,
    resident: u64,
    resident_after_a_quarter: u64,
    resident_unmounted: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list
        || !arguments.filter.is_empty() && !arguments.filter.iter().any(|f| f == "nemesis")
    {
        return ExitCode::SUCCESS;
    }
    let Some(first) = arguments.seed else { return play_ci(&arguments) };
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let rounds: Vec<(u64, Duration)> =
        (first..first + arguments.seeds).map(|seed| (seed, length)).collect();
    give_back_at_once();
    if rustix::process::geteuid().is_root() {
        have_own_mounts().expect("root may have a mount namespace");
        end_on_signals();
    }
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).init();
    }
    if arguments.second {
        return conclude(rounds.len(), &second(&arguments, &rounds));
    }
    let mut violations = Vec::new();
    let mapper = needs::program("python3").then(|| Mutex::new(Mapper::start().expect("python3")));
    if !arguments.dry {
        let _limit = TimeLimit::for_round(first, Duration::ZERO);
        // State that the first mount of a process sets up for later ones is no leak.
        let setup = Setup::of(0, arguments.exports);
        let world = World::new(&setup).expect("a volume for the nemesis");
        world.end().expect("it can be unmounted");
    }
    let mut resident = Vec::new();
    for (seed, length) in &rounds {
        let setup = Setup::of(*seed, arguments.exports);
        let schedule = Schedule::of(*seed, &setup.menu(*length));
        println!("seed {seed}: {setup:?}\n{schedule}");
        if arguments.dry {
            continue;
        }
        let _limit = TimeLimit::for_round(*seed, *length);
        let round = play(*seed, *length, &setup, schedule, mapper.as_ref());
        tell(&round);
        resident.push(round.resident_unmounted);
        violations.extend(round.report.violations.clone());
        if let Some(path) = &arguments.report {
            note(path, &round);
        }
    }
    // One-time state exists after the first two.
    let warm = resident.iter().take(2).max();
    if let (Some(warm), Some(last)) = (warm, resident.last())
        && *last > warm + RESIDENT
    {
        violations.push(format!("resident memory grew from round to round: {resident:?}"));
    }
    conclude(rounds.len(), &violations)
}

/// Runs CI's seeds side by side. Each process sleeps most of the time, and allows for the delays
/// that it measures.
fn play_ci(arguments: &Arguments) -> ExitCode {
    let mut all = vec![CI_SEEDS, CI_EXPORTS];
    if second::is_possible() {
        all.insert(0, CI_SECOND);
    }
    let parent = rustix::process::getpid();
    let start = |seeds: &[&str]| {
        let mut command = Command::new("/proc/self/exe");
        command.args(seeds).args(arguments.dry.then_some("--dry")).stdout(Stdio::piped());
        if let Some(path) = &arguments.report {
            command.arg("--report").arg(path);
        }
        // SAFETY: system calls only, which may be made between fork and exec.
        unsafe { command.pre_exec(move || end_with(parent)) };
        command.spawn().expect("the nemesis runs itself")
    };
    let started: Vec<_> = all.into_iter().map(start).collect();
    let read = |child: Child| std::thread::spawn(|| child.wait_with_output());
    let reading: Vec<_> = started.into_iter().map(read).collect();
    let mut is_well = true;
    for reader in reading {
        let output = reader.join().expect("a thread that reads");
        let output = output.expect("the output of the nemesis can be read");
        print!("{}", String::from_utf8_lossy(&output.stdout));
        is_well &= output.status.success();
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lets this process get SIGTERM when its parent ends.
fn end_with(parent: rustix::process::Pid) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    match rustix::process::getppid() {
        Some(now) if now == parent => Ok(()),
        _ => Err(std::io::ErrorKind::Interrupted.into()),
    }
}

/// Appends one line of JSON.
fn note(path: &Path, round: &impl Serialize) {
    // One write(2): another process may append to it as well.
    let line = serde_json::to_string(round).expect("a report is JSON") + "\n";
    let file = std::fs::File::options().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| eprintln!("{}: {error}", path.display()));
}

fn conclude(seeds: usize, violations: &[String]) -> ExitCode {
    if violations.is_empty() {
        println!("nemesis: {seeds} seeds, no violation");
        return ExitCode::SUCCESS;
    }
    println!("nemesis: {} violations:", violations.len());
    violations.iter().for_each(|violation| println!("  {violation}"));
    ExitCode::FAILURE
}

/// Runs the nemesis of second failures and returns the violations.
fn second(arguments: &Arguments, rounds: &[(u64, Duration)]) -> Vec<String> {
    let mut violations = Vec::new();
    for (seed, length) in rounds {
        println!("seed {seed}, second failures:\n{}", second::describe(*seed, *length));
        if arguments.dry {
            continue;
        }
        let _limit = TimeLimit::for_round(*seed, *length);
        let started = Instant::now();
        let report = second::play(*seed, *length);
        tell_of(*seed, started.elapsed().as_secs_f64(), &report);
        if let Some(path) = &arguments.report {
            note(path, &serde_json::json!({ "seed": seed, "report": report }));
        }
        violations.extend(report.violations);
    }
    violations
}

/// Makes glibc return large blocks to the system when they are freed, so that resident memory shows
/// the used memory. By default glibc keeps more memory the larger the earlier requests were.
fn give_back_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting of the allocator, before there are other threads.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, 64 << 10);
    }
}

/// Later mounts disappear with this process, however it ends.
fn have_own_mounts() -> rustix::io::Result<()> {
    // SAFETY: this is the only thread; no descriptor is shared or lost by it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // The directory for aborting connections; systemd has mounted it already.
    let connections = c"/sys/fs/fuse/connections";
    match mount("fusectl", connections, "fusectl", MountFlags::empty(), None) {
        Err(rustix::io::Errno::BUSY) => Ok(()),
        mounted => mounted,
    }
}

/// A process that reads from its own mount cannot be killed meanwhile. When asked to end, it first
/// makes the kernel fail those reads. Call it before other threads start: they must not get the
/// signals.
fn end_on_signals() {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().expect("signals can be blocked");
    std::thread::spawn(move || {
        let signal = signals.wait();
        world::abort_all();
        eprintln!("nemesis: ended by {signal:?}");
        std::process::exit(1);
    });
}

/// One seed, from before its mount until after it.
fn play(
    seed: u64,
    length: Duration,
    setup: &Setup,
    schedule: Schedule,
    mapper: Option<&Mutex<Mapper>>,
) -> Round {
    let before = Census::take();
    let world = World::new(setup).expect("a volume for the nemesis");
    let mount_point = world.mount_point();
    let stamped = content::STAMPED.map(|_| Stamped::default());
    let started = Instant::now();
    let judge = Judge::new(seed, schedule, setup.bound());
    let mut random = Random::new(seed);
    let mut writer = setup.is_writable().then(|| Writer {
        judge: &judge,
        root: mount_point.clone(),
        random: random.fork(),
        seat: judge.seat(),
        files: &stamped,
        pass: 0,
    });
    if let Some(writer) = &mut writer {
        writer.begin().expect("the stamped files are made before anything breaks");
    }
    let mut warm = MemorySample::default();
    // Otherwise processes that wait for this daemon, this one included, could not end.
    let give_up = || {
        println!("{:#?}", world.status());
        world.abort();
    };
    let work = || {
        std::thread::scope(|scope| {
            let judge = &judge;
            let _over = SetOnDrop(&judge.over);
            scope.spawn(|| judge.machine.watch(|| judge.is_over()));
            let (many, first) = setup.crew;
            for manner in CREW.into_iter().cycle().skip(first).take(many) {
                let (root, random, seat) = (mount_point.clone(), random.fork(), judge.seat());
                scope.spawn(move || Reader { judge, root, random, seat, mapper }.go_on(manner));
            }
            if let Some(mut writer) = writer {
                for _ in 0..2 {
                    let (root, random, seat) = (mount_point.clone(), random.fork(), judge.seat());
                    let files = &stamped;
                    scope.spawn(move || StampReader { judge, root, random, seat, files }.go_on());
                }
                scope.spawn(move || writer.go_on());
            }
            warm = conduct(judge, &world, length);
        })
    };
    watch_calls(&judge, give_up, work);
    let resident = census::resident();
    let data = world.status().gauges.buffer_memory;
    let end = judge.now();
    if warm.resident > 0 && resident > warm.resident + data.saturating_sub(warm.data) + RESIDENT {
        let was = warm.resident;
        judge.note(format!("resident memory grew from {was} to {resident} bytes"), end);
    }
    if let Err(text) = world.quiet() {
        judge.note(text, end);
    }
    let counters = serde_json::to_value(world.status().counters).expect("counters are JSON");
    // An open file keeps the mount alive, detached; the daemon must close it.
    let held = std::fs::File::open(mount_point.join(content::Fixed::large(0).path()));
    if let Err(text) = world.end() {
        judge.note(format!("unmounting: {text}"), end);
    }
    drop(held);
    if let Err(text) = before.expect() {
        judge.note(format!("something is left over: {text}"), end);
    }
    let room = mount_point.parent().expect("it is in a directory");
    if census::has_mounts(room) {
        judge.note(format!("something is still mounted in {}", room.display()), end);
    }
    Round {
        seed,
        seconds: started.elapsed().as_secs_f64(),
        setup: format!("{setup:?}"),
        episodes: judge.schedule.episodes.len(),
        report: judge.report(),
        counters,
        resident,
        resident_after_a_quarter: warm.resident,
        resident_unmounted: census::resident(),
    }
}

/// Breaks and heals as the schedule says, checks every second, and waits until all replicas serve
/// reads again. Returns the memory after a quarter of the time.
fn conduct(judge: &Judge, world: &World, length: Duration) -> MemorySample {
    let mut events = judge.schedule.events().into_iter().peekable();
    let mut warm = MemorySample::default();
    let mut next_look = Duration::from_secs(1);
    while judge.now() < length {
        let next = events.peek().map_or(length, |event| event.at).min(next_look).min(length);
        std::thread::sleep(next.saturating_sub(judge.now()));
        let now = judge.now();
        while let Some(event) = events.next_if(|event| event.at <= now) {
            world.turn(event.replica, event.trouble);
        }
        if now >= next_look {
            next_look += Duration::from_secs(1);
            look(judge, world);
            tracing::debug!(?now, status = ?brief(world), "looked");
            if now > length / 4 && warm.resident == 0 {
                warm.data = world.status().gauges.buffer_memory;
                warm.resident = census::resident();
            }
        }
    }
    world.heal();
    let delivered = || -> Vec<u64> {
        world.status().replicas.iter().map(|replica| replica.counters.bytes).collect()
    };
    let (from, healed) = (delivered(), judge.now());
    loop {
        let now = delivered();
        if now.iter().zip(&from).all(|(now, from)| now > from) {
            return warm;
        }
        if judge.now() > healed + RECOVERY {
            let all = world.status().replicas;
            let states: Vec<_> =
                all.iter().map(|r| (&r.name, r.health, r.estimated_bandwidth_local)).collect();
            judge.note(format!("not all replicas are read from again: {states:?}"), healed);
            return warm;
        }
        std::thread::sleep(Duration::from_millis(200));
        look(judge, world);
    }
}

/// Diagnostics for a slow run.
fn brief(world: &World) -> impl std::fmt::Debug {
    let status = world.status();
    let replica = |r: &fanfs::status::ReplicaStatus| {
        (r.health, r.in_flight, r.in_flight_limit, r.active_threads, r.estimated_bandwidth_local)
    };
    (status.gauges, status.replicas.iter().map(replica).collect::<Vec<_>>())
}

/// Reads of the file that is written may exceed the budget by this much: one request for each of
/// the replica's threads, and for each that replaces a stuck one.
const BEYOND: u64 = 16 << 20;

/// The checks of every second.
fn look(judge: &Judge, world: &World) {
    let gauges = world.status().gauges;
    let used = gauges.buffer_used.max(gauges.buffer_memory);
    if used > gauges.buffer_budget + BEYOND {
        judge.note(format!("{used} bytes of a budget of {}", gauges.buffer_budget), judge.now());
    }
}

fn tell(round: &Round) {
    tell_of(round.seed, round.seconds, &round.report);
    println!("  {} episodes; {}", round.episodes, round.counters);
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "  resident: {} MiB after a quarter, {} MiB at the end, {} MiB unmounted",
        mib(round.resident_after_a_quarter),
        mib(round.resident),
        mib(round.resident_unmounted)
    );
}

fn tell_of(seed: u64, seconds: f64, report: &Report) {
    println!(
        "seed {seed}: {seconds:.1} s: {} reads ({} MiB), {} other calls; {} wrong, {} failed, \
         {} late; {} failed as documented; the machine was {} ms late at most",
        report.reads,
        report.bytes >> 20,
        report.others,
        report.wrong,
        report.failed,
        report.late,
        report.failed_as_documented,
        report.machine_late_us / 1000,
    );
    println!(
        "  {:<12} {:>8} {:>8} {:>7} {:>10} {:>10} {:>10}",
        "state", "reads", "others", "failed", "p50 ms", "p99 ms", "max ms"
    );
    for (name, state) in &report.states {
        let [p50, p99, max] = state.times_us.map(|us| us as f64 / 1e3);
        let judge::State { reads, others, failed, .. } = state;
        println!(
            "  {name:<12} {reads:>8} {others:>8} {failed:>7} {p50:>10.2} {p99:>10.2} {max:>10.2}"
        );
    }
}
