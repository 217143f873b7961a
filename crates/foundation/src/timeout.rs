//! Calls that may hang, with a limit on how long the caller waits for them.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `call` in a thread of its own, which is left alone where it takes longer than
/// `limit`: it may be inside a replica that hangs. `None` then, and where there can be no
/// thread.
pub fn run_with_timeout<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let work = move || drop(sender.send(call()));
    std::thread::Builder::new().name("within".to_owned()).spawn(work).ok()?;
    receiver.recv_timeout(limit).ok()
}
