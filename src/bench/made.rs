//! A file that is made for the time of a run, on the write replica.
//!
//! *Invariant:* it goes with its value. Only where the replica does not answer, or this
//! process is killed, it stays; its name says whose it is.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::campaign::Watcher;
use super::{BenchError, within};
use crate::config::{Access, Config};
use crate::volume::Mode;

/// The file, until it is dropped.
pub(super) struct Made {
    /// Relative to the volume's root.
    pub(super) name: PathBuf,
    path: PathBuf,
    deadline: Duration,
    is_there: bool,
}

const BLOCK: usize = 1 << 20;
const TICK: Duration = Duration::from_millis(50);

impl Made {
    /// Writes a file of `size` bytes that no two blocks of are alike, and waits until
    /// it is stored.
    pub(super) fn new(
        config: &Config,
        size: u64,
        deadline: Duration,
        watcher: &dyn Watcher,
    ) -> Result<Self, BenchError> {
        let refuse = |why: &str| Err(BenchError::Usage(format!("--make cannot be used: {why}")));
        if config.volume.mode == Mode::Copies {
            return refuse(
                "in a volume of `copies` nobody writes; put the same file on every replica and \
                 name it with --file",
            );
        }
        if config.volume.access != Access::ReadWrite {
            return refuse(
                "the volume says access = \"ro\"; name a file that is there with --file",
            );
        }
        let replica = &config.replicas[config.write.replica.index()];
        let name = PathBuf::from(format!(".fanfs-bench-{}", std::process::id()));
        let path = replica.path.join(&name);
        let made = Self { name, path, deadline, is_there: true };
        made.write(size, watcher)?;
        Ok(made)
    }

    fn write(&self, size: u64, watcher: &dyn Watcher) -> Result<(), BenchError> {
        let written = Arc::new((AtomicU64::new(0), AtomicBool::new(false)));
        let (answer, answered) = sync_channel(1);
        let (path, shared) = (self.path.clone(), Arc::clone(&written));
        let thread = move || {
            let _ = answer.send(fill(&path, size, &shared.0, &shared.1));
        };
        let failed = |why: String| BenchError::Failed(format!("{}: {why}", self.path.display()));
        let spawned = std::thread::Builder::new().name("bench-make".to_owned()).spawn(thread);
        spawned.map_err(|error| failed(error.to_string()))?;
        let (written, stop) = &*written;
        let (mut last, mut since) = (0, Instant::now());
        loop {
            match answered.recv_timeout(TICK) {
                Ok(done) => return done.map_err(|error| failed(error.to_string())),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("the writer panicked".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if watcher.is_interrupted() {
                stop.store(true, Ordering::Relaxed);
                // So that nothing is written after the file is removed.
                let _ = answered.recv_timeout(self.deadline);
                return Err(BenchError::Interrupted);
            }
            let now = written.load(Ordering::Relaxed);
            watcher.making(now, size);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > self.deadline.max(Duration::from_secs(30)) {
                stop.store(true, Ordering::Relaxed);
                return Err(failed("the write replica does not answer".to_owned()));
            }
        }
    }

    /// Removes it.
    ///
    /// # Errors
    /// Says that it is still there.
    pub(super) fn remove(&mut self) -> Result<(), BenchError> {
        if !std::mem::take(&mut self.is_there) {
            return Ok(());
        }
        let path = self.path.clone();
        let why = match within(self.deadline, move || std::fs::remove_file(&path)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Some(Err(error)) => error.to_string(),
            None => "no answer".to_owned(),
        };
        let path = self.path.display();
        Err(BenchError::Failed(format!("{path} cannot be removed: {why}; remove it by hand")))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("fanfs: {error}");
        }
    }
}

fn fill(path: &Path, size: u64, written: &AtomicU64, stop: &AtomicBool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut content = blake3::Hasher::new_derive_key("fanfs bench data").finalize_xof();
    let mut block = vec![0; BLOCK];
    let mut left = size;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = left.min(BLOCK as u64) as usize;
        content.fill(&mut block[..n]);
        file.write_all(&block[..n])?;
        written.fetch_add(n as u64, Ordering::Relaxed);
        left -= n as u64;
    }
    file.sync_all()
}
