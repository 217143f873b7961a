//! BeeGFS: the output of `beegfs-ctl --getentryinfo`.
//!
//! The tool prints how the file is striped:
//!
//! ```text
//! Stripe pattern details:
//! + Type: RAID0
//! + Chunksize: 512K
//! + Number of storage targets: desired: 2; actual: 2
//! + Storage targets:
//!   + 101 @ storage1 [ID: 1]
//!   + 201 @ storage2 [ID: 2]
//! ```
//!
//! For `Buddy Mirror` the list is `+ Storage mirror buddy groups:` and has only numbers. BeeGFS
//! 8 prints the same for `beegfs entry info --retro`. The format is described in "Deep
//! Inspection" and "Striping" of the BeeGFS documentation. It was not tried against a live
//! cluster.
//!
//! A target's node follows the `@`. The output does not show the nodes of a buddy group: the
//! group is named `group-N`, for the configuration to match.
//!
//! Not handled: other patterns, which are refused; data that only a remote target holds.

use std::time::Duration;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{
    ToolRunner, add_stripe, expected_error, last_line, numbered_lines, parse_number,
};
use super::{LocateFuture, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command.
pub const COMMAND: &[&str] = &["beegfs-ctl", "--getentryinfo", "{path}"];

/// Asks BeeGFS's own tool.
#[derive(Clone, Debug)]
pub struct BeeGfs(ToolRunner);

impl BeeGfs {
    /// Runs `template`, for files below the BeeGFS mount `root`, for at most
    /// `limit`.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self(ToolRunner::new(template, root, limit))
    }
}

impl Provider for BeeGfs {
    fn name(&self) -> &'static str {
        "beegfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move { parse(&self.0.query(query).await?, query.size) })
    }
}

/// The members of a stripe: the kind of the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StripePattern {
    Targets,
    BuddyGroups,
}

/// Where the chunks of a file of `size` bytes are.
///
/// # Errors
/// If `output` has another form, or describes no striped file.
pub fn parse(output: &str, size: u64) -> Result<ChunkMap> {
    let mut pattern = None;
    let mut chunk_size = None;
    let mut count = None;
    let mut listed = None;
    let mut cells: Vec<Vec<String>> = Vec::new();
    for (line, text) in numbered_lines(output) {
        // Some releases do not indent the list.
        let Some(item) = text.trim_start().strip_prefix("+ ").map(str::trim_end) else {
            listed = None;
            continue;
        };
        let twice = match item.split_once(':').map(|(key, value)| (key, value.trim())) {
            Some(("Type", kind)) => pattern.replace(parse_pattern(line, kind)?).is_some(),
            Some(("Chunksize", unit)) => chunk_size.replace(parse_size(line, unit)?).is_some(),
            Some(("Number of storage targets", numbers)) => {
                let actual = numbers.split_once("actual:").map(|(_, actual)| actual.trim());
                count.replace(parse_number(line, actual, "the actual number of targets")?).is_some()
            }
            Some(("Storage targets", "")) => {
                listed = Some(StripePattern::Targets);
                !cells.is_empty()
            }
            Some(("Storage mirror buddy groups", "")) => {
                listed = Some(StripePattern::BuddyGroups);
                !cells.is_empty()
            }
            _ => {
                if let Some(kind) = listed {
                    if Some(kind) != pattern {
                        return expected_error(line, "the list that goes with the type");
                    }
                    cells.push(parse_item(line, item, kind)?);
                }
                false
            }
        };
        if twice {
            return expected_error(line, "each detail of the pattern only once");
        }
    }
    let last = last_line(output);
    if pattern.is_none() {
        return expected_error(last, "`+ Type: ` and a pattern before here");
    }
    let Some(chunk_size) = chunk_size else {
        return expected_error(last, "`+ Chunksize: ` and a size before here");
    };
    if cells.is_empty() || count != Some(cells.len() as u64) {
        return expected_error(last, "as many storage targets as the layout announces");
    }
    let mut builder = ChunkMapBuilder::new();
    add_stripe(&mut builder, ByteRange::new(0, size), chunk_size, &cells)?;
    Ok(builder.finish())
}

fn parse_pattern(line: usize, kind: &str) -> Result<StripePattern> {
    match kind {
        "RAID0" => Ok(StripePattern::Targets),
        "Buddy Mirror" => Ok(StripePattern::BuddyGroups),
        _ => expected_error(line, "the type RAID0 or Buddy Mirror"),
    }
}

