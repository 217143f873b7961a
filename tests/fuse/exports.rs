//! Volumes of exports: NFS servers that fanfs reads without a mount.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::replicas::health::HealthState;
use fanfs::volume::ReplicaSet;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::needs;
use crate::nfs_server::{BadReads, NfsServer};
use crate::processes;
use crate::rig::{PATIENCE, root, tree};

const LEN: usize = 9_000_001;
const MIB: usize = 1 << 20;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The largest pipe of an ordinary user.
const PIPE_MAX_SIZE: &str = "/proc/sys/fs/pipe-max-size";

/// Servers of one tree, and a volume of them.
struct Rig {
    mount: Option<Mount>,
    servers: Vec<NfsServer>,
    room: TempDir,
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + i / 4099) as u8).collect()
}

impl Rig {
    /// `read` has more keys of `[read]`, and further tables.
    fn new(servers: usize, read: &str) -> Self {
        let room = tree();
        let at = root(&room);
        fs::write(at.join("large"), pattern()).unwrap();
        fs::create_dir_all(at.join("a/b")).unwrap();
        fs::write(at.join("a/b/small"), "small file").unwrap();
        symlink("b/small", at.join("a/link")).unwrap();
        let servers: Vec<_> = (0..servers).map(|_| NfsServer::new(&at, None)).collect();
        let mut text = "[volume]\nname = 'test'\nmode = 'shared'\n".to_owned();
        for server in &servers {
            text += &format!("[[replica]]\n{}", server.replica_keys());
        }
        text += &format!("[read]\n{read}\n");
        let config = config::parse(&text, Path::new("test")).unwrap();
        let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
        let mount_point = room.path().join("mnt");
        let mount =
            Mount::start_from_config(config, ReplicaSet::EMPTY, &mount_point, &extra).unwrap();
        Self { mount: Some(mount), servers, room }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.room.path().join("mnt").join(path)
    }

    fn healths(&self) -> Vec<HealthState> {
        let status = self.mount.as_ref().unwrap().status();
        status.replicas.iter().map(|replica| replica.health).collect()
    }

    /// Waits until no read is in flight, and no buffer in use.
    fn expect_memory_back(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let gauges = self.mount.as_ref().unwrap().status().gauges;
            if (gauges.segments_in_flight, gauges.buffer_used) == (0, 0) {
                return;
            }
            assert!(Instant::now() < until, "{gauges:?}");
            std::thread::sleep(PAUSE);
        }
    }

    fn unmount(&mut self) {
        if let Some(mount) = self.mount.take() {
            processes::stop(mount).unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.servers.iter().for_each(|server| server.hang(false));
        self.unmount();
    }
}

/// In pipes, where no memory of the daemon holds it.
#[test]
fn data_of_exports_waits_in_packets() {
    // A daemon of root raises it.
    let memory_ahead = |read: &str| {
        let rig = Rig::new(1, read);
        let file = fs::File::open(rig.at("large")).unwrap();
        let mut got = vec![0; LEN];
        file.read_exact_at(&mut got[..MIB], 0).unwrap();
        let until = Instant::now() + PATIENCE;
        let memory = loop {
            let gauges = rig.mount.as_ref().unwrap().status().gauges;
            if gauges.buffer_used >= 2 * MIB as u64 && gauges.segments_in_flight == 0 {
                break gauges.buffer_memory;
            }
            assert!(Instant::now() < until, "{gauges:?}");
            std::thread::sleep(PAUSE);
        };
        // In parts that begin in one segment and end in another, and twice.
        for (index, part) in got.chunks_mut(700_001).enumerate().skip(1) {
            file.read_exact_at(part, index as u64 * 700_001).unwrap();
        }
        file.read_exact_at(&mut got[..700_001], 0).unwrap();
        assert!(got == pattern());
        memory
    };
    assert!(memory_ahead("cache = 'direct'\n[fuse]\nsplice = false") >= 2 * MIB as u64);
    let in_pipes = memory_ahead("cache = 'direct'");
    let limit = fs::read_to_string(PIPE_MAX_SIZE).unwrap().trim().parse::<usize>().unwrap();
    if needs::machine(limit >= 4 * MIB, "pipes of 4 MiB (fs.pipe-max-size)") {
        assert!(in_pipes < MIB as u64, "{in_pipes}");
    }
}

