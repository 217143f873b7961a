//! The foundation of fanfs: volumes, their configuration files, and surveys of their replicas.
//!
//! It is a separate crate so that cargo compiles it once for the library and its unit tests, and in
//! parallel with the dependencies. fanfs re-exports its modules as its own (`fanfs::config`). Like
//! fanfs, it has no stable API.

pub(crate) use fanfs_nfs::nfs;

pub mod config;
pub mod format;
pub mod mount_table;
pub mod survey;
pub mod timeout;
pub mod volume;
