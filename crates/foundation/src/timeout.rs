//! Calls that may hang, with a limit for the caller's wait.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `call` in a new thread. Returns `None` if the call takes longer than `limit`, or if the
/// thread cannot start. A late thread keeps running, because it may be inside a hung replica.
pub fn run_with_timeout<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let work = move || drop(sender.send(call()));
    std::thread::Builder::new().name("within".to_owned()).spawn(work).ok()?;
    receiver.recv_timeout(limit).ok()
}
