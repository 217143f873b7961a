//! CephFS: the file's layout, and a map of the cluster.
//!
//! The layout is an extended attribute that a CephFS mount shows ([`layout`]):
//!
//! ```text
//! stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data
//! ```
//!
//! An NFS mount of CephFS does not show it, so `{path}` is below a CephFS mount. Objects are
//! named `<inode, hexadecimal>.<number, 8 hexadecimal digits>`; the inode number is the same in
//! every mount. Their placement groups are computed here as clients compute them
//! ([`object_hash`]), and the map of the cluster ([`cluster_map`]) has the OSDs of each group. So
//! one program per file, and one in [`MAP_LIFETIME`] for all, answer for any number of objects.
//! (`ceph osd map` takes half a second of processor time for each object.)
//!
//! The primary OSD serves the reads of an object, wherever the gateway is. So only the replicas on
//! its host are local; the others' copies are spare. Observed with Ceph 16.2.15 and FSAL_CEPH.
//!
//! Not handled: the inode of a snapshot; clients that read from the nearest OSD
//! (`rados_replica_read_policy`), for which spare copies are as good.

pub mod cluster_map;
pub mod layout;
pub mod object_hash;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

use super::chunks::{ChunkMap, ChunkMapBuilder};
use super::command::CommandTemplate;
use super::tool::ToolRunner;
use super::{LocateFuture, PlacementError, PrepareFuture, Provider, Query, Result};
use cluster_map::ClusterMap;
use layout::{Layout, parse_layout};

/// The default command for the map of the cluster; it reads [`cluster_map::COMMANDS`].
pub const COMMAND: &[&str] = &["ceph", "--format=json"];

/// The default command for the layout.
pub const LAYOUT_COMMAND: &[&str] =
    &["getfattr", "--only-values", "--absolute-names", "-n", "ceph.file.layout", "{path}"];

/// How long a map of the cluster is used for all files.
const MAP_LIFETIME: Duration = Duration::from_secs(10);

/// How long an older map is used while a new one is fetched: a reader need not wait for the first
/// answer.
const STALE_MAP_LIFETIME: Duration = Duration::from_secs(600);

/// How long an answer about a file counts at most: placement groups move, and asking again is
/// cheap.
const ANSWER_LIFETIME: Duration = Duration::from_secs(30);

/// The same for an answer from an older map.
const STALE_ANSWER_LIFETIME: Duration = Duration::from_secs(2);

/// The most layouts remembered. A layout never changes once the file has data.
const MAX_LAYOUTS: NonZeroUsize = NonZeroUsize::new(4096).expect("is not zero");

/// Asks a CephFS mount, and Ceph's own tool.
pub struct CephFs {
    layout_tool: ToolRunner,
    cluster: Arc<ClusterSource>,
    /// By inode.
    layouts: parking_lot::Mutex<LruCache<u64, Layout>>,
}

impl CephFs {
    /// Runs `layout`, for files below the CephFS mount `root`, and `template` for the cluster.
    /// Both together may take `limit`.
    pub fn new(
        template: CommandTemplate,
        layout: CommandTemplate,
        root: String,
        limit: Duration,
    ) -> Self {
        let template = template.with_input(cluster_map::COMMANDS);
        Self {
            layout_tool: ToolRunner::new(layout, root.clone(), limit),
            cluster: Arc::new(ClusterSource {
                tool: ToolRunner::new(template, root, limit),
                known: parking_lot::Mutex::default(),
                fetching: Arc::default(),
            }),
            layouts: parking_lot::Mutex::new(LruCache::new(MAX_LAYOUTS)),
        }
    }

    async fn query(&self, query: &Query) -> Result<ChunkMap> {
        let layout = self.layout(query).await?;
        let cluster = self.cluster.map().await?;
        let of = query.clone();
        // A file may have a million objects.
        let map = tokio::task::spawn_blocking(move || assemble(&layout, &cluster, &of));
        let map = map.await.unwrap_or_else(|error| Err(PlacementError::from_panic(&error)));
        if map.is_err() {
            // The pool may have another name now.
            self.layouts.lock().pop(&query.inode);
        }
        map
    }

