//! Addresses on this machine for servers of tests.
//!
//! A port that was free a moment ago may be taken now, by a test beside this one or by any
//! connection. So each server has a whole address to itself: 127.0.0.0/8 has enough, and no
//! connection takes a port of another address than 127.0.0.1 by itself.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// An address that no other test and no connection uses, and a port.
pub(crate) fn own_address() -> SocketAddr {
    let [second, third, last, _] = (RandomState::new().hash_one(0) as u32).to_ne_bytes();
    // Neither 127.0.0.1 nor an address that ends in 0 or 255.
    let own = Ipv4Addr::new(127, second.max(1), third, last.clamp(1, 254));
    TcpListener::bind((own, 0)).unwrap().local_addr().unwrap()
}
