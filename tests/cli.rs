//! The program as users start it: its errors, its daemon, its other names.

#[path = "cli/daemon.rs"]
mod daemon;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/placement.rs"]
mod placement;
#[path = "cli/room.rs"]
mod room;
