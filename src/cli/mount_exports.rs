//! A volume that a command line describes instead of a configuration file: several servers with one
//! export, `nfs://gw1,gw2,gw3/cluster`, or `gw1,gw2,gw3:/cluster` as in /etc/fstab.
//!
//! `fanfs mount` writes the equivalent configuration file into the run-time directory, next to the
//! mount's socket and log. From then on the mount is like any other.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::cancellation::print_message;
use super::{Failure, absolute, printable};
use crate::config;
use crate::control;
use crate::nfs::{NfsAddress, strip_scheme};

/// The volume's name if the export suggests none.
const DEFAULT_NAME: &str = "nfs";

/// The exports of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportList {
    addresses: Vec<NfsAddress>,
}

impl ExportList {
    /// The exports, if `volume` is a list of them and not a path or a name.
    ///
    /// # Errors
    /// If one of the addresses is not valid.
    pub(super) fn parse(volume: &Path) -> Option<Result<Self, Failure>> {
        let text = volume.to_str()?;
        let (servers, export) = match strip_scheme(text) {
            Some(rest) if rest.contains("://") => {
                let advice = "write nfs:// once, as in nfs://gw1,gw2/EXPORT";
                return Some(Err(Failure::usage(format!("{}: {advice}", printable(text)))));
            }
            Some(rest) => rest.split_at_checked(rest.find('/').unwrap_or(rest.len()))?,
            None => {
                let end = text.find(":/").filter(|end| *end > 0 && !text[..*end].contains('/'))?;
                (&text[..end], &text[end + 1..])
            }
        };
        let address = |server: &str| {
            let address = format!("nfs://{server}{export}");
            address.parse().map_err(|error| {
                let volume = printable(text);
                Failure::usage(format!("{volume}: {} is not valid: {error}", printable(&address)))
            })
        };
        let addresses = servers.split(',').map(address).collect::<Result<_, _>>();
        Some(addresses.map(|addresses| Self { addresses }))
    }

    /// The text of the configuration file.
    pub(super) fn to_config(&self) -> String {
        let export = self.addresses.first().map_or(&b""[..], |address| &address.export);
        let last = export.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut text = format!(
            "# Written by fanfs mount. man 5 fanfs.toml lists all keys.\n\
             [volume]\nname = \"{}\"\nmode = \"shared\"\n",
            volume_name(&String::from_utf8_lossy(last))
        );
        for address in &self.addresses {
            let quoted = toml::Value::String(address.to_string());
            text += &format!("\n[[replica]]\naddress = {quoted}\n");
            let is_unique =
                self.addresses.iter().filter(|other| other.server == address.server).count() == 1;
            if is_unique && is_replica_name(&address.server) {
                text += &format!("name = \"{}\"\n", address.server);
            }
        }
        text
    }

    /// Writes the file for a mount at `mount_point`, and shows it; returns its path.
    ///
    /// # Errors
    /// If the list is no valid volume, if a daemon serves the mount point already, or if the file
    /// cannot be written.
    pub(super) fn write_config(&self, mount_point: &Path) -> Result<PathBuf, Failure> {
        let text = self.to_config();
        let canonical = mount_point.canonicalize();
        let mount_point = &canonical.unwrap_or_else(|_| absolute(mount_point));
        let path = control::config_path(mount_point);
        config::parse(&text, &path).map_err(Failure::usage)?;
        // The volume there was perhaps mounted with this file.
        if control::query_daemon(&control::socket_path(mount_point)).is_ok() {
            let point = mount_point.display();
            return Err(Failure::failed(format!("{point}: a volume is mounted here already")));
        }
        let write = || -> std::io::Result<()> {
            let dir = control::make_runtime_dir()?;
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(text.as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        let shown = path.display();
        write().map_err(|error| Failure::failed(format!("{shown}: {error}")))?;
        print_message(&format!("fanfs: mounting the volume of {shown}:\n{text}"));
        Ok(path)
    }
}

/// A name for the volume: `last` as far as a name may contain its characters.
fn volume_name(last: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = last.chars().filter(|c| is_plain(*c)).take(64).collect();
    match name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => name,
        false => DEFAULT_NAME.to_owned(),
    }
}

fn is_replica_name(server: &str) -> bool {
    server.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_of(volume: &str) -> config::Config {
        let list = ExportList::parse(Path::new(volume)).unwrap().ok().unwrap();
        config::parse(&list.to_config(), Path::new("x.toml")).unwrap()
    }

    #[test]
    fn a_list_of_servers_is_a_volume() {
        for volume in ["nfs://gw1,gw2,10.0.0.3/mapr/cluster", "gw1,gw2,10.0.0.3:/mapr/cluster"] {
            let config = config_of(volume);
            assert_eq!(config.volume.name, "cluster");
            let locations: Vec<String> =
                config.replicas.iter().map(|replica| replica.location.to_string()).collect();
            let expected = ["gw1", "gw2", "10.0.0.3"].map(|s| format!("nfs://{s}/mapr/cluster"));
            assert_eq!(locations, expected);
            assert_eq!(config.replicas[1].name, "gw2");
        }
        let config = config_of("nfs://[::1]:20049,[::1]:20050/");
        assert_eq!(config.volume.name, DEFAULT_NAME);
        assert_eq!(config.replicas[1].location.to_string(), "nfs://[::1]:20050/");
        assert_eq!(config.replicas[1].name, "r2", "both have the same server");
        assert_eq!(config_of("NFS://gw1/%20x").volume.name, "x");
    }

    #[test]
    fn paths_and_names_are_no_lists() {
        for volume in ["/etc/v.toml", "genomes", "./a:/b", "a/b:/c", ":/x", "v.toml", "a:b"] {
            assert!(ExportList::parse(Path::new(volume)).is_none(), "{volume}");
        }
        for volume in [
            "nfs://",
            "nfs://gw1",
            "nfs://gw1,/x",
            "nfs://gw1:x/y",
            "gw1,:/x",
            "NFS://gw1, gw2/x",
            "nfs://me@gw1/x",
            "nfs://gw1/x,nfs://gw2/x",
        ] {
            assert!(matches!(ExportList::parse(Path::new(volume)), Some(Err(_))), "{volume}");
        }
    }
}
