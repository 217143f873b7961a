//! Keeps memory free for small allocations.
//!
//! If the system refuses this process memory (a limit on its address space, strict overcommit),
//! failure to get a buffer or a thread fails one read, and the reader gets an error. Failure to get
//! a hundred bytes aborts the process. So large allocations are made only while there is room for
//! more than themselves.
//!
//! The free room is looked up, not probed by allocating: a probe would take the memory from other
//! allocations for that moment.

use std::fs::read_to_string;
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// The least room that must stay free, bytes. Between two large allocations, all others took less
/// than a tenth of it.
const MIN_HEADROOM: u64 = 16 << 20;

/// Held while checking for room and allocating: otherwise two threads could both find room for one.
static ALLOCATION_LOCK: Mutex<()> = Mutex::new(());

/// Maps new zeroed memory of `bytes`, a multiple of the page size. `None` if too little room would
/// stay free. The caller owns the memory and frees it with munmap(2).
pub(crate) fn try_map(bytes: usize) -> Option<NonNull<u8>> {
    let _alone = ALLOCATION_LOCK.lock();
    if !is_available(bytes) {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let none = std::ptr::null_mut();
    // SAFETY: a new private mapping, at no address in particular.
    let memory = unsafe { mmap_anonymous(none, bytes, access, MapFlags::PRIVATE) };
    NonNull::new(memory.ok()?.cast())
}

/// Whether an allocation of `bytes` would leave enough room.
pub(crate) fn is_available(bytes: usize) -> bool {
    let wanted = bytes as u64 + MIN_HEADROOM;
    let has_room = |room: Option<u64>| room.is_none_or(|room| room >= wanted);
    has_room(address_space_left()) && has_room(commit_left())
}

/// The address space that this process may still allocate, bytes; `None` if there is no limit.
fn address_space_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    // On the stack: there may be no memory to allocate.
    let mut text = [0; 32];
    let file = openat(CWD, "/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = read(file.ok()?, &mut text).ok()?;
    let used: u64 = std::str::from_utf8(&text[..read]).ok()?.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(used * page_size() as u64))
}

/// The memory that the system may still commit, bytes, if it forbids overcommit
/// (`vm.overcommit_memory` 2); otherwise `None`.
fn commit_left() -> Option<u64> {
    let mode = read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    if mode.trim() != "2" {
        return None;
    }
    let table = read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    Some(kib("CommitLimit:")?.saturating_sub(kib("Committed_AS:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_exist_is_not_available() {
        assert!(is_available(1 << 20));
        assert!(try_map(1 << 47).is_none());
    }
}
