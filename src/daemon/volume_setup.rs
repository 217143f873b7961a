//! A volume that is to be served: its configuration, where, and what the mount's options
//! change.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// What may be said about a mount besides the volume's configuration.
#[derive(Clone, Debug, Default)]
pub struct MountOverrides {
    /// Honour set-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Do not let programs be run.
    pub noexec: bool,
    /// Let nothing be changed, whatever the configuration says.
    pub read_only: bool,
    /// Let other users in, whatever the configuration says.
    pub allow_other: bool,
    /// Do not listen on a control socket.
    pub no_control: bool,
    /// Another process keeps the device: the daemon writes down what the next one has to
    /// know if this one is killed.
    pub is_supervised: bool,
}

/// A volume and its mount point.
pub(super) struct VolumeSetup {
    pub(super) config: Config,
    pub(super) mount_point: PathBuf,
    pub(super) overrides: MountOverrides,
}

impl VolumeSetup {
    pub(super) fn new(config: Config, mount_point: &Path, overrides: &MountOverrides) -> Self {
        Self { config, mount_point: mount_point.to_owned(), overrides: overrides.clone() }
    }
}