/// Bytes, as in `512K`.
fn parse_size(line: usize, text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "m" | "M" | "MiB" => 1 << 20,
        "g" | "G" | "GiB" => 1 << 30,
        "t" | "T" | "TiB" => 1u64 << 40,
        _ => return expected_error(line, "a chunk size in K, M, G or T"),
    };
    let units = parse_number(line, Some(digits), "a chunk size")?;
    match units.checked_mul(factor) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => expected_error(line, "a chunk size above 0 that fits in 64 bits"),
    }
}

/// The nodes on one line of the list.
fn parse_item(line: usize, item: &str, kind: StripePattern) -> Result<Vec<String>> {
    let mut words = item.split_whitespace();
    let id = parse_number(line, words.next(), "a storage target's or a buddy group's number")?;
    if kind == StripePattern::BuddyGroups {
        return Ok(vec![format!("group-{id}")]);
    }
    match (words.next(), words.next()) {
        // The tool prints this for a target whose node the management service does not know.
        (Some("@"), Some(node)) if node.starts_with('<') => Ok(Vec::new()),
        (Some("@"), Some(node)) => Ok(vec![node.to_owned()]),
        _ => expected_error(line, "a storage target as `NUMBER @ NODE [ID: NUMBER]`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const RAID0: &str = include_str!("../../tests/fixtures/placement/beegfs-raid0.txt");
    const MIRROR: &str = include_str!("../../tests/fixtures/placement/beegfs-mirror.txt");
    const DIRECTORY: &str = include_str!("../../tests/fixtures/placement/beegfs-directory.txt");
    const K512: u64 = 512 << 10;

    fn refused(output: &str) -> String {
        parse(output, 1 << 30).unwrap_err().to_string()
    }

    #[test]
    fn a_striped_file_alternates_between_its_targets() {
        let map = parse(RAID0, 4 * K512 + 1).unwrap();
        let one = "storage1";
        let two = "storage2.beeg.local";
        let expected = [
            (0, K512, vec![one]),
            (K512, 2 * K512, vec![two]),
            (2 * K512, 3 * K512, vec![]),
            (3 * K512, 4 * K512, vec![one]),
            (4 * K512, 4 * K512 + 1, vec![two]),
        ];
        assert_eq!(listed(&map), expected);
        assert_eq!(map.regions().len(), 1);
    }

    #[test]
    fn a_mirrored_file_alternates_between_its_groups() {
        let map = parse(MIRROR, 3 << 20).unwrap();
        let one = vec!["group-1"];
        let two = vec!["group-2"];
        let expected =
            [(0, 1 << 20, one.clone()), (1 << 20, 2 << 20, two), (2 << 20, 3 << 20, one)];
        assert_eq!(listed(&map), expected);
    }

    #[test]
    fn an_unindented_list_is_parsed() {
        let flat = RAID0.replace("  +", "+").replace("512K", "512k");
        assert_eq!(parse(&flat, 1 << 30).unwrap(), parse(RAID0, 1 << 30).unwrap());
    }

    #[test]
    fn an_enormous_file_is_one_region() {
        assert_eq!(parse(RAID0, u64::MAX).unwrap().regions().len(), 1);
        assert!(parse(RAID0, 0).unwrap().is_empty());
    }

    #[test]
    fn other_beegfs_output_is_refused_with_its_line() {
        assert!(refused(DIRECTORY).starts_with("line 7 of"), "{}", refused(DIRECTORY));
        assert!(refused("").starts_with("line 1 of"));
        assert!(refused(&RAID0.replace("RAID0", "RAID10")).starts_with("line 5 of"));
        assert!(refused(&RAID0.replace("512K", "0K")).starts_with("line 6 of"));
        assert!(refused(&RAID0.replace("512K", "512E")).starts_with("line 6 of"));
        assert!(refused(&RAID0.replace("512K", "99999999T")).starts_with("line 6 of"));
        assert!(refused(&RAID0.replace("101 @", "101 at")).starts_with("line 9 of"));
        assert!(refused(&RAID0.replace("actual: 3", "actual: 4")).contains("as many"));
        assert!(refused(&format!("{RAID0}{RAID0}")).contains("once"));
        assert!(refused(&RAID0.replace("RAID0", "Buddy Mirror")).starts_with("line 9 of"));
    }

    #[test]
    fn a_truncated_list_is_refused() {
        let end = RAID0.find("  + 301").unwrap();
        for end in 0..=end {
            refused(&RAID0[..end]);
        }
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            text in prop_oneof!["\\PC*", mangled(RAID0), mangled(MIRROR)],
            size in prop_oneof![0u64..10_000_000, any::<u64>()],
        ) {
            if let Ok(map) = parse(&text, size) {
                prop_assert!(is_sound(&map, size), "{map:?}");
            }
        }
    }
}
