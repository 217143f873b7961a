//! Appends in parts: each waits for its turn ([`super::append_queue`]), and is then written.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::append_queue::{AppendPart, PREDECESSOR_TIMEOUT, ReadyParts};
use super::write::ChargedWrite;
use super::write_gate::{AnnouncedPart, WriteGate};
use super::{Errno, Fs, FsResult, HandleId};
use crate::telemetry::counters::increment;

impl Fs {
    /// Appends a part of a write(2) in its turn, if there was room for it; returns the number
    /// of bytes.
    pub(super) async fn append_part(
        self: &Arc<Self>,
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
                self.run_ready_parts(&gate, ready);
                return Err(errno);
            }
        };
        let (start, started) = oneshot::channel();
        let run = Box::new(move |turn| {
            let _ = start.send(turn);
        });
        let part = AppendPart { offset, len, arrived_at, run };
        let ready = gate.appends.lock().add_part(part, arrived_at);
        self.run_ready_parts(&gate, ready);
        // The part is dropped without a turn where the volume is going away.
        started.await.unwrap_or(Err(Errno::IO))?;
        let answer = self.submit_write(handle, request).await;
        let ready = gate.appends.lock().finish_part(&answer, Instant::now());
        self.run_ready_parts(&gate, ready);
        answer
    }

    fn run_ready_parts(self: &Arc<Self>, gate: &Arc<WriteGate>, ready: ReadyParts) {
        for (part, turn) in ready {
            (part.run)(turn);
        }
        if !gate.appends.lock().has_waiting() {
            return;
        }
        let fs = Arc::clone(self);
        let gate = Arc::clone(gate);
        self.locks.runtime().spawn(async move {
            tokio::time::sleep(PREDECESSOR_TIMEOUT).await;
            let ready = gate.appends.lock().next_ready(Instant::now());
            if !ready.is_empty() {
                fs.run_ready_parts(&gate, ready);
            }
        });
    }
}
