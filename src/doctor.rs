//! What holds reads back on this machine: facts, checks of them, and remedies.
//!
//! In goes a [`Config`](crate::config::Config) (a volume's, or one made of bare paths); out come
//! [`DoctorFacts`], everything that was looked at, and from them, by the pure
//! functions of [`checks`], one [`CheckResult`] a check and [`Finding`]s in the order of
//! what they cost. Nothing is changed; a replica is written to only where
//! [`DoctorOptions::is_write_allowed`] says so, to ask its server for the time.
//!
//! Facts come from the mount table and mountstats (`mount_table`), /proc and
//! /sys ([`machine`], below a root that tests replace), ss(8) ([`tcp_info`]), the
//! route and echoes to the servers ([`network`]), and, where asked for, from
//! reading the replicas ([`measure`]).
//!
//! *Invariant:* [`examine`] comes back in bounded time, whatever the replicas
//! do. What touches a replica or a network runs in a thread of its own, which is
//! abandoned when it is late, and says "unknown" then.

pub mod checks;
mod clock;
mod collect;
mod facts;
mod machine;
mod measure;
mod network;
mod tcp_info;

pub use checks::{CheckReport, CheckResult, CheckStatus, Finding, run_checks};
pub use collect::{DoctorOptions, examine};
pub use facts::{
    DoctorFacts, ExaminedReplica, MachineFacts, MeasuredRates, NetworkInterface, NfsFacts,
    RateMeasurement, ReadCallStats, ServerRoute, TcpConnection, VolumeSettings,
};
pub use measure::{DEFAULT_SECONDS, MeasureOptions};

#[cfg(test)]
mod tests;
