//! Going on with a mount that another process has served so far.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::admission::{Members, Needed, look_around};
use super::estate::{Estate, FromPredecessor, FromSuccessor, parts, read};
use super::kept::Keeper;
use super::link::Link;
use super::{Core, Extra, Mount, StartError};
use crate::backend::Parts;
use crate::config::Config;
use crate::control::{self, journal_path};
use crate::fs::{Carried, recover};
use crate::fuse::{Agreed, Ready, Session};
use crate::volume::ReplicaSet;
use crate::volume::mounts::MountTable;

/// How long a predecessor may take for each step.
const PATIENCE: Duration = Duration::from_secs(30);

fn failed(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// Tells the process at the other end of `link` that it has no successor in this one.
pub fn refuse(link: &Link, why: &str) {
    let _ = link.say(&FromSuccessor::Refused { why: why.to_owned() }, &[]);
}

impl Mount {
    /// Takes a mount over from the process at the other end of `link`.
    ///
    /// # Errors
    /// [`StartError`]; the other process serves it as before then, and has been told.
    pub fn succeed(
        link: &Link,
        config: Config,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let taken = take(link, config, mount_point, extra);
        match &taken {
            Ok(_) => drop(link.say(&FromSuccessor::Serving, &[])),
            Err(error) => refuse(link, &error.to_string()),
        }
        taken
    }

    /// Goes on with the mount of `device`, whose daemon was killed. `former` are that
    /// daemon and others before it, as far as they have not ended.
    ///
    /// # Errors
    /// [`StartError`], where what that daemon wrote down does not suffice.
    pub fn recover(
        (device, former): (OwnedFd, Vec<OwnedFd>),
        config: Config,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let what = "cannot continue the mount of a daemon that was killed";
        let journal = journal_path(mount_point);
        let lost = |error| failed(what)(unusable(&journal, &error));
        let (head, carried) = recover(&journal, config.volume.mode).map_err(&lost)?;
        let head: Head = postcard::from_bytes(&head).map_err(|e| lost(io::Error::other(e)))?;
        let estate = head.estate_of(mount_point).map_err(|why| lost(io::Error::other(why)))?;
        let handles = carried.handles();
        let kind = (what, Kind::Recovery);
        let heir = Heir::prepare(estate, config, mount_point, extra, kind)?;
        heir.core.follow(former);
        heir.restore(carried, Vec::new())?;
        let mount = heir.serve(device)?;
        tracing::warn!(handles, "the daemon before was killed; this one goes on");
        Ok(mount)
    }
}

/// The head of a journal.
#[derive(Serialize, Deserialize)]
struct Head {
    connection: Option<(u32, u32)>,
    estate: Estate,
}

/// Why a journal cannot be used, and how to have one next time.
fn unusable(journal: &Path, error: &io::Error) -> io::Error {
    let why = format!(
        "journal {}: {error}; for the next daemon, make sure that {} has free space and that \
         nothing removes files there",
        journal.display(),
        control::runtime_dir().display()
    );
    io::Error::new(error.kind(), why)
}

/// The device number of the FUSE mount there, which identifies its connection.
fn connection(mount_point: &Path) -> Option<(u32, u32)> {
    let table = MountTable::read().ok()?;
    table.at(mount_point).filter(|mount| mount.fs_type.starts_with("fuse")).map(|mount| mount.dev)
}

impl Head {
    /// The estate, if the journal belongs to the mount at `mount_point`. If none is visible
    /// there (`umount -l`), the journal's mount may still be in use.
    fn estate_of(self, mount_point: &Path) -> Result<Estate, String> {
        match (self.connection, connection(mount_point)) {
            (Some(its), Some(now)) if its != now => {
                Err("the journal is another mount's".to_owned())
            }
            _ => Ok(self.estate),
        }
    }
}

/// Why one daemon follows another.
#[derive(Clone, Copy)]
enum Kind {
    /// The configuration is read again.
    Reload,
    /// Another program.
    Upgrade,
    /// The predecessor was killed.
    Recovery,
}

/// Ready to go on with what another process has served.
struct Heir {
    estate: Estate,
    core: Arc<Core>,
    runtime: Runtime,
    ready: Ready,
    /// What cannot be done, where something fails.
    what: &'static str,
}

impl Heir {
    fn prepare(
        estate: Estate,
        config: Config,
        mount_point: &Path,
        extra: &Extra,
        (what, kind): (&'static str, Kind),
    ) -> Result<Self, StartError> {
        let members = Members::absent(&config, |id| estate.record(&config, id));
        let (core, runtime) = Core::start(config, members, mount_point, extra)?;
        let options = core.mount_options(extra);
        let suits = estate.suits(&core.config, &options.fixed());
        suits.map_err(|why| failed(what)(io::Error::other(why)))?;
        let (silent, needed) = match kind {
            Kind::Reload => {
                let survey = look_around(&core.config, &core.mount_point)?;
                (survey.silent(), Needed::by(&core.config))
            }
            Kind::Upgrade => (ReplicaSet::EMPTY, Needed::UPGRADE),
            Kind::Recovery => (ReplicaSet::EMPTY, Needed::RECOVERY),
        };
        core.bring_in(silent, needed)?;
        let fs = Arc::clone(&core.fs);
        let ready = Session::prepare(fs, &options, &estate.agreed).map_err(failed(what))?;
        Ok(Self { estate, core, runtime, ready, what })
    }

    /// Knows what the other one knew, and has open what is given of what it had open.
    fn restore(&self, carried: Carried, files: Vec<Parts>) -> Result<(), StartError> {
        let map = |old| self.estate.replica(&self.core.config, old);
        let restored = self.core.fs.restore(carried, files, &map);
        restored.map_err(|why| failed(self.what)(io::Error::other(why)))
    }

    /// Answers the kernel from now on.
    fn serve(self, device: OwnedFd) -> Result<Mount, StartError> {
        let Self { estate, core, runtime, ready, what } = self;
        core.write_down(&estate.agreed);
        let session = Session::resume(ready, estate.agreed, device, &core.mount_point);
        Ok(Mount::served(core, runtime, session.map_err(failed(what))?, None))
    }
}

fn take(
    link: &Link,
    config: Config,
    mount_point: &Path,
    extra: &Extra,
) -> Result<Mount, StartError> {
    let what = "cannot take the mount over";
    let cannot = failed(what);
    let out_of_turn = || cannot(io::Error::other("the other process says something else"));
    let hear = || link.hear::<FromPredecessor>(Some(PATIENCE)).map_err(&cannot);
    let (FromPredecessor::Estate(estate), _) = hear()? else { return Err(out_of_turn()) };
    let kind = if estate.strict { Kind::Reload } else { Kind::Upgrade };
    let heir = Heir::prepare(estate, config, mount_point, extra, (what, kind))?;
    link.say(&FromSuccessor::Prepared, &[]).map_err(&cannot)?;

    let (FromPredecessor::All, mut all) = hear()? else { return Err(out_of_turn()) };
    let (carried, which) = read(all.pop().ok_or_else(out_of_turn)?).map_err(&cannot)?;
    let (mut files, mut former, mut last) = (Vec::new(), Vec::new(), Vec::new());
    while last.is_empty() {
        match hear()? {
            (FromPredecessor::Files, some) => files.extend(some),
            (FromPredecessor::Former, some) => former.extend(some),
            (FromPredecessor::Device, device) if !device.is_empty() => last = device,
            _ => return Err(out_of_turn()),
        }
    }
    let mut last = last.into_iter();
    let device = last.next().ok_or_else(out_of_turn)?;
    let keeper = last.next().map(|end| Keeper::at(Link::received(end)));
    heir.core.follow(former);
    heir.restore(carried, parts(&which, files))?;
    link.say(&FromSuccessor::Restored, &[]).map_err(&cannot)?;

    let (FromPredecessor::Go, _) = hear()? else { return Err(out_of_turn()) };
    let mount = heir.serve(device)?;
    if let Some(keeper) = keeper {
        mount.is_kept_by(keeper);
    }
    Ok(mount)
}

impl Core {
    /// Writes down from now on what the next daemon has to know if this one is killed,
    /// where somebody keeps the device for it.
    pub(super) fn write_down(self: &Arc<Self>, agreed: &Agreed) {
        if !self.extra.is_kept {
            return;
        }
        let connection = connection(&self.mount_point);
        let begin = || {
            control::make_runtime_dir()?;
            let path = journal_path(&self.mount_point);
            self.fs.write_down(&path, self.head(connection, agreed)?)
        };
        if let Err(error) = begin() {
            tracing::warn!(%error, "no journal: if this daemon is killed, the mount is lost");
            return;
        }
        // Weak, as the core owns the roster.
        let (core, agreed) = (Arc::downgrade(self), agreed.clone());
        self.roster.at_each_admission(move || {
            if let Some(core) = core.upgrade() {
                core.fs.renew_head(|| core.head(connection, &agreed));
            }
        });
    }

    /// The head of a journal as of now.
    fn head(&self, connection: Option<(u32, u32)>, agreed: &Agreed) -> io::Result<Vec<u8>> {
        let head = Head { connection, estate: self.estate(agreed.clone(), false) };
        postcard::to_stdvec(&head).map_err(io::Error::other)
    }
}