#[test]
fn exports_are_read_as_one_volume() {
    let rig = Rig::new(3, "");
    assert!(fs::read(rig.at("large")).unwrap() == pattern());
    assert_eq!(fs::read_to_string(rig.at("a/link")).unwrap(), "small file");
    assert_eq!(fs::read_link(rig.at("a/link")).unwrap(), Path::new("b/small"));
    let mut names: Vec<_> =
        fs::read_dir(rig.at("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["b", "link"]);
    assert_eq!(fs::metadata(rig.at("none")).unwrap_err().kind(), ErrorKind::NotFound);
    let refused = fs::write(rig.at("a/new"), "").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let value = rustix::fs::lgetxattr(rig.at("large"), c"user.x", &mut [0u8; 8]);
    assert_eq!(value, Err(Errno::OPNOTSUPP));
    let space = rustix::fs::statvfs(rig.at("")).unwrap();
    assert!(space.f_bsize > 0 && space.f_namemax > 0);
    let status = rig.mount.as_ref().unwrap().status();
    for replica in &status.replicas {
        assert!(replica.counters.bytes > 0, "a server was not read: {replica:?}");
        assert!(replica.path.to_str().unwrap().starts_with("nfs://127."), "{replica:?}");
    }
}

#[test]
fn a_server_that_hangs_delays_no_reader_for_long() {
    let rig = Rig::new(3, "attempt_deadline = '1s'\ncache = 'direct'");
    let file = fs::File::open(rig.at("large")).unwrap();
    let whole = pattern();
    let mut buffer = vec![0; 1 << 20];
    let mut read_all = || {
        let mut at = 0;
        while at < LEN {
            let n = file.read_at(&mut buffer, at as u64).unwrap();
            assert!(n > 0 && buffer[..n] == whole[at..at + n], "at {at}");
            at += n;
        }
    };
    read_all();
    rig.servers[1].hang(true);
    let until = Instant::now() + PATIENCE;
    while rig.healths()[1] == HealthState::Healthy {
        read_all();
        assert!(Instant::now() < until, "the server is not ejected");
    }
    read_all();
    rig.servers[1].hang(false);
    while rig.healths()[1] != HealthState::Healthy {
        read_all();
        assert!(Instant::now() < until + PATIENCE, "the server does not come back");
    }
}

#[test]
fn reads_fail_in_time_while_all_servers_hang_and_work_again_afterwards() {
    let times = "deadline = '2s'\ndeadline_all = '2s'\nattempt_deadline = '500ms'";
    let mut rig = Rig::new(2, &format!("{times}\ncache = 'direct'"));
    let file = fs::File::open(rig.at("large")).unwrap();
    rig.servers.iter().for_each(|server| server.hang(true));
    let mut buffer = vec![0; 4096];
    let error = file.read_at(&mut buffer, 5 << 20).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()), "{error}");
    rig.servers.iter().for_each(|server| server.hang(false));
    let until = Instant::now() + PATIENCE;
    let bytes = loop {
        match file.read_at(&mut buffer, 5 << 20) {
            Ok(bytes) => break bytes,
            Err(error) => assert!(Instant::now() < until, "no read works again: {error}"),
        }
        std::thread::sleep(PAUSE);
    };
    assert!(bytes > 0 && buffer[..bytes] == pattern()[5 << 20..][..bytes]);
    // An unmount waits for no server.
    rig.servers.iter().for_each(|server| server.hang(true));
    rig.unmount();
}

