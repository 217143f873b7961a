//! Going on with a mount that another process has served so far.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::estate::{Estate, FromPredecessor, FromSuccessor, parts, read};
use super::kept::Keeper;
use super::link::Link;
use super::{Core, Extra, Mount, StartError};
use crate::backend::Backend;
use crate::config::Config;
use crate::control::{self, journal_path};
use crate::fs::recover;
use crate::fuse::{Agreed, Session};
use crate::volume::ReplicaMap;

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
        backends: ReplicaMap<Arc<dyn Backend>>,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let taken = take(link, config, backends, mount_point, extra);
        match &taken {
            Ok(_) => drop(link.say(&FromSuccessor::Serving, &[])),
            Err(error) => refuse(link, &error.to_string()),
        }
        taken
    }

    /// Goes on with the mount of `device`, whose daemon was killed.
    ///
    /// # Errors
    /// [`StartError`], where what that daemon wrote down does not suffice.
    pub fn recover(
        device: OwnedFd,
        config: Config,
        backends: ReplicaMap<Arc<dyn Backend>>,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let lost = failed("the mount of a daemon that was killed cannot be gone on with");
        let journal = journal_path(mount_point);
        let (head, carried) = recover(&journal, config.volume.mode).map_err(&lost)?;
        let estate: Estate = postcard::from_bytes(&head).map_err(|e| lost(io::Error::other(e)))?;
        let (core, runtime) = Core::start(config, backends, mount_point, extra)?;
        let options = core.mount_options(extra);
        let suits = estate.suits(&core.config, &options.fixed());
        suits.map_err(|why| lost(io::Error::other(why)))?;
        let fs = Arc::clone(&core.fs);
        let ready = Session::prepare(fs, &options, &estate.agreed).map_err(&lost)?;
        let handles = carried.handles();
        let map = |old| estate.replica(&core.config, old);
        let restored = core.fs.restore(carried, Vec::new(), &map);
        restored.map_err(|why| lost(io::Error::other(why)))?;
        core.write_down(&estate.agreed);
        let session = Session::resume(ready, estate.agreed, device, mount_point).map_err(&lost)?;
        tracing::warn!(handles, "the daemon before was killed; this one goes on");
        Ok(Self::served(core, runtime, session))
    }
}

fn take(
    link: &Link,
    config: Config,
    backends: ReplicaMap<Arc<dyn Backend>>,
    mount_point: &Path,
    extra: &Extra,
) -> Result<Mount, StartError> {
    let cannot = failed("cannot take the mount over");
    let refused = |why: String| cannot(io::Error::other(why));
    let out_of_turn = || refused("the other process says something else".to_owned());
    let hear = || link.hear::<FromPredecessor>(Some(PATIENCE)).map_err(&cannot);
    let (FromPredecessor::Estate(estate), _) = hear()? else { return Err(out_of_turn()) };
    let (core, runtime) = Core::start(config, backends, mount_point, extra)?;
    let options = core.mount_options(extra);
    estate.suits(&core.config, &options.fixed()).map_err(refused)?;
    let fs = Arc::clone(&core.fs);
    let ready = Session::prepare(fs, &options, &estate.agreed).map_err(&cannot)?;
    link.say(&FromSuccessor::Prepared, &[]).map_err(&cannot)?;

    let (FromPredecessor::All, mut all) = hear()? else { return Err(out_of_turn()) };
    let (carried, which) = read(all.pop().ok_or_else(out_of_turn)?).map_err(&cannot)?;
    let (mut files, mut last) = (Vec::new(), Vec::new());
    while last.is_empty() {
        match hear()? {
            (FromPredecessor::Files, some) => files.extend(some),
            (FromPredecessor::Device, device) if !device.is_empty() => last = device,
            _ => return Err(out_of_turn()),
        }
    }
    let mut last = last.into_iter();
    let device = last.next().ok_or_else(out_of_turn)?;
    let keeper = last.next().map(|end| Keeper::at(Link::received(end)));
    let map = |old| estate.replica(&core.config, old);
    core.fs.restore(carried, parts(&which, files), &map).map_err(refused)?;
    link.say(&FromSuccessor::Restored, &[]).map_err(&cannot)?;

    let (FromPredecessor::Go, _) = hear()? else { return Err(out_of_turn()) };
    core.write_down(&estate.agreed);
    let session = Session::resume(ready, estate.agreed, device, mount_point).map_err(&cannot)?;
    let mut mount = Mount::served(core, runtime, session);
    mount.keeper = keeper;
    Ok(mount)
}

impl Core {
    /// Writes down from now on what the next daemon has to know if this one is killed,
    /// where somebody keeps the device for it.
    pub(super) fn write_down(&self, agreed: &Agreed) {
        if !self.extra.is_kept {
            return;
        }
        let write_down = || {
            control::make_runtime_dir()?;
            let head = postcard::to_stdvec(&self.estate(agreed.clone()));
            let path = journal_path(&self.mount_point);
            self.fs.write_down(&path, head.map_err(io::Error::other)?)
        };
        if let Err(error) = write_down() {
            tracing::warn!(%error, "no journal: if this daemon is killed, the mount is lost");
        }
    }
}
