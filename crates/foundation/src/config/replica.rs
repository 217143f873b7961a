//! `[[replica]]`: the location of each replica, its names and its limits.

use std::collections::HashMap;
use std::path::PathBuf;

use super::checks::{check_path, check_range, parse_choice, parse_count};
use super::choices::{Access, NFS_VERSIONS, PAGE_CACHES, PageCache, Passthrough};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::placement::ProviderConfig;
use super::{Config, ReplicaConfig};
use super::{defaults, raw};
use crate::nfs::{NfsAddress, Version};
use crate::survey::{NfsExport, ReplicaLocation};
use crate::volume::MAX_REPLICAS;

/// Checks all replicas.
pub(super) fn validate(
    written: Vec<raw::Replica>,
    outline: &KeyIndex<'_>,
) -> Result<Vec<ReplicaConfig>, ConfigError> {
    if written.is_empty() {
        let advice = "add at least one [[replica]] with a path or an address";
        return Err(outline.missing("replica", advice));
    }
    if written.len() > MAX_REPLICAS {
        let what = format!("the file has {} replicas; use at most {MAX_REPLICAS}", written.len());
        return Err(outline.refuse(&format!("replica[{}]", MAX_REPLICAS + 1), what));
    }
    let mut locations: HashMap<PathBuf, usize> = HashMap::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut replicas = Vec::with_capacity(written.len());
    for (number, written) in (1..).zip(written) {
        let explicit_name = written.name.is_some();
        let replica = replica(number, written, outline)?;
        if let Some(other) = locations.insert(replica.location.to_path(), number) {
            let location = replica.location.to_path();
            let (key, remedy) = match replica.location {
                ReplicaLocation::Directory(_) => ("path", "a separate mount for each replica"),
                ReplicaLocation::Export(_) => ("address", "another server for each replica"),
            };
            let what = format!("{location:?} is also the {key} of replica[{other}]; use {remedy}");
            return Err(outline.refuse(&format!("replica[{number}].{key}"), what));
        }
        if let Some(other) = names.insert(replica.name.clone(), number) {
            let origin = if explicit_name { "" } else { ", the default," };
            let what = format!(
                "{:?}{origin} is also the name of replica[{other}]; use a unique name for each \
                 replica",
                replica.name
            );
            return Err(outline.refuse(&format!("replica[{number}].name"), what));
        }
        replicas.push(replica);
    }
    Ok(replicas)
}

fn replica(
    number: usize,
    mut written: raw::Replica,
    outline: &KeyIndex<'_>,
) -> Result<ReplicaConfig, ConfigError> {
    let key = |name: &str| format!("replica[{number}].{name}");
    let location = location(number, &mut written, outline)?;
    for (name, value) in [("name", &written.name), ("node", &written.node)] {
        if let Some(value) = value {
            check_label(outline, &key(name), value)?;
        }
    }
    let aliases = written.aliases.unwrap_or_default();
    for alias in &aliases {
        check_label(outline, &key("aliases"), alias)?;
    }
    let name =
        written.name.or_else(|| written.node.clone()).unwrap_or_else(|| format!("r{number}"));
    let weight = written.weight.unwrap_or(defaults::WEIGHT);
    check_range(outline, &key("weight"), weight, defaults::WEIGHT_RANGE)?;
    if let Some(rate) = written.max_rate
        && rate < defaults::MAX_RATE_MIN
    {
        let what = format!("{rate} is too low; use at least {}", defaults::MAX_RATE_MIN);
        return Err(outline.refuse(&key("max_rate"), what));
    }
    let is_directory = location.directory().is_some();
    Ok(ReplicaConfig {
        location,
        node: written.node.unwrap_or_else(|| name.clone()),
        name,
        aliases,
        weight,
        max_in_flight: written.max_in_flight.map(|size| size.0),
        max_rate: written.max_rate.map(|rate| rate.0),
        page_cache: match written.page_cache.as_deref() {
            None => PageCache::Auto,
            Some(way) => parse_choice(outline, &key("page_cache"), way, &PAGE_CACHES)?,
        },
        require_mount: match is_directory {
            true => written.require_mount.unwrap_or(defaults::REQUIRE_MOUNT),
            false => false,
        },
    })
}

