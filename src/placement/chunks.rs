//! Which nodes hold which bytes of a file.
//!
//! A [`ChunkMap`] is a provider's answer: regions in the order of the file, each cut into units
//! of one size whose nodes follow a pattern. A region whose unit is its whole length is one
//! chunk (MapR, HDFS). A region of many units over a few cells is a stripe (Lustre, BeeGFS),
//! which would otherwise take millions of chunks. Bytes outside all regions have an unknown
//! placement.
//!
//! Not all copies are equal: a provider reports which of them its gateways read, and which are
//! spare ([`Copies`]). A cell may also be unknown.
//!
//! [`LocalityMap`] is the same with the volume's replicas in place of nodes. The read path
//! looks offsets up in it.
//!
//! *Invariants:* regions are in order and do not overlap, none is empty, units are above 0, and
//! [`MAX_CELLS`] and [`MAX_NODES`] bound everything, whatever a provider answers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::error::PlacementError;
use crate::volume::{ByteRange, Holders, ReplicaSet};

/// The most cells in one answer: a file of 4 TiB in objects of 4 MiB, or 256 TiB in chunks of
/// 256 MiB.
pub const MAX_CELLS: usize = 1 << 20;

/// The most different nodes in one answer; the largest HDFS clusters have a few thousand.
pub const MAX_NODES: usize = 1 << 14;

/// The most copies of one chunk. More indicate a parsing error.
pub const MAX_COPIES: usize = 256;

/// A stretch of a file whose nodes follow one pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The bytes it covers.
    pub range: ByteRange,
    /// Bytes of one unit.
    pub unit: u64,
    /// The nodes of unit k are those of cell k modulo the number of cells; `None` if unknown.
    pub cells: Vec<Option<Cell>>,
}

impl Region {
    fn cell(&self, unit: u64) -> Option<&Cell> {
        self.cells[(unit % self.cells.len() as u64) as usize].as_ref()
    }
}

/// The nodes with a copy of a chunk, as indices into [`ChunkMap::nodes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// In the provider's order; those whose copies are read come first.
    pub nodes: Vec<u16>,
    /// The number of those.
    pub read: usize,
}

/// The nodes with a copy of a chunk, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies<'n> {
    /// The nodes of copies that gateways read. The gateway on such a node needs no other.
    pub read: Vec<&'n str>,
    /// The nodes of copies that no gateway reads while the others are there.
    pub spare: Vec<&'n str>,
}

/// One chunk and the nodes that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Its bytes.
    pub range: ByteRange,
    /// Indices into [`ChunkMap::nodes`], in the provider's order; those whose copies are read come
    /// first.
    pub nodes: &'a [u16],
    /// The number of those.
    pub read: usize,
}

impl<'a> Chunk<'a> {
    fn new(range: ByteRange, cell: &'a Cell) -> Self {
        Self { range, nodes: &cell.nodes, read: cell.read }
    }

    /// The nodes whose copies are read.
    pub fn read_nodes(&self) -> &'a [u16] {
        &self.nodes[..self.read]
    }
}

/// A provider's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkMap {
    nodes: Vec<Box<str>>,
    regions: Vec<Region>,
}

impl ChunkMap {
    /// The nodes in the answer, each once, in order of appearance.
    pub fn nodes(&self) -> &[Box<str>] {
        &self.nodes
    }

