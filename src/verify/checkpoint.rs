//! The state from which a run can be resumed, stored in a file.
//!
//! A rename replaces the file as a whole, so it is complete even if the run is killed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::VerifyOptions;
use super::contents::FileProgress;
use super::difference::{Difference, NotCompared};
use crate::config;
use crate::volume::path_serde;

/// The format version; it changes when the format does.
const CHECKPOINT_FORMAT: u32 = 1;

/// A run's position and findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub(super) format: u32,
    pub(super) identity: RunId,
    pub(super) position: Option<WalkPosition>,
    pub(super) found: VerifyFindings,
    pub(super) ahead: Vec<OutOfOrder>,
}

/// The identity of a run. The state of a run with another identity cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunId {
    volume: String,
    mode: String,
    replicas: Vec<String>,
    #[serde(with = "path_serde")]
    path: PathBuf,
    coverage: String,
    seed: u64,
    ignore: Vec<String>,
    xattrs: bool,
}

/// An object's position in the order of comparison: a directory itself, its entries by name, then
/// its subdirectories by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WalkPosition {
    #[serde(with = "path_serde")]
    pub(super) dir: PathBuf,
    /// Empty for the directory itself.
    #[serde(with = "path_serde")]
    pub(super) name: PathBuf,
}

/// Findings, up to an object or about one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VerifyFindings {
    pub(super) totals: Totals,
    pub(super) differences: Vec<Difference>,
    pub(super) not_compared: Vec<NotCompared>,
    /// For each replica, the number of objects about which it was not asked because it did not
    /// answer.
    pub(super) absent: Vec<u64>,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// The number of objects of all kinds.
    pub objects: u64,
    /// Regular files whose contents were compared.
    pub files: u64,
    /// Bytes of these files that were compared; each file counts once.
    pub bytes: u64,
    /// Bytes read from all replicas.
    pub bytes_read: u64,
    /// The number of differences, including those that are not listed.
    pub differences: u64,
    /// The number of objects that could not be compared on all replicas, including those that are
    /// not listed.
    pub not_compared: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Totals) {
        self.objects += other.objects;
        self.files += other.files;
        self.bytes += other.bytes;
        self.bytes_read += other.bytes_read;
        self.differences += other.differences;
        self.not_compared += other.not_compared;
    }

    /// Adds an object that is finished or in progress.
    pub(super) fn add_out_of_order(
        &mut self,
        done: &Option<VerifyFindings>,
        progress: &Option<FileProgress>,
    ) {
        if let Some(found) = done {
            self.add(&found.totals);
        } else if let Some(progress) = progress {
            self.bytes += progress.bytes;
            self.bytes_read += progress.bytes_read;
        }
    }
}

/// An object after the position that is already compared, completely or in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OutOfOrder {
    #[serde(with = "path_serde")]
    pub(super) path: PathBuf,
    pub(super) done: Option<VerifyFindings>,
    pub(super) progress: Option<FileProgress>,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The state file cannot be read or written.
    #[error("state {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not a state of `fanfs verify`.
    #[error(
        "state {}: not a state of fanfs verify: {what}; use another file, or remove it",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason why it cannot be used.
        what: String,
    },
    /// The state belongs to another run.
    #[error(
        "state {}: of a run with {key} {theirs}, and this run has {ours}; use another file, or \
         remove it",
        .path.display()
    )]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// The setting that differs.
        key: &'static str,
        /// Its value in the state.
        theirs: String,
        /// Its value in this run.
        ours: String,
    },
}

/// A setting in which two runs differ.
struct RunMismatch {
    key: &'static str,
    theirs: String,
    ours: String,
}

impl RunId {
    pub(super) fn new(options: &VerifyOptions, replicas: &[String]) -> Self {
        let mut ignore: Vec<String> = options.ignore.iter().map(ToString::to_string).collect();
        ignore.sort();
        ignore.dedup();
        Self {
            volume: options.volume.clone(),
            mode: format!("{:?}", options.mode).to_lowercase(),
            replicas: replicas.to_vec(),
            path: options.path.clone(),
            coverage: options.coverage.to_string(),
            seed: options.seed,
            ignore,
            xattrs: options.xattrs,
        }
    }

    /// The first setting in which another run differs from this one.
    fn mismatch(&self, theirs: &RunId) -> Option<RunMismatch> {
        let list = |names: &[String]| {
            if names.is_empty() { "none".to_owned() } else { names.join(",") }
        };
        let path = |path: &Path| super::difference::EscapedPath(path).to_string();
        let compare = |key, theirs, ours| RunMismatch { key, theirs, ours };
        let all = [
            compare("volume", theirs.volume.clone(), self.volume.clone()),
            compare("mode", theirs.mode.clone(), self.mode.clone()),
            compare("replicas", list(&theirs.replicas), list(&self.replicas)),
            compare("path", path(&theirs.path), path(&self.path)),
            compare("coverage", theirs.coverage.clone(), self.coverage.clone()),
            compare("seed", theirs.seed.to_string(), self.seed.to_string()),
            compare("ignore", list(&theirs.ignore), list(&self.ignore)),
            compare("xattrs", theirs.xattrs.to_string(), self.xattrs.to_string()),
        ];
        all.into_iter().find(|values| values.theirs != values.ours)
    }
}

impl Checkpoint {
    pub(super) fn new(
        identity: RunId,
        position: Option<WalkPosition>,
        found: VerifyFindings,
        ahead: Vec<OutOfOrder>,
    ) -> Self {
        Self { format: CHECKPOINT_FORMAT, identity, position, found, ahead }
    }

    /// Reads the state in `path`; `None` if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is not a state.
    pub fn load(path: &Path) -> Result<Option<Self>, CheckpointError> {
        let read = |mut file: File| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        };
        let text = match config::open(path).and_then(read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::Io { path: path.to_owned(), error }),
            Ok(text) => text,
        };
        let malformed = |what: String| CheckpointError::Malformed { path: path.to_owned(), what };
        let state: Self =
            serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        if state.format != CHECKPOINT_FORMAT {
            return Err(malformed(format!("format {}", state.format)));
        }
        Ok(Some(state))
    }

    /// The seed with which its run chooses blocks.
    pub fn seed(&self) -> u64 {
        self.identity.seed
    }

    /// How much its run has compared.
    pub fn totals(&self) -> Totals {
        let mut totals = self.found.totals;
        self.ahead.iter().for_each(|ahead| totals.add_out_of_order(&ahead.done, &ahead.progress));
        totals
    }

    /// Rejects the state of another run.
    ///
    /// # Errors
    /// [`CheckpointError::OtherRun`] with the first setting that differs.
    pub fn check_same_run(
        &self,
        path: &Path,
        options: &VerifyOptions,
        replicas: &[String],
    ) -> Result<(), CheckpointError> {
        match RunId::new(options, replicas).mismatch(&self.identity) {
            None => Ok(()),
            Some(RunMismatch { key, theirs, ours }) => {
                Err(CheckpointError::OtherRun { path: path.to_owned(), key, theirs, ours })
            }
        }
    }

    /// Writes the state to `path` and replaces the previous file.
    ///
    /// # Errors
    /// If it cannot be written; the previous file then stays.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        let wrong = |error: io::Error| CheckpointError::Io { path: path.to_owned(), error };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(wrong)?;
        let text = serde_json::to_vec(self).map_err(io::Error::from).map_err(wrong)?;
        file.write_all(&text).map_err(wrong)?;
        file.as_file().sync_data().map_err(wrong)?;
        file.persist(path).map_err(|error| wrong(error.error))?;
        Ok(())
    }
}
