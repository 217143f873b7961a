//! Mounting in the background: the daemon, its end, its status, mount(8).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::machine::{attempts, timed};
use crate::needs;
use crate::room::Room;

fn pid(room: &Room) -> Pid {
    let daemons = room.daemons();
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    Pid::from_raw(daemons[0]).unwrap()
}

#[test]
fn mount_and_umount_wait_for_the_daemon() {
    let room = Room::new();
    // Reading all its output, as `$(fanfs mount ...)` does, waits for every process that has it
    // open. The daemon must not keep it open.
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    let line = room.mounted().unwrap();
    assert!(line.contains(" fuse.fanfs fanfs:v ro,"), "{line}");
    assert!(line.contains("ro,nosuid,nodev"), "{line}");
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid(&room).as_raw_nonzero())).unwrap();
    let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
    assert_eq!(session, pid(&room).as_raw_nonzero().to_string(), "not in a session of its own");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert!(
        fs::read_dir(room.path("run"))
            .unwrap()
            .all(|e| { e.unwrap().path().extension().is_some_and(|extension| extension == "log") })
    );
}

/// The daemon has mounted, and waits to log that: its standard error is a pipe that is full.
#[test]
fn a_signal_right_after_the_mount_unmounts_it() {
    let room = Room::new();
    let (mut log, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b' '; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut daemon = {
        let mut daemon = room.fanfs(&["mount", "v.toml", "mnt", "--foreground"]);
        // It logs nothing before that.
        daemon.env("FANFS_LOG", "off,fanfs::daemon::process=info").stderr(full).spawn().unwrap()
    };
    room.eventually("it mounts", || room.mounted().is_some());
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    let status = daemon.wait().unwrap();
    assert!(status.success() && said.contains("INFO mounted"), "{status}: {}", said.trim());
    room.expect_gone();
}

#[test]
fn a_second_mount_and_a_dead_one_are_distinguished() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let again = room.fanfs(&["mount", "v.toml", "mnt"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("already a mount point"));
    kill_process(pid(&room), Signal::KILL).unwrap();
    room.eventually("the daemon is dead", || fs::metadata(room.path("mnt")).is_err());
    // That mount has no daemon any more: it is cleaned up.
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    let log = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.extension().is_some_and(|e| e == "log")).unwrap();
    assert!(fs::read_to_string(log).unwrap().contains("replaced a dead mount"));
    kill_process(pid(&room), Signal::KILL).unwrap();
    room.eventually("the daemon is dead", || fs::metadata(room.path("mnt")).is_err());
    room.expect(&["umount", "mnt"]);
    room.expect(&["mount", "v.toml", "mnt"]);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_dead_mount_is_cleaned_up_at_once() {
    let room = Room::new();
    // While the kernel trusts its cached attributes of the root.
    room.volume("v.toml", "", "[fuse]\nattribute_ttl = \"1h\"");
    for _ in 0..3 {
        room.expect(&["mount", "v.toml", "mnt"]);
        assert!(fs::metadata(room.path("mnt")).unwrap().is_dir());
        kill_process(pid(&room), Signal::KILL).unwrap();
        room.eventually("the daemon is dead", || room.daemons().is_empty());
        assert!(fs::metadata(room.path("mnt")).unwrap().is_dir(), "it is not seen to be dead");
    }
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn status_shows_completed_reads() {
    attempts(show_completed_reads);
}

fn show_completed_reads() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/hello")).unwrap();
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let schema = serde_json::from_str(include_str!("../../docs/status.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = schema.iter_errors(&status).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!((&status["format"], &status["volume"]), (&1.into(), &"v".into()));
    assert_eq!(status["mode"], "shared");
    let [start, now] = ["start_time_s", "time_s"].map(|key| status[key].as_f64().unwrap());
    assert!(start <= now && now - start < 3600.0, "{status}");
    assert_eq!(status["counters"]["bytes_delivered"], 6);
    let replicas = status["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 2);
    assert_eq!(replicas.iter().map(|r| r["bytes"].as_u64().unwrap()).sum::<u64>(), 6);
    assert!(replicas.iter().all(|r| r["health"] == "healthy"));
    assert_eq!(status["gauges"]["buffer_budget"], 256 << 20);
    let all: serde_json::Value =
        serde_json::from_slice(&room.expect(&["status", "--json"]).stdout).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 1);
    let text = String::from_utf8(room.expect(&["status"]).stdout).unwrap();
    assert!(text.contains("r1 ") && text.contains("healthy"), "{text}");
    // A reader that exits early must not cause a panic.
    let mut child =
        room.fanfs(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said, "");
    room.expect(&["umount", "mnt"]);
}

#[test]
fn only_the_owner_may_query_the_daemon() {
    use std::os::unix::fs::PermissionsExt;
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&room.path("run")), 0o700);
    let socket = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let socket =
        socket.into_iter().find(|path| path.extension().is_some_and(|e| e == "sock")).unwrap();
    assert_eq!(mode(&socket), 0o600);
    // The daemon survives any input there.
    for nonsense in [&b"\n"[..], b"{\"ask\":\"reboot\"}\n", b"\xff\xff\xff\n", &[b'x'; 100_000]] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.contains("error"), "{answer}");
    }
    room.expect(&["status", "mnt"]);
    room.expect(&["umount", "mnt"]);
}

