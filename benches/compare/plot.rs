//! The tables as charts: bars for the comparison, lines for the scaling.

use std::path::Path;

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use super::Failure;
use super::load::Pass;
use super::report::{Group, Row, cell};
use super::scaling::Line;

const WIDTH: u32 = 1100;
const BAR: u32 = 24;
/// A panel's title, axis and margin.
const AROUND: u32 = 110;
const NAMES: u32 = 130;
const FONT: &str = "sans-serif";

const DAEMON: RGBColor = RGBColor(31, 119, 180);
const READER: RGBColor = RGBColor(174, 199, 232);
const RATE: [(&str, RGBColor); 7] = [
    ("raw", RGBColor(127, 127, 127)),
    ("null", RGBColor(188, 189, 34)),
    ("memory", RGBColor(219, 219, 141)),
    ("clone", RGBColor(188, 189, 34)),
    ("mergerfs", RGBColor(214, 95, 14)),
    ("bindfs", RGBColor(227, 160, 110)),
    // Only fanfs is left.
    ("", RGBColor(44, 140, 60)),
];
const LINES: [RGBColor; 6] = [
    RGBColor(44, 140, 60),
    RGBColor(31, 119, 180),
    RGBColor(214, 95, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
];

/// For each table: rates on the left and processor time on the right.
pub(super) fn bars(groups: &[Group<'_>], path: &Path) -> Result<(), Failure> {
    let heights: Vec<u32> = groups.iter().map(|g| AROUND + BAR * g.rows.len() as u32).collect();
    let area = SVGBackend::new(path, (WIDTH, heights.iter().sum())).into_drawing_area();
    area.fill(&WHITE).map_err(drawn)?;
    let mut rest = area.clone();
    for (group, height) in groups.iter().zip(heights) {
        let (here, below) = rest.split_vertically(height);
        rest = below;
        let here = here.titled(&group.title(), (FONT, 16)).map_err(drawn)?;
        let (left, right) = here.split_horizontally(WIDTH / 2);
        let (unit, scale) =
            if group.load.is_random() { ("thousand reads/s", 1e-3) } else { ("GB/s", 1e-9) };
        let rate = |row: &Row<'_>| {
            let rate = row.median(|p| Some(p.rate() * scale)).unwrap_or(0.0);
            vec![(rate, colour(row))]
        };
        let processor = |row: &Row<'_>| {
            let total = row.median(|p| Some(p.cpu_per_gib())).unwrap_or(0.0);
            let daemon = row.median(Pass::daemon_cpu_per_gib).unwrap_or(0.0);
            vec![(total, READER), (daemon, DAEMON)]
        };
        panel(&left, group, unit, rate)?;
        panel(&right, group, "CPU seconds per GiB: daemon (dark), reader (light)", processor)?;
    }
    area.present().map_err(drawn)
}

fn colour(row: &Row<'_>) -> RGBColor {
    let name = &row.candidate.name;
    RATE.iter().find(|(start, _)| name.starts_with(start)).map_or(BLACK, |(_, colour)| *colour)
}

/// Horizontal bars, one per row; where a row has several, later ones are drawn over earlier ones.
fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    group: &Group<'_>,
    unit: &str,
    values: impl Fn(&Row<'_>) -> Vec<(f64, RGBColor)>,
) -> Result<(), Failure> {
    let rows: Vec<_> = group.rows.iter().rev().map(|row| (row, values(row))).collect();
    let longest = rows.iter().flat_map(|(_, bars)| bars).map(|(v, _)| *v).fold(1e-9, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_right(20)
        .margin_bottom(12)
        .x_label_area_size(44)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..longest * 1.15, (0..rows.len() - 1).into_segmented())
        .map_err(drawn)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(i) => {
            rows.get(*i).map_or_else(String::new, |(row, _)| row.candidate.name.clone())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(WHITE)
        .y_labels(rows.len())
        .y_label_formatter(&name)
        .x_desc(unit)
        .label_style((FONT, 12))
        .draw()
        .map_err(drawn)?;
    for (i, (_, bars)) in rows.iter().enumerate() {
        let bar = |(value, colour): &(f64, RGBColor)| {
            let corners = [(0.0, SegmentValue::Exact(i)), (*value, SegmentValue::Exact(i + 1))];
            let mut bar = Rectangle::new(corners, colour.filled());
            bar.set_margin(3, 3, 0, 0);
            bar
        };
        chart.draw_series(bars.iter().map(bar)).map_err(drawn)?;
        let end = bars.iter().map(|(value, _)| *value).fold(0.0, f64::max);
        let label = Text::new(
            format!(" {}", cell(Some(end), if end < 10.0 { 2 } else { 0 })),
            (end, SegmentValue::CenterOf(i)),
            (FONT, 11).into_font(),
        );
        chart.draw_series([label]).map_err(drawn)?;
    }
    Ok(())
}

/// The share of the sum that one reader gets with this number of replicas.
pub(super) fn lines(lines: &[Line], path: &Path) -> Result<(), Failure> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most = points().map(|(n, _)| *n as f64).fold(1.0, f64::max);
    let area = SVGBackend::new(path, (700, 420)).into_drawing_area();
    area.fill(&WHITE).map_err(drawn)?;
    let title = "One reader over replicas of 100 MiB/s: part of their sum";
    let area = area.titled(title, (FONT, 16)).map_err(drawn)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..1.1)
        .map_err(drawn)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("replicas")
        .y_desc("of the sum")
        .label_style((FONT, 12))
        .x_label_formatter(&|n| format!("{n:.0}"))
        .draw()
        .map_err(drawn)?;
    let sum = [(0.0, 1.0), (most * 1.05, 1.0)];
    chart.draw_series(LineSeries::new(sum, BLACK.mix(0.4))).map_err(drawn)?;
    for ((name, points), colour) in lines.iter().zip(LINES.into_iter().cycle()) {
        let points = points.iter().map(|(n, part)| (*n as f64, *part));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(4))
            .map_err(drawn)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 12))
        .draw()
        .map_err(drawn)?;
    area.present().map_err(drawn)
}

fn drawn(error: impl std::fmt::Display) -> Failure {
    Failure(format!("cannot draw: {error}"))
}
