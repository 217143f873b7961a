//! One reader over a growing number of replicas of the same rate: the share of their sum that it
//! gets. The rate is fanfs's own `max_rate` over links to one file in memory, so fanfs and FUSE set
//! the limit, not storage.

use std::fmt::Write as _;

use super::candidate::{Candidate, Mounted};
use super::load::{Load, Pass};
use super::options::Options;
use super::report::{cell, median};
use super::room::Room;
use super::run::say;
use super::{Failure, interrupted};

/// Each replica's rate, bytes per second.
const RATE: u64 = 100 << 20;
const REPLICA_KEYS: &str = "max_rate = \"100MiB/s\"\n";

/// Time that all replicas together take for one pass.
const SECONDS: u64 = 3;

/// A line of the plot: a name, and a point for each number of replicas.
pub(super) type Line = (String, Vec<(usize, f64)>);

/// Measures each number of replicas, alternating between fanfs's candidates.
pub(super) fn run(
    candidates: &[Candidate],
    options: &Options,
    passes: &mut Vec<Pass>,
) -> Result<(), Failure> {
    let fitting: Vec<&Candidate> =
        candidates.iter().filter(|c| Load::Scaling.fits(c) && !c.reads_one_replica()).collect();
    let most = options.scaling.iter().copied().max().unwrap_or(0);
    if fitting.is_empty() || most == 0 || !options.loads.contains(&Load::Scaling) {
        return Ok(());
    }
    let size = |count: usize| count as u64 * RATE * SECONDS;
    let room = Room::new(1, size(most), 1)?;
    eprintln!("making one file of {} MiB behind {most} replicas", size(most) >> 20);
    let replicas = room.fill_with_links(most, size(most))?;
    for count in &options.scaling {
        let start = |c: &&Candidate| c.start(&room, &replicas[..*count], REPLICA_KEYS, 0);
        let mut mounted = fitting.iter().map(start).collect::<Result<Vec<Mounted>, _>>()?;
        for round in 0..options.rounds {
            for one in &mounted {
                let pass = Load::Scaling.measure(one, (*count, round), size(*count), 0)?;
                interrupted()?;
                say(&pass, options.rounds);
                passes.push(pass);
            }
            mounted.rotate_left(1);
        }
    }
    Ok(())
}

fn of_the_sum(pass: &Pass) -> f64 {
    pass.bytes_per_second / (pass.replicas as u64 * RATE) as f64
}

/// The candidates and the numbers of replicas, each in order of appearance.
fn axes(passes: &[Pass]) -> (Vec<&str>, Vec<usize>) {
    let (mut names, mut counts): (Vec<&str>, Vec<usize>) = Default::default();
    for pass in passes {
        if !names.contains(&&*pass.candidate) {
            names.push(&pass.candidate);
        }
        if !counts.contains(&pass.replicas) {
            counts.push(pass.replicas);
        }
    }
    names.sort_unstable();
    (names, counts)
}

fn at(
    passes: &[Pass],
    name: &str,
    count: usize,
    figure: impl Fn(&Pass) -> Option<f64>,
) -> Option<f64> {
    let its = passes.iter().filter(|p| p.candidate == name && p.replicas == count);
    median(its.filter_map(figure).collect())
}

/// Medians of the share of the sum that one reader got.
pub(super) fn lines(passes: &[Pass]) -> Vec<Line> {
    let (names, counts) = axes(passes);
    let point = |name: &str, count: usize| {
        at(passes, name, count, |p| Some(of_the_sum(p))).map(|part| (count, part))
    };
    let line =
        |name: &str| (name.to_owned(), counts.iter().filter_map(|n| point(name, *n)).collect());
    names.into_iter().map(line).collect()
}

/// The table with its heading.
pub(super) fn to_markdown(passes: &[Pass]) -> String {
    let (names, counts) = axes(passes);
    let mut text = "### One reader over replicas of 100 MiB/s each, cold\n\n| | replicas | MB/s | \
                    of the sum | CPU s/GiB, daemon | total | peak MiB |\n|---|---:|---:|---:|---:|\
                    ---:|---:|\n"
        .to_owned();
    for name in names {
        for count in &counts {
            let at = |figure: &dyn Fn(&Pass) -> Option<f64>| at(passes, name, *count, figure);
            let _ = writeln!(
                text,
                "| {name} | {count} | {} | {} | {} | {} | {} |",
                cell(at(&|p| Some(p.bytes_per_second / 1e6)), 0),
                cell(at(&|p| Some(of_the_sum(p))), 3),
                cell(at(&Pass::daemon_cpu_per_gib), 3),
                cell(at(&|p| Some(p.cpu_per_gib())), 3),
                cell(at(&|p| p.peak.map(|peak| peak as f64 / f64::from(1 << 20))), 0),
            );
        }
    }
    text
}