#[test]
fn signals_unmount_while_files_are_open_and_read() {
    for signal in [Signal::TERM, Signal::INT] {
        let room = Room::new();
        fs::write(room.path("tree/slow"), vec![7; 8 << 20]).unwrap();
        room.volume("slow.toml", "max_rate = \"64KiB/s\"", "");
        room.expect(&["mount", "slow.toml", "mnt"]);
        let mut file = File::open(room.path("mnt/slow")).unwrap();
        let reader = std::thread::spawn(move || file.read_to_end(&mut Vec::new()).is_err());
        std::thread::sleep(Duration::from_millis(300));
        let ((), took) = timed(|| {
            kill_process(pid(&room), signal).unwrap();
            room.expect_gone();
        });
        assert!(took < Duration::from_secs(25), "{took:?}");
        assert!(reader.join().unwrap(), "the read should have failed");
    }
}

#[test]
fn a_mount_in_use_is_unmounted_only_lazily() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let mut file = File::open(room.path("mnt/hello")).unwrap();
    let busy = room.fanfs(&["umount", "mnt"]).output().unwrap();
    assert_eq!(busy.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&busy.stderr).contains("is in use"));
    room.expect(&["umount", "--lazy", "mnt"]);
    assert!(room.mounted().is_none());
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\n");
    drop(file);
    room.expect_gone();
}

/// The daemon of the detached mount ends last, and leaves the next one its socket and journal.
#[test]
fn a_detached_mount_takes_nothing_from_the_next_one() {
    let room = Room::new();
    for options in [&[][..], &["-o", "keeper"]] {
        let mount = [&["mount", "v.toml", "mnt"], options].concat();
        room.expect(&mount);
        let file = File::open(room.path("mnt/hello")).unwrap();
        let earlier = room.daemons();
        room.expect(&["umount", "--lazy", "mnt"]);
        room.expect(&mount);
        drop(file);
        room.eventually("the earlier daemon has ended", || {
            room.daemons().iter().all(|daemon| !earlier.contains(daemon))
        });
        room.expect(&["status", "mnt"]);
        let journals = || {
            let names = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
            names.filter(|path| path.extension().is_some_and(|end| end == "journal")).count()
        };
        assert_eq!(journals(), usize::from(!options.is_empty()));
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
        assert_eq!(journals(), 0);
    }
}

#[test]
fn a_foreign_umount_ends_the_daemon() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    assert!(Command::new("umount").arg(room.path("mnt")).status().unwrap().success());
    room.expect_gone();
}

