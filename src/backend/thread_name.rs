//! Names of threads. By them a later daemon sees which threads of this one may be inside a change.
//!
//! A replica's own threads have a prefix that says whether it is the write replica. A session thread
//! gets this prefix once it has been inside the replica for some time ([`super::pool`]). Without a
//! prefix it counts as possibly inside a change: a change may have begun just now.

use std::io;

use rustix::thread::Pid;

/// The prefix of the names of threads that may be inside a change.
pub const WRITE_THREAD_PREFIX: &str = "w:";

/// The prefix of the names of other threads inside a replica.
pub const READ_THREAD_PREFIX: &str = "r:";

/// The kernel keeps so many bytes of a name.
const MAX_LEN: usize = 15;

/// The name of a thread inside a replica.
pub(super) fn prefixed(name: &str, makes_changes: bool) -> String {
    let prefix = if makes_changes { WRITE_THREAD_PREFIX } else { READ_THREAD_PREFIX };
    let name = format!("{prefix}{name}");
    String::from_utf8_lossy(&name.as_bytes()[..name.len().min(MAX_LEN)]).into_owned()
}

/// Renames a thread of this process.
pub(super) fn rename_thread(thread: Pid, name: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/self/task/{}/comm", thread.as_raw_nonzero()), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_rename_another_one() {
        let (tell, hear) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("a-long-name-15b".to_owned());
        let other = thread.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = ended.recv();
            rustix::thread::name().unwrap()
        });
        let id = hear.recv().unwrap();
        rename_thread(id, &prefixed("a-long-name-15b", true)).unwrap();
        drop(end);
        assert_eq!(other.unwrap().join().unwrap(), c"w:a-long-name-1".to_owned());
    }
}
