//! A volume to serve: its configuration, its mount point, and the mount's options.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// Options of a mount besides the volume's configuration.
#[derive(Clone, Debug, Default)]
pub struct MountOverrides {
    /// Honor set-id bits.
    pub suid: bool,
    /// Honor device nodes.
    pub dev: bool,
    /// Do not let programs on the mount run.
    pub noexec: bool,
    /// Allow no changes, whatever the configuration says.
    pub read_only: bool,
    /// Allow access to other users, whatever the configuration says.
    pub allow_other: bool,
    /// Do not listen on a control socket.
    pub no_control: bool,
    /// Another process keeps the device, so the daemon writes a journal for the next one.
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
