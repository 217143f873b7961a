//! MapR-FS: the output of `hadoop mfs -ls`.
//!
//! For a file the tool prints a line like that of `ls`. Below it are a line for the file itself
//! and one for each chunk:
//!
//! ```text
//! -rwxr-xr-x Z E N   3 mapr mapr  600000000 2013-10-02 16:30  268435456 /user/x/file
//!                p 2049.35.131534  node1:5660 node2:5660 node3:5660
//!                0 2050.36.131536  node2:5660 node3:5660 node1:5660
//! ```
//!
//! The first line has the size before the date and the chunk size after the time. The others
//! have `p` or the chunk's number, a FID, and the nodes, the head of the replication chain
//! first. The number of flags after the permissions depends on the release, so the parser looks
//! for the date. The command is described in "hadoop mfs" of the MapR (HPE Ezmeral Data Fabric)
//! reference, without an example. The form is that of listings, and of a script that reads
//! them, which users have published. It was not tried against a live cluster.
//!
//! `p` is the primary FID, which also holds a small file's bytes. It counts as chunk 0 if no
//! chunk 0 is listed.
//!
//! Not handled:
//! - a name with a line feed in it,
//! - files that were offloaded to a tier, whose listing shows only the remaining chunks,
//! - the first 64 KiB of a large file, which are on the nodes of `p` and not of chunk 0.

use std::time::Duration;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{ToolRunner, expected_error, last_line, numbered_lines, parse_number};
use super::{LocateFuture, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command.
pub const COMMAND: &[&str] = &["hadoop", "mfs", "-ls", "{path}"];

/// Asks MapR's own tool.
#[derive(Clone, Debug)]
pub struct MaprFs(ToolRunner);

impl MaprFs {
    /// Runs `template`, for files below `root`, for at most `limit`.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self(ToolRunner::new(template, root, limit))
    }
}

impl Provider for MaprFs {
    fn name(&self) -> &'static str {
        "maprfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move { parse(&self.0.query(query).await?, query.size) })
    }
}

/// The chunks of a file of `size` bytes, from its listing.
///
/// # Errors
/// If `output` is not the listing of one file.
pub fn parse(output: &str, size: u64) -> Result<ChunkMap> {
    let mut chunk_size = None;
    let mut primary: Option<Vec<&str>> = None;
    let mut chunks: Vec<ListedChunk<'_>> = Vec::new();
    for (line, text) in numbered_lines(output) {
        let mut words = text.split_whitespace();
        let Some(first) = words.next() else { continue };
        if chunk_size.is_none() {
            // Other lines may come before: a count of items, a logger's message.
            if is_mode(first) {
                chunk_size = Some(parse_chunk_size(line, text)?);
            }
            continue;
        }
        if is_mode(first) {
            return expected_error(line, "the listing of one file, not of a second");
        }
        let fid = words.next().is_some_and(|fid| fid.split('.').count() == 3);
        let nodes: Vec<&str> = words.collect();
        if !fid || !nodes.iter().all(|node| is_node(node)) {
            return expected_error(line, "`p` or a chunk's number, a FID, and nodes as HOST:PORT");
        }
        if first == "p" {
            if primary.replace(nodes).is_some() {
                return expected_error(line, "only one line that begins with `p`");
            }
            continue;
        }
        let index = parse_number(line, Some(first), "`p` or a chunk's index")?;
        if chunks.last().is_some_and(|last| last.index >= index) {
            return expected_error(line, "chunks in the order of their numbers");
        }
        chunks.push(ListedChunk { line, index, nodes });
    }
    let Some(chunk_size) = chunk_size else {
        return expected_error(last_line(output), "the listing of a file (`-rwxr-xr-x ...`)");
    };
    if primary.is_none() && chunks.is_empty() && size > 0 {
        return expected_error(last_line(output), "a line that begins with `p` below the listing");
    }
    if chunks.first().is_none_or(|first| first.index > 0) {
        chunks.insert(0, ListedChunk { line: 0, index: 0, nodes: primary.unwrap_or_default() });
    }
    build_chunk_map(&chunks, chunk_size, size)
}

/// A chunk, and the line that lists it.
struct ListedChunk<'a> {
    line: usize,
    index: u64,
    nodes: Vec<&'a str>,
}

