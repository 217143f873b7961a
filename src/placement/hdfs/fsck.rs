//! `hdfs fsck PATH -files -blocks -locations`.
//!
//! A line announces the file and its number of blocks. Then there is a line for each block, in
//! order, with its length but not its offset, which is the sum of the lengths before. Remarks
//! on bad blocks are between these lines or before them.
//!
//! Limits of fsck (seen with 3.4.1): it exits with 0 and writes nothing if the file does not
//! exist or the NameNode is unreachable. It exits with 1 if a block of the file is bad, as it
//! does when it fails. It does not find names with `&`, `<`, `>` or quotes in them, which its
//! servlet takes for HTML. Java garbles names beyond ASCII unless the locale is UTF-8.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::{HdfsBlock, build_chunk_map};
use crate::placement::chunks::{MAX_CELLS, MAX_COPIES};
use crate::placement::command::{CommandTemplate, ProgramFailure, TemplateValues, path_below};
use crate::placement::{ChunkMap, LocateFuture, PlacementError, Provider, Query, Result};
use crate::volume::ByteRange;

/// The default command.
pub const COMMAND: &[&str] = &["hdfs", "fsck", "{path}", "-files", "-blocks", "-locations"];

/// The exit status if a block is missing or corrupt; fsck still describes the rest of the file.
const BAD_BLOCK_STATUS: i32 = 1;

/// Asks `hdfs fsck`.
#[derive(Clone, Debug)]
pub struct Fsck {
    template: CommandTemplate,
    root: String,
    timeout: Duration,
}

impl Fsck {
    /// Runs `template` for at most `limit`; the replicas' root is `root` in HDFS.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self { template, root, timeout: limit }
    }

    async fn query(&self, query: &Query) -> Result<ChunkMap> {
        let path = path_below(&self.root, &query.path);
        let local = query.replica.join(&query.path);
        let values =
            TemplateValues { path: &path, local: local.as_os_str().as_bytes(), size: query.size };
        let output = self.template.run_any_status(&values, self.timeout).await?;
        let answer = || parse(&String::from_utf8_lossy(&output.stdout), query.size);
        match output.failure {
            None => answer(),
            Some(ProgramFailure { code: Some(BAD_BLOCK_STATUS), error }) => {
                answer().map_err(|_| keep_exception_types(error))
            }
            Some(ProgramFailure { error, .. }) => Err(keep_exception_types(error)),
        }
    }
}

impl Provider for Fsck {
    fn name(&self) -> &'static str {
        "hdfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(self.query(query))
    }
}

/// fsck writes the URL that it asks, with the file's name in it, to standard error, and its
/// exceptions name the file. Only the exceptions' types are kept.
fn keep_exception_types(error: PlacementError) -> PlacementError {
    let PlacementError::ProgramFailed { program, status, said } = error else { return error };
    let is_type = |word: &&str| {
        word.ends_with("Exception") && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
    };
    let types: Vec<_> = said.split([' ', ':']).filter(is_type).collect();
    let said =
        if types.is_empty() { "run it by hand to see why".to_owned() } else { types.join(", ") };
    PlacementError::ProgramFailed { program, status, said }
}

/// Parses fsck's output about one file of `size` bytes.
///
/// # Errors
/// [`PlacementError::NotFound`] if fsck reports that there is no such file. Other errors if
/// blocks are missing in the output, or impossible.
pub fn parse(text: &str, size: u64) -> Result<ChunkMap> {
    let mut lines = (1..).zip(text.lines());
    let Some(announced) = lines.by_ref().find_map(|(_, line)| announced_block_count(line)) else {
        return Err(missing_file_error(text));
    };
    if announced > MAX_CELLS as u64 {
        return Err(PlacementError::InvalidAnswer(format!("more than {MAX_CELLS} chunks")));
    }
    let mut found: Vec<BlockLine<'_>> = Vec::new();
    let mut corrupt = HashSet::new();
    let mut at = 0u64;
    for (number, line) in lines {
        if let Some((_, block)) = line.split_once(": CORRUPT blockpool ") {
            corrupt.extend(block.split_whitespace().last());
            continue;
        }
        let Some(NumberedBlock { index, rest }) = parse_block_number(line) else { continue };
        let next = found.len() as u64;
        if index != next || next == announced {
            let what = format!("block {index} comes after {next} of {announced} blocks");
            return Err(PlacementError::unexpected_line(number, what));
        }
        let block = BlockLine::new(rest, at)
            .map_err(|error| PlacementError::unexpected_line(number, error.to_string()))?;
        at = block.block.range.end;
        found.push(block);
    }
    if (found.len() as u64) < announced {
        return Err(PlacementError::InvalidAnswer(format!(
            "it ends after {} of {announced} blocks",
            found.len()
        )));
    }
    let blocks = found.into_iter().map(|mut line| {
        if corrupt.contains(line.name) {
            line.block.nodes.clear();
        }
        line.block
    });
    build_chunk_map(blocks.collect(), size)
}

