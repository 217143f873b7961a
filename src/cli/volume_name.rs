//! Names of volumes: `NAME` for the configuration /etc/fanfs/NAME.toml.
//!
//! *Invariant:* a bare word is a name in /etc/fanfs first: a file that another user puts into
//! the current directory of root does not become the volume that root mounts. A word with a
//! `/` or `.toml` in it is never a name, so `./WORD` is a way to say a path.

use std::path::{Path, PathBuf};

/// The directory of the configurations that a bare word names.
pub(super) const CONFIG_DIR: &str = "/etc/fanfs";

/// The configuration file for the volume that mount(8) passes. mount(8) turns a name into a path
/// if the current directory has an entry of that name: at boot, `genomes` becomes `/genomes` if
/// that directory exists.
pub(super) fn config_file_for_helper(volume: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let word = volume.strip_prefix(here).ok().and_then(Path::to_str);
    let word = word.filter(|word| volume.is_absolute() && is_bare_name(word));
    match word.map(|word| named_config_file(word, Path::new(CONFIG_DIR))) {
        Some(named) if named.exists() => named,
        _ => resolve_in_dir(volume, Path::new(CONFIG_DIR)),
    }
}

/// The configuration file for `volume`, which is not mounted. A word is a name even without such a
/// volume, unless something else of that name exists (`is_there`).
pub(super) fn named_or_path(volume: &Path, is_there: bool) -> PathBuf {
    match volume.to_str().filter(|text| is_bare_name(text)) {
        Some(word) if !is_there => named_config_file(word, Path::new(CONFIG_DIR)),
        _ => volume.to_owned(),
    }
}

/// The configuration file that `volume` means: a name in `dir`, or a path.
pub(super) fn resolve_in_dir(volume: &Path, dir: &Path) -> PathBuf {
    match volume.to_str() {
        Some(word) if is_bare_name(word) => {
            let named = named_config_file(word, dir);
            let is_meant = named.exists() || !volume.exists();
            if is_meant { named } else { volume.to_owned() }
        }
        _ => volume.to_owned(),
    }
}

/// The configuration of the volume of this name in `dir`.
pub(super) fn named_config_file(word: &str, dir: &Path) -> PathBuf {
    dir.join(format!("{word}.toml"))
}

/// Whether /etc/fanfs has a configuration file of this name.
pub(super) fn has_named_config(volume: &str) -> bool {
    is_bare_name(volume) && named_config_file(volume, Path::new(CONFIG_DIR)).exists()
}

/// Whether `text` has the form of a name.
pub(super) fn is_bare_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('/') && !text.starts_with('.') && !text.ends_with(".toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_word_is_a_name_and_the_rest_are_paths() {
        let dir = Path::new("/etc/fanfs");
        assert_eq!(resolve_in_dir(Path::new("genomes"), dir), Path::new("/etc/fanfs/genomes.toml"));
        assert_eq!(resolve_in_dir(Path::new("hg38.v2"), dir), Path::new("/etc/fanfs/hg38.v2.toml"));
        for path in ["genomes.toml", "./genomes", "/etc/genomes", "a/b", "..", "", "/"] {
            assert_eq!(resolve_in_dir(Path::new(path), dir), Path::new(path));
        }
        // The directory in which the tests run has a `src`, which is not a volume.
        assert_eq!(resolve_in_dir(Path::new("src"), dir), Path::new("src"));
        let volumes = tempfile::tempdir().unwrap();
        // A volume of that name wins over any file or directory here.
        for here in ["src", "Cargo", "README.md"] {
            let named = volumes.path().join(format!("{here}.toml"));
            std::fs::write(&named, "").unwrap();
            assert_eq!(resolve_in_dir(Path::new(here), volumes.path()), named);
        }
        assert_eq!(resolve_in_dir(Path::new("./src"), volumes.path()), Path::new("./src"));
    }
}