fn build_chunk_map(chunks: &[ListedChunk<'_>], chunk_size: u64, size: u64) -> Result<ChunkMap> {
    let file = ByteRange::new(0, size);
    let mut builder = ChunkMapBuilder::new();
    for ListedChunk { line, index, nodes } in chunks {
        // A chunk size of 0 means one chunk, however large.
        let range = match (chunk_size, *index) {
            (0, 0) => file,
            (0, _) => return expected_error(*line, "only chunk 0, because the chunk size is 0"),
            (unit, index) => match index.checked_mul(unit) {
                Some(start) => ByteRange::at(start, unit).intersect(file),
                None => {
                    return expected_error(*line, "a chunk's number whose offset fits in 64 bits");
                }
            },
        };
        if !nodes.is_empty() {
            builder.add_chunk(range, nodes.iter().copied())?;
        }
    }
    Ok(builder.finish())
}

/// Whether `word` is a type and permissions. The type is a letter or `-`, and a mark for an ACL
/// may follow.
fn is_mode(word: &str) -> bool {
    let mode = word.as_bytes();
    mode.len() >= 10
        && mode.len() <= 11
        && mode[1..10].iter().all(|byte| b"rwxsStT-".contains(byte))
        && (mode[0] == b'-' || mode[0].is_ascii_lowercase())
}

fn is_node(word: &str) -> bool {
    let port = |port: &str| port.parse::<u16>().is_ok();
    word.rsplit_once(':').is_some_and(|(node, at)| !node.is_empty() && port(at))
}

/// The chunk size in a file's listing.
fn parse_chunk_size(line: usize, text: &str) -> Result<u64> {
    if !text.trim_start().starts_with('-') {
        return expected_error(line, "the listing of a regular file");
    }
    let mut words = text.split_whitespace();
    let mut before = None;
    loop {
        match words.next() {
            Some(word) if is_date(word) => break,
            Some(word) => before = Some(word),
            None => return expected_error(line, "a date (YYYY-MM-DD) after the size"),
        }
    }
    parse_number(line, before, "the size before the date")?;
    let _time = words.next();
    parse_number(line, words.next(), "the chunk size after the time")
}

fn is_date(word: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    word.len() == 10 && word.bytes().enumerate().all(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const LARGE: &str = include_str!("../../tests/fixtures/placement/maprfs-large.txt");
    const SMALL: &str = include_str!("../../tests/fixtures/placement/maprfs-small.txt");
    const GAP: &str = include_str!("../../tests/fixtures/placement/maprfs-gap.txt");
    const CHUNK: u64 = 268_435_456;

    fn line_of(output: &str, size: u64) -> usize {
        match parse(output, size).unwrap_err() {
            crate::placement::PlacementError::UnexpectedLine { line, .. } => line,
            error => panic!("{error}"),
        }
    }

    #[test]
    fn a_large_file_has_its_numbered_chunks() {
        let n1 = "node1:5660";
        let n2 = "node2:5660";
        let n3 = "node3:5660";
        let map = parse(LARGE, 600_000_000).unwrap();
        let expected = [
            (0, CHUNK, vec![n2, n3, n1]),
            (CHUNK, 2 * CHUNK, vec![n3, n1, n2]),
            (2 * CHUNK, 600_000_000, vec![n1, n2]),
        ];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn a_small_file_is_at_its_primary_fid() {
        let map = parse(SMALL, 2048).unwrap();
        assert_eq!(listed(&map), [(0, 2048, vec!["mapr2.da.dg:5660", "mapr1.da.dg:5660"])]);
    }

    #[test]
    fn an_unlisted_chunk_is_a_gap() {
        let map = parse(GAP, 4 * CHUNK).unwrap();
        let expected = [
            (0, CHUNK, vec!["node1:5660"]),
            (3 * CHUNK, 4 * CHUNK, vec!["node3:5660", "node2:5660"]),
        ];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn chunks_are_truncated_to_the_requested_size() {
        let map = parse(LARGE, CHUNK + 1).unwrap();
        assert_eq!(map.regions().len(), 2);
        assert_eq!(map.regions()[1].range, ByteRange::new(CHUNK, CHUNK + 1));
        assert!(parse(LARGE, 0).unwrap().is_empty());
    }

    #[test]
    fn a_chunk_size_of_0_is_one_chunk() {
        let text = SMALL.replace("268435456", "0");
        assert_eq!(parse(&text, 9 << 40).unwrap().regions().len(), 1);
        assert_eq!(line_of(&LARGE.replace("268435456", "0"), 10), 5);
    }

    #[test]
    fn an_invalid_listing_is_refused_with_its_line() {
        assert_eq!(line_of("", 1), 1);
        assert_eq!(line_of("Found 1 items\n", 1), 1);
        let listing_alone: String = LARGE.lines().take(2).collect::<Vec<_>>().join("\n");
        assert_eq!(line_of(&listing_alone, 1), 2);
        assert_eq!(line_of(&LARGE.replace("  268435456", ""), 1), 2);
        assert_eq!(line_of(&LARGE.replace("-rwx", "drwx"), 1), 2);
        assert_eq!(line_of(&format!("{LARGE}{LARGE}"), 1), 7);
        assert_eq!(line_of(&LARGE.replace("0 2050", "7 2050"), 1), 5);
        assert_eq!(line_of(&LARGE.replace("node3:5660 node1:5660", "node3:x"), 1), 4);
        let far = LARGE.replace("2 2052", "18446744073709551615 2052");
        assert_eq!(line_of(&far, 1), 6);
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            text in prop_oneof!["\\PC*", mangled(LARGE), mangled(SMALL), mangled(GAP)],
            size in prop_oneof![Just(0), Just(600_000_000), any::<u64>()],
        ) {
            if let Ok(map) = parse(&text, size) {
                prop_assert!(is_sound(&map, size), "{map:?}");
            }
        }
    }
}
