//! `fanfs reload`: applies a changed configuration to a mounted volume.

use std::fmt::Write;
use std::path::PathBuf;

use super::{CommandResult, Failure, absolute, mount_lookup, upgrade, volume};
use crate::config;
use crate::control::ControlRequest;
use crate::status::ReplicaLocation;

/// Arguments of `fanfs reload`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs reload starts a daemon with the new configuration, which takes over the mount from the old \
daemon. Open files stay open; reads wait for a moment. If the configuration is wrong, or the new \
daemon cannot take over, the old one continues. Only the daemon's user and root can run this \
command. A few keys cannot change while the volume is mounted; docs/CONFIGURATION.md lists them.

Examples:
  fanfs reload genomes
  fanfs reload genomes /etc/fanfs/genomes-new.toml

Exit status: 0 the new configuration is in use; 1 the new daemon did not take over; 2 wrong usage \
or configuration.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// The new configuration, a name or a file [default: the file of the mounted volume]
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    file: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let path = volume::mount_point(&args.volume)?;
    let now = mount_lookup::query_mount_daemon(&path)?;
    let volume = args.file.as_deref().map(volume::config_file).transpose()?;
    let volume = volume.as_deref().map(absolute);
    let source = volume.clone().unwrap_or_else(|| now.source.clone());
    // Loaded here too, so that its errors are shown as `fanfs mount` shows them.
    let config = config::load(&source).map_err(Failure::usage)?;
    crate::daemon::check_placement(&config).map_err(Failure::usage)?;
    let fixed = [
        (config.volume.name != now.volume, "its name"),
        (config.volume.mode != now.mode, "`mode`"),
    ];
    if let Some((_, what)) = fixed.iter().find(|(changed, _)| *changed) {
        return Err(Failure::usage(format!(
            "{}: {what} cannot change while the volume is mounted; unmount it and mount it again",
            source.display()
        )));
    }
    let over = upgrade::request_handover(&path, &ControlRequest::Reload { volume })?;
    let then = upgrade::successor_status(&path, &over)?;
    let changed = describe_replica_changes(&now.replicas, &then.replicas);
    upgrade::print_report(&over, &format!("configuration {}\n{changed}", source.display()))
}

/// The changes of the replicas on one line: "replicas 3 -> 4: added n4".
fn describe_replica_changes(before: &[ReplicaLocation], after: &[ReplicaLocation]) -> String {
    let missing = |from: &[ReplicaLocation], other: &[ReplicaLocation]| -> Vec<String> {
        let is_gone = |one: &&ReplicaLocation| other.iter().all(|two| two.name != one.name);
        from.iter().filter(is_gone).map(|one| one.name.clone()).collect()
    };
    let moved = after.iter().filter_map(|new| {
        let old = before.iter().find(|old| old.name == new.name && old.path != new.path)?;
        Some(format!("{} ({} -> {})", new.name, old.path.display(), new.path.display()))
    });
    let kinds = [
        ("added", missing(after, before)),
        ("removed", missing(before, after)),
        ("moved", moved.collect()),
    ];
    let said = kinds.iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<_> = said.map(|(what, names)| format!("{what} {}", names.join(", "))).collect();
    let mut text = format!("replicas {} -> {}: ", before.len(), after.len());
    let _ = match said.is_empty() {
        true => writeln!(text, "unchanged"),
        false => writeln!(text, "{}", said.join("; ")),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_names_each_change() {
        let location = |name: &&str| ReplicaLocation {
            name: (*name).to_owned(),
            path: format!("/mnt/{name}").into(),
        };
        let all = |names: &[&str]| -> Vec<ReplicaLocation> { names.iter().map(location).collect() };
        let three = all(&["n1", "n2", "n3"]);
        let four = all(&["n1", "n2", "n3", "n4"]);
        assert_eq!(describe_replica_changes(&three, &four), "replicas 3 -> 4: added n4\n");
        assert_eq!(describe_replica_changes(&three, &three), "replicas 3 -> 3: unchanged\n");
        let mut other = all(&["n2", "n4"]);
        other[0].path = "/srv/n2".into();
        assert_eq!(
            describe_replica_changes(&three, &other),
            "replicas 3 -> 2: added n4; removed n1, n3; moved n2 (/mnt/n2 -> /srv/n2)\n"
        );
    }
}
