//! Writes the passes as jobs for fio(1), and reads fio's report.
//!
//! A job reads the same parts as its pass, with the same number of readers and block size, for the
//! same time. It ends as a pass does: for all readers when the first one has read its part. A job
//! that reads through fanfs finds the mount in the environment variable [`MOUNT_VARIABLE`].

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::plan::{FilePart, Load};
use crate::format::to_mib_per_second;

/// The environment variable that names the mount, for jobs that read through fanfs.
pub const MOUNT_VARIABLE: &str = "FANFS_MOUNT";

/// One reader of a job.
#[derive(Clone, Debug)]
pub struct FioReader {
    /// The section's name: the replica's name, or the mount's.
    pub name: String,
    /// The directory that contains the file; `None` for the mount.
    pub directory: Option<PathBuf>,
    /// Whether it reads with O_DIRECT.
    pub is_direct: bool,
    /// The part of the file that it reads.
    pub part: FilePart,
}

/// A pass, as a job for fio.
#[derive(Clone, Debug)]
pub struct FioJob {
    /// A one-line description.
    pub title: String,
    /// How the readers read.
    pub load: Load,
    /// The file, below each reader's directory.
    pub file: PathBuf,
    /// Bytes of one read.
    pub block_size: u64,
    /// How long the job reads at most.
    pub duration: Duration,
    /// The seed of the random order.
    pub seed: u64,
    /// Start again at the end of a part, until the time is over. False where the pass itself
    /// reached the end of its part: a second read would come from a cache.
    pub is_time_based: bool,
    /// At least one.
    pub readers: Vec<FioReader>,
}

/// Why fio gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    /// A job file cannot name this path.
    #[error("a fio job cannot express all characters of the path {}", .0.display())]
    UnwritablePath(PathBuf),
    /// fio is not installed, or cannot be started.
    #[error("cannot start fio: {0}")]
    Start(io::Error),
    /// fio's output cannot be stored, or waiting for fio failed.
    #[error("fio: {0}")]
    Io(io::Error),
    /// fio was killed: it exceeded this limit, or the run was interrupted.
    #[error("fio did not end within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// fio failed; the first line of its error output.
    #[error("fio: {0}")]
    Failed(String),
    /// Its report is not JSON.
    #[error("cannot parse fio's report: {0}")]
    MalformedReport(serde_json::Error),
    /// Its report says that it read no bytes.
    #[error("fio read no data")]
    NothingRead,
    /// The error number in fio's report.
    #[error("fio reported error {0}")]
    JobFailed(i64),
}

/// Renders the text of the job file.
///
/// # Errors
/// When a job file cannot express a path.
pub fn render_job(job: &FioJob) -> Result<String, FioError> {
    let mut text = format!("# {}\n", job.title);
    if job.readers.iter().any(|reader| reader.directory.is_none()) {
        let _ = writeln!(
            text,
            "# Set {MOUNT_VARIABLE} to the mount point: `{MOUNT_VARIABLE}=/genomes fio THIS.fio`"
        );
    }
    let random = job.load == Load::Random;
    let _ = writeln!(
        text,
        "[global]\nioengine=psync\nrw={}\nbs={}\ninvalidate=1\n\
         iomem_align=4096\nthread\nruntime={}ms{}\nexitall\ngroup_reporting",
        if random { "randread" } else { "read" },
        job.block_size,
        job.duration.as_millis(),
        if job.is_time_based { "\ntime_based" } else { "" },
    );
    if random {
        let _ = writeln!(text, "randseed={}", job.seed);
    }
    let file = escape_path(&job.file)?;
    for group in job.readers.chunk_by(is_same_section) {
        let FioReader { name, directory, is_direct: direct, part } = &group[0];
        let directory = match directory {
            Some(directory) => escape_path(directory)?,
            None => format!("${{{MOUNT_VARIABLE}}}"),
        };
        let _ = writeln!(
            text,
            // fio resolves a filename against the directory that it has read by then.
            "\n[{name}]\ndirectory={directory}\nfilename={file}\ndirect={}\noffset={}\nsize={}\nnumjobs={}",
            u8::from(*direct),
            part.offset,
            part.len,
            group.len()
        );
        if group.len() > 1 {
            let _ = writeln!(text, "offset_increment={}", part.len);
        }
    }
    Ok(text)
}

/// Whether two readers read adjacent parts of one directory: they share one section.
fn is_same_section(one: &FioReader, next: &FioReader) -> bool {
    one.name == next.name
        && one.part.len == next.part.len
        && one.part.offset + one.part.len == next.part.offset
}

/// Escapes a path for a job file. fio takes an unescaped `:` as a separator, and cannot express
/// some other characters at all.
fn escape_path(path: &Path) -> Result<String, FioError> {
    let odd = |c: char| c.is_control() || "$\"'#;%*".contains(c);
    match path.to_str() {
        Some(text) if !text.contains(odd) && text.trim() == text => {
            Ok(text.replace('\\', "\\\\").replace(':', "\\:"))
        }
        _ => Err(FioError::UnwritablePath(path.to_owned())),
    }
}

