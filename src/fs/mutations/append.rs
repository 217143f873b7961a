//! Appends in parts: each waits for its turn ([`crate::fs::append_queue`]), and is then written.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Mutations;
use super::write::ChargedWrite;
use crate::fs::append_queue::{AppendPart, PREDECESSOR_TIMEOUT, ReadyParts};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::write_gate::{AnnouncedPart, WriteGate};
use crate::replicas::task;
use crate::telemetry::counters::increment;

impl Mutations {
    /// Appends a part of a write(2) in its turn, if there was room for it; returns the number
    /// of bytes.
    pub(super) async fn append_part(
        &self,
        handle: HandleId,
        part: AnnouncedPart,
        request: FsResult<ChargedWrite>,
    ) -> FsResult<u64> {
        let AnnouncedPart { gate, offset, len, arrived_at, .. } = part;
        let request = match request {
            Ok(request) => request,
            Err(errno) => {
                increment(&self.counters.write_errors);
                let ready = gate.appends.lock().refuse(offset, errno);
                run_ready_parts(&self.calls.runtime, &gate, ready);
                return Err(errno);
            }
        };
        let (start, started) = oneshot::channel();
        let run = Box::new(move |turn| {
            let _ = start.send(turn);
        });
        let part = AppendPart { offset, len, arrived_at, run };
        let ready = gate.appends.lock().add_part(part, arrived_at);
        run_ready_parts(&self.calls.runtime, &gate, ready);
        // Until its own call begins: a handover must not find nothing to wait for.
        task::hold_until_reply(self.calls.client.pending_changes.add_waiting());
        // The part is dropped without a turn only when the volume is shut down.
        started.await.unwrap_or(Err(Errno::IO))?;
        let answer = self.submit_write(handle, request).await;
        let ready = gate.appends.lock().finish_part(&answer, Instant::now());
        run_ready_parts(&self.calls.runtime, &gate, ready);
        answer
    }
}

fn run_ready_parts(runtime: &Handle, gate: &Arc<WriteGate>, ready: ReadyParts) {
    for (part, turn) in ready {
        (part.run)(turn);
    }
    if !gate.appends.lock().has_waiting() {
        return;
    }
    let gate = Arc::clone(gate);
    let own = runtime.clone();
    runtime.spawn(async move {
        tokio::time::sleep(PREDECESSOR_TIMEOUT).await;
        let ready = gate.appends.lock().next_ready(Instant::now());
        if !ready.is_empty() {
            run_ready_parts(&own, &gate, ready);
        }
    });
}