    /// The regions, in the order of the file.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Whether it has no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Every known chunk, in the order of the file. There may be a great many.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        self.regions.iter().flat_map(|region| {
            let units = region.range.len().div_ceil(region.unit);
            (0..units).filter_map(|unit| {
                let range = ByteRange::at(region.range.start + unit * region.unit, region.unit);
                Some(Chunk::new(range.intersect(region.range), region.cell(unit)?))
            })
        })
    }

    /// The chunk that contains the byte at `offset`; `None` if that is unknown.
    pub fn chunk_at(&self, offset: u64) -> Option<Chunk<'_>> {
        let next = self.regions.partition_point(|region| region.range.end <= offset);
        let region = self.regions.get(next).filter(|region| region.range.start <= offset)?;
        let unit = (offset - region.range.start) / region.unit;
        let range = ByteRange::at(region.range.start + unit * region.unit, region.unit);
        Some(Chunk::new(range.intersect(region.range), region.cell(unit)?))
    }

    /// The same with replicas in place of nodes: `local` returns the replicas that are local to
    /// the node with an index.
    pub fn to_locality_map(&self, local: impl Fn(usize) -> ReplicaSet) -> LocalityMap {
        let sets: Vec<ReplicaSet> = (0..self.nodes.len()).map(local).collect();
        let holders = |cell: &Cell| {
            let (read, spare) = cell.nodes.split_at(cell.read);
            let set = |node: &u16| sets[usize::from(*node)];
            let union =
                |nodes: &[u16]| nodes.iter().map(set).fold(ReplicaSet::EMPTY, ReplicaSet::or);
            let local = union(read);
            Holders {
                local,
                spare: union(spare).minus(local),
                is_held_elsewhere: read.iter().map(set).any(ReplicaSet::is_empty),
            }
        };
        let mut known = HashMap::from([(None, 0)]);
        let mut all = vec![None];
        let mut index = |cell: &Option<Cell>| {
            let holders = cell.as_ref().map(holders);
            let next = known.len();
            // More kinds than indices: the others count as unknown.
            let index = match known.entry(holders) {
                Entry::Occupied(entry) => return *entry.get(),
                Entry::Vacant(entry) => *entry.insert(u16::try_from(next).unwrap_or(0)),
            };
            if index > 0 {
                all.push(holders);
            }
            index
        };
        let regions = self.regions.iter().map(|region| LocalityRegion {
            range: region.range,
            unit: region.unit,
            cells: region.cells.iter().map(&mut index).collect(),
        });
        let regions = regions.collect();
        LocalityMap { regions, holders: all }
    }
}

/// Builds a [`ChunkMap`], and refuses invalid parts.
#[derive(Debug, Default)]
pub struct ChunkMapBuilder {
    map: ChunkMap,
    node_index: HashMap<Box<str>, u16>,
    cell_count: usize,
}

impl ChunkMapBuilder {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one chunk, held by `nodes`. An empty chunk is left out.
    ///
    /// # Errors
    /// [`PlacementError::InvalidAnswer`] if it overlaps or precedes an earlier part, or exceeds
    /// a limit.
    pub fn add_chunk<'n>(
        &mut self,
        range: ByteRange,
        nodes: impl IntoIterator<Item = &'n str>,
    ) -> Result<(), PlacementError> {
        self.add_striped(range, range.len(), [nodes])
    }

    /// Adds units of `unit` bytes, whose copies are all read. Unit k is held by cell k modulo the
    /// number of cells.
    ///
    /// # Errors
    /// As [`ChunkMapBuilder::add_chunk`], and if there is no cell or no unit.
    pub fn add_striped<'n, N: IntoIterator<Item = &'n str>>(
        &mut self,
        range: ByteRange,
        unit: u64,
        cells: impl IntoIterator<Item = N>,
    ) -> Result<(), PlacementError> {
        let all_read =
            |cell: N| Some(Copies { read: cell.into_iter().collect(), spare: Vec::new() });
        self.add_cells(range, unit, cells.into_iter().map(all_read))
    }

    /// Adds units of `unit` bytes. Unit k is held by cell k modulo the number of cells; `None` is
    /// unknown.
    ///
    /// # Errors
    /// As [`ChunkMapBuilder::add_striped`].
    pub fn add_cells<'n>(
        &mut self,
        range: ByteRange,
        unit: u64,
        cells: impl IntoIterator<Item = Option<Copies<'n>>>,
    ) -> Result<(), PlacementError> {
        let nonsense = |what: String| Err(PlacementError::InvalidAnswer(what));
        if range.is_empty() {
            return Ok(());
        }
        let end = self.map.regions.last().map_or(0, |last| last.range.end);
        if range.start < end {
            return nonsense(format!("bytes {range:?} are listed after byte {end}"));
        }
        let mut numbered = Vec::new();
        for cell in cells {
            self.cell_count += 1;
            if self.cell_count > MAX_CELLS {
                return nonsense(format!("more than {MAX_CELLS} chunks"));
            }
            numbered.push(cell.map(|copies| self.intern_cell(&copies)).transpose()?);
        }
        if unit == 0 || numbered.is_empty() {
            return nonsense(format!("bytes {range:?} are cut into units of {unit} bytes"));
        }
        self.map.regions.push(Region { range, unit, cells: numbered });
        Ok(())
    }

    fn intern_cell(&mut self, copies: &Copies<'_>) -> Result<Cell, PlacementError> {
        let mut cell = Cell::default();
        for (rank, name) in copies.read.iter().chain(&copies.spare).enumerate() {
            let node = self.intern_node(name)?;
            if !cell.nodes.contains(&node) {
                cell.nodes.push(node);
            }
            if cell.nodes.len() > MAX_COPIES {
                let what = format!("more than {MAX_COPIES} copies of one chunk");
                return Err(PlacementError::InvalidAnswer(what));
            }
            if rank < copies.read.len() {
                cell.read = cell.nodes.len();
            }
        }
        Ok(cell)
    }

    fn intern_node(&mut self, name: &str) -> Result<u16, PlacementError> {
        if let Some(index) = self.node_index.get(name) {
            return Ok(*index);
        }
        // Names are host names, addresses or volume names. They come from a tool's output, and
        // fanfs writes them to logs and terminals.
        if name.is_empty() || name.len() > 253 || name.chars().any(char::is_control) {
            let start: String = name.chars().take(80).collect();
            return Err(PlacementError::InvalidAnswer(format!("{start:?} is not a node's name")));
        }
        if self.map.nodes.len() >= MAX_NODES {
            return Err(PlacementError::InvalidAnswer(format!("more than {MAX_NODES} nodes")));
        }
        let index = self.map.nodes.len() as u16;
        self.map.nodes.push(name.into());
        self.node_index.insert(name.into(), index);
        Ok(index)
    }

    /// The finished map.
    pub fn finish(self) -> ChunkMap {
        self.map
    }
}

