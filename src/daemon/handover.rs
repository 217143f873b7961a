//! Handing a mount over from one process to the next.
//!
//! The successor is a process of the predecessor's, so it lives where that one does: same
//! name spaces, same service. It gets everything ready while the predecessor serves. Then no
//! more requests are taken, those under way end, the rest is written down and sent.
//! Applications wait for as long as that takes and notice nothing else.
//!
//! A [`HandoverRequest`](super::handover_request) asks for it, [`predecessor`] and [`successor`] are the two sides, and
//! [`protocol`] has their messages and steps.

pub(super) mod predecessor;
pub(super) mod protocol;
pub(super) mod successor;
