//! The program as users start it: its errors, its daemon, its other names.

#[path = "cli/acl.rs"]
mod acl;
#[path = "cli/audience.rs"]
mod audience;
#[path = "cli/automount.rs"]
mod automount;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/control.rs"]
mod control;
#[path = "cli/daemon.rs"]
mod daemon;
#[path = "cli/dead.rs"]
mod dead;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/escape.rs"]
mod escape;
#[path = "cli/helper.rs"]
mod helper;
#[path = "cli/init.rs"]
mod init;
#[path = "cli/intake.rs"]
mod intake;
#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/metrics.rs"]
mod metrics;
#[path = "cli/named.rs"]
mod named;
#[path = "cli/ordinary.rs"]
mod ordinary;
#[path = "cli/placement.rs"]
mod placement;
#[path = "cli/privileges.rs"]
mod privileges;
#[path = "cli/room.rs"]
mod room;
#[path = "cli/served.rs"]
mod served;
#[path = "cli/unit.rs"]
mod unit;
#[path = "cli/verify.rs"]
mod verify;
#[path = "cli/volumes.rs"]
mod volumes;
#[path = "cli/watching.rs"]
mod watching;
