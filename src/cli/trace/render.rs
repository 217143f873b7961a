//! Renders a trace as text.
//!
//! ```text
//!       time s latency ms      PID  file  offset+bytes  replica and wait
//!     1.204118     10.400    41873  /run7.bam  268435456+1048576  n2 10.3 ms
//! ```

use std::collections::HashMap;
use std::fmt::Write;

use crate::cli::printable;
use crate::telemetry::trace::{
    AttemptEnd, DropRecord, ReadPart, ReadRecord, SegmentRecord, TraceLine,
};

/// Renders lines; keeps the paths of files, which later lines name by number.
pub(super) struct TraceRenderer {
    shows_segments: bool,
    file_paths: HashMap<u64, String>,
}

/// The column titles.
const HEADER: &str = "      time s latency ms      PID  file  offset+bytes  replica and wait";

impl TraceRenderer {
    pub(super) fn new(segments: bool) -> Self {
        Self { shows_segments: segments, file_paths: HashMap::new() }
    }

    /// The text of a line, if it is shown.
    pub(super) fn render_line(&mut self, line: &TraceLine) -> Option<String> {
        match line {
            TraceLine::Start { volume, mount_point, replicas, .. } => Some(format!(
                "{volume} at {}, replicas {}\n{HEADER}",
                printable(&mount_point.to_string_lossy()),
                replicas.join(", ")
            )),
            TraceLine::File { file, path, .. } => {
                self.file_paths.insert(*file, printable(path));
                None
            }
            TraceLine::Read(read) => Some(self.render_read(read)),
            TraceLine::Segment(segment) => {
                self.shows_segments.then(|| self.render_segment(segment))
            }
            TraceLine::Dropped(dropped) => {
                self.shows_segments.then(|| self.render_dropped(dropped))
            }
            TraceLine::Unknown => None,
            TraceLine::Lost { lines } => {
                Some(format!("   ... {lines} events dropped: the trace was read too slowly"))
            }
        }
    }

    fn file_path(&self, file: u64) -> &str {
        self.file_paths.get(&file).map_or("?", String::as_str)
    }

    fn render_read(&self, read: &ReadRecord) -> String {
        let reader = if read.pid == 0 { "-".to_owned() } else { read.pid.to_string() };
        let mut text = format!(
            "{:>12.6} {:>10.3} {reader:>8}  {}  {}+{}  ",
            read.t_us as f64 / 1e6,
            to_ms(read.took_us),
            self.file_path(read.file),
            read.offset,
            read.length
        );
        if let Some(error) = &read.error {
            let _ = write!(text, "error: {error}; ");
        }
        let parts: Vec<String> = read.parts.iter().map(format_part).collect();
        text.push_str(&parts.join(", "));
        text
    }

    fn render_segment(&self, segment: &SegmentRecord) -> String {
        let mut text = format!(
            "{:>12.6} {:>10.3}  segment  {}  {}+{}  {}",
            segment.t_us as f64 / 1e6,
            to_ms(segment.took_us),
            self.file_path(segment.file),
            segment.offset,
            segment.length,
            segment.replica
        );
        let flags = [(segment.ahead, " readahead"), (segment.hedge, " hedged")];
        flags.iter().filter(|(is, _)| *is).for_each(|(_, word)| text.push_str(word));
        match segment.end {
            AttemptEnd::Delivered => {}
            AttemptEnd::Wasted => text.push_str(" duplicate"),
            AttemptEnd::Failed => {
                let _ = write!(text, " failed: {}", segment.error.as_deref().unwrap_or("?"));
            }
        }
        text
    }

    fn render_dropped(&self, dropped: &DropRecord) -> String {
        format!(
            "{:>12.6} {:>10}  dropped  {}  {}+{}  {} {} bytes unused",
            dropped.t_us as f64 / 1e6,
            "-",
            self.file_path(dropped.file),
            dropped.offset,
            dropped.length,
            dropped.replica,
            dropped.unread
        )
    }
}

fn to_ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// "n2 10.3 ms", "n2 readahead hit", "missing".
fn format_part(part: &ReadPart) -> String {
    match &part.replica {
        None => "missing".to_owned(),
        Some(replica) if part.waited_us == 0 => format!("{replica} readahead hit"),
        Some(replica) => format!("{replica} {:.1} ms", to_ms(part.waited_us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_names_are_escaped() {
        let mut show = TraceRenderer::new(true);
        let start = TraceLine::Start {
            format: 1,
            version: String::new(),
            volume: "v".to_owned(),
            mount_point: "/m\x1b[2J".into(),
            replicas: Vec::new(),
            segment: 1,
        };
        let mut shown = show.render_line(&start).unwrap();
        show.render_line(&TraceLine::File {
            file: 4,
            path: "/a\x1b]0;x\x07\n\u{9b}1m".to_owned(),
            size: 10,
        });
        let segment = TraceLine::Segment(SegmentRecord {
            t_us: 0,
            took_us: 0,
            file: 4,
            offset: 0,
            length: 1,
            replica: "n1".to_owned(),
            ahead: false,
            hedge: false,
            end: AttemptEnd::Delivered,
            error: None,
        });
        shown += &show.render_line(&segment).unwrap();
        assert!(shown.contains(r"/m\u{1b}[2J") && shown.contains(r"/a\u{1b}]0;x"), "{shown}");
        assert!(!shown.replace('\n', "").contains(char::is_control), "{shown:?}");
        assert_eq!(shown.lines().count(), 2, "{shown}");
    }

    #[test]
    fn a_read_shows_the_replica_of_each_part() {
        let mut show = TraceRenderer::new(false);
        let file = TraceLine::File { file: 4, path: "/a b".to_owned(), size: 10 };
        assert_eq!(show.render_line(&file), None);
        let part = |replica: Option<&str>, waited_us| ReadPart {
            offset: 0,
            length: 5,
            replica: replica.map(str::to_owned),
            took_us: 1,
            waited_us,
        };
        let read = TraceLine::Read(ReadRecord {
            t_us: 1_500_000,
            took_us: 2500,
            file: 4,
            handle: 1,
            pid: 77,
            offset: 5,
            length: 10,
            error: Some("late".to_owned()),
            parts: vec![part(Some("n1"), 0), part(Some("n2"), 2400), part(None, 0)],
        });
        let text = show.render_line(&read).unwrap();
        assert!(text.contains("1.500000      2.500       77  /a b  5+10  error: late; "), "{text}");
        assert!(text.ends_with("n1 readahead hit, n2 2.4 ms, missing"), "{text}");
    }
}
