//! `fanfs reload`: a mounted volume goes on with its configuration as it is now.

use std::path::PathBuf;

use super::{Failure, Outcome, absolute, upgrade};
use crate::config;
use crate::control::{self, Ask};

/// Arguments of `fanfs reload`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    mount_point: PathBuf,
    /// Its configuration [default: the file that it was mounted with]
    #[arg(value_name = "VOLUME", value_parser = super::volume_name::parser())]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    volume: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Outcome {
    let path = absolute(&args.mount_point);
    let path = path.canonicalize().unwrap_or(path);
    let now = control::ask_status(&control::socket_path(&path)).map_err(|_| {
        Failure::failed(format!("no fanfs volume of this user is mounted at {}", path.display()))
    })?;
    let volume = args.volume.as_deref().map(absolute);
    let source = volume.clone().unwrap_or(now.source);
    // Looked at here as well: what is wrong with it is told the same way as by `mount`.
    let config = config::load(&source).map_err(Failure::usage)?;
    crate::daemon::check_placement(&config).map_err(Failure::usage)?;
    let fixed = [
        (config.volume.name != now.volume, "its name"),
        (config.volume.mode != now.mode, "`mode`"),
    ];
    if let Some((_, what)) = fixed.iter().find(|(changed, _)| *changed) {
        return Err(Failure::usage(format!(
            "{}: {what} cannot be changed while the volume is mounted",
            source.display()
        )));
    }
    let over = upgrade::order(&path, &Ask::Reload { volume })?;
    upgrade::told(&over)
}
