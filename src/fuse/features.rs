//! What the kernel and fanfs agree on before the first request.

use fuser::{InitFlags, KernelConfig};

use super::MountOptions;
use crate::fs::Fs;

/// What is asked of the kernel.
pub(super) struct InitFeatures {
    max_background: u16,
    max_request: u64,
}

impl InitFeatures {
    pub(super) fn new(options: &MountOptions) -> Self {
        Self { max_background: options.max_background, max_request: options.max_request }
    }

    /// Asks for it, and tells `fs` what came of it.
    pub(super) fn negotiate(&self, fs: &Fs, config: &mut KernelConfig) {
        // Each is used where the kernel has it and done without where not.
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            // The kernel checks access control lists as well as modes, whoever looked
            // before: fanfs answers looks with its own rights (`fs::path_queries`).
            InitFlags::FUSE_POSIX_ACL,
        ] {
            let _ = config.add_capabilities(capability);
        }
        // Without FUSE_ATOMIC_O_TRUNC the kernel opens and then truncates, after it has
        // looked whether the file is a program that runs: to open it read-only and
        // truncated, which asks for that, would have cut it off before.
        if fs.can_write() {
            for capability in [
                // The replica takes set-id bits away, as it would from the caller.
                InitFlags::FUSE_HANDLE_KILLPRIV_V2,
                // It applies the umask too, or a default access control list.
                InitFlags::FUSE_DONT_MASK,
            ] {
                let _ = config.add_capabilities(capability);
            }
        }
        if fs.has_lock_replica() {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS);
            let _ = config.add_capabilities(InitFlags::FUSE_FLOCK_LOCKS);
        }
        let maps_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        fs.open_files.set_direct_mmap(maps_direct.is_ok());
        if fs.open_files.is_passthrough_wanted() {
            match config.add_capabilities(InitFlags::FUSE_PASSTHROUGH) {
                // One: a replica may not be stacked itself, and one more file
                // system may be stacked on this mount.
                Ok(()) => {
                    let _ = config.set_max_stack_depth(1);
                }
                Err(_) => {
                    fs.open_files.disable_passthrough("the kernel is older than 6.9".to_owned())
                }
            }
        }
        let _ = config.set_max_background(self.max_background);
        // This library derives the largest read from the largest write; above
        // its own limit it says what that is.
        let most = u32::try_from(self.max_request).unwrap_or(u32::MAX);
        if let Err(limit) = config.set_max_write(most) {
            let _ = config.set_max_write(limit);
        }
    }
}
