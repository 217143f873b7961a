//! What is found: differences, and what could not be compared.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::volume::path_serde;

/// In what two replicas' objects differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// One has it, the other has not.
    Missing,
    /// A file here, a directory there.
    Type,
    /// Size of a regular file.
    Size,
    /// Modification time of a regular file.
    Mtime,
    /// Change time of a regular file, in a `shared` volume.
    Ctime,
    /// Inode number, in a `shared` volume.
    Inode,
    /// A symbolic link's target.
    Target,
    /// A device node's number.
    Device,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// Extended attributes `user.*`.
    Xattr,
    /// Bytes of a regular file.
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

/// The kinds that may be left out of a comparison: copies may well differ in them
/// and hold the same data.
pub const IGNORABLE: [DifferenceKind; 5] = [
    DifferenceKind::Mtime,
    DifferenceKind::Ctime,
    DifferenceKind::Inode,
    DifferenceKind::Mode,
    DifferenceKind::Owner,
];

/// Not one of [`IGNORABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what can be ignored is one of mtime, ctime, inode, mode, owner")]
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
    /// Where it is, relative to the volume's root.
    #[serde(with = "path_serde")]
    pub path: PathBuf,
    /// In what they differ.
    pub kind: DifferenceKind,
    /// Who has what: the most first, of as many the first in the configuration.
    /// Empty for contents, whose ranges say it each for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ReplicaGroup>,
    /// For contents: which bytes.
    #[serde(flatten, skip_serializing_if = "ContentDifference::is_empty", default)]
    pub content: ContentDifference,
}

/// Replicas that have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaGroup {
    /// Their names.
    pub replicas: Vec<String>,
    /// What they have, for people.
    pub value: String,
}

/// Where a file's contents differ, of what was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDifference {
    /// The ranges, in order; those less than 16 bytes apart are one.
    #[serde(default)]
    pub ranges: Vec<DifferingRange>,
    /// Ranges that are not listed.
    #[serde(default)]
    pub more_ranges: u64,
    /// Bytes in all ranges.
    #[serde(default)]
    pub differing_bytes: u64,
}

/// A range of bytes, and who agrees about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingRange {
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Names of those who have the same bytes: the most first.
    pub groups: Vec<Vec<String>>,
}

/// Ranges of one file that are listed. A file that has nothing to do with its
/// copy is told by fewer.
const MAX_LISTED_RANGES: usize = 1000;

impl ContentDifference {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.differing_bytes == 0
    }

    /// Adds a range behind the others, or to the last one where it goes on.
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

/// Something that could not be compared, or not on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCompared {
    /// Where it is, relative to the volume's root.
    #[serde(with = "path_serde")]
    pub path: PathBuf,
    /// The replicas' names.
    pub replicas: Vec<String>,
    /// Why, on one line.
    pub why: String,
}

/// A path for people, on one line and unambiguous: control characters, backslashes
/// and bytes that are not UTF-8 are escaped as in C.
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

/// "r1 = r2, r3 differs": the majority first, where there is one.
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
    /// One line, or for contents one for each range; without the last line's end.
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
                    write!(f, "{differing_bytes} bytes differ in all")?;
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
    fn the_majority_is_named_where_there_is_one() {
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
    fn ranges_that_go_on_are_one_and_too_many_are_counted() {
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
    fn a_path_is_one_line_whatever_is_in_it() {
        let shown = |bytes: &[u8]| EscapedPath(Path::new(OsStr::from_bytes(bytes))).to_string();
        assert_eq!(shown(b"a\nb"), "a\\nb");
        assert_eq!(shown(b"a\\nb"), "a\\\\nb");
        assert_eq!(shown(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(shown("ä b".as_bytes()), "ä b");
        assert_eq!(shown(b""), ".");
    }
}
