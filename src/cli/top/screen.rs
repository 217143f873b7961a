//! The screen: lines of text for a width and a height, drawn or printed.
//!
//! Line breaks depend on the size of the screen and on the numbers of replicas, files and readers,
//! not on the values. So labels stay in their places between two redraws.

mod columns;

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::delta::{FileRow, ReaderRow, ReplicaRow, Total, View};
use super::keys::{DisplayState, HELP, Panel, PanelRows, SortOrder};
use crate::cli::{color, printable};
use crate::format::{
    format_bytes, format_count, format_frequency, format_mib_rate, format_percent,
    format_percent_precise,
};
use crate::replicas::health::HealthState;
use columns::{Column, format_mib, pad_to_column, truncate};

/// The smallest screen that is drawn.
pub(super) const MIN_WIDTH: u16 = 60;
const MIN_HEIGHT: u16 = 10;

/// On a lower screen each total takes one line, and its less important part is left out.
const MIN_TALL_HEIGHT: u16 = 20;

/// On a screen of this width each total takes one line: 27 columns for its label and its value, and
/// two parts of at most 51 columns.
const MIN_WIDE_WIDTH: usize = 130;

/// The bandwidths kept for each replica: at most one for each column of the widest terminals.
const HISTORY_LENGTH: usize = 512;

/// The most files, and the most readers, that `--once` prints.
const MAX_PRINTED_ROWS: usize = 10;

/// The bandwidth of each replica in the last intervals.
#[derive(Default)]
pub(super) struct History(HashMap<String, VecDeque<u64>>);

impl History {
    pub(super) fn add(&mut self, view: &View) {
        for row in &view.replicas {
            let past = self.0.entry(row.name.clone()).or_default();
            if past.len() == HISTORY_LENGTH {
                past.pop_front();
            }
            past.push_back(row.bytes_per_second);
        }
    }

    /// The last `width` intervals as bars. A full bar is `most`, or the highest value if that is
    /// larger.
    fn sparkline(&self, name: &str, most: u64, width: usize) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let Some(past) = self.0.get(name) else { return String::new() };
        let most = past.iter().copied().max().unwrap_or(0).max(most).max(1);
        let bar = |value: &u64| match value {
            0 => ' ',
            value => BARS[((*value as f64 / most as f64 * 8.0).ceil() as usize).clamp(1, 8) - 1],
        };
        past.iter().skip(past.len().saturating_sub(width)).map(bar).collect()
    }
}

/// Everything that the screen depends on.
pub(super) struct Screen<'a> {
    pub(super) view: Option<&'a View>,
    pub(super) history: &'a History,
    pub(super) display: &'a DisplayState,
    /// Time since the daemon's last answer.
    pub(super) silent_for: Duration,
    /// The error of the last sample, if it failed.
    pub(super) last_error: Option<&'a io::Error>,
}

/// The lower part of the screen.
struct DrawnPanel {
    lines: Vec<Line<'static>>,
    rows: PanelRows,
}

