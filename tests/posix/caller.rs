//! Threads that are other users, or lack a capability.

use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_gid,
    set_thread_groups, set_thread_uid,
};

/// The identity of a caller, which acts in its own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Root, with all its capabilities.
    Root,
    /// Root without this one.
    Without(CapabilitySet),
    /// Another user, without capabilities.
    User,
}

impl Caller {
    /// Does `work` as this caller. Needs root.
    pub(crate) fn does<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        let thread = || {
            match self {
                Self::Root => {}
                Self::Without(capability) => {
                    let now = capabilities(None).unwrap();
                    let effective = now.effective.difference(capability);
                    set_capabilities(None, CapabilitySets { effective, ..now }).unwrap();
                }
                Self::User => {
                    set_thread_groups(&[]).unwrap();
                    set_thread_gid(Gid::from_raw(1234)).unwrap();
                    set_thread_uid(Uid::from_raw(1234)).unwrap();
                }
            }
            work()
        };
        thread::scope(|scope| scope.spawn(thread).join().unwrap())
    }
}
