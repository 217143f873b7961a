//! Asks the provider in parallel with the reads, which do not wait for it.
//!
//! [`Locator::locate_file`] returns a file's [`FilePlacement`], kept for the files opened last.
//! [`Locator::query_if_due`] starts a query if one is due, and returns at once. [`NodeNames`]
//! translates answers from nodes to replicas.
//!
//! Degraded: without an answer, all replicas are equal candidates. Failures are always counted.
//! The log reports the first one, and again the first one after a success.
//!
//! *Invariants:* at most [`MAX_QUERIES`] queries are in flight and [`MAX_WAITING_QUERIES`] more
//! wait. There is one at a time about one file. Each ends within 1.25 times the
//! configured time limit.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::affinity::{AffinityRules, Pin};
use super::file_placement::{Delivery, FilePlacement};
use super::learned::LearnedPlacement;
use super::node_names::NodeNames;
use super::{ChunkMap, LocalityMap, PlacementError, Provider, Query};
use crate::volume::{FileVersion, ReplicaId, ReplicaSet};

/// The most queries in flight: a `hadoop` command takes a processor for a second.
const MAX_QUERIES: usize = 4;

/// The most queries that wait for their turn. If the queue is full, a later read asks about the
/// file.
const MAX_WAITING_QUERIES: usize = 256;

/// The most files remembered.
const MAX_FILES: NonZeroUsize = NonZeroUsize::new(4096).expect("is not zero");

/// The most names shown that match no replica.
const MAX_SHOWN_NAMES: usize = 12;

/// The most warnings of such names: further ones show nothing new.
const MAX_WARNINGS: usize = 16;

/// The source of a volume's placement.
#[derive(Clone)]
pub enum PlacementSource {
    /// No provider.
    None,
    /// Timing, in regions of this many bytes.
    Timing(u64),
    /// A provider.
    Provider(Arc<dyn Provider>),
}

/// When the locator asks, and how long answers count.
#[derive(Clone, Copy, Debug)]
pub struct LocatorPolicy {
    /// How long an answer counts.
    pub ttl: Duration,
    /// How long after a failure to ask about the same file again.
    pub retry_after: Duration,
    /// Files shorter than this are not asked about, bytes: it would take longer
    /// than reading them.
    pub min_file_size: u64,
    /// How long a provider may take for an answer. The locator allows a quarter more before it
    /// gives up on a provider that does not keep this limit.
    pub timeout: Duration,
}

/// The state of placement that `fanfs status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementStatus {
    /// The provider; "none" without one.
    pub provider: String,
    /// Files whose placement is remembered.
    pub files: usize,
    /// Queries in flight or waiting.
    pub pending: usize,
    /// Queries that were answered.
    pub answers: u64,
    /// Queries that failed.
    pub failures: u64,
    /// Why the last failed query failed, until a query is answered.
    pub failing: Option<String>,
    /// Answers that timing contradicted: a replica read a chunk that its node should hold like a
    /// remote one.
    pub contradicted: u64,
    /// Node names that no replica has, in the last answer with any nodes in it: the first few,
    /// and the number of the others.
    pub unmatched: Vec<String>,
    /// Replicas whose nodes no answer has named so far.
    #[serde(default)]
    pub unnamed: Vec<String>,
    /// Files whose chunks were located.
    #[serde(default)]
    pub located: u64,
    /// The mean time of the answers, milliseconds.
    #[serde(default)]
    pub answer_ms: u64,
    /// Facts about the cluster that make reads less local, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The locations of a volume's replicas.
#[derive(Clone, Debug, Default)]
pub struct ReplicaTopology {
    /// The names of their nodes.
    pub names: NodeNames,
    /// The names of the replicas.
    pub replicas: Vec<String>,
    /// The directory of a replica, for providers that look at the file itself; empty if all replicas
    /// are exports.
    pub directory: PathBuf,
    /// The subtrees that are pinned to them.
    pub affinities: AffinityRules,
}

