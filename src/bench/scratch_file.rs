//! A file on the write replica that exists only for the time of a run.
//!
//! *Invariant:* dropping the value removes the file, but only if this value created it. The file
//! stays only if the replica does not answer or this process is killed; its name then says where it
//! came from.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::progress::ProgressWatcher;
use super::{BenchError, host};
use crate::config::{Access, Config};
use crate::timeout::run_with_timeout;
use crate::volume::VolumeMode;

/// The scratch file; dropping it removes the file.
pub(super) struct ScratchFile {
    /// Relative to the volume's root.
    pub(super) name: PathBuf,
    path: PathBuf,
    deadline: Duration,
    /// Whether this value created the file and has not removed it. The writing thread sets it,
    /// perhaps late.
    is_created: Arc<AtomicBool>,
}

const WRITE_BLOCK_BYTES: usize = 1 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl ScratchFile {
    /// Writes a file of `size` bytes in which no two blocks are alike, and waits until it is on
    /// stable storage.
    pub(super) fn new(
        config: &Config,
        size: u64,
        deadline: Duration,
        watcher: &dyn ProgressWatcher,
    ) -> Result<Self, BenchError> {
        let refuse = |why: &str| Err(BenchError::Usage(format!("cannot use --make: {why}")));
        if config.volume.mode == VolumeMode::Copies {
            return refuse(
                "fanfs does not write to a volume of `copies`; put the same file on every replica \
                 and name it with --file",
            );
        }
        if config.volume.access != Access::ReadWrite {
            return refuse("the volume has access = \"ro\"; name an existing file with --file");
        }
        let replica = &config.replicas[config.write.replica.index()];
        let name = scratch_name();
        let Some(directory) = replica.location.directory() else {
            return refuse("fanfs does not write to exports");
        };
        let path = directory.join(&name);
        let made = Self { name, path, deadline, is_created: Arc::default() };
        made.write(size, watcher)?;
        Ok(made)
    }

    fn write(&self, size: u64, watcher: &dyn ProgressWatcher) -> Result<(), BenchError> {
        let progress = Arc::new(WriteProgress::default());
        let (answer, answered) = sync_channel(1);
        let path = self.path.clone();
        let shared = Arc::clone(&progress);
        let is_ours = Arc::clone(&self.is_created);
        let thread = move || {
            // Never overwrite an existing file of that name.
            let made = OpenOptions::new().write(true).create_new(true).open(&path);
            let done = made.and_then(|file| {
                is_ours.store(true, Ordering::Relaxed);
                write_content(file, size, &shared)
            });
            let _ = answer.send(done);
        };
        let failed = |why: String| {
            BenchError::Failed(format!("cannot create {}: {why}", self.path.display()))
        };
        let spawned = std::thread::Builder::new().name("bench-make".to_owned()).spawn(thread);
        spawned.map_err(|error| failed(error.to_string()))?;
        let patience = self.deadline.max(Duration::from_secs(30));
        let mut last = 0;
        let mut since = Instant::now();
        loop {
            match answered.recv_timeout(POLL_INTERVAL) {
                Ok(done) => return done.map_err(|error| failed(error.to_string())),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("a writer panicked; this is a bug in fanfs".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if watcher.is_interrupted() {
                progress.stop.store(true, Ordering::Relaxed);
                // Wait for the thread, so that it writes nothing after the file is removed.
                let _ = answered.recv_timeout(self.deadline);
                return Err(BenchError::Interrupted);
            }
            let now = progress.written.load(Ordering::Relaxed);
            watcher.on_file_progress(now, size);
            if now != last {
                last = now;
                since = Instant::now();
            } else if since.elapsed() > patience {
                progress.stop.store(true, Ordering::Relaxed);
                let patience = patience.as_secs_f64();
                return Err(failed(format!("the write replica made no progress for {patience} s")));
            }
        }
    }

    /// Removes the file.
    ///
    /// # Errors
    /// If the file is still there.
    pub(super) fn remove(&mut self) -> Result<(), BenchError> {
        if !self.is_created.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let path = self.path.clone();
        let why = match run_with_timeout(self.deadline, move || std::fs::remove_file(&path)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Some(Err(error)) => error.to_string(),
            None => format!("no answer within {} s", self.deadline.as_secs_f64()),
        };
        let path = self.path.display();
        Err(BenchError::Failed(format!("cannot remove {path}: {why}; remove it by hand")))
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            // `eprintln!` would panic once the terminal is gone.
            let _ = writeln!(io::stderr(), "fanfs: {error}");
        }
    }
}

/// The host name is part of the name: another machine that shares the replica may have a process
/// with the same id.
fn scratch_name() -> PathBuf {
    let machine = host::host_name().replace('/', "-");
    PathBuf::from(format!(".fanfs-bench-{machine}-{}", std::process::id()))
}

/// Progress, shared with the writing thread.
#[derive(Default)]
struct WriteProgress {
    /// Bytes written.
    written: AtomicU64,
    /// Whether the thread must end.
    stop: AtomicBool,
}

fn write_content(mut file: File, size: u64, progress: &WriteProgress) -> io::Result<()> {
    let mut content = blake3::Hasher::new_derive_key("fanfs bench data").finalize_xof();
    let mut block = vec![0; WRITE_BLOCK_BYTES];
    let mut left = size;
    while left > 0 {
        if progress.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = left.min(WRITE_BLOCK_BYTES as u64) as usize;
        content.fill(&mut block[..n]);
        file.write_all(&block[..n])?;
        progress.written.fetch_add(n as u64, Ordering::Relaxed);
        left -= n as u64;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SilentWatcher;

    impl ProgressWatcher for SilentWatcher {
        fn on_plan(&self, _: usize, _: Duration) {}
        fn on_file_progress(&self, _: u64, _: u64) {}
        fn on_pass_progress(&self, _: usize, _: &str, _: Duration, _: u64) {}
        fn is_interrupted(&self) -> bool {
            false
        }
    }

    #[test]
    fn an_existing_file_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let text = format!(
            "[volume]\nname = \"v\"\nmode = \"shared\"\naccess = \"rw\"\n\
             [[replica]]\npath = \"{}\"\n",
            root.path().display()
        );
        let config = crate::config::parse(&text, std::path::Path::new("v.toml")).unwrap();
        let path = root.path().join(scratch_name());
        let make = || ScratchFile::new(&config, 3 << 20, Duration::from_secs(30), &SilentWatcher);
        let made = make().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
        drop(made);
        assert!(!path.exists());
        std::fs::write(&path, "theirs").unwrap();
        let error = make().err().unwrap().to_string();
        assert!(error.contains("File exists"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }
}
