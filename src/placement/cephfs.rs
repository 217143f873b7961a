//! CephFS: the file's layout, and `ceph osd map`.
//!
//! The layout is an extended attribute that a CephFS mount shows:
//!
//! ```text
//! stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data
//! ```
//!
//! An NFS mount of CephFS does not show it, so `{path}` is below a CephFS mount. Objects are
//! named `<inode, hexadecimal>.<number, 8 hexadecimal digits>`; the inode number is the same in
//! every mount. For each object `ceph osd map` prints
//!
//! ```text
//! {"epoch":8,"pool":"cephfs_data","pool_id":1,"objname":"10000000000.00000000",
//!  "raw_pgid":"1.f0b3c7b9","pgid":"1.1","up":[2,0,1],"up_primary":2,
//!  "acting":[2,0,1],"acting_primary":2}
//! ```
//!
//! The layout is described in "File Layouts" and "File Striping" of the Ceph documentation; the
//! JSON is that of `OSDMonitor.cc`. It was not tried against a live cluster. Nodes are named
//! like `osd.2`, in the acting set's order, the primary first.
//!
//! Each object costs one run of a program. So an answer covers only the range of the query, and
//! at most 64 objects of it.
//!
//! Not handled: pools with namespaces, which are refused; a snapshot's inode; erasure-coded
//! pools, where every OSD in the answer has a part of each object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinSet;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{ToolRunner, expected_error, parse_number};
use super::{LocateFuture, PlacementError, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command for an object.
pub const COMMAND: &[&str] = &["ceph", "osd", "map", "{pool}", "{object}", "--format=json"];

/// The default command for the layout.
pub const LAYOUT_COMMAND: &[&str] =
    &["getfattr", "--only-values", "--absolute-names", "-n", "ceph.file.layout", "{path}"];

/// The most objects in one answer.
pub const MAX_OBJECTS: u64 = 64;

/// The most programs that run at a time.
const MAX_PROCESSES: usize = 4;

/// The number for no OSD in an acting set.
const NO_OSD: i64 = 2_147_483_647;

/// Asks a CephFS mount, and Ceph's own tool.
#[derive(Clone, Debug)]
pub struct CephFs {
    layout_tool: ToolRunner,
    osd_map_tool: Arc<ToolRunner>,
}

impl CephFs {
    /// Runs `layout`, for files below the CephFS mount `root`, and `template` for each object.
    /// All programs together may take `limit`.
    pub fn new(
        template: CommandTemplate,
        layout: CommandTemplate,
        root: String,
        limit: Duration,
    ) -> Self {
        let layout = ToolRunner::new(layout, root.clone(), limit);
        Self { layout_tool: layout, osd_map_tool: Arc::new(ToolRunner::new(template, root, limit)) }
    }

    async fn query(&self, query: &Query) -> Result<ChunkMap> {
        let layout = parse_layout(&self.layout_tool.query(query).await?)?;
        let pieces = layout.pieces(query.range, query.size)?;
        let mut objects = pieces.iter().flat_map(|piece| piece.objects.iter().copied());
        let query = Arc::new(query.clone());
        let pool: Arc<str> = layout.pool.into();
        let mut osds = HashMap::new();
        // Dropping it kills the programs that still run.
        let mut running = JoinSet::new();
        loop {
            while running.len() < MAX_PROCESSES {
                let Some(object) = objects.next() else { break };
                let tool = self.osd_map_tool.clone();
                let query = query.clone();
                let pool = pool.clone();
                running.spawn(async move {
                    let name = object_name(query.inode, object);
                    let answer = tool.query_object(&query, &pool, &name).await?;
                    Ok::<_, PlacementError>((object, parse_osds(&answer)?))
                });
            }
            let Some(ended) = running.join_next().await else { break };
            let ended = ended.map_err(|error| PlacementError::InvalidAnswer(error.to_string()))?;
            let (object, nodes) = ended?;
            osds.insert(object, nodes);
        }
        assemble(&pieces, &osds)
    }
}

impl Provider for CephFs {
    fn name(&self) -> &'static str {
        "cephfs"
    }

    fn is_piecewise(&self) -> bool {
        true
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let limit = self.osd_map_tool.timeout();
            let answer = tokio::time::timeout(limit, self.query(query)).await;
            answer.unwrap_or(Err(PlacementError::TimedOut(limit)))
        })
    }
}

/// A file's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes in one object before the next object's turn.
    pub stripe_unit: u64,
    /// Objects that take turns.
    pub stripe_count: u64,
    /// Bytes of an object, a multiple of `stripe_unit`.
    pub object_size: u64,
    /// The pool's name or number.
    pub pool: String,
}

