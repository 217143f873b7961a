//! The Linux capabilities of this process.
//!
//! A daemon that root starts has all capabilities and needs few of them. Before it starts its first
//! thread, it permanently gives up those that its volume does not need ([`keep_only`]). Those that
//! it needs for single calls stay permitted but not effective. A thread raises them for one call
//! ([`raise`]). So a mistake elsewhere is refused as it would be for an ordinary user.
//!
//! *Invariants:*
//! - Each thread has its own capabilities, and a new thread inherits those of its creator. So the
//!   process gives capabilities up while it has one thread, and no thread starts another while it
//!   has raised one.
//! - The thread that raises a capability lowers it again.

use std::io;
use std::marker::PhantomData;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// A set of capabilities.
pub(crate) type Capabilities = CapabilitySet;

/// For mount(2) and umount2(2), for passthrough, where the kernel gets a backing file, and for
/// extended attributes of the `trusted` and `security` namespaces.
pub(crate) const ADMIN: Capabilities = CapabilitySet::SYS_ADMIN;

/// For pipes beyond an ordinary user's limits on size or number.
pub(crate) const PIPES: Capabilities = CapabilitySet::SYS_RESOURCE.union(CapabilitySet::SYS_ADMIN);

/// For the supplementary groups of callers if `/proc` is mounted with `hidepid`.
pub(crate) const READ_PROC: Capabilities = CapabilitySet::SYS_PTRACE;

/// For changes that must preserve a file's set-id bits.
pub(crate) const SET_ID: Capabilities = CapabilitySet::FSETID;

/// For the extended attribute that grants a program capabilities.
pub(crate) const FILE_CAPS: Capabilities = CapabilitySet::SETFCAP;

/// The capabilities that a process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetainedCapabilities {
    /// Effective all the time.
    pub effective: Capabilities,
    /// Raised for single calls.
    pub raisable: Capabilities,
    /// Additional capabilities for programs that it runs as root.
    pub child_bounding: Capabilities,
    /// Whether such programs may gain privileges, as set-id programs do.
    pub allows_set_id_programs: bool,
}

/// Whether this process may raise one of these, and the kernel's own limits know it: those of a
/// container with users of its own do not count.
pub(crate) fn has(wanted: Capabilities) -> bool {
    let is_first = std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    is_first && capabilities(None).is_ok_and(|now| now.permitted.intersects(wanted))
}

/// Gives up all capabilities except `kept`, in the calling thread and the threads that it starts
/// later. A process of root also disables core dumps, because they would contain other users' data.
///
/// # Errors
/// The kernel's error.
pub(crate) fn keep_only(kept: &RetainedCapabilities) -> io::Result<()> {
    let now = capabilities(None)?;
    let permitted = now.permitted & (kept.effective | kept.raisable);
    limit_bounding_set(permitted | kept.child_bounding)?;
    // Old kernels have no ambient set.
    let _ = clear_ambient_capability_set();
    set_capabilities(
        None,
        CapabilitySets {
            effective: permitted & kept.effective,
            permitted,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    // An ordinary user needs a set-id program to unmount, so only root sets no_new_privs.
    if rustix::process::geteuid().is_root() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        if !kept.allows_set_id_programs {
            set_no_new_privs(true)?;
        }
    }
    Ok(())
}

/// Removes all other capabilities from the bounding set, which limits programs that root runs.
fn limit_bounding_set(most: Capabilities) -> io::Result<()> {
    for capability in Capabilities::all().iter().filter(|one| !most.contains(*one)) {
        // The kernel returns EINVAL for capabilities that it does not know.
        if !capability_is_in_bounding_set(capability).unwrap_or(false) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // An ordinary user may not, and need not: they have none to pass on.
            Err(Errno::PERM) => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

/// Capabilities that the calling thread has raised; dropping the value lowers them.
#[derive(Debug)]
#[must_use = "they are put down at once"]
pub(crate) struct RaisedCapabilities {
    added: Capabilities,
    /// Not `Send`, because each thread has its own capabilities.
    _here: PhantomData<*const ()>,
}

/// Raises those of `wanted` that the process has kept. Without them, the following call is refused
/// as it would be for any user.
pub(crate) fn raise(wanted: Capabilities) -> RaisedCapabilities {
    let mut added = Capabilities::empty();
    if let Ok(now) = capabilities(None) {
        let more = (wanted & now.permitted).difference(now.effective);
        let sets = CapabilitySets { effective: now.effective | more, ..now };
        if !more.is_empty() && set_capabilities(None, sets).is_ok() {
            added = more;
        }
    }
    RaisedCapabilities { added, _here: PhantomData }
}

impl Drop for RaisedCapabilities {
    fn drop(&mut self) {
        if self.added.is_empty() {
            return;
        }
        let lowered = capabilities(None).and_then(|now| {
            let effective = now.effective.difference(self.added);
            set_capabilities(None, CapabilitySets { effective, ..now })
        });
        if let Err(error) = lowered {
            // The kernel never refuses to lower capabilities.
            tracing::error!(%error, "a thread cannot drop a capability");
        }
    }
}

/// Capabilities that the calling thread has lowered; dropping the value raises them again.
#[derive(Debug)]
#[must_use = "they are taken up again at once"]
pub(crate) struct LoweredCapabilities {
    removed: Capabilities,
    /// Not `Send`, because each thread has its own capabilities.
    _here: PhantomData<*const ()>,
}

/// Lowers `unwanted` in the calling thread.
///
/// # Errors
/// The kernel's error; the thread then keeps them.
pub(crate) fn lower(unwanted: Capabilities) -> io::Result<LoweredCapabilities> {
    let now = capabilities(None)?;
    let removed = unwanted & now.effective;
    if !removed.is_empty() {
        let effective = now.effective.difference(removed);
        set_capabilities(None, CapabilitySets { effective, ..now })?;
    }
    Ok(LoweredCapabilities { removed, _here: PhantomData })
}

impl Drop for LoweredCapabilities {
    fn drop(&mut self) {
        if self.removed.is_empty() {
            return;
        }
        let restored = capabilities(None).and_then(|now| {
            let effective = now.effective | self.removed;
            set_capabilities(None, CapabilitySets { effective, ..now })
        });
        if let Err(error) = restored {
            // The kernel never refuses a permitted capability.
            tracing::error!(%error, "a thread cannot regain a capability");
        }
    }
}

/// Whether a thread has one of `wanted` in effect, according to `/proc`.
pub(crate) fn has_effective(thread: u32, wanted: Capabilities) -> bool {
    let effective = proc_status(thread).ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    effective.is_some_and(|bits| bits & wanted.bits() != 0)
}

/// Whether the calling thread can assume other users' identities for calls on filesystems.
pub(crate) fn can_change_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|now| now.effective.contains(needed))
}

/// Reads `/proc/THREAD/status`. If that fails, raises [`READ_PROC`] and tries again, for mounts of
/// `/proc` that hide other users' processes.
///
/// # Errors
/// If there is no such thread, or this process may not see it.
pub(crate) fn proc_status(thread: u32) -> io::Result<String> {
    let path = format!("/proc/{thread}/status");
    match std::fs::read_to_string(&path) {
        Ok(status) => Ok(status),
        Err(_) => {
            let _raised = raise(READ_PROC);
            std::fs::read_to_string(&path)
        }
    }
}
