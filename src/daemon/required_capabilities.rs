//! The privileges that a volume's daemon needs.

use rustix::thread::CapabilitySet as Set;

use super::volume_setup::MountOverrides;
use crate::capabilities::{
    ADMIN, Capabilities, FILE_CAPS, PIPES, READ_PROC, RetainedCapabilities, keep_only,
};
use crate::config::placement::ProviderConfig;
use crate::config::{Access, Config};

/// For assuming a caller's credentials.
const IMPERSONATION_CAPS: Capabilities = Set::SETUID.union(Set::SETGID);

/// Root's rights to other users' files, which root keeps on a volume that can be written.
const WRITE_CAPS: Capabilities =
    Set::CHOWN.union(Set::DAC_OVERRIDE).union(Set::FOWNER).union(Set::FSETID).union(Set::MKNOD);

/// Gives up every privilege that mounting and serving this volume does not need. Must be called
/// before any other part of the mount, while the process has one thread. The process can never
/// mount a volume that needs more.
///
/// # Errors
/// The kernel's error.
pub(super) fn drop_privileges(config: &Config, extra: &MountOverrides) -> std::io::Result<()> {
    keep_only(&required_caps(config, extra))
}

fn required_caps(config: &Config, extra: &MountOverrides) -> RetainedCapabilities {
    let mut kept = RetainedCapabilities {
        effective: Set::DAC_READ_SEARCH,
        raisable: ADMIN | PIPES,
        child_bounding: Set::empty(),
        allows_set_id_programs: false,
    };
    if config.fuse.allow_other || extra.allow_other {
        kept.effective |= IMPERSONATION_CAPS;
        kept.raisable |= READ_PROC;
    }
    if config.volume.access == Access::ReadWrite && !extra.read_only {
        kept.effective |= WRITE_CAPS;
        kept.raisable |= FILE_CAPS;
    }
    if config.replicas.iter().any(|replica| replica.location.export().is_some()) {
        // Most servers take calls only from ports below 1024.
        kept.effective |= Set::NET_BIND_SERVICE;
    }
    if runs_programs(&config.placement.provider) {
        // The command may run them as another user (`sudo -u`, `runuser`), and fanfs kills
        // programs that take too long.
        kept.effective |= Set::KILL;
        kept.child_bounding |= IMPERSONATION_CAPS;
        kept.allows_set_id_programs = true;
    }
    kept
}

fn runs_programs(provider: &ProviderConfig) -> bool {
    match provider {
        ProviderConfig::None | ProviderConfig::Learned | ProviderConfig::Table { .. } => false,
        ProviderConfig::WebHdfs { .. } => false,
        ProviderConfig::Tool { .. } | ProviderConfig::Exec { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_volumes_of_exports_may_use_low_ports() {
        let may = |replica: &str| {
            let text = format!("[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\n{replica}\n");
            let config = crate::config::parse(&text, Path::new("v.toml")).unwrap();
            let kept = required_caps(&config, &MountOverrides::default());
            kept.effective.contains(Set::NET_BIND_SERVICE)
        };
        assert!(may("address = 'nfs://gw/x'"));
        assert!(!may("path = '/x'"));
    }
}
