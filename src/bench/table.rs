//! The report as text for a terminal, and the columns that it shares with the HTML report.

use std::fmt::Write as _;

use super::plan::Load;
use super::results::{Report, ReportedReplica, ResultRow};
use crate::config::Escaped;
use crate::format::{format_bytes_rounded, format_names, to_mib, wrap_words};

/// The longest row label: 100 columns less the figures of the widest table.
const MAX_LABEL_CHARS: usize = 23;

/// The table in which the terminal shows a column. The HTML report has one table for all columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Panel {
    Main,
    /// Below the main table, if fio ran.
    Fio,
    /// Not in the terminal.
    HtmlOnly,
}

/// One column of figures.
pub struct Column {
    /// The heading over adjacent columns that share it: a quantity or a unit. May be empty.
    pub group: &'static str,
    /// The column's own heading.
    pub name: &'static str,
    panel: Panel,
    /// The least width of its figures, in characters.
    min_width: usize,
    /// The figure of a row; `None` where the row has none.
    figure: fn(&ResultRow) -> Option<String>,
}

impl Column {
    fn width(&self) -> usize {
        self.min_width.max(self.name.chars().count())
    }

    /// The figure of a row; `-` where there is none.
    pub fn cell(&self, row: &ResultRow) -> String {
        (self.figure)(row).unwrap_or_else(|| "-".to_owned())
    }
}

const fn column(
    panel: Panel,
    group: &'static str,
    name: &'static str,
    figure: fn(&ResultRow) -> Option<String>,
) -> Column {
    // The usual figures: "12345", "104.2".
    Column { group, name, panel, min_width: 5, figure }
}

const COLUMNS: [Column; 14] = [
    column(Panel::HtmlOnly, "", "readers", |row| Some(row.readers.to_string())),
    column(Panel::Main, "MiB/s", "median", |row| Some(rate(row.mib_per_second?.median))),
    column(Panel::Main, "MiB/s", "min", |row| Some(rate(row.mib_per_second?.min))),
    column(Panel::Main, "MiB/s", "max", |row| Some(rate(row.mib_per_second?.max))),
    column(Panel::Main, "", "efficiency", |row| Some(percent(row.of_sum?.median))),
    column(Panel::Main, "", "speedup", |row| Some(format!("{:.2}x", row.of_fastest?.median))),
    column(Panel::Main, "latency, ms", "p50", |row| Some(time(row.latency_ms.as_ref()?.p50))),
    column(Panel::Main, "latency, ms", "p99", |row| Some(time(row.latency_ms.as_ref()?.p99))),
    column(Panel::Main, "latency, ms", "max", |row| Some(time(row.latency_ms.as_ref()?.max))),
    column(Panel::Main, "CPU s/GiB", "daemon", |row| Some(time(row.daemon_cpu_per_gib?))),
    column(Panel::Main, "CPU s/GiB", "reader", |row| Some(time(row.reader_cpu_per_gib?))),
    column(Panel::HtmlOnly, "", "read GiB", |row| {
        Some(format!("{:.2}", to_mib(row.bytes) / 1024.0))
    }),
    column(Panel::Fio, "", "fio MiB/s", |row| Some(rate(row.fio_mib_per_second?.median))),
    column(Panel::Fio, "", "bench/fio", |row| Some(percent(row.of_fio?.median))),
];

fn rate(mib_per_second: f64) -> String {
    let digits = if mib_per_second < 999.95 { 1 } else { 0 };
    format!("{mib_per_second:.digits$}")
}

/// Milliseconds or seconds; the larger the value, the fewer decimals.
fn time(value: f64) -> String {
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// "97.2%", from 0.972.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// "1 reader", "3 readers".
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The columns of the HTML report. fio's columns appear only if there are fio figures.
pub fn columns(report: &Report) -> Vec<&'static Column> {
    COLUMNS.iter().filter(|column| column.panel != Panel::Fio || has_fio(report)).collect()
}

