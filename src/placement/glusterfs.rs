//! GlusterFS: the extended attribute `trusted.glusterfs.pathinfo`.
//!
//! A native GlusterFS mount returns the translators that the file passed through and the bricks
//! that hold it:
//!
//! ```text
//! (<DISTRIBUTE:vol-dht> (<REPLICATE:vol-replicate-0> <POSIX(/b1):host1:/b1/file> <POSIX(/b2):host2:/b2/file>))
//! ```
//!
//! Old releases write `<POSIX:host1:/b1/file>`. The form is that of GlusterFS's
//! `doc/debugging/gfid-to-path.md` and of output that users have published. It was not tried
//! against a live cluster. Reading `trusted.*` requires root.
//!
//! The whole file is one chunk, on every brick in the answer.
//!
//! Not handled: STRIPE, EC (disperse) and other translators, which are refused. A sharded file
//! shows only its first shard, and the whole file counts as being there. An arbiter brick,
//! which has no data, looks like any other.

use std::time::Duration;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{ToolRunner, expected_error};
use super::{LocateFuture, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command.
pub const COMMAND: &[&str] = &[
    "getfattr",
    "-n",
    "trusted.glusterfs.pathinfo",
    "--only-values",
    "--absolute-names",
    "{path}",
];

/// Asks a native GlusterFS mount.
#[derive(Clone, Debug)]
pub struct GlusterFs(ToolRunner);

impl GlusterFs {
    /// Runs `template`, for files below the native mount `root`, for at most
    /// `limit`.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self(ToolRunner::new(template, root, limit))
    }
}

impl Provider for GlusterFs {
    fn name(&self) -> &'static str {
        "glusterfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let output = self.0.query(query).await?;
            parse(&output, &query.path.to_string_lossy(), query.size)
        })
    }
}

/// Where the file `path` of `size` bytes is.
///
/// # Errors
/// If `output` has another form, or a translator that splits files.
pub fn parse(output: &str, path: &str, size: u64) -> Result<ChunkMap> {
    // A file's name may contain anything, even text that looks like another brick.
    let known = match path {
        "" => output.to_owned(),
        path => output.replace(&format!("{path}>"), ">"),
    };
    let line = |rest: &str| {
        let before = known.len() - rest.len();
        known.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count() + 1
    };
    let mut nodes = Vec::new();
    let mut depth = 0u32;
    let mut replicated = false;
    let mut rest = known.trim_end_matches(['\0', '\n', ' ']);
    while let Some(first) = rest.chars().next() {
        let here = rest;
        rest = &rest[first.len_utf8()..];
        match first {
            ' ' | '\n' => {}
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            '<' => {
                let Some(translator) = parse_translator(&mut rest) else {
                    return expected_error(
                        line(here),
                        "<TRANSLATOR:NAME> or <POSIX(BRICK):HOST:PATH>",
                    );
                };
                if let Some(expected) = translator.expected_instead() {
                    return expected_error(line(here), expected);
                }
                match translator {
                    Translator::Brick(node) => nodes.push(node),
                    Translator::Other(kind) => replicated |= kind == "REPLICATE",
                }
            }
            _ => return expected_error(line(here), "`(`, `)` or `<`"),
        }
    }
    if depth > 0 {
        return expected_error(line(rest), "a `)` for each `(`");
    }
    if nodes.is_empty() {
        return expected_error(line(rest), "a brick (<POSIX(BRICK):HOST:PATH>)");
    }
    if nodes.len() > 1 && !replicated {
        // A directory, for example, has many.
        return expected_error(line(rest), "one brick where nothing is replicated");
    }
    let mut builder = ChunkMapBuilder::new();
    builder.add_chunk(ByteRange::new(0, size), nodes)?;
    Ok(builder.finish())
}

