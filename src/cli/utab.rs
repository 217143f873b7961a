//! The `_netdev` entry in mount(8)'s own table, /run/mount/utab.
//!
//! systemd reads this table and the kernel's after a volume is mounted. Without `_netdev` it
//! treats the volume as a local file system, to be mounted before the network is up and unmounted
//! after it is down. The replicas need the opposite order, so at shutdown systemd gives up on
//! unmounting some of them in order. mount(8) leaves the entry to its helper.
//!
//! *Invariant:* nothing here fails: without the table, or permission to write it, everything
//! else works.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mount_table::MountTable;

/// The path of the table.
const UTAB_PATH: &str = "/run/mount/utab";

/// Records that the mount at `mount_point` needs the network.
pub(super) fn add_netdev(mount_point: &Path) {
    let table = MountTable::read().unwrap_or_default();
    let Some(mount) = table.top_mount_at(mount_point) else { return };
    let mut command = utab_command("mount");
    command.args(["-t", "fuse.fanfs", "-o", "_netdev"]).arg(&mount.source).arg(mount_point);
    let _ = command.status();
}

/// Removes the record of the mount, if the table has any of a fanfs mount.
pub(super) fn remove_utab_entry(mount_point: &Path) {
    let table = fs::read(UTAB_PATH).unwrap_or_default();
    if String::from_utf8_lossy(&table).contains("SRC=fanfs:") {
        let _ = utab_command("umount").arg(mount_point).status();
    }
}

/// `program`, with options that make it write the table only, without touching any mount.
fn utab_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-canonicalize", "--internal-only", "--fake"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
