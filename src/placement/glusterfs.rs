//! GlusterFS: the extended attribute `glusterfs.pathinfo`.
//!
//! A native GlusterFS mount returns the translators that the file passed through and the bricks
//! that hold it:
//!
//! ```text
//! (<DISTRIBUTE:vol-dht> (<REPLICATE:vol-replicate-0> <POSIX(/b1):host1:/b1/file> <POSIX(/b2):host2:/b2/file>))
//! ```
//!
//! A volume with one subvolume shows no DISTRIBUTE. Old releases write `<POSIX:host1:/b1/file>`. The
//! host is what the brick's machine calls itself, not the name in `volume info`. The order of the
//! bricks changes from call to call, and means nothing. Tried with GlusterFS 10.3.
//!
//! A client with a brick on its own machine reads that one (`cluster.choose-local`), so every copy
//! is read. The graph of the client ([`volume_graph`]) shows the exceptions: arbiters have no data,
//! and of a sharded file only the first shard has its name. The place of the others is unknown: a
//! client does not show them. Without the graph there is no answer.
//!
//! Not handled: STRIPE, EC (disperse) and other translators, which are refused.

pub mod volume_graph;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::{ToolRunner, expected_error};
use super::{LocateFuture, PlacementError, Provider, Query, Result};
use crate::mount_table::{Mount, MountTable};
use crate::volume::ByteRange;
use volume_graph::VolumeGraph;

/// The default command. An ordinary user may ask for this attribute.
pub const COMMAND: &[&str] =
    &["getfattr", "-n", "glusterfs.pathinfo", "--only-values", "--absolute-names", "{path}"];

/// How long the graph of the volume is used for all files.
const GRAPH_LIFETIME: Duration = Duration::from_secs(60);

/// Asks a native GlusterFS mount.
pub struct GlusterFs {
    tool: ToolRunner,
    /// The configured command for the graph.
    graph_tool: Option<ToolRunner>,
    root: String,
    limit: Duration,
    /// Held while it is read.
    graph: tokio::sync::Mutex<Option<(Instant, Arc<VolumeGraph>)>>,
}

impl GlusterFs {
    /// Runs `template`, for files below the native mount `root`, and `graph` for the graph of the
    /// client; without it, the mount's own file is read. Both together may take `limit`.
    pub fn new(
        template: CommandTemplate,
        graph: Option<CommandTemplate>,
        root: String,
        limit: Duration,
    ) -> Self {
        Self {
            tool: ToolRunner::new(template, root.clone(), limit),
            graph_tool: graph.map(|graph| ToolRunner::new(graph, root.clone(), limit)),
            root,
            limit,
            graph: tokio::sync::Mutex::new(None),
        }
    }

    async fn query(&self, query: &Query) -> Result<ChunkMap> {
        // First the graph: it says why the other may fail.
        let graph = self.volume_graph(query).await?;
        let output = self.tool.query(query).await?;
        parse(&output, &query.path.to_string_lossy(), query.size, &graph)
    }

    /// The graph of the client.
    async fn volume_graph(&self, query: &Query) -> Result<Arc<VolumeGraph>> {
        let mut graph = self.graph.lock().await;
        if let Some((at, graph)) = &*graph
            && at.elapsed() < GRAPH_LIFETIME
        {
            return Ok(Arc::clone(graph));
        }
        let asked = Instant::now();
        let text = match &self.graph_tool {
            Some(tool) => tool.query(query).await?,
            None => self.read_graph_of_mount(query).await?,
        };
        let new = Arc::new(VolumeGraph::parse(&text)?);
        *graph = Some((asked, Arc::clone(&new)));
        Ok(new)
    }

    async fn read_graph_of_mount(&self, query: &Query) -> Result<String> {
        let failed = |what: &str| {
            let at = "the volume file of the GlusterFS mount".to_owned();
            PlacementError::ServiceFailed { at, what: what.to_owned() }
        };
        let table = MountTable::read().map_err(|error| failed(&error.to_string()))?;
        let native = |mount: &&Mount| mount.fs_type == "fuse.glusterfs";
        let own = table.containing(self.root.as_ref()).filter(native);
        // Only the volume's own root shows it, not a part of it that is mounted elsewhere.
        let whole = |own: &Mount| {
            let is_whole = |mount: &&Mount| mount.dev == own.dev && mount.root == Path::new("/");
            table.iter().find(is_whole)
        };
        let Some(point) = own.and_then(whole).and_then(|mount| mount.mount_point.to_str()) else {
            return Err(failed(
                "`root` is in no native mount of this machine; set `layout_command`: without the \
                 file, arbiters and shards would count as data",
            ));
        };
        // A program, because the mount may hang.
        let cat = super::command_template(None, &["cat", "{path}"])?;
        let file = Query { path: volume_graph::FILE.into(), ..query.clone() };
        ToolRunner::new(cat, point.to_owned(), self.limit).query(&file).await
    }
}

