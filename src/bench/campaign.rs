//! All passes of a run, one after the other.
//!
//! A replica that did not come back from a call is not asked again: its passes fail at
//! once, and what fanfs gives without it is measured all the same.

mod jobs;
mod summary;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::figures::{Outcome, OverTime, Pass, Report, Sample, mib};
use super::made::Made;
use super::mounted::Mounted;
use super::plan::{self, Candidate, Load, Part, Step};
use super::readers::{self, Job, Lost};
use super::subject::{Subject, most_data, open};
use super::{BenchError, Settings};
use crate::config::Config;
use crate::volume::survey::within;
use crate::volume::{ReplicaId, ReplicaSet};

/// Who is told how far it is, and says whether to go on.
pub trait Watcher {
    /// So many passes are to be done, which takes about so long.
    fn planned(&self, passes: usize, expected: Duration);
    /// So much of the file is written.
    fn making(&self, written: u64, size: u64);
    /// The pass number `number`, from 0, is under way: which, for how long, and how many
    /// bytes it has read.
    fn passing(&self, number: usize, what: &str, time: Duration, bytes: u64);
    /// Whether somebody wants it to end.
    fn is_interrupted(&self) -> bool;
}

/// Measures a volume.
///
/// # Errors
/// [`BenchError`] where nothing could be measured. A pass that fails is in the report.
pub fn run(
    config: &Config,
    settings: &Settings,
    watcher: &dyn Watcher,
) -> Result<Report, BenchError> {
    let make = |size| Made::new(config, size, settings.deadline, watcher);
    let mut made = settings.make.map(make).transpose()?;
    let mut report = measure(config, settings, watcher, made.as_ref().map(|made| &*made.name))?;
    if let Some(Err(error)) = made.as_mut().map(Made::remove) {
        report.spoil(error.to_string());
    }
    Ok(report)
}

fn measure(
    config: &Config,
    settings: &Settings,
    watcher: &dyn Watcher,
    made: Option<&Path>,
) -> Result<Report, BenchError> {
    let started = Instant::now();
    // Raw sums have a reader for each replica at least.
    let readers = settings.readers.max(config.replicas.len());
    let least = plan::least(settings.block, settings.random_block, readers);
    let file = match made.or(settings.file.as_deref()) {
        Some(file) => file.to_owned(),
        None => most_data(config, least, settings.deadline)?,
    };
    let subject = Subject::look(config, &file, settings.deadline)?;
    if subject.size < least {
        return Err(BenchError::Usage(format!(
            "{} has {:.1} MiB; at least {:.0} MiB are needed for {readers} readers and these blocks",
            file.display(),
            mib(subject.size),
            mib(least),
        )));
    }
    let room = tempfile::Builder::new().prefix("fanfs-bench-").tempdir();
    let room = room.map_err(|e| BenchError::Failed(format!("{}: {e}", temporary().display())))?;
    let mut campaign = Campaign::new(config, settings, watcher, &subject, room.path());
    let steps = plan::steps(subject.live(), settings.rounds);
    campaign.prepare_jobs(&steps)?;
    let each = if settings.run_fio { 2 } else { 1 };
    watcher.planned(steps.len(), plan::duration(steps.len() * each, settings.pass));
    let done = campaign.mount(&steps).and_then(|()| campaign.pass_all(&steps));
    let unmounted = campaign.unmount();
    if let Err(error) = done {
        // That something is left there matters more.
        unmounted.map_err(BenchError::Failed)?;
        return Err(error);
    }
    let written = settings.fio.as_deref().map_or(Ok(()), |to| campaign.write_jobs(to));
    let mut report = campaign.report(made.is_some(), started.elapsed());
    for failed in [unmounted, written] {
        // The figures are there, whatever comes after them.
        failed.unwrap_or_else(|why| report.spoil(why));
    }
    Ok(report)
}

fn temporary() -> PathBuf {
    std::env::temp_dir()
}

struct Campaign<'a> {
    config: &'a Config,
    settings: &'a Settings,
    watcher: &'a dyn Watcher,
    subject: &'a Subject,
    /// For the mounts, and for fio's files.
    room: &'a Path,
    mounts: Vec<(ReplicaSet, Result<Mounted, String>)>,
    /// Who does not come back from calls.
    silent: ReplicaSet,
    outcomes: Vec<Outcome>,
    /// With the rate of the pass.
    over_time: Vec<(f64, OverTime)>,
    fio_failures: Vec<String>,
}

