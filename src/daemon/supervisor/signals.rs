//! The signals that a supervisor receives, for the daemon that serves now.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::client::SupervisorMessage;
use crate::daemon::fd_channel::FdChannel;
use crate::fuse::unmount;

/// How long a daemon may take to end. Requests in flight get three seconds of it, and a hung
/// replica may delay a daemon that is starting.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the message is sent again: a daemon that received it may be handing the mount over, or
/// may have died, and another one serves by now.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);

/// Reaps child processes that have ended.
pub(super) fn reap_children() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

type DaemonLink = Option<Arc<FdChannel>>;

/// Passes SIGTERM and SIGINT on to the daemon that serves now.
pub(super) struct SignalForwarder {
    daemon_link: watch::Sender<DaemonLink>,
    is_received: Arc<AtomicBool>,
}

impl SignalForwarder {
    /// Starts a thread that waits for the signals. From its return on they no longer end this
    /// process: its daemon would serve the mount without a keeper.
    ///
    /// # Errors
    /// If the process has no free threads or descriptors.
    pub(super) fn listen(mount_point: PathBuf) -> io::Result<Self> {
        let (daemon_link, current_link) = watch::channel(None);
        let is_received = Arc::new(AtomicBool::new(false));
        let listener =
            SignalListener { mount_point, current_link, is_received: Arc::clone(&is_received) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _inside = runtime.enter();
            Signals::register()?
        };
        let listen = move || listener.run(&runtime, signals);
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(Self { daemon_link, is_received })
    }

    /// From now on, signals stop the daemon at the other end of `link`.
    pub(super) fn forward_to(&self, link: FdChannel) {
        let _ = self.daemon_link.send(Some(Arc::new(link)));
    }

    /// Whether SIGTERM or SIGINT was received.
    pub(super) fn is_received(&self) -> bool {
        self.is_received.load(Ordering::Acquire)
    }
}

/// The state of the thread that waits for signals.
struct SignalListener {
    mount_point: PathBuf,
    current_link: watch::Receiver<DaemonLink>,
    is_received: Arc<AtomicBool>,
}

/// The signals that a supervisor handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    child: Signal,
}

impl Signals {
    /// Must be called inside a runtime.
    fn register() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            child: signal(SignalKind::child())?,
        })
    }

    /// Waits for SIGTERM or SIGINT.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {}
                _ = self.child.recv() => reap_children(),
            }
        }
    }
}

impl SignalListener {
    fn run(self, runtime: &Runtime, mut signals: Signals) {
        runtime.block_on(async move {
            loop {
                signals.stop().await;
                self.stop_daemon();
            }
        });
    }

    /// Makes the daemon unmount, and gives the mount up if that takes too long.
    fn stop_daemon(&self) {
        self.is_received.store(true, Ordering::Release);
        let current_link = self.current_link.clone();
        let mount_point = self.mount_point.clone();
        tokio::spawn(async move {
            let mut waited = Duration::ZERO;
            while waited < STOP_TIMEOUT {
                let link = current_link.borrow().clone();
                if let Some(link) = link {
                    let _ = link.send(&SupervisorMessage::End, &[]);
                }
                tokio::time::sleep(RESEND_INTERVAL).await;
                waited += RESEND_INTERVAL;
            }
            tracing::error!("the daemon did not end in time; the keeper detaches the mount");
            let _ = unmount(&mount_point, true);
            std::process::exit(1);
        });
    }
}
