//! `fanfs upgrade`: a daemon of this program takes over a mounted volume.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{CommandResult, Failure, absolute, mount_lookup, print_result, volume};
use crate::control::{self, ControlRequest, HandoverReport};
use crate::status::DaemonInfo;
use crate::volume::shell_word;

/// Arguments of `fanfs upgrade`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs upgrade starts a daemon of the program, which takes over the mount from the old daemon. Open \
files stay open; reads wait for a moment. If the new daemon cannot take over, the old one \
continues. Only the daemon's user and root can run this command.

Examples:
  fanfs upgrade genomes
  fanfs upgrade genomes --program /opt/fanfs/bin/fanfs

Exit status: 0 the new daemon serves the volume; 1 failed; 2 wrong usage or configuration.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// The fanfs program to switch to [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let program = match &args.program {
        Some(program) => absolute(program),
        None => std::env::current_exe().map_err(|e| {
            Failure::failed(format!("cannot find this program's file: {e}; use --program"))
        })?,
    };
    let path = volume::mount_point(&args.volume)?;
    let before = mount_lookup::query_mount_daemon(&path)?;
    let over = request_handover(&path, &ControlRequest::Upgrade { program: program.clone() })?;
    // The argument may be a symbolic link; the kernel has the real path.
    let running = std::fs::read_link(format!("/proc/{}/exe", over.pid)).unwrap_or(program);
    let version = successor_status(&path, &over)?.version;
    let program = running.display();
    let DaemonInfo { pid: from, version: old, .. } = before;
    let to = over.pid;
    let changed =
        format!("program {program}, version {old} -> {version}, process {from} -> {to}\n");
    print_report(&over, &changed)
}

/// Asks the daemon of the volume at `mount_point` for a handover.
pub(super) fn request_handover(
    mount_point: &Path,
    order: &ControlRequest,
) -> Result<HandoverReport, Failure> {
    control::request_handover(&control::socket_path(mount_point), order).map_err(|error| {
        use std::io::ErrorKind as K;
        match error.kind() {
            K::NotFound | K::ConnectionRefused => {
                mount_lookup::status_error(mount_point, &error).into()
            }
            // The answer is missing, so the result is unknown: another upgrade or reload may
            // have replaced the daemon.
            K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe => {
                let shown = mount_point.display();
                let point = shell_word(&mount_point.to_string_lossy());
                Failure::failed(format!(
                    "{shown}: the daemon was replaced or ended before it answered; see fanfs \
                     status {point}"
                ))
            }
            _ => {
                let point = mount_point.display();
                Failure::failed(format!("{point}: {error}; the old daemon still serves it"))
            }
        }
    })
}

/// How long the new daemon may take to listen on its control socket after the takeover.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the new daemon's answer, and returns its status.
pub(super) fn successor_status(
    mount_point: &Path,
    over: &HandoverReport,
) -> Result<DaemonInfo, Failure> {
    status_of_process(mount_point, over.pid, Instant::now() + LISTEN_TIMEOUT)
}

fn status_of_process(mount_point: &Path, pid: u32, until: Instant) -> Result<DaemonInfo, Failure> {
    loop {
        let status = control::query_daemon(&control::socket_path(mount_point)).ok();
        match status.filter(|status| status.pid == pid) {
            Some(status) => return Ok(status),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            None => {
                let shown = mount_point.display();
                let point = shell_word(&mount_point.to_string_lossy());
                return Err(Failure::failed(format!(
                    "{shown}: process {pid} took it over but does not answer; see fanfs status \
                     {point} and the daemon's log"
                )));
            }
        }
    }
}

/// Prints the result of a handover, followed by `changed`.
pub(super) fn print_report(over: &HandoverReport, changed: &str) -> CommandResult {
    let HandoverReport { pid, stalled_ms, handles } = over;
    print_result(&format!(
        "served by process {pid}; {handles} open handles, requests stalled for {stalled_ms} ms\n\
         {changed}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_that_does_not_answer_is_a_failure() {
        let failure = status_of_process(Path::new("/no mount"), 7, Instant::now()).unwrap_err();
        assert_eq!(
            failure.text(),
            "/no mount: process 7 took it over but does not answer; see fanfs status '/no mount' \
             and the daemon's log"
        );
    }
}
