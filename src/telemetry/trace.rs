//! The format of `fanfs trace` recordings: one line of JSON for each event.
//!
//! A recording begins with a [`TraceLine::Start`]; times count from then. A [`TraceLine::File`]
//! introduces each file before the first line about it. Lines are in the order in which events
//! ended. `fanfs simulate --trace` reads recordings, so fields are added but never changed. Readers
//! ignore unknown fields and events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::volume::path_serde;

/// The format version that this fanfs writes.
pub const FORMAT: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum TraceLine {
    /// The recording begins. It begins again when another daemon takes over the mount.
    Start {
        /// The format version, [`FORMAT`].
        format: u32,
        /// fanfs's version.
        version: String,
        /// The volume's name.
        volume: String,
        /// Where it is mounted.
        #[serde(with = "path_serde")]
        mount_point: PathBuf,
        /// The replicas' names.
        replicas: Vec<String>,
        /// The unit of dispatch, bytes.
        segment: u64,
    },
    /// Introduces a version of a file.
    File {
        /// The number by which other lines refer to it.
        file: u64,
        /// Its path in the volume; bytes that are not UTF-8 are replaced.
        path: String,
        /// The file's size, bytes.
        size: u64,
    },
    /// A read was answered.
    Read(ReadRecord),
    /// A replica finished an attempt at a segment.
    Segment(SegmentRecord),
    /// A segment that was not completely read was dropped from memory.
    Dropped(DropRecord),
    /// The listener was too slow, and lines were lost.
    Lost {
        /// The number of lost lines.
        lines: u64,
    },
    /// An event of a later version.
    #[serde(other)]
    Unknown,
}

/// A read of an application, or of the kernel's readahead for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadRecord {
    /// When the request came, microseconds.
    pub t_us: u64,
    /// The time until the answer, microseconds.
    pub took_us: u64,
    /// The file's number.
    pub file: u64,
    /// The open handle's number.
    pub handle: u64,
    /// The id of the process or thread that read; 0 if the kernel did not say.
    pub pid: u32,
    /// First byte.
    pub offset: u64,
    /// The bytes requested, limited to the file's end.
    pub length: u64,
    /// The error, if it was not answered with data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The sources of its bytes, in order.
    pub parts: Vec<ReadPart>,
}

/// The source of some bytes of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadPart {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The replica that delivered them; none if they did not arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// How long the replica took for the segment that contains them, microseconds.
    pub took_us: u64,
    /// How long the read waited for them, microseconds; 0 if they were in memory.
    pub waited_us: u64,
}

/// One attempt to read a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentRecord {
    /// When it was sent, microseconds.
    pub t_us: u64,
    /// How long it took, microseconds.
    pub took_us: u64,
    /// The file's number.
    pub file: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The replica that was asked.
    pub replica: String,
    /// Whether no reader was waiting for it when it arrived.
    pub ahead: bool,
    /// Whether it was a hedge of a segment that was late elsewhere.
    pub hedge: bool,
    /// How it ended.
    pub end: AttemptEnd,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Readahead that was dropped before all of it was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropRecord {
    /// When it was dropped, microseconds.
    pub t_us: u64,
    /// The file's number.
    pub file: u64,
    /// First byte of the segment.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// The bytes of it that no read requested.
    pub unread: u64,
    /// The replica that delivered it.
    pub replica: String,
    /// How long the replica took for it, microseconds.
    pub took_us: u64,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptEnd {
    /// It delivered the segment.
    Delivered,
    /// It delivered a segment that had already arrived.
    Wasted,
    /// It failed.
    Failed,
}

/// The reads of one handle, in the order of their requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleReplay {
    /// The file's number; handles of the same file have the same number.
    pub file: u64,
    /// The file's size, bytes.
    pub size: u64,
    /// The time of its first read, microseconds.
    pub start_us: u64,
    /// For each read: its offset, its length in bytes, and the reader's pause before it,
    /// microseconds.
    pub reads: Vec<(u64, u64, u64)>,
}

/// Why a recording cannot be replayed. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A line is not part of a recording.
    #[error("line {line}: {error}")]
    Malformed {
        /// The line's number.
        line: usize,
        /// The parse error.
        error: serde_json::Error,
    },
    /// A newer fanfs made the recording.
    #[error("line {line}: format {format} is from a newer fanfs; this fanfs reads format {FORMAT}")]
    NewerFormat {
        /// The line's number.
        line: usize,
        /// The recording's format version.
        format: u32,
    },
}

