//! A .mount and an .automount unit for a volume. They are for administrators who manage mounts as
//! units; the mount unit waits for the replicas' own mounts.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::GeneratedFile;
use crate::cli::{CommandResult, Failure, absolute, print_result, volume};
use crate::config::{self, Config};

/// Arguments of `fanfs generate units`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// The volume's future mount point
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    mount_point: PathBuf,
    /// Mount options, comma-separated
    #[arg(short = 'o', value_name = "OPTIONS", default_value = "allow_other")]
    options: String,
    /// Write the units into DIR instead of standard output
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    output: Option<PathBuf>,
    /// Overwrite existing units that differ
    #[arg(long, requires = "output")]
    force: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let volume = absolute(&volume::config_file(&args.volume)?);
    let config = config::load(&volume).map_err(Failure::usage)?;
    let units = render_units(&config, &volume, &absolute(&args.mount_point), &args.options)
        .map_err(Failure::usage)?;
    match &args.output {
        Some(dir) => {
            if !args.force {
                refuse_overwrite(dir, &units)?;
            }
            super::write_files(dir, &units)
        }
        None => {
            let mut text = String::new();
            for unit in &units {
                let _ = writeln!(text, "# /etc/systemd/system/{}\n{}", unit.path, unit.text);
            }
            print_result(text.trim_end_matches('\n')).and_then(|_| print_result("\n"))
        }
    }
}

/// Fails if `dir` has a unit that differs: an administrator may have changed it.
fn refuse_overwrite(dir: &Path, units: &[GeneratedFile]) -> Result<(), Failure> {
    for unit in units {
        let path = dir.join(&unit.path);
        let found = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            found => found,
        };
        if !found.is_ok_and(|found| found == unit.text.as_bytes()) {
            let what = "exists and differs; choose another directory, or overwrite it with --force";
            return Err(Failure::failed(format!("{} {what}", path.display())));
        }
    }
    Ok(())
}

/// Why a unit cannot be generated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UnitError {
    #[error("{} is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// systemd would split the value.
    #[error("{0:?} contains a blank, a quote or a backslash; write the unit by hand")]
    UnquotableValue(String),
}

/// The mount unit and the automount unit.
fn render_units(
    config: &Config,
    volume: &Path,
    mount_point: &Path,
    options: &str,
) -> Result<[GeneratedFile; 2], UnitError> {
    let name = unit_name(mount_point);
    let what = unit_path(volume)?;
    let place = unit_path(mount_point)?;
    let options = escape_unit_value(options)?;
    let directories = config.replicas.iter().filter_map(|replica| replica.location.directory());
    let directories = directories.map(unit_path).collect::<Result<Vec<_>, _>>()?.join(" ");
    let mounts_first = match directories.is_empty() {
        true => String::new(),
        false => format!(
            "# Mount the replicas first. Remove the next line if autofs or an administrator mounts\n\
             # them.\n\
             RequiresMountsFor={directories}\n"
        ),
    };
    let volume = &config.volume.name;
    let mount = format!(
        "[Unit]\n\
         Description=fanfs volume {volume}\n\
         Documentation=man:mount.fanfs(8)\n\
         {mounts_first}\
         After=network-online.target remote-fs-pre.target\n\
         Wants=network-online.target\n\
         \n\
         [Mount]\n\
         Type=fanfs\n\
         What={what}\n\
         Where={place}\n\
         Options={options},_netdev\n\
         TimeoutSec=60\n\
         \n\
         [Install]\n\
         WantedBy=remote-fs.target\n"
    );
    let automount = format!(
        "[Unit]\n\
         Description=fanfs volume {volume}, mounted when it is first used\n\
         Documentation=man:mount.fanfs(8)\n\
         \n\
         [Automount]\n\
         Where={place}\n\
         \n\
         [Install]\n\
         WantedBy=remote-fs.target\n"
    );
    Ok([
        GeneratedFile { path: format!("{name}.mount"), text: mount },
        GeneratedFile { path: format!("{name}.automount"), text: automount },
    ])
}

/// A path as a value in a unit.
fn unit_path(path: &Path) -> Result<String, UnitError> {
    let text = path.to_str().ok_or_else(|| UnitError::NotUtf8(path.to_owned()))?;
    escape_unit_value(text)
}

/// Escapes `%`, which begins a specifier. A backslash, a quote or a blank is an error.
fn escape_unit_value(text: &str) -> Result<String, UnitError> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || "\\\"'".contains(c)) {
        return Err(UnitError::UnquotableValue(text.to_owned()));
    }
    Ok(text.replace('%', "%%"))
}

/// The name of the path's unit, as `systemd-escape --path` has it (systemd.unit(5)).
fn unit_name(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').collect();
    parts.retain(|part| !part.is_empty() && *part != b".");
    let mut name = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        if index > 0 {
            name.push('-');
        }
        for (at, byte) in part.iter().enumerate() {
            let plain = byte.is_ascii_alphanumeric() || b":_.".contains(byte);
            if plain && !(index == 0 && at == 0 && *byte == b'.') {
                name.push(char::from(*byte));
            } else {
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    if name.is_empty() { "-".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_follow_systemds_rules() {
        for (path, name) in [
            ("/genomes", "genomes"),
            ("/mnt//fan-fs/x/", "mnt-fan\\x2dfs-x"),
            ("/.hidden/a.b", "\\x2ehidden-a.b"),
            ("/", "-"),
            ("/é", "\\xc3\\xa9"),
        ] {
            assert_eq!(unit_name(Path::new(path)), name);
        }
    }

    #[test]
    fn edited_units_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let units = ["a.mount", "a.automount"]
            .map(|path| GeneratedFile { path: path.to_owned(), text: "[Unit]\n".to_owned() });
        let refused = || refuse_overwrite(dir.path(), &units).err().map(|failure| failure.text());
        assert_eq!(refused(), None, "there is none");
        std::fs::write(dir.path().join("a.mount"), "[Unit]\n").unwrap();
        assert_eq!(refused(), None, "it is the same");
        std::fs::write(dir.path().join("a.automount"), "[Unit]\n# mine\n").unwrap();
        assert!(refused().unwrap().contains("a.automount exists"));
    }

    #[test]
    fn values_that_a_unit_would_split_are_refused() {
        assert_eq!(escape_unit_value("/a%b"), Ok("/a%%b".to_owned()));
        for text in ["/a b", "/a\\b", "/a\"b", "/a\nb"] {
            assert!(escape_unit_value(text).is_err(), "{text:?}");
        }
    }
}
