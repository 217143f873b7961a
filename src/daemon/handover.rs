//! Handing a mount over from one process to the next.
//!
//! The launcher of the predecessor starts the successor, which therefore has the same
//! namespaces and belongs to the same service. It prepares everything while the predecessor
//! serves. Then the predecessor takes no more requests, waits for those in flight, and sends
//! the remaining state. Applications wait during that time and notice nothing else.
//!
//! A [`HandoverRequest`](super::handover_request) asks for a handover. [`predecessor`] and
//! [`successor`] are its two sides, and [`protocol`] has their messages and steps.

pub(super) mod predecessor;
pub(super) mod protocol;
pub(super) mod successor;