/// The directory or the export, and that the other keys suit it.
fn location(
    number: usize,
    written: &mut raw::Replica,
    outline: &KeyIndex<'_>,
) -> Result<ReplicaLocation, ConfigError> {
    let key = |name: &str| format!("replica[{number}].{name}");
    let of_exports = [
        ("version", written.version.is_some()),
        ("connections", written.connections.is_some()),
        ("mount_port", written.mount_port.is_some()),
    ];
    let of_mounts = [
        ("page_cache", written.page_cache.is_some()),
        ("require_mount", written.require_mount.is_some()),
    ];
    let refuse_any = |keys: &[(&str, bool)], why: &str| match keys.iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(outline.refuse(&key(name), why.to_owned())),
        None => Ok(()),
    };
    match (written.path.take(), written.address.take()) {
        (Some(path), None) => {
            check_path(outline, &key("path"), &path)?;
            refuse_any(&of_exports, "belongs to `address`, not to `path`; remove it")?;
            Ok(ReplicaLocation::Directory(PathBuf::from(path)))
        }
        (None, Some(address)) => {
            let why = "has no effect with `address`: fanfs reads from the server without a mount; \
                       remove it";
            refuse_any(&of_mounts, why)?;
            export(number, &address, written, outline).map(ReplicaLocation::Export)
        }
        (Some(_), Some(_)) => {
            let what = "excludes `path`: a replica is an NFS server's export or a directory; remove one \
                        of them";
            Err(outline.refuse(&key("address"), what.to_owned()))
        }
        (None, None) => {
            let advice = "set it to the directory where the replica is mounted, or set `address` to \
                          \"nfs://SERVER/EXPORT\"";
            Err(outline.missing(&key("path"), advice))
        }
    }
}

fn export(
    number: usize,
    address: &str,
    written: &raw::Replica,
    outline: &KeyIndex<'_>,
) -> Result<NfsExport, ConfigError> {
    let key = |name: &str| format!("replica[{number}].{name}");
    let address: NfsAddress = address.parse().map_err(|error| {
        outline.refuse(&key("address"), format!("{address:?} is not valid: {error}"))
    })?;
    let version = match written.version.as_deref() {
        None => None,
        Some(version) => Some(parse_choice(outline, &key("version"), version, &NFS_VERSIONS)?),
    };
    let mount_port = match written.mount_port {
        None => None,
        Some(_) if version == Some(Version::V4_1) => {
            let what = "belongs to NFSv3, not to `version = \"4.1\"`; remove it";
            return Err(outline.refuse(&key("mount_port"), what.to_owned()));
        }
        Some(port) => {
            let range = defaults::MOUNT_PORT_RANGE;
            Some(parse_count(outline, &key("mount_port"), Some(port), 0, range)?)
        }
    };
    Ok(NfsExport {
        address,
        version,
        connections: parse_count(
            outline,
            &key("connections"),
            written.connections,
            defaults::CONNECTIONS,
            defaults::CONNECTIONS_RANGE,
        )?,
        mount_port,
    })
}

/// Refuses settings that need all replicas, or one of them, to be directories.
pub(super) fn check_exports(config: &Config, outline: &KeyIndex<'_>) -> Result<(), ConfigError> {
    let is_export = |replica: &ReplicaConfig| replica.location.export().is_some();
    let Some(first) = config.replicas.iter().position(is_export) else { return Ok(()) };
    let number = first + 1;
    if config.volume.access == Access::ReadWrite {
        let what = format!(
            "\"rw\" needs replicas with `path`, and replica[{number}] has `address`: fanfs only reads \
             from it; use \"ro\", or mount the export and set its `path`"
        );
        return Err(outline.refuse("volume.access", what));
    }
    if config.read.passthrough == Passthrough::WholeFile {
        let what = format!(
            "\"whole-file\" needs replicas with `path`, and replica[{number}] has `address`: the \
             kernel cannot read it; change one of them"
        );
        return Err(outline.refuse("read.passthrough", what));
    }
    if config.replicas.iter().all(is_export)
        && let Some(key) = key_with_local_path(&config.placement.provider)
    {
        let what = "has `{local}`, the file below a replica's `path`, and all replicas have \
                    `address`; use `{path}`, or mount one of the replicas";
        return Err(outline.refuse(key, what.to_owned()));
    }
    Ok(())
}

/// The key of a command that gets the path of a file below a replica.
fn key_with_local_path(provider: &ProviderConfig) -> Option<&'static str> {
    let (command, layout_command) = match provider {
        ProviderConfig::Tool { command, layout_command, .. } => {
            (command.as_deref(), layout_command.as_deref())
        }
        ProviderConfig::Exec { command } => (Some(&**command), None),
        ProviderConfig::None
        | ProviderConfig::Learned
        | ProviderConfig::Table { .. }
        | ProviderConfig::WebHdfs { .. } => return None,
    };
    let has_it = |words: &[String]| words.iter().any(|word| word.contains("{local"));
    let commands = [("placement.command", command), ("placement.layout_command", layout_command)];
    let with_it = commands.into_iter().find(|(_, words)| words.is_some_and(has_it));
    with_it.map(|(key, _)| key)
}

/// Checks the name of a replica or node: a host name or address, which becomes a metric label.
fn check_label(outline: &KeyIndex<'_>, key: &str, label: &str) -> Result<(), ConfigError> {
    if (1..=253).contains(&label.len()) && label.bytes().all(is_label) {
        return Ok(());
    }
    let what =
        format!("{label:?} is not a valid name; use 1 to 253 letters, digits, `.`, `_`, `-`, `:`");
    Err(outline.refuse(key, what))
}

pub(super) fn is_label(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-:".contains(&byte)
}
