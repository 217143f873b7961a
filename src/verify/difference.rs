//! The findings: differences, and objects that could not be compared.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::volume::path_serde;

/// The aspect in which two replicas' objects differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// One replica has the object, another does not.
    Missing,
    /// The file type: a file on one replica, a directory on another.
    Type,
    /// The size of a regular file.
    Size,
    /// The modification time of a regular file.
    Mtime,
    /// The change time of a regular file, in a `shared` volume.
    Ctime,
    /// The inode number, in a `shared` volume.
    Inode,
    /// A symbolic link's target.
    Target,
    /// The number of a device node.
    Device,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// Extended attributes `user.*`.
    Xattr,
    /// The contents of a regular file.
    Content,
}

const KIND_NAMES: [(DifferenceKind, &str); 12] = [
    (DifferenceKind::Missing, "missing"),
    (DifferenceKind::Type, "type"),
    (DifferenceKind::Size, "size"),
    (DifferenceKind::Mtime, "mtime"),
    (DifferenceKind::Ctime, "ctime"),
    (DifferenceKind::Inode, "inode"),
    (DifferenceKind::Target, "target"),
    (DifferenceKind::Device, "device"),
    (DifferenceKind::Mode, "mode"),
    (DifferenceKind::Owner, "owner"),
    (DifferenceKind::Xattr, "xattr"),
    (DifferenceKind::Content, "content"),
];

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KIND_NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| *name);
        f.write_str(name)
    }
}

/// The kinds that a comparison may ignore: copies with the same data may differ in them.
pub const IGNORABLE: [DifferenceKind; 5] = [
    DifferenceKind::Mtime,
    DifferenceKind::Ctime,
    DifferenceKind::Inode,
    DifferenceKind::Mode,
    DifferenceKind::Owner,
];

/// The kind is not one of [`IGNORABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("only mtime, ctime, inode, mode and owner can be ignored")]
pub struct NotIgnorable;

impl FromStr for DifferenceKind {
    type Err = NotIgnorable;

    fn from_str(text: &str) -> Result<Self, NotIgnorable> {
        let known = KIND_NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        known.filter(|kind| IGNORABLE.contains(kind)).ok_or(NotIgnorable)
    }
}

/// One object in which replicas differ, in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The path, relative to the volume's root.
    #[serde(with = "path_serde")]
    pub path: PathBuf,
    /// The aspect in which they differ.
    pub kind: DifferenceKind,
    /// The groups of replicas that agree: the largest first; of equal ones, the first in the
    /// configuration. Empty for contents, where each range has its own groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ReplicaGroup>,
    /// For contents, the bytes that differ.
    #[serde(flatten, skip_serializing_if = "ContentDifference::is_empty", default)]
    pub content: ContentDifference,
}

/// Replicas that agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaGroup {
    /// Their names.
    pub replicas: Vec<String>,
    /// Their common value, for people.
    pub value: String,
}

/// The differences in the compared part of a file's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDifference {
    /// The ranges, in order. Ranges less than 16 bytes apart are merged.
    #[serde(default)]
    pub ranges: Vec<DifferingRange>,
    /// The number of ranges that are not listed.
    #[serde(default)]
    pub more_ranges: u64,
    /// The number of bytes in all ranges.
    #[serde(default)]
    pub differing_bytes: u64,
}

/// A range of bytes, and which replicas agree about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The names of the replicas with the same bytes; the largest group first.
    pub groups: Vec<Vec<String>>,
}

/// The most ranges of one file that are listed. Fewer show that a file is unrelated to its copy.
const MAX_LISTED_RANGES: usize = 1000;

impl ContentDifference {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.differing_bytes == 0
    }

    /// Appends a range; extends the last one if that continues with the same groups.
    pub(super) fn add_range(&mut self, next: DifferingRange) {
        self.differing_bytes += next.end - next.start;
        let is_full = self.ranges.len() >= MAX_LISTED_RANGES;
        match self.ranges.last_mut() {
            Some(last)
                if self.more_ranges == 0
                    && last.end == next.start
                    && last.groups == next.groups =>
            {
                last.end = next.end;
            }
            _ if is_full => self.more_ranges += 1,
            _ => self.ranges.push(next),
        }
    }
}

/// An object that could not be compared on all replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    /// The path, relative to the volume's root.
    #[serde(with = "path_serde")]
    pub path: PathBuf,
    /// The replicas' names.
    pub replicas: Vec<String>,
    /// The reason, on one line.
    pub why: String,
}

/// Formats a path for people, on one line and unambiguously: control characters, backslashes and
/// bytes that are not UTF-8 are escaped as in C.
pub struct EscapedPath<'a>(pub &'a Path);