    async fn layout(&self, query: &Query) -> Result<Layout> {
        if let Some(known) = self.layouts.lock().get(&query.inode) {
            return Ok(known.clone());
        }
        let layout = parse_layout(&self.layout_tool.query(query).await?)?;
        // That of an empty file may still change.
        if query.size > 0 {
            self.layouts.lock().put(query.inode, layout.clone());
        }
        Ok(layout)
    }
}

/// The map of the cluster, fetched when it is needed.
struct ClusterSource {
    tool: ToolRunner,
    known: parking_lot::Mutex<KnownCluster>,
    /// Held while a map is fetched.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

/// The last results of fetching a map, with the times when they came.
#[derive(Default)]
struct KnownCluster {
    map: Option<(Instant, Arc<ClusterMap>)>,
    /// The last failure, if there is no later map.
    failure: Option<(Instant, String)>,
}

impl KnownCluster {
    /// The last result that came at `since` or later.
    fn result_since(&self, since: Instant) -> Option<Result<Arc<ClusterMap>>> {
        match (&self.map, &self.failure) {
            (_, Some((came, what))) if *came >= since => {
                let at = "the cluster's map".to_owned();
                Some(Err(PlacementError::ServiceFailed { at, what: what.clone() }))
            }
            (Some((came, map)), _) if *came >= since => Some(Ok(Arc::clone(map))),
            _ => None,
        }
    }
}

impl ClusterSource {
    /// The last map, and its age.
    fn known(&self) -> Option<(Duration, Arc<ClusterMap>)> {
        let known = self.known.lock();
        known.map.as_ref().map(|(came, map)| (came.elapsed(), Arc::clone(map)))
    }

    /// The last result, if it is of now: a failure counts as long as a map does, so that not every
    /// caller waits for the next one.
    fn recent(&self) -> Option<Result<Arc<ClusterMap>>> {
        let oldest = Instant::now().checked_sub(MAP_LIFETIME)?;
        self.known.lock().result_since(oldest)
    }

    /// A map. An old one is returned at once while a new one is fetched, and after a failure.
    async fn map(self: &Arc<Self>) -> Result<Arc<ClusterMap>> {
        let recent = self.recent();
        match (self.known(), recent) {
            (_, Some(Ok(map))) => Ok(map),
            (Some((age, map)), recent) if age < STALE_MAP_LIFETIME => {
                if recent.is_none()
                    && let Ok(fetching) = Arc::clone(&self.fetching).try_lock_owned()
                {
                    self.spawn_fetch(fetching);
                }
                Ok(map)
            }
            (_, Some(failure)) => failure,
            (_, None) => self.fetch().await,
        }
    }

    /// A map of now. All callers that ask meanwhile get the same one, or the same failure.
    async fn fetch(self: &Arc<Self>) -> Result<Arc<ClusterMap>> {
        let began = Instant::now();
        let fetching = Arc::clone(&self.fetching).lock_owned().await;
        if let Some(result) = self.recent() {
            return result;
        }
        let result = self.known.lock().result_since(began);
        match result {
            Some(result) => result,
            None => {
                let fetch = self.spawn_fetch(fetching).await;
                fetch.unwrap_or_else(|error| Err(PlacementError::from_panic(&error)))
            }
        }
    }

    /// Fetches a map in a task of its own: a caller that gives up does not lose the result.
    fn spawn_fetch(
        self: &Arc<Self>,
        fetching: OwnedMutexGuard<()>,
    ) -> JoinHandle<Result<Arc<ClusterMap>>> {
        let source = Arc::clone(self);
        tokio::spawn(async move {
            let _fetching = fetching;
            let result = source.run_tool().await;
            let mut known = source.known.lock();
            match &result {
                Ok(map) => {
                    let map = Some((Instant::now(), Arc::clone(map)));
                    *known = KnownCluster { map, failure: None };
                }
                Err(error) => {
                    if known.failure.is_none() && known.map.is_some() {
                        let error = error.without_file_names();
                        tracing::warn!(error, "the map of the Ceph cluster cannot be renewed");
                    }
                    known.failure = Some((Instant::now(), error.to_string()));
                }
            }
            result
        })
    }

