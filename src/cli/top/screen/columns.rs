//! Which columns there is room for, and text cut to them.

use crate::cli::top::delta::ReplicaRow;
use crate::format::{format_bytes_short, format_frequency, format_micros_short, format_percent};
use crate::replicas::health::HealthState;

/// The fewest columns in which the past is worth drawing.
pub(super) const MIN_HISTORY_WIDTH: usize = 9;

/// A column of the replicas' table.
pub(super) struct Column {
    title: &'static str,
    pub(super) width: usize,
    is_right_aligned: bool,
    pub(super) is_health: bool,
    /// The lower, the sooner it is there.
    rank: u8,
    pub(super) cell: fn(&ReplicaRow) -> String,
}

const fn number_column(
    title: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&ReplicaRow) -> String,
) -> Column {
    Column { title, width, is_right_aligned: true, is_health: false, rank, cell }
}

/// Those that there is room for in `width`, in their order; names are as long as
/// `longest`.
pub(super) fn visible_columns(longest: usize, width: usize) -> Vec<Column> {
    let text = |title, width, rank, cell| Column {
        is_right_aligned: false,
        ..number_column(title, width, rank, cell)
    };
    let health =
        Column { is_health: true, ..text("HEALTH", 7, 1, |row| health_label(row.health).into()) };
    let flight = |row: &ReplicaRow| {
        format!("{}/{}", format_bytes_short(row.in_flight), format_bytes_short(row.in_flight_cap))
    };
    let mut columns = vec![
        text("REPLICA", longest.clamp(7, 20), 0, |row| row.name.clone()),
        text("NODE", 16, 11, |row| row.node.clone()),
        health,
        number_column("NOW/s", 7, 2, |row| format_bytes_short(row.bytes_per_second)),
        number_column("SHARE", 5, 3, |row| format_percent(row.share)),
        number_column("LOAD", 5, 4, |row| format_percent(row.load)),
        text("", 12, 12, |row| format!("[{}]", gauge_bar(row.load, 10))),
        number_column("EXPECTED", 8, 9, |row| format_bytes_short(row.expected)),
        number_column("IN FLIGHT", 11, 7, flight),
        number_column("P50", 7, 6, |row| micros_or_dash(row.p50_us)),
        number_column("P99", 7, 5, |row| micros_or_dash(row.p99_us)),
        number_column("BAD/s", 5, 8, |row| {
            format_frequency(row.errors_per_second + row.late_per_second)
        }),
        number_column("STUCK", 5, 10, |row| row.stuck.to_string()),
    ];
    let mut room = width.saturating_sub(MIN_HISTORY_WIDTH);
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
fn micros_or_dash(us: u64) -> String {
    if us == 0 { "-".to_owned() } else { format_micros_short(us) }
}

fn health_label(health: HealthState) -> &'static str {
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
    columns.iter().map(|column| pad_to_column(column.title, column) + " ").collect()
}

/// `text` as wide as its column.
pub(super) fn pad_to_column(text: &str, column: &Column) -> String {
    let width = column.width;
    let text = truncate(text, width);
    if column.is_right_aligned { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// The beginning of `text`, with a mark where it goes on.
pub(super) fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// The end of a path, which says more; control characters would move the cursor.
pub(super) fn truncate_path(path: &str, width: usize) -> String {
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let count = path.chars().count();
    if count <= width {
        return path;
    }
    std::iter::once('~').chain(path.chars().skip(count - width.saturating_sub(1))).collect()
}

/// "#####     ", for a part of 1.
pub(super) fn gauge_bar(part: f64, width: usize) -> String {
    let full = ((part * width as f64).round() as usize).min(width);
    format!("{:<width$}", "#".repeat(full))
}
