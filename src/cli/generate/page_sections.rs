//! Sections that several man pages share: environment, files, other pages.

use crate::cli::volume_name;

/// The environment variables that fanfs reads, and their effects.
pub(super) const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "FANFS_LOG",
        "The log level; overrides `[log] level`. The default is `info`; `debug` also logs file \
         names. Filters such as `fanfs::scheduler=trace` are possible.",
    ),
    (
        "FANFS_RUNTIME_DIR",
        "The directory of control sockets, logs and the journals of kept daemons, an absolute \
         path. The default is `/run/fanfs` for root and `$XDG_RUNTIME_DIR/fanfs` for other users.",
    ),
    (
        "FANFS_MOUNT",
        "The mount point for the fio jobs that `fanfs bench --fio` writes; fio reads it.",
    ),
    ("NO_COLOR", "If it is set and not empty, the output has no colors."),
    (
        "NOTIFY_SOCKET, LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID",
        "Set by systemd: notification of readiness, and the descriptor store, which holds the FUSE \
         device (`fanfs mount --foreground` in a unit with `FileDescriptorStoreMax`).",
    ),
];

/// A file or directory that manual pages mention.
pub(super) struct FileEntry {
    pub(super) path: String,
    pub(super) purpose: &'static str,
}

/// Files and directories.
pub(super) fn file_entries() -> [FileEntry; 3] {
    [
        FileEntry {
            path: format!("{}/NAME.toml", volume_name::CONFIG_DIR),
            purpose: "A volume's configuration, fanfs.toml(5). As VOLUME, `NAME` means this file.",
        },
        FileEntry {
            path: "/run/fanfs".to_owned(),
            purpose: "Control sockets and logs of volumes mounted by root.",
        },
        FileEntry {
            path: "/usr/share/fanfs/fanfs.schema.json".to_owned(),
            purpose: "The JSON schema of a volume's configuration, for editors.",
        },
    ]
}

/// The pages of "SEE ALSO", in the order of their sections.
const RELATED_PAGES: &[(&str, &str)] =
    &[("fanfs", "1"), ("fanfs.toml", "5"), ("fstab", "5"), ("mount.fanfs", "8"), ("mount", "8")];

/// The text of "SEE ALSO": the related pages except for `own`, and `more` of section 1.
pub(super) fn see_also(own: &str, more: &[String]) -> String {
    let more = more.iter().map(|name| (name.as_str(), "1"));
    let mut pages: Vec<_> = RELATED_PAGES.iter().copied().chain(more).collect();
    pages.retain(|(name, _)| *name != own);
    pages.sort_by_key(|(name, section)| (*section, *name));
    let shown: Vec<String> =
        pages.iter().map(|(name, section)| format!("`{name}`({section})")).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Every `FANFS_...` that the sources name is on the pages.
    #[test]
    fn every_environment_variable_is_documented() {
        fn walk(dir: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else if path.file_name() != Some("tests.rs".as_ref()) {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let names = text.split("\"FANFS_").skip(1);
                    found.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
                }
            }
        }
        let mut found = Vec::new();
        walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        // This test's own strings are not variables.
        found.retain(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        });
        assert!(found.iter().any(|name| name == "RUNTIME_DIR"), "{found:?}");
        for name in found {
            let name = format!("FANFS_{name}");
            assert!(ENVIRONMENT.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}