/// The locator of one volume.
pub struct Locator {
    source: PlacementSource,
    policy: LocatorPolicy,
    topology: ReplicaTopology,
    runtime: tokio::runtime::Handle,
    query_slots: Arc<Semaphore>,
    files: Mutex<LruCache<PathBuf, CachedPlacement>>,
    pending_queries: AtomicUsize,
    answer_count: AtomicU64,
    failure_count: AtomicU64,
    disbelief_count: AtomicU64,
    /// Files with a first answer.
    located_count: AtomicU64,
    /// The time of all answers, microseconds.
    answer_time_us: AtomicU64,
    is_failing: AtomicBool,
    last_failure: Mutex<Option<String>>,
    unmatched_names: Mutex<UnmatchedNames>,
}

/// Node names that no replica has.
#[derive(Default)]
struct UnmatchedNames {
    shown: Vec<String>,
    /// The replicas that answers have named.
    named: ReplicaSet,
    /// The names that a warning has shown.
    warned: HashSet<String>,
    warnings: usize,
}

#[derive(Clone)]
struct CachedPlacement {
    version: FileVersion,
    located_file: Arc<LocatedFile>,
}

/// A file's placement, and the query about it.
pub struct LocatedFile {
    query: Query,
    /// The known placement.
    pub placement: FilePlacement,
}

