//! Where a replica is: in a mounted directory, or on a server that fanfs reads itself.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::nfs::{NfsAddress, Version};

/// Where a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaLocation {
    /// A directory: an absolute path.
    Directory(PathBuf),
    /// An NFS server's export, which needs no mount.
    Export(NfsExport),
}

/// An export, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsExport {
    /// The server and the path on it.
    pub address: NfsAddress,
    /// The version of NFS; `None` takes what the server offers.
    pub version: Option<Version>,
    /// The number of connections to the server.
    pub connections: usize,
    /// The port of the server's MOUNT service of NFSv3; `None` asks the portmapper.
    pub mount_port: Option<u16>,
}

impl ReplicaLocation {
    /// The directory, if it is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Export(_) => None,
        }
    }

    /// The export, if it is one.
    pub fn export(&self) -> Option<&NfsExport> {
        match self {
            Self::Directory(_) => None,
            Self::Export(export) => Some(export),
        }
    }

    /// The path of the directory, or the address of the export as if it were a path: the form that
    /// reports and records have. No directory's path begins like an address.
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::Directory(path) => path.clone(),
            Self::Export(export) => export.address.to_string().into(),
        }
    }
}

impl From<PathBuf> for ReplicaLocation {
    fn from(path: PathBuf) -> Self {
        Self::Directory(path)
    }
}

impl fmt::Display for ReplicaLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Export(export) => export.address.fmt(f),
        }
    }
}
