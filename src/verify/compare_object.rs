//! Compares one object on all replicas; runs on a worker.
//!
//! If the first view shows a difference, the object is examined again, past caches, before anything
//! is reported: a change may have happened between two calls of the first view. A file that changes
//! during the comparison is compared once more, and then reported as not compared.

use std::path::Path;

use super::RunShared;
use super::attributes::{
    self, ObjectAttrs, ObjectView, ReplicaView, present_replicas, to_replica_view, view_uncached,
};
use super::checkpoint::VerifyFindings;
use super::contents::{ComparedFile, ContentOutcome, FileProgress};
use super::diff_ranges::{ValueGroup, group_by_value};
use super::difference::{Difference, DifferenceKind, NotCompared};
use super::entry_batch::{BatchEntry, EntryBatch};
use super::progress::ResumePoint;
use super::replica_calls::{CallError, FailedCall, ReplicaCalls};
use crate::backend::{Backend, BackendError, FileKind, Lane, ObjectRef, Result as BackendResult};
use crate::volume::{FileVersion, ReplicaId, ReplicaSet};

/// Compares a batch's entries one after another.
pub(super) fn compare_batch(shared: &RunShared, batch: &EntryBatch) -> Result<(), CallError> {
    let mut looks = view_entries(shared, batch)?;
    for (entry, look) in batch.entries.iter().zip(&mut looks) {
        let path = batch.dir.join(&entry.name);
        let earlier = match shared.progress.resume_point(entry.number) {
            ResumePoint::Complete => continue,
            ResumePoint::Partial(progress) => Some(progress),
            ResumePoint::NotStarted => None,
        };
        let report =
            |progress: &FileProgress| shared.progress.set_file_progress(entry.number, progress);
        let look = std::mem::take(look);
        let found = compare_object(shared, &path, look, earlier, report)?;
        shared.progress.finish_object(entry.number, found);
    }
    Ok(())
}

/// The replicas' views of a batch's entries.
fn view_entries(shared: &RunShared, batch: &EntryBatch) -> Result<Vec<ObjectView>, CallError> {
    let mut looks: Vec<ObjectView> = batch.entries.iter().map(|_| Vec::new()).collect();
    let ask = |id: ReplicaId| {
        let is_listed = |entry: &&BatchEntry| entry.listed_on.contains(id);
        let names: Vec<_> =
            batch.entries.iter().filter(is_listed).map(|entry| entry.name.clone()).collect();
        let dir = batch.dir.clone();
        let xattrs = shared.rules.xattrs;
        let look = move |backend: &dyn Backend| -> BackendResult<Vec<BackendResult<ObjectAttrs>>> {
            let attrs = match backend.stat_entries(&ObjectRef::unchecked(&*dir), &names) {
                // A single entry may be at fault, not the directory.
                Err(_) => names.iter().map(|name| backend.stat(&dir.join(name))).collect(),
                Ok(attrs) => attrs,
            };
            let complete = |(attr, name)| -> BackendResult<ObjectAttrs> {
                attributes::complete_attrs(backend, &dir.join(name), attr?, xattrs)
            };
            Ok(attrs.into_iter().zip(&names).map(complete).collect())
        };
        (id, shared.replicas.start_call(id, Lane::Metadata, look))
    };
    let asked: Vec<_> = batch.compared_on.iter().map(ask).collect();
    for (id, pending) in asked {
        let mut objects = match shared.replicas.wait_for(pending, None) {
            Err(CallError::Stopped) => return Err(CallError::Stopped),
            Err(error) => Err(error),
            Ok(objects) => Ok(objects.into_iter()),
        };
        for (entry, look) in batch.entries.iter().zip(&mut looks) {
            let seen = match &mut objects {
                Err(error) => ReplicaView::Unknown(*error),
                Ok(_) if !entry.listed_on.contains(id) => ReplicaView::Missing,
                Ok(objects) => {
                    let object = objects.next().unwrap_or(Err(BackendError::QueueFull));
                    to_replica_view(object.map_err(CallError::Failed))
                }
            };
            look.push((id, seen));
        }
    }
    Ok(looks)
}

/// Compares an object on all replicas in `first`, their first view of it.
pub(super) fn compare_object(
    shared: &RunShared,
    path: &Path,
    first: ObjectView,
    mut earlier: Option<FileProgress>,
    mut report: impl FnMut(&FileProgress),
) -> Result<VerifyFindings, CallError> {
    let mut look = first;
    let mut is_second = false;
    loop {
        let differences =
            attributes::attribute_differences(&shared.replicas, path, &look, &shared.rules);
        let mut is_settled = differences.is_empty() || is_second;
        if is_settled {
            let Some(file) = file_to_compare(path, &look) else {
                return Ok(attribute_findings(shared, path, &look, differences));
            };
            let compared = file.compare(
                &shared.replicas,
                shared.content_options,
                earlier.take(),
                &mut report,
            )?;
            match compared {
                ContentOutcome::Done { progress, failed }
                    if is_second || !is_truncated(&failed) =>
                {
                    let mut found = attribute_findings(shared, path, &look, differences);
                    add_content_findings(shared, &file, progress, failed, &mut found);
                    return Ok(found);
                }
                ContentOutcome::Changed if is_second => {
                    return Ok(changed_findings(shared, path, &look));
                }
                // The attributes may have been older than the file.
                ContentOutcome::Done { .. } | ContentOutcome::Changed => is_settled = false,
            }
        }
        if !is_settled {
            let fresh = view_again(shared, path, &look)?;
            let still =
                attributes::attribute_differences(&shared.replicas, path, &fresh, &shared.rules);
            if !still.is_empty() && attributes::has_changed_between(&look, &fresh) {
                return Ok(changed_findings(shared, path, &fresh));
            }
            look = fresh;
            is_second = true;
        }
    }
}

