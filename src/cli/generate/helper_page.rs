//! mount.fanfs(8), generated from the mount options.

use super::man_page::ManPage;
use super::page_sections;
use crate::cli::mount_options::{IGNORED_OPTIONS, SUPPORTED_OPTIONS};

/// The page.
pub(super) fn page() -> String {
    let mut page = ManPage::new("mount.fanfs", "8");
    page.section("NAME");
    page.prose("mount.fanfs - mount a fanfs volume");
    page.section("SYNOPSIS");
    page.prose("`mount -t fanfs` VOLUME MOUNTPOINT [`-o` OPTIONS]");
    page.prose("`mount.fanfs` VOLUME MOUNTPOINT [`-sfnv`] [`-N` NAMESPACE] [`-o` OPTIONS]");
    page.section("DESCRIPTION");
    page.prose(
        "mount(8) calls mount.fanfs for file systems of type `fanfs`. It starts the volume's \
         daemon and returns when the mount answers. For type `fuse.fanfs`, mount.fuse3 (package \
         fuse3) does the same. `umount` MOUNTPOINT unmounts the volume, and its daemon ends.",
    );
    page.prose(
        "VOLUME is the path of a volume's configuration, fanfs.toml(5), or the NAME of \
         `/etc/fanfs/NAME.toml`. With type `fuse.fanfs`, NAME must not be the name of a fanfs \
         command.",
    );
    page.section("OPTIONS");
    page.item("-s", &["Ignore unknown mount options instead of refusing them."]);
    page.item("-f", &["Check the configuration, and mount nothing."]);
    page.item("-n, -v", &["Accepted, no effect."]);
    page.item("-N NAMESPACE", &["Mount in this mount namespace: a process id, or a file."]);
    page.item("-o OPTIONS", &["Mount options, separated by commas:"]);
    page.add_text(".RS\n");
    for (name, text) in SUPPORTED_OPTIONS {
        page.item(name, &[text]);
    }
    page.add_text(".RE\n");
    let accepted: Vec<String> = IGNORED_OPTIONS.iter().map(|name| format!("`{name}`")).collect();
    page.prose(&format!(
        "These options are for mount(8) and systemd; fanfs accepts and ignores them: {}, \
         `comment=`, `x-*`, `X-*`. Any other option is an error.",
        accepted.join(", ")
    ));
    page.section("EXIT STATUS");
    page.prose("The exit statuses of mount(8):");
    page.item("0", &["The mount answers."]);
    page.item("1", &["Wrong usage or configuration."]);
    page.item("32", &["Mounting failed."]);
    page.section("FILES");
    for entry in page_sections::file_entries() {
        page.item(&entry.path, &[entry.purpose]);
    }
    page.section("EXAMPLES");
    page.prose("Lines in `/etc/fstab`, after those of the replicas:");
    page.lines(&[
        "genomes  /genomes  fanfs  ro,allow_other,_netdev,x-systemd.requires-mounts-for=/mnt/n1  0 0",
        "/etc/fanfs/genomes.toml  /genomes  fuse.fanfs  ro,allow_other,_netdev  0 0",
    ]);
    page.prose("Mount on first use, if the replicas may be mounted late:");
    page.lines(&["genomes  /genomes  fanfs  noauto,x-systemd.automount,allow_other,_netdev  0 0"]);
    page.section("SEE ALSO");
    page.prose(&page_sections::see_also("mount.fanfs", &["fanfs-mount".into()]));
    page.finish()
}
