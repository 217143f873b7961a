//! The JSON answers of WebHDFS.
//!
//! Nodes are taken by host name if there is one: a node's address denotes the same copy once
//! more.
//!
//! *Invariant:* memory is bounded by the map's limits, not by the answer: a list that is longer
//! than its limit is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::{HdfsBlock, build_chunk_map};
use crate::placement::chunks::{MAX_CELLS, MAX_COPIES};
use crate::placement::{ChunkMap, PlacementError, Result};
use crate::volume::ByteRange;

/// A list of at most `MOST` elements; null is the empty list.
struct BoundedVec<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Default for BoundedVec<T, MOST> {
    fn default() -> Self {
        BoundedVec(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for BoundedVec<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct BoundedVecVisitor<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for BoundedVecVisitor<T, MOST> {
            type Value = BoundedVec<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST}")
            }

            fn visit_unit<E: de::Error>(self) -> std::result::Result<Self::Value, E> {
                Ok(BoundedVec::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut few = Vec::new();
                while let Some(element) = list.next_element()? {
                    if few.len() == MOST {
                        return Err(de::Error::invalid_length(MOST + 1, &self));
                    }
                    few.push(element);
                }
                Ok(BoundedVec(few))
            }
        }
        from.deserialize_any(BoundedVecVisitor(PhantomData))
    }
}

#[derive(Deserialize)]
struct FileBlockLocations {
    #[serde(rename = "BlockLocations")]
    locations: BlockLocations,
}

#[derive(Deserialize)]
struct BlockLocations {
    #[serde(rename = "BlockLocation")]
    blocks: BoundedVec<BlockLocation, MAX_CELLS>,
}

#[derive(Deserialize)]
struct BlockLocation {
    offset: u64,
    length: u64,
    #[serde(default)]
    corrupt: bool,
    #[serde(default)]
    hosts: BoundedVec<String, MAX_COPIES>,
    #[serde(default)]
    names: BoundedVec<String, MAX_COPIES>,
}

#[derive(Deserialize)]
struct BlockLocationsOfFile {
    #[serde(rename = "LocatedBlocks")]
    located: LocatedBlocks,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LocatedBlocks {
    located_blocks: BoundedVec<LocatedBlock, MAX_CELLS>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LocatedBlock {
    start_offset: u64,
    block: BlockLength,
    #[serde(default)]
    is_corrupt: bool,
    #[serde(default)]
    locations: BoundedVec<Location, MAX_COPIES>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockLength {
    num_bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Location {
    host_name: String,
    name: String,
}

/// Reads the answer to `GETFILEBLOCKLOCATIONS` for a file of `size` bytes.
///
/// # Errors
/// [`PlacementError::InvalidAnswer`] if it has another form, or is impossible.
pub fn parse_file_block_locations(answer: &[u8], size: u64) -> Result<ChunkMap> {
    let answer: FileBlockLocations = serde_json::from_slice(answer).map_err(json_error)?;
    let blocks = answer.locations.blocks.0.iter().map(|block| {
        let is_named = block.hosts.0.iter().any(|host| !host.is_empty());
        let nodes = if is_named { &block.hosts.0 } else { &block.names.0 };
        let nodes = nodes.iter().map(String::as_str).filter(|node| !node.is_empty());
        HdfsBlock {
            range: ByteRange::at(block.offset, block.length),
            nodes: nodes.filter(|_| !block.corrupt).collect(),
        }
    });
    build_chunk_map(blocks.collect(), size)
}

/// Reads the answer to `GET_BLOCK_LOCATIONS` for a file of `size` bytes.
///
/// # Errors
/// [`PlacementError::InvalidAnswer`] if it has another form, or is impossible.
pub fn parse_located_blocks(answer: &[u8], size: u64) -> Result<ChunkMap> {
    let answer: BlockLocationsOfFile = serde_json::from_slice(answer).map_err(json_error)?;
    let blocks = answer.located.located_blocks.0.iter().map(|block| {
        let is_named = |at: &Location| !at.host_name.is_empty();
        let nodes = block.locations.0.iter();
        let nodes = nodes.map(|at| if is_named(at) { &*at.host_name } else { &*at.name });
        HdfsBlock {
            range: ByteRange::at(block.start_offset, block.block.num_bytes),
            nodes: nodes.filter(|node| !node.is_empty() && !block.is_corrupt).collect(),
        }
    });
    build_chunk_map(blocks.collect(), size)
}

/// The error for an answer with another form. It leaves out the parser's own message, which may
/// quote any part of the answer.
fn json_error(error: serde_json::Error) -> PlacementError {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Data => "it is not the JSON that WebHDFS answers",
        _ => "it is not JSON",
    };
    let line = error.line();
    let column = error.column();
    PlacementError::InvalidAnswer(format!("{what}, line {line} column {column}"))
}

#[cfg(test)]
mod tests;
