//! Where a file's chunks are: which nodes hold which bytes.
//!
//! An NFS mount shows none of it, so it is asked for out of band: a [`Provider`]
//! runs the cluster's own tool, asks its name service, or looks into a table.
//! What comes back is a [`ChunkMap`].
//!
//! The [`Locator`] asks, beside the reads, keeps what was answered for each file
//! ([`file`]), and translates nodes to replicas ([`names`]). Subtrees that are
//! pinned by configuration are in [`affinity`].
//!
//! *Invariant:* no read waits for a provider. Until it has answered, and when it
//! does not, every replica is a candidate like any other.

pub mod affinity;
mod ask;
pub mod beegfs;
pub mod cephfs;
pub mod chunks;
pub mod command;
mod error;
pub mod exec;
pub mod file;
pub mod glusterfs;
pub mod hdfs;
pub mod learned;
pub mod locator;
pub mod lustre;
pub mod maprfs;
pub mod names;
pub mod table;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

pub use chunks::{Builder, ChunkMap, Mapped};
pub use error::PlacementError;
pub use file::Came;
pub use locator::{FileAt, Ground, Locator, LocatorPolicy, PlacementStatus, Source};
pub use names::NodeNames;

use crate::config::placement::{Provider as Written, Tool};
use crate::config::{self, Placement};
use crate::volume::{ByteRange, ReplicaId};

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
    /// The file's inode number as a replica shows it.
    pub inode: u64,
}

impl Query {
    /// The file's path under the replica.
    pub fn in_replica(&self) -> PathBuf {
        self.replica.join(&self.path)
    }
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

/// Who is asked, by configuration; `chunk_size` is the volume's.
///
/// # Errors
/// Where the provider cannot be used as it is configured: a table that is none,
/// a file of certificates that cannot be read.
pub fn source(placement: &Placement, chunk_size: u64) -> Result<Source> {
    let limit = placement.timeout;
    let root = placement.root.clone();
    let provider: Arc<dyn Provider> = match &placement.provider {
        Written::None => return Ok(Source::Nobody),
        Written::Learned => return Ok(Source::Timing(chunk_size)),
        Written::Table { file } => Arc::new(table::Table::open(file)?),
        Written::Exec { command } => {
            Arc::new(exec::Exec::new(template(Some(command), &[])?, root, limit))
        }
        Written::WebHdfs { urls, user, ca_file } => {
            Arc::new(hdfs::WebHdfs::new(hdfs::WebSettings {
                urls: urls.clone(),
                user: user.clone(),
                ca: ca_file.clone(),
                root,
                limit,
            })?)
        }
        Written::Tool { tool, command, layout_command } => {
            let own = |usual| template(command.as_deref(), usual);
            match tool {
                Tool::MapRfs => Arc::new(maprfs::MaprFs::new(own(maprfs::COMMAND)?, root, limit)),
                Tool::Hdfs => Arc::new(hdfs::Fsck::new(own(hdfs::fsck::COMMAND)?, root, limit)),
                Tool::CephFs => {
                    let layout = template(layout_command.as_deref(), cephfs::LAYOUT_COMMAND)?;
                    Arc::new(cephfs::CephFs::new(own(cephfs::COMMAND)?, layout, root, limit))
                }
                Tool::GlusterFs => {
                    Arc::new(glusterfs::GlusterFs::new(own(glusterfs::COMMAND)?, root, limit))
                }
                Tool::Lustre => Arc::new(lustre::Lustre::new(own(lustre::COMMAND)?, root, limit)),
                Tool::BeeGfs => Arc::new(beegfs::BeeGfs::new(own(beegfs::COMMAND)?, root, limit)),
            }
        }
    };
    Ok(Source::Provider(provider))
}

fn template(own: Option<&[String]>, usual: &[&str]) -> Result<command::Template> {
    let words = own.map_or_else(|| usual.iter().map(|w| (*w).to_owned()).collect(), <[_]>::to_vec);
    command::Template::new(words).map_err(PlacementError::Nonsense)
}

/// The names that the replicas answer to by configuration.
pub fn configured_names(replicas: &[config::Replica]) -> NodeNames {
    let mut names = NodeNames::new();
    for (id, replica) in replicas.iter().enumerate() {
        for name in std::iter::once(&replica.node).chain(&replica.aliases) {
            names.add(ReplicaId::new(id), name);
        }
    }
    names
}
