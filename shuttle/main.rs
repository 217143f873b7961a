//! Hand-over points in every order in which threads may meet, as far as time goes:
//! the line for memory, segments that are fetched once for all, parked replies.
//!
//!     cargo run --example shuttle
//!
//! The sources are fanfs's own, with shuttle's locks and atomics in `crate::sync`;
//! what they need besides is in here, in small. Half of the orders are drawn at
//! random, half change threads in a few places only, where rare mistakes show. What
//! fails is printed with its order, to be run again by `shuttle::replay`.

// The sources are public where they are in a library.
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

/// Orders of each kind.
const ORDERS: usize = 20_000;

/// Places in which an order of the second kind changes threads.
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