/// Which replicas are local to which bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalityMap {
    regions: Vec<LocalityRegion>,
    /// The different holders; cells have their indices, as a file may have a million cells.
    holders: Vec<Option<Holders>>,
}

/// A chunk and the replicas that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocatedChunk {
    /// Its bytes.
    pub range: ByteRange,
    /// The replicas.
    pub holders: Holders,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LocalityRegion {
    range: ByteRange,
    unit: u64,
    /// Indices into [`LocalityMap::holders`].
    cells: Vec<u16>,
}

impl LocalityMap {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The chunk that contains the byte at `offset`; `None` if that is unknown.
    pub fn chunk_at(&self, offset: u64) -> Option<LocatedChunk> {
        let next = self.regions.partition_point(|region| region.range.end <= offset);
        let region = self.regions.get(next).filter(|region| region.range.start <= offset)?;
        let unit = (offset - region.range.start) / region.unit;
        let start = region.range.start + unit * region.unit;
        let cell = region.cells[(unit % region.cells.len() as u64) as usize];
        let holders = self.holders[usize::from(cell)]?;
        let range = ByteRange::at(start, region.unit).intersect(region.range);
        Some(LocatedChunk { range, holders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::ReplicaId;
    use proptest::prelude::*;

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn local(node: usize) -> ReplicaSet {
        ReplicaSet::EMPTY.with(ReplicaId::new(node))
    }

    #[test]
    fn lookups_find_chunks_and_stripes() {
        let mut builder = ChunkMapBuilder::new();
        builder.add_chunk(r(0, 10), ["a", "b"]).unwrap();
        builder.add_striped(r(20, 55), 10, [["b"], ["c"]]).unwrap();
        let map = builder.finish();
        assert_eq!(map.chunks().count(), 5);
        let last = map.chunks().last().unwrap();
        assert_eq!((last.range, last.nodes), (r(50, 55), &[2u16][..]));
        let mapped = map.to_locality_map(local);
        let held = |local, range| Some(LocatedChunk { range, holders: Holders::local(local) });
        assert_eq!(mapped.chunk_at(9), held(local(0).or(local(1)), r(0, 10)));
        assert_eq!(mapped.chunk_at(10), None);
        assert_eq!(mapped.chunk_at(31), held(local(2), r(30, 40)));
        assert_eq!(mapped.chunk_at(54), held(local(2), r(50, 55)));
        assert_eq!(mapped.chunk_at(55), None);
        let half = map.to_locality_map(|node| if node == 0 { local(0) } else { ReplicaSet::EMPTY });
        assert_eq!(
            half.chunk_at(9).unwrap().holders,
            Holders { is_held_elsewhere: true, ..Holders::local(local(0)) }
        );
    }

    #[test]
    fn spare_copies_and_unknown_cells_are_kept_apart() {
        let copies = |read: &[&'static str], spare: &[&'static str]| {
            Some(Copies { read: read.to_vec(), spare: spare.to_vec() })
        };
        let mut builder = ChunkMapBuilder::new();
        let cells =
            [copies(&["b"], &["a", "b"]), None, copies(&[], &["c"]), copies(&["d"], &["a"])];
        builder.add_cells(r(0, 45), 10, cells).unwrap();
        let map = builder.finish();
        let starts: Vec<_> = map.chunks().map(|chunk| chunk.range.start).collect();
        assert_eq!(starts, [0, 20, 30, 40], "the unknown chunk is left out");
        let first = map.chunk_at(41).unwrap();
        assert_eq!((first.nodes, first.read_nodes()), (&[0u16, 1][..], &[0u16][..]));
        assert_eq!(map.chunk_at(10), None);
        // Replica 0 is on b, 1 on a, 2 on c; none is on d.
        let mapped =
            map.to_locality_map(|node| if node < 3 { local(node) } else { ReplicaSet::EMPTY });
        let holders = |offset| mapped.chunk_at(offset).map(|chunk| chunk.holders);
        assert_eq!(holders(0), Some(Holders { spare: local(1), ..Holders::local(local(0)) }));
        assert_eq!(holders(10), None);
        let spare_only = Holders { spare: local(2), ..Holders::local(ReplicaSet::EMPTY) };
        assert_eq!(holders(20), Some(spare_only), "a spare copy elsewhere is no disk to read");
        let elsewhere = Holders {
            spare: local(1),
            is_held_elsewhere: true,
            ..Holders::local(ReplicaSet::EMPTY)
        };
        assert_eq!(holders(30), Some(elsewhere));
    }

    #[test]
    fn invalid_chunks_are_refused() {
        let mut builder = ChunkMapBuilder::new();
        builder.add_chunk(r(0, 10), ["a"]).unwrap();
        assert!(builder.add_chunk(r(5, 20), ["a"]).is_err());
        assert!(builder.add_striped(r(10, 20), 0, [["a"]]).is_err());
        assert!(builder.add_striped(r(10, 20), 5, [[""]; 0]).is_err());
        assert!(builder.add_chunk(r(10, 20), ["a\nb"]).is_err());
        assert!(builder.add_chunk(r(10, 20), [""]).is_err());
        builder.add_chunk(r(10, 10), ["not even looked at\n"]).unwrap();
    }

    proptest! {
        #[test]
        fn every_chunk_is_found_at_its_offset(
            regions in proptest::collection::vec((0u64..50, 1u64..200, 1u64..60, 1usize..5), 1..20),
            offset in 0u64..5000,
        ) {
            let mut builder = ChunkMapBuilder::new();
            let mut at = 0;
            for (gap, len, unit, cells) in regions {
                let cells = (0..cells).map(|cell| [["n0", "n1", "n2", "n3", "n4"][cell]]);
                builder.add_striped(ByteRange::at(at + gap, len), unit, cells).unwrap();
                at += gap + len;
            }
            let map = builder.finish();
            let mapped = map.to_locality_map(local);
            let holding = map.chunks().find(|c| c.range.start <= offset && offset < c.range.end);
            let expected = holding.map(|chunk| {
                let local = local(usize::from(chunk.nodes[0]));
                LocatedChunk { range: chunk.range, holders: Holders::local(local) }
            });
            prop_assert_eq!(map.chunk_at(offset), holding);
            prop_assert_eq!(mapped.chunk_at(offset), expected);
        }
    }
}
