//! Runs all passes, one after another.
//!
//! After a replica has failed to return from a call, bench does not read it again: its passes fail
//! at once. Passes through fanfs still run, without that replica.

mod jobs;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pass::{self, PassFailure, ReaderJob};
use super::pass_error::PassError;
use super::plan::{self, Candidate, FilePart, Load, PassSpec};
use super::progress::ProgressWatcher;
use super::results::{CompletedPass, CounterSample, PassOutcome, RateTimeline, Report};
use super::scratch_file::ScratchFile;
use super::scratch_mount::{ScratchMount, ScratchMountError};
use super::table::count;
use super::target_file::{ReadMode, TargetFile, find_largest_file};
use super::{BenchError, BenchOptions, check_fio, open_replicas};
use crate::config::Config;
use crate::format::to_mib;
use crate::raw_replica::{RawMode, RawReplica};
use crate::timeout::run_with_timeout;
use crate::volume::{ReplicaId, ReplicaSet};

/// Measures a volume.
///
/// # Errors
/// [`BenchError`] if nothing could be measured. A pass that fails is in the report.
pub fn run(
    config: &Config,
    settings: &BenchOptions,
    watcher: &dyn ProgressWatcher,
) -> Result<Report, BenchError> {
    check_fio(config, settings)?;
    let make = |size| ScratchFile::new(config, size, settings.deadline, watcher);
    let mut made = settings.scratch_file_size.map(make).transpose()?;
    let mut report = measure(config, settings, watcher, made.as_ref().map(|made| &*made.name))?;
    if let Some(Err(error)) = made.as_mut().map(ScratchFile::remove) {
        report.add_failure(error.to_string());
    }
    Ok(report)
}

fn measure(
    config: &Config,
    settings: &BenchOptions,
    watcher: &dyn ProgressWatcher,
    made: Option<&Path>,
) -> Result<Report, BenchError> {
    let started = Instant::now();
    let replicas = open_replicas(config, settings.deadline);
    // A raw sum has at least one reader for each replica.
    let readers = settings.readers.max(config.replicas.len());
    let least = plan::min_file_size(settings.block_size, settings.random_block_size, readers);
    let file = match made.or(settings.file.as_deref()) {
        Some(file) => file.to_owned(),
        None => find_largest_file(config, &replicas, least, settings.deadline)?,
    };
    let target = TargetFile::inspect(config, replicas, &file, settings.deadline)?;
    if target.size < least {
        return Err(BenchError::Usage(format!(
            "{} is too small ({:.1} MiB): {} with these block sizes need at least {:.0} MiB; use a \
             larger file, or smaller blocks",
            file.display(),
            to_mib(target.size),
            count(readers, "reader"),
            to_mib(least),
        )));
    }
    let scratch_dir = tempfile::Builder::new().prefix("fanfs-bench-").tempdir();
    let scratch_dir = scratch_dir.map_err(|error| {
        let parent = temp_dir();
        let parent = parent.display();
        BenchError::Failed(format!("cannot create a directory in {parent}: {error}; set TMPDIR"))
    })?;
    let mut runner = BenchRunner::new(config, settings, watcher, &target, scratch_dir.path());
    let steps = plan::plan_passes(target.readable_replicas(), settings.rounds);
    runner.prepare_jobs(&steps)?;
    let each = if settings.run_fio { 2 } else { 1 };
    watcher.on_plan(steps.len(), plan::total_duration(steps.len() * each, settings.pass_duration));
    let done = runner.mount(&steps).and_then(|()| runner.run_passes(&steps));
    let unmounted = runner.unmount();
    if let Err(error) = done {
        // A leftover mount is the more important error.
        unmounted.map_err(|left| BenchError::Failed(left.to_string()))?;
        return Err(error);
    }
    let written = settings.fio_dir.as_deref().map_or(Ok(()), |to| runner.write_jobs(to));
    let mut report = runner.report(made.is_some(), started.elapsed());
    // The report has its figures already; later failures are added to it.
    if let Err(error) = unmounted {
        report.add_failure(error.to_string());
    }
    if let Err(error) = written {
        report.add_failure(error.to_string());
    }
    Ok(report)
}

fn temp_dir() -> PathBuf {
    std::env::temp_dir()
}

struct BenchRunner<'a> {
    config: &'a Config,
    settings: &'a BenchOptions,
    watcher: &'a dyn ProgressWatcher,
    target: &'a TargetFile,
    /// Holds the mount points and fio's files.
    scratch_dir: &'a Path,
    mounts: Vec<MountOfSet>,
    /// Replicas from which a call did not return.
    unresponsive: ReplicaSet,
    outcomes: Vec<PassOutcome>,
    timelines: Vec<SampledPass>,
    fio_failures: Vec<String>,
}

/// A mount of fanfs over some of the replicas.
struct MountOfSet {
    replicas: ReplicaSet,
    /// Shared, because every pass that needs the mount reports the same error.
    mount: Result<ScratchMount, Arc<ScratchMountError>>,
}