impl Provider for GlusterFs {
    fn name(&self) -> &'static str {
        "glusterfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let answer = tokio::time::timeout(self.limit, self.query(query)).await;
            answer.unwrap_or(Err(PlacementError::TimedOut(self.limit)))
        })
    }
}

/// Where the file `path` of `size` bytes is, in a volume with this graph.
///
/// # Errors
/// If `output` has another form, or a translator that splits files.
pub fn parse(output: &str, path: &str, size: u64, graph: &VolumeGraph) -> Result<ChunkMap> {
    let bricks = parse_bricks(output, path)?;
    let has_data =
        |brick: &&Brick| !graph.is_arbiter(&brick.translator, &brick.host, &brick.directory);
    let nodes = bricks.iter().filter(has_data).map(|brick| &*brick.host);
    let first_shard = graph.shard_size.unwrap_or(u64::MAX);
    let mut builder = ChunkMapBuilder::new();
    builder.add_chunk(ByteRange::new(0, size.min(first_shard)), nodes)?;
    Ok(builder.finish())
}

/// A brick that holds the file.
struct Brick {
    /// What its machine calls itself.
    host: String,
    /// Its directory; empty in the old form.
    directory: String,
    /// The replicate translator above it; empty without one.
    translator: String,
}

fn parse_bricks(output: &str, path: &str) -> Result<Vec<Brick>> {
    // A file's name may contain anything, even text that looks like another brick.
    let known = match path {
        "" => output.to_owned(),
        path => output.replace(&format!("{path}>"), ">"),
    };
    let line = |rest: &str| {
        let before = known.len() - rest.len();
        known.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count() + 1
    };
    let mut bricks = Vec::new();
    let mut depth = 0u32;
    let mut replicate: Option<String> = None;
    let mut rest = known.trim_end_matches(['\0', '\n', ' ']);
    while let Some(first) = rest.chars().next() {
        let here = rest;
        rest = &rest[first.len_utf8()..];
        match first {
            ' ' | '\n' => {}
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            '<' => {
                let Some(translator) = parse_translator(&mut rest) else {
                    return expected_error(
                        line(here),
                        "<TRANSLATOR:NAME> or <POSIX(BRICK):HOST:PATH>",
                    );
                };
                if let Some(expected) = translator.expected_instead() {
                    return expected_error(line(here), expected);
                }
                match translator {
                    Translator::Brick { host, directory } => bricks.push(Brick {
                        host: host.to_owned(),
                        directory: directory.to_owned(),
                        translator: replicate.clone().unwrap_or_default(),
                    }),
                    Translator::Other { kind: "REPLICATE", name } => {
                        replicate = Some(name.to_owned());
                    }
                    Translator::Other { .. } => {}
                }
            }
            _ => return expected_error(line(here), "`(`, `)` or `<`"),
        }
    }
    if depth > 0 {
        return expected_error(line(rest), "a `)` for each `(`");
    }
    if bricks.is_empty() {
        return expected_error(line(rest), "a brick (<POSIX(BRICK):HOST:PATH>)");
    }
    if bricks.len() > 1 && replicate.is_none() {
        // A directory, for example, has many.
        return expected_error(line(rest), "one brick where nothing is replicated");
    }
    Ok(bricks)
}

enum Translator<'a> {
    /// A brick, with the host that it is on and its directory, if it is named.
    Brick { host: &'a str, directory: &'a str },
    /// Another translator.
    Other { kind: &'a str, name: &'a str },
}

impl Translator<'_> {
    /// The expectation to report for a translator that is not handled.
    fn expected_instead(&self) -> Option<&'static str> {
        let Self::Other { kind, .. } = self else { return None };
        match *kind {
            "REPLICATE" | "DISTRIBUTE" => None,
            "EC" | "DISPERSE" => Some("no disperse translator (fanfs does not support it)"),
            "STRIPE" => Some("no stripe translator (fanfs does not support it)"),
            _ => Some("only the translators DISTRIBUTE, REPLICATE and POSIX"),
        }
    }
}

/// Takes the text up to `>`; `<` has been read.
fn parse_translator<'a>(rest: &mut &'a str) -> Option<Translator<'a>> {
    let mut text = *rest;
    let brick = text.strip_prefix("POSIX");
    let mut directory = "";
    if let Some(brick) = brick {
        (directory, text) = match brick.strip_prefix('(') {
            Some(named) => named.split_once("):")?,
            None => ("", brick.strip_prefix(':')?),
        };
    }
    let (kind, name) = text.split_once(':')?;
    let (name, after) = name.split_once('>')?;
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"<>()/".contains(c);
    if kind.is_empty() || !kind.chars().all(plain) {
        return None;
    }
    *rest = after;
    Some(match brick {
        Some(_) => Translator::Brick { host: kind, directory },
        None => Translator::Other { kind, name },
    })
}

