//! Asks the provider, beside the reads that go on without it.
//!
//! [`Locator::file`] gives a file's [`FilePlacement`], kept for the files opened
//! last; [`Locator::prompt`] starts a question where one is due and returns at
//! once. Answers are translated from nodes to replicas by [`NodeNames`].
//!
//! Degraded: when there is no answer, every replica is a candidate like any
//! other. That is said once in the log, until it works again, and counted
//! always.
//!
//! *Invariants:* at most [`AT_ONCE`] questions are under way and [`WAITING`]
//! more wait; about one piece of one file there is one at a time; each ends
//! within the provider's time limit.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::affinity::{Affinities, Pin};
use super::file::{Came, FilePlacement};
use super::learned::Learned;
use super::names::NodeNames;
use super::{ChunkMap, Mapped, PlacementError, Provider, Query};
use crate::volume::{ByteRange, FileVersion, ReplicaSet};

/// Questions under way: a `hadoop` command takes a processor for a second.
const AT_ONCE: usize = 4;

/// Questions that wait for their turn; a file that finds no place is asked
/// about by a later read.
const WAITING: usize = 256;

/// Files remembered.
const FILES: NonZeroUsize = NonZeroUsize::new(4096).expect("is not zero");

/// Names shown of those that match no replica.
const SHOWN: usize = 12;

/// Warnings of such names at most: after so many they tell nothing new.
const WARNINGS: usize = 16;

/// Who knows where chunks are.
#[derive(Clone)]
pub enum Source {
    /// Nobody.
    Nobody,
    /// Timing, in regions of this many bytes.
    Timing(u64),
    /// A provider.
    Provider(Arc<dyn Provider>),
}

/// How long answers count.
#[derive(Clone, Copy, Debug)]
pub struct LocatorPolicy {
    /// For how long an answer counts.
    pub ttl: Duration,
    /// How long after a failure to ask about the same file again.
    pub retry_after: Duration,
    /// Files shorter than this are not asked about, bytes: it would take longer
    /// than reading them.
    pub smallest: u64,
    /// By when a provider must have answered, should it not see to that itself.
    pub timeout: Duration,
}

/// What `fanfs status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacementStatus {
    /// The provider; "none" without one.
    pub provider: String,
    /// Files whose placement is remembered.
    pub files: usize,
    /// Questions under way.
    pub asking: usize,
    /// Questions answered.
    pub answers: u64,
    /// Questions that were not.
    pub failures: u64,
    /// Why the last one was not, until one is answered.
    pub failing: Option<String>,
    /// Chunks' replicas that behaved remotely and were not believed.
    pub disbelieved: u64,
    /// Names of nodes that no replica has, as far as they are shown, in the last
    /// answer with any nodes in it.
    pub unmatched: Vec<String>,
}

/// What a volume says about its replicas' places.
#[derive(Clone, Debug, Default)]
pub struct Ground {
    /// The names that they answer to.
    pub names: NodeNames,
    /// Their directories, for providers that look at the file itself.
    pub directories: Vec<PathBuf>,
    /// What is pinned to them.
    pub affinities: Affinities,
}

/// The locator of one volume.
pub struct Locator {
    source: Source,
    policy: LocatorPolicy,
    ground: Ground,
    runtime: tokio::runtime::Handle,
    turns: Arc<Semaphore>,
    files: Mutex<LruCache<PathBuf, Known>>,
    asking: AtomicUsize,
    answers: AtomicU64,
    failures: AtomicU64,
    disbelieved: AtomicU64,
    is_failing: AtomicBool,
    failing: Mutex<Option<String>>,
    unmatched: Mutex<Unmatched>,
}

/// Names of nodes that no replica has.
#[derive(Default)]
struct Unmatched {
    shown: Vec<String>,
    /// Those that were warned of.
    known: HashSet<String>,
    warnings: usize,
}

#[derive(Clone)]
struct Known {
    version: FileVersion,
    file: Arc<FileAt>,
}

/// A file's placement together with what its provider is told about it.
pub struct FileAt {
    query: Query,
    /// What is known.
    pub placement: FilePlacement,
}

