//! Which privileges a volume's daemon needs.

use rustix::thread::CapabilitySet as Set;

use super::Extra;
use crate::config::placement::Provider;
use crate::config::{Access, Config};
use crate::privilege::{ADMIN, Capabilities, FILE_CAPS, Kept, LOOK, PIPES, keep_only};

/// To become the caller for his calls.
const OTHERS: Capabilities = Set::SETUID.union(Set::SETGID);

/// What root may do with other users' files, and does through a volume that can be
/// written.
const CHANGES: Capabilities =
    Set::CHOWN.union(Set::DAC_OVERRIDE).union(Set::FOWNER).union(Set::FSETID).union(Set::MKNOD);

/// Gives up every privilege that mounting and serving this volume does not take.
/// To be called before anything else of it, while the process has one thread;
/// that process can never mount a volume that needs more.
///
/// # Errors
/// What the kernel refuses it with.
pub fn drop_privileges(config: &Config, extra: &Extra) -> std::io::Result<()> {
    keep_only(&needed(config, extra))
}

fn needed(config: &Config, extra: &Extra) -> Kept {
    let mut kept = Kept {
        used: Set::DAC_READ_SEARCH,
        raised: ADMIN | PIPES,
        programs: Set::empty(),
        set_id_programs: false,
    };
    if config.fuse.allow_other || extra.allow_other {
        kept.used |= OTHERS;
        kept.raised |= LOOK;
    }
    if config.volume.access == Access::ReadWrite && !extra.read_only {
        kept.used |= CHANGES;
        kept.raised |= FILE_CAPS;
    }
    if runs_programs(&config.placement.provider) {
        // They may be run as another user (`sudo -u`, `runuser`), and are killed when
        // they take too long.
        kept.used |= Set::KILL;
        kept.programs |= OTHERS;
        kept.set_id_programs = true;
    }
    kept
}

fn runs_programs(provider: &Provider) -> bool {
    match provider {
        Provider::None | Provider::Learned | Provider::Table { .. } => false,
        Provider::WebHdfs { .. } => false,
        Provider::Tool { .. } | Provider::Exec { .. } => true,
    }
}
