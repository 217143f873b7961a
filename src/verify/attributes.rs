//! What can be told without reading contents: who has an object, and with which
//! attributes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;

use super::difference::{Difference, Group, Kind, Shown};
use super::narrow::group;
use super::peers::{Miss, Peers};
use crate::backend::{
    Attr, Backend, BackendError, FileKind, Lane, Result as BackendResult, Target, Timestamp,
};
use crate::volume::{Mode, ReplicaId, ReplicaSet};

/// An object on one replica.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    /// It is there.
    Here(Box<Object>),
    /// It is not.
    Gone,
    /// That is not known.
    Unknown(Miss),
}

/// What is compared of an object besides its content.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    pub(super) attr: Attr,
    /// A symbolic link's target.
    pub(super) target: Option<OsString>,
    /// `user.*`, where they are compared, by name.
    pub(super) xattrs: Vec<(OsString, Vec<u8>)>,
}

/// An object on all replicas that are compared.
pub(super) type Look = Vec<(ReplicaId, Seen)>;

/// What decides which attributes count.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) mode: Mode,
    pub(super) ignore: Vec<Kind>,
    pub(super) xattrs: bool,
}

/// The replicas on which it is there, with its attributes.
pub(super) fn here(look: &Look) -> impl Iterator<Item = (ReplicaId, &Object)> {
    look.iter().filter_map(|(id, seen)| match seen {
        Seen::Here(object) => Some((*id, &**object)),
        _ => None,
    })
}

/// From what a call says of an object.
pub(super) fn seen(answer: Result<Object, Miss>) -> Seen {
    match answer {
        Ok(object) => Seen::Here(Box::new(object)),
        Err(Miss::Failed(BackendError::Os(Errno::NOENT | Errno::STALE))) => Seen::Gone,
        Err(miss) => Seen::Unknown(miss),
    }
}

/// Completes an object whose attributes are known.
pub(super) fn complete(
    backend: &dyn Backend,
    path: &Path,
    attr: Attr,
    xattrs: bool,
) -> BackendResult<Object> {
    let is_link = attr.kind == FileKind::Symlink;
    let target = if is_link { Some(backend.read_link(&Target::named(path))?) } else { None };
    let xattrs = if xattrs { user_xattrs(backend, path)? } else { Vec::new() };
    Ok(Object { attr, target, xattrs })
}

fn user_xattrs(backend: &dyn Backend, path: &Path) -> BackendResult<Vec<(OsString, Vec<u8>)>> {
    use std::os::unix::ffi::OsStringExt;
    let names = match backend.list_xattr(&Target::named(path)) {
        // A file system that has none.
        Err(BackendError::Os(Errno::OPNOTSUPP)) => Vec::new(),
        names => names?,
    };
    let names = names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found = Vec::new();
    for name in names {
        let name = OsString::from_vec(name.to_vec());
        let value = backend.get_xattr(&Target::named(path), &name)?;
        found.push((name, value));
    }
    found.sort();
    Ok(found)
}

/// Looks at an object on each of `whom`, as freshly as that is possible.
pub(super) fn look_again(peers: &Peers, path: &Path, whom: ReplicaSet, rules: &Rules) -> Look {
    let job = |_: ReplicaId| {
        let (path, xattrs) = (path.to_owned(), rules.xattrs);
        move |backend: &dyn Backend| {
            // An NFS mount asks its server what names there are; and for the file's
            // attributes when that is opened.
            let dir: PathBuf = path.parent().unwrap_or(Path::new("")).to_owned();
            let _ = backend.refresh(&Target::named(dir));
            let mut attr = backend.stat(&path)?;
            if attr.kind == FileKind::Regular
                && let Ok((_file, fresh)) = backend.open(&path)
            {
                attr = fresh;
            }
            complete(backend, &path, attr, xattrs)
        }
    };
    let answers = peers.answers(whom, Lane::Metadata, job);
    answers.into_iter().map(|(id, answer)| (id, seen(answer))).collect()
}

/// Whether some replica showed another object, or another version of it, in the
/// first look than in the second.
pub(super) fn has_moved(first: &Look, second: &Look) -> bool {
    let state = |seen: &Seen| match seen {
        Seen::Here(object) => Some((object.attr.kind, object.attr.version())),
        _ => None,
    };
    second.iter().any(|(id, now)| {
        let before = first.iter().find(|(known, _)| known == id);
        before.is_some_and(|(_, before)| state(before) != state(now))
    })
}

