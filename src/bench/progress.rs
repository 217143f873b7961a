//! How far a run is, for its user.

use std::time::Duration;

/// Sees how far a run is, and says whether to go on.
pub trait ProgressWatcher {
    /// So many passes are to be done, which takes about so long.
    fn on_plan(&self, passes: usize, expected: Duration);
    /// So much of the file is written.
    fn on_file_progress(&self, written: u64, size: u64);
    /// The pass number `number`, from 0, is under way: which, for how long, and how many
    /// bytes it has read.
    fn on_pass_progress(&self, number: usize, what: &str, time: Duration, bytes: u64);
    /// Whether the user wants it to end.
    fn is_interrupted(&self) -> bool;
}
