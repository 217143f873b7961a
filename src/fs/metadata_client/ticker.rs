//! What looks after calls while there are any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

/// How often late calls and passed deadlines are looked for while there are
/// calls. A tenth of the least patience is close enough.
pub(super) const TICK: Duration = Duration::from_millis(25);

/// A call as the clock sees it.
pub(super) trait Ticked: Send + Sync {
    /// Does what is due; false once the call is over.
    fn tick(self: Arc<Self>, now: Instant) -> bool;
}

/// Looks after calls until there can be no more.
pub(super) async fn run_ticker(mut begun: UnboundedReceiver<Arc<dyn Ticked>>) {
    let mut calls = Vec::new();
    while let Some(call) = begun.recv().await {
        calls.push(call);
        while !calls.is_empty() {
            tokio::time::sleep(TICK).await;
            while let Ok(call) = begun.try_recv() {
                calls.push(call);
            }
            let now = Instant::now();
            calls.retain(|call| Arc::clone(call).tick(now));
        }
    }
}
