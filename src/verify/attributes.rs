//! Compares everything except contents: which replicas have an object, and its attributes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;

use super::diff_ranges::{ValueGroup, group_by_value};
use super::difference::{Difference, DifferenceKind, EscapedPath, ReplicaGroup};
use super::replica_calls::{CallError, ReplicaCalls};
use crate::backend::{
    Attr, Backend, BackendError, FileKind, Lane, ObjectRef, Result as BackendResult, Timestamp,
};
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};

/// The view of an object on one replica.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplicaView {
    /// The replica has it.
    Present(Box<ObjectAttrs>),
    /// The replica does not have it.
    Missing,
    /// Whether the replica has it is unknown.
    Unknown(CallError),
}

/// The attributes of an object that are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObjectAttrs {
    pub(super) attr: Attr,
    /// A symbolic link's target.
    pub(super) target: Option<OsString>,
    /// Extended attributes `user.*` by name, if they are compared.
    pub(super) xattrs: Vec<(OsString, Vec<u8>)>,
}

/// The view of an object on all compared replicas.
pub(super) type ObjectView = Vec<(ReplicaId, ReplicaView)>;

/// The rules that decide which attributes are compared.
#[derive(Clone, Debug)]
pub(super) struct CompareRules {
    pub(super) mode: VolumeMode,
    pub(super) ignore: Vec<DifferenceKind>,
    pub(super) xattrs: bool,
}

/// The replicas that have the object, with its attributes.
pub(super) fn present_replicas(
    view: &ObjectView,
) -> impl Iterator<Item = (ReplicaId, &ObjectAttrs)> {
    view.iter().filter_map(|(id, seen)| match seen {
        ReplicaView::Present(object) => Some((*id, &**object)),
        _ => None,
    })
}

/// Converts a call's result to a view.
pub(super) fn to_replica_view(answer: Result<ObjectAttrs, CallError>) -> ReplicaView {
    match answer {
        Ok(object) => ReplicaView::Present(Box::new(object)),
        Err(CallError::Failed(BackendError::Os(Errno::NOENT | Errno::STALE))) => {
            ReplicaView::Missing
        }
        Err(error) => ReplicaView::Unknown(error),
    }
}

/// Adds the link target and extended attributes to known attributes.
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
        // The filesystem has no extended attributes.
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

/// Examines an object on each of `replicas`, past the caches where possible.
pub(super) fn view_uncached(
    calls: &ReplicaCalls,
    path: &Path,
    replicas: ReplicaSet,
    rules: &CompareRules,
) -> ObjectView {
    let job = |_: ReplicaId| {
        let path = path.to_owned();
        let xattrs = rules.xattrs;
        move |backend: &dyn Backend| {
            // This makes an NFS mount revalidate the names with its server. Opening the file below
            // revalidates its attributes.
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
    let answers = calls.call_all(replicas, Lane::Metadata, job).into_iter();
    answers.map(|answer| (answer.replica, to_replica_view(answer.result))).collect()
}

/// Whether some replica shows another object, or another version of it, in the second view.
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

/// The differences between the replicas' objects, except in contents.
pub(super) fn attribute_differences(
    calls: &ReplicaCalls,
    path: &Path,
    view: &ObjectView,
    rules: &CompareRules,
) -> Vec<Difference> {
    let comparison = AttributeComparison { calls, path, view, rules };
    let mut found: Vec<Difference> = comparison.missing().into_iter().collect();
    if let Some(other_type) = comparison.file_type() {
        // For objects of different types, other differences are meaningless.
        found.push(other_type);
        return found;
    }
    let Some((_, first)) = present_replicas(view).next() else { return found };
    let kind = first.attr.kind;
    let is_shared = rules.mode == VolumeMode::Shared;
    if kind == FileKind::Regular {
        found.extend(comparison.attr(DifferenceKind::Size, |attr| attr.size, u64::to_string));
        found.extend(comparison.time(DifferenceKind::Mtime, |attr| attr.mtime));
        if is_shared {
            found.extend(comparison.time(DifferenceKind::Ctime, |attr| attr.ctime));
        }
    }
    if is_shared {
        found.extend(comparison.attr(DifferenceKind::Inode, |attr| attr.id.ino, u64::to_string));
    }
    if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let shown = |(major, minor): &(u32, u32)| format!("{major}:{minor}");
        found.extend(comparison.attr(DifferenceKind::Device, |attr| attr.rdev, shown));
    }
    found.extend(comparison.link_target());
    // The mode of a symbolic link is meaningless.
    if kind != FileKind::Symlink {
        let shown = |perm: &_| format!("{perm:04o}");
        found.extend(comparison.attr(DifferenceKind::Mode, |attr| attr.perm, shown));
    }
    let owner = |attr: &Attr| Owner { uid: attr.uid, gid: attr.gid };
    let shown = |owner: &Owner| format!("{}:{}", owner.uid, owner.gid);
    found.extend(comparison.attr(DifferenceKind::Owner, owner, shown));
    found.extend(comparison.user_xattrs());
    found
}

#[derive(PartialEq)]
struct Owner {
    uid: u32,
    gid: u32,
}

/// Compares one object's attributes on all replicas.
struct AttributeComparison<'a> {
    calls: &'a ReplicaCalls,
    path: &'a Path,
    view: &'a ObjectView,
    rules: &'a CompareRules,
}