impl Screen<'_> {
    /// Draws the screen; returns the row counts of the lower part.
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer) -> PanelRows {
        if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
            let text = format!("terminal too small: needs {MIN_WIDTH}x{MIN_HEIGHT}");
            Paragraph::new(text).render(area, buffer);
            return PanelRows::default();
        }
        let Some(view) = self.view else {
            let text = match self.last_error {
                Some(error) => format!("the daemon does not answer: {error}"),
                None => "waiting for the first interval ...".to_owned(),
            };
            Paragraph::new(text).render(area, buffer);
            return PanelRows::default();
        };
        let width = usize::from(area.width);
        let is_tall = area.height >= MIN_TALL_HEIGHT;
        let mut lines = vec![self.title_line(view, width)];
        lines.extend(total_lines(view, width, is_tall));
        if is_tall {
            lines.push(Line::default());
        }
        let left = usize::from(area.height).saturating_sub(lines.len() + 1);
        lines.extend(self.replica_lines(view, width, left));
        let left = usize::from(area.height).saturating_sub(lines.len() + 1);
        let panel = self.panel(view, width, left);
        lines.extend(panel.lines);
        lines.truncate(usize::from(area.height) - 1);
        for (y, line) in (area.y..).zip(&lines) {
            buffer.set_line(area.x, y, line, area.width);
        }
        buffer.set_line(area.x, area.bottom() - 1, &self.footer_line(), area.width);
        if self.display.is_help_shown {
            draw_help(area, buffer);
        }
        panel.rows
    }

    fn title_line(&self, view: &View, width: usize) -> Line<'static> {
        let up = humantime::format_duration(Duration::from_secs(
            view.time_s.seconds_since(view.start_time_s),
        ))
        .to_string();
        let up: Vec<&str> = up.split(' ').take(2).collect();
        let left = format!(
            "fanfs top  {} at {}",
            view.volume,
            printable(&view.mount_point.to_string_lossy())
        );
        let silent = self.silent_for.as_secs() >= 3 + self.display.interval.as_secs();
        let state = match (self.last_error, silent, self.display.is_paused) {
            (Some(_), ..) | (_, true, _) => {
                format!("NO ANSWER for {} s", self.silent_for.as_secs())
            }
            (.., true) => "PAUSED".to_owned(),
            _ => format!("up {}", up.join(" ")),
        };
        let right = format!("{state}  pid {}  fanfs {}", view.pid, view.version);
        let room = width.saturating_sub(right.chars().count() + 1);
        let text = format!("{:<room$} {right}", truncate(&left, room));
        Line::styled(text, Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD))
    }

    /// The replicas' table, and a line below it. `left` is the number of lines for this table and
    /// for the panel.
    fn replica_lines(&self, view: &View, width: usize, left: usize) -> Vec<Line<'static>> {
        let room = width.saturating_sub(columns::MIN_HISTORY_WIDTH);
        let columns = columns::visible_columns(&view.replicas, room);
        let taken: usize = columns.iter().map(|column| column.width + 1).sum();
        let past = width.saturating_sub(taken);
        let [mut above, mut title] = columns::titles(&columns);
        if past >= columns::MIN_HISTORY_WIDTH {
            let every = self.display.interval.as_secs_f64();
            above.push_str("HISTORY");
            title.push_str(&truncate(&format!("({} x {every}s)", past - 1), past));
        }
        let above = Line::styled(above, Style::new().add_modifier(Modifier::BOLD));
        let mut lines = vec![above, heading(title, width)];
        let mut rows: Vec<&ReplicaRow> = view.replicas.iter().collect();
        sort_replicas(&mut rows, self.display.order);
        // The replicas get half of the lines, and those that the panel does not need.
        let left = left.saturating_sub(lines.len() + 1);
        let most = (left / 2).max(left.saturating_sub(self.panel_height(view))).max(3);
        let from = self.display.replica_scroll_offset.min(rows.len().saturating_sub(most));
        for row in rows.iter().skip(from).take(most) {
            let mut line = replica_line(row, &columns);
            if past >= columns::MIN_HISTORY_WIDTH {
                line.push_span(self.history.sparkline(
                    &row.name,
                    row.estimated_bandwidth.unwrap_or(0),
                    past - 1,
                ));
            }
            lines.push(line);
        }
        let hidden = range_title(" replicas", rows.len(), from, most);
        lines.push(match rows.len() > most {
            true => Line::raw(format!("{hidden}; [ ] scroll")),
            false => Line::default(),
        });
        lines
    }

    /// The lines that the panel takes if it shows all its rows.
    fn panel_height(&self, view: &View) -> usize {
        let files = view.files.len().max(1) + 1;
        let readers = view.readers.len() + 1;
        match self.display.panel {
            Panel::Files => files,
            Panel::Readers => readers,
            Panel::Both => files + 1 + readers,
        }
    }

    fn panel(&self, view: &View, width: usize, left: usize) -> DrawnPanel {
        let files = view.files.len();
        let readers = view.readers.len();
        let seen = left.saturating_sub(1);
        let scrolled = self.display.scroll_offset;
        match self.display.panel {
            Panel::Files => DrawnPanel {
                lines: file_lines(&view.files, width, scrolled, seen),
                rows: PanelRows { total: files, visible: seen },
            },
            Panel::Readers => DrawnPanel {
                lines: reader_lines(&view.readers, width, scrolled, seen),
                rows: PanelRows { total: readers, visible: seen },
            },
            Panel::Both => {
                // Two headings and a blank line.
                let seen = left.saturating_sub(3);
                let spare = seen.saturating_sub(files.max(1));
                let below = readers.clamp(1, (seen / 2).max(spare).max(1));
                let above = seen.saturating_sub(below);
                let mut lines = file_lines(&view.files, width, scrolled, above);
                lines.push(Line::default());
                lines.extend(reader_lines(&view.readers, width, 0, below));
                DrawnPanel { lines, rows: PanelRows { total: files, visible: above } }
            }
        }
    }

    fn footer_line(&self) -> Line<'static> {
        let every = self.display.interval.as_secs_f64();
        let order = self.display.order.name();
        Line::raw(format!(
            " q quit  ? help  space pause  tab files/readers  s sort: {order}  +- every {every}s"
        ))
    }
}

