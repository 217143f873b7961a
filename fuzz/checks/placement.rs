//! From any answer of a provider, its parser makes a sound map, or refuses the answer in one line.
//!
//! The first byte selects the parser, the next eight are the file's size (little endian), the rest
//! is the answer. If a parser needs more than an answer, the first line of the rest is that: the
//! path for `glusterfs` and the tables, the layout for `cephfs`, with the cluster's answers after
//! it.

use fanfs::placement::cephfs::cluster_map::ClusterMap;
use fanfs::placement::cephfs::layout::{MAX_OBJECTS, parse_layout};
use fanfs::placement::glusterfs::volume_graph::VolumeGraph;
use fanfs::placement::{
    ChunkMap, Query, beegfs, cephfs, exec, glusterfs, hdfs, lustre, maprfs, table,
};
use fanfs::volume::ReplicaSet;

/// Number of chunks and regions that are checked in one map: a stripe of one-byte units has as many
/// chunks as the file has bytes.
const MAX_CHECKED_CHUNKS: usize = 4000;

/// Passes the answer to its parser.
pub(crate) fn check_answer(data: &[u8]) {
    let Some((&parser, data)) = data.split_first() else { return };
    let Some((size, answer)) = data.split_first_chunk() else { return };
    let size = u64::from_le_bytes(*size);
    let text = String::from_utf8_lossy(answer);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    match parser % 13 {
        0 => check(maprfs::parse(&text, size), size),
        1 => check(hdfs::parse_file_block_locations(answer, size), size),
        2 => check(hdfs::parse_located_blocks(answer, size), size),
        3 => check(hdfs::fsck::parse(&text, size), size),
        4 => layout(&text, size),
        5 => {
            if let Err(error) = VolumeGraph::parse(&text) {
                one_line(error);
            }
        }
        6 => {
            let layout = parse_layout(first).map_err(one_line);
            let cluster = ClusterMap::parse(rest.as_bytes()).map_err(one_line);
            let (Ok(layout), Ok(cluster)) = (layout, cluster) else { return };
            let query = Query { path: "f".into(), size, replica: "/".into(), inode: 1 };
            check(cephfs::assemble(&layout, &cluster, &query), size);
        }
        7 => check(glusterfs::parse(rest, first, size, &VolumeGraph::default()), size),
        8 => check(lustre::parse(&text, size), size),
        9 => check(beegfs::parse(&text, size), size),
        10 => check(exec::parse(answer, size), size),
        11 => entries(table::parse_toml(rest), first, size),
        _ => entries(table::parse_csv(rest), first, size),
    }
}

fn check<E: ToString>(answer: Result<ChunkMap, E>, size: u64) {
    let map = match answer {
        Ok(map) => map,
        Err(error) => return one_line(error),
    };
    let mut end = 0;
    for region in map.regions() {
        assert!(region.range.start >= end && region.range.end > region.range.start);
        assert!(region.range.end <= size && region.unit > 0 && !region.cells.is_empty());
        end = region.range.end;
    }
    let mapped = map.to_locality_map(|_| ReplicaSet::EMPTY);
    let mut end = 0;
    for chunk in map.chunks().take(MAX_CHECKED_CHUNKS) {
        assert!(chunk.range.start >= end && chunk.range.end > chunk.range.start);
        assert!(chunk.range.end <= size);
        assert!(chunk.nodes.iter().all(|node| usize::from(*node) < map.nodes().len()));
        for offset in [chunk.range.start, chunk.range.end - 1] {
            assert_eq!(mapped.chunk_at(offset).map(|chunk| chunk.range), Some(chunk.range));
        }
        end = chunk.range.end;
    }
}

/// Objects are queried in order, within the file, and only a few of them.
fn layout(text: &str, size: u64) {
    let layout = match parse_layout(text) {
        Ok(layout) => layout,
        Err(error) => return one_line(error),
    };
    let pieces = match layout.pieces(size) {
        Ok(pieces) => pieces,
        Err(error) => return one_line(error),
    };
    let mut end = 0;
    for piece in &pieces {
        assert!(piece.range.start >= end && piece.range.end <= size && piece.unit > 0);
        end = piece.range.end;
    }
    let objects: usize = pieces.iter().map(|piece| piece.objects.len()).sum();
    assert!(objects as u64 <= MAX_OBJECTS, "{objects}");
}

fn entries<E: ToString>(entries: Result<table::TableEntries, E>, path: &str, size: u64) {
    match entries {
        Ok(entries) => check(entries.chunk_map_of(path.as_ref(), size), size),
        Err(error) => one_line(error),
    }
}

fn one_line(error: impl ToString) {
    let error = error.to_string();
    assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
}
