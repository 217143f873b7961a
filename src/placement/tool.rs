//! Helpers for the providers that parse a tool's text: running the tool for a file, parsing
//! numbers, and adding stripes that are counted from offset 0.
//!
//! *Invariant:* no error made here quotes the output, because it contains file names.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::chunks::ChunkMapBuilder;
use super::command::{CommandTemplate, TemplateValues, path_below};
use super::{PlacementError, Query, Result};
use crate::volume::ByteRange;

/// A tool, and the volume's root in the tool's namespace.
#[derive(Clone, Debug)]
pub(super) struct ToolRunner {
    template: CommandTemplate,
    root: String,
    timeout: Duration,
}

impl ToolRunner {
    pub(super) fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self { template, root, timeout: limit }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The tool's output for the file in `query`.
    pub(super) async fn query(&self, query: &Query) -> Result<String> {
        let path = path_below(&self.root, &query.path);
        let local = query.replica.join(&query.path);
        let values =
            TemplateValues { path: &path, local: local.as_os_str().as_bytes(), size: query.size };
        let output = self.template.run(&values, self.timeout).await?;
        Ok(String::from_utf8(output)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

/// The error for line `line`, where the parser expected `what`.
pub(super) fn expected_error<T>(line: usize, what: &str) -> Result<T> {
    Err(PlacementError::unexpected_line(line, format!("expected {what}")))
}

/// Parses a decimal number.
pub(super) fn parse_number(line: usize, text: Option<&str>, what: &str) -> Result<u64> {
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(number),
        None => expected_error(line, &format!("{what}, a number")),
    }
}

/// Lines, numbered from 1.
pub(super) fn numbered_lines(output: &str) -> impl Iterator<Item = (usize, &str)> {
    output.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// The last line's number, for errors about a missing end.
pub(super) fn last_line(output: &str) -> usize {
    output.lines().count().max(1)
}

/// Adds the part `range` of a stripe that began at offset 0. Unit k of the whole file is held
/// by cell k modulo the number of cells, wherever `range` starts.
pub(super) fn add_stripe(
    builder: &mut ChunkMapBuilder,
    range: ByteRange,
    unit: u64,
    cells: &[Vec<String>],
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    if unit == 0 || cells.is_empty() {
        let what = format!("bytes {range:?} are cut into units of {unit} bytes");
        return Err(PlacementError::InvalidAnswer(what));
    }
    let nodes = |number: u64| {
        let cell = &cells[(number % cells.len() as u64) as usize];
        cell.iter().map(String::as_str)
    };
    let mut first = range.start / unit;
    let within = range.start % unit;
    let mut rest = range;
    if within != 0 {
        let head = ByteRange::at(range.start, unit - within).intersect(range);
        builder.add_chunk(head, nodes(first))?;
        rest = ByteRange::new(head.end, range.end);
        first += 1;
    }
    // A short file does not need every cell.
    let used = rest.len().div_ceil(unit).min(cells.len() as u64);
    builder.add_striped(rest, unit, (0..used).map(|cell| nodes(first % cells.len() as u64 + cell)))
}

#[cfg(test)]
pub(super) mod fuzz {
    //! Malformed output.

    use proptest::prelude::*;

    use crate::placement::ChunkMap;

    /// Text that has been cut, written over, and shuffled.
    pub(crate) fn mangled(fixture: &'static str) -> impl Strategy<Value = String> {
        let filling = prop_oneof![
            "\\PC{0,12}",
            "[0-9]{1,25}",
            Just("18446744073709551615".to_owned()),
            Just("0".to_owned()),
            Just("-1".to_owned()),
            Just("EOF".to_owned()),
            Just("\n".to_owned()),
        ];
        let change = (0u8..6, any::<prop::sample::Index>(), any::<prop::sample::Index>(), filling);
        proptest::collection::vec(change, 1..6).prop_map(move |changes| {
            let mut text = fixture.to_owned();
            for (kind, one, other, filling) in changes {
                text = change_once(&text, kind, &one, &other, &filling);
            }
            text
        })
    }

    fn change_once(
        text: &str,
        kind: u8,
        one: &prop::sample::Index,
        other: &prop::sample::Index,
        filling: &str,
    ) -> String {
        let chars: Vec<char> = text.chars().collect();
        let mut lines: Vec<&str> = text.lines().collect();
        if chars.is_empty() || lines.is_empty() {
            return filling.to_owned();
        }
        let at = one.index(chars.len());
        match kind {
            0 => chars[..at].iter().collect(),
            1 => {
                chars[..at].iter().chain(&filling.chars().collect::<Vec<_>>()).collect::<String>()
                    + &chars[at..].iter().collect::<String>()
            }
            2 => {
                // Replaces one whole number.
                let digit = |c: &char| c.is_ascii_digit();
                let start = at + chars[at..].iter().position(digit).unwrap_or(0);
                let len = chars[start..].iter().take_while(|c| digit(c)).count();
                let before: String = chars[..start].iter().collect();
                before + filling + &chars[start + len..].iter().collect::<String>()
            }
            3 => {
                lines.remove(one.index(lines.len()));
                lines.join("\n")
            }
            4 => {
                let line = lines[one.index(lines.len())];
                lines.insert(other.index(lines.len()), line);
                lines.join("\n")
            }
            _ => {
                let count = lines.len();
                lines.swap(one.index(count), other.index(count));
                lines.join("\n")
            }
        }
    }

    /// A map of a file of `size` bytes, as `(start, end, nodes)`.
    pub(crate) fn listed(map: &ChunkMap) -> Vec<(u64, u64, Vec<&str>)> {
        let name = |node: &u16| &*map.nodes()[usize::from(*node)];
        map.chunks()
            .map(|c| (c.range.start, c.range.end, c.nodes.iter().map(name).collect()))
            .collect()
    }

    /// Whether a map is valid for a file of `size` bytes.
    pub(crate) fn is_sound(map: &ChunkMap, size: u64) -> bool {
        let mut at = 0;
        map.regions().iter().all(|region| {
            let fine = region.range.start >= at
                && region.range.end > region.range.start
                && region.range.end <= size
                && region.unit > 0
                && !region.cells.is_empty();
            at = region.range.end;
            fine
        })
    }
}

#[cfg(test)]
mod tests {
    use super::fuzz::listed;
    use super::*;
    use crate::placement::{Provider, beegfs, cephfs, glusterfs, lustre, maprfs};

    fn template(words: &[&str]) -> CommandTemplate {
        CommandTemplate::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
    }

    #[tokio::test]
    async fn every_provider_runs_its_tool_on_the_path_below_its_root() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/");
        let limit = Duration::from_secs(10);
        let cat = || template(&["cat", "{path}"]);
        let root = || fixtures.to_owned();
        let graph = template(&["cat", &format!("{fixtures}glusterfs-volfile-arb.txt")]);
        let providers: [(&str, Box<dyn Provider>); 4] = [
            ("maprfs-large.txt", Box::new(maprfs::MaprFs::new(cat(), root(), limit))),
            (
                "glusterfs-old.txt",
                Box::new(glusterfs::GlusterFs::new(cat(), Some(graph), root(), limit)),
            ),
            ("lustre-plain.txt", Box::new(lustre::Lustre::new(cat(), root(), limit))),
            ("beegfs-raid0.txt", Box::new(beegfs::BeeGfs::new(cat(), root(), limit))),
        ];
        for (file, provider) in providers {
            let query = Query { path: file.into(), size: 1000, inode: 1, replica: "/r".into() };
            assert!(file.starts_with(provider.name()));
            let map = provider.locate(&query).await.unwrap();
            assert_eq!(map.regions()[0].range, ByteRange::new(0, 1000), "{file}");
            let gone = Query { path: "no such file".into(), ..query };
            let error = provider.locate(&gone).await.unwrap_err();
            assert!(matches!(error, PlacementError::ProgramFailed { .. }), "{error}");
        }
    }

    #[test]
    fn default_commands_use_known_placeholders() {
        for command in [maprfs::COMMAND, glusterfs::COMMAND, lustre::COMMAND, beegfs::COMMAND] {
            assert!(template(command).words().contains(&"{path}".to_owned()));
        }
        template(cephfs::COMMAND);
        template(cephfs::LAYOUT_COMMAND);
    }

    #[test]
    fn a_stripe_is_counted_from_offset_0() {
        let cells = [vec!["a".to_owned()], vec!["b".to_owned()], vec!["c".to_owned()]];
        let mut builder = ChunkMapBuilder::new();
        add_stripe(&mut builder, ByteRange::new(15, 42), 10, &cells).unwrap();
        let map = builder.finish();
        let expected = [(15, 20, "b"), (20, 30, "c"), (30, 40, "a"), (40, 42, "b")];
        assert_eq!(listed(&map), expected.map(|(start, end, node)| (start, end, vec![node])));
        let nothing = ByteRange::new(5, 5);
        add_stripe(&mut ChunkMapBuilder::new(), nothing, 0, &cells).unwrap();
        assert!(add_stripe(&mut ChunkMapBuilder::new(), ByteRange::new(0, 5), 0, &cells).is_err());
    }

    #[test]
    fn only_digits_are_a_number() {
        assert_eq!(parse_number(1, Some("007"), "it").unwrap(), 7);
        for text in
            [None, Some(""), Some("+1"), Some("-1"), Some("1K"), Some("99999999999999999999")]
        {
            let error = parse_number(4, text, "the size").unwrap_err().to_string();
            assert_eq!(error, "line 4 of the answer: expected the size, a number");
        }
    }
}
