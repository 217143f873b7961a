//! Why a scenario, or a trace that it replays, is rejected.

/// Why a scenario is rejected. Its `Display` is one line.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not TOML, or has a key that a scenario does not have.
    #[error("{}{what}", line_prefix(*.line))]
    Syntax {
        /// The line, counted from 1, if it is known.
        line: Option<usize>,
        /// The parser's message.
        what: String,
    },
    /// A key has a value that it does not accept.
    #[error("{key} {value:?} is not known; use {known}")]
    UnknownWord {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The values that it accepts.
        known: String,
    },
    /// A number is 0 or too large.
    #[error("{what} {number} is out of range; use 1 to {max}")]
    OutOfRange {
        /// The key, or the name of the counted items.
        what: &'static str,
        /// The number.
        number: usize,
        /// The largest number that is allowed.
        max: usize,
    },
    /// The scenario reads neither data nor metadata.
    #[error("the scenario needs [cluster] and [file], or [metadata]")]
    NothingToRead,
    /// A limit in `[read]` is 0.
    #[error("a limit in [read] is 0; set it above 0 or remove it")]
    ZeroReadLimit,
    /// A node's disk or network has a rate of 0.
    #[error("a node has a rate of 0; to make it hang, add a [[change]] with factor 0")]
    ZeroNodeRate,
    /// The file is empty, or has too many chunks.
    #[error("file.size and file.chunk do not make a file of 1 to {max} chunks")]
    ChunkCount {
        /// The most chunks of a file.
        max: u64,
    },
    /// A change's factor is negative, too large or not a number.
    #[error("change.factor {factor} is out of range; use 0 to 1000")]
    ChangeFactor {
        /// The factor.
        factor: f64,
    },
    /// A reader reads blocks of 0 bytes.
    #[error("reader.block is 0; set it above 0")]
    ZeroBlock,
    /// A random reader has no number of reads.
    #[error("reader.number is missing; set the number of random reads")]
    MissingReadCount,
    /// A sequential reader has a number of reads.
    #[error("reader.number is only for random reads; remove it")]
    UnusedReadCount,
    /// One of `reader.burst` and `reader.pause` is missing.
    #[error("reader.burst and reader.pause must be set together")]
    BurstWithoutPause,
    /// There is no cluster to replay a recording on.
    #[error("the scenario has no [cluster] and [file] to replay on")]
    NoCluster,
    /// A recorded file has too many chunks.
    #[error("a recorded file has more than {max} chunks")]
    RecordedFileTooLarge {
        /// The most chunks of a file.
        max: u64,
    },
}

/// Why a trace is rejected. Its `Display` is one line.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// The text is not CSV.
    #[error("{0}")]
    Csv(String),
    /// A column is missing.
    #[error("line 1: there is no column {0:?}")]
    MissingColumn(&'static str),
    /// A value is not a number of bytes.
    #[error("line {line}: {value:?}: {error}")]
    NotANumber {
        /// The line, counted from 1.
        line: u64,
        /// The value.
        value: String,
        /// The parse error.
        error: std::num::ParseIntError,
    },
}

fn line_prefix(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}
