//! The picture: lines for a width and a height, drawn or printed.

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

use super::delta::{FileRow, ReaderRow, ReplicaRow, View};
use super::keys::{DisplayState, HELP, Panel, PanelRows, SortOrder};
use crate::cli::{color, printable};
use crate::format::{
    format_bytes, format_bytes_short, format_frequency, format_micros_short, format_percent,
    format_percent_precise,
};
use crate::replicas::health::HealthState;
use columns::{Column, pad_to_column, truncate};

/// Fewer columns are too few to say anything.
pub(super) const MIN_WIDTH: u16 = 60;
const MIN_HEIGHT: u16 = 10;

/// Points of the past that are kept: the widest terminals' columns.
const HISTORY_LENGTH: usize = 512;

/// Files, and readers, that `--once` prints.
const MAX_PRINTED_ROWS: usize = 10;

/// What replicas delivered, interval by interval.
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

    /// The last `width` points, of `most` at most, as blocks of eight heights.
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

/// Everything that the picture depends on.
pub(super) struct Screen<'a> {
    pub(super) view: Option<&'a View>,
    pub(super) history: &'a History,
    pub(super) display: &'a DisplayState,
    /// For how long the daemon has not answered, and why.
    pub(super) silent_for: Duration,
    pub(super) last_error: Option<&'a io::Error>,
}

/// The lower part of the screen.
struct DrawnPanel {
    lines: Vec<Line<'static>>,
    rows: PanelRows,
}

impl Screen<'_> {
    /// Draws it; returns the lines of the lower part.
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer) -> PanelRows {
        if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
            let text = format!("too small: {MIN_WIDTH} columns and {MIN_HEIGHT} lines are needed");
            Paragraph::new(text).render(area, buffer);
            return PanelRows::default();
        }
        let Some(view) = self.view else {
            let text = match self.last_error {
                Some(error) => format!("the daemon does not answer: {error}"),
                None => "looking ...".to_owned(),
            };
            Paragraph::new(text).render(area, buffer);
            return PanelRows::default();
        };
        let width = usize::from(area.width);
        let mut lines = vec![self.title_line(view, width)];
        lines.extend(total_lines(view, width));
        lines.push(Line::default());
        let replicas = self.replica_lines(view, width, usize::from(area.height));
        lines.extend(replicas);
        lines.push(Line::default());
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
        let up = humantime::format_duration(Duration::from_secs(view.uptime_s)).to_string();
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
            (.., true) => "HELD".to_owned(),
            _ => format!("up {}", up.join(" ")),
        };
        let right = format!("{state}  pid {}  fanfs {}", view.pid, view.version);
        let room = width.saturating_sub(right.chars().count() + 1);
        let text = format!("{:<room$} {right}", truncate(&left, room));
        Line::styled(text, Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD))
    }

    fn replica_lines(&self, view: &View, width: usize, height: usize) -> Vec<Line<'static>> {
        let names = view.replicas.iter().map(|row| row.name.chars().count());
        let columns = columns::visible_columns(names.max().unwrap_or(0), width);
        let taken: usize = columns.iter().map(|column| column.width + 1).sum();
        let past = width.saturating_sub(taken);
        let every = humantime::format_duration(self.display.interval).to_string();
        let mut title = columns::titles(&columns);
        if past >= columns::MIN_HISTORY_WIDTH {
            title.push_str(&truncate(&format!("{} x {every}", past - 1), past));
        }
        let mut lines = vec![heading(title, width)];
        let mut rows: Vec<&ReplicaRow> = view.replicas.iter().collect();
        sort_replicas(&mut rows, self.display.order);
        // Half of what there is, for many of them.
        let most = (height.saturating_sub(8) / 2).max(3);
        let above = self.display.replica_scroll_offset.min(rows.len().saturating_sub(most));
        for row in rows.iter().skip(above).take(most) {
            let mut line = replica_line(row, &columns);
            if past >= columns::MIN_HISTORY_WIDTH {
                line.push_span(self.history.sparkline(&row.name, row.expected, past - 1));
            }
            lines.push(line);
        }
        lines
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
                let below = readers.clamp(1, (seen / 2).max(1));
                let above = seen.saturating_sub(below);
                let mut lines = file_lines(&view.files, width, scrolled, above);
                lines.resize(above + 1, Line::default());
                lines.push(Line::default());
                lines.extend(reader_lines(&view.readers, width, 0, below));
                DrawnPanel { lines, rows: PanelRows { total: files, visible: above } }
            }
        }
    }

    fn footer_line(&self) -> Line<'static> {
        let every = humantime::format_duration(self.display.interval);
        let order = self.display.order.name();
        Line::raw(format!(
            " q end  ? help  space hold  tab files/readers  s by {order}  +- every {every}"
        ))
    }
}

fn heading(text: String, width: usize) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    Line::styled(format!("{text:<width$}"), style)
}

