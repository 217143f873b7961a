//! The capabilities of a daemon that root starts.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use rustix::thread::CapabilitySet as Set;

use crate::needs;
use crate::room::Room;

/// Capabilities of a thread: effective, permitted, bounding.
type Sets = [Set; 3];

/// The sets found in any of the daemon's threads.
pub(crate) fn of_all_threads(pid: i32) -> BTreeSet<[u64; 3]> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let sets = threads.filter_map(|thread| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).ok()?;
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        Some(["CapEff:", "CapPrm:", "CapBnd:"].map(set))
    });
    sets.collect()
}

fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

/// The daemon of `volume` has exactly this, in each of its threads, after reads, listings and
/// `work`.
fn expect(room: &Room, options: &[&str], [used, permitted, programs]: Sets, work: impl FnOnce()) {
    // Root may lack some capabilities here.
    let before = rustix::thread::capabilities(None).unwrap().permitted;
    let mut args = vec!["mount", "v.toml", "mnt"];
    args.extend(options);
    room.expect(&args);
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    assert!(fs::read_dir(room.path("mnt")).unwrap().count() > 0);
    work();
    let pid = room.first_process().as_raw_nonzero().get();
    let sets = of_all_threads(pid);
    // A thread that is another user for its call has no file capabilities.
    let of_files = Set::CHOWN
        | Set::DAC_OVERRIDE
        | Set::DAC_READ_SEARCH
        | Set::FOWNER
        | Set::FSETID
        | Set::MKNOD;
    let right = [used, permitted, programs].map(|set| (set & before).bits());
    for found in &sets {
        let as_other = [((used - of_files) & before).bits(), right[1], right[2]];
        assert!(*found == right || *found == as_other, "{found:x?}, should be {right:x?}");
    }
    assert!(sets.contains(&right) && !sets.is_empty());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn a_read_only_daemon_keeps_only_read_capabilities() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    let kept = Set::DAC_READ_SEARCH | Set::SYS_ADMIN | Set::SYS_RESOURCE;
    // Another user's private file, in a private directory.
    fs::create_dir(room.path("tree/private")).unwrap();
    fs::write(room.path("tree/private/secret"), "secret").unwrap();
    for path in ["tree/private/secret", "tree/private"] {
        chown(room.path(path), Some(1234), Some(1234)).unwrap();
    }
    fs::set_permissions(room.path("tree/private"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::set_permissions(room.path("tree/private/secret"), PermissionsExt::from_mode(0o400))
        .unwrap();
    expect(&room, &[], [Set::DAC_READ_SEARCH, kept, kept], || {
        assert_eq!(fs::read_to_string(room.path("mnt/private/secret")).unwrap(), "secret");
        let pid = room.first_process().as_raw_nonzero().get();
        assert_eq!(field(pid, "NoNewPrivs:"), "1");
    });
}

/// Its memory holds other users' data. A process of the same user with all of its capabilities may
/// read that memory, and a crash leaves a core dump, unless the daemon is not dumpable.
#[test]
fn a_root_daemon_is_not_dumpable() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let without_ptrace = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]).args(args);
        command
    };
    let looks_into = |pid: &str| {
        let exe = format!("/proc/{pid}/exe");
        without_ptrace(&["readlink", &exe]).output().unwrap().status.success()
    };
    let mut other = without_ptrace(&["sleep", "60"]).spawn().unwrap();
    let pid = other.id().to_string();
    room.eventually("a process that is dumpable can be looked into", || looks_into(&pid));
    let is_seen = looks_into(&room.first_process().as_raw_nonzero().get().to_string());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!is_seen, "its memory is open to a process without CAP_SYS_PTRACE");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn set_id_bits_and_devices_are_ignored_by_default() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    let flags = |options: &[&str]| {
        room.expect(&[&["mount", "v.toml", "mnt"], options].concat());
        let line = room.mounted().unwrap();
        room.expect(&["umount", "mnt"]);
        room.expect_gone();
        ["nosuid", "nodev"].map(|flag| line.split([' ', ',']).any(|word| word == flag))
    };
    assert_eq!(flags(&[]), [true, true]);
    assert_eq!(flags(&["-o", "suid"]), [false, true]);
    assert_eq!(flags(&["-o", "dev"]), [true, false]);
}

