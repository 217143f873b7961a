//! The page is well-formed, whatever the names in it, and shows the whole report.

use std::collections::{BTreeMap, BTreeSet};
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
        version: "1.2.3",
        date: "2026-11-25T20:22:14Z".to_owned(),
        host: "host<1>".to_owned(),
        kernel: "Linux 6.18.44".to_owned(),
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
fn tags(text: &str) -> BTreeMap<String, usize> {
    let mut open: Vec<String> = Vec::new();
    let mut count = BTreeMap::new();
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
        // With one replica there is no plot of rates over the number of replicas.
        assert_eq!(count["svg"], if replicas == 1 { 2 } else { 3 });
        assert_eq!(count["table"], 3);
        assert!(page.contains("r&lt;2&gt;: cannot open the file: no answer &amp; no reason"));
        assert!(!page.contains("<data>") && !page.contains("http-equiv"));
        // The page loads nothing from elsewhere.
        assert!(!page.contains("src=") && !page.contains("href="), "{replicas}");
    }
}

#[test]
fn plots_name_their_axes_and_lines() {
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
    for name in ["milliseconds", "99%", "fanfs, 3 replicas", "raw, 3 replicas", "64 KiB"] {
        assert!(latency.contains(name), "{name}");
    }
    for plot in [over_time, scaling, latency] {
        assert!(tags(&plot)["text"] > 10);
        assert!(plot.len() < 60_000, "{}", plot.len());
        // The page scales it to its own width.
        assert!(plot.contains("viewBox=\"0 0 960 360\""));
    }
}

#[test]
fn the_table_shows_every_row_and_failure() {
    let report = report(3);
    let text = table::render_text(&report, 100);
    // For each load in the main table and in fio's.
    assert_eq!(text.matches("fanfs, 3 replicas").count(), 6, "{text}");
    assert_eq!(
        text.matches("failed: round 1: r<2>: cannot open the file: no answer").count(),
        1,
        "{text}"
    );
    assert!(text.contains("note: a < b") && text.contains("bench/fio"), "{text}");
    let is_row = |line: &&str| line.starts_with("  r<") && !line.contains("failed");
    let widths: BTreeSet<usize> =
        text.lines().filter(is_row).map(|line| line.chars().count()).collect();
    assert_eq!(widths.len(), 2, "one width for each of the two kinds of tables: {text}");
    assert!(widths.iter().all(|width| *width <= 100), "{text}");
}

#[test]
fn names_cannot_control_the_terminal() {
    let mut report = report(1);
    report.file = "a\x1b[2J\nb".to_owned();
    report.rows[0].failures.push("/mnt/a\x1b[2J: no answer".to_owned());
    report.notes.push("\x1b[2J".to_owned());
    let text = table::render_text(&report, 100);
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains(r"file a\u{1b}[2J\nb ("), "{text}");
}

#[test]
fn the_page_starts_with_the_result_and_its_origin() {
    let start = |replicas: usize| {
        let page = render_html(&report(replicas)).unwrap();
        let body = page.split_once("<body>\n").unwrap().1;
        body.lines().take(3).collect::<Vec<_>>().join("\n")
    };
    // The sum has three times the bytes of one replica, in the same time.
    assert_eq!(
        start(3),
        "<h1>256 MiB/s, 3.0x the best replica, 100.0% of the sum</h1>\n\
         <p class=\"soft\">2026-11-25 20:22:14 UTC, host host&lt;1&gt;, Linux 6.18.44, \
         fanfs 1.2.3</p>\n\
         <p>Median of one sequential reader through fanfs, 3 replicas.</p>"
    );
    let single = start(1);
    assert!(single.starts_with("<h1>85 MiB/s, 100.0% of the replica alone</h1>"), "{single}");
    let mut empty = report(3);
    empty.rows.clear();
    assert!(render_html(&empty).unwrap().contains("<h1>No sequential rate through fanfs</h1>"));
    let mut failed = report(3);
    failed.rows.iter_mut().for_each(|row| row.mib_per_second = None);
    assert!(!render_html(&failed).unwrap().contains("Median of one sequential reader"));
}

#[test]
fn a_speedup_far_below_one_is_not_zero() {
    let shown = [0.0231, 0.82, 0.996, 2.68].map(format_speedup);
    assert_eq!(shown, ["0.02x", "0.82x", "1.0x", "2.7x"]);
}