/// The columns, cut into runs that share a group heading. A column without one is alone.
pub fn groups<'a>(columns: &'a [&'static Column]) -> impl Iterator<Item = &'a [&'static Column]> {
    columns.chunk_by(|one, next| !one.group.is_empty() && one.group == next.group)
}

/// The label of a row.
pub fn row_label(row: &ResultRow) -> String {
    match row.kind {
        "alone" => format!("{} alone", row.replicas.join("")),
        "sum" => format!("raw, {}", count(row.replicas.len(), "replica")),
        _ => format!("fanfs, {}", count(row.replicas.len(), "replica")),
    }
}

/// The heading of a load.
pub fn load_heading(load: Load, report: &Report) -> String {
    let settings = &report.settings;
    let readers = count(settings.readers, "reader");
    let block = format_bytes_rounded(settings.block);
    match load {
        Load::Sequential => {
            format!("sequential: 1 reader (raw: 1 for each replica), {block} reads")
        }
        Load::Random => {
            format!("random: {readers}, {} reads", format_bytes_rounded(settings.random_block))
        }
        Load::Parallel => format!("parallel: {readers}, {block} sequential reads"),
    }
}

/// When, where, and by which version the report was measured.
pub fn origin(report: &Report) -> String {
    let date = report.date.replace('T', " ").replace('Z', " UTC");
    format!("{date}, host {}, {}, fanfs {}", report.host, report.kernel, report.version)
}

/// The lines above the table: the volume, the replicas and the method.
pub fn preamble(report: &Report) -> Vec<String> {
    let settings = &report.settings;
    let mut lines = vec![
        format!(
            "volume {}, file {} ({}{})",
            report.volume,
            report.file,
            format_bytes_rounded(report.file_bytes),
            if report.made { ", created for this run and removed" } else { "" },
        ),
        format!(
            "{}, at most {} s per pass, seed {}; the run took {:.0} s",
            count(settings.rounds, "round"),
            settings.seconds_per_pass,
            settings.seed,
            report.seconds
        ),
        "fanfs: O_DIRECT reads of a mount with cache = \"direct\"; the page cache is dropped \
         before each pass"
            .to_owned(),
    ];
    lines.extend(raw_read_lines(&report.replicas));
    lines
}

/// How the replicas were read directly: one line for all that were read in one way.
fn raw_read_lines(replicas: &[ReportedReplica]) -> Vec<String> {
    let mut ways: Vec<RawReads> = Vec::new();
    for replica in replicas {
        let how = match (&replica.failure, replica.raw_reads) {
            (Some(why), _) => format!("left out: {why}"),
            (None, Some("O_DIRECT")) => "raw reads with O_DIRECT".to_owned(),
            (None, Some("NFS")) => "raw reads over connections of this process".to_owned(),
            (None, _) => "raw reads through the page cache, which is dropped before each pass; \
                          O_DIRECT does not work here"
                .to_owned(),
        };
        let label = format!("{} ({})", replica.name, replica.path);
        match ways.iter_mut().find(|way| way.how == how) {
            Some(way) => way.labels.push(label),
            None => ways.push(RawReads { how, labels: vec![label] }),
        }
    }
    let line = |way: &RawReads| {
        let labels: Vec<&str> = way.labels.iter().map(String::as_str).collect();
        format!("{}: {}", format_names(&labels, "replica"), way.how)
    };
    ways.iter().map(line).collect()
}

/// The replicas that were read directly in one way.
struct RawReads {
    how: String,
    /// Their names and paths.
    labels: Vec<String>,
}

/// The explanation of the columns.
pub const LEGEND: &str = "\
MiB/s: median, minimum, and maximum of the rounds. \
raw: direct reads of the replicas, all at the same time. \
efficiency: percentage of the raw rate of the same replicas in the same round. \
speedup: multiple of the fastest of these replicas alone in the same round. \
latency: of single reads, over all rounds. \
CPU s/GiB: CPU seconds per GiB read.";

const FIO_LEGEND: &str =
    "bench/fio: the rate that bench measured as a percentage of fio's, in the same round.";

/// The explanation of the report's columns.
pub(super) fn legend(report: &Report) -> String {
    if has_fio(report) { format!("{LEGEND} {FIO_LEGEND}") } else { LEGEND.to_owned() }
}

fn has_fio(report: &Report) -> bool {
    report.rows.iter().any(|row| row.fio_mib_per_second.is_some())
}

/// The whole report as text. All but the tables is wrapped at `width` columns.
pub fn render_text(report: &Report, width: usize) -> String {
    let mut text = wrap(&origin(report), width) + "\n";
    for line in preamble(report) {
        let _ = writeln!(text, "{}", wrap(&line, width));
    }
    for load in Load::ALL {
        let rows: Vec<&ResultRow> = report.rows.iter().filter(|row| row.load == load).collect();
        if rows.is_empty() {
            continue;
        }
        let heading = wrap(&load_heading(load, report), width);
        let _ = write!(text, "\n{heading}\n{}", render(&rows, Panel::Main));
        for row in &rows {
            for failure in &row.failures {
                let failure = format!("  {} failed: {failure}", row_label(row));
                let _ = writeln!(text, "{}", wrap(&failure, width));
            }
        }
        if has_fio(report) {
            text.push_str(&render(&rows, Panel::Fio));
        }
    }
    let _ = writeln!(text, "\n{}", wrap(&legend(report), width));
    for note in &report.notes {
        let _ = writeln!(text, "{}", wrap(&format!("note: {note}"), width));
    }
    text
}

/// One table: two lines of headings, then the rows.
fn render(rows: &[&ResultRow], panel: Panel) -> String {
    let columns: Vec<&'static Column> =
        COLUMNS.iter().filter(|column| column.panel == panel).collect();
    let labels: Vec<String> = rows.iter().map(|row| shorten(&row_label(row))).collect();
    let first = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let mut group_line = format!("  {:first$}", "");
    let mut name_line = group_line.clone();
    let mut lines: Vec<String> = labels.iter().map(|label| format!("  {label:first$}")).collect();
    for group in groups(&columns) {
        let width = group.iter().map(|column| column.width() + 1).sum::<usize>() - 1;
        let _ = match group[0].group {
            "" => write!(group_line, "  {:width$}", ""),
            name => write!(group_line, "  {name:-^width$}"),
        };
        let mut gap = "  ";
        for column in group {
            let width = column.width();
            let _ = write!(name_line, "{gap}{:>width$}", column.name);
            for (line, row) in lines.iter_mut().zip(rows) {
                let _ = write!(line, "{gap}{:>width$}", column.cell(row));
            }
            gap = " ";
        }
    }
    let all = [group_line, name_line].into_iter().chain(lines);
    all.fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// `label` with its middle cut out if it is too long: names often differ at one of their ends.
fn shorten(label: &str) -> String {
    let chars: Vec<char> = label.chars().collect();
    if chars.len() <= MAX_LABEL_CHARS {
        return label.to_owned();
    }
    let head = MAX_LABEL_CHARS / 2 + 1;
    let tail = MAX_LABEL_CHARS - head - 1;
    let start: String = chars[..head].iter().collect();
    let end: String = chars[chars.len() - tail..].iter().collect();
    format!("{start}…{end}")
}

/// `text`, escaped, in lines of at most `width` characters. All but the first are indented by two
/// blanks more than the first.
fn wrap(text: &str, width: usize) -> String {
    let indent = text.chars().take_while(|c| *c == ' ').count();
    let lines = wrap_words(&Escaped(text).to_string(), width.saturating_sub(indent + 2));
    format!("{:indent$}{}", "", lines.join(&format!("\n{:1$}", "", indent + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0.0042, 8.55, 9.996, 99.94, 99.96, 10_000.0].map(time),
            ["0.00", "8.55", "10.0", "99.9", "100", "10000"]
        );
        assert_eq!([9.04, 304.1, 999.94, 999.96].map(rate), ["9.0", "304.1", "999.9", "1000"]);
        assert_eq!(percent(0.9994), "99.9%");
    }

    #[test]
    fn the_widest_table_fits() {
        for panel in [Panel::Main, Panel::Fio] {
            let columns: Vec<&'static Column> =
                COLUMNS.iter().filter(|column| column.panel == panel).collect();
            let group = |group: &[&Column]| {
                group.iter().map(|column| column.width() + 1).sum::<usize>() + 1
            };
            let figures: usize = groups(&columns).map(group).sum();
            assert!(2 + MAX_LABEL_CHARS + figures <= 100, "{figures}");
        }
    }

    #[test]
    fn long_labels_are_cut_in_the_middle() {
        assert_eq!(shorten("gateway-01 alone"), "gateway-01 alone");
        let long = shorten("gateway-17.storage.example.com alone");
        assert_eq!(long, "gateway-17.s….com alone");
        assert!(long.chars().count() <= MAX_LABEL_CHARS);
    }

    #[test]
    fn long_notes_are_wrapped_between_words() {
        let text = "word ".repeat(60);
        let wrapped = wrap(text.trim_end(), 72);
        assert!(wrapped.lines().all(|line| line.len() <= 72), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), 60);
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  word")), "{wrapped}");
        assert_eq!(wrap("  r1 alone failed:  EIO\n", 22), "  r1 alone failed:\n    EIO\\n");
    }

    #[test]
    fn replicas_that_are_read_in_one_way_share_a_line() {
        let replica = |number: usize| ReportedReplica {
            name: format!("n{number}"),
            path: format!("/mnt/n{number}"),
            raw_reads: (number != 3).then_some("O_DIRECT"),
            failure: (number == 3).then(|| "no such file".to_owned()),
        };
        let replicas: Vec<ReportedReplica> = (1..=12).map(replica).collect();
        assert_eq!(
            raw_read_lines(&replicas),
            [
                "n1 (/mnt/n1), n2 (/mnt/n2) and 9 more replicas: raw reads with O_DIRECT",
                "n3 (/mnt/n3): left out: no such file"
            ]
        );
    }
}
