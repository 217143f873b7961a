//! The Python that plays the other users and the other processes.

use std::process::Command;
use std::sync::LazyLock;

/// The name of an interpreter that works.
#[derive(Clone, Copy)]
pub(crate) struct Python(pub(crate) &'static str);

/// Nothing where there is none, which says so; but in CI there must be one.
pub(crate) fn find() -> Option<Python> {
    static WORKS: LazyLock<bool> = LazyLock::new(|| {
        let asked = Command::new("python3").args(["-c", "import fcntl, ctypes"]).status();
        asked.is_ok_and(|status| status.success())
    });
    if !*WORKS {
        assert!(std::env::var_os("CI").is_none(), "CI has no python3");
        println!("skipped: there is no python3");
        return None;
    }
    Some(Python("python3"))
}
