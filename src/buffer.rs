//! Memory for file data: a budget that is never exceeded, and aligned buffers
//! that are used again.
//!
//! A *reservation* is a claim on the [`Budget`]; a [`Buffer`] owns the
//! reservation that pays for it, so memory and claim are given back together,
//! wherever the buffer ends up. [`BufferPool`] keeps what was given back, as far
//! as the budget has room for it.
//!
//! Where splice(2) can be used, [`SegmentData`] is not copied at all: it stays in the
//! pages of the replica's page cache, which wait in a [`Pipe`]. Those pages are
//! paid for as memory is.
//!
//! *Invariant:* buffers in use plus buffers kept for reuse never exceed the
//! budget.
//!
//! A demand (a reader waits for the data) that finds the budget exhausted waits
//! in line; readahead never waits, it does without. A demand claims all it may
//! need at once, before it holds anything, so that two demands can never wait
//! for each other.

mod budget;
mod pipe;
mod pool;
mod segment_data;

pub use budget::{Budget, Reservation};
pub use pipe::{Pipe, PipePool};
pub use pool::{Buffer, BufferPool, size_class};
pub use segment_data::SegmentData;
