//! `fanfs upgrade`: a mounted volume is served by this program from now on.

use std::path::PathBuf;

use super::{Failure, Outcome, absolute, say};
use crate::control::{self, Ask, HandedOver};

/// Arguments of `fanfs upgrade`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    mount_point: PathBuf,
    /// The program that is to serve it [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Outcome {
    let program = match &args.program {
        Some(program) => absolute(program),
        None => std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find myself: {e}")))?,
    };
    let over = order(&args.mount_point, &Ask::Upgrade { program })?;
    told(&over)
}

/// Has the daemon of the volume at `mount_point` hand it over.
pub(super) fn order(mount_point: &std::path::Path, order: &Ask) -> Result<HandedOver, Failure> {
    let path = absolute(mount_point);
    let named = path.canonicalize().unwrap_or(path);
    control::ask_to_hand_over(&control::socket_path(&named), order).map_err(|error| {
        use std::io::ErrorKind as K;
        Failure::failed(match error.kind() {
            K::NotFound | K::ConnectionRefused => {
                format!("no fanfs volume of this user is mounted at {}", named.display())
            }
            _ => format!("{}: {error}; it is served as before", named.display()),
        })
    })
}

/// Says what came of it.
pub(super) fn told(over: &HandedOver) -> Outcome {
    let HandedOver { pid, stalled_ms, handles } = over;
    say(&format!("served by process {pid}; {handles} open, requests waited for {stalled_ms} ms\n"))
}
