//! A placement table in a file: globs, ranges and nodes.
//!
//! TOML, where a range may be a stripe whose units take turns over the cells:
//!
//! ```toml
//! [[file]]
//! path = "/genomes/**"
//!
//! [[file.chunk]]
//! end = "1GiB"              # from byte 0
//! nodes = ["n1", "n2"]
//!
//! [[file.chunk]]
//! start = "1GiB"            # to the end of the file
//! unit = "256MiB"
//! cells = [["n1", "n2"], ["n2", "n3"], ["n3", "n1"]]
//! ```
//!
//! CSV, a chunk a line: `path,start,end,nodes`, the nodes separated by blanks,
//! an empty end for the end of the file.
//!
//! The first glob that matches a path counts; a path that no glob matches is unknown. The table
//! is read again when its file has changed. While the new table is unusable, queries fail and
//! earlier answers stay in use.
//!
//! The file is read on a thread that may block, by one query at a time. A table on a dead mount
//! costs that one thread, and the locator gives up on the queries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use globset::GlobSet;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{ChunkMap, ChunkMapBuilder, LocateFuture, PlacementError, Provider, Query, Result};
use crate::config::Escaped;
use crate::config::globs::{GlobError, glob_set, parse_glob, text_start};
use crate::config::units::{Size, UnitError};
use crate::volume::ByteRange;

/// The longest table that is read: a line for each of a million chunks.
const MAX_TABLE_BYTES: u64 = 128 << 20;

/// Answers from a table.
pub struct TableProvider(Arc<Mutex<LoadedTable>>);

/// A table, and the file that it was read from.
struct LoadedTable {
    file: PathBuf,
    stamp: FileStamp,
    entries: Arc<TableEntries>,
}

/// The attributes that change when a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    modified: SystemTime,
    size: u64,
}

impl TableProvider {
    /// Reads the table.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid table.
    pub fn open(file: &Path) -> Result<Self> {
        let table = LoadedTable::read(file)?;
        Ok(Self(Arc::new(Mutex::new(table))))
    }
}

impl LoadedTable {
    fn read(file: &Path) -> Result<Self> {
        let stamp = file_stamp(file).map_err(|error| read_error(file, &error))?;
        if stamp.size > MAX_TABLE_BYTES {
            return Err(PlacementError::TooLong(MAX_TABLE_BYTES as usize));
        }
        let text = std::fs::read_to_string(file).map_err(|error| read_error(file, &error))?;
        let is_csv =
            file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        let entries = if is_csv { parse_csv(&text) } else { parse_toml(&text) };
        let in_file = |error: TableError| PlacementError::ServiceFailed {
            at: format!("table {}", file.display()),
            what: error.to_string(),
        };
        let entries = Arc::new(entries.map_err(in_file)?);
        Ok(Self { file: file.to_owned(), stamp, entries })
    }

    fn reload_if_changed(&mut self) -> Result<Arc<TableEntries>> {
        let stamp = file_stamp(&self.file).map_err(|e| read_error(&self.file, &e))?;
        if self.stamp != stamp {
            *self = Self::read(&self.file)?;
            tracing::info!("reloaded the placement table");
        }
        Ok(Arc::clone(&self.entries))
    }
}

impl Provider for TableProvider {
    fn name(&self) -> &'static str {
        "table"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let mut read = Arc::clone(&self.0).lock_owned().await;
            let path = query.path.clone();
            let size = query.size;
            let looking = tokio::task::spawn_blocking(move || {
                let entries = read.reload_if_changed()?;
                drop(read);
                entries.chunk_map_of(&path, size)
            });
            match looking.await {
                Ok(answer) => answer,
                // A bug in this module, which the locator reports.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(PlacementError::InvalidAnswer("fanfs is ending".to_owned())),
            }
        })
    }
}