fn heading(text: String, width: usize) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    Line::styled(format!("{text:<width$}"), style)
}

/// A label, its value, and more values in two parts.
struct TotalLine {
    label: &'static str,
    value: String,
    first: String,
    /// The less important part.
    second: String,
}

impl TotalLine {
    fn lines(&self, width: usize, is_tall: bool) -> Vec<Line<'static>> {
        let Self { label, value, first, second } = self;
        let line = format!("{label:<12} {value:>12}  {first}");
        let lines = match second.is_empty() {
            false if width >= MIN_WIDE_WIDTH => vec![format!("{line}, {second}")],
            false if is_tall => vec![line, format!("{:27}{second}", "")],
            _ => vec![line],
        };
        lines.iter().map(|line| Line::raw(truncate(line, width))).collect()
    }
}

fn total_lines(view: &View, width: usize, is_tall: bool) -> Vec<Line<'static>> {
    let total = &view.total;
    let queue = TotalLine {
        label: "queue",
        value: format_count(total.reads_pending as u64, "read"),
        first: format!(
            "{}, {}, {} in flight",
            format_count(total.metadata_calls_pending as u64, "metadata call"),
            format_count(total.segments_waiting as u64, "segment"),
            total.segments_in_flight
        ),
        second: String::new(),
    };
    let used = total.buffer_used as f64 / total.buffer_budget.max(1) as f64;
    let buffers = TotalLine {
        label: "buffers",
        value: format_bytes(total.buffer_used),
        first: format!(
            "of {} [{}], {}",
            format_bytes(total.buffer_budget),
            columns::gauge_bar(used, 20),
            format_count(total.handles as u64, "open handle")
        ),
        second: String::new(),
    };
    let all = [app_read_line(total), replica_read_line(total), queue, buffers];
    all.iter().flat_map(|line| line.lines(width, is_tall)).collect()
}

fn app_read_line(total: &Total) -> TotalLine {
    let mut first = format!(
        "{} reads/s, average {}, readahead hits {}",
        format_frequency(total.reads_per_second),
        format_bytes(total.average_read_bytes),
        format_percent(total.readahead_hit_ratio)
    );
    if total.errors_per_second > 0.0 {
        first.insert_str(0, &format!("ERRORS {}/s, ", format_frequency(total.errors_per_second)));
    }
    let write = match total.written_bytes_per_second {
        0 => String::new(),
        rate => format!(", app write {}", format_mib_rate(rate as f64)),
    };
    TotalLine {
        label: "app read",
        value: format_mib_rate(total.bytes_per_second as f64),
        first,
        second: format!(
            "p50 {}, p99 {}, metadata {}/s{write}",
            columns::format_latency(total.p50_us),
            columns::format_latency(total.p99_us),
            format_frequency(total.metadata_per_second)
        ),
    }
}

fn replica_read_line(total: &Total) -> TotalLine {
    let second = format!("duplicate reads {}", format_percent_precise(total.duplicate_ratio));
    TotalLine {
        label: "replica read",
        value: format_mib_rate(total.replica_bytes_per_second as f64),
        first: format!(
            "hedged reads {}/s ({} answered first), retries {}/s",
            format_frequency(total.hedges_per_second),
            format_percent(total.hedges_won_ratio),
            format_frequency(total.retries_per_second)
        ),
        second,
    }
}

/// The style of a health state. Bold and reversed text is visible on any background.
fn health_style(health: HealthState) -> Style {
    let style = match health {
        HealthState::Healthy => return Style::new(),
        HealthState::Suspect | HealthState::Probing => Style::new().add_modifier(Modifier::BOLD),
        HealthState::Ejected | HealthState::Absent => {
            Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
        }
    };
    match (color::is_enabled(), health) {
        (false, _) => style,
        (true, HealthState::Ejected | HealthState::Absent) => style.fg(Color::Red),
        (true, _) => style.fg(Color::Magenta),
    }
}

fn replica_line(row: &ReplicaRow, columns: &[Column]) -> Line<'static> {
    let mut line = Line::default();
    for column in columns {
        let text = (column.cell)(row);
        let style = if column.is_health { health_style(row.health) } else { Style::new() };
        line.push_span(Span::styled(pad_to_column(&text, column), style));
        line.push_span(" ");
    }
    line
}

