//! `fanfs top`: the activity of a volume, live in a terminal, or once as text or JSON.
//!
//! All three show the difference of two samples ([`delta`]). Text and the terminal (`live`,
//! `screen`) need the cargo feature `top`.

mod delta;
mod files;
#[cfg(feature = "top")]
mod keys;
#[cfg(feature = "top")]
mod live;
mod process;
mod sample;
#[cfg(feature = "top")]
mod sampler;
#[cfg(feature = "top")]
mod screen;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cancellation::Cancellation;
use super::{CommandResult, Failure, mount_lookup, print_result, to_json, volume};
use crate::config::units::Time;
use crate::control;
use delta::View;
use process::ProcessCache;
use sample::Sample;

/// Arguments of `fanfs top`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs top /genomes
  fanfs top /genomes --once          one interval, as text
  fanfs top --json --interval 10s    one interval, as JSON

Keys: q quits, ? explains keys and columns, space pauses, s changes the sort order of the \
replicas, Tab switches between files and readers, v shows the next volume.

docs/TRACE.md explains each label.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    /// [default: this user's volumes; the key v shows the next one]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: Option<PathBuf>,
    /// Refresh interval, 200ms to 1min; rates are means over this time
    #[arg(long, short = 'd', value_name = "TIME", default_value = "1s")]
    interval: Time,
    /// Print one interval as text and exit; this is the default if standard output is not a
    /// terminal
    #[arg(long)]
    once: bool,
    /// Print one interval as JSON and exit
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether it runs on a terminal until the user quits.
    pub(super) fn is_live(&self) -> bool {
        !self.once && !self.json && io::stdout().is_terminal()
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(200);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&args.interval.0) {
        return Err(Failure::usage("--interval is out of range; use 200ms to 1min"));
    }
    if args.json {
        let volume = WatchedVolume::find(args)?;
        return print_result(&to_json(&volume.observe(args.interval.0)?)?);
    }
    run_for_people(args, audience)
}

#[cfg(not(feature = "top"))]
fn run_for_people(_: &Args, _: &Cancellation) -> CommandResult {
    Err(Failure::not_built("fanfs top without --json", "top"))
}

#[cfg(feature = "top")]
fn run_for_people(args: &Args, audience: &Cancellation) -> CommandResult {
    /// The width of the text, in columns, if `$COLUMNS` is not set.
    const DEFAULT_COLUMNS: u16 = 100;

    let volume = WatchedVolume::find(args)?;
    if args.is_live() {
        // Without a volume there is nothing to draw.
        control::query_daemon(&volume.sockets[0])
            .map_err(|error| volume.unreachable(&volume.sockets[0], &error))?;
        return live::run(volume.sockets, args.interval.0, audience);
    }
    let view = volume.observe(args.interval.0)?;
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let columns = columns.unwrap_or(DEFAULT_COLUMNS).clamp(screen::MIN_WIDTH, 500);
    print_result(&screen::render_text(&view, columns))
}

/// The volumes to show.
struct WatchedVolume {
    /// The mount point from the command line.
    mount_point: Option<PathBuf>,
    /// At least one control socket; the first one is shown first.
    sockets: Vec<PathBuf>,
}

impl WatchedVolume {
    fn find(args: &Args) -> Result<Self, Failure> {
        let mount_point = args.volume.as_deref().map(volume::mount_point).transpose()?;
        let sockets = live_sockets(mount_point.as_deref())?;
        Ok(Self { mount_point, sockets })
    }

    /// Waits for one interval; returns the volume's activity in it.
    fn observe(&self, interval: Duration) -> Result<View, Failure> {
        let socket = &self.sockets[0];
        let take = || Sample::take(socket).map_err(|error| self.unreachable(socket, &error));
        let before = take()?;
        std::thread::sleep(interval);
        let now = take()?;
        let mut processes = ProcessCache::default();
        Ok(View::between(&before, &now, &mut |pid| processes.lookup(pid)))
    }

    fn unreachable(&self, socket: &Path, error: &io::Error) -> Failure {
        match &self.mount_point {
            Some(point) => mount_lookup::status_error(point, error).into(),
            None => match control::query_daemon(socket) {
                Ok(daemon) => mount_lookup::status_error(&daemon.mount_point, error).into(),
                Err(_) => Failure::failed(format!("{}: {error}", socket.display())),
            },
        }
    }
}

/// The control sockets of the volumes to show, at least one.
fn live_sockets(mount_point: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(point) = mount_point {
        return Ok(vec![control::socket_path(point)]);
    }
    let all = control::list_sockets().map_err(Failure::failed)?;
    let alive: Vec<_> =
        all.into_iter().filter(|socket| control::query_daemon(socket).is_ok()).collect();
    if alive.is_empty() {
        let mounted = mount_lookup::list_volumes().map_err(Failure::failed)?;
        let all: Vec<String> =
            mounted.unanswered.iter().map(mount_lookup::UnansweredMount::text).collect();
        let none = "no volume of this user is mounted; mount one with `fanfs mount`".to_owned();
        return Err(Failure::failed(if all.is_empty() { none } else { all.join("\n") }));
    }
    Ok(alive)
}