impl Locator {
    /// A locator whose questions run on `runtime`.
    pub fn new(
        source: Source,
        policy: LocatorPolicy,
        ground: Ground,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            source,
            policy,
            ground,
            runtime,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            files: Mutex::new(LruCache::new(FILES)),
            asking: AtomicUsize::new(0),
            answers: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            disbelieved: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            failing: Mutex::new(None),
            unmatched: Mutex::default(),
        }
    }

    /// The placement of the file at `path`; `None` where there is nobody to know.
    pub fn file(&self, path: &Path, version: FileVersion) -> Option<Arc<FileAt>> {
        let learned = match &self.source {
            Source::Nobody => return None,
            Source::Timing(chunk) => Some(Learned::new(*chunk, self.ground.directories.len())),
            Source::Provider(_) => None,
        };
        let mut files = self.files.lock();
        if let Some(known) = files.get(path)
            && known.version == version
        {
            return Some(Arc::clone(&known.file));
        }
        let query = Query {
            path: path.to_owned(),
            size: version.size,
            range: ByteRange::new(0, version.size),
            replica: self.ground.directories.first().cloned().unwrap_or_default(),
            inode: version.ino,
        };
        let file = FileAt { query, placement: FilePlacement::new(self.is_piecewise(), learned) };
        let file = Arc::new(file);
        files.put(path.to_owned(), Known { version, file: Arc::clone(&file) });
        Some(file)
    }

    /// A file is opened: asks at once where it costs nothing, so that its first
    /// read knows already.
    pub fn opened(self: &Arc<Self>, file: &Arc<FileAt>, now: Instant) {
        if self.policy.smallest == 0 {
            self.prompt(file, 0, now);
        }
    }

    /// What `path` is pinned to.
    pub fn pin(&self, path: &Path) -> Option<Pin> {
        self.ground.affinities.find(path)
    }

    /// The rules of what is pinned.
    pub fn affinities(&self) -> &Affinities {
        &self.ground.affinities
    }

    fn is_piecewise(&self) -> bool {
        matches!(&self.source, Source::Provider(provider) if provider.is_piecewise())
    }

    /// The provider's own name.
    pub fn provider_name(&self) -> &'static str {
        match &self.source {
            Source::Nobody => "none",
            Source::Timing(_) => "learned",
            Source::Provider(provider) => provider.name(),
        }
    }

    /// Somebody is about to read at `offset`: asks where that is, if it is due.
    pub fn prompt(self: &Arc<Self>, file: &Arc<FileAt>, offset: u64, now: Instant) {
        let Source::Provider(provider) = &self.source else { return };
        if file.query.size < self.policy.smallest {
            return;
        }
        let Some(piece) = file.placement.due(offset, now) else { return };
        if self.asking.fetch_add(1, Relaxed) >= AT_ONCE + WAITING {
            self.asking.fetch_sub(1, Relaxed);
            file.placement.settle(offset, now + self.policy.retry_after);
            return;
        }
        let (locator, provider, file) = (Arc::clone(self), Arc::clone(provider), Arc::clone(file));
        self.runtime.spawn(async move {
            let asked = Asked { locator: &locator, file: &file, offset, ended: false };
            let turn = locator.turns.acquire().await;
            let whole = ByteRange::new(0, file.query.size);
            let query = Query { range: piece.intersect(whole), ..file.query.clone() };
            let answer = locator.ask(&*provider, &query).await;
            drop(turn);
            asked.end(answer);
        });
    }

    async fn ask(
        &self,
        provider: &dyn Provider,
        query: &Query,
    ) -> Result<ChunkMap, PlacementError> {
        // Providers keep their time limit; this one is for those that hang all
        // the same.
        let limit = self.policy.timeout + self.policy.timeout / 4;
        let answer = tokio::time::timeout(limit, provider.locate(query)).await;
        answer.unwrap_or(Err(PlacementError::Late(limit)))
    }

    /// Asks now, whatever is known, about the bytes in `range` of a file that
    /// need not be open; for `fanfs explain`.
    ///
    /// # Errors
    /// The provider's; `None` where there is none to ask.
    pub async fn ask_now(
        &self,
        path: &Path,
        version: FileVersion,
        range: ByteRange,
    ) -> Result<Option<ChunkMap>, PlacementError> {
        let Source::Provider(provider) = &self.source else { return Ok(None) };
        let query = Query {
            path: path.to_owned(),
            size: version.size,
            range: range.intersect(ByteRange::new(0, version.size)),
            replica: self.ground.directories.first().cloned().unwrap_or_default(),
            inode: version.ino,
        };
        self.ask(&**provider, &query).await.map(Some)
    }

    /// The replicas on the node of this name.
    pub fn replicas_on(&self, node: &str) -> ReplicaSet {
        self.ground.names.find(node)
    }

    /// A segment came; see [`FilePlacement::came`].
    pub fn came(self: &Arc<Self>, file: &Arc<FileAt>, came: Came, now: Instant) {
        if file.placement.came(came, now) {
            self.disbelieved.fetch_add(1, Relaxed);
            tracing::info!(
                replica = came.replica.index(),
                "a chunk is not where it was said to be; its placement is asked again"
            );
            self.prompt(file, came.offset, now);
        }
    }

    fn map(&self, chunks: &ChunkMap) -> Mapped {
        let sets: Vec<ReplicaSet> =
            chunks.nodes().iter().map(|node| self.ground.names.find(node)).collect();
        // One without nodes, of a file that is not known, says nothing of them.
        if !sets.is_empty() {
            let nodes = chunks.nodes().iter().zip(&sets);
            let nameless = nodes.filter(|(_, set)| set.is_empty());
            self.compare(nameless.map(|(node, _)| &**node).collect());
        }
        chunks.map(|node| sets[node])
    }

    /// Takes note of the nodes in an answer that no replica is on.
    fn compare(&self, names: Vec<&str>) {
        let mut unmatched = self.unmatched.lock();
        unmatched.shown = names.iter().take(SHOWN).map(|name| (*name).to_owned()).collect();
        if names.len() > SHOWN {
            unmatched.shown.push(format!("and {} more", names.len() - SHOWN));
        }
        let is_new = names.iter().any(|name| !unmatched.known.contains(*name));
        if !is_new || unmatched.warnings >= WARNINGS {
            return;
        }
        unmatched.warnings += 1;
        unmatched.known.extend(names.into_iter().map(str::to_owned));
        tracing::warn!(
            provider = self.provider_name(),
            nodes = unmatched.shown.join(", "),
            replicas = self.ground.names.shown().join(", "),
            "the provider names nodes that no replica is on; `aliases` can tie them together"
        );
    }

    /// `error` may name files, `kind` must not.
    fn failed(&self, kind: &str, error: String) {
        self.failures.fetch_add(1, Relaxed);
        tracing::debug!(provider = self.provider_name(), error, "no placement");
        *self.failing.lock() = Some(error);
        if !self.is_failing.swap(true, Relaxed) {
            tracing::warn!(
                provider = self.provider_name(),
                error = kind,
                "no placement; all replicas are candidates until it is answered"
            );
        }
    }

    /// What `fanfs status` shows.
    pub fn status(&self) -> PlacementStatus {
        PlacementStatus {
            provider: self.provider_name().to_owned(),
            files: self.files.lock().len(),
            asking: self.asking.load(Relaxed),
            answers: self.answers.load(Relaxed),
            failures: self.failures.load(Relaxed),
            failing: self.failing.lock().clone(),
            disbelieved: self.disbelieved.load(Relaxed),
            unmatched: self.unmatched.lock().shown.clone(),
        }
    }
}

/// A question under way; one that is dropped, because the runtime ends or the
/// provider panics, has failed.
struct Asked<'a> {
    locator: &'a Locator,
    file: &'a FileAt,
    offset: u64,
    ended: bool,
}

impl Asked<'_> {
    fn end(mut self, answer: Result<ChunkMap, PlacementError>) {
        let (locator, policy) = (self.locator, &self.locator.policy);
        self.ended = true;
        match answer {
            Ok(chunks) => {
                let mapped = locator.map(&chunks);
                self.file.placement.answered(self.offset, mapped, Instant::now() + policy.ttl);
                locator.answers.fetch_add(1, Relaxed);
                if locator.is_failing.swap(false, Relaxed) {
                    *locator.failing.lock() = None;
                    tracing::info!("placement is answered again");
                }
            }
            Err(error) => locator.failed(&error.without_names(), error.to_string()),
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.ended && std::thread::panicking() {
            let bug = "the provider broke off; that is a bug in fanfs";
            self.locator.failed(bug, bug.to_owned());
        }
        // Nothing where it has been answered: then a time is set.
        self.file.placement.settle(self.offset, Instant::now() + self.locator.policy.retry_after);
        self.locator.asking.fetch_sub(1, Relaxed);
    }
}
