//! What keys do: those of top and htop, where they mean anything here.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::INTERVALS;

/// What is to be done besides drawing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Another volume is looked at.
    Volume,
    /// The interval is another one.
    Interval,
}

/// What the lower part of the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Both,
    Files,
    Readers,
}

/// By what replicas are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Configured,
    Rate,
    Load,
    Slowest,
    Health,
}

impl Order {
    const ALL: [Self; 5] = [Self::Configured, Self::Rate, Self::Load, Self::Slowest, Self::Health];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configured => "place",
            Self::Rate => "rate",
            Self::Load => "load",
            Self::Slowest => "p99",
            Self::Health => "health",
        }
    }
}

/// What is shown, and how.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    pub(super) is_help: bool,
    pub(super) panel: Panel,
    pub(super) order: Order,
    /// Lines of the replicas, and of the panel, that are above what is seen.
    pub(super) scrolled: usize,
    pub(super) scrolled_replicas: usize,
    /// Which volume, of how many.
    pub(super) volume: usize,
    volumes: usize,
    /// Lines that the panel had, and could show.
    rows: (usize, usize),
}

impl Shown {
    pub(super) fn new(interval: Duration, volumes: usize) -> Self {
        Self {
            interval,
            is_paused: false,
            is_help: false,
            panel: Panel::Both,
            order: Order::Configured,
            scrolled: 0,
            scrolled_replicas: 0,
            volume: 0,
            volumes,
            rows: (0, 0),
        }
    }

    /// How many lines the panel has, and can show.
    pub(super) fn fits(&mut self, rows: (usize, usize)) {
        self.rows = rows;
        self.scrolled = self.scrolled.min(rows.0.saturating_sub(rows.1));
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = self.rows.1.max(1);
        match key.code {
            KeyCode::Char('c') if ctrl => return Action::Quit,
            // Anything ends the help, and does nothing else.
            _ if self.is_help => self.is_help = false,
            KeyCode::Char('q') | KeyCode::F(10) | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char(' ' | 'Z') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') | KeyCode::F(6) => self.order = self.order.next(),
            KeyCode::Char('f') => self.show(Panel::Files),
            KeyCode::Char('r') => self.show(Panel::Readers),
            KeyCode::Tab => {
                let next = match self.panel {
                    Panel::Both => Panel::Files,
                    Panel::Files => Panel::Readers,
                    Panel::Readers => Panel::Both,
                };
                (self.panel, self.scrolled) = (next, 0);
            }
            KeyCode::Char('+') => return self.slower(2.0),
            KeyCode::Char('-') => return self.slower(0.5),
            KeyCode::Char('v') | KeyCode::Right if self.volumes > 1 => {
                self.volume = (self.volume + 1) % self.volumes;
                return Action::Volume;
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(page as isize),
            KeyCode::PageUp => self.scroll(-(page as isize)),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scroll(self.rows.0 as isize),
            KeyCode::Char(']') => self.scrolled_replicas += 1,
            KeyCode::Char('[') => {
                self.scrolled_replicas = self.scrolled_replicas.saturating_sub(1);
            }
            _ => {}
        }
        Action::None
    }

    fn show(&mut self, panel: Panel) {
        self.panel = if self.panel == panel { Panel::Both } else { panel };
        self.scrolled = 0;
    }

    fn scroll(&mut self, by: isize) {
        let most = self.rows.0.saturating_sub(self.rows.1);
        self.scrolled = self.scrolled.saturating_add_signed(by).min(most);
    }

    fn slower(&mut self, factor: f64) -> Action {
        let (shortest, longest) = INTERVALS;
        self.interval = self.interval.mul_f64(factor).clamp(shortest, longest);
        Action::Interval
    }
}

/// What the help says.
pub(super) const HELP: &[(&str, &str)] = &[
    ("q Esc F10", "end"),
    ("space", "hold the picture, and go on"),
    ("+ -", "look less often, more often"),
    ("s F6", "replicas by place, rate, load, p99, or health"),
    ("f r Tab", "files, readers, or both"),
    ("arrows PgUp PgDn", "scroll files or readers"),
    ("[ ]", "scroll the replicas"),
    ("v", "the next volume"),
    ("", ""),
    ("NOW/s", "what the replica delivers"),
    ("SHARE", "its part of what all deliver"),
    ("LOAD", "what it delivers of what is expected of it"),
    ("IN FLIGHT", "asked for and not there yet, of the most allowed"),
    ("P50 P99", "how long its reads take, since the mount"),
    ("BAD/s", "failed and late reads"),
    ("hits", "reads whose bytes were all in the daemon's memory"),
    ("twice", "delivered a second time: what hedges cost"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn press(shown: &mut Shown, code: KeyCode) -> Action {
        shown.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_end_hold_and_switch() {
        let mut shown = Shown::new(Duration::from_secs(1), 2);
        assert_eq!(press(&mut shown, KeyCode::Char(' ')), Action::None);
        assert!(shown.is_paused);
        assert_eq!(press(&mut shown, KeyCode::Char('v')), Action::Volume);
        assert_eq!(shown.volume, 1);
        assert_eq!(press(&mut shown, KeyCode::Char('?')), Action::None);
        assert_eq!(press(&mut shown, KeyCode::Char('q')), Action::None, "ends the help first");
        assert_eq!(press(&mut shown, KeyCode::Char('q')), Action::Quit);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(shown.key(ctrl_c), Action::Quit);
    }

    #[test]
    fn the_interval_stays_within_its_bounds() {
        let mut shown = Shown::new(Duration::from_secs(1), 1);
        (0..20).for_each(|_| assert_eq!(press(&mut shown, KeyCode::Char('+')), Action::Interval));
        assert_eq!(shown.interval, INTERVALS.1);
        (0..20).for_each(|_| assert_eq!(press(&mut shown, KeyCode::Char('-')), Action::Interval));
        assert_eq!(shown.interval, INTERVALS.0);
    }

    #[test]
    fn scrolling_ends_with_the_last_line() {
        let mut shown = Shown::new(Duration::from_secs(1), 1);
        shown.fits((10, 4));
        press(&mut shown, KeyCode::Up);
        assert_eq!(shown.scrolled, 0);
        press(&mut shown, KeyCode::End);
        assert_eq!(shown.scrolled, 6);
        shown.fits((5, 4));
        assert_eq!(shown.scrolled, 1);
    }
}
