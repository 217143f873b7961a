//! The daemon's side of its keeper ([`super::keeper`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::handover::{Again, this_program};
use super::link::Link;
use super::{Dead, Mount, service};
use crate::control::KeeperState;
use crate::volume::name;

/// What keepers say.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromKeeper {
    /// Mount.
    Begin,
    /// Go on with the mount of the device that comes along, as the last descriptor: its
    /// daemon is dead. Before it come the earlier daemons that have not ended.
    GoOn,
    /// Replace the mount with this device number: its daemon is dead, and no other can go on
    /// with it. The earlier daemons that have not ended come along.
    Replace { dead: (u32, u32) },
    /// Unmount and end.
    End,
}

/// What daemons say to them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToKeeper {
    /// This is the device; it is mounted.
    Mounted,
    /// It could not be mounted.
    Failed { why: String, usage: bool },
    /// This process serves the mount from now on.
    Passes { pid: u32 },
    /// The mount is served by another program from now on, or with other arguments.
    Next {
        #[serde(with = "name")]
        program: PathBuf,
        options: Vec<OsString>,
        #[serde(with = "name")]
        volume: PathBuf,
        #[serde(with = "name")]
        mount_point: PathBuf,
    },
    /// It is unmounted, and nothing is to be started again.
    Done,
}

/// The daemon's end.
pub struct Keeper(Link);

/// What a daemon is told to begin with.
pub enum Task {
    /// Mount.
    Begin,
    /// Go on with this device's mount, after these daemons.
    GoOn(OwnedFd, Vec<OwnedFd>),
    /// Replace this mount.
    Replace(Dead),
}

impl Keeper {
    pub(super) fn at(link: Link) -> Self {
        Self(link)
    }

    /// The keeper that started this process, and what it wants.
    ///
    /// # Errors
    /// Where nobody says anything.
    pub fn hear() -> io::Result<(Self, Task)> {
        let link = Link::stdin()?;
        let task = match link.hear(None)? {
            (FromKeeper::GoOn, mut along) => match along.pop() {
                Some(device) => Task::GoOn(device, along),
                None => return Err(io::Error::other("no device came along")),
            },
            (FromKeeper::Replace { dead }, former) => Task::Replace(Dead::new(dead, former)),
            (FromKeeper::Begin | FromKeeper::End, _) => Task::Begin,
        };
        Ok((Self(link), task))
    }

    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.0.end()
    }

    fn say(&self, message: &ToKeeper, along: &[BorrowedFd<'_>]) {
        if let Err(error) = self.0.say(message, along) {
            tracing::warn!(%error, "the keeper does not listen; if this daemon is killed, the mount is lost");
        }
    }

    /// Whether its process lives: the kernel closes its end of the link otherwise.
    pub(super) fn state(&self) -> KeeperState {
        if self.0.is_closed() { KeeperState::Gone } else { KeeperState::Running }
    }

    pub(super) fn mounted(&self, device: BorrowedFd<'_>) {
        self.say(&ToKeeper::Mounted, &[device]);
    }

    /// Names the successor's process to the keeper, which checks that it is alive. Call it
    /// before this process ends.
    pub(super) fn passes_to(&self, pid: u32) {
        self.say(&ToKeeper::Passes { pid }, &[]);
    }

    pub(super) fn done(&self) {
        self.say(&ToKeeper::Done, &[]);
    }

    /// It could not be mounted.
    pub fn failed(&self, why: String, usage: bool) {
        self.say(&ToKeeper::Failed { why, usage }, &[]);
    }

    pub(super) fn next(&self, again: &Again) {
        let program = this_program();
        let Again { options, volume, mount_point } = again.clone();
        self.say(&ToKeeper::Next { program, options, volume, mount_point }, &[]);
    }

    /// Calls `end` when the keeper says so.
    ///
    /// # Errors
    /// Where there are no threads or descriptors.
    pub fn listen(&self, end: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let link = self.0.again()?;
        let listen = move || {
            loop {
                match link.hear(None) {
                    Ok((FromKeeper::End, _)) => return end(),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the keeper has died; if this daemon dies, the mount is lost");
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("keeper".to_owned()).spawn(listen).map(drop)
    }
}

impl Mount {
    /// The mount answers: tells whoever waits for it. `keeper` keeps it, if there is
    /// one, and `again` starts this program once more for it.
    pub fn is_ready(&mut self, keeper: Option<Keeper>, again: Again) {
        if let Some(keeper) = keeper {
            self.is_kept_by(keeper);
        }
        if let Some(keeper) = self.core.keeper.get() {
            if let Some(session) = &*self.session.lock() {
                keeper.mounted(session.device());
            }
            keeper.next(&again);
        }
        self.again = Some(again);
        service::ready();
    }

    /// Who keeps it.
    pub fn keeper(&self) -> Option<&Keeper> {
        self.core.keeper.get()
    }

    /// A mount has one keeper as long as it lasts, so only the first call counts.
    pub(super) fn is_kept_by(&self, keeper: Keeper) {
        let _ = self.core.keeper.set(keeper);
    }
}
