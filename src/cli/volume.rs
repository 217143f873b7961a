//! A volume on a command line: its name, its configuration file, or its mount point.
//!
//! Every command takes all three. [`config_file`] and [`mount_point`] turn the argument into
//! the one that the command needs.
//!
//! *Invariant:* a bare word is a name in /etc/fanfs first ([`super::volume_name`]). Names of
//! mounted volumes are valid only for the user that mounted them.
//!
//! *Invariant:* a path is looked up in the mount table first, and nothing here waits longer than
//! [`mount_lookup::ANSWER_TIMEOUT`] for a call on a path: a mount there may be dead or hung.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::volume_name::{
    CONFIG_DIR, has_named_config, is_bare_name, named_config_file, named_or_path, resolve_in_dir,
};
use super::{Failure, absolute, mount_lookup, printable};
use crate::config;
use crate::control;
use crate::mount_table::MountTable;
use crate::mount_table::fanfs_mounts::FanfsMount;
use crate::nfs;
use crate::timeout::run_with_timeout;
use crate::volume::shell_word;

/// The volume that an argument names.
pub(super) enum VolumeArg {
    /// A configuration file.
    File(PathBuf),
    /// A mounted volume, also one whose daemon is dead.
    Mount(FanfsMount),
    /// Neither. The absolute path, and whether something exists there.
    Unknown(PathBuf, bool),
}

/// Finds the volume that the argument names.
///
/// # Errors
/// The argument is the name of several mounted volumes, or the address of an export.
pub(super) fn resolve(volume: &Path) -> Result<VolumeArg, Failure> {
    if let Some(address) = volume.to_str().filter(|text| nfs::strip_scheme(text).is_some()) {
        return Err(Failure::usage(format!(
            "{}: an export is not a volume yet; mount it with `fanfs mount`, or write a volume's \
             file with `fanfs init`, and name the mount or the file here",
            printable(address)
        )));
    }
    let word = volume.to_str().filter(|text| is_bare_name(text));
    if let Some(named) =
        word.map(|word| named_config_file(word, Path::new(CONFIG_DIR))).filter(|file| file.exists())
    {
        return Ok(VolumeArg::File(named));
    }
    let path = absolute(volume);
    if let Some(served) = mount_lookup::find_mount(&path) {
        return Ok(VolumeArg::Mount(served));
    }
    let asked = path.clone();
    let look = move || {
        let real = asked.canonicalize();
        real.map(|real| (real.is_file(), real))
    };
    let is_there = match run_with_timeout(mount_lookup::ANSWER_TIMEOUT, look) {
        Some(Ok((is_file, real))) => {
            return match mount_lookup::find_mount(&real) {
                Some(served) => Ok(VolumeArg::Mount(served)),
                None if is_file => Ok(VolumeArg::File(volume.to_owned())),
                None => find_by_mounted_name(word, real, true),
            };
        }
        Some(Err(error)) => error.kind() != std::io::ErrorKind::NotFound,
        None => true,
    };
    find_by_mounted_name(word, path, is_there)
}

/// The mounted volume whose name is `word`, or else [`VolumeArg::Unknown`].
fn find_by_mounted_name(
    word: Option<&str>,
    path: PathBuf,
    is_there: bool,
) -> Result<VolumeArg, Failure> {
    let Some(word) = word else { return Ok(VolumeArg::Unknown(path, is_there)) };
    let named = own_mounts(Some(word)).into_iter();
    let named: Vec<FanfsMount> =
        named.filter(|served| query_config_file(served).is_some()).collect();
    match <[FanfsMount; 1]>::try_from(named) {
        Ok([served]) => Ok(VolumeArg::Mount(served)),
        Err(none) if none.is_empty() => Ok(VolumeArg::Unknown(path, is_there)),
        Err(several) => Err(ambiguous_failure(word, &several)),
    }
}

/// This user's mounts, limited to volumes of that `name` if there is one.
fn own_mounts(name: Option<&str>) -> Vec<FanfsMount> {
    let own = geteuid().as_raw();
    let is_meant =
        |served: &FanfsMount| served.uid == own && name.is_none_or(|name| served.volume == name);
    public_mounts().into_iter().filter(is_meant).collect()
}

fn public_mounts() -> Vec<FanfsMount> {
    let table = MountTable::read().unwrap_or_default();
    FanfsMount::all_visible(&table).into_iter().filter(|served| !served.is_private).collect()
}