impl fmt::Display for EscapedPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.as_os_str().as_bytes();
        if bytes.is_empty() {
            return f.write_str(".");
        }
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    c if c.is_control() => write!(f, "{}", c.escape_default())?,
                    c => write!(f, "{c}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Writes "r1 = r2, r3 differs": the majority first, if there is one.
fn write_groups(f: &mut fmt::Formatter<'_>, groups: &[Vec<String>]) -> fmt::Result {
    let all: usize = groups.iter().map(Vec::len).sum();
    let has_majority = groups.first().is_some_and(|first| first.len() * 2 > all);
    for (i, group) in groups.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        write!(f, "{comma}{}", group.join(" = "))?;
        if has_majority && i > 0 {
            f.write_str(if group.len() > 1 { " differ" } else { " differs" })?;
        }
    }
    if !has_majority { f.write_str(" differ") } else { Ok(()) }
}

impl fmt::Display for Difference {
    /// Writes one line, or one for each range of contents; the last line has no end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = EscapedPath(&self.path);
        match self.kind {
            DifferenceKind::Content => {
                for (i, range) in self.content.ranges.iter().enumerate() {
                    let line = if i > 0 { "\n" } else { "" };
                    write!(f, "{line}{path}: bytes {}..{} differ: ", range.start, range.end)?;
                    write_groups(f, &range.groups)?;
                }
                if self.content.more_ranges > 0 {
                    let ContentDifference { more_ranges, differing_bytes, .. } = self.content;
                    write!(f, "\n{path}: and {more_ranges} more ranges; ")?;
                    write!(f, "{differing_bytes} bytes differ in total")?;
                }
                Ok(())
            }
            DifferenceKind::Missing => {
                let on = |value: &str| {
                    let of = self.groups.iter().filter(|group| group.value == value);
                    of.flat_map(|group| group.replicas.iter().cloned()).collect::<Vec<_>>()
                };
                let here = on("present").join(", ");
                let gone = on("missing").join(", ");
                write!(f, "{path}: missing on {gone}, present on {here}")
            }
            kind => {
                write!(f, "{path}: {kind} differs: ")?;
                for (i, group) in self.groups.iter().enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    write!(f, "{comma}{} on {}", group.value, group.replicas.join(" = "))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for NotCompared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replicas = self.replicas.join(", ");
        write!(f, "{}: not compared on {replicas}: {}", EscapedPath(&self.path), self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn names(groups: &[&[&str]]) -> Vec<Vec<String>> {
        groups.iter().map(|g| g.iter().map(|name| (*name).to_owned()).collect()).collect()
    }

    fn content(groups: &[&[&str]]) -> String {
        let mut content = ContentDifference::default();
        content.add_range(DifferingRange { start: 4096, end: 8192, groups: names(groups) });
        let path = "a/b".into();
        Difference { path, kind: DifferenceKind::Content, groups: Vec::new(), content }.to_string()
    }

    #[test]
    fn the_majority_is_reported_if_there_is_one() {
        for (groups, expected) in [
            (&[&["r1", "r2"][..], &["r3"]][..], "r1 = r2, r3 differs"),
            (&[&["r1"], &["r2"]], "r1, r2 differ"),
            (&[&["r1", "r4"], &["r2", "r3"]], "r1 = r4, r2 = r3 differ"),
            (&[&["r1", "r2", "r3"], &["r4", "r5"]], "r1 = r2 = r3, r4 = r5 differ"),
            (&[&["r1"], &["r2"], &["r3"]], "r1, r2, r3 differ"),
        ] {
            assert_eq!(content(groups), format!("a/b: bytes 4096..8192 differ: {expected}"));
        }
    }

    #[test]
    fn adjacent_ranges_are_joined_and_excess_ones_counted() {
        let mut content = ContentDifference::default();
        let range = |start, end| DifferingRange { start, end, groups: names(&[&["r1"], &["r2"]]) };
        content.add_range(range(0, 10));
        content.add_range(range(10, 20));
        assert_eq!(content.ranges, [range(0, 20)]);
        for i in 1..2000 {
            content.add_range(range(i * 100, i * 100 + 1));
        }
        assert_eq!((content.ranges.len(), content.more_ranges), (MAX_LISTED_RANGES, 1000));
        assert_eq!(content.differing_bytes, 20 + 1999);
    }

    #[test]
    fn a_path_always_prints_as_one_line() {
        let shown = |bytes: &[u8]| EscapedPath(Path::new(OsStr::from_bytes(bytes))).to_string();
        assert_eq!(shown(b"a\nb"), "a\\nb");
        assert_eq!(shown(b"a\\nb"), "a\\\\nb");
        assert_eq!(shown(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(shown("ä b".as_bytes()), "ä b");
        assert_eq!(shown(b""), ".");
    }
}