/// The reads that can be replayed: each handle is its own reader.
///
/// # Errors
/// Names the first line that cannot be used.
pub fn parse_replays(text: &str) -> Result<Vec<HandleReplay>, ReplayError> {
    let mut sizes = BTreeMap::new();
    let mut reads: BTreeMap<(u64, u64), Vec<ReadRecord>> = BTreeMap::new();
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    for (line, json) in lines {
        match serde_json::from_str(json).map_err(|error| ReplayError::Malformed { line, error })? {
            TraceLine::Start { format, .. } if format > FORMAT => {
                return Err(ReplayError::NewerFormat { line, format });
            }
            TraceLine::File { file, size, .. } => {
                sizes.insert(file, size);
            }
            TraceLine::Read(read) if read.error.is_none() && read.length > 0 => {
                reads.entry((read.file, read.handle)).or_default().push(read);
            }
            TraceLine::Start { .. } | TraceLine::Read(_) | TraceLine::Segment(_) => {}
            TraceLine::Dropped(_) | TraceLine::Lost { .. } | TraceLine::Unknown => {}
        }
    }
    let replay = |((file, _), mut reads): ((u64, u64), Vec<ReadRecord>)| {
        reads.sort_by_key(|read| read.t_us);
        let start_us = reads.first().map_or(0, |read| read.t_us);
        let mut done = start_us;
        let last = reads.iter().map(|read| read.offset + read.length).max().unwrap_or(0);
        let paused = reads.iter().map(|read| {
            let pause = read.t_us.saturating_sub(done);
            done = done.max(read.t_us + read.took_us);
            (read.offset, read.length, pause)
        });
        let reads = paused.collect();
        HandleReplay {
            file,
            size: sizes.get(&file).copied().unwrap_or(0).max(last),
            start_us,
            reads,
        }
    };
    Ok(reads.into_iter().map(replay).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn read(t_us: u64, took_us: u64, handle: u64, offset: u64) -> String {
        let parts = Vec::new();
        let file = 3;
        let pid = 7;
        let length = 10;
        let error = None;
        let read = ReadRecord { t_us, took_us, file, handle, pid, offset, length, error, parts };
        serde_json::to_string(&TraceLine::Read(read)).unwrap()
    }

    #[test]
    fn each_handle_becomes_a_reader_with_pauses() {
        let file = r#"{"event":"file","file":3,"path":"a","size":100}"#;
        let lines = [file.into(), read(50, 10, 1, 0), read(55, 5, 2, 90), read(100, 10, 1, 10)];
        let found = parse_replays(&lines.join("\n")).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].start_us, found[0].size), (50, 100));
        assert_eq!(found[0].reads, [(0, 10, 0), (10, 10, 40)]);
        assert_eq!(found[1].reads, [(90, 10, 0)]);
    }

    #[test]
    fn an_invalid_trace_is_refused_with_its_line() {
        let error = parse_replays("{\"event\":\"lost\",\"lines\":2}\noffset,length\n")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("line 2: "), "{error}");
        let newer = r#"{"event":"start","format":9,"version":"","volume":"","mount_point":"","replicas":[],"segment":1}"#;
        assert!(parse_replays(newer).unwrap_err().to_string().contains("newer"));
    }

    #[test]
    fn a_mount_point_may_contain_any_bytes() {
        let bytes = std::ffi::OsStr::from_bytes(b"/mnt/\xff");
        let mount_point = PathBuf::from(bytes);
        let line = TraceLine::Start {
            format: FORMAT,
            version: String::new(),
            volume: "v".to_owned(),
            mount_point,
            replicas: Vec::new(),
            segment: 1,
        };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<TraceLine>(&text).unwrap(), line);
    }

    #[test]
    fn unknown_fields_of_later_versions_are_ignored() {
        let more = read(1, 1, 1, 0).replace("\"pid\":7", "\"pid\":7,\"colour\":\"red\"");
        let event = "{\"event\":\"painted\",\"colour\":\"red\"}";
        assert_eq!(parse_replays(&format!("{more}\n{event}")).unwrap().len(), 1);
    }
}
