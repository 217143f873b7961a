//! Why a scenario, or a trace that it replays, is refused.

/// Why a scenario is refused. Its `Display` is one line.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not TOML, or has other keys than a scenario.
    #[error("{}{what}", line_prefix(*.line))]
    Syntax {
        /// From 1, where it is known.
        line: Option<usize>,
        /// The parser's words.
        what: String,
    },
    /// A key has a word that it may not have.
    #[error("{key} {value:?} is not known; use {known}")]
    UnknownWord {
        /// The key.
        key: &'static str,
        /// The word.
        value: String,
        /// The words that it may have.
        known: String,
    },
    /// A number is 0 or too large.
    #[error("{what} {number} is out of range; use 1 to {max}")]
    OutOfRange {
        /// The key, or what is counted.
        what: &'static str,
        /// The number.
        number: usize,
        /// The largest that is allowed.
        max: usize,
    },
    /// Neither data nor metadata is read.
    #[error("[cluster] and [file] are needed, or [metadata]")]
    NothingToRead,
    /// A limit in `[read]` is 0.
    #[error("a limit in [read] is 0; nothing could be read")]
    ZeroReadLimit,
    /// A node's disk or network has a rate of 0.
    #[error("a node has a rate of 0; let a [[change]] make it hang")]
    ZeroNodeRate,
    /// The file is empty, or cut into too many chunks.
    #[error("file.size and file.chunk make no file of 1 to {max} chunks")]
    ChunkCount {
        /// Most chunks of a file.
        max: u64,
    },
    /// A change multiplies a rate by a number that makes no sense.
    #[error("change.factor {factor} is out of range; use 0 to 1000")]
    ChangeFactor {
        /// The number.
        factor: f64,
    },
    /// A reader reads blocks of 0 bytes.
    #[error("reader.block is 0; nothing would be read")]
    ZeroBlock,
    /// A random reader has no end.
    #[error("reader.number is missing: how many reads")]
    MissingReadCount,
    /// A sequential reader has a number of reads.
    #[error("reader.number is for random reads; remove it")]
    UnusedReadCount,
    /// One of `reader.burst` and `reader.pause` is missing.
    #[error("reader.burst and reader.pause go together")]
    BurstWithoutPause,
    /// There is no cluster to replay a recording on.
    #[error("the scenario has no [cluster] and [file] to replay on")]
    NoCluster,
    /// A recorded file has too many chunks.
    #[error("a recorded file has more than {max} chunks")]
    RecordedFileTooLarge {
        /// Most chunks of a file.
        max: u64,
    },
}

/// Why a trace is refused. Its `Display` is one line.
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
        /// From 1.
        line: u64,
        /// The value.
        value: String,
        /// What is wrong with it.
        error: std::num::ParseIntError,
    },
}

fn line_prefix(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}
