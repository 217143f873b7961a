//! The rooms at the bottom of fanfs: what a volume is, its file, and how its replicas look
//! before they are read.
//!
//! A crate of its own, so that these are compiled once for the library and its unit tests,
//! and beside the dependencies. fanfs names its modules as if they were its own
//! (`fanfs::config`), and so do these among each other. As little a stable API as fanfs.

pub mod config;
pub mod format;
pub mod mount_table;
pub mod survey;
pub mod timeout;
pub mod volume;
