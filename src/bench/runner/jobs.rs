//! The passes of a run as jobs for fio: run beside the passes, or written to files.

use std::io;
use std::path::{Path, PathBuf};

use super::{BenchRunner, describe_pass};
use crate::bench::BenchError;
use crate::bench::fio::{self, FioError};
use crate::bench::pass_error::PassError;
use crate::bench::plan::{self, Candidate, FilePart, PassSpec};
use crate::bench::results::PassOutcome;
use crate::raw_replica::RawMode;
use crate::volume::ReplicaId;

/// Why a job could not be written or run.
#[derive(Debug, thiserror::Error)]
pub(super) enum JobError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Fio(#[from] FioError),
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
}

impl BenchRunner<'_> {
    /// Has fio run the same reads as a pass; returns MiB/s.
    pub(super) fn run_fio(&mut self, number: usize, step: &PassSpec) -> Result<f64, JobError> {
        self.check_responsive(step)?;
        let path = self.scratch_dir.join(format!("{}.fio", pass_slug(step)));
        let text = fio::render_job(&self.fio_job(number, step, false))?;
        std::fs::write(&path, text).map_err(|error| write_error(&path, error))?;
        let mounted = self.mount_of(step.candidate).transpose()?;
        if let Candidate::Fanfs(set) = step.candidate {
            self.drop_page_cache(set);
        }
        let mount = mounted.map(|mounted| &*mounted.path);
        let limit = self.settings.pass_duration + self.settings.deadline;
        let rate = fio::run_fio(&path, mount, limit, &|| self.watcher.is_interrupted());
        if let Some(mounted) = mounted {
            mounted.wait_quiet();
        }
        Ok(rate?)
    }

    fn fio_job(&self, number: usize, step: &PassSpec, time_based: bool) -> fio::FioJob {
        let readers = step.candidate.readers(step.load, self.settings.readers);
        let block = self.block_size(step.load);
        let parts = plan::reader_parts(step, self.target.size, block, readers);
        let reader = |(reader, part): (usize, FilePart)| match step.candidate {
            Candidate::Fanfs(_) => {
                fio::FioReader { name: "fanfs".to_owned(), directory: None, is_direct: true, part }
            }
            Candidate::Alone(_) | Candidate::Sum(_) => {
                let id = plan::replica_for_reader(step.candidate.replicas(), reader);
                let id = id.unwrap_or(ReplicaId::new(0));
                fio::FioReader {
                    name: format!("raw-{}", self.name(id)),
                    // An export was refused.
                    directory: self.config.replicas[id.index()]
                        .location
                        .directory()
                        .map(Path::to_owned),
                    is_direct: self.target.raw_mode(id) == RawMode::Direct,
                    part,
                }
            }
        };
        fio::FioJob {
            title: format!(
                "fanfs bench, volume {}: {}",
                self.config.volume.name,
                describe_pass(step)
            ),
            load: step.load,
            file: self.target.file.clone(),
            block_size: block,
            duration: self.settings.pass_duration,
            seed: self.pass_seed(number),
            is_time_based: time_based,
            readers: parts.into_iter().enumerate().map(reader).collect(),
        }
    }

    /// Fails, before anything is measured, if it is known in advance that a job cannot be written.
    pub(super) fn prepare_jobs(&self, steps: &[PassSpec]) -> Result<(), BenchError> {
        if let Some(directory) = &self.settings.fio_dir {
            let made = std::fs::create_dir_all(directory)
                .and_then(|()| tempfile::tempfile_in(directory).map(drop));
            made.map_err(|error| BenchError::Usage(write_error(directory, error).to_string()))?;
        }
        if self.settings.fio_dir.is_some() || self.settings.run_fio {
            // A name may contain characters that fio cannot take.
            for step in steps {
                let rendered = fio::render_job(&self.fio_job(0, step, false));
                rendered.map_err(|error| BenchError::Usage(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Writes the jobs of the first round, except those of fanfs over a subset of the replicas:
    /// they would need their own volume.
    pub(super) fn write_jobs(&self, directory: &Path) -> Result<(), JobError> {
        let all = self.target.readable_replicas();
        let mut names = Vec::new();
        for (number, PassOutcome { spec: step, result }) in self.outcomes.iter().enumerate() {
            let is_part = matches!(step.candidate, Candidate::Fanfs(set) if set != all);
            if step.round > 0 || is_part {
                continue;
            }
            let is_whole = result.as_ref().is_ok_and(|pass| !pass.is_cut_short);
            let text = fio::render_job(&self.fio_job(number, step, is_whole))?;
            let name = format!("{}.fio", pass_slug(step));
            let path = directory.join(&name);
            std::fs::write(&path, text).map_err(|error| write_error(&path, error))?;
            names.push(name);
        }
        let path = directory.join("run");
        let source = std::path::absolute(&self.config.source);
        let source = source.unwrap_or_else(|_| self.config.source.clone());
        std::fs::write(&path, fio::render_script(&source, &names))
            .map_err(|error| write_error(&path, error))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(|error| write_error(&path, error))
    }
}

fn write_error(path: &Path, error: io::Error) -> JobError {
    JobError::Write { path: path.to_owned(), error }
}

/// A pass's description for a file name.
fn pass_slug(step: &PassSpec) -> String {
    let candidate = match step.candidate {
        Candidate::Alone(id) => format!("alone-{}", id.index() + 1),
        Candidate::Sum(set) => format!("sum-{}", set.len()),
        Candidate::Fanfs(set) => format!("fanfs-{}", set.len()),
    };
    format!("{}-{candidate}", step.load.name())
}