/// A part of a file that is striped over objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedPiece {
    /// Its bytes.
    pub range: ByteRange,
    /// Unit k is in object k modulo their number.
    pub unit: u64,
    /// The objects' numbers.
    pub objects: Vec<u64>,
}

impl Layout {
    /// The first objects that intersect `range` of a file of `size` bytes, at most
    /// [`MAX_OBJECTS`]. The pieces extend beyond `range` where that needs no further object.
    ///
    /// # Errors
    /// [`PlacementError::InvalidAnswer`] if the layout's numbers are impossible.
    pub fn pieces(&self, range: ByteRange, size: u64) -> Result<Vec<StripedPiece>> {
        let nonsense = || {
            PlacementError::InvalidAnswer(format!(
                "units of {} in {} objects of {} bytes",
                self.stripe_unit, self.stripe_count, self.object_size
            ))
        };
        let count = self.stripe_count;
        // If only one object is filled at a time, its units are contiguous.
        let unit = if count == 1 { self.object_size } else { self.stripe_unit };
        let set_size = self.object_size.checked_mul(count).ok_or_else(nonsense)?;
        let whole = self.object_size.checked_rem(self.stripe_unit) == Some(0);
        if !whole || set_size == 0 {
            return Err(nonsense());
        }
        let file = ByteRange::new(0, size);
        let wanted = range.intersect(file);
        let mut pieces = Vec::new();
        let mut at = wanted.start;
        let mut left = MAX_OBJECTS;
        while at < wanted.end && left > 0 {
            let number = at / set_size;
            let set = ByteRange::at(number * set_size, set_size);
            let part = ByteRange::new(at, wanted.end).intersect(set);
            let first = (part.start - set.start) / unit;
            let last = (part.end - 1 - set.start) / unit;
            let units = last - first + 1;
            let object = |k: u64| number.checked_mul(count)?.checked_add(k % count);
            let (first, objects, range) = if units >= count && count <= left {
                (0, count, set)
            } else {
                let units = units.min(left).min(count);
                (first, units, ByteRange::at(set.start + first * unit, units * unit).intersect(set))
            };
            let objects: Option<Vec<u64>> = (first..first + objects).map(object).collect();
            let objects = objects.ok_or_else(nonsense)?;
            left -= objects.len() as u64;
            at = range.end;
            pieces.push(StripedPiece { range: range.intersect(file), unit, objects });
        }
        Ok(pieces)
    }
}

/// The layout in the extended attribute `ceph.file.layout`.
///
/// # Errors
/// If `output` has another form.
pub fn parse_layout(output: &str) -> Result<Layout> {
    // A pool's name comes last and may have spaces in it.
    let text = output.trim_end_matches(['\n', '\0']);
    let Some((numbers, pool)) = text.split_once(" pool=") else {
        return expected_error(1, "a layout, `stripe_unit=... pool=...`");
    };
    if pool.contains(" pool_namespace=") {
        return expected_error(1, "a pool without a namespace (fanfs does not support namespaces)");
    }
    if pool.is_empty() || pool.starts_with('-') || pool.chars().any(char::is_control) {
        return expected_error(1, "the pool's name after `pool=`");
    }
    let value = |key: &str| {
        let mut words = numbers.split_whitespace().filter_map(|word| word.split_once('='));
        let value = words.find(|(found, _)| *found == key).map(|(_, value)| value);
        match parse_number(1, value, &format!("`{key}=`"))? {
            0 => expected_error(1, &format!("`{key}=` above 0")),
            value => Ok(value),
        }
    };
    let layout = Layout {
        stripe_unit: value("stripe_unit")?,
        stripe_count: value("stripe_count")?,
        object_size: value("object_size")?,
        pool: pool.to_owned(),
    };
    if !layout.object_size.is_multiple_of(layout.stripe_unit) {
        return expected_error(1, "an `object_size` that is a multiple of `stripe_unit`");
    }
    Ok(layout)
}

#[derive(Deserialize)]
struct OsdMapAnswer {
    acting: Vec<i64>,
}

/// The nodes in the answer of `ceph osd map` for one object.
///
/// # Errors
/// If `output` is not its JSON.
pub fn parse_osds(output: &str) -> Result<Vec<String>> {
    let map: OsdMapAnswer = match serde_json::from_str(output) {
        Ok(map) => map,
        Err(error) => {
            return expected_error(error.line().max(1), "JSON with a list of numbers in `acting`");
        }
    };
    let there = map.acting.into_iter().filter(|osd| (0..NO_OSD).contains(osd));
    Ok(there.map(|osd| format!("osd.{osd}")).collect())
}