impl Locator {
    /// A locator whose queries run on `runtime`.
    pub fn new(
        source: PlacementSource,
        policy: LocatorPolicy,
        ground: ReplicaTopology,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            source,
            policy,
            topology: ground,
            runtime,
            query_slots: Arc::new(Semaphore::new(MAX_QUERIES)),
            files: Mutex::new(LruCache::new(MAX_FILES)),
            pending_queries: AtomicUsize::new(0),
            answer_count: AtomicU64::new(0),
            failure_count: AtomicU64::new(0),
            disbelief_count: AtomicU64::new(0),
            located_count: AtomicU64::new(0),
            answer_time_us: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            last_failure: Mutex::new(None),
            unmatched_names: Mutex::default(),
        }
    }

    /// Must be called once when the volume begins to serve.
    pub fn prepare(&self) {
        if let PlacementSource::Provider(provider) = &self.source {
            let provider = Arc::clone(provider);
            self.runtime.spawn(async move { provider.prepare().await });
        }
    }

    /// The placement of the file at `path`; `None` if the volume has no source of placement.
    pub fn locate_file(&self, path: &Path, version: FileVersion) -> Option<Arc<LocatedFile>> {
        let learned = match &self.source {
            PlacementSource::None => return None,
            PlacementSource::Timing(chunk) => {
                Some(LearnedPlacement::new(*chunk, self.topology.replicas.len()))
            }
            PlacementSource::Provider(_) => None,
        };
        let mut files = self.files.lock();
        if let Some(known) = files.get(path)
            && known.version == version
        {
            return Some(Arc::clone(&known.located_file));
        }
        let query = Query {
            path: path.to_owned(),
            size: version.size,
            replica: self.topology.directory.clone(),
            inode: version.ino,
        };
        let file = Arc::new(LocatedFile { query, placement: FilePlacement::new(learned) });
        files.put(path.to_owned(), CachedPlacement { version, located_file: Arc::clone(&file) });
        Some(file)
    }

    /// Must be called when a file is opened. Asks at once if that costs nothing, so that the
    /// first read already knows the placement.
    pub fn file_opened(self: &Arc<Self>, file: &Arc<LocatedFile>, now: Instant) {
        if self.policy.min_file_size == 0 {
            self.query_if_due(file, now);
        }
    }

    /// Whether the placement of files can be known.
    pub fn has_source(&self) -> bool {
        !matches!(self.source, PlacementSource::None)
    }

    /// The rule that pins `path`.
    pub fn pin(&self, path: &Path) -> Option<Pin> {
        self.topology.affinities.find(path)
    }

    /// The rules that pin subtrees.
    pub fn affinities(&self) -> &AffinityRules {
        &self.topology.affinities
    }

    /// Whether each gateway reads its own node's copy, as far as is known.
    pub fn reads_any_copy(&self) -> bool {
        match &self.source {
            PlacementSource::Provider(provider) => provider.reads_any_copy(),
            PlacementSource::None | PlacementSource::Timing(_) => true,
        }
    }

    /// The provider's name, "learned" for timing, or "none".
    pub fn provider_name(&self) -> &'static str {
        match &self.source {
            PlacementSource::None => "none",
            PlacementSource::Timing(_) => "learned",
            PlacementSource::Provider(provider) => provider.name(),
        }
    }

    /// Must be called before a read. Asks for the file's placement, if that is due.
    pub fn query_if_due(self: &Arc<Self>, file: &Arc<LocatedFile>, now: Instant) {
        let PlacementSource::Provider(provider) = &self.source else { return };
        if file.query.size < self.policy.min_file_size {
            return;
        }
        if !file.placement.take_due_query(now) {
            return;
        }
        if self.pending_queries.fetch_add(1, Relaxed) >= MAX_QUERIES + MAX_WAITING_QUERIES {
            self.pending_queries.fetch_sub(1, Relaxed);
            file.placement.query_done(now + self.policy.retry_after);
            return;
        }
        let locator = Arc::clone(self);
        let provider = Arc::clone(provider);
        let file = Arc::clone(file);
        self.runtime.spawn(async move {
            let asked = QueryGuard { locator: &locator, file: &file, is_finished: false };
            let turn = locator.query_slots.acquire().await;
            let asked_at = Instant::now();
            let answer = locator.limited(provider.locate(&file.query)).await;
            drop(turn);
            if answer.is_ok() {
                let took = asked_at.elapsed().as_micros() as u64;
                locator.answer_time_us.fetch_add(took, Relaxed);
            }
            asked.finish(answer, provider.answer_lifetime());
        });
    }

    /// Limits the time of a question to a provider.
    async fn limited(
        &self,
        answer: impl Future<Output = Result<ChunkMap, PlacementError>>,
    ) -> Result<ChunkMap, PlacementError> {
        // Providers keep their own time limit; this one is for a provider that hangs
        // nevertheless.
        let limit = self.policy.timeout + self.policy.timeout / 4;
        let answer = tokio::time::timeout(limit, answer).await;
        answer.unwrap_or(Err(PlacementError::TimedOut(limit)))
    }

    /// Asks the provider now, even if the placement is known, about a file that need not be open;
    /// for `fanfs explain`.
    ///
    /// # Errors
    /// The provider's error. Without a provider the result is `None`.
    pub async fn query_now(
        &self,
        path: &Path,
        version: FileVersion,
    ) -> Result<Option<ChunkMap>, PlacementError> {
        let PlacementSource::Provider(provider) = &self.source else { return Ok(None) };
        let query = Query {
            path: path.to_owned(),
            size: version.size,
            replica: self.topology.directory.clone(),
            inode: version.ino,
        };
        let answer = async {
            // Facts that are common to all files must be of now, too.
            provider.prepare().await;
            provider.locate(&query).await
        };
        self.limited(answer).await.map(Some)
    }

    /// The replicas on the node of this name.
    pub fn replicas_on(&self, node: &str) -> ReplicaSet {
        self.topology.names.find(node)
    }

    /// Records a segment; see [`FilePlacement::record_delivery`].
    pub fn record_delivery(
        self: &Arc<Self>,
        file: &Arc<LocatedFile>,
        came: Delivery,
        now: Instant,
    ) {
        if file.placement.record_delivery(came, now) {
            self.disbelief_count.fetch_add(1, Relaxed);
            tracing::info!(
                replica = came.replica.index(),
                "the replica reads a chunk like a remote one, although its node should hold the \
                 chunk; asking for the chunk's placement again"
            );
            self.query_if_due(file, now);
        }
    }

    fn map_to_replicas(&self, chunks: &ChunkMap) -> LocalityMap {
        let sets: Vec<ReplicaSet> =
            chunks.nodes().iter().map(|node| self.topology.names.find(node)).collect();
        // An answer without nodes, for an unknown file, shows nothing about names.
        if !sets.is_empty() {
            let nodes = chunks.nodes().iter().zip(&sets);
            let nameless = nodes.filter(|(_, set)| set.is_empty());
            self.record_unmatched(nameless.map(|(node, _)| &**node).collect());
            let mut unmatched = self.unmatched_names.lock();
            unmatched.named = sets.iter().copied().fold(unmatched.named, ReplicaSet::or);
        }
        chunks.to_locality_map(|node| sets[node])
    }

    /// Records the nodes in an answer that no replica is on.
    fn record_unmatched(&self, names: Vec<&str>) {
        let mut unmatched = self.unmatched_names.lock();
        unmatched.shown =
            names.iter().take(MAX_SHOWN_NAMES).map(|name| (*name).to_owned()).collect();
        if names.len() > MAX_SHOWN_NAMES {
            unmatched.shown.push(format!("and {} more", names.len() - MAX_SHOWN_NAMES));
        }
        let is_new = names.iter().any(|name| !unmatched.warned.contains(*name));
        if !is_new || unmatched.warnings >= MAX_WARNINGS {
            return;
        }
        unmatched.warnings += 1;
        unmatched.warned.extend(names.into_iter().map(str::to_owned));
        tracing::warn!(
            provider = self.provider_name(),
            nodes = unmatched.shown.join(", "),
            replicas = self.topology.names.display_names().join(", "),
            "the provider names nodes that no replica is on; map them with `aliases`"
        );
    }

    /// `error` may name files, `kind` must not.
    fn record_failure(&self, kind: &str, error: String) {
        self.failure_count.fetch_add(1, Relaxed);
        tracing::debug!(provider = self.provider_name(), error, "no placement");
        *self.last_failure.lock() = Some(error);
        if !self.is_failing.swap(true, Relaxed) {
            tracing::warn!(
                provider = self.provider_name(),
                error = kind,
                "no placement; all replicas are candidates until the provider answers"
            );
        }
    }

    /// The state of placement, for `fanfs status`.
    pub fn status(&self) -> PlacementStatus {
        let unmatched = self.unmatched_names.lock().shown.clone();
        let files = self.files.lock().len();
        let failing = self.last_failure.lock().clone();
        PlacementStatus {
            provider: self.provider_name().to_owned(),
            files,
            pending: self.pending_queries.load(Relaxed),
            answers: self.answer_count.load(Relaxed),
            failures: self.failure_count.load(Relaxed),
            failing,
            contradicted: self.disbelief_count.load(Relaxed),
            unmatched,
            unnamed: self.unnamed_replicas(),
            located: self.located_count.load(Relaxed),
            answer_ms: self.answer_time_us.load(Relaxed)
                / (1000 * self.answer_count.load(Relaxed).max(1)),
            notes: match &self.source {
                PlacementSource::Provider(provider) => provider.notes(),
                PlacementSource::None | PlacementSource::Timing(_) => Vec::new(),
            },
        }
    }

    fn unnamed_replicas(&self) -> Vec<String> {
        if !matches!(self.source, PlacementSource::Provider(_)) {
            return Vec::new();
        }
        let named = self.unmatched_names.lock().named;
        let replicas = self.topology.replicas.iter().enumerate();
        let unnamed = replicas.filter(|(id, _)| !named.contains(ReplicaId::new(*id)));
        unnamed.map(|(_, name)| name.clone()).collect()
    }
}