/// The caller is outside the daemon's pid namespace.
#[test]
fn an_unseen_caller_has_no_groups_and_waits_for_no_lock() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    room.write_volume("v.toml", "");
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let file = room.path("tree/of-the-group");
    fs::write(&file, "for the group").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o040)).unwrap();
    chown(&file, Some(0), Some(4321)).unwrap();
    let program = env!("CARGO_BIN_EXE_fanfs");
    let mut daemon = room
        .program("unshare".as_ref(), &["--pid", "--fork", "--kill-child", program])
        .args(["mount", "v.toml", "mnt", "--foreground", "-o", "allow_other,rw"])
        .spawn()
        .unwrap();
    room.eventually("it is mounted", || room.mounted().is_some());
    let read = |group: &str, groups: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1234", group, groups, "cat"]);
        command.arg(room.path("mnt/of-the-group")).output().unwrap()
    };
    assert_eq!(read("--regid=4321", "--clear-groups").stdout, b"for the group");
    assert!(!read("--regid=1234", "--groups=4321").status.success(), "a group that is unseen");
    let open = || File::open(room.path("mnt/hello")).unwrap();
    let (one, other) = (open(), open());
    use rustix::fs::{FlockOperation, flock};
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let waited = flock(&other, FlockOperation::LockExclusive);
    assert_eq!(waited, Err(rustix::io::Errno::NOLCK));
    drop((one, other));
    room.expect(&["umount", "mnt"]);
    daemon.wait().unwrap();
}

#[test]
fn allow_other_keeps_the_capabilities_to_change_user() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let others = Set::SETUID | Set::SETGID;
    let used = Set::DAC_READ_SEARCH | others;
    let kept = used | Set::SYS_ADMIN | Set::SYS_RESOURCE | Set::SYS_PTRACE;
    fs::write(room.path("tree/of-the-group"), "for the group").unwrap();
    fs::set_permissions(room.path("tree/of-the-group"), PermissionsExt::from_mode(0o040)).unwrap();
    chown(room.path("tree/of-the-group"), Some(0), Some(4321)).unwrap();
    expect(&room, &["-o", "allow_other"], [used, kept, kept], || {
        let read = |groups: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=1234", "--regid=1234", groups, "cat"]);
            command.arg(room.path("mnt/of-the-group")).output().unwrap()
        };
        assert_eq!(read("--groups=4321").stdout, b"for the group");
        assert!(!read("--clear-groups").status.success());
    });
}

#[test]
fn a_writing_daemon_may_change_files_of_others() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    room.write_volume("v.toml", "");
    let changes = Set::CHOWN | Set::DAC_OVERRIDE | Set::FOWNER | Set::FSETID | Set::MKNOD;
    let used = Set::DAC_READ_SEARCH | changes;
    let kept = used | Set::SYS_ADMIN | Set::SYS_RESOURCE | Set::SETFCAP;
    expect(&room, &[], [used, kept, kept], || {
        // Root may use another user's file whose mode allows nothing.
        let file = room.path("mnt/file");
        fs::write(&file, "1").unwrap();
        chown(&file, Some(1234), Some(1234)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o0)).unwrap();
        use std::io::Write;
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"2").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "12");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o6755)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o6755);
        use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, makedev, mknodat, setxattr};
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o600));
        mknodat(CWD, room.path("mnt/null"), kind, mode, makedev(1, 3)).unwrap();
        // Attributes that only privileged processes may access.
        let capability: &[u8] = &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (name, value) in [("trusted.x", &b"y"[..]), ("security.capability", capability)] {
            let on_disk = setxattr(room.path("tree/hello"), name, value, XattrFlags::empty());
            if !needs::machine(on_disk.is_ok(), &format!("the attribute {name}")) {
                continue;
            }
            setxattr(&file, name, value, XattrFlags::empty()).unwrap();
            let mut got = [0; 64];
            let length = getxattr(&file, name, &mut got[..]).unwrap();
            assert_eq!(&got[..length], value, "{name}");
            let mut list = vec![0u8; 4096];
            let length = rustix::fs::listxattr(&file, &mut list[..]).unwrap();
            assert!(String::from_utf8_lossy(&list[..length]).contains(name), "{name}");
        }
    });
}

