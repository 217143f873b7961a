//! The features that the kernel and fanfs agree on before the first request.

use fuser::{InitFlags, KernelConfig};

use super::MountOptions;
use crate::fs::Fs;

/// The features to request from the kernel.
pub(super) struct InitFeatures {
    max_background: u16,
    max_request: u64,
    immutable: bool,
    omits_opens: bool,
}

impl InitFeatures {
    pub(super) fn new(options: &MountOptions) -> Self {
        Self {
            max_background: options.max_background,
            max_request: options.max_request,
            immutable: options.immutable,
            omits_opens: options.omits_opens,
        }
    }

    /// Requests the features, and reports the result to `fs`. Returns whether the kernel will read
    /// files without opening them.
    pub(super) fn negotiate(&self, fs: &Fs, config: &mut KernelConfig) -> bool {
        // Each is used if the kernel has it.
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Without FUSE_READDIRPLUS_AUTO, by which the kernel would choose which entries of a
            // listing get attributes: fanfs does (`fs::attribute_demand`).
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            // The kernel checks access control lists as well as modes, whichever caller filled
            // its cache: fanfs answers lookups with its own rights
            // (`fs::namespace::path_queries`).
            InitFlags::FUSE_POSIX_ACL,
        ] {
            let _ = config.add_capabilities(capability);
        }
        // FUSE_ATOMIC_O_TRUNC is not requested. Without it the kernel opens a file and then
        // truncates it, after it has checked that the file is not a running program. With it,
        // O_RDONLY with O_TRUNC would truncate such a program before that check.
        if fs.can_write() {
            for capability in [
                // The replica removes set-id bits, as it would for the caller.
                InitFlags::FUSE_HANDLE_KILLPRIV_V2,
                // The replica also applies the umask, or a default access control list.
                InitFlags::FUSE_DONT_MASK,
            ] {
                let _ = config.add_capabilities(capability);
            }
        }
        if self.immutable {
            // The kernel keeps a link's target for as long as it has memory. In other volumes a link
            // may get the number of a removed one.
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        if fs.has_lock_replica() {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS);
            let _ = config.add_capabilities(InitFlags::FUSE_FLOCK_LOCKS);
        }
        let maps_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        fs.open_files.set_direct_mmap(maps_direct.is_ok());
        if fs.open_files.is_passthrough_wanted() {
            negotiate_passthrough(fs, config);
        }
        let _ = config.set_max_background(self.max_background);
        // fuser derives the largest read from the largest write. Above its own limit it returns
        // that limit.
        let most = u32::try_from(self.max_request).unwrap_or(u32::MAX);
        if let Err(limit) = config.set_max_write(most) {
            let _ = config.set_max_write(limit);
        }
        // The answer shows the next daemon that this one has agreed to it.
        self.omits_opens && config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok()
    }
}

fn negotiate_passthrough(fs: &Fs, config: &mut KernelConfig) {
    match config.add_capabilities(InitFlags::FUSE_PASSTHROUGH) {
        // Depth 1: a replica may not be stacked itself, and one more file system may be stacked on
        // this mount.
        Ok(()) => {
            let _ = config.set_max_stack_depth(1);
        }
        Err(_) => fs.open_files.disable_passthrough("the kernel is older than 6.9".to_owned()),
    }
}
