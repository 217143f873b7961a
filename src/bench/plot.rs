//! The report's three plots, as SVG: rates over time, rates over the number of replicas, and
//! latencies.
//!
//! Each plot has its own background, so it is readable on any page. Its legend is beside it, so it
//! covers nothing. The colors are those of Okabe and Ito (2008), which color-blind people can tell
//! apart. In all plots fanfs is black and the raw sum is gray and dashed. From the seventh replica
//! on, lines are dashed as well.

mod axis;

use std::io;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use axis::Axis;

use super::plan::Load;
use super::results::{Report, ResultRow, Spread};
use super::table::row_label;
use crate::format::format_bytes_rounded;

/// Pixels. The page scales a plot to its own width; this is the ratio of text to plot.
const WIDTH: u32 = 960;
const LEGEND_WIDTH: u32 = 190;
const MIN_HEIGHT: u32 = 360;
const LEGEND_LINE_HEIGHT: i32 = 20;
const FONT: &str = "sans-serif";

const INK_COLOR: RGBColor = RGBColor(34, 34, 34);
const FANFS_COLOR: RGBColor = RGBColor(0, 0, 0);
const SUM_COLOR: RGBColor = RGBColor(110, 110, 110);
const REPLICA_COLORS: [RGBColor; 6] = [
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
];

#[derive(Clone, Copy)]
struct PlotStyle {
    color: RGBColor,
    width: u32,
    dash: Option<Dash>,
    has_points: bool,
}

/// The dash pattern of a line.
#[derive(Clone, Copy)]
struct Dash {
    length: u32,
    gap: u32,
}

impl PlotStyle {
    fn replica(index: usize) -> Self {
        let dash = match index / REPLICA_COLORS.len() {
            0 => None,
            1 => Some(Dash { length: 8, gap: 4 }),
            _ => Some(Dash { length: 2, gap: 3 }),
        };
        let color = REPLICA_COLORS[index % REPLICA_COLORS.len()];
        Self { color, width: 2, dash, has_points: false }
    }

    const FANFS: Self = Self { color: FANFS_COLOR, width: 3, dash: None, has_points: false };
    const SUM: Self = Self {
        color: SUM_COLOR,
        width: 2,
        dash: Some(Dash { length: 8, gap: 5 }),
        has_points: false,
    };

    fn with_points(self) -> Self {
        Self { has_points: true, ..self }
    }

    fn shape_style(self) -> ShapeStyle {
        self.color.stroke_width(self.width)
    }
}

struct PlotLine {
    name: String,
    points: Vec<(f64, f64)>,
    style: PlotStyle,
}

/// A bar from the least to the largest of some values.
struct ErrorBar {
    x: f64,
    y: Spread,
    color: RGBColor,
}

impl ErrorBar {
    fn element(&self) -> PathElement<(f64, f64)> {
        let ends = vec![(self.x, self.y.min), (self.x, self.y.max)];
        PathElement::new(ends, self.color.stroke_width(1))
    }
}

/// A rate at a number of replicas.
#[derive(Clone, Copy)]
struct ScalingPoint {
    replicas: f64,
    rate: Spread,
}

impl ScalingPoint {
    fn error_bar(&self, color: RGBColor) -> ErrorBar {
        ErrorBar { x: self.replicas, y: self.rate, color }
    }
}

/// Why a plot cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct PlotError(#[from] DrawingAreaErrorKind<io::Error>);

/// Draws the rate that the reader got through fanfs, and the rate that each replica delivered, over
/// the time of one pass.
///
/// # Errors
/// When the drawing library fails.
pub fn plot_over_time(report: &Report) -> Result<Option<String>, PlotError> {
    let Some(over) = &report.over_time else { return Ok(None) };
    let along = |rates: &[f64]| over.seconds.iter().copied().zip(rates.iter().copied()).collect();
    let mut lines = vec![PlotLine {
        name: "reader".to_owned(),
        points: along(&over.reader),
        style: PlotStyle::FANFS,
    }];
    let last = over.seconds.last().copied().unwrap_or(1.0);
    let all = over.replicas.len();
    let sum = if all == 1 { "alone" } else { "sum" };
    let raw = sequential_rate(report, sum, all).map(|raw| raw.median);
    lines.extend(raw.map(|raw| PlotLine {
        name: "raw sum (median)".to_owned(),
        points: vec![(0.0, raw), (last, raw)],
        style: PlotStyle::SUM,
    }));
    lines.extend(over.replicas.iter().enumerate().map(|(index, replica)| PlotLine {
        name: replica.name.clone(),
        points: along(&replica.mib_per_second),
        style: PlotStyle::replica(index),
    }));
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate);
    let most = most.fold(0.0, f64::max);
    let title = format!("One sequential reader through fanfs over time (round {})", over.round);
    let mut seconds = Axis::linear("seconds since the start of the pass", last);
    seconds.bounds.1 = last * 1.01;
    seconds.ticks.retain(|(at, _)| *at <= last);
    let y = Axis::linear("MiB/s", most);
    Plot { title: &title, x: &seconds, y: &y, lines: &lines, bars: &[] }.render().map(Some)
}

