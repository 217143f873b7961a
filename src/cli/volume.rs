//! A volume on a command line: a name, its configuration file, or where it is mounted.
//!
//! Every command takes all three. [`file`] and [`mount_point`] turn the argument into the one
//! that the command needs.
//!
//! *Invariant:* a bare word is a name in /etc/fanfs first: a file that another user puts into
//! the current directory of root does not become the volume that root mounts. A word with a
//! `/` or `.toml` in it is never a name, so `./WORD` is a way to say a path. Names of mounted volumes
//! count only for the user that mounted them.
//!
//! *Invariant:* a path is looked up in the mount table first, and nothing here waits longer than
//! [`mounted::LIMIT`] for a call on a path: a mount there may be dead or hung.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::{Failure, absolute, mounted, printable};
use crate::config;
use crate::control;
use crate::volume::mounts::MountTable;
use crate::volume::name::shell_word;
use crate::volume::served::Served;
use crate::volume::survey::within;

/// Where volumes are that are named by a word.
pub(super) const DIR: &str = "/etc/fanfs";

/// The volume that an argument names.
pub(super) enum Found {
    /// A configuration file.
    File(PathBuf),
    /// A mounted volume, also one whose daemon is dead.
    Mount(Served),
    /// Neither; the path, absolute, and whether there is anything.
    Other(PathBuf, bool),
}

/// Finds the volume.
///
/// # Errors
/// It is the name of several mounted volumes.
pub(super) fn find(volume: &Path) -> Result<Found, Failure> {
    let word = volume.to_str().filter(|text| is_word(text));
    if let Some(named) = word.map(|word| named(word, Path::new(DIR))).filter(|file| file.exists()) {
        return Ok(Found::File(named));
    }
    let path = absolute(volume);
    if let Some(served) = mounted::at(&path) {
        return Ok(Found::Mount(served));
    }
    let asked = path.clone();
    let look = move || {
        let real = asked.canonicalize();
        real.map(|real| (real.is_file(), real))
    };
    let is_there = match within(mounted::LIMIT, look) {
        Some(Ok((is_file, real))) => {
            return match mounted::at(&real) {
                Some(served) => Ok(Found::Mount(served)),
                None if is_file => Ok(Found::File(volume.to_owned())),
                None => by_mounted_name(word, real, true),
            };
        }
        Some(Err(error)) => error.kind() != std::io::ErrorKind::NotFound,
        None => true,
    };
    by_mounted_name(word, path, is_there)
}

/// The mounted volume of that name, if `word` is one; else [`Found::Other`].
fn by_mounted_name(word: Option<&str>, path: PathBuf, is_there: bool) -> Result<Found, Failure> {
    let Some(word) = word else { return Ok(Found::Other(path, is_there)) };
    let named = own_mounts(Some(word)).into_iter();
    let named: Vec<Served> = named.filter(|served| is_known(served).is_some()).collect();
    match <[Served; 1]>::try_from(named) {
        Ok([served]) => Ok(Found::Mount(served)),
        Err(none) if none.is_empty() => Ok(Found::Other(path, is_there)),
        Err(several) => Err(ambiguous(word, &several)),
    }
}

/// This user's mounts, of the volume of that name if one is given.
fn own_mounts(name: Option<&str>) -> Vec<Served> {
    let own = geteuid().as_raw();
    let is_meant =
        |served: &Served| served.user == own && name.is_none_or(|name| served.volume == name);
    mounts().into_iter().filter(is_meant).collect()
}

fn mounts() -> Vec<Served> {
    let table = MountTable::read().unwrap_or_default();
    Served::all(&table).into_iter().filter(|served| !served.is_private).collect()
}

/// The mount's configuration file, if its daemon answers. `None` where the mount is served from another run-time directory.
fn is_known(served: &Served) -> Option<Option<PathBuf>> {
    match control::ask_status(&control::socket_path(&served.mount_point)) {
        Ok(status) => Some(Some(status.source)),
        Err(_) => mounted::is_left(served).then_some(None),
    }
}

fn ambiguous(volume: &str, several: &[Served]) -> Failure {
    let points = several.iter().map(|one| shell_word(&one.mount_point.to_string_lossy()));
    let points: Vec<String> = points.collect();
    let (volume, points) = (printable(volume), points.join(", "));
    Failure::usage(format!("{volume} is mounted more than once; give one of these: {points}"))
}

/// The configuration file of the volume that is given as `volume`.
///
/// # Errors
/// It is a mount whose daemon cannot say which file it has.
pub(super) fn file(volume: &Path) -> Result<PathBuf, Failure> {
    file_of(find(volume)?, volume)
}

/// The same of what was found for `volume`.
///
/// # Errors
/// As [`file`].
pub(super) fn file_of(found: Found, volume: &Path) -> Result<PathBuf, Failure> {
    let served = match found {
        Found::File(file) => return Ok(file),
        Found::Mount(served) => served,
        Found::Other(_, is_there) => return Ok(by_name(volume, is_there)),
    };
    match mounted::status(&served.mount_point) {
        Ok(status) => Ok(status.source),
        // Another user's volume of the same name is another volume.
        Err(_) if served.user == geteuid().as_raw() && has_file(&served.volume) => {
            Ok(named(&served.volume, Path::new(DIR)))
        }
        Err(trouble) => Err(trouble.into()),
    }
}

