//! Chooses the columns that fit, and truncates text to their widths.

use crate::cli::top::delta::ReplicaRow;
use crate::format::{format_frequency, format_micros_short, format_percent, to_mib};
use crate::replicas::health::HealthState;

/// The narrowest history that is drawn.
pub(super) const MIN_HISTORY_WIDTH: usize = 10;

/// A column of the replicas' table.
pub(super) struct Column {
    /// The two lines of its title.
    title: [&'static str; 2],
    pub(super) width: usize,
    is_right_aligned: bool,
    pub(super) is_health: bool,
    /// Columns with lower ranks are shown first if not all fit.
    rank: u8,
    pub(super) cell: fn(&ReplicaRow) -> String,
}

const fn number_column(
    title: [&'static str; 2],
    width: usize,
    rank: u8,
    cell: fn(&ReplicaRow) -> String,
) -> Column {
    Column { title, width, is_right_aligned: true, is_health: false, rank, cell }
}

/// The columns for these replicas that fit into `width`, in their order.
pub(super) fn visible_columns(replicas: &[ReplicaRow], width: usize) -> Vec<Column> {
    let longest = replicas.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    // A wide screen has room for whole names.
    let most = if width >= 120 { 32 } else { 20 };
    let has_nodes = replicas.iter().any(|row| row.node != row.name);
    let text = |title, width, rank, cell| Column {
        is_right_aligned: false,
        ..number_column(["", title], width, rank, cell)
    };
    let health =
        Column { is_health: true, ..text("HEALTH", 7, 1, |row| health_label(row.health).into()) };
    let flight = |row: &ReplicaRow| {
        format!("{}/{}", format_mib_short(row.in_flight), format_mib_short(row.in_flight_limit))
    };
    let latency = |row: &ReplicaRow| match row.p99_us {
        None => format_latency(None),
        _ => format!("{}/{}", format_latency(row.p50_us), format_latency(row.p99_us)),
    };
    let mut columns = vec![
        text("REPLICA", longest.clamp(7, most), 0, |row| row.name.clone()),
        text("NODE", 16, 10, |row| row.node.clone()),
        health,
        number_column(["READ", "MiB/s"], 7, 2, |row| format_mib(row.bytes_per_second)),
        number_column(["", "SHARE"], 5, 3, |row| format_percent(row.share)),
        number_column(["% OF", "EST. BW"], 7, 4, |row| {
            row.estimated_bandwidth.map_or("-".to_owned(), |_| format_percent(row.estimate_ratio))
        }),
        text("", 12, 11, |row| format!("[{}]", gauge_bar(row.estimate_ratio, 10))),
        number_column(["EST. BW", "MiB/s"], 7, 8, |row| {
            row.estimated_bandwidth.map_or("-".to_owned(), format_mib)
        }),
        number_column(["IN-FLIGHT/", "LIMIT MiB"], 10, 7, flight),
        number_column(["READ", "P50/P99"], 13, 6, latency),
        number_column(["ERR+", "SLOW/s"], 6, 5, |row| {
            format_frequency(row.errors_per_second + row.slow_per_second)
        }),
        number_column(["HUNG", "THREADS"], 7, 9, |row| row.hung_threads.to_string()),
    ];
    columns.retain(|column| has_nodes || column.title[1] != "NODE");
    let mut room = width;
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

/// "0.25", "98.2": bytes as MiB, for a column whose title has the unit.
pub(super) fn format_mib(bytes: u64) -> String {
    let mib = to_mib(bytes);
    if 0.0 < mib && mib < 0.995 { format!("{mib:.2}") } else { format!("{mib:.1}") }
}

/// "410us", "12.4ms"; "-" without reads.
pub(super) fn format_latency(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), format_micros_short)
}

/// "4.1", "128": the same for a narrow column.
fn format_mib_short(bytes: u64) -> String {
    let mib = to_mib(bytes);
    if mib < 99.95 { format!("{mib:.1}") } else { format!("{mib:.0}") }
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

/// The two lines of the columns' titles, with a blank after each title.
pub(super) fn titles(columns: &[Column]) -> [String; 2] {
    [0, 1].map(|line| {
        columns.iter().map(|column| pad_to_column(column.title[line], column) + " ").collect()
    })
}

/// `text` padded or truncated to the width of its column.
pub(super) fn pad_to_column(text: &str, column: &Column) -> String {
    let width = column.width;
    let text = truncate(text, width);
    if column.is_right_aligned { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// The beginning of `text`, with a `~` at the end if it was truncated.
pub(super) fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// The end of a path, which differs more between files than its beginning. Control characters
/// would move the cursor, so they are replaced.
pub(super) fn truncate_path(path: &str, width: usize) -> String {
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let count = path.chars().count();
    if count <= width {
        return path;
    }
    std::iter::once('~').chain(path.chars().skip(count - width.saturating_sub(1))).collect()
}

/// "#####     " for 0.5.
pub(super) fn gauge_bar(part: f64, width: usize) -> String {
    let full = ((part * width as f64).round() as usize).min(width);
    format!("{:<width$}", "#".repeat(full))
}