/// The map of `pieces`, with the nodes of each object.
///
/// # Errors
/// As [`ChunkMapBuilder::add_striped`], for pieces that are out of order.
pub fn assemble(pieces: &[StripedPiece], osds: &HashMap<u64, Vec<String>>) -> Result<ChunkMap> {
    let mut builder = ChunkMapBuilder::new();
    for piece in pieces {
        let nodes = |object| osds.get(object).into_iter().flatten().map(String::as_str);
        builder.add_striped(piece.range, piece.unit, piece.objects.iter().map(nodes))?;
    }
    Ok(builder.finish())
}

/// Parses a layout, and an answer for every object of it, in their order.
///
/// # Errors
/// As [`parse_layout`] and [`parse_osds`].
pub fn parse(layout: &str, answers: &[&str], range: ByteRange, size: u64) -> Result<ChunkMap> {
    let pieces = parse_layout(layout)?.pieces(range, size)?;
    let objects = pieces.iter().flat_map(|piece| piece.objects.iter().copied());
    let mut osds = HashMap::new();
    for (object, answer) in objects.zip(answers) {
        osds.insert(object, parse_osds(answer)?);
    }
    assemble(&pieces, &osds)
}

fn object_name(inode: u64, object: u64) -> String {
    format!("{inode:x}.{object:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const LAYOUT: &str = include_str!("../../tests/fixtures/placement/cephfs-layout.txt");
    const OBJECT: &str = include_str!("../../tests/fixtures/placement/cephfs-osd-map.txt");
    const DEGRADED: &str =
        include_str!("../../tests/fixtures/placement/cephfs-osd-map-degraded.txt");
    const M: u64 = 1 << 20;

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn layout(stripe_unit: u64, stripe_count: u64, object_size: u64) -> Layout {
        Layout { stripe_unit, stripe_count, object_size, pool: "p".to_owned() }
    }

    fn template(words: &[&str]) -> CommandTemplate {
        CommandTemplate::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
    }

    /// The object of a byte, as "File Striping" computes it.
    fn object_at(layout: &Layout, offset: u64) -> u64 {
        let block = offset / layout.stripe_unit;
        let stripe = block / layout.stripe_count;
        let set = stripe / (layout.object_size / layout.stripe_unit);
        set * layout.stripe_count + block % layout.stripe_count
    }

    #[test]
    fn the_default_layout_maps_objects_in_sequence() {
        let map = parse(LAYOUT, &[OBJECT, DEGRADED], r(3 * M, 6 * M), 7 * M).unwrap();
        let expected =
            [(0, 4 * M, vec!["osd.2", "osd.0", "osd.1"]), (4 * M, 7 * M, vec!["osd.2", "osd.1"])];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn alternating_objects_form_a_stripe() {
        let layout = layout(M, 2, 4 * M);
        let pieces = layout.pieces(r(7 * M, 12 * M), 13 * M).unwrap();
        let expected = [
            StripedPiece { range: r(7 * M, 8 * M), unit: M, objects: vec![1] },
            StripedPiece { range: r(8 * M, 13 * M), unit: M, objects: vec![2, 3] },
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn object_queries_are_limited() {
        let pieces = layout(4 * M, 1, 4 * M).pieces(r(0, u64::MAX), u64::MAX).unwrap();
        assert_eq!(pieces.len() as u64, MAX_OBJECTS);
        assert_eq!(pieces.last().unwrap().range, r(252 * M, 256 * M));
        let pieces = layout(M, 1000, 4 * M).pieces(r(0, u64::MAX), u64::MAX).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].range, r(0, 64 * M));
        assert!(layout(M, 1, M).pieces(r(5, 5), 10).unwrap().is_empty());
        assert!(layout(M, 1, M).pieces(r(10, 20), 10).unwrap().is_empty());
    }

    #[test]
    fn an_object_is_named_after_the_inode() {
        assert_eq!(object_name(1 << 40, 0), "10000000000.00000000");
        assert_eq!(object_name(0x1234, 0x1f), "1234.0000001f");
    }

    #[test]
    fn an_invalid_ceph_layout_is_refused() {
        let refused = |text: &str| {
            let error = parse_layout(text).unwrap_err().to_string();
            assert!(error.starts_with("line 1 of the answer: expected "), "{error}");
        };
        let pool = LAYOUT.find("cephfs_data").unwrap();
        for end in 0..=pool {
            refused(&LAYOUT[..end]);
        }
        refused(&LAYOUT.replace("stripe_count=1", "stripe_count=0"));
        refused(&LAYOUT.replace("unit=4194304", "unit=4194303"));
        refused(&LAYOUT.replace("unit=4194304", "unit=18446744073709551616"));
        refused(&LAYOUT.replace("cephfs_data", "a pool_namespace=b"));
        refused(&LAYOUT.replace("cephfs_data", "--help"));
        let far = parse_layout(&LAYOUT.replace("count=1", "count=9999999999999999")).unwrap();
        assert!(far.pieces(r(0, 1), 1).is_err());
    }

    #[test]
    fn an_invalid_acting_set_is_refused() {
        let whole = OBJECT.trim_end();
        for end in 0..whole.len() {
            assert!(parse_osds(&whole[..end]).is_err());
        }
        let error = parse_osds("\n{\"acting\": \"x\"}").unwrap_err().to_string();
        assert!(error.starts_with("line 2 of the answer: expected JSON"), "{error}");
        assert_eq!(parse_osds("{\"acting\":[-1,2147483648]}").unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn every_object_of_the_range_is_queried() {
        let layout = "printf 'stripe_unit=4 stripe_count=1 object_size=4 pool=the pool'";
        // The script returns the object's number as the acting set.
        let script = r#"test "$1" = 'the pool' && IFS=. && set -- $2 && test $1 = ff &&
            printf '\173"acting":[%d]\175' 0x$2"#;
        let map = template(&["sh", "-c", script, "sh", "{pool}", "{object}"]);
        let limit = Duration::from_secs(20);
        let ceph = CephFs::new(map, template(&["sh", "-c", layout]), "/".to_owned(), limit);
        let query = Query {
            path: "f".into(),
            size: 100,
            inode: 255,
            range: r(6, 26),
            replica: "/r".into(),
        };
        let map = ceph.locate(&query).await.unwrap();
        let expected = ["osd.1", "osd.2", "osd.3", "osd.4", "osd.5", "osd.6"];
        let found = listed(&map);
        assert_eq!((found[0].0, found[5].1), (4, 28));
        assert_eq!(found.iter().map(|(_, _, nodes)| nodes[0]).collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn all_ceph_programs_share_one_time_limit() {
        let layout = "printf 'stripe_unit=4 stripe_count=1 object_size=4 pool=p'";
        let slow = template(&["sleep", "0.2"]);
        let limit = Duration::from_millis(300);
        let ceph = CephFs::new(slow, template(&["sh", "-c", layout]), "/".to_owned(), limit);
        let query = Query {
            path: "f".into(),
            size: 4000,
            inode: 255,
            range: r(0, 4000),
            replica: "/r".into(),
        };
        assert!(ceph.locate(&query).await.is_err());
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            layout in prop_oneof!["\\PC*", mangled(LAYOUT)],
            object in prop_oneof!["\\PC*", mangled(OBJECT), mangled(DEGRADED)],
            start in prop_oneof![0..99 * M, any::<u64>()],
            len in prop_oneof![0..99 * M, any::<u64>()],
            size in prop_oneof![0..99 * M, any::<u64>()],
        ) {
            let _ = parse_osds(&object);
            for layout in [&layout, LAYOUT] {
                for object in [&object, OBJECT] {
                    let range = ByteRange::at(start, len);
                    if let Ok(map) = parse(layout, &[object; 64], range, size) {
                        prop_assert!(is_sound(&map, size), "{map:?}");
                    }
                }
            }
        }

        #[test]
        fn every_byte_is_in_the_object_that_ceph_computes(
            layout in (1u64..5, 1u64..6, 1u64..4)
                .prop_map(|(unit, count, units)| layout(unit, count, unit * units)),
            start in 0u64..200, len in 1u64..300, size in 1u64..400,
        ) {
            let pieces = layout.pieces(r(start, start + len), size).unwrap();
            let name = |object: &u64| (*object, vec![format!("osd.{object}")]);
            let osds = pieces.iter().flat_map(|piece| &piece.objects).map(name).collect();
            let map = assemble(&pieces, &osds).unwrap();
            let asked: u64 = pieces.iter().map(|piece| piece.objects.len() as u64).sum();
            prop_assert!(asked <= MAX_OBJECTS);
            let mut covered = r(0, 0);
            for (start, end, nodes) in listed(&map) {
                for byte in start..end {
                    prop_assert_eq!(nodes[0], format!("osd.{}", object_at(&layout, byte)));
                }
                covered = r(if covered.is_empty() { start } else { covered.start }, end);
            }
            let wanted = r(start, start + len).intersect(r(0, size));
            prop_assert!(asked == MAX_OBJECTS || wanted.intersect(covered) == wanted);
        }
    }
}
