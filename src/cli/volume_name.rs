//! A volume named on a command line: the path of its file, or the word that stands for
//! /etc/fanfs/WORD.toml.
//!
//! *Invariant:* a bare word is a path only where no volume has the name: what somebody puts
//! into a directory that root happens to be in does not become the volume that root mounts.
//! What has a `/` or `.toml` in it is never a name, so `./WORD` is a way to say a file.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Where volumes are that are named by a word.
pub(super) const DIR: &str = "/etc/fanfs";

/// The file of the volume that is given as `volume`.
pub(super) fn file(volume: &Path) -> PathBuf {
    in_dir(volume, Path::new(DIR))
}

/// The same where mount(8) gives it, who has made a path of a name if something in the
/// current directory is called so: at boot, `genomes` with a mount point `/genomes`.
pub(super) fn of_mount(volume: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let word = volume.strip_prefix(here).ok().and_then(Path::to_str);
    let named = word.filter(|word| volume.is_absolute() && is_word(word));
    let named = named.map(|word| Path::new(DIR).join(format!("{word}.toml")));
    match named {
        Some(named) if named.exists() => named,
        _ => file(volume),
    }
}

/// The same for an argument of a command.
pub(super) fn parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|volume| file(&volume))
}

fn in_dir(volume: &Path, dir: &Path) -> PathBuf {
    match volume.to_str() {
        Some(word) if is_word(word) => {
            let named = dir.join(format!("{word}.toml"));
            let is_meant = named.exists() || !volume.exists();
            if is_meant { named } else { volume.to_owned() }
        }
        _ => volume.to_owned(),
    }
}

/// Whether /etc/fanfs has the configuration of a volume of this name.
pub(super) fn has_file(volume: &str) -> bool {
    is_word(volume) && Path::new(DIR).join(format!("{volume}.toml")).exists()
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
