//! `fanfs top` on a terminal.
//!
//! A separate thread takes the samples, and this one draws and handles keys. So a daemon that does
//! not answer blocks neither the display nor the keys, and the title line reports it. The screen
//! keeps the terminal's own colors. It highlights with bold and reversed text, which is visible on
//! light and dark backgrounds.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::delta::View;
use super::keys::{Action, DisplayState};
use super::process::ProcessCache;
use super::sample::Sample;
use super::sampler::Sampler;
use super::screen::{History, Screen};
use crate::cli::cancellation::Cancellation;
use crate::cli::{CommandResult, Failure};

/// The longest wait for a key before the screen is drawn again.
const KEY_POLL_TIMEOUT: Duration = Duration::from_millis(50);

/// Shows the volumes behind these control sockets, one at a time, until the user quits.
pub(super) fn run(
    sockets: Vec<PathBuf>,
    interval: Duration,
    audience: &Cancellation,
) -> CommandResult {
    let mut terminal = ratatui::try_init().map_err(Failure::failed)?;
    let mut live = LiveScreen::new(sockets, interval);
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

/// The displayed data and its source.
struct LiveScreen {
    sockets: Vec<PathBuf>,
    sampler: Sampler,
    last_sample: Option<Sample>,
    view: Option<View>,
    history: History,
    display: DisplayState,
    processes: ProcessCache,
    last_answer: Instant,
    /// The error of the last sample, if it failed.
    last_error: Option<io::Error>,
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
            last_error: self.last_error.as_ref(),
        };
        let rows = screen.draw(area, buffer);
        self.display.set_panel_rows(rows);
    }

    /// Waits for a key for at most [`KEY_POLL_TIMEOUT`], and applies the samples that have arrived.
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
            Action::SetInterval => {
                self.sampler.set_interval(self.display.interval);
                // Its bars have other intervals.
                self.history = History::default();
            }
            Action::Quit | Action::None => {}
        }
        while let Some(sample) = self.sampler.try_recv() {
            self.apply_sample(sample);
        }
        Ok(action)
    }

    fn switch_volume(&mut self) {
        let socket = self.sockets[self.display.volume_index].clone();
        self.sampler = Sampler::start(socket, self.display.interval);
        self.last_sample = None;
        self.view = None;
        self.history = History::default();
        self.last_answer = Instant::now();
    }

    fn apply_sample(&mut self, sample: io::Result<Sample>) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(error) => return self.last_error = Some(error),
        };
        self.last_answer = Instant::now();
        self.last_error = None;
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
