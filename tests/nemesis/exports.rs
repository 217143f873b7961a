//! How replicas that are NFS servers in this process fail.

use rustix::io::Errno;

use crate::export_server::ExportServer;
use crate::nfs_server::mirror::{self, BadReads, CallFault, Habits};
use crate::schedule::{Calls, Trouble};
use crate::world::USUAL;

/// Breaks a server, or heals it.
pub(crate) fn turn(server: &ExportServer, trouble: Option<Trouble>) {
    server.behave(|habits| *habits = habits_in(trouble));
    server.set_down(trouble == Some(Trouble::Unmounted));
}

fn habits_in(trouble: Option<Trouble>) -> Habits {
    let mut habits = Habits::GOOD;
    let mut set = |calls: Calls, fault: CallFault| match calls {
        Calls::Reads => habits.reads = fault,
        Calls::Opens => habits.look_ups = fault,
        Calls::Metadata => (habits.look_ups, habits.others) = (fault, fault),
        Calls::All => habits.set_all(fault),
    };
    match trouble {
        None | Some(Trouble::Diverged | Trouble::Unmounted) => {
            set(Calls::Reads, CallFault::Delay(USUAL));
            habits.is_turned = trouble == Some(Trouble::Diverged);
        }
        Some(Trouble::Hang(calls)) => set(calls, CallFault::Hang),
        Some(Trouble::Slow(times)) => set(Calls::All, CallFault::Delay(USUAL * times)),
        Some(Trouble::Error(errno, calls)) => set(calls, CallFault::Fail(status(errno))),
        Some(Trouble::Crumbs(most)) => habits.max_read = most,
        Some(Trouble::EndsEarly) => {
            habits.bad_reads = BadReads { ending_from: 0, ..BadReads::NONE };
        }
        Some(Trouble::Flap(..)) => unreachable!("its parts are reported"),
    }
    habits
}

/// The nearest error that a server has.
fn status(errno: i32) -> mirror::Status {
    match Errno::from_raw_os_error(errno) {
        Errno::IO => mirror::IO,
        Errno::STALE => mirror::STALE,
        Errno::TIMEDOUT => mirror::JUKEBOX,
        _ => mirror::SERVERFAULT,
    }
}
