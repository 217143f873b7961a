//! Requests to the control socket.

use tokio::sync::oneshot;

use super::explain_facts::ExplainError;
use super::handover_error::HandoverError;
use super::handover_request::HandoverRequest;
use super::volume_core::VolumeCore;
use crate::control::{
    ControlRequest, ControlResponse, FileActivity, HandoverReport, MAX_ACTIVE_FILES,
};
use crate::read::TraceStream;
use crate::telemetry::trace::{FORMAT, TraceLine};

/// Why the daemon refuses a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Handover(#[from] HandoverError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl VolumeCore {
    pub(super) async fn handle_request(
        &self,
        request: ControlRequest,
    ) -> Result<ControlResponse, RequestError> {
        let json = match request {
            ControlRequest::Trace => return Ok(ControlResponse::TraceStream(self.start_trace())),
            ControlRequest::Busiest => serde_json::to_vec(&self.file_activity()),
            ControlRequest::Status => serde_json::to_vec(&self.status()),
            ControlRequest::Explain { path } => serde_json::to_vec(&self.file_facts(path).await?),
            ControlRequest::Upgrade { program } => {
                let request = HandoverRequest::upgrade(program);
                serde_json::to_vec(&self.request_handover(request).await?)
            }
            ControlRequest::Reload { volume } => {
                let request = HandoverRequest { volume, ..HandoverRequest::reload() };
                serde_json::to_vec(&self.request_handover(request).await?)
            }
        };
        Ok(ControlResponse::Json(json?))
    }

    /// Leaves the handover to the main loop, and waits for its result.
    async fn request_handover(
        &self,
        request: HandoverRequest,
    ) -> Result<HandoverReport, HandoverError> {
        let (send, receive) = oneshot::channel();
        let request = HandoverRequest { reply: Some(send), ..request };
        let requests = self.handover_requests.lock().clone();
        let requests = requests.ok_or(HandoverError::Unmounting)?;
        requests.send(request).map_err(|_| HandoverError::Unmounting)?;
        receive.await.map_err(|_| HandoverError::Unmounting)?
    }

    /// The files being read and the processes that read them, the latest first.
    fn file_activity(&self) -> Vec<FileActivity> {
        self.fs
            .open_files
            .recently_read_files(MAX_ACTIVE_FILES)
            .into_iter()
            .map(FileActivity::from)
            .collect()
    }

    /// Starts a trace of all reads from now on.
    fn start_trace(&self) -> TraceStream {
        self.reader.subscribe_trace(TraceLine::Start {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            volume: self.config.volume.name.clone(),
            mount_point: self.mount_point.clone(),
            replicas: self.config.replicas.iter().map(|replica| replica.name.clone()).collect(),
            segment: self.config.read.segment_size,
        })
    }
}
