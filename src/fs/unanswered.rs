//! Entries that requests have made in the tables, and that the kernel may not know of.
//!
//! A daemon that is killed between a journal entry and the answer leaves a handle or a
//! lookup that the kernel does not know and never gives back. The kernel sends such
//! a request again, with the same number. So each entry in the journal has the number
//! of its request, and the next daemon takes back what the first try entered.
//!
//! *Invariant:* nothing is taken back that the kernel knows of: it sends a request again
//! only where it got no answer to it, and it uses no number twice.
//!
//! One case remains: a caller that is killed just after the kernel was asked to send again
//! withdraws its request, and its entry stays until the mount ends.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{HandleId, Ino};

/// An entry that a request has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Entered {
    /// An open file or directory.
    Handle { number: u64, ino: u64 },
    /// The kernel is to know an inode once more.
    Lookup(u64),
}

/// The last entries, oldest first, by the number of their request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Unanswered(VecDeque<(u64, Entered)>);

/// So many are remembered. A request is answered by the thread that made its entries,
/// right after them: this is enough for 128 threads with 32 entries each, as a listing
/// with attributes has. To remember too few leaves a handle open, and does no other harm.
const MOST: usize = 4096;

impl From<HandleId> for Entered {
    fn from(HandleId { number, ino }: HandleId) -> Self {
        Self::Handle { number, ino: ino.0 }
    }
}

impl From<Ino> for Entered {
    fn from(ino: Ino) -> Self {
        Self::Lookup(ino.0)
    }
}

impl Unanswered {
    /// The request has entered this. 0 stands for none of the kernel's.
    pub(super) fn enter(&mut self, request: u64, entered: Entered) {
        if request == 0 {
            return;
        }
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((request, entered));
    }

    /// Takes out what the request has entered.
    pub(super) fn take(&mut self, request: u64) -> Vec<Entered> {
        let own = |(number, _): &&(u64, Entered)| *number == request;
        let taken: Vec<_> = self.0.iter().filter(own).map(|(_, entered)| *entered).collect();
        if !taken.is_empty() {
            self.0.retain(|(number, _)| *number != request);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_has_entered_is_taken_out_once_and_the_oldest_goes_first() {
        let mut unanswered = Unanswered::default();
        unanswered.enter(0, Ino(9).into());
        unanswered.enter(2, Ino(5).into());
        unanswered.enter(4, Ino(6).into());
        unanswered.enter(2, Entered::Handle { number: 7, ino: 5 });
        let own = [Entered::Lookup(5), Entered::Handle { number: 7, ino: 5 }];
        assert_eq!(unanswered.take(2), own);
        assert!(unanswered.take(2).is_empty() && unanswered.take(0).is_empty());
        (0..MOST as u64).for_each(|i| unanswered.enter(10 + i, Ino(i).into()));
        assert!(unanswered.take(4).is_empty() && unanswered.0.len() == MOST);
    }
}