enum Translator<'a> {
    /// A brick, with the node that it is on.
    Brick(&'a str),
    /// Another translator, with its kind.
    Other(&'a str),
}

impl Translator<'_> {
    /// The expectation to report for a translator that is not handled.
    fn expected_instead(&self) -> Option<&'static str> {
        match self {
            Self::Brick(_) | Self::Other("REPLICATE" | "DISTRIBUTE") => None,
            Self::Other("EC" | "DISPERSE") => {
                Some("no disperse translator (fanfs does not support it)")
            }
            Self::Other("STRIPE") => Some("no stripe translator (fanfs does not support it)"),
            Self::Other(_) => Some("only the translators DISTRIBUTE, REPLICATE and POSIX"),
        }
    }
}

/// Takes the text up to `>`; `<` has been read.
fn parse_translator<'a>(rest: &mut &'a str) -> Option<Translator<'a>> {
    let mut text = *rest;
    let brick = text.strip_prefix("POSIX");
    if let Some(brick) = brick {
        text = match brick.strip_prefix('(') {
            Some(named) => named.split_once("):")?.1,
            None => brick.strip_prefix(':')?,
        };
    }
    let (kind, name) = text.split_once(':')?;
    let (_, after) = name.split_once('>')?;
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"<>()/".contains(c);
    if kind.is_empty() || !kind.chars().all(plain) {
        return None;
    }
    *rest = after;
    Some(if brick.is_some() { Translator::Brick(kind) } else { Translator::Other(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const REPLICATED: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-replicated.txt");
    const DISTRIBUTED: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-distributed.txt");
    const OLD: &str = include_str!("../../tests/fixtures/placement/glusterfs-old.txt");
    const DISPERSE: &str = include_str!("../../tests/fixtures/placement/glusterfs-disperse.txt");

    fn refused(output: &str) -> String {
        parse(output, "file", 10).unwrap_err().to_string()
    }

    #[test]
    fn a_replicated_file_is_on_every_brick() {
        let map = parse(REPLICATED, "dir/file", 10).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2"])]);
    }

    #[test]
    fn a_distributed_file_is_on_one_brick() {
        let map = parse(DISTRIBUTED, "dir/file3", 10).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["vm1"])]);
    }

    #[test]
    fn the_old_format_names_no_brick() {
        let map = parse(OLD, "file", 10).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2.example.org"])]);
    }

    #[test]
    fn translators_that_split_files_are_refused_by_name() {
        let error = refused(DISPERSE);
        assert_eq!(
            error,
            "line 1 of the answer: expected no disperse translator (fanfs does not support it)"
        );
        let error = refused(&DISPERSE.replace("EC:vol-disperse-0", "STRIPE:s:[131072]"));
        assert!(error.contains("no stripe translator"), "{error}");
        let error = refused(&DISPERSE.replace("EC:", "TIER:"));
        assert!(error.contains("only the translators DISTRIBUTE"), "{error}");
    }

    #[test]
    fn a_hostile_name_adds_no_brick() {
        let path = "x> <POSIX(/b):evil:/y\n)";
        let output = REPLICATED.replace("dir/file", path);
        let map = parse(&output, path, 10).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2"])]);
    }

    #[test]
    fn a_truncated_layout_is_refused() {
        let whole = REPLICATED.trim_end();
        for end in 0..whole.len() {
            let error = refused(&whole[..end]);
            assert!(error.starts_with("line 1 of the answer: expected "), "{error}");
        }
        assert!(refused("(<DISTRIBUTE:d> <POSIX:a:/b> <POSIX:b:/b>)").contains("one brick"));
        assert!(refused("(\n<POSIX::/b>)").starts_with("line 2"));
        assert!(refused("(<POSIX(/b\n):a:/b>x").starts_with("line 2"));
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            text in prop_oneof!["\\PC*", mangled(REPLICATED), mangled(OLD), mangled(DISPERSE)],
            path in prop_oneof![Just("file".to_owned()), "\\PC{0,3}"],
            size in any::<u64>(),
        ) {
            if let Ok(map) = parse(&text, &path, size) {
                prop_assert!(is_sound(&map, size), "{map:?}");
            }
        }
    }
}
