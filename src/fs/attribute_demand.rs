//! Whether listings should show attributes, learned from the lookups that follow.
//!
//! A process asks the kernel about each name that it got without attributes (`ls -l`, `tar`, a
//! loader), and the kernel asks fanfs: one request for each file. A listing with attributes saves
//! these requests. But if the process wants names only (`find -name`), it costs a look at each
//! entry, and memory for each inode in the kernel and here. The request for a listing does not tell
//! which of them it is.
//!
//! So the first entries of a directory are always listed with attributes, and the others only while
//! they are in demand: after many of the names in one directory were looked up. As long as
//! listings show attributes, no lookups tell whether they are in demand. So the demand ends after
//! [`DEMAND_LIFETIME`], and the next large directory tells again.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::handle_id::HandleId;
use super::ino::Ino;

/// How long after such lookups listings show all attributes. A walk through a large tree tells
/// again by one directory in this time.
const DEMAND_LIFETIME: Duration = Duration::from_secs(10);

/// Lookups in a directory count for this long after it was listed.
const COUNT_LIFETIME: Duration = Duration::from_secs(10);

/// The replies of one listing follow one another within this time. Later ones are another listing,
/// which is counted from the start.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Attributes are in demand if this fraction of the names is looked up: a look at an entry in a
/// listing costs about a tenth of a lookup.
const MIN_LOOKUP_FRACTION: u64 = 4;

/// Fewer lookups say nothing: a process may look for a few names.
const MIN_LOOKUPS: u64 = 8;

/// The directories for which lookups are counted: those that were listed last.
const MAX_COUNTED_DIRS: usize = 16;

/// The demand, as far as the lookups show it.
#[derive(Default)]
pub(super) struct AttributeDemand(Mutex<Demand>);

#[derive(Default)]
struct Demand {
    /// The directories listed last without attributes, in no order.
    dirs: Vec<CountedDir>,
    wanted_until: Option<Instant>,
}

/// A directory that was listed without attributes.
struct CountedDir {
    /// The handle through which it was listed.
    handle: HandleId,
    listed_at: Instant,
    /// Names that were listed without attributes.
    names: u64,
    /// Lookups of names in it.
    lookups: u64,
}

impl CountedDir {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.listed_at) < COUNT_LIFETIME
    }
}

impl AttributeDemand {
    /// Whether listings should show attributes.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.0.lock().wanted_until.is_some_and(|until| now < until)
    }

    /// Records that `names` names were listed without attributes through a handle of a directory.
    pub(super) fn record_listing(&self, handle: HandleId, names: usize, now: Instant) {
        let dirs = &mut self.0.lock().dirs;
        let names = names as u64;
        let new = CountedDir { handle, listed_at: now, names, lookups: 0 };
        match dirs.iter_mut().find(|counted| counted.handle.ino == handle.ino) {
            Some(counted) if now.saturating_duration_since(counted.listed_at) >= MAX_PAUSE => {
                *counted = new;
            }
            Some(counted) if counted.handle == handle => {
                counted.names += names;
                counted.listed_at = now;
            }
            // A name that several processes list is looked up once.
            Some(_) => {}
            None => {
                if dirs.len() == MAX_COUNTED_DIRS {
                    let listed_at = |i: &usize| dirs[*i].listed_at;
                    let oldest = (0..dirs.len()).min_by_key(listed_at).unwrap_or_default();
                    dirs.swap_remove(oldest);
                }
                dirs.push(new);
            }
        }
    }

    /// Records that a name in `dir` was looked up and found.
    pub(super) fn record_lookup(&self, dir: Ino, now: Instant) {
        let demand = &mut *self.0.lock();
        let counted = demand.dirs.iter_mut().find(|counted| counted.handle.ino == dir);
        let Some(counted) = counted.filter(|counted| counted.is_recent(now)) else { return };
        counted.lookups += 1;
        if counted.lookups >= MIN_LOOKUPS.max(counted.names.div_ceil(MIN_LOOKUP_FRACTION)) {
            demand.wanted_until = Some(now + DEMAND_LIFETIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);
    const HANDLE: HandleId = HandleId { number: 1, ino: DIR };

    /// Whether attributes are in demand after a listing of `names` names and that many lookups.
    fn is_wanted_after(names: usize, lookups: u64) -> bool {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        demand.record_listing(HANDLE, names / 2, now);
        demand.record_listing(HANDLE, names - names / 2, now);
        assert!(!demand.is_wanted(now), "a listing alone is no demand");
        (0..lookups).for_each(|_| demand.record_lookup(DIR, now));
        demand.is_wanted(now)
    }

    #[test]
    fn attributes_are_wanted_after_a_quarter_of_the_names_was_looked_up() {
        assert!(!is_wanted_after(1000, 249));
        assert!(is_wanted_after(1000, 250));
        assert!(!is_wanted_after(8, 7));
        assert!(is_wanted_after(8, 8));
    }

    #[test]
    fn lookups_elsewhere_or_much_later_are_no_demand() {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        demand.record_listing(HANDLE, 8, now);
        (0..100).for_each(|_| demand.record_lookup(Ino(8), now));
        assert!(!demand.is_wanted(now));
        (0..100).for_each(|_| demand.record_lookup(DIR, now + COUNT_LIFETIME));
        assert!(!demand.is_wanted(now + COUNT_LIFETIME));
    }

    #[test]
    fn the_demand_ends_and_begins_again() {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        demand.record_listing(HANDLE, 8, now);
        (0..8).for_each(|_| demand.record_lookup(DIR, now));
        assert!(demand.is_wanted(now + DEMAND_LIFETIME / 2));
        let later = now + DEMAND_LIFETIME;
        assert!(!demand.is_wanted(later));
        // Old lookups of the directory do not count for its next listing.
        demand.record_listing(HANDLE, 8, later);
        (0..7).for_each(|_| demand.record_lookup(DIR, later));
        assert!(!demand.is_wanted(later));
        demand.record_lookup(DIR, later);
        assert!(demand.is_wanted(later));
    }

    #[test]
    fn each_listing_is_counted_from_its_start() {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        for second in 0..100 {
            demand.record_listing(HANDLE, 1000, now + Duration::from_secs(second));
        }
        let later = now + Duration::from_secs(100);
        (0..249).for_each(|_| demand.record_lookup(DIR, later));
        assert!(!demand.is_wanted(later));
        demand.record_lookup(DIR, later);
        assert!(demand.is_wanted(later));
    }

    #[test]
    fn several_processes_that_list_a_directory_are_one_demand() {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        for number in 0..8 {
            demand.record_listing(HandleId { number, ino: DIR }, 1000, now);
        }
        (0..250).for_each(|_| demand.record_lookup(DIR, now));
        assert!(demand.is_wanted(now));
    }

    #[test]
    fn the_directories_listed_last_are_counted() {
        let (demand, now) = (AttributeDemand::default(), Instant::now());
        for i in 0..1000 {
            demand.record_listing(
                HandleId { number: i, ino: Ino(100 + i) },
                8,
                now + Duration::from_millis(i),
            );
        }
        assert_eq!(demand.0.lock().dirs.len(), MAX_COUNTED_DIRS);
        let now = now + Duration::from_secs(1);
        (0..8).for_each(|_| demand.record_lookup(Ino(100), now));
        assert!(!demand.is_wanted(now));
        (0..8).for_each(|_| demand.record_lookup(Ino(1099), now));
        assert!(demand.is_wanted(now));
    }
}