    async fn run_tool(&self) -> Result<Arc<ClusterMap>> {
        let output = self.tool.query(&Query::default()).await?;
        // The groups of a large cluster take a while.
        let map = tokio::task::spawn_blocking(move || ClusterMap::parse(output.as_bytes()));
        let map = map.await.unwrap_or_else(|error| Err(PlacementError::from_panic(&error)));
        map.map(Arc::new)
    }
}

impl Provider for CephFs {
    fn name(&self) -> &'static str {
        "cephfs"
    }

    fn reads_any_copy(&self) -> bool {
        false
    }

    fn answer_lifetime(&self) -> Duration {
        match self.cluster.known() {
            Some((age, _)) if age < MAP_LIFETIME => ANSWER_LIFETIME,
            _ => STALE_ANSWER_LIFETIME,
        }
    }

    fn notes(&self) -> Vec<String> {
        self.cluster.known().map_or(Vec::new(), |(_, map)| map.low_affinities().to_vec())
    }

    fn prepare(&self) -> PrepareFuture<'_> {
        Box::pin(async move {
            if let Err(error) = self.cluster.fetch().await {
                tracing::debug!(%error, "no map of the cluster yet");
            }
        })
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let limit = self.cluster.tool.timeout();
            let answer = tokio::time::timeout(limit, self.query(query)).await;
            answer.unwrap_or(Err(PlacementError::TimedOut(limit)))
        })
    }
}

/// The map of the file in `query`. The objects whose nodes are unknown are unknown parts of it.
///
/// # Errors
/// If the layout is impossible, or the cluster does not have its pool.
pub fn assemble(layout: &Layout, cluster: &ClusterMap, query: &Query) -> Result<ChunkMap> {
    let pool = cluster.pool(&layout.pool)?;
    let mut builder = ChunkMapBuilder::new();
    for piece in layout.pieces(query.size)? {
        let copies =
            |object: &u64| pool.locate(&layout.namespace, &object_name(query.inode, *object));
        builder.add_cells(piece.range, piece.unit, piece.objects.iter().map(copies))?;
    }
    Ok(builder.finish())
}

fn object_name(inode: u64, object: u64) -> String {
    format!("{inode:x}.{object:08x}")
}

#[cfg(test)]
mod tests {
    use super::cluster_map::tests::{CLUSTER, DEGRADED};
    use super::layout::MAX_OBJECTS;
    use super::layout::tests::{LAYOUT, layout};
    use super::*;
    use crate::placement::tool::fuzz::{is_sound, listed, mangled};
    use proptest::prelude::*;

    const M: u64 = 1 << 20;

    fn template(words: &[&str]) -> CommandTemplate {
        CommandTemplate::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
    }

    fn query(size: u64) -> Query {
        Query { path: "f".into(), size, inode: 1 << 40, replica: "/r".into() }
    }

    /// The object of a byte, as "File Striping" computes it.
    fn object_at(layout: &Layout, offset: u64) -> u64 {
        let block = offset / layout.stripe_unit;
        let stripe = block / layout.stripe_count;
        let set = stripe / (layout.object_size / layout.stripe_unit);
        set * layout.stripe_count + block % layout.stripe_count
    }

    #[test]
    fn an_object_is_named_after_the_inode() {
        assert_eq!(object_name(1 << 40, 0), "10000000000.00000000");
        assert_eq!(object_name(0x1234, 0x1f), "1234.0000001f");
    }

    #[tokio::test]
    async fn one_program_answers_for_all_objects_of_all_files() {
        let room = tempfile::tempdir().unwrap();
        let runs = room.path().join("runs");
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/");
        // It must be asked the three commands, and is asked once.
        let script = r#"read -r a; read -r b; read -r c; ! read -r d || exit 3
            test "$a, $b, $c" = "osd pool ls detail, osd tree, pg dump pgs_brief" || exit 4
            echo run >> "$1" && cat "$2""#;
        let cluster = format!("{fixtures}cephfs-cluster.json");
        let words = ["sh", "-c", script, "sh", runs.to_str().unwrap(), &*cluster];
        let layout = template(&["cat", &format!("{fixtures}cephfs-layout.txt")]);
        let limit = Duration::from_secs(20);
        let ceph = CephFs::new(template(&words), layout, "/".to_owned(), limit);
        for _ in 0..3 {
            let map = ceph.locate(&query(7 * M)).await.unwrap();
            let expected = [(0, 4 * M, vec!["n2", "n3"]), (4 * M, 7 * M, vec!["n2", "n1"])];
            assert_eq!(listed(&map), expected);
            assert!(map.chunks().all(|chunk| chunk.read == 1), "only the primary is read");
        }
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    }

