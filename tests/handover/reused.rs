//! ext4 reuses the inode number of a removed file for the next one. References to the removed file
//! never reach the next file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::{daemon, kernel_resends, kill, unmount, volume};
use crate::needs;
use crate::room::Room;
use crate::signals;

/// A volume over an ext4 of its own; it is unmounted with the room.
struct Ext4 {
    room: Room,
}

impl Ext4 {
    /// `None` where that is not possible.
    fn new() -> Option<Self> {
        let has_loops = Path::new("/dev/loop-control").exists();
        if !needs::root()
            || !needs::machine(has_loops, "loop devices")
            || !needs::program("mkfs.ext4")
        {
            return None;
        }
        let it = Self { room: Room::new() };
        let (image, tree) = (it.room.path("image"), it.room.path("tree"));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-I", "256"]).arg(&image).status();
        assert!(made.unwrap().success());
        let mount = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&tree).status();
        if !needs::machine(mount.unwrap().success(), "loop devices") {
            return None;
        }
        volume(&it.room, "v.toml", "v", 2, "rw");
        it.room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
        Some(it)
    }

    fn mounted(&self, name: &str) -> std::path::PathBuf {
        self.room.path("mnt").join(name)
    }

    /// Creates the file with the number of a removed one. A daemon closes a removed file a little
    /// after its last use. Files with other numbers are kept until then, because ext4 allocates the
    /// lowest free number, and a lower one may have become free meanwhile.
    fn make_with(&self, number: u64, path: &Path) {
        let mut others = Vec::new();
        self.room.eventually("ext4 uses the number again", || {
            make(path);
            let is_it = fs::metadata(self.on_replica("f")).unwrap().ino() == number;
            if !is_it {
                others.push(path.with_extension(others.len().to_string()));
                fs::rename(path, others.last().unwrap()).unwrap();
            }
            is_it
        });
        for other in others {
            fs::remove_file(other).unwrap();
        }
    }

    /// Creates `f` with a number above a free one.
    fn make_above_a_free_number(&self) {
        let lower = self.on_replica("lower");
        make(&lower);
        fs::write(self.mounted("f"), "OLD").unwrap();
        fs::remove_file(lower).unwrap();
    }

    fn on_replica(&self, name: &str) -> std::path::PathBuf {
        self.room.path("tree").join(name)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // A failed test leaves the mount behind as well.
        let _ = Command::new("umount").args(["-q", "-l"]).arg(self.room.path("mnt")).status();
        let _ = Command::new("umount").args(["-q", "-l"]).arg(self.room.path("tree")).status();
    }
}

/// A process that is stopped until this is dropped, also after a failed test.
struct Stopped(Pid);

impl Stopped {
    fn new(process: Pid) -> Self {
        signals::send(process, Signal::STOP);
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn is_stale<T: std::fmt::Debug>(answer: io::Result<T>) {
    let error = answer.expect_err("another file was reached").raw_os_error();
    assert_eq!(error, Some(rustix::io::Errno::STALE.raw_os_error()));
}

/// Every use of a descriptor of the removed file fails, and `new` is unchanged.
fn expect_apart(old: &File, new: &Path) {
    is_stale(old.read_at(&mut [0; 9], 0));
    is_stale(old.write_at(b"WRONG", 0));
    is_stale(old.set_len(1));
    is_stale(old.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777)));
    is_stale(old.metadata());
    assert_eq!(fs::read(new).unwrap(), b"NEW");
    assert_eq!(fs::metadata(new).unwrap().mode() & 0o777, 0o600);
}

fn make(path: &Path) {
    let mut file = File::options();
    let file = file.create_new(true).write(true).mode(0o600).open(path).unwrap();
    file.write_all_at(b"NEW", 0).unwrap();
}

fn open_again(held: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/self/fd/{}", held.as_raw_fd()))?.read_to_end(&mut text)?;
    Ok(text)
}

fn open_to_write(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn reusing_a_number_before_a_kill_confuses_no_files() {
    if !kernel_resends() {
        return;
    }
    let Some(it) = Ext4::new() else { return };
    let path = it.mounted("f");
    it.make_above_a_free_number();
    let (old, number) = (open_to_write(&path), fs::metadata(it.on_replica("f")).unwrap().ino());
    let reader = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    kill(&it.room);
    it.make_with(number, &path);
    expect_apart(&old, &it.on_replica("f"));
    drop(old);
    is_stale(reader.read_at(&mut [0; 9], 0));
    drop(reader);
    assert_eq!(fs::read(&path).unwrap(), b"NEW");
    unmount(&it.room);
}

/// Another client removes it while no daemon runs: birth times tell the two apart.
#[test]
fn reusing_a_number_during_a_kill_confuses_no_files() {
    if !kernel_resends() {
        return;
    }
    let Some(it) = Ext4::new() else { return };
    let (path, below) = (it.mounted("f"), it.on_replica("f"));
    fs::write(&below, "OLD").unwrap();
    let (old, number) = (open_to_write(&path), fs::metadata(&below).unwrap().ino());
    let served = daemon(&it.room);
    let stopped = Stopped::new(it.room.first_process());
    kill_process(served, Signal::KILL).unwrap();
    // The number is free once the daemon's descriptors are closed.
    it.room.eventually("the daemon has ended", || {
        let process = format!("/proc/{}", served.as_raw_nonzero());
        let stat = fs::read_to_string(format!("{process}/stat"));
        // Its last thread closes them.
        let threads = fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
        stat.map_or(true, |stat| stat.contains(") Z ")) && threads <= 1
    });
    fs::remove_file(&below).unwrap();
    it.make_with(number, &below);
    drop(stopped);
    expect_apart(&old, &below);
    drop(old);
    assert_eq!(fs::read(&path).unwrap(), b"NEW");
    unmount(&it.room);
}

#[test]
fn reusing_a_number_confuses_no_o_path_handles() {
    let Some(it) = Ext4::new() else { return };
    for follow in [None, Some("upgrade")] {
        let path = it.mounted("f");
        it.make_above_a_free_number();
        let (below, flags) = (it.on_replica("f"), rustix::fs::OFlags::PATH.bits() as i32);
        let held = File::options().read(true).custom_flags(flags).open(&path).unwrap();
        let number = fs::metadata(&below).unwrap().ino();
        fs::remove_file(&path).unwrap();
        if let Some(follow) = follow {
            it.room.expect(&[follow, "mnt"]);
        }
        it.make_with(number, &path);
        is_stale(open_again(&held));
        let by_descriptor = format!("/proc/self/fd/{}", held.as_raw_fd());
        is_stale(fs::set_permissions(
            &by_descriptor,
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        ));
        assert_eq!(fs::read(&path).unwrap(), b"NEW");
        assert_eq!(fs::metadata(&below).unwrap().mode() & 0o777, 0o600);
        drop(held);
        fs::remove_file(&path).unwrap();
    }
    unmount(&it.room);
}
