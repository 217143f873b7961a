//! What can be told without reading contents: who has an object, and with which
//! attributes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;

use super::diff_ranges::group_by_value;
use super::difference::{Difference, DifferenceKind, EscapedPath, ReplicaGroup};
use super::replica_calls::{CallError, ReplicaCalls};
use crate::backend::{
    Attr, Backend, BackendError, FileKind, Lane, ObjectRef, Result as BackendResult, Timestamp,
};
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};

/// An object on one replica.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplicaView {
    /// It is there.
    Present(Box<ObjectAttrs>),
    /// It is not.
    Missing,
    /// That is not known.
    Unknown(CallError),
}

/// What is compared of an object besides its content.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObjectAttrs {
    pub(super) attr: Attr,
    /// A symbolic link's target.
    pub(super) target: Option<OsString>,
    /// `user.*`, where they are compared, by name.
    pub(super) xattrs: Vec<(OsString, Vec<u8>)>,
}

/// An object on all replicas that are compared.
pub(super) type ObjectView = Vec<(ReplicaId, ReplicaView)>;

/// What decides which attributes count.
#[derive(Clone, Debug)]
pub(super) struct CompareRules {
    pub(super) mode: VolumeMode,
    pub(super) ignore: Vec<DifferenceKind>,
    pub(super) xattrs: bool,
}

/// The replicas on which it is there, with its attributes.
pub(super) fn present_replicas(
    look: &ObjectView,
) -> impl Iterator<Item = (ReplicaId, &ObjectAttrs)> {
    look.iter().filter_map(|(id, seen)| match seen {
        ReplicaView::Present(object) => Some((*id, &**object)),
        _ => None,
    })
}

/// From what a call says of an object.
pub(super) fn to_replica_view(answer: Result<ObjectAttrs, CallError>) -> ReplicaView {
    match answer {
        Ok(object) => ReplicaView::Present(Box::new(object)),
        Err(CallError::Failed(BackendError::Os(Errno::NOENT | Errno::STALE))) => {
            ReplicaView::Missing
        }
        Err(miss) => ReplicaView::Unknown(miss),
    }
}

/// Completes an object whose attributes are known.
pub(super) fn complete_attrs(
    backend: &dyn Backend,
    path: &Path,
    attr: Attr,
    xattrs: bool,
) -> BackendResult<ObjectAttrs> {
    let is_link = attr.kind == FileKind::Symlink;
    let target = if is_link { Some(backend.read_link(&ObjectRef::unchecked(path))?) } else { None };
    let xattrs = if xattrs { user_xattrs(backend, path)? } else { Vec::new() };
    Ok(ObjectAttrs { attr, target, xattrs })
}

fn user_xattrs(backend: &dyn Backend, path: &Path) -> BackendResult<Vec<(OsString, Vec<u8>)>> {
    use std::os::unix::ffi::OsStringExt;
    let names = match backend.list_xattr(&ObjectRef::unchecked(path)) {
        // A file system that has none.
        Err(BackendError::Os(Errno::OPNOTSUPP)) => Vec::new(),
        names => names?,
    };
    let names = names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found = Vec::new();
    for name in names {
        let name = OsString::from_vec(name.to_vec());
        let value = backend.get_xattr(&ObjectRef::unchecked(path), &name)?;
        found.push((name, value));
    }
    found.sort();
    Ok(found)
}

