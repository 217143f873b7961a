//! What a run leaves behind to be gone on with, in a file.
//!
//! The file is replaced as a whole, by a rename, so it is there in one piece
//! whenever the run is killed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::VerifyOptions;
use super::contents::FileProgress;
use super::difference::{Difference, NotCompared};
use crate::config;
use crate::volume::path_serde;

/// Changes when the file's content does.
const CHECKPOINT_FORMAT: u32 = 1;

/// Where a run is, and what it has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub(super) format: u32,
    pub(super) identity: RunId,
    pub(super) position: Option<WalkPosition>,
    pub(super) found: VerifyFindings,
    pub(super) ahead: Vec<OutOfOrder>,
}

/// What a run is about. Another one's state is of no use.
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

/// An object in the order in which they are compared: a directory itself, its
/// entries by name, its subdirectories by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WalkPosition {
    #[serde(with = "path_serde")]
    pub(super) dir: PathBuf,
    /// Empty for the directory itself.
    #[serde(with = "path_serde")]
    pub(super) name: PathBuf,
}

/// What has been found, up to some object or at one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VerifyFindings {
    pub(super) totals: Totals,
    pub(super) differences: Vec<Difference>,
    pub(super) not_compared: Vec<NotCompared>,
    /// For each replica, objects that it was not asked about because it did not
    /// answer.
    pub(super) absent: Vec<u64>,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Objects of all kinds.
    pub objects: u64,
    /// Regular files whose contents were compared.
    pub files: u64,
    /// Bytes of those that were compared, each file counted once.
    pub bytes: u64,
    /// Bytes read, of all replicas.
    pub bytes_read: u64,
    /// Differences, those that are not listed as well.
    pub differences: u64,
    /// What could not be compared, or not on every replica; what is not listed
    /// as well.
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

    /// Adds what is known of an object that is done or under way.
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

/// An object behind the position that has been compared already, or in part.
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
    /// It cannot be read or written.
    #[error("state {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no state.
    #[error("state {}: not a state of fanfs verify: {what}; give another file or remove it", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is that of another run.
    #[error(
        "state {}: of a run with {key} {theirs}, and this one has {ours}; give another file or remove it",
        .path.display()
    )]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// What they differ in.
        key: &'static str,
        /// In the state.
        theirs: String,
        /// In the command.
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

    /// The first thing in which a state's run differs from this one.
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

    /// The state in `path`; `None` where there is no such file.
    ///
    /// # Errors
    /// Where it cannot be read, or is not a state.
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

    /// The seed that its run chooses blocks by.
    pub fn seed(&self) -> u64 {
        self.identity.seed
    }

    /// How much its run has compared.
    pub fn totals(&self) -> Totals {
        let mut totals = self.found.totals;
        self.ahead.iter().for_each(|ahead| totals.add_out_of_order(&ahead.done, &ahead.progress));
        totals
    }

    /// Refuses the state of another run.
    ///
    /// # Errors
    /// [`CheckpointError::OtherRun`] with the first difference.
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

    /// Puts it into `path`, in place of what is there.
    ///
    /// # Errors
    /// Where that cannot be done; what was there is there still.
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
