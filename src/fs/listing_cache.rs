//! The listing that an open directory keeps for its readers.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ino::Ino;
use super::listing::{Listing, PackedEntries};
use super::listing_memory::{ListingMemory, WindowKeeper};
use super::records::{ListingDigest, ListingRecord};
use crate::sync::{LockRank, RankedMutex};

/// The listing of one open directory.
pub(super) struct ListingCache(RankedMutex<CachedListing>);

#[derive(Default)]
struct CachedListing {
    listing: Option<Arc<Listing>>,
    /// When a reader last asked for it.
    last_used: Option<Instant>,
    /// Whether it was read from the start.
    is_started: bool,
    /// The digest of a listing that was lost with the previous daemon.
    lost_digest: Option<ListingDigest>,
}

/// The state for the next daemon.
pub(super) struct ListingCacheRecord {
    pub(super) is_started: bool,
    pub(super) listing: ListingRecord,
    pub(super) lost_digest: Option<ListingDigest>,
}

fn digest_of_names<'a>(names: impl Iterator<Item = &'a OsStr>) -> ListingDigest {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes());
        // No name contains it.
        hasher.update(&[0]);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

/// Identifies a listing.
pub(super) fn digest_of_listing(listing: &Listing) -> ListingDigest {
    digest_of_names(listing.entries_from(0).map(|entry| entry.name))
}

impl Default for ListingCache {
    fn default() -> Self {
        Self::new(CachedListing::default())
    }
}

impl ListingCache {
    fn new(cached: CachedListing) -> Self {
        Self(RankedMutex::new(LockRank::ListingCache, cached))
    }

    /// The kept listing, if it has the entries that come next for a reader at `offset`.
    pub(super) fn get(&self, offset: u64) -> Option<Arc<Listing>> {
        let mut kept = self.0.lock();
        if offset == 0 && std::mem::replace(&mut kept.is_started, true) {
            kept.listing = None;
        }
        kept.last_used = Some(Instant::now());
        let listing = Arc::clone(kept.listing.as_ref()?);
        if !listing.packed.covers(offset) {
            // Frees the memory for the next window.
            kept.listing.take_if(|listing| !listing.packed.is_whole());
            return None;
        }
        if !listing.packed.is_whole() && listing.entries_from(offset).next().is_none() {
            // The reader has reached the end.
            kept.listing = None;
        }
        Some(listing)
    }

    /// Keeps the present listing of the directory, for a reader at `offset`. False if the offset
    /// belongs to another listing, which was lost.
    pub(super) fn set(&self, listing: &Arc<Listing>, offset: u64) -> bool {
        let mut kept = self.0.lock();
        if listing.packed.is_whole() {
            let is_it = |lost: ListingDigest| lost == digest_of_listing(listing);
            if offset > 0 && !kept.lost_digest.is_none_or(is_it) {
                return false;
            }
        }
        kept.lost_digest = None;
        kept.last_used = Some(Instant::now());
        kept.listing = listing.packed.is_within_budget().then(|| Arc::clone(listing));
        true
    }

    /// The state as a record: `with_listing`, or with a digest instead. The next daemon collects a
    /// window again.
    pub(super) fn snapshot(&self, with_listing: bool) -> ListingCacheRecord {
        let kept = self.0.lock();
        let whole = kept.listing.as_ref().filter(|listing| listing.packed.is_whole());
        let listing = whole.filter(|_| with_listing);
        let listing = listing.map(|l| (l.parent.0, l.packed.to_dir_entries()));
        let lost_digest = match whole {
            Some(whole) if !with_listing => Some(digest_of_listing(whole)),
            Some(_) => None,
            None => kept.lost_digest,
        };
        ListingCacheRecord { is_started: kept.is_started, listing, lost_digest }
    }

    /// Restores the state of the directory `ino`; its listing only if there is memory for it.
    pub(super) fn restore(ino: Ino, record: ListingCacheRecord, memory: &ListingMemory) -> Self {
        let ListingCacheRecord { is_started, listing, lost_digest } = record;
        let mut cached = CachedListing { is_started, lost_digest, ..CachedListing::default() };
        if let Some((parent, entries)) = listing {
            match PackedEntries::restore(memory, &entries) {
                Some(packed) => {
                    cached.lost_digest = None;
                    cached.listing = Some(Arc::new(Listing { ino, parent: Ino(parent), packed }));
                }
                None => {
                    let names = entries.iter().map(|entry| &*entry.name);
                    cached.lost_digest = Some(digest_of_names(names));
                }
            }
        }
        Self::new(cached)
    }
}

impl WindowKeeper for ListingCache {
    fn window_idle_time(&self) -> Option<Duration> {
        let kept = self.0.lock();
        let listing = kept.listing.as_ref()?;
        let used = kept.last_used.filter(|_| !listing.packed.is_whole());
        used.map(|used| used.elapsed())
    }

    fn drop_window(&self) -> bool {
        let window = {
            let mut kept = self.0.lock();
            kept.listing.take_if(|listing| !listing.packed.is_whole())
        };
        window.is_some()
    }
}