/// Why a table is unusable. Its `Display` is one line, without control characters.
#[derive(Debug, thiserror::Error)]
#[error("{}", Escaped(&.0.to_string()))]
pub struct TableError(#[from] TableProblem);

/// A fault in a table.
#[derive(Debug, thiserror::Error)]
enum TableProblem {
    #[error("line {line}: {what}")]
    Syntax { line: usize, what: String },
    #[error("{0}")]
    Csv(String),
    #[error("line 1: the columns must be {}", COLUMNS.join(","))]
    WrongColumns,
    #[error("line {line}: {column}: {error}")]
    NotASize { line: u64, column: &'static str, error: UnitError },
    #[error("path {0:?} does not start with /, the volume's root")]
    RelativePath(String),
    #[error("{start:?} {error}")]
    NotAGlob { start: String, error: GlobError },
    #[error("a chunk of {0:?} needs `nodes`, or `unit` and `cells`")]
    ChunkWithoutNodes(String),
    #[error("{path:?}: {error}")]
    InvalidChunks { path: String, error: PlacementError },
}

/// A table's entries, in order.
#[derive(Debug)]
pub struct TableEntries(Vec<TableEntry>);

impl TableEntries {
    /// The chunks of a file of `size` bytes; `path` is relative to the volume's root.
    ///
    /// # Errors
    /// As [`ChunkMapBuilder::add_striped`].
    pub fn chunk_map_of(&self, path: &Path, size: u64) -> Result<ChunkMap> {
        let path = Path::new("/").join(path);
        match self.0.iter().find(|entry| entry.glob.is_match(&path)) {
            Some(entry) => entry.to_chunk_map(size),
            None => Ok(ChunkMap::default()),
        }
    }
}

#[derive(Debug)]
struct TableEntry {
    glob: GlobSet,
    chunks: Vec<TableChunk>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableChunk {
    start: Option<Size>,
    end: Option<Size>,
    nodes: Option<Vec<String>>,
    unit: Option<Size>,
    cells: Option<Vec<Vec<String>>>,
}

impl TableChunk {
    fn start(&self) -> u64 {
        self.start.map_or(0, |start| start.0)
    }
}

impl TableEntry {
    fn new(path: &str, mut chunks: Vec<TableChunk>) -> std::result::Result<Self, TableProblem> {
        if !path.starts_with('/') {
            return Err(TableProblem::RelativePath(text_start(path)));
        }
        let glob = parse_glob(path).and_then(|glob| glob_set(vec![glob]));
        let glob =
            glob.map_err(|error| TableProblem::NotAGlob { start: text_start(path), error })?;
        chunks.sort_by_key(TableChunk::start);
        let entry = Self { glob, chunks };
        for chunk in &entry.chunks {
            match (&chunk.nodes, chunk.unit, &chunk.cells) {
                (Some(_), None, None) => {}
                (None, Some(unit), Some(cells)) if unit.0 > 0 && !cells.is_empty() => {}
                _ => {
                    return Err(TableProblem::ChunkWithoutNodes(text_start(path)));
                }
            }
        }
        // Whatever the file's size, the chunks must not overlap.
        match entry.to_chunk_map(u64::MAX) {
            Ok(_) => Ok(entry),
            Err(error) => Err(TableProblem::InvalidChunks { path: path.to_owned(), error }),
        }
    }

    fn to_chunk_map(&self, size: u64) -> Result<ChunkMap> {
        let mut builder = ChunkMapBuilder::new();
        for chunk in &self.chunks {
            let end = chunk.end.map_or(size, |end| end.0);
            let range = ByteRange::new(chunk.start(), end).intersect(ByteRange::new(0, size));
            let one = chunk.nodes.as_slice();
            let cells = chunk.cells.as_deref().unwrap_or(one);
            let unit = chunk.unit.map_or(u64::MAX, |unit| unit.0).min(range.len());
            builder.add_striped(range, unit, cells.iter().map(|c| c.iter().map(|node| &**node)))?;
        }
        Ok(builder.finish())
    }
}

fn file_stamp(file: &Path) -> std::io::Result<FileStamp> {
    let meta = std::fs::metadata(file)?;
    Ok(FileStamp { modified: meta.modified()?, size: meta.len() })
}

fn read_error(file: &Path, error: &std::io::Error) -> PlacementError {
    PlacementError::ServiceFailed {
        at: format!("table {}", file.display()),
        what: error.to_string(),
    }
}

/// Reads a table in TOML.
///
/// # Errors
/// [`TableError`], on one line.
pub fn parse_toml(text: &str) -> std::result::Result<TableEntries, TableError> {
    Ok(parse_toml_entries(text)?)
}

fn parse_toml_entries(text: &str) -> std::result::Result<TableEntries, TableProblem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TableToml {
        #[serde(default)]
        file: Vec<FileToml>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct FileToml {
        path: String,
        #[serde(default)]
        chunk: Vec<TableChunk>,
    }
    let written: TableToml = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count()
        });
        TableProblem::Syntax { line, what: error.message().replace('\n', "; ") }
    })?;
    let entries = written.file.into_iter().map(|file| TableEntry::new(&file.path, file.chunk));
    entries.collect::<std::result::Result<_, _>>().map(TableEntries)
}

/// Reads a table in CSV.
///
/// # Errors
/// [`TableError`], on one line.
pub fn parse_csv(text: &str) -> std::result::Result<TableEntries, TableError> {
    Ok(parse_csv_entries(text)?)
}

