//! The processes of a mounted volume, and everything that they wire together.
//!
//! [`process`] says what each process does; [`serve`] is a daemon's main loop.
//! [`Mount::start_from_config`] builds the replicas, the read path and the file system from a
//! [`Config`](crate::config::Config) ([`volume_core`]). It brings replicas into service
//! ([`admission`]) and reads the root from one of them, so that no unreadable volume is
//! mounted. Then it mounts, tunes the kernel, and listens on the control socket ([`mount`]).
//! [`Mount::stop`] works in reverse: it detaches the mount, waits briefly for requests in
//! flight, and fails the rest.
//!
//! One process may follow another on a mount ([`handover`]). A [`supervisor`] is a process that
//! outlives the daemon; [`recovery_journal`] holds the state that the next daemon needs then.
//! [`systemd`] has the services that systemd offers a daemon.
//!
//! *Invariant:* imports between these modules are acyclic.

mod admission;
mod control_handlers;
mod dead_mount;
mod device_number;
mod earlier_daemons;
mod error;
mod explain_facts;
mod fd_channel;
mod handover;
mod handover_error;
mod handover_request;
mod kernel_tuning;
mod locator_setup;
mod mount;
mod mount_point;
mod mount_snapshot;
mod mount_watcher;
mod passthrough_check;
mod process;
mod process_state;
mod recovery_journal;
mod required_capabilities;
mod respawn;
mod serve;
mod shutdown;
mod start;
mod status;
mod supervisor;
mod system_memory;
mod systemd;
mod volume_backends;
mod volume_core;
mod volume_policies;
mod volume_setup;

pub use error::{AdmissionError, MountPointError, StartError};
pub use explain_facts::{ExplainError, explain_facts_unmounted};
pub use handover_error::{HandoverError, IncompatibleMount, JournalError, TakeoverError};
pub use mount::Mount;
pub use passthrough_check::passthrough_findings;
pub use process::{DaemonProcess, LaunchError, ProcessError, ProcessRole};
pub use respawn::{ChildRole, RespawnCommand};
pub use serve::ServeError;
pub use supervisor::SupervisorError;
pub use systemd::has_fd_store;
pub use volume_backends::{OpenReplicaError, open_replica};
pub use volume_core::check_placement;
pub use volume_setup::MountOverrides;