/// Draws sequential rates over the number of replicas.
///
/// # Errors
/// When the drawing library fails.
pub fn plot_scaling(report: &Report) -> Result<Option<String>, PlotError> {
    let point = |replicas: usize, rate: Spread| ScalingPoint { replicas: replicas as f64, rate };
    let its = |kind: &str| -> Vec<ScalingPoint> {
        let rows = report.rows.iter().filter(|row| row.load == Load::Sequential);
        let rows = rows.filter(|row| row.kind == kind);
        rows.filter_map(|row| Some(point(row.replicas.len(), row.mib_per_second?))).collect()
    };
    let fanfs = its("fanfs");
    let mut raw = its("sum");
    // The sum of one replica is the first replica alone.
    raw.extend(sequential_rate(report, "alone", 1).map(|alone| point(1, alone)));
    raw.sort_by(|one, other| one.replicas.total_cmp(&other.replicas));
    if fanfs.len() < 2 {
        return Ok(None);
    }
    let medians = |of: &[ScalingPoint]| of.iter().map(|p| (p.replicas, p.rate.median)).collect();
    let lines = [
        PlotLine {
            name: "raw sum (ideal)".to_owned(),
            points: medians(&raw),
            style: PlotStyle::SUM.with_points(),
        },
        PlotLine {
            name: "fanfs, one reader".to_owned(),
            points: medians(&fanfs),
            style: PlotStyle::FANFS.with_points(),
        },
    ];
    let raw_bars = raw.iter().map(|point| point.error_bar(SUM_COLOR));
    let fanfs_bars = fanfs.iter().map(|point| point.error_bar(FANFS_COLOR));
    let bars: Vec<ErrorBar> = raw_bars.chain(fanfs_bars).collect();
    let most = bars.iter().map(|bar| bar.y.max).fold(0.0, f64::max);
    let counts: Vec<f64> = fanfs.iter().map(|point| point.replicas).collect();
    let last = counts.iter().copied().fold(1.0, f64::max);
    let replicas = Axis {
        name: "replicas".to_owned(),
        bounds: (0.0, last * 1.05),
        ticks: counts.into_iter().map(|n| (n, format!("{n:.0}"))).collect(),
    };
    let title = "Sequential rate by number of replicas (median, min to max)";
    let y = Axis::linear("MiB/s", most);
    Plot { title, x: &replicas, y: &y, lines: &lines, bars: &bars }.render().map(Some)
}

/// Draws the latencies of single reads of the random load, direct and through fanfs.
///
/// # Errors
/// When the drawing library fails.
pub fn plot_latency(report: &Report) -> Result<Option<String>, PlotError> {
    let rows = report.rows.iter().filter(|row| row.load == Load::Random);
    let mut alone = 0;
    let line = |row: &ResultRow| {
        let look = match row.kind {
            "fanfs" => PlotStyle::FANFS,
            "sum" => PlotStyle::SUM,
            _ => {
                alone += 1;
                PlotStyle::replica(alone - 1)
            }
        };
        let quantiles = &row.latency_ms.as_ref()?.quantiles;
        let place = |(part, ms): &(f64, f64)| (nines_position(*part), ms.max(1e-3).log10());
        Some(PlotLine {
            name: row_label(row),
            points: quantiles.iter().map(place).collect(),
            style: look,
        })
    };
    let lines: Vec<PlotLine> = rows.filter_map(line).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        return Ok(None);
    }
    let least = points().map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
    let most = points().map(|(_, ms)| *ms).fold(f64::NEG_INFINITY, f64::max);
    let last = points().map(|(part, _)| *part).fold(1.0, f64::max);
    let known = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
    let names = ["0%", "50%", "90%", "99%", "99.9%", "99.99%", "99.999%", "99.9999%"];
    let marks =
        known.iter().zip(names).map(|(part, name)| (nines_position(*part), name.to_owned()));
    let parts = Axis {
        name: "percentile of the reads".to_owned(),
        bounds: (0.0, last * 1.02),
        ticks: marks.filter(|(place, _)| *place <= last * 1.02).collect(),
    };
    let taken = Axis::logarithmic(
        "latency in milliseconds (log scale)",
        10_f64.powf(least),
        10_f64.powf(most),
    );
    let block = format_bytes_rounded(report.settings.random_block);
    let title = format!("Latency of random {block} reads");
    Plot { title: &title, x: &parts, y: &taken, lines: &lines, bars: &[] }.render().map(Some)
}

