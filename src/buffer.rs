//! Memory for file data: a budget, and aligned buffers that are reused.
//!
//! A *reservation* is a claim on the [`Budget`]. A [`Buffer`] owns the reservation that pays for
//! it, so memory and claim are returned together, wherever the buffer ends up. [`BufferPool`] keeps
//! returned memory while the budget has room for it.
//!
//! Where splice(2) works, [`SegmentData`] is not copied at all: it stays in the pages of the
//! replica's page cache, which wait in a [`Pipe`]. Those pages are paid for like memory.
//!
//! *Invariant:* buffers in use plus buffers kept for reuse never exceed the budget. The only
//! exception is [`Budget::overdraw`], for amounts with another limit.
//!
//! A demand is a claim for data that a reader waits for. If the budget is exhausted, a demand waits
//! in line; readahead never waits but goes without. A demand claims all that it may need at once,
//! before it holds anything, so that two demands can never wait for each other.

mod budget;
mod pipe;
mod pool;
mod segment_data;

pub use budget::{Budget, Reservation};
pub use pipe::{Pipe, PipePool};
pub use pool::{Buffer, BufferPool, ScratchBuffer, size_class};
pub use segment_data::{MIN_SPLICE_BYTES, SegmentData};
