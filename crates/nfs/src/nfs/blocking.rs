//! Calls that block until their reply comes.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use nfs3_types::xdr_codec::Pack;

use super::error::NfsError;
use super::rpc::{self, CallOptions, RpcError, Transport, decode_header};
use super::xdr::Decoder;

/// The first wait before a call is made again that the server could not execute yet
/// (`NFS3ERR_JUKEBOX`, for example while data comes from a tape), and the longest.
pub(super) const FIRST_JUKEBOX_WAIT: Duration = Duration::from_millis(50);
pub(super) const MAX_JUKEBOX_WAIT: Duration = Duration::from_secs(5);

/// Makes a call, and blocks until its reply comes or its deadline passes.
pub(super) fn wait_for_reply(
    transport: &Transport,
    options: &CallOptions<'_>,
    arguments: &impl Pack,
    max: usize,
) -> Result<Vec<u8>, NfsError> {
    rpc::check_may_block()?;
    let (sender, receiver) = sync_channel(1);
    let done = move |reply| drop(sender.send(reply));
    transport.call(options, arguments, max, Box::new(done));
    // The transport completes every call; without its thread none would come.
    Ok(receiver.recv().unwrap_or(Err(RpcError::Stopped))?)
}

/// Gets what a call has ended with.
pub(super) type Done<T> = Box<dyn FnOnce(T) + Send>;

/// Makes several calls at once, and blocks until all have ended. `start` begins the call with this
/// index; `stopped` is the end of a call that the transport has dropped.
pub(super) fn wait_for_all<T: Send + 'static>(
    count: usize,
    start: impl Fn(usize, Done<T>),
    stopped: impl Fn() -> T,
) -> Vec<T> {
    let mut ends: Vec<T> = (0..count).map(|_| stopped()).collect();
    if rpc::check_may_block().is_err() {
        return ends;
    }
    let (sender, receiver) = sync_channel(count);
    for index in 0..count {
        let sender = sender.clone();
        let done = move |end| drop(sender.send((index, end)));
        start(index, Box::new(done));
    }
    drop(sender);
    receiver.into_iter().for_each(|(index, end)| ends[index] = end);
    ends
}

/// The results of a reply.
pub(super) fn decode_results<T>(
    reply: &[u8],
    decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, NfsError>,
) -> Result<T, NfsError> {
    let mut bytes = Decoder::new(reply);
    decode_header(&mut bytes)?.map_err(RpcError::from)?;
    decode(&mut bytes)
}

/// Makes a call again while the server cannot execute it yet.
pub(super) fn repeat_while_jukebox<T>(
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, NfsError>,
) -> Result<T, NfsError> {
    let mut wait = FIRST_JUKEBOX_WAIT;
    loop {
        match call() {
            Err(error) if error.is_jukebox() && Instant::now() + wait < deadline => {
                std::thread::sleep(wait);
                let left = deadline.saturating_duration_since(Instant::now());
                // Half of the rest leaves time for the call.
                wait = (wait * 2).min(MAX_JUKEBOX_WAIT).min(left / 2);
            }
            answer => return answer,
        }
    }
}

/// The next wait for a server that cannot execute a call yet; each one is twice as long as the one
/// before.
pub(super) fn take_wait(wait: &mut Duration) -> Duration {
    std::mem::replace(wait, (*wait * 2).min(MAX_JUKEBOX_WAIT))
}