fn total_lines(view: &View, width: usize) -> Vec<Line<'static>> {
    let total = &view.total;
    let mut given = format!(
        "given   {:>10}/s  {} reads/s of {}, hits {}, p50 {}, p99 {}",
        format_bytes(total.bytes_per_second),
        format_frequency(total.reads_per_second),
        format_bytes_short(total.block),
        format_percent(total.hit_ratio),
        format_micros_short(total.p50_us),
        format_micros_short(total.p99_us)
    );
    if total.errors_per_second > 0.0 {
        given.push_str(&format!(", FAILED {}/s", format_frequency(total.errors_per_second)));
    }
    if total.written_per_second > 0 {
        given.push_str(&format!(", written {}/s", format_bytes_short(total.written_per_second)));
    }
    let from = format!(
        "brought {:>10}/s  hedges {}/s ({} won), retries {}/s, twice {}",
        format_bytes(total.delivered_per_second),
        format_frequency(total.hedges_per_second),
        format_percent(total.hedges_won_ratio),
        format_frequency(total.retries_per_second),
        format_percent_precise(total.wasted_ratio)
    );
    let now = format!(
        "now     {:>10} open  waiting: {} reads, {} calls, {} segments; {} in flight",
        total.handles,
        total.requests,
        total.calls,
        total.segments_waiting,
        total.segments_in_flight
    );
    let used = total.buffer_used as f64 / total.buffer_budget.max(1) as f64;
    let memory = format!(
        "memory  {:>10} of {}  [{}]  {} metadata calls/s",
        format_bytes(total.buffer_used),
        format_bytes(total.buffer_budget),
        columns::gauge_bar(used, 20),
        format_frequency(total.metadata_per_second)
    );
    let line = |text: String| Line::raw(truncate(&text, width));
    vec![line(given), line(from), line(now), line(memory)]
}

/// The style of a state of health: bold and reversed are seen on any ground.
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
        SortOrder::Load => rows.sort_by(|a, b| b.load.total_cmp(&a.load)),
        SortOrder::Slowest => rows.sort_by_key(|row| Reverse(row.p99_us)),
        SortOrder::Health => rows.sort_by_key(|row| rank(row.health)),
    }
}

/// How many of all are seen, where not all are.
fn range_title(what: &str, count: usize, from: usize, seen: usize) -> String {
    if count <= seen {
        return what.to_owned();
    }
    format!("{what} {}-{} of {count}", from + 1, (from + seen).min(count))
}

fn file_lines(files: &[FileRow], width: usize, from: usize, seen: usize) -> Vec<Line<'static>> {
    let readers = (width / 4).clamp(16, 40);
    let path = width.saturating_sub(readers + 2 * 9 + 6);
    let title = range_title("FILES", files.len(), from, seen);
    let title = truncate(&title, path);
    let mut lines = vec![heading(
        format!("{title:<path$} {:>8} {:>8} {:>4}  READERS", "NOW/s", "READS/s", "OPEN"),
        width,
    )];
    for file in files.iter().skip(from).take(seen) {
        lines.push(Line::raw(format!(
            "{:<path$} {:>8} {:>8} {:>4}  {}",
            columns::truncate_path(&file.path, path),
            format_bytes_short(file.bytes_per_second),
            format_frequency(file.reads_per_second),
            file.handles,
            truncate(&file.readers.join(", "), readers)
        )));
    }
    if files.is_empty() && seen > 0 {
        lines.push(Line::raw("(no file is read; what the page cache has is not seen here)"));
    }
    lines
}

fn reader_lines(
    readers: &[ReaderRow],
    width: usize,
    from: usize,
    seen: usize,
) -> Vec<Line<'static>> {
    let title = range_title("READERS", readers.len(), from, seen);
    let title = format!("{title:<27} {:>8} {:>8} {:>6}", "NOW/s", "READS/s", "FILES");
    let mut lines = vec![heading(title, width)];
    for reader in readers.iter().skip(from).take(seen) {
        lines.push(Line::raw(format!(
            "{:>10} {:<16} {:>8} {:>8} {:>6}",
            reader.pid,
            truncate(&reader.command, 16),
            format_bytes_short(reader.bytes_per_second),
            format_frequency(reader.reads_per_second),
            reader.files
        )));
    }
    lines
}

fn draw_help(area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| {
            Line::from(vec![
                Span::styled(format!(" {key:<17}"), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(*what),
            ])
        })
        .collect();
    let width = area.width.min(72);
    let height = area.height.min(lines.len() as u16 + 2);
    let at = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(at, buffer);
    let block = Block::bordered().title(" fanfs top: keys and columns; any key goes back ");
    Paragraph::new(lines).block(block).render(at, buffer);
}

/// The same as text.
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
    lines.extend(total_lines(view, width));
    lines.push(Line::default());
    let names = view.replicas.iter().map(|row| row.name.chars().count());
    let columns = columns::visible_columns(names.max().unwrap_or(0), width);
    lines.push(Line::raw(columns::titles(&columns)));
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
