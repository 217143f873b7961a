//! The report as one self-contained HTML file.

use std::fmt::Write as _;

use super::plan::Load;
use super::plot::PlotError;
use super::results::Report;
use super::{plot, table};

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #fff; --ink: #222; --line: #ccc; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #181a1b; --ink: #e6e6e6; --line: #444; --soft: #a0a0a0; }
}
body { background: var(--ground); color: var(--ink); font: 15px/1.5 sans-serif; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
tr.fanfs td { font-weight: bold; }
td.failed { text-align: left; }
.wide { overflow-x: auto; }
figure { margin: 1.5rem 0; }
figure svg { background: #fff; border: 1px solid var(--line); max-width: 100%; height: auto; }
figcaption, .soft { color: var(--soft); font-size: 0.9rem; }";

/// What each picture shows, for a reader who has never seen such a picture.
const CAPTIONS: [&str; 3] = [
    "Sampled while one reader read through fanfs. The replicas' lines add up to the reader's, \
     but for what is fetched ahead of it: at the begin they are above it.",
    "Dots are medians of the rounds, bars go from the least to the largest. The ideal is what the \
     same replicas give to one reader each, all at once, past fanfs; over one replica it is the \
     first one alone.",
    "Towards the right are the slowest reads: at 99 %, one read of a hundred took longer. All \
     have the same number of readers, each of which waits for its read before the next.",
];

/// Why the page cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum HtmlReportError {
    /// A picture cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The figures cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Renders the page.
///
/// # Errors
/// When a picture cannot be drawn or the figures cannot be written as JSON.
pub fn render_html(report: &Report) -> Result<String, HtmlReportError> {
    let title = format!("fanfs bench: {}", escape_html(&report.volume));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    for line in table::preamble(report) {
        let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape_html(&line));
    }
    for note in &report.notes {
        let _ = writeln!(html, "<p>Note: {}.</p>", escape_html(note));
    }
    for load in Load::ALL {
        html.push_str(&render_rows(report, load));
    }
    let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape_html(table::LEGEND));
    let pictures =
        [plot::plot_over_time(report)?, plot::plot_scaling(report)?, plot::plot_latency(report)?];
    for (picture, caption) in pictures.into_iter().zip(CAPTIONS) {
        let Some(picture) = picture else { continue };
        let _ = writeln!(
            html,
            "<figure>\n{}\n<figcaption>{caption}</figcaption>\n</figure>",
            picture.trim()
        );
    }
    let json = serde_json::to_string_pretty(report)?;
    let _ = write!(
        html,
        "<details><summary>All figures, as <code>fanfs bench --json</code> prints them</summary>\n\
         <pre>{}</pre>\n</details>\n<p class=\"soft\">fanfs {}</p>\n</body>\n</html>\n",
        escape_html(&json),
        report.version
    );
    Ok(html)
}

fn render_rows(report: &Report, load: Load) -> String {
    let mut html = format!(
        "<h2>{}</h2>\n<div class=\"wide\"><table>\n<tr><th></th>",
        escape_html(&table::load_heading(load, report))
    );
    let header = table::header(report);
    for name in &header {
        let _ = write!(html, "<th>{name}</th>");
    }
    html.push_str("</tr>\n");
    for row in report.rows.iter().filter(|row| row.load == load) {
        let _ = write!(
            html,
            "<tr class=\"{}\"><td>{}</td>",
            row.kind,
            escape_html(&table::row_label(row))
        );
        for cell in table::cells(row, report) {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
        for failure in &row.failures {
            let _ = writeln!(
                html,
                "<tr><td></td><td class=\"failed\" colspan=\"{}\">failed: {}</td></tr>",
                header.len(),
                escape_html(failure)
            );
        }
    }
    html + "</table></div>\n"
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
