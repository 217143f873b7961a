//! The keys. They follow top and htop where the same function exists.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{MAX_INTERVAL, MIN_INTERVAL};

/// An action to take in addition to a redraw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Show another volume.
    SwitchVolume,
    /// Use the new interval.
    SetInterval,
}

/// The tables in the lower part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Both,
    Files,
    Readers,
}

/// The sort order of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortOrder {
    Configured,
    Rate,
    Load,
    Slowest,
    Health,
}

impl SortOrder {
    const ALL: [Self; 5] = [Self::Configured, Self::Rate, Self::Load, Self::Slowest, Self::Health];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configured => "config",
            Self::Rate => "MiB/s",
            Self::Load => "% est.",
            Self::Slowest => "p99",
            Self::Health => "health",
        }
    }
}

/// The display settings.
#[derive(Debug)]
pub(super) struct DisplayState {
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    pub(super) is_help_shown: bool,
    pub(super) panel: Panel,
    pub(super) order: SortOrder,
    /// Rows of the panel above the visible ones.
    pub(super) scroll_offset: usize,
    /// Rows of the replicas above the visible ones.
    pub(super) replica_scroll_offset: usize,
    /// The index of the volume, below `volume_count`.
    pub(super) volume_index: usize,
    volume_count: usize,
    /// The panel's rows at the last redraw.
    panel_rows: PanelRows,
}

/// Row counts of the panel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PanelRows {
    /// All rows.
    pub(super) total: usize,
    /// Rows that fit on the screen.
    pub(super) visible: usize,
}

impl PanelRows {
    fn max_scroll_offset(self) -> usize {
        self.total.saturating_sub(self.visible)
    }
}

impl DisplayState {
    pub(super) fn new(interval: Duration, volumes: usize) -> Self {
        Self {
            interval,
            is_paused: false,
            is_help_shown: false,
            panel: Panel::Both,
            order: SortOrder::Configured,
            scroll_offset: 0,
            replica_scroll_offset: 0,
            volume_index: 0,
            volume_count: volumes,
            panel_rows: PanelRows::default(),
        }
    }

    /// Records the row counts of the last redraw.
    pub(super) fn set_panel_rows(&mut self, rows: PanelRows) {
        self.panel_rows = rows;
        self.scroll_offset = self.scroll_offset.min(rows.max_scroll_offset());
    }

    /// Applies a key press.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Action {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = self.panel_rows.visible.max(1);
        match key.code {
            KeyCode::Char('c') if ctrl => return Action::Quit,
            // Any key closes the help, and does nothing else.
            _ if self.is_help_shown => self.is_help_shown = false,
            KeyCode::Char('q') | KeyCode::F(10) | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.is_help_shown = true,
            KeyCode::Char(' ' | 'Z') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') | KeyCode::F(6) => self.order = self.order.next(),
            KeyCode::Char('f') => self.toggle_panel(Panel::Files),
            KeyCode::Char('r') => self.toggle_panel(Panel::Readers),
            KeyCode::Tab => {
                self.panel = match self.panel {
                    Panel::Both => Panel::Files,
                    Panel::Files => Panel::Readers,
                    Panel::Readers => Panel::Both,
                };
                self.scroll_offset = 0;
            }
            KeyCode::Char('+') => return self.scale_interval(2.0),
            KeyCode::Char('-') => return self.scale_interval(0.5),
            KeyCode::Char('v') | KeyCode::Right if self.volume_count > 1 => {
                self.volume_index = (self.volume_index + 1) % self.volume_count;
                return Action::SwitchVolume;
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(page as isize),
            KeyCode::PageUp => self.scroll(-(page as isize)),
            KeyCode::Home => self.scroll_offset = 0,
            KeyCode::End => self.scroll(self.panel_rows.total as isize),
            KeyCode::Char(']') => self.replica_scroll_offset += 1,
            KeyCode::Char('[') => {
                self.replica_scroll_offset = self.replica_scroll_offset.saturating_sub(1);
            }
            _ => {}
        }
        Action::None
    }

