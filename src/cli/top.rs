//! `fanfs top`: a volume at work, live in a terminal or once as text.
//!
//! One thread asks the daemon in each interval; this one draws and takes keys, so a
//! daemon that does not answer is seen to be silent, and nothing else stops. What is
//! shown is the difference of two samples ([`delta`]), laid out for the width that there
//! is ([`screen`]). The terminal's own colours are left as they are: what needs to be
//! seen is bold or reversed, which is seen on light and on dark ones.

mod delta;
mod files;
mod format;
mod keys;
mod process;
mod sample;
mod screen;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::cancellation::Cancellation;
use super::{CommandResult, Failure, mount_lookup, print_result, to_json, volume};
use crate::config::units::Time;
use crate::control;
use delta::View;
use keys::{Action, DisplayState};
use process::ProcessCache;
use sample::{Sample, SampleResult, Sampler};
use screen::{History, Screen};

/// Arguments of `fanfs top`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs top /genomes
  fanfs top /genomes --once          one interval, as text
  fanfs top --json --interval 10s    the same for programs

Keys: q ends, ? explains keys and columns, space holds the picture, s orders the replicas, Tab
chooses files or readers, v goes to the next volume.
docs/TRACE.md says what each figure is.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    /// [default: this user's volumes, one after the other by the key v]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: Option<PathBuf>,
    /// How often to look; rates are means over this time
    #[arg(long, short = 'd', value_name = "TIME", default_value = "1s")]
    interval: Time,
    /// Print it once, as text, after one interval; so it is where standard output is no
    /// terminal
    #[arg(long)]
    once: bool,
    /// Print it once, as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether it runs on a terminal until a key ends it.
    pub(super) fn is_live(&self) -> bool {
        !self.once && !self.json && io::stdout().is_terminal()
    }
}

/// The shortest and the longest interval.
const INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// How soon a key is answered.
const KEY_POLL_TIMEOUT: Duration = Duration::from_millis(50);

/// Columns of `--once` where nobody says how many there are.
const DEFAULT_COLUMNS: u16 = 100;

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    let (shortest, longest) = INTERVAL_RANGE;
    if args.interval.0 < shortest || args.interval.0 > longest {
        return Err(Failure::usage("--interval is out of range; use 200ms to 1min"));
    }
    let point = args.volume.as_deref().map(volume::mount_point).transpose()?;
    let sockets = live_sockets(point.as_deref())?;
    if !args.is_live() {
        return print_once(args, &sockets[0], point.as_deref());
    }
    let mut terminal = ratatui::try_init().map_err(Failure::failed)?;
    let mut live = LiveScreen::new(sockets, args.interval.0);
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| live.draw(frame.area(), frame.buffer_mut())) {
            break Err(Failure::failed(error));
        }
        match live.handle_input() {
            Err(error) => break Err(Failure::failed(error)),
            Ok(Action::Quit) => break Ok(ExitCode::SUCCESS),
            Ok(_) if audience.is_canceled() => break Ok(ExitCode::SUCCESS),
            Ok(_) => {}
        }
    };
    ratatui::restore();
    shown
}

/// The control sockets of what can be shown, at least one.
fn live_sockets(mount_point: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(point) = mount_point {
        return Ok(vec![control::socket_path(point)]);
    }
    let all = control::list_sockets().map_err(Failure::failed)?;
    let alive: Vec<_> =
        all.into_iter().filter(|socket| control::query_status(socket).is_ok()).collect();
    if alive.is_empty() {
        let (_, unanswered) = mount_lookup::list_volumes().map_err(Failure::failed)?;
        let all: Vec<String> = unanswered.iter().map(mount_lookup::UnansweredMount::text).collect();
        let none = "no volume of this user is mounted; mount one by `fanfs mount`".to_owned();
        return Err(Failure::failed(if all.is_empty() { none } else { all.join("\n") }));
    }
    Ok(alive)
}

fn print_once(args: &Args, socket: &Path, point: Option<&Path>) -> CommandResult {
    let take = || Sample::take(socket).map_err(|error| unreachable_volume(point, socket, &error));
    let before = take()?;
    std::thread::sleep(args.interval.0);
    let now = take()?;
    let mut names = ProcessCache::default();
    let view = View::between(&before, &now, &mut |pid| names.lookup(pid));
    if args.json {
        return print_result(&to_json(&view)?);
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    print_result(&screen::render_text(
        &view,
        columns.unwrap_or(DEFAULT_COLUMNS).clamp(screen::MIN_WIDTH, 500),
    ))
}

fn unreachable_volume(point: Option<&Path>, socket: &Path, error: &io::Error) -> Failure {
    match point {
        Some(point) => mount_lookup::status_error(point, error).into(),
        None => Failure::failed(format!("{}: {error}", socket.display())),
    }
}

/// What the screen shows, and where it comes from.
struct LiveScreen {
    sockets: Vec<PathBuf>,
    sampler: Sampler,
    last_sample: Option<Sample>,
    view: Option<View>,
    history: History,
    display: DisplayState,
    processes: ProcessCache,
    /// When the daemon last answered, and what asking it failed with since.
    last_answer: Instant,
    last_error: Option<String>,
}

impl LiveScreen {
    fn new(sockets: Vec<PathBuf>, interval: Duration) -> Self {
        let sampler = Sampler::start(sockets[0].clone(), interval);
        Self {
            sampler,
            last_sample: None,
            view: None,
            history: History::default(),
            display: DisplayState::new(interval, sockets.len()),
            sockets,
            processes: ProcessCache::default(),
            last_answer: Instant::now(),
            last_error: None,
        }
    }

    fn draw(&mut self, area: ratatui::layout::Rect, buffer: &mut ratatui::buffer::Buffer) {
        let silent = Instant::now().saturating_duration_since(self.last_answer);
        let screen = Screen {
            view: self.view.as_ref(),
            history: &self.history,
            display: &self.display,
            silent_for: silent,
            last_error: self.last_error.as_deref(),
        };
        let rows = screen.draw(area, buffer);
        self.display.set_panel_rows(rows);
    }

    /// Waits a little for a key or a sample, and does what it says.
    fn handle_input(&mut self) -> io::Result<Action> {
        let mut action = Action::None;
        if event::poll(KEY_POLL_TIMEOUT)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            action = self.display.handle_key(key);
        }
        match action {
            Action::SwitchVolume => self.switch_volume(),
            Action::SetInterval => self.sampler.set_interval(self.display.interval),
            Action::Quit | Action::None => {}
        }
        while let Some(news) = self.sampler.try_recv() {
            self.apply_sample(news);
        }
        Ok(action)
    }

    fn switch_volume(&mut self) {
        let socket = self.sockets[self.display.volume_index].clone();
        self.sampler = Sampler::start(socket, self.display.interval);
        (self.last_sample, self.view, self.history) = (None, None, History::default());
        self.last_answer = Instant::now();
    }

    fn apply_sample(&mut self, news: SampleResult) {
        let sample = match news {
            Ok(sample) => sample,
            Err(error) => return self.last_error = Some(error),
        };
        (self.last_answer, self.last_error) = (Instant::now(), None);
        if self.display.is_paused {
            return;
        }
        if let Some(before) = &self.last_sample {
            let view = View::between(before, &sample, &mut |pid| self.processes.lookup(pid));
            self.history.add(&view);
            self.view = Some(view);
        }
        self.last_sample = Some(sample);
    }
}