#[test]
fn mount_runs_fanfs_as_its_helper() {
    let room = Room::new();
    let helper = room.path("mount.fanfs");
    symlink(env!("CARGO_BIN_EXE_fanfs"), &helper).unwrap();
    let args =
        ["v.toml", "mnt", "-s", "-o", "rw,noexec,noauto,_netdev,x-systemd.automount,unheard_of"];
    let output = room.program(&helper, &args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(room.mounted().unwrap().contains("ro,nosuid,nodev,noexec"), "{:?}", room.mounted());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// systemd and `umount -a -O _netdev` read the table of mount(8), which its helpers write.
#[test]
fn the_mount_table_notes_that_a_volume_needs_the_network() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    let noted = || {
        let table = fs::read_to_string("/run/mount/utab").unwrap_or_default();
        let line = format!("TARGET={} ", room.path("mnt").display());
        table.lines().find(|noted| noted.contains(&line)).map(str::to_owned)
    };
    room.expect(&["mount", "v.toml", "mnt", "-o", "_netdev"]);
    assert!(noted().is_some_and(|line| line.contains("OPTS=_netdev")), "{:?}", noted());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert_eq!(noted(), None);
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(noted(), None);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// Where links are impossible, or a package has none: it starts itself by its own file, which has
/// the helper's name.
#[test]
fn a_copied_helper_binary_mounts() {
    let room = Room::new();
    let helper = room.path("mount.fanfs");
    // By a program: a process that another test starts would have a copy of the open file until its
    // execve(2), and Linux refuses to run a file that is open for writing (ETXTBSY).
    let copy = Command::new("cp").arg(env!("CARGO_BIN_EXE_fanfs")).arg(&helper).status();
    assert!(copy.unwrap().success());
    let served = || {
        let status = room.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
        status["pid"].as_i64().unwrap()
    };
    for options in ["rw,noauto", "rw,noauto,keeper"] {
        let args = ["v.toml", "mnt", "-o", options];
        let output = room.program(&helper, &args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let before = served();
        // It starts itself again.
        room.expect(&["reload", "mnt"]);
        assert_ne!(served(), before);
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
    }
}

#[test]
fn mount_fuse3_mounts_a_volume() {
    if !needs::root() || !needs::program("mount.fuse3") {
        return;
    }
    let room = Room::new();
    fs::create_dir(room.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_fanfs"), room.path("bin/fanfs")).unwrap();
    // What mount(8) runs for a line of type fuse.fanfs in /etc/fstab; it sets
    // PATH itself, so fanfs must be installed for the whole of it.
    let path = format!("{}:{}", room.path("bin").display(), std::env::var("PATH").unwrap());
    let options = "rw,ro,allow_other,noauto,_netdev,x-systemd.automount";
    let args = ["v.toml", "mnt", "-o", options, "-t", "fuse.fanfs"];
    let program = std::path::Path::new("/sbin/mount.fuse3");
    let output = room.program(program, &args).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = room.mounted().unwrap();
    assert!(line.contains("ro,nosuid,nodev") && line.contains("allow_other"), "{line}");
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn the_demo_shows_its_promised_output_and_cleans_up() {
    attempts(|| {
        let room = Room::new();
        let dir = room.path("mnt");
        let args = [
            "demo",
            "--size",
            "24MiB",
            "--rate",
            "40MiB/s",
            "--json",
            "--dir",
            dir.to_str().unwrap(),
        ];
        let rows: serde_json::Value = serde_json::from_slice(&room.expect(&args).stdout).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(
            rows.iter().map(|row| row["replicas"].as_u64().unwrap()).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        // A bench measures the speedup; this test only checks that all replicas take part.
        for share in rows[2]["shares"].as_array().unwrap() {
            assert!(share.as_f64().unwrap() > 0.15, "{rows:?}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "something is left behind");
    });
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let room = Room::new();
    let dir = room.path("mnt");
    let args = ["demo", "--size", "64MiB", "--rate", "1MiB/s", "--dir", dir.to_str().unwrap()];
    let mut child = room.fanfs(&args).stdout(Stdio::null()).spawn().unwrap();
    let mounted = || {
        let table = crate::room::mount_table();
        table.contains(&format!("{}/fanfs-demo-", dir.display()))
    };
    room.eventually("the demo has mounted", mounted);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!mounted());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "something is left behind");
}

#[test]
fn the_launcher_of_an_idle_daemon_does_not_wake_up() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let daemon = room.first_process().as_raw_nonzero().get();
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).unwrap();
    let launcher = children.split_whitespace().next().unwrap().to_owned();
    let comm = fs::read_to_string(format!("/proc/{launcher}/comm")).unwrap();
    assert_eq!(comm, "fanfs-launcher\n");
    let slept = || {
        let status = fs::read_to_string(format!("/proc/{launcher}/status")).unwrap();
        let times = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        times.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = slept();
    std::thread::sleep(Duration::from_secs(4));
    // It may have been about to sleep.
    assert!(slept() <= before + 1, "{before}, {}", slept());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
