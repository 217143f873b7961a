//! One object on all replicas: what a worker does with it.
//!
//! What differs at first is looked at a second time, more freshly, before anything
//! is said about it: one of two looks may have been before a change and the other
//! after it. A file that changes while it is compared is compared once more, and
//! then given up.

use std::path::Path;

use super::Shared;
use super::attributes::{self, Look, Object, Seen, here, look_again, seen};
use super::contents::{Compared, File, Progress};
use super::difference::{Difference, Kind, NotCompared};
use super::ledger::Earlier;
use super::narrow::group;
use super::peers::{Miss, Peers};
use super::state::Found;
use super::walk::{Batch, Entry};
use crate::backend::{Backend, BackendError, FileKind, Lane, Result as BackendResult, Target};
use crate::volume::{FileVersion, ReplicaId, ReplicaSet};

/// Compares a batch's entries, one after the other.
pub(super) fn batch(shared: &Shared, batch: &Batch) -> Result<(), Miss> {
    let mut looks = first_looks(shared, batch)?;
    for (entry, look) in batch.entries.iter().zip(&mut looks) {
        let path = batch.dir.join(&entry.name);
        let earlier = match shared.ledger.earlier(entry.number) {
            Earlier::All => continue,
            Earlier::Part(progress) => Some(progress),
            Earlier::Nothing => None,
        };
        let report = |progress: &Progress| shared.ledger.progress(entry.number, progress);
        let look = std::mem::take(look);
        let found = object(shared, &path, look, earlier, report)?;
        shared.ledger.done(entry.number, found);
    }
    Ok(())
}

/// What the replicas show of a batch's entries.
fn first_looks(shared: &Shared, batch: &Batch) -> Result<Vec<Look>, Miss> {
    let mut looks: Vec<Look> = batch.entries.iter().map(|_| Vec::new()).collect();
    let ask = |id: ReplicaId| {
        let is_listed = |entry: &&Entry| entry.listed.contains(id);
        let names: Vec<_> =
            batch.entries.iter().filter(is_listed).map(|entry| entry.name.clone()).collect();
        let (dir, xattrs) = (batch.dir.clone(), shared.rules.xattrs);
        let look = move |backend: &dyn Backend| -> BackendResult<Vec<BackendResult<Object>>> {
            let attrs = match backend.stat_entries(&Target::named(&*dir), &names) {
                // One of them may be to blame, and not the directory.
                Err(_) => names.iter().map(|name| backend.stat(&dir.join(name))).collect(),
                Ok(attrs) => attrs,
            };
            let complete = |(attr, name)| -> BackendResult<Object> {
                attributes::complete(backend, &dir.join(name), attr?, xattrs)
            };
            Ok(attrs.into_iter().zip(&names).map(complete).collect())
        };
        (id, shared.peers.ask(id, Lane::Metadata, look))
    };
    let asked: Vec<_> = batch.among.iter().map(ask).collect();
    for (id, pending) in asked {
        let mut objects = match shared.peers.answer(pending, None) {
            Err(Miss::Stopped) => return Err(Miss::Stopped),
            Err(miss) => Err(miss),
            Ok(objects) => Ok(objects.into_iter()),
        };
        for (entry, look) in batch.entries.iter().zip(&mut looks) {
            let seen = match &mut objects {
                Err(miss) => Seen::Unknown(*miss),
                Ok(_) if !entry.listed.contains(id) => Seen::Gone,
                Ok(objects) => {
                    let object = objects.next().unwrap_or(Err(BackendError::Busy));
                    seen(object.map_err(Miss::Failed))
                }
            };
            look.push((id, seen));
        }
    }
    Ok(looks)
}

/// Compares an object on all replicas of `first`, which is what they showed.
pub(super) fn object(
    shared: &Shared,
    path: &Path,
    first: Look,
    mut earlier: Option<Progress>,
    mut report: impl FnMut(&Progress),
) -> Result<Found, Miss> {
    let mut look = first;
    let mut is_second = false;
    loop {
        let differences = attributes::differences(&shared.peers, path, &look, &shared.rules);
        let mut is_settled = differences.is_empty() || is_second;
        if is_settled {
            let Some(file) = file(path, &look) else {
                return Ok(summary(shared, path, &look, differences));
            };
            let compared = file.compare(&shared.peers, shared.how, earlier.take(), &mut report)?;
            match compared {
                Compared::Done { progress, failed } if is_second || !has_ended_early(&failed) => {
                    let mut found = summary(shared, path, &look, differences);
                    add_content(shared, &file, progress, failed, &mut found);
                    return Ok(found);
                }
                Compared::Changed if is_second => return Ok(changed(shared, path, &look)),
                // Attributes may have been older than the file.
                Compared::Done { .. } | Compared::Changed => is_settled = false,
            }
        }
        if !is_settled {
            let fresh = second_look(shared, path, &look)?;
            let still = attributes::differences(&shared.peers, path, &fresh, &shared.rules);
            if !still.is_empty() && attributes::has_moved(&look, &fresh) {
                return Ok(changed(shared, path, &fresh));
            }
            (look, is_second) = (fresh, true);
        }
    }
}