/// In what the replicas' objects differ, contents apart.
pub(super) fn differences(
    peers: &Peers,
    path: &Path,
    look: &Look,
    rules: &Rules,
) -> Vec<Difference> {
    let judge = Judge { peers, path, rules };
    let present = look.iter().filter(|(_, seen)| !matches!(seen, Seen::Unknown(_)));
    let present = present.map(|(id, seen)| (*id, matches!(seen, Seen::Here(_))));
    let word = |there: &bool| if *there { "present" } else { "missing" }.to_owned();
    let mut found: Vec<Difference> =
        judge.compare(Kind::Missing, present, |a, b| a == b, word).into_iter().collect();
    let attrs = || here(look).map(|(id, object)| (id, object.attr));
    let kinds = attrs().map(|(id, attr)| (id, attr.kind));
    let other_type =
        judge.compare(Kind::Type, kinds, |a, b| a == b, |kind| type_name(*kind).into());
    if let Some(other_type) = other_type {
        // What else they differ in says nothing any more.
        found.push(other_type);
        return found;
    }
    let Some((_, one)) = attrs().next() else { return found };
    let numbers = |number: fn(&Attr) -> u64| attrs().map(move |(id, attr)| (id, number(&attr)));
    let plain = u64::to_string;
    let times = |time: fn(&Attr) -> Timestamp| attrs().map(move |(id, attr)| (id, time(&attr)));
    let is_shared = rules.mode == Mode::Shared;
    if one.kind == FileKind::Regular {
        found.extend(judge.compare(Kind::Size, numbers(|a| a.size), |a, b| a == b, plain));
        let same_time = |a: &Timestamp, b: &Timestamp| same_time(*a, *b, rules.mode);
        let mtimes = times(|attr| attr.mtime);
        found.extend(judge.compare(Kind::Mtime, mtimes, same_time, |time| shown_time(*time)));
        if is_shared {
            let ctimes = times(|attr| attr.ctime);
            found.extend(judge.compare(Kind::Ctime, ctimes, same_time, |time| shown_time(*time)));
        }
    }
    if is_shared {
        found.extend(judge.compare(Kind::Inode, numbers(|a| a.id.ino), |a, b| a == b, plain));
    }
    if matches!(one.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let devices = attrs().map(|(id, attr)| (id, attr.rdev));
        let shown = |(major, minor): &(u32, u32)| format!("{major}:{minor}");
        found.extend(judge.compare(Kind::Device, devices, |a, b| a == b, shown));
    }
    let targets = here(look).filter_map(|(id, object)| Some((id, object.target.clone()?)));
    let shown = |target: &OsString| Shown(Path::new(target)).to_string();
    found.extend(judge.compare(Kind::Target, targets, |a, b| a == b, shown));
    // A symbolic link's mode means nothing.
    if one.kind != FileKind::Symlink {
        let modes = attrs().map(|(id, attr)| (id, attr.perm));
        found.extend(judge.compare(Kind::Mode, modes, |a, b| a == b, |perm| format!("{perm:04o}")));
    }
    let owners = attrs().map(|(id, attr)| (id, (attr.uid, attr.gid)));
    let shown = |(uid, gid): &(u32, u32)| format!("{uid}:{gid}");
    found.extend(judge.compare(Kind::Owner, owners, |a, b| a == b, shown));
    let xattrs = here(look).map(|(id, object)| (id, &object.xattrs));
    found.extend(judge.compare(Kind::Xattr, xattrs, |a, b| a == b, |all| shown_xattrs(all)));
    found
}

struct Judge<'a> {
    peers: &'a Peers,
    path: &'a Path,
    rules: &'a Rules,
}

impl Judge<'_> {
    fn compare<T>(
        &self,
        kind: Kind,
        values: impl Iterator<Item = (ReplicaId, T)>,
        alike: impl Fn(&T, &T) -> bool,
        shown: impl Fn(&T) -> String,
    ) -> Option<Difference> {
        if self.rules.ignore.contains(&kind) {
            return None;
        }
        let groups = group(values, alike);
        let named = |(set, value): &(ReplicaSet, T)| Group {
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

/// As [`crate::volume::FileVersion::agrees`] compares times.
fn same_time(a: Timestamp, b: Timestamp, mode: Mode) -> bool {
    let whole_seconds = mode == Mode::Copies && (a.1 == 0 || b.1 == 0);
    a.0 == b.0 && (whole_seconds || a.1 == b.1)
}

fn shown_time((seconds, nanos): Timestamp) -> String {
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

fn shown_xattrs(xattrs: &[(OsString, Vec<u8>)]) -> String {
    let one = |(name, value): &(OsString, Vec<u8>)| {
        format!("{} ({} bytes)", Shown(Path::new(name)), value.len())
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
        assert!(same_time((7, 0), (7, 5), Mode::Copies));
        assert!(!same_time((7, 4), (7, 5), Mode::Copies));
        assert!(!same_time((7, 0), (7, 5), Mode::Shared));
        assert!(!same_time((7, 0), (8, 0), Mode::Copies));
    }

    #[test]
    fn times_are_shown_whatever_they_are() {
        assert_eq!(shown_time((1, 5)), "1970-01-01T00:00:01.000000005Z");
        assert_eq!(shown_time((-1, 5)), "-1 s");
        assert_eq!(shown_time((i64::MAX, 5)), format!("{} s", i64::MAX));
    }
}
