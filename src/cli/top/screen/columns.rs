//! Which columns there is room for, and text cut to them.

use crate::cli::top::people::{micros, often, percent, short};
use crate::cli::top::rates::ReplicaRow;
use crate::scheduler::health::HealthState;

/// The fewest columns in which the past is worth drawing.
pub(super) const PAST: usize = 9;

/// A column of the replicas' table.
pub(super) struct Column {
    title: &'static str,
    pub(super) width: usize,
    is_right: bool,
    pub(super) is_health: bool,
    /// The lower, the sooner it is there.
    rank: u8,
    pub(super) cell: fn(&ReplicaRow) -> String,
}

const fn number(
    title: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&ReplicaRow) -> String,
) -> Column {
    Column { title, width, is_right: true, is_health: false, rank, cell }
}

/// Those that there is room for in `width`, in their order; names are as long as
/// `longest`.
pub(super) fn of_replicas(longest: usize, width: usize) -> Vec<Column> {
    let text =
        |title, width, rank, cell| Column { is_right: false, ..number(title, width, rank, cell) };
    let health =
        Column { is_health: true, ..text("HEALTH", 7, 1, |row| health(row.health).into()) };
    let flight =
        |row: &ReplicaRow| format!("{}/{}", short(row.in_flight), short(row.in_flight_cap));
    let mut columns = vec![
        text("REPLICA", longest.clamp(7, 20), 0, |row| row.name.clone()),
        text("NODE", 16, 11, |row| row.node.clone()),
        health,
        number("NOW/s", 7, 2, |row| short(row.bytes_per_second)),
        number("SHARE", 5, 3, |row| percent(row.share)),
        number("LOAD", 5, 4, |row| percent(row.load)),
        text("", 12, 12, |row| format!("[{}]", bar(row.load, 10))),
        number("EXPECTED", 8, 9, |row| short(row.expected)),
        number("IN FLIGHT", 11, 7, flight),
        number("P50", 7, 6, |row| time(row.p50_us)),
        number("P99", 7, 5, |row| time(row.p99_us)),
        number("BAD/s", 5, 8, |row| often(row.errors_per_second + row.late_per_second)),
        number("STUCK", 5, 10, |row| row.stuck.to_string()),
    ];
    let mut room = width.saturating_sub(PAST);
    let mut ranked: Vec<(u8, usize)> = columns.iter().map(|c| (c.rank, c.width + 1)).collect();
    ranked.sort_unstable();
    let mut last = None;
    for (rank, width) in ranked {
        let Some(left) = room.checked_sub(width) else { break };
        (room, last) = (left, Some(rank));
    }
    columns.retain(|column| last.is_some_and(|last| column.rank <= last));
    columns
}

/// A replica that has read nothing has no times.
fn time(us: u64) -> String {
    if us == 0 { "-".to_owned() } else { micros(us) }
}

fn health(health: HealthState) -> &'static str {
    match health {
        HealthState::Healthy => "healthy",
        HealthState::Suspect => "suspect",
        HealthState::Ejected => "EJECTED",
        HealthState::Probing => "probing",
        HealthState::Absent => "ABSENT",
    }
}

/// The columns' names, each with a blank behind it.
pub(super) fn titles(columns: &[Column]) -> String {
    columns.iter().map(|column| fit(column.title, column) + " ").collect()
}

/// `text` as wide as its column.
pub(super) fn fit(text: &str, column: &Column) -> String {
    let (text, width) = (cut(text, column.width), column.width);
    if column.is_right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// The beginning of `text`, with a mark where it goes on.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// The end of a path, which says more; control characters would move the cursor.
pub(super) fn cut_path(path: &str, width: usize) -> String {
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let count = path.chars().count();
    if count <= width {
        return path;
    }
    std::iter::once('~').chain(path.chars().skip(count - width.saturating_sub(1))).collect()
}

/// "#####     ", for a part of 1.
pub(super) fn bar(part: f64, width: usize) -> String {
    let full = ((part * width as f64).round() as usize).min(width);
    format!("{:<width$}", "#".repeat(full))
}

/// "0.31%": of what should be nearly nothing.
pub(super) fn fine_percent(part: f64) -> String {
    format!("{:.2}%", part * 100.0)
}