/// Looks at an object on each of `whom`, as freshly as that is possible.
pub(super) fn view_uncached(
    peers: &ReplicaCalls,
    path: &Path,
    whom: ReplicaSet,
    rules: &CompareRules,
) -> ObjectView {
    let job = |_: ReplicaId| {
        let (path, xattrs) = (path.to_owned(), rules.xattrs);
        move |backend: &dyn Backend| {
            // An NFS mount asks its server what names there are; and for the file's
            // attributes when that is opened.
            let dir: PathBuf = path.parent().unwrap_or(Path::new("")).to_owned();
            let _ = backend.revalidate_dir(&ObjectRef::unchecked(dir));
            let mut attr = backend.stat(&path)?;
            if attr.kind == FileKind::Regular
                && let Ok((_file, fresh)) = backend.open(&path)
            {
                attr = fresh;
            }
            complete_attrs(backend, &path, attr, xattrs)
        }
    };
    let answers = peers.call_all(whom, Lane::Metadata, job);
    answers.into_iter().map(|(id, answer)| (id, to_replica_view(answer))).collect()
}

/// Whether some replica showed another object, or another version of it, in the
/// first look than in the second.
pub(super) fn has_changed_between(first: &ObjectView, second: &ObjectView) -> bool {
    let state = |seen: &ReplicaView| match seen {
        ReplicaView::Present(object) => Some((object.attr.kind, object.attr.version())),
        _ => None,
    };
    second.iter().any(|(id, now)| {
        let before = first.iter().find(|(known, _)| known == id);
        before.is_some_and(|(_, before)| state(before) != state(now))
    })
}

/// In what the replicas' objects differ, contents apart.
pub(super) fn attribute_differences(
    peers: &ReplicaCalls,
    path: &Path,
    look: &ObjectView,
    rules: &CompareRules,
) -> Vec<Difference> {
    let judge = AttributeComparison { peers, path, rules };
    let present = look.iter().filter(|(_, seen)| !matches!(seen, ReplicaView::Unknown(_)));
    let present = present.map(|(id, seen)| (*id, matches!(seen, ReplicaView::Present(_))));
    let word = |there: &bool| if *there { "present" } else { "missing" }.to_owned();
    let mut found: Vec<Difference> =
        judge.compare(DifferenceKind::Missing, present, |a, b| a == b, word).into_iter().collect();
    let attrs = || present_replicas(look).map(|(id, object)| (id, object.attr));
    let kinds = attrs().map(|(id, attr)| (id, attr.kind));
    let other_type =
        judge.compare(DifferenceKind::Type, kinds, |a, b| a == b, |kind| type_name(*kind).into());
    if let Some(other_type) = other_type {
        // What else they differ in says nothing any more.
        found.push(other_type);
        return found;
    }
    let Some((_, one)) = attrs().next() else { return found };
    let numbers = |number: fn(&Attr) -> u64| attrs().map(move |(id, attr)| (id, number(&attr)));
    let plain = u64::to_string;
    let times = |time: fn(&Attr) -> Timestamp| attrs().map(move |(id, attr)| (id, time(&attr)));
    let is_shared = rules.mode == VolumeMode::Shared;
    if one.kind == FileKind::Regular {
        found.extend(judge.compare(
            DifferenceKind::Size,
            numbers(|a| a.size),
            |a, b| a == b,
            plain,
        ));
        let same_time = |a: &Timestamp, b: &Timestamp| is_same_time(*a, *b, rules.mode);
        let mtimes = times(|attr| attr.mtime);
        found.extend(
            judge.compare(DifferenceKind::Mtime, mtimes, same_time, |time| format_time(*time)),
        );
        if is_shared {
            let ctimes = times(|attr| attr.ctime);
            found.extend(
                judge.compare(DifferenceKind::Ctime, ctimes, same_time, |time| format_time(*time)),
            );
        }
    }
    if is_shared {
        found.extend(judge.compare(
            DifferenceKind::Inode,
            numbers(|a| a.id.ino),
            |a, b| a == b,
            plain,
        ));
    }
    if matches!(one.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let devices = attrs().map(|(id, attr)| (id, attr.rdev));
        let shown = |(major, minor): &(u32, u32)| format!("{major}:{minor}");
        found.extend(judge.compare(DifferenceKind::Device, devices, |a, b| a == b, shown));
    }
    let targets =
        present_replicas(look).filter_map(|(id, object)| Some((id, object.target.clone()?)));
    let shown = |target: &OsString| EscapedPath(Path::new(target)).to_string();
    found.extend(judge.compare(DifferenceKind::Target, targets, |a, b| a == b, shown));
    // A symbolic link's mode means nothing.
    if one.kind != FileKind::Symlink {
        let modes = attrs().map(|(id, attr)| (id, attr.perm));
        found.extend(judge.compare(
            DifferenceKind::Mode,
            modes,
            |a, b| a == b,
            |perm| format!("{perm:04o}"),
        ));
    }
    let owners = attrs().map(|(id, attr)| (id, (attr.uid, attr.gid)));
    let shown = |(uid, gid): &(u32, u32)| format!("{uid}:{gid}");
    found.extend(judge.compare(DifferenceKind::Owner, owners, |a, b| a == b, shown));
    let xattrs = present_replicas(look).map(|(id, object)| (id, &object.xattrs));
    found.extend(judge.compare(
        DifferenceKind::Xattr,
        xattrs,
        |a, b| a == b,
        |all| format_xattrs(all),
    ));
    found
}

