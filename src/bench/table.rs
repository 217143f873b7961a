//! The report as text for a terminal.

use std::fmt::Write as _;

use super::plan::Load;
use super::results::{Report, ResultRow, Spread};
use crate::format::{format_bytes_rounded, to_mib};

/// The label of a row.
pub fn row_label(row: &ResultRow) -> String {
    match (row.kind, row.replicas.len()) {
        ("alone", _) => format!("{} alone", row.replicas.join("")),
        ("sum", n) => format!("raw, {n} replicas"),
        (_, 1) => "fanfs, 1 replica".to_owned(),
        (_, n) => format!("fanfs, {n} replicas"),
    }
}

/// The column names. fio's columns appear only if there are fio figures.
pub fn header(report: &Report) -> Vec<&'static str> {
    let mut header = vec![
        "readers",
        "MiB/s",
        "min",
        "max",
        "of sum",
        "x one",
        "p50 ms",
        "p99 ms",
        "max ms",
        "daemon CPU",
        "reader CPU",
        "read GiB",
    ];
    if has_fio(report) {
        header.extend(["fio MiB/s", "of fio"]);
    }
    header
}

/// The figures of a row, in the header's order; `-` where there is none.
pub fn cells(row: &ResultRow, report: &Report) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
    let latency = row.latency_ms.as_ref();
    let rate = row.mib_per_second;
    let mut cells = vec![
        row.readers.to_string(),
        number(median(rate), 1),
        number(rate.map(|spread| spread.min), 1),
        number(rate.map(|spread| spread.max), 1),
        number(median(row.of_sum), 3),
        number(median(row.of_fastest), 2),
        number(latency.map(|latency| latency.p50), 2),
        number(latency.map(|latency| latency.p99), 2),
        number(latency.map(|latency| latency.max), 1),
        number(row.daemon_cpu_per_gib, 2),
        number(row.reader_cpu_per_gib, 2),
        number(Some(to_mib(row.bytes) / 1024.0), 2),
    ];
    if has_fio(report) {
        cells.extend([number(median(row.fio_mib_per_second), 1), number(median(row.of_fio), 3)]);
    }
    cells
}

/// The heading of a load.
pub fn load_heading(load: Load, report: &Report) -> String {
    let settings = &report.settings;
    match load {
        Load::Sequential => {
            format!("sequential, blocks of {}, one reader", format_bytes_rounded(settings.block))
        }
        Load::Random => format!(
            "random, blocks of {}, several readers, one read at a time each",
            format_bytes_rounded(settings.random_block)
        ),
        Load::Parallel => {
            format!(
                "parallel: several sequential readers, blocks of {}",
                format_bytes_rounded(settings.block)
            )
        }
    }
}

/// The lines above the table: what was measured, and how.
pub fn preamble(report: &Report) -> Vec<String> {
    let settings = &report.settings;
    let mut lines = vec![
        format!(
            "volume {}, file {} ({}{}); {} rounds, {} s a pass, seed {}; took {:.0} s",
            report.volume,
            report.file,
            format_bytes_rounded(report.file_bytes),
            if report.made { ", made for this and removed" } else { "" },
            settings.rounds,
            settings.seconds_per_pass,
            settings.seed,
            report.seconds
        ),
        "through fanfs: O_DIRECT on the mount, cache = \"direct\"; this machine's page cache of \
         the file is dropped before each pass"
            .to_owned(),
    ];
    for replica in &report.replicas {
        let how = match (&replica.failure, replica.raw_reads) {
            (Some(why), _) => format!("left out: {why}"),
            (None, Some("O_DIRECT")) => "raw reads with O_DIRECT".to_owned(),
            (None, _) => {
                "raw reads through the page cache, dropped before each pass (no O_DIRECT here)"
                    .to_owned()
            }
        };
        lines.push(format!("{} ({}): {how}", replica.name, replica.path));
    }
    lines
}

/// The explanation of the columns.
pub const LEGEND: &str = "MiB/s: median, least and largest of the rounds. of sum: of the raw rate \
of the same replicas at once, in the same round. x one: times the fastest of them alone. \
CPU: processor seconds for each GiB.";

fn has_fio(report: &Report) -> bool {
    report.rows.iter().any(|row| row.fio_mib_per_second.is_some())
}

/// The whole report as text.
pub fn render_text(report: &Report) -> String {
    let mut text = preamble(report).join("\n") + "\n";
    let names: Vec<String> = report.rows.iter().map(row_label).collect();
    let first = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let header = header(report);
    for load in Load::ALL {
        let rows: Vec<(&ResultRow, &String)> =
            report.rows.iter().zip(&names).filter(|(row, _)| row.load == load).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{}\n  {:first$}", load_heading(load, report), "");
        for name in &header {
            let _ = write!(text, "  {name:>width$}", width = name.len().max(7));
        }
        text.push('\n');
        for (row, name) in rows {
            let _ = write!(text, "  {name:first$}");
            for (cell, name) in cells(row, report).iter().zip(&header) {
                let _ = write!(text, "  {cell:>width$}", width = name.len().max(7));
            }
            text.push('\n');
            for failure in &row.failures {
                let _ = writeln!(text, "  {:first$}  failed: {failure}", "");
            }
        }
    }
    let _ = writeln!(text, "\n{LEGEND}");
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