impl AttributeComparison<'_> {
    fn missing(&self) -> Option<Difference> {
        let known = self.view.iter().filter(|(_, seen)| !matches!(seen, ReplicaView::Unknown(_)));
        let present = known.map(|(id, seen)| (*id, matches!(seen, ReplicaView::Present(_))));
        let shown = |present: &bool| if *present { "present" } else { "missing" }.to_owned();
        self.compare(DifferenceKind::Missing, present, |a, b| a == b, shown)
    }

    fn file_type(&self) -> Option<Difference> {
        self.attr(DifferenceKind::Type, |attr| attr.kind, |kind| type_name(*kind).to_owned())
    }

    fn link_target(&self) -> Option<Difference> {
        let targets = present_replicas(self.view)
            .filter_map(|(id, object)| Some((id, object.target.clone()?)));
        let shown = |target: &OsString| EscapedPath(Path::new(target)).to_string();
        self.compare(DifferenceKind::Target, targets, |a, b| a == b, shown)
    }

    fn user_xattrs(&self) -> Option<Difference> {
        let xattrs = present_replicas(self.view).map(|(id, object)| (id, &object.xattrs));
        self.compare(DifferenceKind::Xattr, xattrs, |a, b| a == b, |all| format_xattrs(all))
    }

    /// Compares an attribute by equality.
    fn attr<T: PartialEq>(
        &self,
        kind: DifferenceKind,
        value: impl Fn(&Attr) -> T,
        shown: impl Fn(&T) -> String,
    ) -> Option<Difference> {
        let values = present_replicas(self.view).map(|(id, object)| (id, value(&object.attr)));
        self.compare(kind, values, |a, b| a == b, shown)
    }

    fn time(&self, kind: DifferenceKind, time: fn(&Attr) -> Timestamp) -> Option<Difference> {
        let times = present_replicas(self.view).map(|(id, object)| (id, time(&object.attr)));
        let is_same = |a: &Timestamp, b: &Timestamp| is_same_time(*a, *b, self.rules.mode);
        self.compare(kind, times, is_same, |time| format_time(*time))
    }

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
        let named = |group: &ValueGroup<T>| ReplicaGroup {
            replicas: self.calls.names(group.replicas),
            value: shown(&group.value),
        };
        (groups.len() > 1).then(|| Difference {
            path: self.path.to_owned(),
            kind,
            groups: groups.iter().map(named).collect(),
            content: Default::default(),
        })
    }
}

/// Compares times as [`crate::volume::FileVersion::is_same_version`] does.
fn is_same_time(a: Timestamp, b: Timestamp, mode: VolumeMode) -> bool {
    let whole_seconds = mode == VolumeMode::Copies && (a.1 == 0 || b.1 == 0);
    a.0 == b.0 && (whole_seconds || a.1 == b.1)
}

fn format_time(time: Timestamp) -> String {
    let (seconds, nanos) = time;
    match u64::try_from(seconds) {
        Ok(seconds) => {
            let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
            // Times after the year 9999 cannot be formatted as dates.
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
    fn every_timestamp_can_be_shown() {
        assert_eq!(format_time((1, 5)), "1970-01-01T00:00:01.000000005Z");
        assert_eq!(format_time((-1, 5)), "-1 s");
        assert_eq!(format_time((i64::MAX, 5)), format!("{} s", i64::MAX));
    }
}
