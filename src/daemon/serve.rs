//! The main loop of a daemon: it serves the mount until a signal, another process or the
//! keeper ends it, or until a successor serves it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::handover_request::HandoverRequest;
use super::mount::Mount;
use super::systemd::ServiceReporter;
use crate::fuse::MountError;
use crate::telemetry;

/// Why a mount cannot be served or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// The keeper's orders cannot be received.
    #[error(transparent)]
    Keeper(io::Error),
    /// The mount cannot be ended.
    #[error(transparent)]
    Stop(#[from] MountError),
}

/// An event that the main loop acts on.
enum DaemonEvent {
    /// The daemon must end, for this reason.
    Stop(&'static str),
    /// A request to hand the mount over.
    Handover(HandoverRequest),
}

/// The signals that end a daemon or make it reload. They are received from the creation of this
/// value on. It is created before the mount, which a signal would otherwise leave behind.
pub(super) struct StopSignals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// The sources of a daemon's events, from the creation of this value on. It is created before
/// any process learns that the daemon is ready.
pub(super) struct EventSources {
    runtime: Runtime,
    events: DaemonEvents,
}

/// The sources of events, inside their runtime.
struct DaemonEvents {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    handover_requests: UnboundedReceiver<HandoverRequest>,
    /// Notified when the keeper ends the daemon.
    stop: Arc<Notify>,
}

/// How often the daemon checks whether another process has unmounted the volume.
const UNMOUNT_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl StopSignals {
    pub(super) fn listen() -> Result<Self, ServeError> {
        Self::register().map_err(ServeError::Signals)
    }

    fn register() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        drop(entered);
        Ok(Self { runtime, terminate, interrupt, hangup })
    }
}

impl EventSources {
    pub(super) fn new(signals: StopSignals, mount: &Mount) -> Self {
        let StopSignals { runtime, terminate, interrupt, hangup } = signals;
        let handover_requests = mount.handover_requests();
        let stop = Arc::default();
        let events = DaemonEvents { terminate, interrupt, hangup, handover_requests, stop };
        Self { runtime, events }
    }
}

impl DaemonEvents {
    /// Waits for the next event, and reports to the service manager meanwhile.
    async fn next(&mut self, mount: &Mount, reporter: &mut Option<ServiceReporter>) -> DaemonEvent {
        loop {
            if let Some(reporter) = reporter {
                reporter.report(Instant::now(), || mount.service_status());
            }
            tokio::select! {
                _ = self.terminate.recv() => return DaemonEvent::Stop("SIGTERM"),
                _ = self.interrupt.recv() => return DaemonEvent::Stop("SIGINT"),
                _ = self.hangup.recv() => return DaemonEvent::Handover(HandoverRequest::reload()),
                () = self.stop.notified() => return DaemonEvent::Stop("the keeper requested it"),
                Some(request) = self.handover_requests.recv() => {
                    return DaemonEvent::Handover(request);
                }
                () = tokio::time::sleep(UNMOUNT_POLL_INTERVAL) => {
                    if mount.is_unmounted() {
                        return DaemonEvent::Stop("unmounted");
                    }
                }
            }
        }
    }
}

impl Mount {
    /// The requests for a handover from now on.
    fn handover_requests(&self) -> UnboundedReceiver<HandoverRequest> {
        let (send, receive) = mpsc::unbounded_channel();
        *self.core.handover_requests.lock() = Some(send);
        receive
    }
}

/// Serves until the mount is unmounted, a signal or the keeper ends it, or another process
/// serves it.
///
/// # Errors
/// [`ServeError`].
pub(super) fn serve_until_end(mount: Mount, sources: EventSources) -> Result<(), ServeError> {
    let EventSources { runtime, mut events } = sources;
    if let Some(supervisor) = mount.supervisor() {
        let stop = Arc::clone(&events.stop);
        supervisor.listen_for_stop(move || stop.notify_one()).map_err(ServeError::Keeper)?;
    }
    let mut reporter = ServiceReporter::new();
    loop {
        match runtime.block_on(events.next(&mount, &mut reporter)) {
            DaemonEvent::Handover(request) => {
                let result = mount.hand_over(&request);
                let is_over = result.is_ok();
                request.respond(result);
                if is_over {
                    telemetry::log::report_pending();
                    mount.exit_after_handover();
                }
            }
            DaemonEvent::Stop(reason) => {
                tracing::info!(reason, "the daemon is ending");
                let stopped = mount.stop();
                telemetry::log::report_pending();
                return Ok(stopped?);
            }
        }
    }
}