/// A query in flight or waiting. Dropping it ends the query; after a panic of the provider the
/// query counts as failed.
struct QueryGuard<'a> {
    locator: &'a Locator,
    file: &'a LocatedFile,
    is_finished: bool,
}

impl QueryGuard<'_> {
    fn finish(mut self, answer: Result<ChunkMap, PlacementError>, lifetime: Duration) {
        let locator = self.locator;
        let lifetime = lifetime.min(locator.policy.ttl);
        self.is_finished = true;
        match answer {
            Ok(chunks) => {
                let mapped = locator.map_to_replicas(&chunks);
                let is_first = self.file.placement.store_answer(mapped, Instant::now() + lifetime);
                let is_located = is_first && !chunks.is_empty();
                locator.located_count.fetch_add(u64::from(is_located), Relaxed);
                locator.answer_count.fetch_add(1, Relaxed);
                if locator.is_failing.swap(false, Relaxed) {
                    *locator.last_failure.lock() = None;
                    tracing::info!("the placement provider answers again");
                }
            }
            Err(error) => locator.record_failure(&error.without_file_names(), error.to_string()),
        }
    }
}

impl Drop for QueryGuard<'_> {
    fn drop(&mut self) {
        if !self.is_finished && std::thread::panicking() {
            let bug = "the provider panicked; this is a bug in fanfs";
            self.locator.record_failure(bug, bug.to_owned());
        }
        // This has no effect after an answer, which has set a time.
        self.file.placement.query_done(Instant::now() + self.locator.policy.retry_after);
        self.locator.pending_queries.fetch_sub(1, Relaxed);
    }
}
