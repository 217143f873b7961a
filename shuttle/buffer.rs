//! The budget, and the part of the data that requests use.

#[allow(dead_code)]
#[path = "../src/buffer/budget.rs"]
mod budget;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use shuttle::thread;

pub use budget::{Budget, Reservation};

use crate::sync::{AtomicUsize, Ordering};

/// Bytes in memory, with their claim.
pub struct SegmentData {
    bytes: Vec<u8>,
    claim: Option<Reservation>,
}

/// There are none here.
pub struct Pipe;

/// Bytes without a claim.
pub type Buffer = Vec<u8>;

#[allow(dead_code)]
impl SegmentData {
    pub fn with_claim(bytes: Vec<u8>, claim: Reservation) -> Self {
        Self { bytes, claim: Some(claim) }
    }

    pub fn from_buffer(bytes: Buffer) -> Self {
        Self { bytes, claim: None }
    }

    pub fn into_claim(self) -> Option<Reservation> {
        self.claim
    }

    pub fn materialize(&self, _part: Range<usize>) -> bool {
        true
    }

    pub fn as_memory(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }

    pub fn move_to_pipe(&self, _part: Range<usize>, _to: &mut Pipe) -> io::Result<()> {
        unreachable!("it is memory")
    }

    pub fn append_to(&self, part: Range<usize>, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.extend_from_slice(&self.bytes[part]);
        Ok(())
    }
}

/// Three threads claim more than the budget has for two. Each release serves a waiter: no waiter is
/// forgotten, and the use never exceeds the budget.
pub fn memory_waiters() {
    const LIMIT: u64 = 100;
    let budget = Budget::new(LIMIT);
    let served = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = [60, 70, 100]
        .into_iter()
        .enumerate()
        .map(|(turn, bytes)| {
            let (budget, served) = (budget.clone(), Arc::clone(&served));
            thread::spawn(move || {
                let grant = {
                    let (budget, served) = (budget.clone(), Arc::clone(&served));
                    move |claim: Reservation| {
                        assert!(claim.bytes() == bytes && budget.used() <= LIMIT);
                        served.fetch_add(1, Ordering::SeqCst);
                        drop(claim);
                    }
                };
                match budget.claim(bytes) {
                    Some(claim) => grant(claim),
                    None => budget.enqueue_waiter(turn as u64, bytes, grant),
                }
                budget.grant_waiters();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(served.load(Ordering::SeqCst), 3, "a caller waits forever");
    assert_eq!(budget.used(), 0);
}