/// Many more reads than the pool has threads.
#[test]
fn reads_in_flight_hold_no_threads() {
    const READS: usize = 32;
    let rig = Rig::new(1, "cache = 'direct'");
    let file = fs::File::open(rig.at("large")).unwrap();
    let whole = pattern();
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    rig.servers[0].hang(true);
    let read = |offset: usize| {
        let mut buffer = vec![0; 4096];
        file.read_exact_at(&mut buffer, offset as u64).unwrap();
        assert!(buffer == whole[offset..offset + 4096], "at {offset}");
    };
    std::thread::scope(|scope| {
        // Far apart, and backwards: nothing is read ahead.
        let offsets = (1..=READS).rev().map(|number| number * 256 * 1024);
        let readers: Vec<_> = offsets.map(|offset| scope.spawn(move || read(offset))).collect();
        let until = Instant::now() + PATIENCE;
        loop {
            let status = rig.mount.as_ref().unwrap().status();
            // The replica's root is asked whether it answers.
            if status.gauges.segments_in_flight >= READS && status.replicas[0].active_threads <= 2 {
                break;
            }
            assert!(Instant::now() < until, "{status:?}");
            std::thread::sleep(PAUSE);
        }
        rig.servers[0].hang(false);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Long before the reads' own deadline.
#[test]
fn reads_that_nothing_waits_for_give_their_memory_back() {
    let times = "deadline = '1s'
deadline_all = '1h'
attempt_deadline = '500ms'";
    let rig = Rig::new(
        2,
        &format!(
            "{times}
cache = 'direct'"
        ),
    );
    let file = fs::File::open(rig.at("large")).unwrap();
    let whole = pattern();
    let mut buffer = vec![0; LEN];
    file.read_exact_at(&mut buffer, 0).unwrap();
    rig.servers[1].hang(true);
    let until = Instant::now() + PATIENCE;
    while rig.healths()[1] == HealthState::Healthy {
        buffer.fill(0);
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer == whole);
        assert!(Instant::now() < until, "the server is not ejected");
    }
    drop(file);
    rig.expect_memory_back();
}

/// The thread that receives the end of a read receives the answer to the open, too.
#[test]
fn a_read_that_ends_early_does_not_wait_for_an_open() {
    const MIB: u64 = 1 << 20;
    let times = "deadline = '2s'\ndeadline_all = '1h'\nattempt_deadline = '1s'";
    let rig = Rig::new(1, &format!("{times}\ncache = 'direct'"));
    let file = fs::File::open(rig.at("large")).unwrap();
    let read = |offset: u64| file.read_exact_at(&mut [0; 4096], offset);
    read(0).unwrap();
    let server = &rig.servers[0];
    server.set_bad_reads(BadReads { hung_from: 1, ..BadReads::NONE });
    std::thread::scope(|scope| {
        let in_flight = |count: usize| {
            let until = Instant::now() + PATIENCE;
            while rig.mount.as_ref().unwrap().status().gauges.segments_in_flight != count {
                assert!(Instant::now() < until, "not {count} in flight");
                std::thread::sleep(PAUSE);
            }
        };
        let failing = scope.spawn(|| read(3 * MIB));
        let ending = scope.spawn(|| read(6 * MIB));
        in_flight(2);
        // Other calls hang from now on. A failed read makes the next one open the file again.
        server.hang(true);
        let bad = BadReads { failing_before: 5 * MIB, ending_from: 5 * MIB, hung_from: 5 * MIB };
        server.set_bad_reads(bad);
        assert!(failing.join().unwrap().is_err());
        let opening = scope.spawn(|| read(MIB));
        in_flight(2);
        std::thread::sleep(5 * PAUSE);
        server.set_bad_reads(BadReads { hung_from: 1 << 40, ..bad });
        in_flight(1);
        server.hang(false);
        server.set_bad_reads(BadReads::NONE);
        // What the file is by now may have to be found out first.
        for reader in [ending, opening] {
            let _ = reader.join().unwrap();
        }
    });
    let until = Instant::now() + PATIENCE;
    while let Err(error) = read(MIB) {
        assert!(Instant::now() < until, "no read works again: {error}");
        std::thread::sleep(PAUSE);
    }
}

/// Also one that no request has asked for.
#[test]
fn readahead_of_a_silent_server_gives_its_memory_back() {
    let times = "deadline = '1s'\ndeadline_all = '1h'\nattempt_deadline = '500ms'";
    let rig = Rig::new(1, &format!("{times}\ncache = 'direct'"));
    let file = fs::File::open(rig.at("large")).unwrap();
    rig.servers[0].set_bad_reads(BadReads { hung_from: 3 << 20, ..BadReads::NONE });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = vec![0; 256 << 10];
            (0..16u64).any(|part| file.read_exact_at(&mut buffer, part * (256 << 10)).is_err())
        });
        let until = Instant::now() + PATIENCE;
        while rig.mount.as_ref().unwrap().status().gauges.segments_in_flight < 2 {
            assert!(Instant::now() < until, "nothing is read ahead");
            std::thread::sleep(PAUSE);
        }
        assert!(reader.join().unwrap(), "the reads behind 3 MiB do not hang");
    });
    drop(file);
    rig.expect_memory_back();
}

