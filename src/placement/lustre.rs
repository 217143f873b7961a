//! Lustre: the output of `lfs getstripe`.
//!
//! The tool prints a plain layout as keys and a table of the objects,
//!
//! ```text
//! /mnt/lustre/file
//! lmm_stripe_count:  2
//! lmm_stripe_size:   1048576
//! lmm_pattern:       raid0
//!         obdidx           objid           objid           group
//!             10               2             0x2               0
//!              3               3             0x3               0
//! ```
//!
//! and a composite one as `lcme_id` and an extent for each component, with
//! `- 0: { l_ost_idx: 10, l_fid: [...] }` for each object. The forms are described in "Managing
//! File Layout" of the Lustre Operations Manual. The composite form is that of `liblustreapi.c`
//! and of output that users have published. It was not tried against a live cluster. (`-y`
//! prints YAML, but not in every release.)
//!
//! OST 10 is the node `OST000a`, as `lfs osts` names it. In every component stripes are counted
//! from the file's offset 0, not from the extent's start. A component without objects has no
//! data on any OST and is a gap: it is not yet written, or on the MDT.
//!
//! Of a mirrored file (FLR), stale components and parity are left out. Overlapping components
//! with equal extents and stripe sizes are merged; of others the first one counts.
//!
//! Not handled: patterns other than raid0; directories; a name with a line
//! feed in it.

use std::time::Duration;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{
    ToolRunner, add_stripe, expected_error, last_line, numbered_lines, parse_number,
};
use super::{LocateFuture, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command.
pub const COMMAND: &[&str] = &["lfs", "getstripe", "{path}"];

/// The most cells that merging mirrors may produce: the OSTs that Lustre stripes over.
const MAX_MERGED_CELLS: usize = 2000;

/// The most mirrors that are merged: as many as Lustre has.
const MAX_MERGED_MIRRORS: usize = 16;

/// The most components; they are compared with each other.
const MAX_COMPONENTS: usize = 1024;

/// Asks Lustre's own tool.
#[derive(Clone, Debug)]
pub struct Lustre(ToolRunner);

impl Lustre {
    /// Runs `template`, for files below the Lustre mount `root`, for at most
    /// `limit`.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self(ToolRunner::new(template, root, limit))
    }
}

impl Provider for Lustre {
    fn name(&self) -> &'static str {
        "lustre"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move { parse(&self.0.query(query).await?, query.size) })
    }
}

/// A component as printed; a plain layout is one.
#[derive(Debug, Default)]
struct Component<'a> {
    line: usize,
    start: Option<u64>,
    end: Option<u64>,
    mirror: u64,
    /// Not to be read from: stale, or parity.
    is_skipped: bool,
    /// The text, not yet a number: -1 if there are no objects yet.
    stripe_count: Option<&'a str>,
    stripe_size: Option<&'a str>,
    osts: Vec<u64>,
}

/// A valid component.
struct CheckedComponent {
    line: usize,
    range: ByteRange,
    mirror: u64,
    stripe_size: u64,
    cells: Vec<Vec<String>>,
}

/// Where the chunks of a file of `size` bytes are.
///
/// # Errors
/// If `output` is not the layout of one file.
pub fn parse(output: &str, size: u64) -> Result<ChunkMap> {
    let components = parse_components(output)?;
    let mut stripes: Vec<CheckedComponent> = Vec::new();
    for component in &components {
        if let Some(stripe) = check_component(component)? {
            merge_component(&mut stripes, stripe)?;
        }
    }
    stripes.sort_by_key(|stripe| stripe.range.start);
    let file = ByteRange::new(0, size);
    let mut builder = ChunkMapBuilder::new();
    for stripe in &stripes {
        add_stripe(&mut builder, stripe.range.intersect(file), stripe.stripe_size, &stripe.cells)?;
    }
    Ok(builder.finish())
}

fn parse_components(output: &str) -> Result<Vec<Component<'_>>> {
    let mut layout = LayoutParser::default();
    for (line, text) in numbered_lines(output) {
        layout.read_line(line, text.trim())?;
    }
    if layout.entry_count.unwrap_or(1) != layout.components.len() as u64 {
        return expected_error(last_line(output), "as many components as the layout announces");
    }
    Ok(layout.components)
}