    #[tokio::test]
    async fn all_ceph_programs_share_one_time_limit() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/");
        let slow = |file: &str| {
            let script = "sleep 0.7 && cat \"$1\"";
            template(&["sh", "-c", script, "sh", &format!("{fixtures}{file}")])
        };
        let [cluster, layout] = ["cephfs-cluster.json", "cephfs-layout.txt"].map(slow);
        let ceph = CephFs::new(cluster, layout, "/".to_owned(), Duration::from_secs(1));
        let error = ceph.locate(&query(4000)).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer within 1s");
    }

    #[tokio::test]
    async fn callers_that_wait_share_one_failure() {
        let room = tempfile::tempdir().unwrap();
        let runs = room.path().join("runs");
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/");
        let script = "echo run >> \"$1\"; sleep 0.1; echo no monitor >&2; exit 1";
        let cluster = template(&["sh", "-c", script, "sh", runs.to_str().unwrap()]);
        let layout = template(&["cat", &format!("{fixtures}cephfs-layout.txt")]);
        let ceph = CephFs::new(cluster, layout, "/".to_owned(), Duration::from_secs(20));
        let ceph = Arc::new(ceph);
        let mut running = tokio::task::JoinSet::new();
        for inode in 1..20 {
            let ceph = Arc::clone(&ceph);
            running.spawn(async move { ceph.locate(&Query { inode, ..query(4000) }).await });
        }
        while let Some(answer) = running.join_next().await {
            let error = answer.unwrap().unwrap_err().to_string();
            assert!(error.contains("no monitor"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
    }

    proptest! {
        #[test]
        fn no_output_panics_or_makes_an_unsound_map(
            layout in prop_oneof!["\\PC*", mangled(LAYOUT)],
            cluster in prop_oneof!["\\PC*", mangled(CLUSTER), mangled(DEGRADED)],
            size in prop_oneof![0..99 * M, 0..1u64 << 40],
        ) {
            let layouts = [&*layout, LAYOUT].map(parse_layout);
            let clusters = [&*cluster, CLUSTER].map(|text| ClusterMap::parse(text.as_bytes()));
            for layout in layouts.iter().flatten() {
                for cluster in clusters.iter().flatten() {
                    if let Ok(map) = assemble(layout, cluster, &query(size)) {
                        prop_assert!(is_sound(&map, size), "{map:?}");
                    }
                }
            }
        }

        #[test]
        fn every_byte_is_in_the_object_that_ceph_computes(
            layout in (1u64..5, 1u64..6, 1u64..4)
                .prop_map(|(unit, count, units)| layout(unit, count, unit * units)),
            size in 1u64..400,
        ) {
            let cluster = ClusterMap::parse(CLUSTER.as_bytes()).unwrap();
            let pool = cluster.pool("cephfs_data").unwrap();
            let layout = Layout { pool: "cephfs_data".to_owned(), ..layout };
            let query = query(size);
            let map = assemble(&layout, &cluster, &query).unwrap();
            for byte in 0..size {
                let object = object_name(query.inode, object_at(&layout, byte));
                let copies = pool.locate("", &object).unwrap();
                let chunk = map.chunk_at(byte).unwrap();
                let nodes: Vec<&str> =
                    chunk.nodes.iter().map(|node| &*map.nodes()[usize::from(*node)]).collect();
                prop_assert_eq!(nodes, [copies.read, copies.spare].concat());
            }
            let asked: usize = map.regions().iter().map(|region| region.cells.len()).sum();
            prop_assert!(asked as u64 <= MAX_OBJECTS);
        }
    }
}