#[cfg(test)]
mod tests {
    use super::volume_graph::tests::{ARBITER, SHARDED};
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const REPLICATED: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-replicated.txt");
    const DISTRIBUTED: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-distributed.txt");
    const OLD: &str = include_str!("../../tests/fixtures/placement/glusterfs-old.txt");
    const LIVE_ARBITER: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-live-arbiter.txt");
    const LIVE_SHARDED: &str =
        include_str!("../../tests/fixtures/placement/glusterfs-live-sharded.txt");
    const DISPERSE: &str = include_str!("../../tests/fixtures/placement/glusterfs-disperse.txt");

    fn refused(output: &str) -> String {
        parse(output, "file", 10, &VolumeGraph::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_replicated_file_is_on_every_brick() {
        let map = parse(REPLICATED, "dir/file", 10, &VolumeGraph::default()).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2"])]);
    }

    #[test]
    fn a_distributed_file_is_on_one_brick() {
        let map = parse(DISTRIBUTED, "dir/file3", 10, &VolumeGraph::default()).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["vm1"])]);
    }

    #[test]
    fn an_arbiter_holds_no_data() {
        let graph = VolumeGraph::parse(ARBITER).unwrap();
        let map = parse(LIVE_ARBITER, "f", 10, &graph).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["n1", "n2"])]);
        let map = parse(LIVE_ARBITER, "f", 10, &VolumeGraph::default()).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["n1", "n2", "n3"])]);
    }

    #[test]
    fn only_the_first_shard_is_known() {
        let graph = VolumeGraph::parse(SHARDED).unwrap();
        let map = parse(LIVE_SHARDED, "f", 20_000_000, &graph).unwrap();
        assert_eq!(listed(&map), [(0, 4 << 20, vec!["n3", "n2"])]);
        assert_eq!(map.chunk_at(4 << 20), None);
    }

    #[tokio::test]
    async fn the_graph_is_asked_for_once() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/");
        let room = tempfile::tempdir().unwrap();
        let runs = room.path().join("runs");
        let script = r#"echo run >> "$1"; cat "$2""#;
        let arguments =
            [runs.display().to_string(), format!("{fixtures}glusterfs-volfile-arb.txt")];
        let graph = ["sh", "-c", script, "sh", &arguments[0], &arguments[1]];
        let bricks = format!("{fixtures}glusterfs-live-arbiter.txt");
        let template = |words: &[&str]| crate::placement::command_template(None, words).unwrap();
        let limit = Duration::from_secs(20);
        let provider =
            GlusterFs::new(template(&["cat", &bricks]), Some(template(&graph)), "/".into(), limit);
        let query = Query { path: "f".into(), size: 10, inode: 1, replica: "/r".into() };
        for _ in 0..3 {
            let map = provider.locate(&query).await.unwrap();
            assert_eq!(listed(&map), [(0, 10, vec!["n1", "n2"])]);
        }
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    }

    #[test]
    fn the_old_format_names_no_brick() {
        let map = parse(OLD, "file", 10, &VolumeGraph::default()).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2.example.org"])]);
    }

    #[test]
    fn translators_that_split_files_are_refused_by_name() {
        let error = refused(DISPERSE);
        assert_eq!(
            error,
            "line 1 of the answer: expected no disperse translator (fanfs does not support it)"
        );
        let error = refused(&DISPERSE.replace("EC:vol-disperse-0", "STRIPE:s:[131072]"));
        assert!(error.contains("no stripe translator"), "{error}");
        let error = refused(&DISPERSE.replace("EC:", "TIER:"));
        assert!(error.contains("only the translators DISTRIBUTE"), "{error}");
    }

    #[test]
    fn a_hostile_name_adds_no_brick() {
        let path = "x> <POSIX(/b):evil:/y\n)";
        let output = REPLICATED.replace("dir/file", path);
        let map = parse(&output, path, 10, &VolumeGraph::default()).unwrap();
        assert_eq!(listed(&map), [(0, 10, vec!["host1", "host2"])]);
    }

    #[test]
    fn a_truncated_layout_is_refused() {
        let whole = REPLICATED.trim_end();
        for end in 0..whole.len() {
            let error = refused(&whole[..end]);
            assert!(error.starts_with("line 1 of the answer: expected "), "{error}");
        }
        assert!(refused("(<DISTRIBUTE:d> <POSIX:a:/b> <POSIX:b:/b>)").contains("one brick"));
        assert!(refused("(\n<POSIX::/b>)").starts_with("line 2"));
        assert!(refused("(<POSIX(/b\n):a:/b>x").starts_with("line 2"));
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            text in prop_oneof!["\\PC*", mangled(REPLICATED), mangled(OLD), mangled(DISPERSE)],
            graph in prop_oneof!["\\PC*", mangled(ARBITER), mangled(SHARDED)],
            path in prop_oneof![Just("file".to_owned()), "\\PC{0,3}"],
            size in any::<u64>(),
        ) {
            let graph = VolumeGraph::parse(&graph).unwrap_or_default();
            if let Ok(map) = parse(&text, &path, size, &graph) {
                prop_assert!(is_sound(&map, size), "{map:?}");
            }
        }
    }
}
