//! Medians and paired ratios of the passes, as Markdown.

use std::fmt::Write as _;

use super::candidate::Candidate;
use super::load::{Load, Pass};

/// The passes of one load over one number of replicas.
pub(super) struct Group<'a> {
    pub(super) load: Load,
    pub(super) replicas: usize,
    pub(super) rows: Vec<Row<'a>>,
}

/// One candidate's passes, in the order of their rounds.
pub(super) struct Row<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) passes: Vec<&'a Pass>,
}

/// Sorts passes into tables, in the order in which loads were measured.
pub(super) fn groups<'a>(candidates: &'a [Candidate], passes: &'a [Pass]) -> Vec<Group<'a>> {
    let mut keys: Vec<(usize, Load)> = Vec::new();
    for pass in passes {
        if !keys.contains(&(pass.replicas, pass.load)) {
            keys.push((pass.replicas, pass.load));
        }
    }
    let group = |(replicas, load)| {
        let row = |candidate: &'a Candidate| Row {
            candidate,
            passes: passes
                .iter()
                .filter(|p| (p.replicas, p.load) == (replicas, load))
                .filter(|p| p.candidate == candidate.name)
                .collect(),
        };
        let rows = candidates.iter().map(row).filter(|row| !row.passes.is_empty()).collect();
        Group { load, replicas, rows }
    };
    keys.into_iter().map(group).collect()
}

impl Row<'_> {
    /// The median over the rounds; `None` if a pass has no such figure.
    pub(super) fn median(&self, figure: impl Fn(&Pass) -> Option<f64>) -> Option<f64> {
        median(self.passes.iter().map(|pass| figure(pass)).collect::<Option<_>>()?)
    }

    /// The median of the ratios to `other` within the same round.
    fn against(&self, other: &Row<'_>) -> Option<f64> {
        let ratio = |pass: &&Pass| {
            let same = other.passes.iter().find(|p| p.round == pass.round)?;
            Some(pass.rate() / same.rate())
        };
        median(self.passes.iter().filter_map(ratio).collect())
    }
}

impl Group<'_> {
    pub(super) fn title(&self) -> String {
        let plural = if self.replicas == 1 { "" } else { "s" };
        format!("{} replica{plural}: {}", self.replicas, self.load.title())
    }

    fn row(&self, name: &str) -> Option<&Row<'_>> {
        self.rows.iter().find(|row| row.candidate.name == name)
    }

    /// The table with its heading.
    pub(super) fn to_markdown(&self) -> String {
        let rate = if self.load.is_random() { "reads/s" } else { "MB/s" };
        let mut text = format!(
            "### {}\n\n| | {rate} | CPU s/GiB, daemon | total | p50 us | p99 us | p99.9 us | peak \
             MiB | of raw | of null | of memory | of mergerfs |\n|---|{}\n",
            self.title(),
            "---:|".repeat(11)
        );
        for row in &self.rows {
            let scale = if self.load.is_random() { 1.0 } else { 1e-6 };
            let [null, memory, rival] = row.candidate.mode.references();
            let ratio = |name: Option<&str>| {
                let other =
                    self.row(name?).filter(|other| other.candidate.name != row.candidate.name);
                row.against(other?)
            };
            let latency = |n: usize| row.median(|p| Some(p.latency_us[n]));
            let peak = row.median(|p| p.peak.map(|peak| peak as f64 / f64::from(1 << 20)));
            let cells = [
                cell(row.median(|p| Some(p.rate() * scale)), 0),
                cell(row.median(Pass::daemon_cpu_per_gib), 3),
                cell(row.median(|p| Some(p.cpu_per_gib())), 3),
                cell(latency(0), 1),
                cell(latency(1), 1),
                cell(latency(2), 1),
                cell(peak, 0),
                cell(ratio(Some("raw")), 3),
                cell(ratio(null), 3),
                cell(ratio(memory), 3),
                cell(ratio(rival), 3),
            ];
            let _ = writeln!(text, "| {} | {} |", row.candidate.name, cells.join(" | "));
        }
        text
    }
}

pub(super) fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
}

/// The middle value, or the mean of the two middle ones.
pub(super) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        n if n % 2 == 1 => Some(figures[middle]),
        _ => Some(f64::midpoint(figures[middle - 1], figures[middle])),
    }
}