    fn toggle_panel(&mut self, panel: Panel) {
        self.panel = if self.panel == panel { Panel::Both } else { panel };
        self.scroll_offset = 0;
    }

    fn scroll(&mut self, by: isize) {
        let most = self.panel_rows.max_scroll_offset();
        self.scroll_offset = self.scroll_offset.saturating_add_signed(by).min(most);
    }

    fn scale_interval(&mut self, factor: f64) -> Action {
        self.interval = self.interval.mul_f64(factor).clamp(MIN_INTERVAL, MAX_INTERVAL);
        Action::SetInterval
    }
}

/// The lines of the help.
pub(super) const HELP: &[(&str, &str)] = &[
    ("q Esc F10", "quit"),
    ("space Z", "pause, resume"),
    ("+ -", "longer, shorter interval"),
    ("s F6", "sort replicas: config, MiB/s, % est., p99, health"),
    ("f r Tab", "files, readers, or both"),
    ("arrows PgUp PgDn", "scroll files or readers"),
    ("[ ]", "scroll replicas"),
    ("v", "next volume"),
    ("", ""),
    ("READ MiB/s", "bytes that the replica delivered"),
    ("SHARE", "its share of the bytes that all replicas delivered"),
    ("EST. BW MiB/s", "bandwidth that the scheduler estimates"),
    ("% OF EST. BW", "READ divided by EST. BW"),
    ("IN-FLIGHT/LIMIT", "bytes requested, not delivered; one segment may exceed it"),
    ("READ P50/P99", "latency of its reads"),
    ("ERR+SLOW/s", "failed calls plus reads hedged because it was slow"),
    ("HUNG THREADS", "threads stuck inside one call"),
    ("HISTORY", "READ of the last intervals; a full bar is EST. BW"),
    ("readahead hits", "reads that found all bytes in the daemon's memory"),
    ("duplicate reads", "bytes that another replica had already delivered"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn press(shown: &mut DisplayState, code: KeyCode) -> Action {
        shown.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_quit_pause_and_switch() {
        let mut shown = DisplayState::new(Duration::from_secs(1), 2);
        assert_eq!(press(&mut shown, KeyCode::Char(' ')), Action::None);
        assert!(shown.is_paused);
        assert_eq!(press(&mut shown, KeyCode::Char('v')), Action::SwitchVolume);
        assert_eq!(shown.volume_index, 1);
        assert_eq!(press(&mut shown, KeyCode::Char('?')), Action::None);
        assert_eq!(press(&mut shown, KeyCode::Char('q')), Action::None, "closes the help first");
        assert_eq!(press(&mut shown, KeyCode::Char('q')), Action::Quit);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(shown.handle_key(ctrl_c), Action::Quit);
    }

    #[test]
    fn the_interval_stays_within_its_bounds() {
        let mut shown = DisplayState::new(Duration::from_secs(1), 1);
        (0..20)
            .for_each(|_| assert_eq!(press(&mut shown, KeyCode::Char('+')), Action::SetInterval));
        assert_eq!(shown.interval, MAX_INTERVAL);
        (0..20)
            .for_each(|_| assert_eq!(press(&mut shown, KeyCode::Char('-')), Action::SetInterval));
        assert_eq!(shown.interval, MIN_INTERVAL);
    }

    #[test]
    fn scrolling_stops_at_the_last_row() {
        let mut shown = DisplayState::new(Duration::from_secs(1), 1);
        shown.set_panel_rows(PanelRows { total: 10, visible: 4 });
        press(&mut shown, KeyCode::Up);
        assert_eq!(shown.scroll_offset, 0);
        press(&mut shown, KeyCode::End);
        assert_eq!(shown.scroll_offset, 6);
        shown.set_panel_rows(PanelRows { total: 5, visible: 4 });
        assert_eq!(shown.scroll_offset, 1);
    }
}
