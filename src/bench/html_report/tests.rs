//! The page is well-formed, whatever the names in it, and shows the whole report.

use std::time::Duration;

use super::*;
use crate::bench::pass::{ReaderError, histogram};
use crate::bench::pass_error::PassError;
use crate::bench::plan::{PassSpec, plan_passes};
use crate::bench::results::{
    CompletedPass, CounterSample, PassOutcome, RateTimeline, ReportedReplica, SettingsUsed,
    result_rows,
};
use crate::volume::ReplicaSet;

/// A pass with made-up figures; the second one has failed.
fn outcome(number: usize, spec: PassSpec) -> PassOutcome {
    if number == 1 {
        let error = ReaderError::Open(std::io::Error::other("no answer & no reason"));
        let error = PassError::Reader { reader: "r<2>".to_owned(), error };
        return PassOutcome { spec, result: Err(error) };
    }
    let mut latency = histogram();
    for us in 1..2000 {
        latency.saturating_record(us * (1 + number as u64));
    }
    let pass = CompletedPass {
        spec,
        bytes: (spec.candidate.replicas().len() as u64) << 27,
        time: Duration::from_millis(1500),
        latency,
        reader_cpu: Duration::from_millis(90),
        daemon_cpu: Some(Duration::from_millis(40)),
        is_cut_short: false,
        fio_rate: Some(99.0),
        parts: Vec::new(),
    };
    PassOutcome { spec, result: Ok(pass) }
}

/// A report over `replicas`, with made-up figures.
fn report(replicas: usize) -> Report {
    let steps = plan_passes(ReplicaSet::first(replicas), 2);
    let outcomes: Vec<_> =
        steps.into_iter().enumerate().map(|(number, spec)| outcome(number, spec)).collect();
    let name = |index: usize| format!("r<{}>&co", index + 1);
    let names: Vec<String> = (0..replicas).map(name).collect();
    let sample = |i: u64| CounterSample {
        time: Duration::from_millis(250 * i),
        bytes: i << 25,
        replica_bytes: vec![i << 24; replicas],
    };
    let samples: Vec<_> = (0..12).map(sample).collect();
    let shown = |name: &String| ReportedReplica {
        name: name.clone(),
        path: "/mnt/\"a\"".to_owned(),
        raw_reads: Some("O_DIRECT"),
        failure: None,
    };
    Report {
        version: "0",
        volume: "v&w".to_owned(),
        file: "<data>".to_owned(),
        file_bytes: 1 << 30,
        made: false,
        replicas: names.iter().map(shown).collect(),
        settings: SettingsUsed {
            block: 1 << 20,
            random_block: 1 << 16,
            readers: 4,
            rounds: 2,
            seconds_per_pass: 1.5,
            deadline_seconds: 10.0,
            seed: 1,
        },
        seconds: 60.0,
        rows: result_rows(&outcomes, 4, |id| name(id.index())),
        over_time: Some(RateTimeline::from_samples(1, &names, &samples)),
        notes: vec!["a < b".to_owned()],
        failed: true,
    }
}

/// Reads tags by the rules of XML, and panics if one is not closed or closes another. Returns the
/// number of tags of each name.
fn tags(text: &str) -> std::collections::BTreeMap<String, usize> {
    let mut open: Vec<String> = Vec::new();
    let mut count = std::collections::BTreeMap::new();
    let mut rest = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>'), "a stray > before {}", &rest[begin..]);
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        let name = |tag: &str| tag.split_whitespace().next().unwrap().to_owned();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "</{closed}>");
        } else if let Some(alone) = tag.strip_suffix('/') {
            *count.entry(name(alone)).or_default() += 1;
        } else {
            *count.entry(name(tag)).or_default() += 1;
            open.push(name(tag));
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    count
}

#[test]
fn pages_are_well_formed() {
    for replicas in [1, 2, 3, 9] {
        let report = report(replicas);
        let page = render_html(&report).unwrap();
        let count = tags(&page);
        // With one replica there is no picture of rates over the number of replicas.
        assert_eq!(count["svg"], if replicas == 1 { 2 } else { 3 });
        assert_eq!(count["table"], 3);
        assert!(page.contains("r&lt;2&gt;: open: no answer &amp; no reason"));
        assert!(!page.contains("<data>") && !page.contains("http-equiv"));
        // The page loads nothing from elsewhere.
        assert!(!page.contains("src=") && !page.contains("href="), "{replicas}");
    }
}

#[test]
fn pictures_name_their_axes_and_lines() {
    let report = report(3);
    let over_time = plot::plot_over_time(&report).unwrap().unwrap();
    for name in ["MiB/s", "seconds since", "reader", "raw sum", "r&lt;3&gt;&amp;co"] {
        assert!(over_time.contains(name), "{name}");
    }
    let scaling = plot::plot_scaling(&report).unwrap().unwrap();
    for name in ["MiB/s", "replicas", "raw sum (ideal)", "fanfs, one reader"] {
        assert!(scaling.contains(name), "{name}");
    }
    let latency = plot::plot_latency(&report).unwrap().unwrap();
    for name in ["milliseconds", "99 %", "fanfs, 3 replicas", "raw, 3 replicas", "64 KiB"] {
        assert!(latency.contains(name), "{name}");
    }
    for picture in [over_time, scaling, latency] {
        assert!(tags(&picture)["text"] > 10);
        assert!(picture.len() < 60_000, "{}", picture.len());
    }
}

#[test]
fn the_table_shows_every_row_and_failure() {
    let report = report(3);
    let text = table::render_text(&report);
    assert_eq!(text.matches("fanfs, 3 replicas").count(), 3, "{text}");
    assert_eq!(text.matches("failed: round 1: r<2>: open: no answer").count(), 1, "{text}");
    assert!(text.contains("note: a < b") && text.contains("of fio"), "{text}");
    let widths: Vec<usize> =
        text.lines().filter(|line| line.contains(" alone ")).map(|l| l.chars().count()).collect();
    assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
}
