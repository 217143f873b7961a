//! The loads, each one run of fio, and the result of one pass.
//!
//! fio gives the kernel no advice and drops no pages. The comparison drops pages itself where a
//! pass must start cold. Most users' readers give no advice either.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use super::Failure;
use super::candidate::{Candidate, Mode, Mounted};

/// A reader's access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Load {
    /// The whole file in reads of 1 MiB, cold
    Seq,
    /// The same into memory that is not page-aligned, as malloc(3) returns it
    Uneven,
    /// The whole file again, in reads of 1 MiB, possibly from a cache
    Warm,
    /// Reads of 4 KiB at random, one at a time, cold
    Rand1,
    /// Reads of 4 KiB at random, 32 at a time, cold
    Rand32,
    /// One reader over 2, 4, 8, 16 replicas of 100 MiB/s each
    Scaling,
}

/// Reads in flight in `rand32`.
const DEPTH: u64 = 32;

/// One measured pass.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pass {
    pub(super) load: Load,
    pub(super) replicas: usize,
    pub(super) round: usize,
    pub(super) candidate: String,
    pub(super) bytes: u64,
    pub(super) bytes_per_second: f64,
    pub(super) reads_per_second: f64,
    /// Processor seconds of the daemon; `None` without a daemon.
    pub(super) daemon_cpu: Option<f64>,
    /// Processor seconds of the reader.
    pub(super) reader_cpu: f64,
    /// 50th, 99th and 99.9th percentile of one read, microseconds.
    pub(super) latency_us: [f64; 3],
    /// The most memory that the daemon had resident, bytes.
    pub(super) peak: Option<u64>,
}

impl Pass {
    /// The load's unit: bytes, or reads where reads are small.
    pub(super) fn rate(&self) -> f64 {
        if self.load.is_random() { self.reads_per_second } else { self.bytes_per_second }
    }

    pub(super) fn daemon_cpu_per_gib(&self) -> Option<f64> {
        self.daemon_cpu.map(|seconds| seconds / self.gib())
    }

    pub(super) fn cpu_per_gib(&self) -> f64 {
        (self.daemon_cpu.unwrap_or(0.0) + self.reader_cpu) / self.gib()
    }

    fn gib(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 30)
    }
}

impl Load {
    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::Rand1 | Self::Rand32)
    }

    /// Its description, for a table's heading.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Seq => "sequential reads of 1 MiB, cold",
            Self::Uneven => "sequential reads of 1 MiB into uneven memory, cold",
            Self::Warm => "sequential reads of 1 MiB, read before",
            Self::Rand1 => "random reads of 4 KiB, one at a time, cold",
            Self::Rand32 => {
                "random reads of 4 KiB, 32 at a time, cold (direct: libaio with O_DIRECT; raw and \
                 cached: 32 processes that pread)"
            }
            Self::Scaling => "one reader over replicas of 100 MiB/s",
        }
    }

    /// Whether it is meaningful for this candidate.
    pub(super) fn fits(self, candidate: &Candidate) -> bool {
        match self {
            Self::Warm => candidate.mode != Mode::Direct && !candidate.needs_several(),
            Self::Rand1 | Self::Rand32 => !candidate.needs_several(),
            Self::Seq | Self::Uneven => true,
            Self::Scaling => candidate.is_fanfs(),
        }
    }

    fn arguments(self, mode: Mode, size: u64, seconds: u64) -> Vec<String> {
        let words = match (self, mode) {
            (Self::Seq | Self::Warm | Self::Scaling, _) => {
                // Whole pages, as dd and readers with O_DIRECT use.
                format!("--ioengine=psync --rw=read --bs=1M --size={size} --iomem_align=4096")
            }
            (Self::Uneven, _) => format!("--ioengine=psync --rw=read --bs=1M --size={size}"),
            (Self::Rand1, _) => {
                format!("--ioengine=psync --rw=randread --bs=4k --size={size} --runtime={seconds}s")
            }
            (Self::Rand32, Mode::Direct) => format!(
                "--ioengine=libaio --direct=1 --iodepth={DEPTH} --rw=randread --bs=4k \
                 --size={size} --runtime={seconds}s"
            ),
            // Reads through the page cache are not asynchronous, so there are 32 readers. Each has
            // its own part of the file, so that no page is read twice.
            (Self::Rand32, Mode::Raw | Mode::Cached) => format!(
                "--ioengine=psync --numjobs={DEPTH} --rw=randread --bs=4k --size={part} \
                 --offset_increment={part} --runtime={seconds}s",
                part = size / DEPTH / 4096 * 4096
            ),
        };
        words.split_whitespace().map(str::to_owned).collect()
    }

    /// One pass over the mount; it covers `size` bytes of the file.
    pub(super) fn measure(
        self,
        mounted: &Mounted,
        (replicas, round): (usize, usize),
        size: u64,
        seconds: u64,
    ) -> Result<Pass, Failure> {
        let candidate = &mounted.candidate;
        if self == Self::Warm {
            read_through(&mounted.files[0], size)?;
        } else if candidate.mode == Mode::Cached {
            forget(&mounted.files[0])?;
        }
        let daemon = mounted.daemon.as_ref();
        let before = daemon.map(|d| d.reset_peak().and_then(|()| d.cpu_seconds())).transpose()?;
        let report = fio(&mounted.files, &self.arguments(candidate.mode, size, seconds))?;
        let after = daemon.map(|d| d.cpu_seconds()).transpose()?;
        let pass = Pass {
            load: self,
            replicas,
            round,
            candidate: candidate.name.clone(),
            bytes: 0,
            bytes_per_second: 0.0,
            reads_per_second: 0.0,
            daemon_cpu: after.zip(before).map(|(after, before)| after - before),
            reader_cpu: 0.0,
            latency_us: [0.0; 3],
            peak: daemon.map(|d| d.peak()).transpose()?,
        };
        if self == Self::Warm && candidate.mode == Mode::Cached {
            // Free the memory for the next pass.
            forget(&mounted.files[0])?;
        }
        with_report(pass, &report)
    }
}

