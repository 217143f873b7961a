//! The totals of a trace.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::unread::UnreadSegments;
use crate::format::{format_bytes, format_percent};
use crate::telemetry::trace::{AttemptEnd, TraceLine};

/// The totals of a trace.
pub(super) struct Summary {
    reads: u64,
    errors: u64,
    bytes: u64,
    /// Bytes of reads that were in memory when requested.
    bytes_in_memory: u64,
    latency: Histogram<u64>,
    replicas: BTreeMap<String, ReplicaTotals>,
    unread: UnreadSegments,
    hedges: u64,
    lost_lines: u64,
}

#[derive(Default)]
struct ReplicaTotals {
    segments: u64,
    bytes: u64,
    /// Bytes that another replica had already delivered, and readahead that was dropped before it
    /// was read.
    wasted: u64,
    failed: u64,
}

impl Default for Summary {
    fn default() -> Self {
        let took = Histogram::new_with_bounds(1, 3_600_000_000, 2)
            .expect("constant histogram bounds are valid");
        Self {
            reads: 0,
            errors: 0,
            bytes: 0,
            bytes_in_memory: 0,
            latency: took,
            replicas: BTreeMap::new(),
            unread: UnreadSegments::default(),
            hedges: 0,
            lost_lines: 0,
        }
    }
}

impl Summary {
    pub(super) fn add(&mut self, line: &TraceLine) {
        match line {
            TraceLine::Read(read) => {
                self.reads += 1;
                self.latency.saturating_record(read.took_us);
                if read.error.is_some() {
                    self.errors += 1;
                    return;
                }
                self.bytes += read.length;
                let here = read.parts.iter().filter(|p| p.replica.is_some() && p.waited_us == 0);
                self.bytes_in_memory += here.map(|part| part.length).sum::<u64>();
                for part in read.parts.iter().filter(|part| part.replica.is_some()) {
                    self.unread.mark_read(read.file, part);
                }
            }
            TraceLine::Segment(segment) => {
                self.hedges += u64::from(segment.hedge);
                let totals = self.replicas.entry(segment.replica.clone()).or_default();
                totals.segments += 1;
                match segment.end {
                    AttemptEnd::Delivered => {
                        totals.bytes += segment.length;
                        self.unread.add_segment(segment);
                    }
                    AttemptEnd::Wasted => totals.wasted += segment.length,
                    AttemptEnd::Failed => totals.failed += 1,
                }
            }
            TraceLine::Dropped(dropped) => {
                self.unread.remove_dropped(dropped.file, dropped.offset, dropped.took_us);
                self.add_wasted(&dropped.replica, dropped.unread);
            }
            TraceLine::Lost { lines } => {
                self.lost_lines += lines;
                // Missing lines may have said whether these segments were read.
                self.unread.take_unread();
            }
            // Another daemon starts with empty buffers.
            TraceLine::Start { .. } => self.on_daemon_end(),
            TraceLine::File { .. } | TraceLine::Unknown => {}
        }
    }

    /// Counts the unread segments as wasted: the daemon has exited, and its buffers are gone.
    pub(super) fn on_daemon_end(&mut self) {
        for (replica, bytes) in self.unread.take_unread() {
            self.add_wasted(&replica, bytes);
        }
    }

    fn add_wasted(&mut self, replica: &str, bytes: u64) {
        self.replicas.entry(replica.to_owned()).or_default().wasted += bytes;
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// A short form, for progress.
    pub(super) fn one_line(&self) -> String {
        format!("{} reads, {}", self.reads, format_bytes(self.bytes))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| self.latency.value_at_quantile(q) as f64 / 1e3;
        writeln!(
            f,
            "{} app reads, {}, {} errors; p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; \
             readahead hits {} of bytes; {} hedged reads",
            self.reads,
            format_bytes(self.bytes),
            self.errors,
            ms(0.5),
            ms(0.99),
            self.latency.max() as f64 / 1e3,
            format_percent(self.bytes_in_memory as f64 / self.bytes.max(1) as f64),
            self.hedges
        )?;
        for (name, totals) in &self.replicas {
            writeln!(
                f,
                "  {name}: {} segments, {}; unused {}, errors {}",
                totals.segments,
                format_bytes(totals.bytes),
                format_bytes(totals.wasted),
                totals.failed
            )?;
        }
        if self.unread.unread_bytes() > 0 {
            writeln!(f, "  in memory, not yet read: {}", format_bytes(self.unread.unread_bytes()))?;
        }
        if self.lost_lines > 0 {
            writeln!(f, "  {} events dropped: the trace was read too slowly", self.lost_lines)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::trace::{DropRecord, ReadPart, ReadRecord, SegmentRecord};

    fn segment(offset: u64, took_us: u64) -> TraceLine {
        TraceLine::Segment(SegmentRecord {
            t_us: 0,
            took_us,
            file: 1,
            offset,
            length: 100,
            replica: "n1".to_owned(),
            ahead: true,
            hedge: false,
            end: AttemptEnd::Delivered,
            error: None,
        })
    }

    fn read(offset: u64, length: u64, took_us: u64) -> TraceLine {
        let replica = Some("n1".to_owned());
        let parts = vec![ReadPart { offset, length, replica, took_us, waited_us: 0 }];
        TraceLine::Read(ReadRecord {
            t_us: 0,
            took_us: 1,
            file: 1,
            handle: 1,
            pid: 1,
            offset,
            length,
            error: None,
            parts,
        })
    }

    fn dropped(offset: u64, unread: u64, took_us: u64) -> TraceLine {
        TraceLine::Dropped(DropRecord {
            t_us: 0,
            file: 1,
            offset,
            length: 100,
            unread,
            replica: "n1".to_owned(),
            took_us,
        })
    }

    fn start() -> TraceLine {
        let text = r#"{"event":"start","format":1,"version":"","volume":"","mount_point":"",
                       "replicas":[],"segment":1}"#;
        serde_json::from_str(text).unwrap()
    }

    /// Wasted bytes, and unread bytes in memory.
    fn summed(lines: &[TraceLine]) -> (u64, u64) {
        let mut summary = Summary::default();
        lines.iter().for_each(|line| summary.add(line));
        let wasted = summary.replicas.values().map(|totals| totals.wasted).sum();
        (wasted, summary.unread.unread_bytes())
    }

    #[test]
    fn unread_bytes_are_in_memory_until_they_are_dropped() {
        assert_eq!(summed(&[segment(0, 7), segment(100, 8)]), (0, 200));
        let read_some = [segment(0, 7), read(0, 30, 7), read(20, 40, 7), read(0, 30, 7)];
        assert_eq!(summed(&read_some), (0, 40));
        assert_eq!(summed(&[&read_some[..], &[dropped(0, 40, 7)]].concat()), (40, 0));
        assert_eq!(summed(&[segment(0, 7), read(0, 100, 7)]), (0, 0));
        // A read's line comes first if the segment arrives at the same moment.
        assert_eq!(summed(&[read(0, 100, 7), segment(0, 7)]), (0, 0));
        // The segment was fetched again before the trace reported the drop of the first one.
        assert_eq!(summed(&[segment(0, 7), segment(0, 9), dropped(0, 60, 7)]), (60, 100));
        assert_eq!(summed(&[segment(0, 7), TraceLine::Lost { lines: 1 }]), (0, 0));
        assert_eq!(summed(&[segment(0, 7), start()]), (100, 0));
    }
}
