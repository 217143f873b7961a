//! The program as users start it: its errors, its daemon, its other names.

mod acl;
mod audience;
mod automount;
mod bench;
mod control;
mod daemon;
mod dead;
mod doctor;
mod errors;
mod escape;
mod exports;
mod helper;
mod init;
mod intake;
mod limits;
mod logs;
mod metrics;
mod named;
mod ordinary;
mod placement;
mod privileges;
mod served;
mod unit;
mod verify;
mod volumes;
mod watching;
