//! ONC RPC (RFC 5531) over TCP: many calls at a time to one server, over several connections.
//!
//! A caller submits a call with a deadline. Its completion runs exactly once, on the transport's
//! own thread, soon after the deadline at the latest. No other thread waits for a server: a dead
//! one costs nothing but the calls that wait for their deadline.
//!
//! - [`call`] encodes a call, with AUTH_SYS credentials, whose ids [`id_map`] translates.
//! - [`reply`] decodes the header of a reply.
//! - [`pending`] is a call that waits for its reply, and where the reply goes.
//! - [`receiver`] takes a connection's bytes apart into replies.
//! - [`socket`] makes TCP connections.
//! - [`connection`] is what callers and the transport's thread share of one connection.
//! - [`shared`] is what callers and the thread share of a server.
//! - [`transport`] is the connections to one server.
//! - [`worker`] is the thread: it connects, receives, resends and ends late calls.
//!
//! *Invariant:* nothing that a server sends allocates more than the caller of that call allows.

mod call;
mod connection;
mod id_map;
mod pending;
mod receiver;
mod reply;
mod shared;
mod socket;
mod transport;
mod worker;

/// What the checks of hostile bytes take apart.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile {
    pub(crate) use super::pending::{
        Again, DataReply, DataSink, DataTarget, PendingCall, ReplyTarget,
    };
    pub(crate) use super::receiver::{Calls, Receiver, Source};
}

pub use call::Identity;
pub(crate) use call::Procedure;
pub(crate) use id_map::{gid_inside, uid_inside};
pub(crate) use pending::{Again, DataHead, DataReply, DataSink, DataTarget, Receipt, Renewal};
pub use pending::{IsUnwanted, RpcError};
pub use reply::Refusal;
pub(crate) use reply::decode_header;
pub use shared::Target;
pub use transport::ConnectionCounters;
pub(crate) use transport::{CallOptions, Transport};
pub(crate) use worker::check_may_block;
pub use worker::may_block;
