//! Whether a process has ended, as proc(5) shows it.

use std::io;

/// Whether a process has ended, or hangs while it exits. While it hangs, its first thread is a
/// zombie (another thread sleeps in a replica) or exiting (it closes a file there), and its
/// descriptors stay open.
pub(super) fn is_dead(pid: u32) -> bool {
    // A zombie has this file as well.
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => is_exiting(&stat).unwrap_or(false),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether proc_pid_stat(5) shows a dead or exiting thread; `None` if it is malformed.
pub(super) fn is_exiting(stat: &str) -> Option<bool> {
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split(' ');
    let state = fields.next()?;
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    Some(matches!(state, "Z" | "X") || flags & PF_EXITING != 0)
}

/// `PF_EXITING` of the kernel's sched.h.
const PF_EXITING: u32 = 0x4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exiting_process_is_distinguished_from_a_waiting_one() {
        let stat = |state: &str, flags: u32| format!("7 (a ) b) {state} 1 7 7 0 -1 {flags} 1 2");
        assert_eq!(is_exiting(&stat("S", 0x40_0040)), Some(false));
        assert_eq!(is_exiting(&stat("D", 0x40_0040)), Some(false), "it waits for a disk");
        assert_eq!(is_exiting(&stat("D", 0x40_0044)), Some(true));
        assert_eq!(is_exiting(&stat("Z", 0x40_0040)), Some(true));
        assert_eq!(is_exiting("nonsense"), None);
        assert!(!is_dead(std::process::id()));
    }
}
