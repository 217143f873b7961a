//! Replicas at run time: what all that call them share.
//!
//! [`Ticker`] is the clock that looks after whatever waits for a replica.

mod ticker;

pub use ticker::{PendingWork, Ticked, Ticker};
