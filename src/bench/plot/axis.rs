//! Axes with ticks where people expect them: at round numbers, or at powers of ten.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// An axis that is linear in the plotted value; for a logarithmic axis that value is the logarithm.
#[derive(Clone)]
pub(super) struct Axis {
    pub(super) name: String,
    /// The values at both ends.
    pub(super) bounds: (f64, f64),
    /// The position of each tick, and its label.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis from 0, with ticks at round numbers.
    pub(super) fn linear(name: &str, most: f64) -> Self {
        let most = most.max(1e-3) * 1.08;
        let step = round_step(most / 6.0);
        let digits = usize::try_from((-step.log10().floor()).max(0.0) as i64).unwrap_or(0);
        let marks = (0..).map(|i| f64::from(i) * step).take_while(|at| *at <= most);
        let marks = marks.map(|at| (at, format!("{at:.digits$}"))).collect();
        Self { name: name.to_owned(), bounds: (0.0, most), ticks: marks }
    }

    /// A logarithmic axis with ticks at 1, 2 and 5 of each power of ten.
    pub(super) fn logarithmic(name: &str, least: f64, most: f64) -> Self {
        let end = ((least * 0.8).log10(), (most * 1.25).log10());
        let powers = end.0.floor() as i32..=end.1.ceil() as i32;
        let marks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)));
        // Over many powers of ten, one tick for each is enough.
        let dense = end.1 - end.0 < 2.5;
        let marks = marks
            .map(|at| (at.log10(), at))
            .filter(|(place, _)| (end.0..=end.1).contains(place))
            .filter(|(place, _)| dense || (place - place.round()).abs() < 1e-9)
            .map(|(place, at)| (place, format!("{at}")));
        Self { name: name.to_owned(), bounds: end, ticks: marks.collect() }
    }

    /// The label of the tick at this position; empty where there is none.
    pub(super) fn tick_label(&self, at: f64) -> String {
        let near = |(place, _): &&(f64, String)| (place - at).abs() < 1e-9;
        self.ticks.iter().find(near).map_or_else(String::new, |(_, text)| text.clone())
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let part = (value - self.bounds.0) / (self.bounds.1 - self.bounds.0);
        pixels.0 + (part * f64::from(pixels.1 - pixels.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.bounds.0..self.bounds.1
    }
}

/// The smallest round step (1, 2, 5 times a power of ten) that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|n| *n >= least).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_steps_are_round_numbers() {
        for (least, step) in [(0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (33.0, 50.0), (51.0, 100.0)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }

    #[test]
    fn a_logarithmic_axis_always_has_ticks() {
        for (least, most) in [(0.02, 0.03), (1.0, 9.0), (12.0, 80.0), (0.01, 5000.0)] {
            let axis = Axis::logarithmic("", least, most);
            assert!((1..9).contains(&axis.ticks.len()), "{least} {most}: {:?}", axis.ticks);
        }
    }
}