struct AttributeComparison<'a> {
    peers: &'a ReplicaCalls,
    path: &'a Path,
    rules: &'a CompareRules,
}

impl AttributeComparison<'_> {
    fn compare<T>(
        &self,
        kind: DifferenceKind,
        values: impl Iterator<Item = (ReplicaId, T)>,
        alike: impl Fn(&T, &T) -> bool,
        shown: impl Fn(&T) -> String,
    ) -> Option<Difference> {
        if self.rules.ignore.contains(&kind) {
            return None;
        }
        let groups = group_by_value(values, alike);
        let named = |(set, value): &(ReplicaSet, T)| ReplicaGroup {
            replicas: self.peers.names(*set),
            value: shown(value),
        };
        (groups.len() > 1).then(|| Difference {
            path: self.path.to_owned(),
            kind,
            groups: groups.iter().map(named).collect(),
            content: Default::default(),
        })
    }
}

/// As [`crate::volume::FileVersion::is_same_version`] compares times.
fn is_same_time(a: Timestamp, b: Timestamp, mode: VolumeMode) -> bool {
    let whole_seconds = mode == VolumeMode::Copies && (a.1 == 0 || b.1 == 0);
    a.0 == b.0 && (whole_seconds || a.1 == b.1)
}

fn format_time((seconds, nanos): Timestamp) -> String {
    match u64::try_from(seconds) {
        Ok(seconds) => {
            let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
            // Later than the year 9999 is no date.
            match time.filter(|_| seconds < 253_402_300_800) {
                Some(time) => humantime::format_rfc3339_nanos(time).to_string(),
                None => format!("{seconds} s"),
            }
        }
        Err(_) => format!("{seconds} s"),
    }
}

fn format_xattrs(xattrs: &[(OsString, Vec<u8>)]) -> String {
    let one = |(name, value): &(OsString, Vec<u8>)| {
        format!("{} ({} bytes)", EscapedPath(Path::new(name)), value.len())
    };
    let all: Vec<String> = xattrs.iter().map(one).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

fn type_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_the_volume_does() {
        assert!(is_same_time((7, 0), (7, 5), VolumeMode::Copies));
        assert!(!is_same_time((7, 4), (7, 5), VolumeMode::Copies));
        assert!(!is_same_time((7, 0), (7, 5), VolumeMode::Shared));
        assert!(!is_same_time((7, 0), (8, 0), VolumeMode::Copies));
    }

    #[test]
    fn times_are_shown_whatever_they_are() {
        assert_eq!(format_time((1, 5)), "1970-01-01T00:00:01.000000005Z");
        assert_eq!(format_time((-1, 5)), "-1 s");
        assert_eq!(format_time((i64::MAX, 5)), format!("{} s", i64::MAX));
    }
}