/// How often the replicas' counters are looked at, and more often in short passes.
const SAMPLE: Duration = Duration::from_millis(250);
const SAMPLES_PER_PASS: u32 = 12;

impl<'a> Campaign<'a> {
    fn new(
        config: &'a Config,
        settings: &'a Settings,
        watcher: &'a dyn Watcher,
        subject: &'a Subject,
        room: &'a Path,
    ) -> Self {
        Self {
            config,
            settings,
            watcher,
            subject,
            room,
            mounts: Vec::new(),
            silent: ReplicaSet::EMPTY,
            outcomes: Vec::new(),
            over_time: Vec::new(),
            fio_failures: Vec::new(),
        }
    }

    fn name(&self, id: ReplicaId) -> &str {
        &self.config.replicas[id.index()].name
    }

    /// Mounts fanfs over every set of replicas that it is measured over.
    fn mount(&mut self, steps: &[Step]) -> Result<(), BenchError> {
        for step in steps {
            let Candidate::Fanfs(set) = step.candidate else { continue };
            if self.mounts.iter().all(|(mounted, _)| *mounted != set) {
                let mounted = Mounted::start(self.config, set, self.room, self.settings.deadline);
                self.mounts.push((set, mounted));
            }
            if self.watcher.is_interrupted() {
                return Err(BenchError::Interrupted);
            }
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), String> {
        let mounts = std::mem::take(&mut self.mounts);
        let stop = |(_, mounted): (_, Result<Mounted, String>)| mounted.ok().map(Mounted::stop);
        // All of them, whatever one says.
        let ended: Vec<_> = mounts.into_iter().filter_map(stop).collect();
        ended.into_iter().collect()
    }

    fn pass_all(&mut self, steps: &[Step]) -> Result<(), BenchError> {
        for (number, step) in steps.iter().enumerate() {
            let with_fio = self.settings.run_fio;
            // Who comes second may find a server's cache warm: in turns.
            let before = (with_fio && step.round % 2 == 1).then(|| self.run_fio(number, step));
            let mut outcome = self.pass(number, step)?;
            let beside = match before {
                None if with_fio && outcome.is_ok() => Some(self.run_fio(number, step)),
                beside => beside,
            };
            if self.watcher.is_interrupted() {
                return Err(BenchError::Interrupted);
            }
            if let (Ok(pass), Some(beside)) = (&mut outcome, beside) {
                match beside {
                    Ok(rate) => pass.fio = Some(rate),
                    Err(why) => self.fio_failures.push(format!("{}: {why}", what(step))),
                }
            }
            self.outcomes.push((*step, outcome));
        }
        Ok(())
    }

    fn pass(&mut self, number: usize, step: &Step) -> Result<Result<Pass, String>, BenchError> {
        let set = step.candidate.replicas();
        let is_raw = !matches!(step.candidate, Candidate::Fanfs(_));
        let jobs = match self.ask(step).and_then(|()| self.jobs(number, step)) {
            Ok(jobs) => jobs,
            Err(why) => return Ok(Err(why)),
        };
        let parts: Vec<Part> = jobs.iter().map(|job| job.part).collect();
        if !is_raw {
            self.forget(set);
        }
        let mounted = self.mounted(step.candidate).and_then(|mounted| mounted.ok());
        let is_sampled = step.load == Load::Sequential && set == self.subject.live();
        let sampled = mounted.filter(|_| is_sampled);
        let mut samples: Vec<Sample> = Vec::new();
        let every = (self.settings.pass / SAMPLES_PER_PASS).min(SAMPLE);
        let what = what(step);
        let watch = |time: Duration, bytes: u64| {
            if let Some(mounted) = sampled
                && !time.is_zero()
                && samples.last().is_none_or(|(last, ..)| time >= *last + every)
            {
                samples.push((time, bytes, mounted.delivered()));
            }
            self.watcher.passing(number, &what, time, bytes);
            !self.watcher.is_interrupted()
        };
        let taken = readers::read(jobs, self.settings.pass, self.settings.deadline, watch);
        if let Some(mounted) = mounted {
            mounted.settle();
        }
        let taken = match taken {
            Ok(taken) => taken,
            Err(lost) => return self.lost(lost).map(Err),
        };
        let pass = Pass {
            step: *step,
            bytes: taken.bytes,
            time: taken.time,
            latency: taken.latency,
            reader_cpu: taken.reader_cpu,
            daemon_cpu: (!is_raw).then_some(taken.other_cpu),
            is_cut: taken.is_cut,
            fio: None,
            parts,
        };
        if samples.len() > 2 {
            let names: Vec<String> = set.iter().map(|id| self.name(id).to_owned()).collect();
            let lines = OverTime::of(step.round + 1, &names, &samples);
            self.over_time.push((pass.rate(), lines));
        }
        Ok(Ok(pass))
    }

    /// Who did not come back from a call is not read from again; fanfs does without them.
    fn ask(&self, step: &Step) -> Result<(), String> {
        if matches!(step.candidate, Candidate::Fanfs(_)) {
            return Ok(());
        }
        match step.candidate.replicas().and(self.silent).iter().next() {
            Some(id) => Err(format!("{} did not answer before", self.name(id))),
            None => Ok(()),
        }
    }

    /// Why there is no pass; who did not answer is not asked again.
    fn lost(&mut self, lost: Lost) -> Result<String, BenchError> {
        match lost {
            Lost::Interrupted => Err(BenchError::Interrupted),
            Lost::Failed { replica, why } => Ok(self.blame(replica, &why)),
            Lost::Hung { replica } => {
                self.silent = replica.map_or(self.silent, |id| self.silent.with(id));
                let why = format!("no answer within {} s", self.settings.deadline.as_secs_f64());
                Ok(self.blame(replica, &why))
            }
        }
    }

    fn blame(&self, replica: Option<ReplicaId>, why: &str) -> String {
        format!("{}: {why}", replica.map_or("fanfs", |id| self.name(id)))
    }

    fn mounted(&self, candidate: Candidate) -> Option<Result<&Mounted, String>> {
        let Candidate::Fanfs(set) = candidate else { return None };
        let (_, mounted) = self.mounts.iter().find(|(mounted, _)| *mounted == set)?;
        Some(mounted.as_ref().map_err(Clone::clone))
    }

    fn block(&self, load: Load) -> u64 {
        if load == Load::Random { self.settings.random_block } else { self.settings.block }
    }

    /// A seed for each pass, so that none reads the blocks of the one before.
    fn seed(&self, number: usize) -> u64 {
        self.settings.seed.wrapping_add(1000 * number as u64)
    }

    fn jobs(&self, number: usize, step: &Step) -> Result<Vec<Job>, String> {
        let mount = self.mounted(step.candidate).transpose()?.map(|mounted| &*mounted.path);
        let readers = step.candidate.readers(step.load, self.settings.readers);
        let block = self.block(step.load);
        let parts = plan::parts(step, self.subject.size, block, readers);
        let job = |(reader, part): (usize, Part)| {
            let replica = match step.candidate {
                Candidate::Fanfs(_) => None,
                Candidate::Alone(_) | Candidate::Sum(_) => {
                    plan::dealt(step.candidate.replicas(), reader)
                }
            };
            let directory = match (replica, mount) {
                (Some(id), _) => &self.config.replicas[id.index()].path,
                (None, mount) => mount.ok_or("fanfs is not mounted")?,
            };
            Ok(Job {
                path: directory.join(&self.subject.file),
                replica,
                direct: replica.is_none_or(|id| self.subject.is_direct(id)),
                part,
                block,
                shuffled: (step.load == Load::Random)
                    .then(|| self.seed(number).wrapping_add(reader as u64)),
            })
        };
        parts.into_iter().enumerate().map(job).collect()
    }

    /// Drops what this machine's page cache has of the file: fanfs reads through it
    /// where a replica is not NFS.
    fn forget(&self, set: ReplicaSet) {
        for id in set.minus(self.silent).iter() {
            let path = self.config.replicas[id.index()].path.join(&self.subject.file);
            let forget = move || {
                let file = open(&path, false)?;
                let all = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                all.map_err(std::io::Error::from)
            };
            // Who cannot do that fails in its own pass.
            let _ = within(self.settings.deadline, forget);
        }
    }
}

/// What a pass is, for people.
fn what(step: &Step) -> String {
    let candidate = match step.candidate {
        Candidate::Alone(id) => format!("replica {} alone", id.index() + 1),
        Candidate::Sum(set) => format!("raw sum of {}", set.len()),
        Candidate::Fanfs(set) => format!("fanfs over {}", set.len()),
    };
    format!("{}, {candidate}, round {}", step.load.name(), step.round + 1)
}
