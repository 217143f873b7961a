//! What this process may do that others may not: Linux's capabilities.
//!
//! A daemon that root starts may do everything, and needs little of it. Before it
//! starts its first thread it gives up for good what its volume does not need
//! ([`keep_only`]). What it needs for single calls it keeps without making use of
//! it: a thread takes it up for that one call ([`raise`]), so that a mistake
//! anywhere else meets the same refusal as an ordinary user's.
//!
//! *Invariants:*
//! - Capabilities are each thread's own, and a new thread has those of who started
//!   it. So they are given up while there is one thread, and nobody starts one
//!   with something raised.
//! - What was raised is lowered again by the same thread.

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

/// For mount(2) and umount2(2), to lend the kernel a file, and for extended
/// attributes of the `trusted` and `security` name spaces.
pub(crate) const ADMIN: Capabilities = CapabilitySet::SYS_ADMIN;

/// For pipes that are larger, or more, than an ordinary user's may be.
pub(crate) const PIPES: Capabilities = CapabilitySet::SYS_RESOURCE.union(CapabilitySet::SYS_ADMIN);

/// For the supplementary groups of callers where `/proc` is mounted with `hidepid`.
pub(crate) const READ_PROC: Capabilities = CapabilitySet::SYS_PTRACE;

/// For changes that leave a file's set-id bits alone.
pub(crate) const SET_ID: Capabilities = CapabilitySet::FSETID;

/// For the attribute that gives a program capabilities.
pub(crate) const FILE_CAPS: Capabilities = CapabilitySet::SETFCAP;

/// What a process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetainedCapabilities {
    /// In use all the time.
    pub effective: Capabilities,
    /// Taken up for single calls.
    pub raisable: Capabilities,
    /// What programs that it runs as root may have besides.
    pub child_bounding: Capabilities,
    /// Whether such programs may become more than what starts them: set-id programs.
    pub allows_set_id_programs: bool,
}

/// Gives up everything but `kept`, of what there is, in the calling thread and
/// those that it starts from now on. A process of root writes no core dump either:
/// there are other users' data in it.
///
/// # Errors
/// What the kernel refuses it with.
pub(crate) fn keep_only(kept: &RetainedCapabilities) -> io::Result<()> {
    let now = capabilities(None)?;
    let permitted = now.permitted & (kept.effective | kept.raisable);
    limit_bounding_set(permitted | kept.child_bounding)?;
    // Old kernels have none.
    let _ = clear_ambient_capability_set();
    set_capabilities(
        None,
        CapabilitySets {
            effective: permitted & kept.effective,
            permitted,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    // An ordinary user needs a set-id program to unmount.
    if rustix::process::geteuid().is_root() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        if !kept.allows_set_id_programs {
            set_no_new_privs(true)?;
        }
    }
    Ok(())
}

/// Programs that root runs have what is in the bounding set.
fn limit_bounding_set(most: Capabilities) -> io::Result<()> {
    for capability in Capabilities::all().iter().filter(|one| !most.contains(*one)) {
        // EINVAL is of one that this kernel does not know.
        if !capability_is_in_bounding_set(capability).unwrap_or(false) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // An ordinary user cannot, and need not: he has none to hand on.
            Err(Errno::PERM) => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

/// Capabilities that the calling thread has taken up; it puts them down when this
/// is dropped.
#[derive(Debug)]
#[must_use = "they are put down at once"]
pub(crate) struct RaisedCapabilities {
    added: Capabilities,
    /// Another thread has its own.
    _here: PhantomData<*const ()>,
}

/// Takes up `wanted`, as far as the process has kept it. Without it the call that
/// follows is refused, as any user's would be.
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
            // Fewer capabilities are never refused.
            tracing::error!(%error, "a capability stays raised");
        }
    }
}

/// Capabilities that the calling thread has put down; it takes them up again when this
/// is dropped.
#[derive(Debug)]
#[must_use = "they are taken up again at once"]
pub(crate) struct LoweredCapabilities {
    removed: Capabilities,
    /// Another thread has its own.
    _here: PhantomData<*const ()>,
}

/// Puts down `unwanted`.
///
/// # Errors
/// The kernel refuses it; the thread has them still.
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
            tracing::error!(%error, "a capability stays lowered");
        }
    }
}

/// Whether a thread has one of `wanted` in effect, as `/proc` says.
pub(crate) fn has_effective(thread: u32, wanted: Capabilities) -> bool {
    let effective = proc_status(thread).ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    effective.is_some_and(|bits| bits & wanted.bits() != 0)
}

/// Whether the calling thread can become other users for its calls on file systems.
pub(crate) fn can_change_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|now| now.effective.contains(needed))
}

/// What `/proc` says of a thread in `status`; as root's daemon also where others
/// are not shown there.
///
/// # Errors
/// Where there is no such thread, or this process must not see it.
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
