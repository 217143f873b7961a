//! Lists the network mounts, and groups those that look like one volume. A pure function of the
//! mount table: touching a mount that hangs would block the command.

use std::fmt;

use serde::Serialize;

use crate::cli::printable;
use crate::mount_table::{Mount, MountTable};
use crate::volume::shell_word;

/// FUSE file systems that never hold replicas.
const IGNORED_FS_TYPES: &[&str] =
    &["fuse.fanfs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fuse.snapfuse", "fuse.dumpfs"];

/// The network mounts of this machine.
#[derive(Debug, Serialize)]
pub(super) struct MountCandidates {
    /// All network mounts, in the table's order.
    mounts: Vec<CandidateMount>,
    /// Groups of two or more mount points that look like one volume.
    candidates: Vec<Vec<String>>,
}

/// One mount.
#[derive(Debug, Serialize)]
struct CandidateMount {
    mount_point: String,
    fs_type: String,
    source: String,
    /// The grouping key: equal for mounts that look like the same data.
    #[serde(skip)]
    alike: String,
}

impl MountCandidates {
    pub(super) fn new(table: &MountTable) -> Self {
        let is_seen = |mount: &&Mount| {
            let top = table.containing(&mount.mount_point).map(|top| top.id);
            mount.is_network()
                && !IGNORED_FS_TYPES.contains(&&*mount.fs_type)
                && top == Some(mount.id)
        };
        let mounts: Vec<CandidateMount> =
            table.iter().filter(is_seen).map(|mount| CandidateMount::new(table, mount)).collect();
        let mut groups: Vec<Vec<&CandidateMount>> = Vec::new();
        for mount in &mounts {
            match groups.iter_mut().find(|group| group[0].alike == mount.alike) {
                Some(group) => group.push(mount),
                None => groups.push(vec![mount]),
            }
        }
        groups.retain(|group| group.len() > 1);
        let points = |group: Vec<&CandidateMount>| {
            group.iter().map(|seen| seen.mount_point.clone()).collect()
        };
        let candidates = groups.into_iter().map(points).collect();
        Self { mounts, candidates }
    }
}

impl CandidateMount {
    fn new(table: &MountTable, mount: &Mount) -> Self {
        let source = mount.source.to_string_lossy().into_owned();
        let alike = match table.nfs(mount) {
            // Gateways of one cluster export the same path, and most copies of a tree do, too.
            Some(nfs) => format!("nfs {}", nfs.export.display()),
            None => {
                let path = source.split_once(":/").map_or(source.as_str(), |(_, path)| path);
                format!("{} {path}", mount.fs_type)
            }
        };
        // Mounts of two subtrees of one source have different roots.
        let alike = format!("{alike} {}", mount.root.display());
        let mount_point = mount.mount_point.to_string_lossy().into_owned();
        Self { mount_point, fs_type: mount.fs_type.clone(), source, alike }
    }
}

impl fmt::Display for MountCandidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mounts.is_empty() {
            return writeln!(
                f,
                "no network file system is mounted; mount the replicas first, or list directories: \
                 fanfs init DIR..."
            );
        }
        // A user who mounts with fusermount3 can choose any text as the source.
        let shown = |seen: &CandidateMount| {
            [&seen.mount_point, &seen.fs_type, &seen.source].map(|t| printable(t))
        };
        let rows: Vec<[String; 3]> = self.mounts.iter().map(shown).collect();
        let widest = |column: usize, least: usize| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(least)
        };
        let point = widest(0, 11);
        let kind = widest(1, 4);
        writeln!(f, "{:point$}  {:kind$}  SOURCE", "MOUNT POINT", "TYPE")?;
        for [mount_point, fs_type, source] in &rows {
            writeln!(f, "{mount_point:point$}  {fs_type:kind$}  {source}")?;
        }
        for group in &self.candidates {
            let points: Vec<String> = group.iter().map(|point| shell_word(point)).collect();
            let points = points.join(" ");
            writeln!(f, "\nthese {} look like one volume:\n  fanfs init {points}", group.len())?;
        }
        if self.candidates.is_empty() {
            writeln!(f, "\nno two of them look like one volume; name some: fanfs init DIR...")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lines: &[&str]) -> MountCandidates {
        let mut text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
        for (i, line) in lines.iter().enumerate() {
            text += &format!("{} 1 0:{i} / {line} rw\n", i + 2);
        }
        MountCandidates::new(&MountTable::parse(text.as_bytes()))
    }

    #[test]
    fn gateways_of_one_export_form_one_volume() {
        let found = found(&[
            "/mnt/n1 rw - nfs 10.0.0.1:/mapr/c",
            "/home rw - nfs4 filer:/home",
            "/mnt/n2 rw - nfs 10.0.0.2:/mapr/c",
            "/mnt/my\\040n3 rw - nfs 10.0.0.3:/mapr/c",
            "/genomes rw - fuse.fanfs fanfs:genomes",
            "/tmp rw - tmpfs tmpfs",
        ]);
        assert_eq!(found.mounts.len(), 4, "{found:?}");
        assert_eq!(found.candidates, [["/mnt/n1", "/mnt/n2", "/mnt/my n3"]]);
        let text = found.to_string();
        assert!(text.ends_with(
            "\nthese 3 look like one volume:\n  fanfs init /mnt/n1 /mnt/n2 '/mnt/my n3'\n"
        ));
    }

    #[test]
    fn names_do_not_steer_the_terminal() {
        let found = found(&[
            "/mnt/a\\012'b rw - fuse.sshfs evil:/x\x1b[2J",
            "/mnt/b\u{9b}1m rw - fuse.sshfs evil:/x\x1b[2J",
        ]);
        let text = found.to_string();
        assert!(text.contains(r"evil:/x\u{1b}[2J"), "{text}");
        assert!(
            text.ends_with("  fanfs init $'/mnt/a\\x0a\\'b' $'/mnt/b\\xc2\\x9b1m'\n"),
            "{text}"
        );
        assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
        // JSON has the unescaped names.
        assert_eq!(found.mounts[0].mount_point, "/mnt/a\n'b");
    }

    #[test]
    fn a_covered_mount_is_not_a_candidate() {
        let text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    2 1 0:40 / /mnt rw - nfs a:/x rw\n3 2 0:41 / /mnt rw - nfs b:/x rw\n";
        let found = MountCandidates::new(&MountTable::parse(text.as_bytes()));
        assert_eq!(found.mounts.len(), 1);
        assert_eq!(found.mounts[0].source, "b:/x");
        assert!(found.candidates.is_empty());
    }

    #[test]
    fn without_candidates_the_output_says_what_to_do() {
        assert!(found(&[]).to_string().contains("fanfs init DIR..."));
    }
}
