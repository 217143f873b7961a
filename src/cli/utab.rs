//! What mount(8)'s own table, /run/mount/utab, has besides the kernel's: `_netdev`.
//!
//! systemd goes by both once a volume is mounted. Without the word it takes the volume for a
//! local file system, which has to be there before the network and go after it, while its
//! replicas are the other way round; at the machine's end it then gives up on unmounting some
//! of them in order. A helper of mount(8) writes the word itself (mount(8) leaves that to it).
//!
//! *Invariant:* nothing here fails: without the table, or the right to write it, all else works.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mount_table::MountTable;

/// Where the table is.
const UTAB_PATH: &str = "/run/mount/utab";

/// Notes that what is mounted at `mount_point` needs the network.
pub(super) fn add_netdev(mount_point: &Path) {
    let table = MountTable::read().unwrap_or_default();
    let Some(mount) = table.top_mount_at(mount_point) else { return };
    let mut command = utab_command("mount");
    command.args(["-t", "fuse.fanfs", "-o", "_netdev"]).arg(&mount.source).arg(mount_point);
    let _ = command.status();
}

/// Takes the note away, where there is one.
pub(super) fn remove_utab_entry(mount_point: &Path) {
    let table = fs::read(UTAB_PATH).unwrap_or_default();
    if String::from_utf8_lossy(&table).contains("SRC=fanfs:") {
        let _ = utab_command("umount").arg(mount_point).status();
    }
}

/// A program that writes the table and does nothing else, and looks at no mount.
fn utab_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-canonicalize", "--internal-only", "--fake"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
