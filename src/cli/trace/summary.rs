//! What a trace came to.

use std::collections::BTreeMap;
use std::fmt;

use bytesize::ByteSize;
use hdrhistogram::Histogram;

use crate::telemetry::trace::{End, Line};

/// Sums of what was traced.
pub(super) struct Summary {
    reads: u64,
    errors: u64,
    bytes: u64,
    /// Bytes of reads that were in memory.
    in_memory: u64,
    took: Histogram<u64>,
    replicas: BTreeMap<String, Brought>,
    hedges: u64,
    lost: u64,
}

#[derive(Default)]
struct Brought {
    segments: u64,
    bytes: u64,
    wasted: u64,
    failed: u64,
}

impl Default for Summary {
    fn default() -> Self {
        let took = Histogram::new_with_bounds(1, 3_600_000_000, 2)
            .expect("constant histogram bounds are valid");
        let (reads, errors, bytes, in_memory, hedges, lost) = (0, 0, 0, 0, 0, 0);
        Self { reads, errors, bytes, in_memory, took, replicas: BTreeMap::new(), hedges, lost }
    }
}

impl Summary {
    pub(super) fn add(&mut self, line: &Line) {
        match line {
            Line::Read(read) => {
                self.reads += 1;
                self.took.saturating_record(read.took_us);
                if read.error.is_some() {
                    self.errors += 1;
                    return;
                }
                self.bytes += read.length;
                let here = read.parts.iter().filter(|p| p.replica.is_some() && p.waited_us == 0);
                self.in_memory += here.map(|part| part.length).sum::<u64>();
            }
            Line::Segment(segment) => {
                self.hedges += u64::from(segment.hedge);
                let brought = self.replicas.entry(segment.replica.clone()).or_default();
                brought.segments += 1;
                match segment.end {
                    End::Delivered => brought.bytes += segment.length,
                    End::Wasted => brought.wasted += segment.length,
                    End::Failed => brought.failed += 1,
                }
            }
            Line::Lost { lines } => self.lost += lines,
            Line::Start { .. } | Line::File { .. } => {}
        }
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// In a few words.
    pub(super) fn short(&self) -> String {
        format!("{} reads, {}", self.reads, size(self.bytes))
    }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| self.took.value_at_quantile(q) as f64 / 1e3;
        writeln!(
            f,
            "{} reads, {}, {} errors; p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms; {:.0} % in memory when asked for; {} hedges",
            self.reads,
            size(self.bytes),
            self.errors,
            ms(0.5),
            ms(0.99),
            self.took.max() as f64 / 1e3,
            100.0 * self.in_memory as f64 / self.bytes.max(1) as f64,
            self.hedges
        )?;
        for (name, brought) in &self.replicas {
            writeln!(
                f,
                "  {name}: {} segments, {}; wasted {}, failed {}",
                brought.segments,
                size(brought.bytes),
                size(brought.wasted),
                brought.failed
            )?;
        }
        if self.lost > 0 {
            writeln!(
                f,
                "  {} lines were left out: they came faster than they were taken",
                self.lost
            )?;
        }
        Ok(())
    }
}
