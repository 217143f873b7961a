//! `fanfs top`: a volume at work, live in a terminal or once as text.
//!
//! One thread asks the daemon in each interval; this one draws and takes keys, so a
//! daemon that does not answer is seen to be silent, and nothing else stops. What is
//! shown is the difference of two samples ([`rates`]), laid out for the width that there
//! is ([`screen`]). The terminal's own colours are left as they are: what needs to be
//! seen is bold or reversed, which is seen on light and on dark ones.

mod files;
mod keys;
mod people;
mod process;
mod rates;
mod sample;
mod screen;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::audience::Audience;
use super::{Failure, Outcome, mounted, say, to_json, volume};
use crate::config::units::Time;
use crate::control;
use keys::{Action, Shown};
use process::Names;
use rates::View;
use sample::{News, Sample, Sampler};
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
const INTERVALS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// How soon a key is answered.
const PATIENCE: Duration = Duration::from_millis(50);

/// Columns of `--once` where nobody says how many there are.
const COLUMNS: u16 = 100;

pub(super) fn run(args: &Args, audience: &Audience) -> Outcome {
    let (shortest, longest) = INTERVALS;
    if args.interval.0 < shortest || args.interval.0 > longest {
        return Err(Failure::usage("--interval is out of range; use 200ms to 1min"));
    }
    let point = args.volume.as_deref().map(volume::mount_point).transpose()?;
    let sockets = sockets(point.as_deref())?;
    if !args.is_live() {
        return once(args, &sockets[0], point.as_deref());
    }
    let mut terminal = ratatui::try_init().map_err(Failure::failed)?;
    let mut live = Live::new(sockets, args.interval.0);
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| live.draw(frame.area(), frame.buffer_mut())) {
            break Err(Failure::failed(error));
        }
        match live.wait() {
            Err(error) => break Err(Failure::failed(error)),
            Ok(Action::Quit) => break Ok(ExitCode::SUCCESS),
            Ok(_) if audience.has_gone() => break Ok(ExitCode::SUCCESS),
            Ok(_) => {}
        }
    };
    ratatui::restore();
    shown
}

/// The control sockets of what can be shown, at least one.
fn sockets(mount_point: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(point) = mount_point {
        return Ok(vec![control::socket_path(point)]);
    }
    let all = control::sockets().map_err(Failure::failed)?;
    let alive: Vec<_> =
        all.into_iter().filter(|socket| control::ask_status(socket).is_ok()).collect();
    if alive.is_empty() {
        let (_, unanswered) = mounted::all().map_err(Failure::failed)?;
        let all: Vec<String> = unanswered.iter().map(mounted::Unanswered::text).collect();
        let none = "no volume of this user is mounted; mount one by `fanfs mount`".to_owned();
        return Err(Failure::failed(if all.is_empty() { none } else { all.join("\n") }));
    }
    Ok(alive)
}

fn once(args: &Args, socket: &Path, point: Option<&Path>) -> Outcome {
    let take = || Sample::take(socket).map_err(|error| unreachable_volume(point, socket, &error));
    let before = take()?;
    std::thread::sleep(args.interval.0);
    let now = take()?;
    let mut names = Names::default();
    let view = View::between(&before, &now, &mut |pid| names.of(pid));
    if args.json {
        return say(&to_json(&view)?);
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    say(&screen::text(&view, columns.unwrap_or(COLUMNS).clamp(screen::NARROWEST, 500)))
}

fn unreachable_volume(point: Option<&Path>, socket: &Path, error: &io::Error) -> Failure {
    match point {
        Some(point) => mounted::trouble(point, error).into(),
        None => Failure::failed(format!("{}: {error}", socket.display())),
    }
}

/// What the screen shows, and where it comes from.
struct Live {
    sockets: Vec<PathBuf>,
    sampler: Sampler,
    before: Option<Sample>,
    view: Option<View>,
    history: History,
    shown: Shown,
    names: Names,
    /// When the daemon last answered, and what asking it failed with since.
    answered: Instant,
    trouble: Option<String>,
}

impl Live {
    fn new(sockets: Vec<PathBuf>, interval: Duration) -> Self {
        let sampler = Sampler::start(sockets[0].clone(), interval);
        Self {
            sampler,
            before: None,
            view: None,
            history: History::default(),
            shown: Shown::new(interval, sockets.len()),
            sockets,
            names: Names::default(),
            answered: Instant::now(),
            trouble: None,
        }
    }

    fn draw(&mut self, area: ratatui::layout::Rect, buffer: &mut ratatui::buffer::Buffer) {
        let silent = Instant::now().saturating_duration_since(self.answered);
        let screen = Screen {
            view: self.view.as_ref(),
            history: &self.history,
            shown: &self.shown,
            silent,
            trouble: self.trouble.as_deref(),
        };
        let rows = screen.draw(area, buffer);
        self.shown.fits(rows);
    }

    /// Waits a little for a key or a sample, and does what it says.
    fn wait(&mut self) -> io::Result<Action> {
        let mut action = Action::None;
        if event::poll(PATIENCE)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            action = self.shown.key(key);
        }
        match action {
            Action::Volume => self.ask_another(),
            Action::Interval => self.sampler.set_interval(self.shown.interval),
            Action::Quit | Action::None => {}
        }
        while let Some(news) = self.sampler.news() {
            self.learn(news);
        }
        Ok(action)
    }

    fn ask_another(&mut self) {
        let socket = self.sockets[self.shown.volume].clone();
        self.sampler = Sampler::start(socket, self.shown.interval);
        (self.before, self.view, self.history) = (None, None, History::default());
        self.answered = Instant::now();
    }

    fn learn(&mut self, news: News) {
        let sample = match news {
            Ok(sample) => sample,
            Err(error) => return self.trouble = Some(error),
        };
        (self.answered, self.trouble) = (Instant::now(), None);
        if self.shown.is_paused {
            return;
        }
        if let Some(before) = &self.before {
            let view = View::between(before, &sample, &mut |pid| self.names.of(pid));
            self.history.add(&view);
            self.view = Some(view);
        }
        self.before = Some(sample);
    }
}
