//! Replicas at run time: the state that reads and metadata calls share.
//!
//! [`Replicas`] holds each replica with its threads, the health of all replicas, and the ticker.
//! The parts are:
//!
//! - [`health`]: whether one replica may be asked, as a state machine; [`health_board`]: the health
//!   of all replicas together; [`availability`]: how reads and calls see and report it;
//!   [`mount_check`]: an ejected replica must prove that it is still the same mount.
//! - [`lateness`]: when a segment or a call is late; [`hedge_budget`]: how many hedges may be sent;
//!   [`request_deadline`]: how long a request may go without progress.
//! - [`Ticker`]: the clock for everything that waits for a replica.
//! - [`metadata_client`]: calls other than reads. [`metadata_order`] orders the replicas, and
//!   [`task`] runs the requests that wait for the answers.
//!
//! *Invariant:* while the health board is locked, no replica is called and no job is submitted to
//! one. Of all other locks, only those of single fetches are taken.

mod availability;
pub mod health;
pub mod health_board;
mod health_guard;
pub mod hedge_budget;
pub mod lateness;
pub mod metadata_client;
pub mod metadata_order;
mod mount_check;
pub mod request_deadline;
pub mod task;
mod ticker;

use std::ops::Index;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::backend::{InlinePermits, Replica};
use crate::sync::{LockRank, RankedMutex};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};
use health_board::HealthBoard;
use health_guard::HealthGuard;

pub use availability::Availability;
pub use ticker::{PendingWork, Ticked, Ticker};

/// The replicas of a volume at run time.
pub struct Replicas {
    members: ReplicaMap<Arc<Replica>>,
    health: RankedMutex<HealthBoard>,
    /// Whether no replica is in doubt, as of the last change of `health`.
    is_calm: AtomicBool,
    inline_permits: InlinePermits,
    ticker: Ticker,
}

impl Replicas {
    /// These replicas, all healthy. At most `max_inline_calls` session threads may be inside a
    /// replica at once.
    pub fn new(members: ReplicaMap<Arc<Replica>>, max_inline_calls: usize) -> Arc<Self> {
        let names = members.map(|_, replica| replica.name.clone());
        Arc::new(Self {
            health: RankedMutex::new(
                LockRank::Health,
                HealthBoard::new(names, true, Instant::now()),
            ),
            is_calm: AtomicBool::new(true),
            inline_permits: InlinePermits::new(max_inline_calls),
            ticker: Ticker::default(),
            members,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The set of all replicas.
    pub fn all(&self) -> ReplicaSet {
        self.members.all()
    }

    /// Each with its id.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, &Arc<Replica>)> {
        self.members.iter()
    }

    /// The result of `of` for each replica.
    pub fn map<T>(&self, of: impl FnMut(ReplicaId, &Arc<Replica>) -> T) -> ReplicaMap<T> {
        self.members.map(of)
    }

    /// The permits for inline calls by session threads.
    pub fn inline_permits(&self) -> &InlinePermits {
        &self.inline_permits
    }

    /// The ticker of the volume.
    pub fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    /// Locks the health of all replicas, for decisions with several steps. See the module's
    /// invariant.
    pub(crate) fn lock_health(&self) -> HealthGuard<'_> {
        HealthGuard::new(self.health.lock(), &self.is_calm)
    }

    /// Whether no replica is ejected, suspect, absent or being checked. Takes no lock.
    pub fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// Runs the ticker; never returns. Spawn it once.
    pub async fn run_ticker(self: Arc<Self>) {
        let own: Weak<dyn Ticked> = Arc::<Self>::downgrade(&self);
        self.ticker.add(own);
        self.ticker.run().await;
    }
}

impl Index<ReplicaId> for Replicas {
    type Output = Arc<Replica>;

    fn index(&self, id: ReplicaId) -> &Arc<Replica> {
        &self.members[id]
    }
}

impl Ticked for Replicas {
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork {
        let inside = self.members.iter().filter(|(_, replica)| replica.on_tick()).count();
        let due = self.lock_health().due_mount_checks(now);
        self.start_mount_checks(due);
        match self.lock_health().all_available() {
            _ if inside > 0 => PendingWork::Calls,
            true => PendingWork::Idle,
            false => PendingWork::Replicas,
        }
    }

    fn stop(self: Arc<Self>) {
        // Nothing waits here.
    }
}
