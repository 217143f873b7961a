//! Finds what limits the rate of reads on this machine: facts, checks of the facts, and remedies.
//!
//! The input is a [`Config`](crate::config::Config): a volume's, or one made of bare paths. From it
//! come [`DoctorFacts`], all facts that were collected. The pure functions of [`checks`] turn the
//! facts into one [`CheckResult`] for each check, and [`Finding`]s ordered by cost. Nothing is
//! changed. A replica is written only if [`DoctorOptions::is_write_allowed`] is set, to learn its
//! server's time.
//!
//! Facts come from the mount table and mountstats (`mount_table`), /proc and /sys ([`machine`],
//! below a root that tests replace), sock_diag(7) ([`tcp_info`]), the route and echoes to the
//! servers ([`network`]) and, on request, from reading the replicas ([`measure`]).
//!
//! *Invariant:* [`examine`] returns in bounded time, even if replicas hang. Every call on a replica
//! or a network runs on its own thread. A late thread is abandoned, and its fact is then unknown.

pub mod checks;
mod clock;
mod collect;
mod facts;
mod machine;
mod measure;
mod network;
mod tcp_info;

pub use checks::{CheckReport, CheckResult, CheckStatus, Finding, FindingText, run_checks};
pub use collect::{DoctorOptions, examine};
pub use facts::{
    DoctorFacts, ExaminedReplica, ExportCallStats, ExportFacts, MachineFacts, MeasuredRates,
    NetworkInterface, NfsFacts, PlacementFacts, RateMeasurement, ReadCallStats, ServerRoute,
    TcpConnection, VolumeSettings,
};
pub use measure::{DEFAULT_SECONDS, MeasureOptions};

#[cfg(test)]
mod tests;