/// An ext4 of 32 MiB, half of it reserved for root, is mounted while this lives.
struct Reserved<'a>(&'a Room);

impl<'a> Reserved<'a> {
    /// `None` where that is not possible.
    fn new(room: &'a Room) -> Option<Self> {
        let image = room.path("image");
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        if !needs::program("mkfs.ext4") {
            return None;
        }
        let make = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "50"]).arg(&image).status();
        assert!(make.unwrap().success());
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(room.path("tree"));
        if !needs::machine(mount.status().unwrap().success(), "loop devices") {
            return None;
        }
        Some(Self(room))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for at in ["mnt", "tree"] {
            let _ = Command::new("umount").args(["-q", "-l"]).arg(self.0.path(at)).status();
        }
    }
}

#[test]
fn reserved_blocks_are_not_for_other_users() {
    use std::os::unix::process::CommandExt;
    if !needs::root() {
        return;
    }
    let room = Room::new();
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let Some(reserved) = Reserved::new(&room) else { return };
    fs::set_permissions(room.path("tree"), PermissionsExt::from_mode(0o777)).unwrap();
    room.write_volume("v.toml", "");
    room.expect(&["mount", "v.toml", "mnt", "-o", "allow_other"]);
    let fill = |name: &str, user: u32| {
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", room.path(name).display()));
        let output = dd.uid(user).gid(user).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("No space left on device"), "{said}");
        let space = rustix::fs::statvfs(room.path("tree")).unwrap();
        space.f_bfree * 100 / space.f_blocks
    };
    let left = fill("mnt/of-a-user", 4321);
    assert!(left > 40, "{left} % are left");
    // Root has it there as well.
    let left = fill("mnt/of-root", 0);
    assert!(left < 20, "{left} % are left");
    room.expect(&["umount", "mnt"]);
    drop(reserved);
}

#[test]
fn passthrough_works_without_effective_privileges() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    room.volume("v.toml", "", "[read]\npassthrough = \"whole-file\"");
    let kept = Set::DAC_READ_SEARCH | Set::SYS_ADMIN | Set::SYS_RESOURCE;
    expect(&room, &[], [Set::DAC_READ_SEARCH, kept, kept], || {
        for _ in 0..3 {
            // Acquired and released each time.
            drop(File::open(room.path("mnt/hello")).unwrap());
        }
        let status = room.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        let obstacles = status["passthrough"]["obstacles"].to_string();
        assert!(!obstacles.contains("CAP_SYS_ADMIN"), "{obstacles}");
        let (opens, none) = (&status["passthrough"]["opens"], obstacles == "[]");
        assert_eq!(opens.as_u64().unwrap() > 0, none, "{status}");
    });
}

#[test]
fn placement_programs_may_change_their_user() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    fs::write(room.path("tree/large"), vec![1; 8 << 20]).unwrap();
    let reported = room.path("reported");
    let more = format!(
        "[placement]\nprovider = \"exec\"\n\
         command = [\"sh\", \"-c\", \"setpriv --reuid=1234 --regid=1234 --clear-groups id -u > {}\"]",
        reported.display()
    );
    room.volume("v.toml", "", &more);
    let used = Set::DAC_READ_SEARCH | Set::KILL;
    let kept = used | Set::SYS_ADMIN | Set::SYS_RESOURCE;
    let programs = kept | Set::SETUID | Set::SETGID;
    expect(&room, &[], [used, kept, programs], || {
        fs::read(room.path("mnt/large")).unwrap();
        let became = || fs::read_to_string(&reported).is_ok_and(|text| text == "1234\n");
        room.eventually("the program has changed its user", became);
        assert_eq!(field(room.first_process().as_raw_nonzero().get(), "NoNewPrivs:"), "0");
    });
}