/// A pass during which the replicas' rates were sampled.
#[derive(Clone)]
struct SampledPass {
    /// The rate of the whole pass, MiB/s.
    rate: f64,
    timeline: RateTimeline,
}

/// How often the replicas' counters are sampled; short passes are sampled more often.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
const SAMPLES_PER_PASS: u32 = 12;

impl<'a> BenchRunner<'a> {
    fn new(
        config: &'a Config,
        settings: &'a BenchOptions,
        watcher: &'a dyn ProgressWatcher,
        target: &'a TargetFile,
        scratch_dir: &'a Path,
    ) -> Self {
        Self {
            config,
            settings,
            watcher,
            target,
            scratch_dir,
            mounts: Vec::new(),
            unresponsive: ReplicaSet::EMPTY,
            outcomes: Vec::new(),
            timelines: Vec::new(),
            fio_failures: Vec::new(),
        }
    }

    fn name(&self, id: ReplicaId) -> &str {
        &self.config.replicas[id.index()].name
    }

    /// Mounts fanfs over every set of replicas that the plan needs.
    fn mount(&mut self, steps: &[PassSpec]) -> Result<(), BenchError> {
        for step in steps {
            let Candidate::Fanfs(set) = step.candidate else { continue };
            if self.mounts.iter().all(|mounted| mounted.replicas != set) {
                let mount =
                    ScratchMount::start(self.config, set, self.scratch_dir, self.settings.deadline);
                self.mounts.push(MountOfSet { replicas: set, mount: mount.map_err(Arc::new) });
            }
            if self.watcher.is_interrupted() {
                return Err(BenchError::Interrupted);
            }
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), ScratchMountError> {
        let mounts = std::mem::take(&mut self.mounts).into_iter();
        // Stop all of them, even after one fails.
        let ended: Vec<_> =
            mounts.filter_map(|mounted| mounted.mount.ok()).map(ScratchMount::stop).collect();
        ended.into_iter().collect()
    }

    fn run_passes(&mut self, steps: &[PassSpec]) -> Result<(), BenchError> {
        for (number, step) in steps.iter().enumerate() {
            let with_fio = self.settings.run_fio;
            // The second of the two runs may find a server's cache warm, so they alternate.
            let before = (with_fio && step.round % 2 == 1).then(|| self.run_fio(number, step));
            let mut outcome = self.run_pass(number, step)?;
            let beside = match before {
                None if with_fio && outcome.is_ok() => Some(self.run_fio(number, step)),
                beside => beside,
            };
            if self.watcher.is_interrupted() {
                return Err(BenchError::Interrupted);
            }
            if let (Ok(pass), Some(beside)) = (&mut outcome, beside) {
                match beside {
                    Ok(rate) => pass.fio_rate = Some(rate),
                    Err(why) => self.fio_failures.push(format!("{}: {why}", describe_pass(step))),
                }
            }
            self.outcomes.push(PassOutcome { spec: *step, result: outcome });
        }
        Ok(())
    }

    fn run_pass(
        &mut self,
        number: usize,
        step: &PassSpec,
    ) -> Result<Result<CompletedPass, PassError>, BenchError> {
        let set = step.candidate.replicas();
        let is_raw = !matches!(step.candidate, Candidate::Fanfs(_));
        let jobs = match self.check_responsive(step).and_then(|()| self.reader_jobs(number, step)) {
            Ok(jobs) => jobs,
            Err(why) => return Ok(Err(why)),
        };
        let parts: Vec<FilePart> = jobs.iter().map(|job| job.part).collect();
        if !is_raw {
            self.drop_page_cache(set);
        }
        let mounted = self.mount_of(step.candidate).and_then(|mounted| mounted.ok());
        let is_sampled = step.load == Load::Sequential && set == self.target.readable_replicas();
        let sampled = mounted.filter(|_| is_sampled);
        let mut samples: Vec<CounterSample> = Vec::new();
        let every = (self.settings.pass_duration / SAMPLES_PER_PASS).min(SAMPLE_INTERVAL);
        let what = describe_pass(step);
        let watch = |time: Duration, bytes: u64| {
            if let Some(mounted) = sampled
                && !time.is_zero()
                && samples.last().is_none_or(|last| time >= last.time + every)
            {
                let replica_bytes = mounted.delivered_bytes();
                samples.push(CounterSample { time, bytes, replica_bytes });
            }
            self.watcher.on_pass_progress(number, &what, time, bytes);
            !self.watcher.is_interrupted()
        };
        let taken =
            pass::run_readers(jobs, self.settings.pass_duration, self.settings.deadline, watch);
        if let Some(mounted) = mounted {
            mounted.wait_quiet();
        }
        let taken = match taken {
            Ok(taken) => taken,
            Err(lost) => return self.handle_failure(lost).map(Err),
        };
        let pass = CompletedPass {
            spec: *step,
            bytes: taken.bytes,
            time: taken.time,
            latency: taken.latency,
            reader_cpu: taken.reader_cpu,
            daemon_cpu: (!is_raw).then_some(taken.other_cpu),
            is_cut_short: taken.is_cut_short,
            fio_rate: None,
            parts,
        };
        if samples.len() > 2 {
            let names: Vec<String> = set.iter().map(|id| self.name(id).to_owned()).collect();
            let timeline = RateTimeline::from_samples(step.round + 1, &names, &samples);
            self.timelines.push(SampledPass { rate: pass.rate(), timeline });
        }
        Ok(Ok(pass))
    }

    /// Refuses a direct pass over a replica from which a call did not return; fanfs works without
    /// it.
    fn check_responsive(&self, step: &PassSpec) -> Result<(), PassError> {
        if matches!(step.candidate, Candidate::Fanfs(_)) {
            return Ok(());
        }
        match step.candidate.replicas().and(self.unresponsive).iter().next() {
            Some(id) => Err(PassError::Unresponsive { reader: self.name(id).to_owned() }),
            None => Ok(()),
        }
    }

    /// Turns a failure into the pass's error, and notes a replica that did not answer.
    fn handle_failure(&mut self, failure: PassFailure) -> Result<PassError, BenchError> {
        let name = |replica: Option<ReplicaId>| {
            replica.map_or("fanfs", |id| &self.config.replicas[id.index()].name).to_owned()
        };
        match failure {
            PassFailure::Interrupted => Err(BenchError::Interrupted),
            PassFailure::Failed { replica, error } => {
                let export = replica.filter(|id| self.target.read_modes[*id] == ReadMode::Served);
                if let Some(id) = export.filter(|_| error.is_timeout()) {
                    self.unresponsive = self.unresponsive.with(id);
                }
                Ok(PassError::Reader { reader: name(replica), error })
            }
            PassFailure::Hung { replica } => {
                let reader = name(replica);
                self.unresponsive =
                    replica.map_or(self.unresponsive, |id| self.unresponsive.with(id));
                Ok(PassError::TimedOut { reader, deadline: self.settings.deadline })
            }
        }
    }

    /// The mount that a candidate is read through; `None` for direct reads.
    fn mount_of(&self, candidate: Candidate) -> Option<Result<&ScratchMount, PassError>> {
        let Candidate::Fanfs(set) = candidate else { return None };
        let mounted = self.mounts.iter().find(|mounted| mounted.replicas == set)?;
        Some(mounted.mount.as_ref().map_err(|error| Arc::clone(error).into()))
    }

    fn block_size(&self, load: Load) -> u64 {
        if load == Load::Random {
            self.settings.random_block_size
        } else {
            self.settings.block_size
        }
    }

    /// A seed for each pass, so that no pass reads the same blocks as the one before.
    fn pass_seed(&self, number: usize) -> u64 {
        self.settings.seed.wrapping_add(1000 * number as u64)
    }

    fn reader_jobs(&self, number: usize, step: &PassSpec) -> Result<Vec<ReaderJob>, PassError> {
        let mount = self.mount_of(step.candidate).transpose()?;
        let mount = mount.map(|mounted| RawReplica::Directory(mounted.path.clone()));
        let readers = step.candidate.readers(step.load, self.settings.readers);
        let block = self.block_size(step.load);
        let parts = plan::reader_parts(step, self.target.size, block, readers);
        let job = |(reader, part): (usize, FilePart)| {
            let replica = match step.candidate {
                Candidate::Fanfs(_) => None,
                Candidate::Alone(_) | Candidate::Sum(_) => {
                    plan::replica_for_reader(step.candidate.replicas(), reader)
                }
            };
            let tree = match replica {
                Some(id) => self.target.replicas[id].as_ref().ok(),
                None => mount.as_ref(),
            };
            Ok(ReaderJob {
                tree: tree.ok_or(PassError::NotMounted)?.clone(),
                file: self.target.file.clone(),
                replica,
                mode: replica.map_or(RawMode::Direct, |id| self.target.raw_mode(id)),
                part,
                block_size: block,
                shuffle_seed: (step.load == Load::Random)
                    .then(|| self.pass_seed(number).wrapping_add(reader as u64)),
            })
        };
        parts.into_iter().enumerate().map(job).collect()
    }

    /// Drops the file from this machine's page cache: fanfs reads through it where a replica is not
    /// NFS.
    fn drop_page_cache(&self, set: ReplicaSet) {
        for id in set.minus(self.unresponsive).iter() {
            let Ok(replica @ RawReplica::Directory(_)) = self.target.replicas[id].clone() else {
                continue;
            };
            let file = self.target.file.clone();
            let forget =
                move || replica.open_file(&file, RawMode::Cached)?.drop_page_cache(0, None);
            // A replica that cannot do that fails in its own pass.
            let _ = run_with_timeout(self.settings.deadline, forget);
        }
    }
}

/// A pass's description for people.
fn describe_pass(step: &PassSpec) -> String {
    let candidate = match step.candidate {
        Candidate::Alone(id) => format!("replica {} alone", id.index() + 1),
        Candidate::Sum(set) => format!("raw sum of {}", count(set.len(), "replica")),
        Candidate::Fanfs(set) => format!("fanfs over {}", count(set.len(), "replica")),
    };
    format!("{}, {candidate}, round {}", step.load.name(), step.round + 1)
}