/// The part of the layout that has been read.
#[derive(Default)]
struct LayoutParser<'a> {
    components: Vec<Component<'a>>,
    /// `lcm_entry_count`, of a composite layout.
    entry_count: Option<u64>,
    /// Whether the head of the table of objects has been read.
    is_table: bool,
}

impl<'a> LayoutParser<'a> {
    fn read_line(&mut self, line: usize, text: &'a str) -> Result<()> {
        // The file's name, which may contain anything.
        if text.is_empty() || (line == 1 && text.starts_with('/')) {
            return Ok(());
        }
        if self.is_table {
            // Newer releases mark a row with `*` at its end.
            let index = parse_number(line, text.split_whitespace().next(), "an OST's index")?;
            return add_object(line, self.components.last_mut(), index);
        }
        // With `-v` each component is an item, and the parity groups are listed.
        match text.strip_prefix("- ").map(str::trim_start) {
            Some(item) if item.starts_with("lcme_id:") => self.read_key(line, item),
            Some(item) if item.contains("ec_data_count:") => Ok(()),
            Some(item) => parse_object_item(line, item, self.components.last_mut()),
            None if text.starts_with("obdidx") => {
                self.is_table = true;
                Ok(())
            }
            None => self.read_key(line, text),
        }
    }

    fn read_key(&mut self, line: usize, text: &'a str) -> Result<()> {
        let Some((key, value)) = text.split_once(':') else {
            return expected_error(line, "`KEY: VALUE`, or an object");
        };
        let value = value.trim();
        match key {
            "lcm_entry_count" => {
                let count = parse_number(line, Some(value), "the number of components")?;
                if self.entry_count.replace(count).is_some() {
                    return expected_error(line, "the layout of one file, not of a second");
                }
            }
            "lcme_id" => {
                if self.components.len() >= MAX_COMPONENTS {
                    return expected_error(line, "at most 1024 components");
                }
                self.components.push(Component { line, ..Component::default() });
            }
            "lmm_stripe_count" if self.entry_count.is_none() => {
                if !self.components.is_empty() {
                    return expected_error(line, "the layout of one file, not of a second");
                }
                self.components.push(Component {
                    line,
                    start: Some(0),
                    end: Some(u64::MAX),
                    stripe_count: Some(value),
                    ..Component::default()
                });
            }
            _ if key.starts_with("lcme_") || key.starts_with("lmm_") => {
                let Some(component) = self.components.last_mut() else {
                    return expected_error(line, "`lcme_id` or `lmm_stripe_count` first");
                };
                parse_detail(line, key, value, component)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn parse_detail<'a>(
    line: usize,
    key: &str,
    value: &'a str,
    component: &mut Component<'a>,
) -> Result<()> {
    let twice = match key {
        "lcme_mirror_id" => {
            component.mirror = parse_number(line, Some(value), "the mirror's number")?;
            false
        }
        "lcme_flags" => {
            component.is_skipped |= value.split(',').any(|flag| matches!(flag, "stale" | "parity"));
            false
        }
        "lcme_extent.e_start" => {
            let start = parse_number(line, Some(value), "the extent's first byte")?;
            component.start.replace(start).is_some()
        }
        "lcme_extent.e_end" => {
            let end = match value {
                "EOF" => u64::MAX,
                value => parse_number(line, Some(value), "EOF or the extent's end")?,
            };
            component.end.replace(end).is_some()
        }
        "lmm_stripe_count" => component.stripe_count.replace(value).is_some(),
        "lmm_stripe_size" => component.stripe_size.replace(value).is_some(),
        "lmm_pattern" => {
            // Old releases print bits: 1 is raid0, 100 the MDT, 200 that an OST
            // has several of the objects.
            let plain = [
                "raid0",
                "1",
                "mdt",
                "100",
                "overstriped",
                "201",
                "compress",
                "released",
                "80000001",
            ];
            component.is_skipped |= value.split(',').any(|pattern| pattern == "parity");
            if !value.split(',').all(|pattern| plain.contains(&pattern)) && !component.is_skipped {
                return expected_error(line, "the pattern raid0 or mdt");
            }
            false
        }
        _ => false,
    };
    if twice {
        return expected_error(line, "each detail of a component only once");
    }
    Ok(())
}

/// Reads `0: { l_ost_idx: 10, l_fid: [...] }`.
fn parse_object_item(
    line: usize,
    entry: &str,
    component: Option<&mut Component<'_>>,
) -> Result<()> {
    let (at, rest) = entry.split_once(':').unwrap_or((entry, ""));
    let at = parse_number(line, Some(at), "an object as `- NUMBER: { l_ost_idx: NUMBER, ...`")?;
    if component.as_ref().is_some_and(|component| component.osts.len() as u64 != at) {
        return expected_error(line, "objects in the order of their numbers");
    }
    let index = rest.split_once("l_ost_idx:").map(|(_, index)| index.trim_start());
    let index = index.and_then(|index| index.split([',', ' ', '}']).next());
    add_object(line, component, parse_number(line, index, "an OST's index after `l_ost_idx:`")?)
}

fn add_object(line: usize, component: Option<&mut Component<'_>>, index: u64) -> Result<()> {
    let Some(component) = component else {
        return expected_error(line, "`lmm_stripe_count` before the objects");
    };
    if index > u64::from(u32::MAX) {
        return expected_error(line, "an OST's index below 2^32");
    }
    component.osts.push(index);
    Ok(())
}

/// A component's stripe; `None` if it has no objects or is not to be read from.
fn check_component(component: &Component<'_>) -> Result<Option<CheckedComponent>> {
    let line = component.line;
    let Some((start, end)) = component.start.zip(component.end) else {
        return expected_error(line, "a component with an extent's start and end");
    };
    if end <= start {
        return expected_error(line, "a component with an end above its start");
    }
    if component.is_skipped {
        return Ok(None);
    }
    if component.osts.is_empty() {
        // Without a stripe size the output is cut off; with one the component is empty.
        return match component.stripe_size {
            Some(_) => Ok(None),
            None => expected_error(line, "a component with `lmm_stripe_size`"),
        };
    }
    let count = parse_number(line, component.stripe_count, "a component with `lmm_stripe_count`")?;
    let unit = parse_number(line, component.stripe_size, "a component with `lmm_stripe_size`")?;
    if count != component.osts.len() as u64 {
        return expected_error(line, "a component with as many objects as stripes");
    }
    if unit == 0 {
        return expected_error(line, "a component with a stripe size above 0");
    }
    let cells = component.osts.iter().map(|index| vec![format!("OST{index:04x}")]).collect();
    let range = ByteRange::new(start, end);
    Ok(Some(CheckedComponent { line, range, mirror: component.mirror, stripe_size: unit, cells }))
}

/// Adds `stripe`. If it overlaps a stripe of another mirror, it is merged into an equal one,
/// and otherwise ignored.
fn merge_component(stripes: &mut Vec<CheckedComponent>, stripe: CheckedComponent) -> Result<()> {
    let meets = |other: &&mut CheckedComponent| !other.range.intersect(stripe.range).is_empty();
    let Some(first) = stripes.iter_mut().find(meets) else {
        stripes.push(stripe);
        return Ok(());
    };
    if first.mirror == stripe.mirror {
        return expected_error(stripe.line, "components of one mirror that do not overlap");
    }
    let ours = first.cells.len();
    let theirs = stripe.cells.len();
    let united = lcm(ours, theirs);
    let few = united <= MAX_MERGED_CELLS && first.cells[0].len() < MAX_MERGED_MIRRORS;
    if first.range == stripe.range && first.stripe_size == stripe.stripe_size && few {
        let cell = |k: usize| [&first.cells[k % ours][..], &stripe.cells[k % theirs][..]].concat();
        first.cells = (0..united).map(cell).collect();
    }
    Ok(())
}

/// The least common multiple of two numbers above 0.
fn lcm(a: usize, b: usize) -> usize {
    let mut x = a;
    let mut y = b;
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const PLAIN: &str = include_str!("../../tests/fixtures/placement/lustre-plain.txt");
    const PFL: &str = include_str!("../../tests/fixtures/placement/lustre-pfl.txt");
    const FLR: &str = include_str!("../../tests/fixtures/placement/lustre-flr.txt");
    const UNEVEN: &str = include_str!("../../tests/fixtures/placement/lustre-flr-uneven.txt");
    const EC: &str = include_str!("../../tests/fixtures/placement/lustre-ec.txt");
    const M: u64 = 1 << 20;

    fn refused(output: &str) -> String {
        parse(output, 1 << 30).unwrap_err().to_string()
    }

    #[test]
    fn a_plain_file_alternates_between_its_objects() {
        let map = parse(PLAIN, 2 * M + 7).unwrap();
        let expected = [
            (0, M, vec!["OST000a"]),
            (M, 2 * M, vec!["OST0003"]),
            (2 * M, 2 * M + 7, vec!["OST000a"]),
        ];
        assert_eq!(listed(&map), expected);
        assert_eq!(parse(PLAIN, u64::MAX).unwrap().regions().len(), 1);
    }

    #[test]
    fn stripes_of_later_components_count_from_the_file_start() {
        let map = parse(PFL, 20 * M).unwrap();
        // The second starts at 3 MiB, in the middle of its second object's unit.
        let expected = [
            (0, M, vec!["OST0000"]),
            (M, 2 * M, vec!["OST0000"]),
            (2 * M, 3 * M, vec!["OST0000"]),
            (3 * M, 4 * M, vec!["OST001a"]),
            (4 * M, 6 * M, vec!["OST0001"]),
            (6 * M, 8 * M, vec!["OST001a"]),
            (8 * M, 10 * M, vec!["OST0001"]),
        ];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn equal_mirrors_are_merged_without_stale_ones() {
        let map = parse(FLR, 3 * M).unwrap();
        let expected = [
            (0, M, vec!["OST0000", "OST0002"]),
            (M, 2 * M, vec!["OST0000", "OST0003"]),
            (2 * M, 3 * M, vec!["OST0000", "OST0002"]),
        ];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn parity_objects_are_not_read() {
        let map = parse(EC, 5 * M).unwrap();
        assert_eq!(listed(&map), [(0, 4 * M, vec!["OST0001"]), (4 * M, 5 * M, vec!["OST0000"])]);
    }

    #[test]
    fn the_first_of_unequal_mirrors_is_used() {
        let map = parse(UNEVEN, 2 * M).unwrap();
        assert_eq!(listed(&map), [(0, M, vec!["OST0000"]), (M, 2 * M, vec!["OST0001"])]);
    }

    #[test]
    fn an_invalid_lustre_layout_is_refused_with_its_line() {
        assert!(refused("").starts_with("line 1 of"));
        assert!(refused("/a\nlmm_stripe_size: 5\n").starts_with("line 2 of"));
        assert!(refused("/a has no stripe info\n").starts_with("line 1 of"));
        assert!(refused(&PLAIN.replace("raid0", "raid7")).starts_with("line 4 of"));
        assert!(refused(&PLAIN.replace("1048576", "0")).starts_with("line 2 of"));
        assert!(refused(&PLAIN.replace("\t    10\t", "\t  abc\t")).starts_with("line 8 of"));
        assert!(refused(&PLAIN.replace("\t    10\t", "\t 4294967296\t")).starts_with("line 8 of"));
        assert!(refused(&PFL.replace("- 1:", "- 2:")).starts_with("line 30 of"));
        assert!(refused(&PFL.replace("3145728", "4145728x")).starts_with("line 9 of"));
        assert!(refused(&PFL.replace("e_end:   10485760", "e_end:   1")).starts_with("line 18 of"));
        assert!(refused(&format!("{PFL}{PFL}")).starts_with("line 43 of"));
        assert!(refused(&UNEVEN.replace("_id:      2", "_id:      1")).starts_with("line 33 of"));
    }

    #[test]
    fn a_truncated_layout_is_refused() {
        let end = PLAIN.find("\t     3").unwrap();
        for end in 0..=end {
            // Without its table a file has no objects, like a released file.
            let result = parse(&PLAIN[..end], M);
            assert!(result.is_err() || result.unwrap().is_empty(), "{end}");
        }
        let end = PFL.find("      - 1:").unwrap();
        for end in 0..=end {
            refused(&PFL[..end]);
        }
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            text in prop_oneof!["\\PC*", mangled(PLAIN), mangled(PFL), mangled(FLR), mangled(EC), mangled(UNEVEN)],
            size in prop_oneof![0..30 * M, any::<u64>()],
        ) {
            if let Ok(map) = parse(&text, size) {
                prop_assert!(is_sound(&map, size), "{map:?}");
            }
        }
    }
}