/// As [`file`], for a process that becomes a daemon: it must not have a second thread, so a path
/// is looked up in the mount table alone.
///
/// # Errors
/// As [`file`].
pub(super) fn file_to_mount(volume: &Path) -> Result<PathBuf, Failure> {
    let is_name = volume.to_str().is_some_and(has_file);
    match mounted::at(&absolute(volume)).filter(|_| !is_name) {
        Some(served) => file_of(Found::Mount(served), volume),
        None => Ok(in_dir(volume, Path::new(DIR))),
    }
}

/// Where the volume is mounted that is given as `volume`; its path where no volume is found.
///
/// # Errors
/// The volume is not mounted, or more than once.
pub(super) fn mount_point(volume: &Path) -> Result<PathBuf, Failure> {
    let file = match find(volume)? {
        Found::Mount(served) => return Ok(served.mount_point),
        Found::Other(path, _) => return Ok(path),
        Found::File(file) => file,
    };
    let looked = file.clone();
    let config = within(mounted::LIMIT, move || config::load(&looked).ok()).flatten();
    let name = config.map(|config| config.volume.name);
    let its = |served: &Served| match is_known(served) {
        Some(Some(source)) => is_same(&source, &file),
        // The kernel's table has the name alone.
        Some(None) => name.as_ref() == Some(&served.volume),
        None => false,
    };
    let mounts: Vec<Served> = own_mounts(name.as_deref()).into_iter().filter(its).collect();
    let shown = file.display();
    match <[Served; 1]>::try_from(mounts) {
        Ok([served]) => Ok(served.mount_point),
        Err(none) if none.is_empty() => Err(Failure::failed(format!(
            "{shown}: this user has not mounted this volume; fanfs status lists the mounted ones"
        ))),
        Err(several) => Err(ambiguous(&shown.to_string(), &several)),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let (one, other) = (absolute(one), absolute(other));
    let real = |path: PathBuf| within(mounted::LIMIT, move || path.canonicalize().ok()).flatten();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// `path` from the volume's root, if it is below a mount point of the volume.
pub(super) fn below_mount(volume: &str, path: &Path) -> Option<PathBuf> {
    let path = path.is_absolute().then_some(path)?;
    let mounts = mounts().into_iter().filter(|served| served.volume == volume);
    let below = mounts.filter_map(|served| path.strip_prefix(served.mount_point).ok());
    below.min_by_key(|rest| rest.components().count()).map(Path::to_owned)
}

/// The file of a volume that mount(8) gives, who has made a path of a name if something in
/// the current directory is called so: at boot, `genomes` with a mount point `/genomes`.
pub(super) fn of_mount(volume: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let word = volume.strip_prefix(here).ok().and_then(Path::to_str);
    let word = word.filter(|word| volume.is_absolute() && is_word(word));
    match word.map(|word| named(word, Path::new(DIR))) {
        Some(named) if named.exists() => named,
        _ => in_dir(volume, Path::new(DIR)),
    }
}

/// A word is a name also where there is no such volume, if there is nothing else.
fn by_name(volume: &Path, is_there: bool) -> PathBuf {
    match volume.to_str().filter(|text| is_word(text)) {
        Some(word) if !is_there => named(word, Path::new(DIR)),
        _ => volume.to_owned(),
    }
}

fn in_dir(volume: &Path, dir: &Path) -> PathBuf {
    match volume.to_str() {
        Some(word) if is_word(word) => {
            let named = named(word, dir);
            let is_meant = named.exists() || !volume.exists();
            if is_meant { named } else { volume.to_owned() }
        }
        _ => volume.to_owned(),
    }
}

fn named(word: &str, dir: &Path) -> PathBuf {
    dir.join(format!("{word}.toml"))
}

/// Whether /etc/fanfs has the configuration of a volume of this name.
pub(super) fn has_file(volume: &str) -> bool {
    is_word(volume) && named(volume, Path::new(DIR)).exists()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains('/') && !text.starts_with('.') && !text.ends_with(".toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_word_is_a_name_and_all_else_is_a_path() {
        let dir = Path::new("/etc/fanfs");
        assert_eq!(in_dir(Path::new("genomes"), dir), Path::new("/etc/fanfs/genomes.toml"));
        assert_eq!(in_dir(Path::new("hg38.v2"), dir), Path::new("/etc/fanfs/hg38.v2.toml"));
        for path in ["genomes.toml", "./genomes", "/etc/genomes", "a/b", "..", "", "/"] {
            assert_eq!(in_dir(Path::new(path), dir), Path::new(path));
        }
        // There is a directory `src` where the tests run, which is no volume.
        assert_eq!(in_dir(Path::new("src"), dir), Path::new("src"));
        let volumes = tempfile::tempdir().unwrap();
        // A volume has the name: nothing that lies here can take its place, file or not.
        for here in ["src", "Cargo", "README.md"] {
            let named = volumes.path().join(format!("{here}.toml"));
            std::fs::write(&named, "").unwrap();
            assert_eq!(in_dir(Path::new(here), volumes.path()), named);
        }
        assert_eq!(in_dir(Path::new("./src"), volumes.path()), Path::new("./src"));
    }
}