fn sort_replicas(rows: &mut [&ReplicaRow], order: SortOrder) {
    let rank = |health| match health {
        HealthState::Absent => 0,
        HealthState::Ejected => 1,
        HealthState::Probing => 2,
        HealthState::Suspect => 3,
        HealthState::Healthy => 4,
    };
    match order {
        SortOrder::Configured => {}
        SortOrder::Rate => rows.sort_by_key(|row| Reverse(row.bytes_per_second)),
        SortOrder::Load => rows.sort_by(|a, b| b.estimate_ratio.total_cmp(&a.estimate_ratio)),
        SortOrder::Slowest => rows.sort_by_key(|row| Reverse(row.p99_us)),
        SortOrder::Health => rows.sort_by_key(|row| rank(row.health)),
    }
}

/// The title of a table, with the range of the visible rows if some are hidden.
fn range_title(title: &str, count: usize, from: usize, seen: usize) -> String {
    if count <= seen {
        return title.to_owned();
    }
    format!("{title} {}-{} of {count}", from + 1, (from + seen).min(count))
}

fn file_lines(files: &[FileRow], width: usize, from: usize, seen: usize) -> Vec<Line<'static>> {
    let readers = (width / 4).clamp(16, 40);
    let path = width.saturating_sub(readers + 11 + 9 + 5 + 2);
    let title = range_title("FILES", files.len(), from, seen);
    let title = truncate(&title, path);
    let mut lines = vec![heading(
        format!("{title:<path$} {:>10} {:>8} {:>4}  READERS", "READ MiB/s", "READS/s", "OPEN"),
        width,
    )];
    for file in files.iter().skip(from).take(seen) {
        lines.push(Line::raw(format!(
            "{:<path$} {:>10} {:>8} {:>4}  {}",
            columns::truncate_path(&file.path, path),
            format_mib(file.bytes_per_second),
            format_frequency(file.reads_per_second),
            file.handles,
            truncate(&file.readers.join(", "), readers)
        )));
    }
    if files.is_empty() && seen > 0 {
        let text = "(no reads reached fanfs; it does not see reads from the page cache)";
        lines.push(Line::raw(truncate(text, width)));
    }
    lines
}

/// The width of "READERS" with the range of the visible rows.
const READERS_WIDTH: usize = 16;

fn reader_lines(
    readers: &[ReaderRow],
    width: usize,
    from: usize,
    seen: usize,
) -> Vec<Line<'static>> {
    let range = range_title("READERS", readers.len(), from, seen);
    let title = format!(
        "{range:<READERS_WIDTH$} {:>8} {:<15} {:>10} {:>8} {:>6}",
        "PID", "COMMAND", "READ MiB/s", "READS/s", "FILES"
    );
    let mut lines = vec![heading(truncate(&title, width), width)];
    for reader in readers.iter().skip(from).take(seen) {
        lines.push(Line::raw(format!(
            "{:READERS_WIDTH$} {:>8} {:<15} {:>10} {:>8} {:>6}",
            "",
            reader.pid,
            truncate(&reader.command, 15),
            format_mib(reader.bytes_per_second),
            format_frequency(reader.reads_per_second),
            reader.files
        )));
    }
    lines
}

fn draw_help(area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, text)| {
            Line::from(vec![
                Span::styled(format!(" {key:<17}"), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(*text),
            ])
        })
        .collect();
    // On a narrow screen no strip of it stays visible beside the help.
    let width = if area.width < 100 { area.width } else { 78 };
    let height = area.height.min(lines.len() as u16 + 2);
    let at = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(at, buffer);
    let block = Block::bordered().title(" fanfs top: keys and columns; any key closes ");
    Paragraph::new(lines).block(block).render(at, buffer);
}

/// One interval as text.
pub(super) fn render_text(view: &View, width: u16) -> String {
    let width = usize::from(width);
    let screen = Screen {
        view: Some(view),
        history: &History::default(),
        display: &DisplayState::new(Duration::from_secs(1), 1),
        silent_for: Duration::ZERO,
        last_error: None,
    };
    let mut lines = vec![screen.title_line(view, width)];
    lines.extend(total_lines(view, width, true));
    lines.push(Line::default());
    let columns = columns::visible_columns(&view.replicas, width);
    lines.extend(columns::titles(&columns).map(Line::raw));
    lines.extend(view.replicas.iter().map(|row| replica_line(row, &columns)));
    lines.push(Line::default());
    lines.extend(file_lines(&view.files, width, 0, MAX_PRINTED_ROWS));
    lines.push(Line::default());
    lines.extend(reader_lines(&view.readers, width, 0, MAX_PRINTED_ROWS));
    let mut text = String::new();
    for line in lines {
        text.push_str(line.to_string().trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
