//! The report of a run.

use std::time::Duration;

use super::BenchRunner;
use crate::bench::host;
use crate::bench::reread::{self, RereadShares};
use crate::bench::results::{self, Report, ReportedReplica, SettingsUsed};
use crate::bench::table::count;
use crate::bench::target_file::ReadMode;
use crate::config::Passthrough;
use crate::format::{format_names, format_percent};
use crate::volume::ReplicaId;

impl BenchRunner<'_> {
    pub(super) fn report(self, made: bool, took: Duration) -> Report {
        let Self { config, settings, target, .. } = &self;
        let rows =
            results::result_rows(&self.outcomes, settings.readers, |id| self.name(id).to_owned());
        let shown = |(id, mode): (ReplicaId, &ReadMode)| ReportedReplica {
            name: self.name(id).to_owned(),
            path: config.replicas[id.index()].location.to_string(),
            raw_reads: match mode {
                ReadMode::Direct => Some("O_DIRECT"),
                ReadMode::Cached => Some("page cache"),
                ReadMode::Served => Some("NFS"),
                ReadMode::Absent(_) => None,
            },
            failure: match mode {
                ReadMode::Absent(why) => Some(why.clone()),
                ReadMode::Direct | ReadMode::Cached | ReadMode::Served => None,
            },
        };
        let replicas: Vec<ReportedReplica> = target.read_modes.iter().map(shown).collect();
        let is_absent = replicas.iter().any(|replica| replica.failure.is_some());
        let failed = is_absent
            || rows.iter().any(|row| !row.failures.is_empty())
            || !self.fio_failures.is_empty();
        // The pass with the median rate: neither the best nor the worst is typical.
        let mut sampled = self.timelines.clone();
        sampled.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        let middle = sampled.len() / 2;
        Report {
            version: env!("CARGO_PKG_VERSION"),
            date: host::date_before(took),
            host: host::host_name(),
            kernel: host::kernel(),
            volume: config.volume.name.clone(),
            file: target.file.display().to_string(),
            file_bytes: target.size,
            made,
            replicas,
            settings: SettingsUsed {
                block: settings.block_size,
                random_block: settings.random_block_size,
                readers: settings.readers,
                rounds: settings.rounds,
                seconds_per_pass: settings.pass_duration.as_secs_f64(),
                deadline_seconds: settings.deadline.as_secs_f64(),
                seed: settings.seed,
            },
            seconds: took.as_secs_f64(),
            rows,
            over_time: sampled.into_iter().nth(middle).map(|pass| pass.timeline),
            notes: self.notes(),
            failed,
        }
    }

    fn notes(&self) -> Vec<String> {
        let Self { config, settings, target, .. } = self;
        let mut notes = self.fio_failures.clone();
        let done = || self.outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
        let cut = done().filter(|pass| pass.is_cut_short).count();
        if cut > 0 {
            notes.push(format!(
                "{} ended early because a reader reached the end of its part of the file; a larger \
                 file gives steadier figures",
                if cut == 1 { "1 pass".to_owned() } else { format!("{cut} passes") }
            ));
        }
        let RereadShares { raw, fanfs } = reread::reread_shares(&self.outcomes);
        if raw.reread_bytes + fanfs.reread_bytes > 0 {
            notes.push(format!(
                "in the sequential and parallel loads, earlier passes had already read {} of the \
                 bytes of the raw passes and {} of those of the fanfs passes; server caches may \
                 have held them",
                format_percent(raw.share()),
                format_percent(fanfs.share())
            ));
        }
        let limited = config.replicas.iter().filter(|replica| replica.max_rate.is_some());
        let limited: Vec<&str> = limited.map(|replica| &*replica.name).collect();
        if !limited.is_empty() {
            let names = format_names(&limited, "replica");
            notes.push(format!("max_rate of {names} limits fanfs but not raw reads"));
        }
        if config.read.passthrough != Passthrough::Off {
            notes.push("[read] passthrough was off during the run".to_owned());
        }
        let live = target.readable_replicas().len();
        if settings.readers < live {
            notes.push(format!(
                "in the random and parallel loads, the raw passes had {live} readers, one for each \
                 replica, and the fanfs passes had {}",
                count(settings.readers, "reader")
            ));
        }
        notes
    }
}
