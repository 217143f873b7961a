//! How many entries with attributes one reply has room for.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The first entries of a directory, which are always listed with attributes. About as many fit
/// into one page, the size that kernels before 6.16 ask for.
pub(super) const FIRST_ENTRIES: usize = 32;

/// The most entries that one call looks up. The kernel asks for as many bytes as the process does,
/// and 32 KiB, as the C library does, have room for some 200 entries.
const MAX_ENTRIES: usize = 256;

/// The number of entries to look up for the next reply. The size that the kernel asks for is not
/// known here, so the number follows from the replies before.
pub(super) struct ReplyRoom(AtomicUsize);

impl Default for ReplyRoom {
    fn default() -> Self {
        Self(AtomicUsize::new(FIRST_ENTRIES))
    }
}

impl ReplyRoom {
    pub(super) fn entries(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that a reply had room for `sent` of the `offered` entries.
    pub(super) fn record(&self, offered: usize, sent: usize) {
        let expected = self.entries();
        if sent < offered {
            self.0.store(sent.max(1), Ordering::Relaxed);
        } else if sent >= expected {
            self.0.store((expected + expected / 8 + 1).min(MAX_ENTRIES), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills replies that have room for this many entries.
    fn fill(room: &ReplyRoom, replies: usize, fitting: usize) -> (usize, usize) {
        let mut looked_up = 0;
        let mut sent = 0;
        for _ in 0..replies {
            let offered = room.entries();
            room.record(offered, offered.min(fitting));
            looked_up += offered;
            sent += offered.min(fitting);
        }
        (looked_up, sent)
    }

    #[test]
    fn few_entries_are_looked_up_in_vain() {
        for fitting in [1, 7, 24, 100, 190, 1000] {
            let room = ReplyRoom::default();
            fill(&room, 20, fitting);
            let (looked_up, sent) = fill(&room, 100, fitting);
            assert!(sent * 10 >= 100 * fitting.min(MAX_ENTRIES) * 9, "{fitting}: {sent} sent");
            let most = sent + sent / 10 + 100;
            assert!(looked_up <= most, "{fitting}: {looked_up} for {sent}");
        }
    }

    #[test]
    fn the_rest_of_a_directory_says_nothing_about_the_room() {
        let room = ReplyRoom::default();
        fill(&room, 20, 190);
        let before = room.entries();
        room.record(5, 5);
        assert_eq!(room.entries(), before);
    }
}
