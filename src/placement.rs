//! Where a file's chunks are: which nodes hold which bytes.
//!
//! An NFS mount shows none of this, so fanfs asks out of band. A [`Provider`] runs the
//! cluster's own tool, asks its name service, or reads a table. Its answer is a [`ChunkMap`].
//!
//! The [`Locator`] asks in parallel with the reads. It keeps the answers for each file
//! ([`file_placement`]), and translates nodes to replicas ([`node_names`]). [`affinity`] has
//! the subtrees that the configuration pins.
//!
//! *Invariant:* no read waits for a provider. Until the provider has answered, and when it does
//! not, all replicas are equal candidates.

pub mod affinity;
pub mod beegfs;
pub mod cephfs;
pub mod chunks;
pub mod command;
mod error;
pub mod exec;
pub mod file_placement;
pub mod glusterfs;
pub mod hdfs;
pub mod learned;
pub mod locator;
pub mod lustre;
pub mod maprfs;
pub mod node_names;
pub mod table;
mod tool;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use chunks::{ChunkMap, ChunkMapBuilder, LocalityMap};
pub use error::PlacementError;
pub use file_placement::Delivery;
pub use locator::{
    LocatedFile, Locator, LocatorPolicy, PlacementSource, PlacementStatus, ReplicaTopology,
};
pub use node_names::NodeNames;

use crate::config::ClusterTool;
use crate::config::placement::{CommandError, ProviderConfig as Written};
use crate::config::{self, PlacementConfig};
use crate::volume::ReplicaId;

/// The result of a provider's calls.
pub type Result<T> = std::result::Result<T, PlacementError>;

/// A question to a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The file, relative to the replicas' roots.
    pub path: PathBuf,
    /// Its size, bytes.
    pub size: u64,
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

/// The end of [`Provider::prepare`].
pub type PrepareFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A provider's answer to come.
pub type LocateFuture<'a> = Pin<Box<dyn Future<Output = Result<ChunkMap>> + Send + 'a>>;

/// A source that knows where chunks are.
pub trait Provider: Send + Sync {
    /// Its name, as in `[placement] provider`.
    fn name(&self) -> &'static str;

    /// Called once before the first query, when the volume begins to serve: the time to fetch facts
    /// that are common to all files.
    fn prepare(&self) -> PrepareFuture<'_> {
        Box::pin(std::future::ready(()))
    }

    /// Whether each gateway reads its own node's copy, so that no copy is spare.
    fn reads_any_copy(&self) -> bool {
        true
    }

    /// Facts about the cluster that make reads less local, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// How long an answer counts at most, whatever `ttl` is.
    fn answer_lifetime(&self) -> Duration {
        Duration::MAX
    }

    /// Where the chunks of a file are. Ends within the configured time.
    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a>;
}

/// The configured source of placement; `chunk_size` is the volume's.
///
/// # Errors
/// If the provider cannot be used as it is configured: for example, the table is malformed or
/// the file of certificates cannot be read.
pub fn build_source(placement: &PlacementConfig, chunk_size: u64) -> Result<PlacementSource> {
    let limit = placement.timeout;
    let root = placement.root.clone();
    let provider: Arc<dyn Provider> = match &placement.provider {
        Written::None => return Ok(PlacementSource::None),
        Written::Learned => return Ok(PlacementSource::Timing(chunk_size)),
        Written::Table { file } => Arc::new(table::TableProvider::open(file)?),
        Written::Exec { command } => {
            Arc::new(exec::ExecProvider::new(command_template(Some(command), &[])?, root, limit))
        }
        #[cfg(not(feature = "hdfs"))]
        Written::WebHdfs { .. } => return Err(PlacementError::WebHdfsNotBuilt),
        #[cfg(feature = "hdfs")]
        Written::WebHdfs { urls, user, ca_file } => {
            Arc::new(hdfs::WebHdfs::new(hdfs::WebHdfsSettings {
                urls: urls.clone(),
                user: user.clone(),
                ca_file: ca_file.clone(),
                root,
                timeout: limit,
            })?)
        }
        Written::Tool { tool, command, layout_command } => {
            let own = |usual| command_template(command.as_deref(), usual);
            match tool {
                ClusterTool::MapRfs => {
                    Arc::new(maprfs::MaprFs::new(own(maprfs::COMMAND)?, root, limit))
                }
                ClusterTool::Hdfs => {
                    Arc::new(hdfs::Fsck::new(own(hdfs::fsck::COMMAND)?, root, limit))
                }
                ClusterTool::CephFs => {
                    let layout =
                        command_template(layout_command.as_deref(), cephfs::LAYOUT_COMMAND)?;
                    Arc::new(cephfs::CephFs::new(own(cephfs::COMMAND)?, layout, root, limit))
                }
                ClusterTool::GlusterFs => {
                    let graph = layout_command.as_deref();
                    let graph =
                        graph.map(|graph| command_template(Some(graph), &[])).transpose()?;
                    Arc::new(glusterfs::GlusterFs::new(
                        own(glusterfs::COMMAND)?,
                        graph,
                        root,
                        limit,
                    ))
                }
                ClusterTool::Lustre => {
                    Arc::new(lustre::Lustre::new(own(lustre::COMMAND)?, root, limit))
                }
                ClusterTool::BeeGfs => {
                    Arc::new(beegfs::BeeGfs::new(own(beegfs::COMMAND)?, root, limit))
                }
            }
        }
    };
    Ok(PlacementSource::Provider(provider))
}

fn command_template(own: Option<&[String]>, usual: &[&str]) -> Result<command::CommandTemplate> {
    let words = own.map_or_else(|| usual.iter().map(|w| (*w).to_owned()).collect(), <[_]>::to_vec);
    let refused = |error: CommandError| PlacementError::InvalidAnswer(error.to_string());
    command::CommandTemplate::new(words).map_err(refused)
}

/// The configured names of the replicas' nodes.
pub fn configured_names(replicas: &[config::ReplicaConfig]) -> NodeNames {
    let mut names = NodeNames::new();
    for (id, replica) in replicas.iter().enumerate() {
        for name in std::iter::once(&replica.node).chain(&replica.aliases) {
            names.add(ReplicaId::new(id), name);
        }
    }
    names
}
