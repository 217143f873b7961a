//! Handover points in the orders in which threads may meet, within a time limit: the queue for
//! memory, segments that are fetched once for all readers, parked replies.
//!
//!     cargo run --example shuttle
//!
//! The sources are fanfs's own, with shuttle's locks and atomics in `crate::sync`; small
//! replacements for their other dependencies are in here. Half of the orders are random. The other
//! half switches threads in a few places only, where rare mistakes show. A failure prints its
//! order, and `shuttle::replay` repeats it.

// The sources have public items, as in a library.
#![allow(unreachable_pub)]

mod buffer;
mod read;
mod sync;

mod backend {
    pub use fanfs::backend::*;
}

mod replicas {
    pub use fanfs::replicas::*;
}

mod scheduler {
    pub use fanfs::scheduler::*;
}

mod volume {
    pub use fanfs::volume::*;
}

/// Number of orders of each kind.
const ORDERS: usize = 20_000;

/// Number of thread switches in an order of the second kind.
const CHANGES: usize = 3;

fn main() {
    for (name, scenario) in [
        ("the line for memory", buffer::memory_waiters as fn()),
        ("one segment, two replicas, two requests, one deadline", read::single_flight),
        ("a request of two segments", read::two_parts),
    ] {
        shuttle::check_random(scenario, ORDERS);
        shuttle::check_pct(scenario, ORDERS, CHANGES);
        println!("{name}: {} orders", 2 * ORDERS);
    }
}
