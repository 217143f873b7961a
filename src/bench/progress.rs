//! Reports a run's progress to its user.

use std::time::Duration;

/// Receives progress, and says whether to continue.
pub trait ProgressWatcher {
    /// Called once, with the number of passes and the expected duration of all.
    fn on_plan(&self, passes: usize, expected: Duration);
    /// Called while the scratch file is written; both values in bytes.
    fn on_file_progress(&self, written: u64, size: u64);
    /// Called while a pass runs, with its number (from 0), its description, the time since its
    /// start, and the bytes read so far.
    fn on_pass_progress(&self, number: usize, what: &str, time: Duration, bytes: u64);
    /// Whether the user wants the run to end.
    fn is_interrupted(&self) -> bool;
}
