//! Compares this machine's clock with a server's.
//!
//! This is the only place in fanfs that reads the wall clock, because a comparison needs both
//! clocks. No timeout depends on it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use std::os::unix::fs::MetadataExt as _;

/// This machine's time since 1970.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How far a replica's root is in the future, seconds. `None` if it is not, which says nothing
/// about the clock.
pub(super) fn root_time_ahead(root: &Path) -> Option<f64> {
    let stat = std::fs::metadata(root).ok()?;
    let latest = stat.mtime().max(stat.ctime()) as f64;
    // Compares whole seconds: the timestamp's fraction is ignored.
    let ahead = latest - unix_time().as_secs_f64();
    (ahead > 0.0).then_some(ahead)
}

/// How far the clock that stamps new files is ahead, seconds. Creates a file in the replica's root
/// and removes it.
///
/// # Errors
/// If the file cannot be created or examined.
pub(super) fn clock_ahead_by_new_file(root: &Path) -> io::Result<f64> {
    let path = root.join(format!(".fanfs-doctor-{}", std::process::id()));
    let before = unix_time();
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    let stamped = made.and_then(|file: File| file.metadata());
    let between = (before + unix_time()) / 2;
    let _ = std::fs::remove_file(&path);
    let stat = stamped?;
    let stamp = stat.mtime() as f64 + stat.mtime_nsec() as f64 / 1e9;
    Ok(stamp - between.as_secs_f64())
}