/// Looks again at an object where that was possible before.
fn second_look(shared: &Shared, path: &Path, first: &Look) -> Result<Look, Miss> {
    let is_unknown = |seen: &Seen| matches!(seen, Seen::Unknown(_));
    let known = first.iter().filter(|(_, seen)| !is_unknown(seen));
    let known = known.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
    let mut fresh = look_again(&shared.peers, path, known, &shared.rules);
    if fresh.iter().any(|(_, seen)| *seen == Seen::Unknown(Miss::Stopped)) {
        return Err(Miss::Stopped);
    }
    fresh.extend(first.iter().filter(|(_, seen)| is_unknown(seen)).cloned());
    fresh.sort_by_key(|(id, _)| *id);
    Ok(fresh)
}

/// The file whose contents are to be compared: on the most replicas that show the
/// same size.
fn file<'a>(path: &'a Path, look: &Look) -> Option<File<'a>> {
    let files = here(look).filter(|(_, object)| object.attr.kind == FileKind::Regular);
    let files = files.map(|(id, object)| (id, object.attr.version()));
    let files: Vec<(ReplicaId, FileVersion)> = files.collect();
    let sizes = group(files.iter().map(|(id, version)| (*id, version.size)), |a, b| a == b);
    let (whom, size) = sizes.into_iter().next().filter(|(whom, _)| whom.len() > 1)?;
    let versions = files.into_iter().filter(|(id, _)| whom.contains(*id)).collect();
    Some(File { path, size, versions })
}

fn has_ended_early(failed: &[(ReplicaId, Miss)]) -> bool {
    failed.iter().any(|(_, miss)| *miss == Miss::Failed(BackendError::Short))
}

/// What was found, contents apart.
fn summary(shared: &Shared, path: &Path, look: &Look, differences: Vec<Difference>) -> Found {
    let mut found = Found::default();
    found.totals.objects = u64::from(here(look).next().is_some());
    found.totals.differences = differences.len() as u64;
    found.differences = differences;
    let misses = look.iter().filter_map(|(id, seen)| match seen {
        Seen::Unknown(miss) => Some((*id, *miss)),
        _ => None,
    });
    note_misses(&shared.peers, path, misses.collect(), &mut found);
    found
}

fn add_content(
    shared: &Shared,
    file: &File<'_>,
    progress: Progress,
    failed: Vec<(ReplicaId, Miss)>,
    found: &mut Found,
) {
    found.totals.files = 1;
    found.totals.bytes = progress.bytes;
    found.totals.bytes_read = progress.bytes_read;
    if !progress.content.is_empty() {
        found.totals.differences += 1;
        found.differences.push(Difference {
            path: file.path.to_owned(),
            kind: Kind::Content,
            groups: Vec::new(),
            content: progress.content,
        });
    }
    if progress.unsteady > 0 {
        let whom = file.versions.iter().map(|(id, _)| *id);
        let why = format!(
            "{} blocks differed when they were read first, and not when they were read again",
            progress.unsteady
        );
        not_compared(&shared.peers, file.path, whom, &why, found);
    }
    note_misses(&shared.peers, file.path, failed, found);
}

fn changed(shared: &Shared, path: &Path, look: &Look) -> Found {
    let mut found = Found::default();
    found.totals.objects = 1;
    let whom = look.iter().map(|(id, _)| *id);
    not_compared(&shared.peers, path, whom, "changed while it was compared", &mut found);
    found
}

fn not_compared(
    peers: &Peers,
    path: &Path,
    whom: impl Iterator<Item = ReplicaId>,
    why: &str,
    found: &mut Found,
) {
    let replicas = whom.map(|id| peers.name(id).to_owned()).collect();
    found.totals.not_compared += 1;
    found.not_compared.push(NotCompared { path: path.to_owned(), replicas, why: why.to_owned() });
}

/// Notes what an object could not be asked for. Of a replica that does not answer
/// at all each object would say the same: those are counted.
pub(super) fn note_misses(
    peers: &Peers,
    path: &Path,
    misses: Vec<(ReplicaId, Miss)>,
    found: &mut Found,
) {
    found.absent.resize(peers.len(), 0);
    for (whom, miss) in group(misses, |a, b| a == b) {
        if miss == Miss::Absent {
            found.totals.not_compared += 1;
            whom.iter().for_each(|id| found.absent[id.index()] += 1);
        } else {
            not_compared(peers, path, whom.iter(), &miss.to_string(), found);
        }
    }
}
