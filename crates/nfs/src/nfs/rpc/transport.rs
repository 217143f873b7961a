//! The connections to one server.
//!
//! A call goes on the connection that has the fewest bytes to carry. A thread ([`Worker`]) makes
//! the connections, receives the replies and ends late calls. It never waits for the server, so
//! neither does the end of a [`Transport`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nfs3_types::xdr_codec::Pack;

use super::call::{Identity, Procedure, encode_call};
use super::connection::Connection;
use super::pending::{DataTarget, IsUnwanted, MessageDone, PendingCall, Receipt, ReplyTarget};
use super::shared::{Renew, Shared, Target};
use super::worker::Worker;

/// Counts of one connection since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Calls submitted, each time.
    pub calls: u64,
    /// Calls sent again after the connection was made again.
    pub resent: u64,
    /// How often the connection was made.
    pub connected: u64,
    /// Replies that no call waited for.
    pub discarded: u64,
    /// Bytes received.
    pub received: u64,
}

/// How to make a call.
pub(crate) struct CallOptions<'a> {
    pub(crate) procedure: Procedure,
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) deadline: Instant,
    /// Learns of a reply that comes after the call has ended.
    pub(crate) receipt: Option<Arc<dyn Receipt>>,
}

/// The connections to a server. When it is dropped, its calls end.
pub(crate) struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    /// Starts the thread. Connections are made when a call wants one.
    ///
    /// # Errors
    /// If there is no address, or this process can have no more threads or descriptors.
    pub(crate) fn start(target: Target) -> io::Result<Self> {
        if target.addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the server has no address"));
        }
        let shared = Arc::new(Shared::new(target)?);
        let worker = Worker::new(Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("fanfs-nfs".to_owned());
        thread.spawn(move || worker.run())?;
        Ok(Self { shared })
    }

    /// Makes a call. `done` gets the reply, of at most `max` bytes with its header.
    pub(crate) fn call(
        &self,
        options: &CallOptions<'_>,
        arguments: &impl Pack,
        max: usize,
        done: MessageDone,
    ) {
        self.shared.submit(self.new_call(options, arguments, ReplyTarget::Message { max, done }));
    }

    /// Makes a call whose reply has data. It also ends when nothing waits for it any more.
    pub(crate) fn call_for_data(
        &self,
        options: &CallOptions<'_>,
        arguments: &impl Pack,
        target: DataTarget,
        is_unwanted: Option<IsUnwanted>,
    ) {
        let call = self.new_call(options, arguments, ReplyTarget::Data(target));
        self.shared.submit(call.while_wanted(is_unwanted));
    }

    fn new_call(
        &self,
        options: &CallOptions<'_>,
        arguments: &impl Pack,
        target: ReplyTarget,
    ) -> PendingCall {
        let xid = self.shared.next_xid();
        let record = encode_call(xid, options.procedure, options.identity, arguments);
        PendingCall::new(xid, record, options.deadline, target)
            .with_receipt(options.receipt.clone())
    }

    /// Calls `renew` on the transport's thread from now on, at these intervals. It must not block.
    pub(crate) fn set_lease_renewal(&self, every: Duration, renew: Renew) {
        self.shared.set_lease_renewal(every, renew);
    }

    /// The addresses that its connections use in turn.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.shared.target.addresses
    }

    /// Ends all calls, also those to come.
    pub(crate) fn stop(&self) {
        self.shared.stop();
    }

    /// Counts of each connection.
    pub(crate) fn counters(&self) -> Vec<ConnectionCounters> {
        let count = |connection: &Connection| {
            let counters = &connection.counters;
            ConnectionCounters {
                calls: counters.calls.load(Ordering::Relaxed),
                resent: counters.resent.load(Ordering::Relaxed),
                connected: counters.connected.load(Ordering::Relaxed),
                discarded: counters.discarded.load(Ordering::Relaxed),
                received: counters.received.load(Ordering::Relaxed),
            }
        };
        self.shared.connections.iter().map(count).collect()
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
