//! The report as one self-contained HTML file.

use std::fmt::Write as _;

use super::plan::Load;
use super::plot::{self, PlotError};
use super::results::{Report, ResultRow};
use super::table::{self, Column};

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #fff; --ink: #222; --line: #ccc; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #181a1b; --ink: #e6e6e6; --line: #444; --soft: #a0a0a0; }
}
body { background: var(--ground); color: var(--ink); font: 15px/1.5 sans-serif; max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
th[colspan] { text-align: center; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
tr.names th:first-child { text-align: right; }
tr.fanfs td { font-weight: bold; }
td.failed { text-align: left; }
.wide { overflow-x: auto; }
figure { margin: 1.5rem 0; }
figure svg { background: #fff; border: 1px solid var(--line); width: 100%; max-width: 100%;
  height: auto; }
figcaption, .soft { color: var(--soft); font-size: 0.9rem; }";

/// What each plot shows, for a reader who has never seen such a plot.
const CAPTIONS: [&str; 3] = [
    "One sequential reader through fanfs, sampled during the pass with the median rate. The black \
     line is what the reader got, the colored lines are what each replica delivered. fanfs reads \
     ahead, so at the start of the pass the replicas together deliver more than the reader gets. \
     The dashed line is the median raw rate of the same replicas at the same time.",
    "Dots are medians over the rounds; bars extend from the slowest to the fastest round. The \
     dashed line is the ideal: the same replicas read directly, by one reader each, all at the \
     same time. With one replica it is that replica alone.",
    "Higher is slower. Further right are rarer, slower reads: at 99%, one read in a hundred took \
     longer. Each reader waits for its read before it starts the next one.",
];

/// Why the page cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum HtmlReportError {
    /// A plot cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The figures cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Renders the page.
///
/// # Errors
/// When a plot cannot be drawn or the figures cannot be written as JSON.
pub fn render_html(report: &Report) -> Result<String, HtmlReportError> {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>fanfs bench: {}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n\
         <h1>{}</h1>\n<p class=\"soft\">{}</p>\n",
        escape_html(&report.volume),
        headline(report),
        escape_html(&table::origin(report))
    );
    if let Some(row) = headline_row(report).filter(|row| row.mib_per_second.is_some()) {
        let replicas = table::count(row.replicas.len(), "replica");
        let _ = writeln!(html, "<p>Median of one sequential reader through fanfs, {replicas}.</p>");
    }
    for line in table::preamble(report) {
        let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape_html(&line));
    }
    for note in &report.notes {
        let _ = writeln!(html, "<p>Note: {}.</p>", escape_html(note));
    }
    for load in Load::ALL {
        html.push_str(&render_rows(report, load));
    }
    let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape_html(&table::legend(report)));
    let plots =
        [plot::plot_over_time(report)?, plot::plot_scaling(report)?, plot::plot_latency(report)?];
    for (plot, caption) in plots.into_iter().zip(CAPTIONS) {
        let Some(plot) = plot else { continue };
        let _ = writeln!(
            html,
            "<figure>\n{}\n<figcaption>{caption}</figcaption>\n</figure>",
            plot.trim()
        );
    }
    let json = serde_json::to_string_pretty(report)?;
    let _ = write!(
        html,
        "<details><summary>All figures as JSON, as printed by <code>fanfs bench --json</code>\
         </summary>\n<pre>{}</pre>\n</details>\n</body>\n</html>\n",
        escape_html(&json)
    );
    Ok(html)
}

/// The row of one sequential reader through fanfs over the most replicas.
fn headline_row(report: &Report) -> Option<&ResultRow> {
    let rows = report.rows.iter();
    let rows = rows.filter(|row| row.load == Load::Sequential && row.kind == "fanfs");
    rows.max_by_key(|row| row.replicas.len())
}

/// The result in one line: "276 MiB/s, 2.7x the best replica, 99.9% of the sum".
fn headline(report: &Report) -> String {
    let row = headline_row(report);
    let Some((row, rate)) = row.and_then(|row| Some((row, row.mib_per_second?.median))) else {
        return "No sequential rate through fanfs".to_owned();
    };
    let digits = if rate < 9.95 { 1 } else { 0 };
    let mut parts = vec![format!("{rate:.digits$} MiB/s")];
    let is_single = row.replicas.len() == 1;
    // With one replica, both figures compare with that replica.
    if let Some(speedup) = row.of_fastest.filter(|_| !is_single) {
        parts.push(format!("{} the best replica", format_speedup(speedup.median)));
    }
    if let Some(efficiency) = row.of_sum {
        let whole = if is_single { "replica alone" } else { "sum" };
        parts.push(format!("{} of the {whole}", table::percent(efficiency.median)));
    }
    parts.join(", ")
}

/// "2.7x", and below 1 as in the table: "0.02x".
fn format_speedup(ratio: f64) -> String {
    let digits = if ratio < 0.995 { 2 } else { 1 };
    format!("{ratio:.digits$}x")
}

fn render_rows(report: &Report, load: Load) -> String {
    let columns = table::columns(report);
    let mut html = format!(
        "<h2>{}</h2>\n<div class=\"wide\"><table>\n{}",
        escape_html(&table::load_heading(load, report)),
        render_header(&columns)
    );
    for row in report.rows.iter().filter(|row| row.load == load) {
        let _ = write!(
            html,
            "<tr class=\"{}\"><td>{}</td>",
            row.kind,
            escape_html(&table::row_label(row))
        );
        for column in &columns {
            let _ = write!(html, "<td>{}</td>", column.cell(row));
        }
        html.push_str("</tr>\n");
        for failure in &row.failures {
            let _ = writeln!(
                html,
                "<tr><td></td><td class=\"failed\" colspan=\"{}\">failed: {}</td></tr>",
                columns.len(),
                escape_html(failure)
            );
        }
    }
    html + "</table></div>\n"
}

/// Two rows of headings: the groups and the columns without one, then the columns of the groups.
fn render_header(columns: &[&'static Column]) -> String {
    let mut upper = String::from("<tr><th rowspan=\"2\"></th>");
    let mut lower = String::from("<tr class=\"names\">");
    for group in table::groups(columns) {
        let Column { group: title, name, .. } = group[0];
        if title.is_empty() {
            let _ = write!(upper, "<th rowspan=\"2\">{name}</th>");
            continue;
        }
        let _ = write!(upper, "<th colspan=\"{}\">{title}</th>", group.len());
        for column in group {
            let _ = write!(lower, "<th>{}</th>", column.name);
        }
    }
    format!("{upper}</tr>\n{lower}</tr>\n")
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
