//! Exhausted resources: fanfs is degraded, but never wrong and never dead.
//!
//! Only the daemon is short of resources; this process, which observes it, is not.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::Value;

use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

fn content(i: usize) -> String {
    format!("this is file {i}\n").repeat(1 + i % 50)
}

fn fill(dir: &Path, files: usize) {
    fs::create_dir(dir).unwrap();
    (0..files).for_each(|i| fs::write(dir.join(i.to_string()), content(i)).unwrap());
}

fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = vec![0; 8192];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8(bytes[..length].to_vec()).unwrap())
}

fn status(room: &Room) -> Value {
    serde_json::from_slice(&room.expect(&["status", "mnt", "--json"]).stdout).unwrap()
}

fn daemon(room: &Room) -> Pid {
    room.first_process()
}

/// Resident memory of the daemon, KiB.
pub(crate) fn resident(room: &Room) -> u64 {
    let path = format!("/proc/{}/status", daemon(room).as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

fn descriptors(room: &Room) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon(room).as_raw_nonzero())).unwrap().count()
}

/// A volume over three directories that are the same tree.
fn three(room: &Room, more: &str) {
    room.volume("v.toml", "", &format!("{}\n{more}", third(room)));
}

fn third(room: &Room) -> String {
    let third = room.path("tree3");
    std::os::unix::fs::symlink(room.path("tree"), &third).unwrap();
    format!("[[replica]]\npath = \"{}\"\nrequire_mount = false", third.display())
}

/// Limits the daemon; returns its earlier limits.
fn limit(room: &Room, resource: Resource, most: u64) -> Rlimit {
    let own = getrlimit(resource);
    let limit = Rlimit { current: Some(most), maximum: own.maximum };
    prlimit(Some(daemon(room)), resource, limit).unwrap()
}