/// Renders a script that runs all jobs beside it, with the volume mounted for the jobs that need
/// it.
pub fn render_script(volume: &Path, jobs: &[String]) -> String {
    let volume = volume.display().to_string().replace('\'', "'\\''");
    format!(
        "#!/bin/sh\n# Runs the fio jobs in this directory; mounts the volume for those through fanfs.\n\
         set -eu\ncd \"$(dirname \"$0\")\"\n{MOUNT_VARIABLE}=$(mktemp -d)\nexport {MOUNT_VARIABLE}\n\
         trap 'fanfs umount \"${MOUNT_VARIABLE}\" || true; rmdir \"${MOUNT_VARIABLE}\"' EXIT\n\
         fanfs mount '{volume}' \"${MOUNT_VARIABLE}\"\nfor job in {}; do\n  fio \"$job\"\ndone\n",
        jobs.join(" ")
    )
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs fio on a job file; returns MiB/s.
///
/// # Errors
/// fio's own error, or [`FioError::TimedOut`] when the run was interrupted or fio took longer than
/// `limit`.
pub(super) fn run_fio(
    job: &Path,
    mount: Option<&Path>,
    limit: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<f64, FioError> {
    let mut command = Command::new("fio");
    command.args(["--readonly", "--output-format=json", "--eta=never"]).arg(job);
    // fio leaves a state file in its working directory.
    command.current_dir(job.parent().unwrap_or(Path::new("/")));
    if let Some(mount) = mount {
        command.env(MOUNT_VARIABLE, mount);
    }
    let report = job.with_extension("json");
    let complaints = job.with_extension("err");
    command.stdin(Stdio::null());
    command.stdout(File::create(&report).map_err(FioError::Io)?);
    command.stderr(File::create(&complaints).map_err(FioError::Io)?);
    let child = command.spawn().map_err(FioError::Start)?;
    let status = wait_for_fio(child, limit, is_interrupted)?;
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    if !status.success() {
        let complaints = read(&complaints);
        let line = complaints.lines().next().unwrap_or("it failed without a message");
        return Err(FioError::Failed(line.to_owned()));
    }
    parse_rate(&read(&report))
}

fn wait_for_fio(
    mut child: Child,
    limit: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<ExitStatus, FioError> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(FioError::Io)? {
            return Ok(status);
        }
        if is_interrupted() || Instant::now() > until {
            // Do not wait for an fio that is stuck in a hung replica.
            let _ = child.kill();
            std::thread::sleep(POLL_INTERVAL);
            let _ = child.try_wait();
            return Err(FioError::TimedOut(limit));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The rate in fio's report, MiB/s.
fn parse_rate(report: &str) -> Result<f64, FioError> {
    // fio may print notes before the JSON.
    let json = report.get(report.find('{').unwrap_or(0)..).unwrap_or_default();
    let report: Value = serde_json::from_str(json).map_err(FioError::MalformedReport)?;
    let job = &report["jobs"][0];
    match (job["error"].as_i64(), job["read"]["bw_bytes"].as_f64()) {
        (Some(0), Some(rate)) if rate > 0.0 => Ok(to_mib_per_second(rate)),
        (Some(0), _) => Err(FioError::NothingRead),
        (error, _) => Err(FioError::JobFailed(error.unwrap_or(-1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(name: &str, directory: Option<&str>, offset: u64, len: u64) -> FioReader {
        let directory = directory.map(PathBuf::from);
        FioReader {
            name: name.to_owned(),
            directory,
            is_direct: true,
            part: FilePart { offset, len },
        }
    }

    fn job(load: Load, readers: Vec<FioReader>) -> FioJob {
        FioJob {
            title: "a title".to_owned(),
            load,
            file: "a/b:c".into(),
            block_size: 65536,
            duration: Duration::from_millis(2500),
            seed: 42,
            is_time_based: true,
            readers,
        }
    }

    #[test]
    fn a_fio_job_matches_its_pass() {
        let readers = vec![reader("r1", Some("/mnt/r 1"), 0, 131072)];
        let expected = "# a title\n[global]\nioengine=psync\nrw=read\nbs=65536\n\
                        invalidate=1\niomem_align=4096\nthread\nruntime=2500ms\n\
                        time_based\nexitall\ngroup_reporting\n\n[r1]\ndirectory=/mnt/r 1\n\
                        filename=a/b\\:c\ndirect=1\n\
                        offset=0\nsize=131072\nnumjobs=1\n";
        assert_eq!(render_job(&job(Load::Sequential, readers)).unwrap(), expected);
    }

    #[test]
    fn adjacent_readers_share_one_fio_section() {
        let mut readers: Vec<_> = (0..4).map(|i| reader("fanfs", None, i * 65536, 65536)).collect();
        let one = render_job(&job(Load::Random, readers.clone())).unwrap();
        assert!(one.contains("rw=randread") && one.contains("randseed=42"), "{one}");
        assert!(one.contains("directory=${FANFS_MOUNT}\n"), "{one}");
        assert!(one.ends_with("numjobs=4\noffset_increment=65536\n"), "{one}");
        readers[2].name = "other".to_owned();
        let four = render_job(&job(Load::Parallel, readers)).unwrap();
        assert_eq!(four.matches("\n[").count() - 1, 3, "{four}");
    }

    #[test]
    fn file_names_that_fio_cannot_express_are_refused() {
        for name in ["a$b", "a\nb", "a;b", " a", "a\"b"] {
            let mut job = job(Load::Random, vec![reader("r1", Some("/r"), 0, 65536)]);
            job.file = name.into();
            assert!(render_job(&job).is_err(), "{name:?}");
        }
    }

    #[test]
    fn the_rate_comes_from_fio() {
        let report = "note: x\n{\"jobs\": [{\"error\": 0, \"read\": {\"bw_bytes\": 2097152}}]}";
        assert_eq!(parse_rate(report).unwrap(), 2.0);
        let failed = parse_rate("{\"jobs\": [{\"error\": 5, \"read\": {}}]}").unwrap_err();
        assert_eq!(failed.to_string(), "fio reported error 5");
        assert!(parse_rate("nothing").is_err());
    }
}
