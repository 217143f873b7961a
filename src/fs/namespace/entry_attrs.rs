//! The attributes of many entries of one directory.
//!
//! A quick replica looks at all of them in one call. If a look takes long, as it does over a
//! network, the entries are divided into parts, which several replicas and several threads of each
//! look at side by side. Then each entry is looked at by the replica that its own path prefers, so
//! that a later open finds it in the cache of that replica's mount.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::Namespace;
use crate::backend::{Attr, Backend, BackendError, PathKey, RequestContext, Result};
use crate::fs::error::FsResult;
use crate::fs::ino::Ino;
use crate::replicas::metadata_client::{CallTarget, RunAs};
use crate::replicas::metadata_order::{path_turn, smoothed_latency};
use crate::volume::{ReplicaId, VolumeMode};

/// Entries whose attributes are needed for a listing.
pub(super) struct EntryNames {
    pub(super) dir: Ino,
    pub(super) names: Vec<OsString>,
    /// The process that lists the directory, and when it asked.
    pub(super) caller: RequestContext,
    pub(super) since: Instant,
}

/// The attributes of an entry, as one replica showed them.
#[derive(Clone, Copy)]
pub struct EntryAttr {
    pub(super) replica: ReplicaId,
    /// The number of changes before the replica was asked.
    pub(super) change_seq: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// The attributes of an entry, or the reason why the replica could not look at it.
pub(super) type AttrAnswer = Result<EntryAttr>;

/// Positions of entries that one call looks at.
type Part = Vec<usize>;

/// One call looks at all entries if a look takes at most this long.
const QUICK_LOOK: Duration = Duration::from_micros(20);

/// How long the call for one part of slow looks should take.
const PART_TIME: Duration = Duration::from_millis(2);

/// A part has this many entries at least: a call is not free either.
const MIN_PART: usize = 4;

/// The smoothed time of a look at one entry, nanoseconds; 0 if unknown.
#[derive(Default)]
pub(super) struct LookTime(AtomicU64);

impl LookTime {
    fn record(&self, time: Duration, entries: usize) {
        let sample = time.as_nanos() as u64 / entries.max(1) as u64;
        let mean = self.0.load(Ordering::Relaxed);
        // A lost update loses only one sample.
        self.0.store(smoothed_latency(mean, sample), Ordering::Relaxed);
    }

    /// The most entries of one part.
    fn max_part(&self) -> usize {
        let look = self.0.load(Ordering::Relaxed);
        if look <= QUICK_LOOK.as_nanos() as u64 {
            return usize::MAX;
        }
        (PART_TIME.as_nanos() as usize / look as usize).max(MIN_PART)
    }
}

/// The attributes, if the replica could show those of at least one entry. Otherwise an error, so
/// that another replica is asked.
fn attrs_or_failover(attrs: Vec<Result<Attr>>) -> Result<Vec<Result<Attr>>> {
    let says = |attr: &Result<Attr>| attr.as_ref().err().is_none_or(|error| error.is_definite());
    match attrs.iter().find_map(|attr| attr.err()) {
        Some(error) if !attrs.iter().any(says) => Err(error),
        _ => Ok(attrs),
    }
}

/// Whether a directory is listed by names only, after looking up its entries failed with this
/// error.
fn can_list_names_only(error: BackendError) -> bool {
    !error.is_definite() || error == BackendError::Os(rustix::io::Errno::ACCESS)
}

/// Divides the positions of `turns` into parts of at most `max_part`, each with the same turn.
fn divide(turns: &[usize], max_part: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    // The part of each turn that is not full.
    let mut open: Vec<Option<usize>> = Vec::new();
    for (position, turn) in turns.iter().enumerate() {
        if open.len() <= *turn {
            open.resize(*turn + 1, None);
        }
        let part = *open[*turn].get_or_insert_with(|| {
            parts.push(Part::new());
            parts.len() - 1
        });
        parts[part].push(position);
        if parts[part].len() >= max_part {
            open[*turn] = None;
        }
    }
    parts
}

impl Namespace {
    /// The attributes of the entries, in their order.
    pub(super) async fn entry_attrs(&self, entries: &EntryNames) -> FsResult<Vec<AttrAnswer>> {
        let path = self.tables.path(entries.dir)?;
        let target = self.calls.target_of_listing(&path).requested_at(entries.since).long();
        let parts = self.parts(&path, &entries.names);
        let looks = parts.iter().map(|part| self.look_at_part(entries, &path, target, part));
        let answers = try_join_all(looks).await?;
        let mut in_order: Vec<Option<AttrAnswer>> = vec![None; entries.names.len()];
        for (position, answer) in parts.iter().flatten().zip(answers.into_iter().flatten()) {
            in_order[*position] = Some(answer);
        }
        let missing = Err(BackendError::Os(rustix::io::Errno::IO));
        Ok(in_order.into_iter().map(|answer| answer.unwrap_or(missing)).collect())
    }