fn errno(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn without_descriptors_open_files_stay_readable() {
    let room = Room::new();
    fill(&room.path("tree/many"), 300);
    // The kernel asks for the file's attributes before each read.
    room.volume("v.toml", "", "[fuse]\nattribute_ttl = \"0s\"");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = descriptors(&room);
    limit(&room, Resource::Nofile, before as u64 + 40);
    let open = |i: usize| File::open(room.path("mnt/many").join(i.to_string()));
    let mut files = Vec::new();
    for i in 0..300 {
        match open(i) {
            Ok(file) => files.push((i, file)),
            // The limit of the process or of the system; no other error.
            Err(error) => assert!(
                matches!(errno(&error), Some(Errno::MFILE | Errno::NFILE)),
                "file {i}: {error}"
            ),
        }
    }
    assert!((10..100).contains(&files.len()), "{} could be opened", files.len());
    for (i, file) in &files {
        assert_eq!(read(file).unwrap(), content(*i));
        assert_eq!(file.metadata().unwrap().len(), content(*i).len() as u64);
    }
    // Another client has changed one since: nothing that is shown is out of date.
    let (i, file) = &files[0];
    fs::write(room.path("tree/many").join(i.to_string()), content(*i)).unwrap();
    assert_eq!(file.metadata().err().as_ref().and_then(errno), Some(Errno::MFILE));
    // Each request is answered, again and again.
    for _ in 0..5 {
        assert_eq!(status(&room)["volume"], "v");
    }
    assert!(fs::metadata(room.path("mnt")).unwrap().is_dir());
    drop(files);
    room.eventually("there are descriptors again", || open(299).is_ok());
    for i in 0..300 {
        let mut text = String::new();
        // The daemon closes a file some time after close(2).
        room.eventually("the files before are closed", || descriptors(&room) < before + 20);
        // Calls in the background take descriptors too, so an open may still be refused for a
        // moment, and for no other reason.
        let mut file = None;
        room.eventually("there is a descriptor", || match open(i) {
            Ok(opened) => file.replace(opened).is_none(),
            Err(error) => {
                let is_short = matches!(errno(&error), Some(Errno::MFILE | Errno::NFILE));
                assert!(is_short, "file {i}: {error}");
                false
            }
        });
        file.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, content(i));
    }
    room.eventually("all is well", || {
        let replicas = &status(&room)["replicas"];
        replicas.as_array().unwrap().iter().all(|replica| replica["health"] == "healthy")
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// Number of files open at once; the daemon has at least one descriptor for each.
const OPEN_AT_ONCE: usize = 10_000;

#[test]
fn ten_thousand_files_can_be_open() {
    let mut own = getrlimit(Resource::Nofile);
    own.current = own.maximum;
    setrlimit(Resource::Nofile, own).unwrap();
    let may = own.maximum.is_none_or(|most| most >= OPEN_AT_ONCE as u64 + 200);
    if !needs::machine(may, "the right to have 10,000 files open") {
        return;
    }
    let room = Room::new();
    fill(&room.path("tree/many"), OPEN_AT_ONCE);
    three(&room, "");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = (resident(&room), descriptors(&room));
    let started = Instant::now();
    let open = |i: usize| File::open(room.path("mnt/many").join(i.to_string())).unwrap();
    let files: Vec<File> = (0..OPEN_AT_ONCE).map(open).collect();
    for (i, file) in files.iter().enumerate() {
        assert_eq!(read(file).unwrap(), content(i));
    }
    let took = started.elapsed();
    let held = (resident(&room), descriptors(&room));
    let per_file = (held.0.saturating_sub(before.0)) * 1024 / OPEN_AT_ONCE as u64;
    println!("{took:?}, {} descriptors, {per_file} bytes of memory for each file", held.1);
    assert_eq!(status(&room)["gauges"]["handles"], OPEN_AT_ONCE);
    assert!(per_file < 16 << 10, "{per_file} bytes for each open file");
    drop(files);
    room.eventually("all is closed", || {
        status(&room)["gauges"]["handles"] == 0 && descriptors(&room) < before.1 + 100
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_small_budget_is_shared_by_many_readers() {
    let room = Room::new();
    let size = 6 << 20;
    for i in 0..24 {
        fs::write(room.path("tree").join(format!("f{i}")), bytes(i, size)).unwrap();
    }
    three(&room, "[memory]\nbudget = \"8MiB\"\n[read]\nsegment_size = \"64KiB\"\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    std::thread::scope(|scope| {
        for i in 0..24 {
            let path = room.path("mnt").join(format!("f{i}"));
            scope.spawn(move || assert!(fs::read(path).unwrap() == bytes(i, size), "file {i}"));
        }
        for _ in 0..20 {
            let gauges = &status(&room)["gauges"];
            let of = |name: &str| gauges[name].as_u64().unwrap();
            assert!(of("buffer_memory") <= of("buffer_budget"), "{gauges}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut content);
    content
}

/// Pages of address space that the daemon has when all its threads have begun.
fn settled_pages(pid: Pid) -> u64 {
    let pages = || -> u64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).unwrap();
        statm.split(' ').next().unwrap().parse().unwrap()
    };
    let (mut last, mut same) = (pages(), 0);
    while same < 10 {
        std::thread::sleep(Duration::from_millis(30));
        let now = pages();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

#[test]
fn low_memory_never_causes_wrong_data_or_a_crash() {
    let room = Room::new();
    let size = 4 << 20;
    for i in 0..16 {
        fs::write(room.path("tree").join(format!("f{i}")), bytes(i, size)).unwrap();
    }
    // Copied bytes need buffers; pages would not.
    three(&room, "[fuse]\nsplice = false\n");
    // Room for small allocations: from less than one buffer or thread to less than all of them
    // need.
    for room_for in [16 << 20, 17 << 20, 18 << 20, 20 << 20, 24 << 20] {
        room.expect(&["mount", "v.toml", "mnt"]);
        let pid = daemon(&room);
        let before = limit(&room, Resource::As, settled_pages(pid) * 4096 + room_for);
        let read = |i: usize| {
            let (path, room) = (room.path("mnt").join(format!("f{i}")), &room);
            move || match fs::read(path) {
                Ok(content) => {
                    assert!(content == bytes(i, size), "file {i} is wrong");
                    true
                }
                Err(error) => {
                    let known = [Errno::NOMEM, Errno::IO, Errno::TIMEDOUT];
                    assert!(
                        errno(&error).is_some_and(|e| known.contains(&e)),
                        "{error}, with room for {room_for}; the log: {}",
                        room.log()
                    );
                    false
                }
            }
        };
        let right = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..16).map(|i| scope.spawn(read(i))).collect();
            readers.into_iter().map(|r| r.join().unwrap()).filter(|right| *right).count()
        });
        println!("{right} of 16 files were read with room for {room_for} bytes");
        assert_eq!(room.daemons(), [pid.as_raw_nonzero().get()], "the daemon has died");
        prlimit(Some(pid), Resource::As, before).unwrap();
        room.eventually("all are read", || (0..16).all(|i| read(i)()));
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
    }
}

/// Entries of the large directory; `FANFS_ENTRIES=1000000` for the full size.
const ENTRIES: usize = 100_000;

#[test]
fn a_large_directory_is_listed_completely_and_forgotten() {
    let entries = std::env::var("FANFS_ENTRIES").map_or(ENTRIES, |n| n.parse().unwrap());
    let room = Room::new();
    let large = room.path("tree/large");
    fs::create_dir(&large).unwrap();
    for i in 0..entries {
        // Names of a usual length, and links: an inode each would take the disk's.
        let (name, of) = (large.join(format!("entry-{i:020}")), i - i % 1000);
        match i == of {
            true => fs::write(name, "").unwrap(),
            false => fs::hard_link(large.join(format!("entry-{of:020}")), name).unwrap(),
        }
    }
    three(&room, "");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = resident(&room);
    let list = |with: &[&str]| {
        let started = Instant::now();
        let listed = Command::new("ls").args(with).arg(room.path("mnt/large")).output().unwrap();
        assert!(listed.status.success());
        let lines = listed.stdout.split(|byte| *byte == b'\n');
        let names = lines.filter(|line| line.windows(6).any(|part| part == b"entry-"));
        assert_eq!(names.count(), entries);
        started.elapsed()
    };
    let (names, long) = (list(&["-1U"]), list(&["-1Us"]));
    let held = resident(&room);
    println!("{entries} entries: {names:?}, with sizes {long:?}; {before} KiB, then {held} KiB");
    let most = 1024 * entries as u64 / 1024;
    assert!(held < before + most + (64 << 10), "{before} KiB, then {held} KiB");
    room.eventually("the listing is given up", || status(&room)["gauges"]["handles"] == 0);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// Entries of a directory that many handles list at once, and the number of these handles.
const LOOKED_INTO: (usize, usize) = (20_000, 150);

/// The rest of an open directory: each name with its next offset.
fn rest(dir: &File) -> Vec<(Vec<u8>, u64)> {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    let mut all = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        all.push((entry.file_name().to_bytes().to_vec(), entry.next_entry_cookie()));
    }
    all
}

#[test]
fn many_handles_on_a_large_directory_stay_within_the_budget() {
    let (entries, handles) = LOOKED_INTO;
    let room = Room::new();
    let large = room.path("tree/large");
    fs::create_dir(&large).unwrap();
    fs::write(large.join("entry-0"), "").unwrap();
    for i in 1..entries {
        fs::hard_link(large.join("entry-0"), large.join(format!("entry-{i}"))).unwrap();
    }
    three(&room, "[memory]\nbudget = \"16MiB\"\n[read]\nsegment_size = \"64KiB\"\n");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = resident(&room);
    // Each handle reads a part, and then waits.
    let open: Vec<File> = (0..handles)
        .map(|_| {
            let dir = File::open(room.path("mnt/large")).unwrap();
            let mut buffer = Vec::with_capacity(1 << 10);
            let mut some = rustix::fs::RawDir::new(&dir, buffer.spare_capacity_mut());
            assert!(some.next().unwrap().is_ok());
            dir
        })
        .collect();
    let gauges = status(&room)["gauges"].clone();
    let of = |name: &str| gauges[name].as_u64().unwrap();
    assert_eq!(gauges["handles"], handles);
    assert!(of("buffer_used") > 0 && of("buffer_memory") <= of("buffer_budget"), "{gauges}");
    // The budget, and half of it for all else. Unbounded listings took 450 MiB for 30,000.
    let held = resident(&room);
    println!("{before} KiB, then {held} KiB");
    assert!(held < before + (24 << 10), "{before} KiB, then {held} KiB");
    // Listings that were evicted for others continue nevertheless.
    for dir in [&open[0], &open[handles / 2], &open[handles - 1]] {
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0)).unwrap();
        let all = rest(dir);
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!((all.len(), names.len()), (entries + 2, entries + 2));
        // Offsets stay good for the handle.
        let (from, at) = (entries / 4, all[entries / 4].1);
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(at)).unwrap();
        assert!(rest(dir) == all[from + 1..], "the rest is another one");
    }
    assert!(resident(&room) < before + (24 << 10), "{before} KiB, then {} KiB", resident(&room));
    drop(open);
    room.eventually("all is given back", || {
        let gauges = status(&room)["gauges"].clone();
        gauges["handles"] == 0 && gauges["buffer_used"] == 0
    });
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// A small file system that is removed with the test.
pub(crate) struct Small {
    pub(crate) at: std::path::PathBuf,
}

impl Small {
    pub(crate) fn new(room: &Room, name: &str) -> Option<Self> {
        let at = room.path(name);
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m,mode=0777", "small"]).arg(&at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        needs::machine(mounted, "the right to mount a tmpfs").then_some(Self { at })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn a_full_write_replica_refuses_writes_but_serves_reads() {
    attempts(fill_the_write_replica);
}

fn fill_the_write_replica() {
    let room = Room::new();
    let Some(small) = Small::new(&room, "small") else { return };
    fs::write(small.at.join("old"), bytes(1, 300_000)).unwrap();
    let again = room.path("again");
    std::os::unix::fs::symlink(&small.at, &again).unwrap();
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"shared\"\naccess = \"rw\"\n\
         [[replica]]\npath = \"{}\"\n[[replica]]\npath = \"{}\"\nrequire_mount = false\n",
        small.at.display(),
        again.display()
    );
    fs::write(room.path("v.toml"), text).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let full = fs::write(room.path("mnt/new"), vec![7; 8 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    assert!(fs::read(room.path("mnt/old")).unwrap() == bytes(1, 300_000));
    // The written part is readable.
    let part = fs::read(room.path("mnt/new")).unwrap();
    assert!(part.len() < 2 << 20 && part.iter().all(|byte| *byte == 7));
    assert_eq!(fs::metadata(small.at.join("new")).unwrap().len(), part.len() as u64);
    // A full disk is not the replica's fault, and writes continue once there is room.
    let replicas = status(&room)["replicas"].clone();
    assert!(replicas.as_array().unwrap().iter().all(|r| r["health"] == "healthy"), "{replicas}");
    fs::remove_file(room.path("mnt/new")).unwrap();
    fs::write(room.path("mnt/new"), "fits").unwrap();
    assert_eq!(fs::read_to_string(small.at.join("new")).unwrap(), "fits");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_full_copy_is_read_like_any_other() {
    attempts(read_a_full_copy);
}

fn read_a_full_copy() {
    let room = Room::new();
    let Some(small) = Small::new(&room, "small") else { return };
    let file = small.at.join("f");
    fs::write(&file, bytes(1, 1 << 20)).unwrap();
    let copied = Command::new("cp").arg("-a").arg(&file).arg(room.path("tree/f")).status();
    assert!(copied.unwrap().success());
    let _ = fs::write(small.at.join("filler"), vec![0; 4 << 20]);
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"copies\"\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n[[replica]]\npath = \"{}\"\n\
         [read]\nsegment_size = \"64KiB\"\n",
        room.path("tree").display(),
        small.at.display()
    );
    fs::write(room.path("v.toml"), text).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    assert!(fs::read(room.path("mnt/f")).unwrap() == bytes(1, 1 << 20));
    let replicas = status(&room)["replicas"].clone();
    for replica in replicas.as_array().unwrap() {
        assert_eq!((&replica["health"], &replica["errors"]), (&"healthy".into(), &0.into()));
        assert!(replica["bytes"].as_u64().unwrap() > 0, "{replicas}");
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// The path of Debian's package faketime.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

#[test]
fn a_clock_jump_has_no_effect() {
    attempts(|| {
        if !needs::program("faketime") {
            return;
        }
        let library = FAKETIME.into_iter().find(|path| Path::new(path).exists()).unwrap();
        let room = Room::new();
        let size = 16 << 20;
        fs::write(room.path("tree/large"), bytes(3, size)).unwrap();
        room.volume(
            "v.toml",
            "max_rate = \"8MiB/s\"",
            "[read]\ndeadline = \"3s\"\nattempt_deadline = \"2s\"\n",
        );
        let clock = room.path("clock");
        let set = |offset: &str| {
            fs::write(room.path("clock.new"), offset).unwrap();
            fs::rename(room.path("clock.new"), &clock).unwrap();
        };
        set("+0");
        let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
        mount.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock);
        // Only the wall clock jumps, as no administrator can change the other clocks.
        mount.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
        assert!(mount.status().unwrap().success());
        let file = room.path("mnt/large");
        let reader = std::thread::spawn(move || fs::read(file).unwrap() == bytes(3, size));
        for offset in ["+1d", "-3y", "+9y", "+0"] {
            set(offset);
            std::thread::sleep(Duration::from_millis(150));
            assert_eq!(status(&room)["volume"], "v");
            assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
        }
        assert!(reader.join().unwrap(), "the bytes are wrong");
        let now = status(&room);
        assert_eq!(now["counters"]["read_errors"], 0, "{now}");
        // Its log shows that it saw the clock jump.
        set("+9y");
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
        let log = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
        let log = fs::read_to_string(log.into_iter().next().unwrap()).unwrap();
        let years: std::collections::BTreeSet<_> = log.lines().map(|line| &line[..4]).collect();
        assert!(years.len() > 1 && !log.contains("health changed"), "{log}");
    });
}

#[test]
fn the_soft_descriptor_limit_is_raised() {
    let room = Room::new();
    let mut command = room.fanfs(&["mount", "v.toml", "mnt"]);
    let lower = || {
        let limit = Rlimit { current: Some(100), maximum: Some(1000) };
        setrlimit(Resource::Nofile, limit).map_err(Into::into)
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(lower) };
    assert!(command.status().unwrap().success());
    let limits = format!("/proc/{}/limits", daemon(&room).as_raw_nonzero());
    let limits = fs::read_to_string(limits).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = line.split_whitespace().filter_map(|w| w.parse::<u64>().ok()).collect();
    assert_eq!(numbers, [1000, 1000]);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
