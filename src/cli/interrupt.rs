//! Signals that ask a command to end: it does so by itself, and leaves nothing
//! behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell reports of a program that Ctrl-C ended.
pub(super) const STATUS: u8 = 130;

/// A flag that Ctrl-C, SIGTERM or a terminal that goes sets, instead of ending the
/// program.
///
/// # Errors
/// Where signals cannot be waited for.
pub(super) fn flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _entered = runtime.enter();
        let hangup = (!outlives_terminal()).then(|| signal(SignalKind::hangup())).transpose()?;
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, hangup)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = async {
                    match &mut hangup {
                        Some(hangup) => drop(hangup.recv().await),
                        None => std::future::pending().await,
                    }
                } => {}
            }
        });
        set.store(true, Ordering::Relaxed);
    })?;
    Ok(flag)
}

/// Whether it was started by nohup(1), or the like: then SIGHUP is ignored, and stays so.
fn outlives_terminal() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, and so the lowest bit.
    ignored.is_some_and(|mask| mask & 1 != 0)
}
