//! The end of a mount: it unmounts the volume, waits briefly for the requests in flight,
//! and stops the session, the replicas and the runtime.

use std::time::{Duration, Instant};

use super::mount::Mount;
use super::systemd;
use crate::fuse::{MountError, unmount};

/// How long requests in flight may take at the end, before they fail.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the kernel may take to end the session when no request is in flight. The kernel
/// ends it at once, unless files are open in a detached mount.
const END_TIMEOUT: Duration = Duration::from_millis(500);

impl Mount {
    /// Unmounts the volume and ends the parts that serve it. Open files keep the detached mount
    /// alive until the requests in flight have ended, [`DRAIN_TIMEOUT`] at most.
    ///
    /// # Errors
    /// If the volume cannot be unmounted.
    pub fn stop(mut self) -> Result<(), MountError> {
        self.shut_down()
    }

    /// Ends the process without touching the mount, which another process serves.
    pub(super) fn exit_after_handover(mut self) -> ! {
        self.core.reader.end_traces();
        if let Some(control) = self.control.take() {
            control.drain_and_keep_socket();
        }
        // Removes this daemon's metrics file; one that the successor made in its place stays.
        self.metrics = None;
        std::process::exit(0)
    }

    fn shut_down(&mut self) -> Result<(), MountError> {
        let Some(mut session) = self.session.lock().take() else { return Ok(()) };
        self.control = None;
        self.metrics = None;
        if self.core.overrides.is_supervised {
            systemd::clear_fd_store();
            self.core.fs.remove_journal();
        }
        if !session.has_ended() {
            match unmount(&self.mount_point, false) {
                Err(MountError::Busy(_)) => {
                    tracing::info!("the mount is in use, so the daemon detaches it");
                    unmount(&self.mount_point, true)?;
                }
                result => result?,
            }
        }
        let start = Instant::now();
        while !session.has_ended() {
            let limit = if self.core.is_idle() { END_TIMEOUT } else { DRAIN_TIMEOUT };
            if start.elapsed() >= limit {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.core.reader.stop();
        if session.has_ended()
            && let Err(error) = session.join()
        {
            tracing::warn!(%error, "the FUSE session ended with an error");
        }
        // The kernel does not close them.
        self.core.fs.open_files.close_unopened();
        for (_, replica) in self.core.replicas.iter() {
            replica.stop();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        if !session.has_ended()
            && let Err(error) = session.disconnect()
        {
            tracing::warn!(%error, "applications may wait until this process has ended");
        }
        if let Some(supervisor) = self.core.supervisor.get() {
            supervisor.report_unmounted();
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::error!(%error, "cannot unmount the volume; run `fanfs umount`");
        }
    }
}