/// Runs fio with one job per file and returns the report of its only group.
fn fio(files: &[std::path::PathBuf], arguments: &[String]) -> Result<Value, Failure> {
    let mut command = Command::new("fio");
    // The jobs named after these inherit them.
    command.args(["--output-format=json", "--eta=never"]);
    for (i, file) in files.iter().enumerate() {
        command.arg(format!("--name=r{i}")).arg(format!("--filename={}", file.display()));
        command.args(["--readonly", "--invalidate=0", "--fadvise_hint=0", "--group_reporting"]);
        command.arg("--percentile_list=50:99:99.9").args(arguments);
    }
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let said = said.lines().next().unwrap_or("failed without a reason");
        return Err(Failure(format!("fio: {said}")));
    }
    // Notes may precede the report.
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or(""))
        .map_err(|error| Failure(format!("fio's report: {error}")))?;
    match report["jobs"].as_array().map(Vec::as_slice) {
        Some([job]) if job["error"] == 0 => Ok(job.clone()),
        _ => Err(Failure(format!("fio: {}", report["jobs"][0]["error"]))),
    }
}

fn with_report(mut pass: Pass, job: &Value) -> Result<Pass, Failure> {
    let read = &job["read"];
    let number = |value: &Value| {
        value.as_f64().ok_or_else(|| Failure("fio's report lacks a value".to_owned()))
    };
    pass.bytes = number(&read["io_bytes"])? as u64;
    pass.bytes_per_second = number(&read["bw_bytes"])?;
    pass.reads_per_second = number(&read["iops"])?;
    // Percentages of the total time of all jobs, which is in ms.
    let share = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0;
    pass.reader_cpu = share * number(&job["job_runtime"])? / 1000.0;
    for (slot, name) in pass.latency_us.iter_mut().zip(["50.000000", "99.000000", "99.900000"]) {
        *slot = number(&read["clat_ns"]["percentile"][name])? / 1000.0;
    }
    if pass.bytes == 0 {
        return Err(Failure("fio has read nothing".to_owned()));
    }
    Ok(pass)
}

/// Makes the kernel drop its cached pages of a FUSE file.
fn forget(file: &Path) -> Result<(), Failure> {
    let file = File::open(file)?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

fn read_through(file: &Path, size: u64) -> Result<(), Failure> {
    let mut file = File::open(file)?.take(size);
    let mut block = vec![0; 1 << 20];
    while file.read(&mut block)? > 0 {}
    Ok(())
}
