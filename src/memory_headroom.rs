//! Memory that large things leave to small ones.
//!
//! Where the system gives this process no more memory (a limit on its address space,
//! strict overcommit), a buffer or a thread that cannot be had fails a read, which is
//! told to who reads. A hundred bytes that cannot be had end the process. So what is
//! large is taken only while there is room for more than it.

//!
//! How much room there is is looked up, not tried out: what is taken to see whether it
//! can be had is not there for anybody else at that moment.

use std::fs::read_to_string;
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// What is left at least, bytes. Between two large things all the rest took less than
/// a tenth of it.
const MIN_HEADROOM: u64 = 16 << 20;

/// Who looks and takes is alone: two would both find room for one.
static ALLOCATION_LOCK: Mutex<()> = Mutex::new(());

/// New zeroed memory of `bytes`, a multiple of the page size; `None` where too little
/// would be left. It is the caller's, to be given back with munmap(2).
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

/// Whether something of `bytes` would leave enough.
pub(crate) fn is_available(bytes: usize) -> bool {
    let wanted = bytes as u64 + MIN_HEADROOM;
    let has_room = |room: Option<u64>| room.is_none_or(|room| room >= wanted);
    has_room(address_space_left()) && has_room(commit_left())
}

/// Bytes of address space that this process may still take; `None` for no limit.
fn address_space_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    // Without memory of its own: there may be none.
    let mut text = [0; 32];
    let file = openat(CWD, "/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = read(file.ok()?, &mut text).ok()?;
    let used: u64 = std::str::from_utf8(&text[..read]).ok()?.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(used * page_size() as u64))
}

/// Bytes that this machine may still promise, where it promises no more than it has
/// (`vm.overcommit_memory` 2); `None` where it does.
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
    fn what_there_cannot_be_is_not_there() {
        assert!(is_available(1 << 20));
        assert!(try_map(1 << 47).is_none());
    }
}