    /// Divides the entries of the directory `path` into the parts that one call looks at.
    fn parts(&self, path: &Path, names: &[OsString]) -> Vec<Part> {
        let max_part = self.look_time.max_part();
        if names.len() <= max_part {
            return vec![(0..names.len()).collect()];
        }
        let replicas = match self.tables.policy.mode {
            VolumeMode::Shared => self.calls.replicas.len(),
            // The first replica decides how the tree looks.
            VolumeMode::Copies => 1,
        };
        let turn =
            |name: &OsString| path_turn(PathKey::from_path(&path.join(name)).hash(), replicas);
        divide(&names.iter().map(turn).collect::<Vec<_>>(), max_part)
    }

    async fn look_at_part(
        &self,
        entries: &EntryNames,
        path: &Path,
        target: CallTarget,
        part: &[usize],
    ) -> FsResult<Vec<AttrAnswer>> {
        let names: Vec<OsString> = part.iter().map(|at| entries.names[*at].clone()).collect();
        let looks = names.len();
        let target = match names.first() {
            Some(first) if looks < entries.names.len() => target.spread_like(&path.join(first)),
            _ => target,
        };
        let change_seq = self.tables.change_seq();
        let stat = {
            let dir = self.tables.dir_ref(entries.dir, path.to_owned());
            move |replica: ReplicaId, backend: &dyn Backend| {
                attrs_or_failover(backend.stat_entries(&dir.target_on(replica), &names)?)
            }
        };
        let begun = Instant::now();
        let rights = RunAs::DaemonThenCaller(entries.caller);
        match self.calls.client.call(target, rights, stat).await {
            Ok((replica, attrs)) => {
                self.look_time.record(begun.elapsed(), looks);
                let attrs = attrs.into_iter();
                Ok(attrs.map(|attr| Ok(EntryAttr { replica, change_seq, attr: attr? })).collect())
            }
            // The directory was listed, so its names are known.
            Err(error) if can_list_names_only(error) => Ok(vec![Err(error); looks]),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_one_part_of_its_turn() {
        let turns: Vec<usize> = (0..100).map(|i| i * i % 7 % 3).collect();
        for max_part in [1, 4, 1000] {
            let parts = divide(&turns, max_part);
            let mut seen: Vec<usize> = parts.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
            for part in &parts {
                assert!((1..=max_part).contains(&part.len()), "{part:?}");
                assert!(part.iter().all(|at| turns[*at] == turns[part[0]]), "{part:?}");
            }
            let full = parts.iter().filter(|part| part.len() == max_part).count();
            assert!(parts.len() - full <= 3, "at most one part of a turn is not full");
        }
    }

    #[test]
    fn slow_looks_are_divided_into_short_calls() {
        let time = LookTime::default();
        assert_eq!(time.max_part(), usize::MAX, "nothing is known");
        time.record(Duration::from_micros(200), 200);
        assert_eq!(time.max_part(), usize::MAX);
        (0..50).for_each(|_| time.record(Duration::from_millis(20), 100));
        assert_eq!(time.max_part(), 10);
        (0..50).for_each(|_| time.record(Duration::from_secs(1), 100));
        assert_eq!(time.max_part(), MIN_PART);
        time.record(Duration::from_micros(200), 200);
        assert_eq!(time.max_part(), usize::MAX, "the next quick call tells");
    }
}