/// The error for an answer without the file.
fn missing_file_error(text: &str) -> PlacementError {
    let absent = |line: &str| line.starts_with("Path '") && line.ends_with("' does not exist");
    if text.lines().any(absent) {
        PlacementError::NotFound
    } else if text.trim().is_empty() {
        let what = "it is empty; fsck finds no such file or does not reach the NameNode";
        PlacementError::InvalidAnswer(what.to_owned())
    } else {
        let what = "no line ends with the file's \"N block(s)\"; is it open for writing, or \
                    -files missing from the command?";
        PlacementError::InvalidAnswer(what.to_owned())
    }
}

/// The number of blocks, if `line` announces a file. The file's name may contain anything, so
/// the line is read from its end. The line before repeats the name, but does not begin with it.
fn announced_block_count(line: &str) -> Option<u64> {
    line.starts_with('/').then_some(())?;
    let (before, _) = line.rsplit_once(" block(s):")?;
    let (before, count) = before.rsplit_once(", ")?;
    before.contains(" bytes").then_some(())?;
    count.parse().ok()
}

/// A block's number and the rest of its line.
struct NumberedBlock<'a> {
    index: u64,
    rest: &'a str,
}

fn parse_block_number(line: &str) -> Option<NumberedBlock<'_>> {
    let (number, rest) = line.split_once(". ")?;
    let is_block = rest.split(' ').next()?.contains("blk_");
    is_block.then_some(NumberedBlock { index: number.parse().ok()?, rest })
}

/// A fault in a block's line.
#[derive(Debug, thiserror::Error)]
enum BlockError {
    #[error("a block has no length")]
    NoLength,
    #[error("the blocks are longer than a file can be")]
    TooLong,
    #[error("a block's nodes are missing; the command needs -locations")]
    NoNodes,
    #[error("the list of a block's nodes has a `]` without a `[`")]
    UnopenedBracket,
    #[error("the list of a block's nodes has no closing `]`")]
    UnclosedBracket,
    #[error("more than {MAX_COPIES} copies of one chunk")]
    TooManyCopies,
}

/// The line of one block.
struct BlockLine<'a> {
    /// Without the generation, as fsck names a corrupt block.
    name: &'a str,
    block: HdfsBlock<'a>,
}

impl<'a> BlockLine<'a> {
    fn new(rest: &'a str, at: u64) -> std::result::Result<Self, BlockError> {
        let (id, rest) = rest.split_once(' ').ok_or(BlockError::NoLength)?;
        let name = id.rsplit_once(':').map_or(id, |(_, name)| name);
        let name = name.rsplit_once('_').map_or(name, |(name, _)| name);
        let (facts, nodes) = match rest.split_once('[') {
            Some((facts, nodes)) => (facts, Some(nodes.trim_end())),
            None => (rest, None),
        };
        let len = facts.split_whitespace().find_map(|word| word.strip_prefix("len="));
        let len = len.and_then(|len| len.parse().ok()).ok_or(BlockError::NoLength)?;
        let end = at.checked_add(len).ok_or(BlockError::TooLong)?;
        let lost = ["MISSING!", "CORRUPT", "CORRUPT!"];
        let nodes = if facts.split_whitespace().any(|word| lost.contains(&word)) {
            Vec::new()
        } else {
            let nodes = nodes.and_then(|nodes| nodes.strip_suffix(']'));
            parse_copies(nodes.ok_or(BlockError::NoNodes)?)?
        };
        Ok(Self { name, block: HdfsBlock { range: ByteRange::new(at, end), nodes } })
    }
}

/// The nodes in a list of copies. Each copy is an address, or an address and details in
/// brackets. A part's name may come before it, and a state after it.
fn parse_copies(list: &str) -> std::result::Result<Vec<&str>, BlockError> {
    let mut nodes = Vec::new();
    let mut start = 0;
    let mut depth = 0usize;
    let ends = list.bytes().enumerate().filter(|(_, byte)| b"[],".contains(byte));
    for (i, byte) in ends.chain([(list.len(), b',')]) {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.checked_sub(1).ok_or(BlockError::UnopenedBracket)?,
            _ if depth > 0 && i < list.len() => {}
            _ if depth > 0 => return Err(BlockError::UnclosedBracket),
            _ => {
                let copy = list[start..i].trim();
                start = i + 1;
                nodes.extend(copy_address(copy));
                if nodes.len() > MAX_COPIES {
                    return Err(BlockError::TooManyCopies);
                }
            }
        }
    }
    Ok(nodes)
}

/// The node that holds a copy; `None` if the copy is bad.
fn copy_address(copy: &str) -> Option<&str> {
    let (copy, state) = match copy.strip_suffix(')').and_then(|copy| copy.rsplit_once('(')) {
        Some((copy, state)) => (copy, state),
        None => (copy, ""),
    };
    let inner = match copy.split_once("DatanodeInfoWithStorage[") {
        Some((_, inner)) => inner.split([',', ']']).next().unwrap_or_default(),
        None => copy.rsplit_once('/').map_or(copy, |(_, address)| address),
    };
    (!inner.is_empty() && state != "CORRUPT").then_some(inner)
}

#[cfg(test)]
mod tests;
