//! Signals that ask a command to end: it does so by itself, and leaves nothing
//! behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell reports of a program that Ctrl-C ended.
pub(super) const STATUS: u8 = 130;

/// A flag that Ctrl-C or SIGTERM sets, instead of ending the program.
///
/// # Errors
/// Where signals cannot be waited for.
pub(super) fn flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        set.store(true, Ordering::Relaxed);
    })?;
    Ok(flag)
}