#[test]
fn short_reads_and_a_busy_server_only_take_longer() {
    let rig = Rig::new(1, "cache = 'direct'");
    let file = fs::File::open(rig.at("large")).unwrap();
    let whole = pattern();
    let mut buffer = vec![0; LEN];
    rig.servers[0].limit_reads(99_999);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == whole);
    buffer.fill(0);
    rig.servers[0].set_busy(true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| file.read_exact_at(&mut buffer, 0));
        std::thread::sleep(5 * PAUSE);
        assert!(!reader.is_finished(), "a busy server cannot read yet");
        rig.servers[0].set_busy(false);
        reader.join().unwrap().unwrap();
    });
    assert!(buffer == whole);
    assert_eq!(rig.healths(), [HealthState::Healthy]);
}

/// The new server does not know the handles of the old one.
#[test]
fn open_files_outlive_the_restart_of_their_server() {
    let mut rig = Rig::new(1, "cache = 'direct'");
    let file = fs::File::open(rig.at("large")).unwrap();
    let dir = fs::File::open(rig.at("a")).unwrap();
    let whole = pattern();
    let mut buffer = vec![0; 1 << 20];
    file.read_exact_at(&mut buffer, 0).unwrap();
    rig.servers[0].restart();
    let until = Instant::now() + PATIENCE;
    while let Err(error) = file.read_exact_at(&mut buffer, 3 << 20) {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(PAUSE);
    }
    assert!(buffer == whole[3 << 20..4 << 20]);
    let inside = loop {
        match rustix::fs::openat(&dir, "b/small", OFlags::RDONLY, Mode::empty()) {
            Ok(found) => break fs::File::from(found),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(PAUSE);
    };
    assert_eq!(std::io::read_to_string(inside).unwrap(), "small file");
    assert_eq!(rig.healths(), [HealthState::Healthy]);
}

#[test]
fn a_volume_whose_server_is_down_names_the_server() {
    let room = tree();
    let text = "[volume]\nname = 'test'\nmode = 'shared'\n[[replica]]\nname = 'gw'\n\
                address = 'nfs://127.0.0.1:1/data'\nmount_port = 1\n";
    let config = config::parse(text, Path::new("test")).unwrap();
    let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
    let mount_point = room.path().join("mnt");
    let started = Mount::start_from_config(config, ReplicaSet::EMPTY, &mount_point, &extra);
    let error = started.err().expect("there is no server").to_string();
    assert!(
        error.contains("replica gw (nfs://127.0.0.1:1/data) cannot be opened: the MOUNT service at 127.0.0.1:1: "),
        "{error}"
    );
}
