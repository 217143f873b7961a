//! HDFS: a file is cut into blocks, one chunk each, that the NameNode knows.
//!
//! `WebHdfs` (cargo feature `hdfs`) asks it over HTTP and gets host names. [`Fsck`] runs
//! `hdfs fsck`, which starts a Java machine for each query, takes a second or more, and names
//! nodes by address and port. Prefer WebHDFS; fsck is for a cluster where WebHDFS is off or
//! requires Kerberos.
//!
//! A missing or corrupt block is a chunk on no node. A block group of an erasure coded file is
//! a chunk on every node that has a part of it. Neither answer shows how its cells are
//! distributed.
//!
//! *Invariant:* whatever the answer, parsing it neither panics nor yields a map with a byte
//! beyond the file's size.

mod answer;
pub mod fsck;
#[cfg(all(test, feature = "hdfs"))]
mod live_tests;
#[cfg(feature = "hdfs")]
pub mod web;

pub use answer::{parse_file_block_locations, parse_located_blocks};
pub use fsck::Fsck;
#[cfg(feature = "hdfs")]
pub use web::{WebHdfs, WebHdfsSettings};

use super::{ChunkMap, ChunkMapBuilder, Result};
use crate::volume::ByteRange;

/// One block of an answer.
struct HdfsBlock<'a> {
    range: ByteRange,
    nodes: Vec<&'a str>,
}

/// The map of a file of `size` bytes. Blocks may come in any order; blocks beyond the size were
/// written after the query.
fn build_chunk_map(mut blocks: Vec<HdfsBlock<'_>>, size: u64) -> Result<ChunkMap> {
    blocks.sort_by_key(|block| block.range.start);
    let whole = ByteRange::new(0, size);
    let mut builder = ChunkMapBuilder::new();
    for block in blocks {
        builder.add_chunk(block.range.intersect(whole), block.nodes)?;
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunks of a map, each as its bytes and its nodes' names.
    pub(super) fn list(map: &ChunkMap) -> Vec<(u64, u64, Vec<&str>)> {
        let name = |node: &u16| &*map.nodes()[usize::from(*node)];
        map.chunks()
            .map(|chunk| {
                (chunk.range.start, chunk.range.end, chunk.nodes.iter().map(name).collect())
            })
            .collect()
    }

    /// Whether the chunks are in order, apart, and within the file.
    pub(super) fn is_sound(map: &ChunkMap, size: u64) -> bool {
        let ranges: Vec<_> = map.chunks().map(|chunk| chunk.range).collect();
        ranges.iter().all(|range| range.start < range.end && range.end <= size)
            && ranges.windows(2).all(|pair| pair[0].end <= pair[1].start)
    }

    #[test]
    fn blocks_are_sorted_and_truncated_to_the_size() {
        let block =
            |start, end, node| HdfsBlock { range: ByteRange::new(start, end), nodes: vec![node] };
        let blocks = vec![block(20, 30, "c"), block(0, 10, "a"), block(40, 50, "d")];
        let map = build_chunk_map(blocks, 25).unwrap();
        assert_eq!(list(&map), [(0, 10, vec!["a"]), (20, 25, vec!["c"])]);
        assert!(build_chunk_map(vec![block(0, 10, "a"), block(9, 20, "b")], 20).is_err());
        assert!(
            build_chunk_map(vec![block(u64::MAX, u64::MAX, "a")], u64::MAX).unwrap().is_empty()
        );
    }
}