/// The mount's configuration file, or `Some(None)` if its daemon does not answer. `None` if the
/// mount's daemon lives but uses another run-time directory.
fn query_config_file(served: &FanfsMount) -> Option<Option<PathBuf>> {
    match control::query_daemon(&control::socket_path(&served.mount_point)) {
        Ok(status) => Some(Some(status.source)),
        Err(_) => mount_lookup::is_local_or_dead(served).then_some(None),
    }
}

fn ambiguous_failure(volume: &str, several: &[FanfsMount]) -> Failure {
    let points = several.iter().map(|one| shell_word(&one.mount_point.to_string_lossy()));
    let points = points.collect::<Vec<String>>().join(", ");
    let volume = printable(volume);
    Failure::usage(format!("{volume} is mounted more than once; use one of these: {points}"))
}

/// The configuration file of the volume that `volume` names.
///
/// # Errors
/// It is a mount whose daemon does not answer, and no named configuration matches it.
pub(super) fn config_file(volume: &Path) -> Result<PathBuf, Failure> {
    config_file_of(resolve(volume)?, volume)
}

/// As [`config_file`], for the result of [`resolve`].
///
/// # Errors
/// As [`config_file`].
pub(super) fn config_file_of(found: VolumeArg, volume: &Path) -> Result<PathBuf, Failure> {
    let served = match found {
        VolumeArg::File(file) => return Ok(file),
        VolumeArg::Mount(served) => served,
        VolumeArg::Unknown(_, is_there) => return Ok(named_or_path(volume, is_there)),
    };
    match mount_lookup::query_mount_daemon(&served.mount_point) {
        Ok(status) => Ok(status.source),
        // Another user's volume of the same name would be a different volume.
        Err(_) if served.uid == geteuid().as_raw() && has_named_config(&served.volume) => {
            Ok(named_config_file(&served.volume, Path::new(CONFIG_DIR)))
        }
        Err(trouble) => Err(trouble.into()),
    }
}

/// As [`config_file`], for a process that becomes a daemon. It must not start a second thread, so
/// it looks a path up only in the mount table.
///
/// # Errors
/// As [`config_file`].
pub(super) fn config_file_to_mount(volume: &Path) -> Result<PathBuf, Failure> {
    let is_name = volume.to_str().is_some_and(has_named_config);
    match mount_lookup::find_mount(&absolute(volume)).filter(|_| !is_name) {
        Some(served) => config_file_of(VolumeArg::Mount(served), volume),
        None => Ok(resolve_in_dir(volume, Path::new(CONFIG_DIR))),
    }
}

/// The mount point of the volume that `volume` names; the absolute path if there is no such
/// volume.
///
/// # Errors
/// The volume is not mounted, or more than once.
pub(super) fn mount_point(volume: &Path) -> Result<PathBuf, Failure> {
    let file = match resolve(volume)? {
        VolumeArg::Mount(served) => return Ok(served.mount_point),
        VolumeArg::Unknown(path, _) => return Ok(path),
        VolumeArg::File(file) => file,
    };
    let looked = file.clone();
    let config = run_with_timeout(mount_lookup::ANSWER_TIMEOUT, move || config::load(&looked).ok())
        .flatten();
    let name = config.map(|config| config.volume.name);
    let its = |served: &FanfsMount| match query_config_file(served) {
        Some(Some(source)) => is_same_file(&source, &file),
        // The kernel's mount table has only the name.
        Some(None) => name.as_ref() == Some(&served.volume),
        None => false,
    };
    let mounts: Vec<FanfsMount> = own_mounts(name.as_deref()).into_iter().filter(its).collect();
    let shown = file.display();
    match <[FanfsMount; 1]>::try_from(mounts) {
        Ok([served]) => Ok(served.mount_point),
        Err(none) if none.is_empty() => Err(Failure::failed(format!(
            "{shown}: this user has not mounted this volume; fanfs status lists mounted volumes"
        ))),
        Err(several) => Err(ambiguous_failure(&shown.to_string(), &several)),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let one = absolute(one);
    let other = absolute(other);
    let real = |path: PathBuf| {
        run_with_timeout(mount_lookup::ANSWER_TIMEOUT, move || path.canonicalize().ok()).flatten()
    };
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// `path` relative to the volume's root, if it is below a mount point of the volume.
pub(super) fn path_below_mount(volume: &str, path: &Path) -> Option<PathBuf> {
    let path = path.is_absolute().then_some(path)?;
    let mounts = public_mounts().into_iter().filter(|served| served.volume == volume);
    let below = mounts.filter_map(|served| path.strip_prefix(served.mount_point).ok());
    below.min_by_key(|rest| rest.components().count()).map(Path::to_owned)
}