/// The position of a quantile on an axis where each further nine (0.9, 0.99, ...) is one unit.
fn nines_position(part: f64) -> f64 {
    -(1.0 - part).log10()
}

/// The sequential rate of the first row of this kind over this number of replicas.
fn sequential_rate(report: &Report, kind: &str, replicas: usize) -> Option<Spread> {
    let row = report.rows.iter().find(|row| {
        row.load == Load::Sequential && row.kind == kind && row.replicas.len() == replicas
    });
    row?.mib_per_second
}

/// One plot.
struct Plot<'a> {
    title: &'a str,
    x: &'a Axis,
    y: &'a Axis,
    lines: &'a [PlotLine],
    bars: &'a [ErrorBar],
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

impl Plot<'_> {
    fn render(&self) -> Result<String, PlotError> {
        let height = MIN_HEIGHT.max(80 + LEGEND_LINE_HEIGHT as u32 * self.lines.len() as u32);
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            area.fill(&WHITE)?;
            let area = area.titled(self.title, ink(17))?;
            let (left, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
            let mut chart = self.draw_axes(&left)?;
            for bar in self.bars {
                chart.draw_series([bar.element()])?;
            }
            for line in self.lines {
                draw_line(&mut chart, line)?;
            }
            draw_legend(&right, self.lines)?;
            area.present()?;
        }
        Ok(svg)
    }

    fn draw_axes<'a, 'b>(&self, area: &'a Area<'b>) -> Result<Chart<'a, 'b>, PlotError> {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_labels(self.x.ticks.len())
            .y_labels(self.y.ticks.len())
            .x_label_formatter(&|at| self.x.tick_label(*at))
            .y_label_formatter(&|at| self.y.tick_label(*at))
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .bold_line_style(INK_COLOR.mix(0.15))
            .light_line_style(TRANSPARENT)
            .axis_style(INK_COLOR)
            .label_style(ink(14))
            .axis_desc_style(ink(14))
            .draw()?;
        Ok(chart)
    }
}

fn ink(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK_COLOR)
}

fn draw_line(chart: &mut Chart<'_, '_>, line: &PlotLine) -> Result<(), PlotError> {
    let style = line.style;
    let points = || line.points.iter().copied();
    match style.dash {
        Some(dash) => {
            let line = DashedLineSeries::new(points(), dash.length, dash.gap, style.shape_style());
            chart.draw_series(line)?;
        }
        None => {
            chart.draw_series(LineSeries::new(points(), style.shape_style()))?;
        }
    }
    if style.has_points {
        let circle = |at: (f64, f64)| Circle::new(at, 4, style.color.filled());
        chart.draw_series(points().map(circle))?;
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, lines: &[PlotLine]) -> Result<(), PlotError> {
    for (number, PlotLine { name, style, .. }) in (0..).zip(lines) {
        let y = 24 + LEGEND_LINE_HEIGHT * number;
        let sample = [(4, y), (32, y)];
        match style.dash {
            Some(dash) => area.draw(&DashedPathElement::new(
                sample,
                dash.length,
                dash.gap,
                style.shape_style(),
            ))?,
            None => area.draw(&PathElement::new(sample, style.shape_style()))?,
        }
        if style.has_points {
            area.draw(&Circle::new((18, y), 4, style.color.filled()))?;
        }
        let longest = 20;
        let name = match name.char_indices().nth(longest) {
            Some((end, _)) => format!("{}…", &name[..end]),
            None => name.clone(),
        };
        area.draw(&Text::new(name, (40, y - 7), ink(14)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_adds_one_to_the_axis_position() {
        for (part, place) in [(0.0, 0.0), (0.9, 1.0), (0.999, 3.0)] {
            assert!((nines_position(part) - place).abs() < 1e-9);
        }
    }
}