/// The columns of a table in CSV.
const COLUMNS: [&str; 4] = ["path", "start", "end", "nodes"];

fn parse_csv_entries(text: &str) -> std::result::Result<TableEntries, TableProblem> {
    let mut rows = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let header = rows.headers().map_err(|error| TableProblem::Csv(error.to_string()))?;
    if header.iter().ne(COLUMNS) {
        return Err(TableProblem::WrongColumns);
    }
    let mut files: Vec<(String, Vec<TableChunk>)> = Vec::new();
    // A table may have a line for each file of a large tree.
    let mut index: HashMap<String, usize> = HashMap::new();
    for row in rows.records() {
        let row = row.map_err(|error| TableProblem::Csv(error.to_string().replace('\n', " ")))?;
        let line = row.position().map_or(0, csv::Position::line);
        let size = |column: usize| match &row[column] {
            "" => Ok(None),
            text => match text.parse::<Size>() {
                Ok(size) => Ok(Some(size)),
                Err(error) => Err(TableProblem::NotASize { line, column: COLUMNS[column], error }),
            },
        };
        let chunk = TableChunk {
            start: size(1)?,
            end: size(2)?,
            nodes: Some(row[3].split_whitespace().map(str::to_owned).collect()),
            unit: None,
            cells: None,
        };
        match index.get(&row[0]) {
            Some(at) => files[*at].1.push(chunk),
            None => {
                index.insert(row[0].to_owned(), files.len());
                files.push((row[0].to_owned(), vec![chunk]));
            }
        }
    }
    let entries = files.into_iter().map(|(path, chunks)| TableEntry::new(&path, chunks));
    entries.collect::<std::result::Result<_, _>>().map(TableEntries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOML: &str = "
[[file]]
path = \"/a/*.bin\"

[[file.chunk]]
end = \"4KiB\"
nodes = [\"n1\", \"n2\"]

[[file.chunk]]
start = \"4KiB\"
unit = \"1KiB\"
cells = [[\"n2\"], [\"n3\"]]
";
    const CSV: &str = "path,start,end,nodes
# the head of the file
/a/**, 0B, 1KiB, n1 n2
/a/**, 1KiB, , n3
";

    fn located(table: &TableProvider, path: &str, size: u64) -> Vec<(u64, u64, Vec<String>)> {
        let query = Query { path: path.into(), size, replica: PathBuf::new(), inode: 0 };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let map = runtime.block_on(table.locate(&query)).unwrap();
        let names = |nodes: &[u16]| {
            nodes.iter().map(|n| map.nodes()[usize::from(*n)].to_string()).collect()
        };
        map.chunks().map(|c| (c.range.start, c.range.end, names(c.nodes))).collect()
    }

    fn n(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn both_formats_are_parsed_and_truncated_to_the_file() {
        let room = tempfile::tempdir().unwrap();
        let toml = room.path().join("t.toml");
        let csv = room.path().join("t.csv");
        std::fs::write(&toml, TOML).unwrap();
        std::fs::write(&csv, CSV).unwrap();
        let toml = TableProvider::open(&toml).unwrap();
        let chunks = located(&toml, "a/x.bin", 5632);
        assert_eq!(chunks[0], (0, 4096, n(&["n1", "n2"])));
        assert_eq!(chunks[2], (5120, 5632, n(&["n3"])));
        assert_eq!(located(&toml, "a/b/x.bin", 100), []);
        let csv = TableProvider::open(&csv).unwrap();
        assert_eq!(located(&csv, "a/b", 2000)[1], (1024, 2000, n(&["n3"])));
        assert_eq!(located(&csv, "a/b", 1000), [(0, 1000, n(&["n1", "n2"]))]);
    }

    #[test]
    fn a_changed_table_is_reloaded_unless_it_is_invalid() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("t.csv");
        std::fs::write(&file, CSV).unwrap();
        let table = TableProvider::open(&file).unwrap();
        assert_eq!(located(&table, "a/b", 100).len(), 1);
        std::fs::write(&file, "path,start,end,nodes\n/a/**,0B,50B,n9\n").unwrap();
        assert_eq!(located(&table, "a/b", 100), [(0, 50, n(&["n9"]))]);
        std::fs::write(&file, "path,start,end,nodes\n/a/**,0,50B,n9 n10\n").unwrap();
        let error = table.0.blocking_lock().reload_if_changed().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("no unit"), "{error}");
    }

    #[test]
    fn a_hung_table_file_blocks_at_most_one_thread() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("t.csv");
        let pipe = room.path().join("pipe");
        std::fs::write(&file, CSV).unwrap();
        let table = Arc::new(TableProvider::open(&file).unwrap());
        // Opening a pipe without a writer blocks forever, like a file on a dead mount.
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::rename(&pipe, &file).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let asking = Arc::clone(&table);
        std::thread::spawn(move || {
            let builder = &mut tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_time().max_blocking_threads(2).build().unwrap();
            let query = Query { path: "a/b".into(), size: 100, replica: PathBuf::new(), inode: 0 };
            let limit = std::time::Duration::from_millis(50);
            runtime.block_on(async {
                for _ in 0..3 {
                    assert!(tokio::time::timeout(limit, asking.locate(&query)).await.is_err());
                }
                let other = tokio::task::spawn_blocking(|| 7);
                assert_eq!(tokio::time::timeout(600 * limit, other).await.unwrap().unwrap(), 7);
            });
            runtime.shutdown_background();
            send.send(()).unwrap();
        });
        receive.recv_timeout(std::time::Duration::from_secs(60)).expect("the runtime hangs");
        // The hung thread continues, and the next query is answered.
        std::fs::write(&pipe, CSV).unwrap();
        drop(std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap());
        std::fs::rename(&pipe, &file).unwrap();
        assert_eq!(located(&table, "a/b", 100).len(), 1);
    }

    #[test]
    fn an_invalid_table_is_refused_in_one_line() {
        for text in [
            "[[file]]\nchunk = []",
            "[[file]]\npath = \"a\"",
            "[[file]]\npath = \"/a[\"",
            "[[file]]\npath = \"/a\"\n[[file.chunk]]\nnode = [\"x\"]",
            "[[file]]\npath = \"/a\"\n[[file.chunk]]\nend = \"1\"\nnodes = [\"x\"]",
            "[[file]]\npath = \"/a\"\n[[file.chunk]]\nunit = \"1KiB\"",
            "[[file]]\npath = \"/a\"\n[[file.chunk]]\nunit = \"0B\"\ncells = [[\"a\"]]",
            "[[file]]\npath = \"/a\"\n[[file.chunk]]\nnodes = [\"x\"]\n[[file.chunk]]\nnodes = [\"x\"]",
        ] {
            let error = parse_toml(text).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
        for text in
            ["", "path,nodes\n", "path,start,end,nodes\n/a,0B\n", "path,start,end,nodes\na,,,x\n"]
        {
            assert!(parse_csv(text).is_err(), "{text:?}");
        }
        let long = ["?", "[!a]", "*x", "{a,b}"].map(|part| part.repeat(1 << 20));
        // The second nests deeper than a regex may.
        let deep = format!("{}a{}", "{".repeat(300), "}".repeat(300));
        let refused = long.iter().map(|long| (long, "is too long for a glob"));
        for (path, why) in refused.chain([(&deep, "is not a glob")]) {
            let toml = parse_toml(&format!("[[file]]\npath = \"/{path}\"")).unwrap_err();
            let toml = toml.to_string();
            assert!(toml.contains(why) && toml.len() < 1000, "{toml:.1000}");
            let relative = parse_toml(&format!("[[file]]\npath = \"{path}\"")).unwrap_err();
            assert!(relative.to_string().len() < 1000);
        }
        let error = parse_csv("path,start,end,nodes\n/a,0\u{2},,x\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains(char::is_control), "{error:?}");
    }

    #[test]
    fn lines_of_one_path_belong_together() {
        let lines: String = (0..100).map(|i| format!("/a/{i},0B,1KiB,n{}\n", i % 7)).collect();
        let apart = format!("path,start,end,nodes\n{lines}/a/5,1KiB,,n9\n");
        let map = parse_csv(&apart).unwrap().chunk_map_of(Path::new("a/5"), 2000).unwrap();
        assert_eq!(map.nodes().iter().map(|node| &**node).collect::<Vec<_>>(), ["n5", "n9"]);
        let error = parse_csv(&apart.replace(",1KiB,,n9", ",1000B,,n9")).unwrap_err().to_string();
        assert!(error.starts_with("\"/a/5\": "), "{error}");
    }

    proptest! {
        #[test]
        fn no_table_makes_the_parser_panic(cut in 0usize..250, at in 0usize..250, byte in 0u8..128, size: u64) {
            for (text, parse) in [(TOML, parse_toml as fn(&str) -> _), (CSV, parse_csv)] {
                let mut bytes = text.as_bytes().to_vec();
                bytes.truncate(cut);
                if let Some(b) = bytes.get_mut(at) { *b = byte; }
                let Ok(text) = String::from_utf8(bytes) else { continue };
                if let Ok(entries) = parse(&text) {
                    for entry in &entries.0 {
                        let _ = entry.to_chunk_map(size);
                    }
                }
            }
        }
    }
}