/// Examines an object again on the replicas where that was possible before.
fn view_again(
    shared: &RunShared,
    path: &Path,
    first: &ObjectView,
) -> Result<ObjectView, CallError> {
    let is_unknown = |seen: &ReplicaView| matches!(seen, ReplicaView::Unknown(_));
    let known = first.iter().filter(|(_, seen)| !is_unknown(seen));
    let known = known.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
    let mut fresh = view_uncached(&shared.replicas, path, known, &shared.rules);
    if fresh.iter().any(|(_, seen)| *seen == ReplicaView::Unknown(CallError::Stopped)) {
        return Err(CallError::Stopped);
    }
    fresh.extend(first.iter().filter(|(_, seen)| is_unknown(seen)).cloned());
    fresh.sort_by_key(|(id, _)| *id);
    Ok(fresh)
}

/// The file whose contents are compared, on the largest group of replicas that show the same size.
fn file_to_compare<'a>(path: &'a Path, look: &ObjectView) -> Option<ComparedFile<'a>> {
    let files = present_replicas(look).filter(|(_, object)| object.attr.kind == FileKind::Regular);
    let files = files.map(|(id, object)| (id, object.attr.version()));
    let files: Vec<(ReplicaId, FileVersion)> = files.collect();
    let sizes =
        group_by_value(files.iter().map(|(id, version)| (*id, version.size)), |a, b| a == b);
    let largest = sizes.into_iter().next().filter(|group| group.replicas.len() > 1)?;
    let versions = files.into_iter().filter(|(id, _)| largest.replicas.contains(*id)).collect();
    Some(ComparedFile { path, size: largest.value, versions })
}

fn is_truncated(failed: &[FailedCall]) -> bool {
    failed.iter().any(|call| call.error == CallError::Failed(BackendError::Truncated))
}

/// The findings, except about contents.
fn attribute_findings(
    shared: &RunShared,
    path: &Path,
    look: &ObjectView,
    differences: Vec<Difference>,
) -> VerifyFindings {
    let mut found = VerifyFindings::default();
    found.totals.objects = u64::from(present_replicas(look).next().is_some());
    found.totals.differences = differences.len() as u64;
    found.differences = differences;
    let failed = look.iter().filter_map(|(id, seen)| match seen {
        ReplicaView::Unknown(error) => Some(FailedCall { replica: *id, error: *error }),
        _ => None,
    });
    add_call_errors(&shared.replicas, path, failed.collect(), &mut found);
    found
}

fn add_content_findings(
    shared: &RunShared,
    file: &ComparedFile<'_>,
    progress: FileProgress,
    failed: Vec<FailedCall>,
    found: &mut VerifyFindings,
) {
    found.totals.files = 1;
    found.totals.bytes = progress.bytes;
    found.totals.bytes_read = progress.bytes_read;
    if !progress.content.is_empty() {
        found.totals.differences += 1;
        found.differences.push(Difference {
            path: file.path.to_owned(),
            kind: DifferenceKind::Content,
            groups: Vec::new(),
            content: progress.content,
        });
    }
    if progress.unsteady > 0 {
        let replicas = file.versions.iter().map(|(id, _)| *id);
        let why = format!(
            "{} blocks differed at first, and were equal when fanfs read them again",
            progress.unsteady
        );
        add_not_compared(&shared.replicas, file.path, replicas, &why, found);
    }
    add_call_errors(&shared.replicas, file.path, failed, found);
}

fn changed_findings(shared: &RunShared, path: &Path, look: &ObjectView) -> VerifyFindings {
    let mut found = VerifyFindings::default();
    found.totals.objects = 1;
    let replicas = look.iter().map(|(id, _)| *id);
    add_not_compared(
        &shared.replicas,
        path,
        replicas,
        "it changed during the comparison",
        &mut found,
    );
    found
}

fn add_not_compared(
    calls: &ReplicaCalls,
    path: &Path,
    replicas: impl Iterator<Item = ReplicaId>,
    why: &str,
    found: &mut VerifyFindings,
) {
    let replicas = replicas.map(|id| calls.name(id).to_owned()).collect();
    found.totals.not_compared += 1;
    found.not_compared.push(NotCompared { path: path.to_owned(), replicas, why: why.to_owned() });
}

/// Records failed calls about an object. For a replica that does not answer at all, the objects are
/// only counted, because the message would be the same for each.
pub(super) fn add_call_errors(
    calls: &ReplicaCalls,
    path: &Path,
    failed: Vec<FailedCall>,
    found: &mut VerifyFindings,
) {
    found.absent.resize(calls.len(), 0);
    let errors = failed.into_iter().map(|call| (call.replica, call.error));
    for ValueGroup { replicas, value: error } in group_by_value(errors, |a, b| a == b) {
        if error == CallError::Absent {
            found.totals.not_compared += 1;
            replicas.iter().for_each(|id| found.absent[id.index()] += 1);
        } else {
            add_not_compared(calls, path, replicas.iter(), &error.to_string(), found);
        }
    }
}
