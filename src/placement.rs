//! Where a file's chunks are: which nodes hold which bytes.
//!
//! An NFS mount shows none of it, so it is asked for out of band: a [`Provider`]
//! runs the cluster's own tool, asks its name service, or looks into a table.
//! What comes back is a [`ChunkMap`].
//!
//! *Invariant:* no read waits for a provider. Until it has answered, and when it
//! does not, every replica is a candidate like any other.

pub mod chunks;
pub mod command;
mod error;
pub mod hdfs;

use std::path::PathBuf;
use std::pin::Pin;

pub use chunks::{Builder, ChunkMap, Mapped};
pub use error::PlacementError;

use crate::volume::ByteRange;

/// What a provider returns.
pub type Result<T> = std::result::Result<T, PlacementError>;

/// What is asked of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The file, relative to the replicas' roots.
    pub path: PathBuf,
    /// Its size, bytes.
    pub size: u64,
    /// The bytes that somebody is about to read; a piecewise provider answers
    /// for these alone.
    pub range: ByteRange,
    /// A replica's directory, under which the file can be found.
    pub replica: PathBuf,
}

/// Answers to come.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<ChunkMap>> + Send + 'a>>;

/// Somebody who knows where chunks are.
pub trait Provider: Send + Sync {
    /// As in `[placement] provider`.
    fn name(&self) -> &'static str;

    /// Whether it answers for the range asked for, not for the whole file.
    fn is_piecewise(&self) -> bool {
        false
    }

    /// Where the chunks of a file are. Ends within the configured time.
    fn locate<'a>(&'a self, query: &'a Query) -> Answering<'a>;
}
