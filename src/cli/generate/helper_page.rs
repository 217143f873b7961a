//! mount.fanfs(8), from the mount options.

use super::man_page::ManPage;
use super::page_sections;
use crate::cli::mount_options::{IGNORED_OPTIONS, SUPPORTED_OPTIONS};

/// The page.
pub(super) fn page() -> String {
    let mut page = ManPage::new("mount.fanfs", "8");
    page.section("NAME");
    page.prose("mount.fanfs - mount a volume of fanfs");
    page.section("SYNOPSIS");
    page.prose("`mount -t fanfs` VOLUME MOUNTPOINT [`-o` OPTIONS]");
    page.prose("`mount.fanfs` VOLUME MOUNTPOINT [`-sfnv`] [`-N` NAMESPACE] [`-o` OPTIONS]");
    page.section("DESCRIPTION");
    page.prose(
        "mount.fanfs is what mount(8) calls for file systems of type `fanfs`; people call mount. \
         It returns when the mount answers. For type `fuse.fanfs`, mount.fuse3 (of the package \
         fuse3) does the same. `umount` MOUNTPOINT unmounts, and the daemon ends.",
    );
    page.prose(
        "VOLUME is the path of a volume file, fanfs.toml(5), or the NAME of \
         `/etc/fanfs/NAME.toml`. With type `fuse.fanfs` NAME must not be that of a command of \
         fanfs.",
    );
    page.section("OPTIONS");
    page.item("-s", &["Ignore mount options that are not known, instead of refusing them."]);
    page.item("-f", &["Mount nothing; say whether the configuration is valid."]);
    page.item("-n, -v", &["Accepted; there is no mtab to write, and nothing more to say."]);
    page.item("-N NAMESPACE", &["The mount name space to mount in: a process's id, or a file."]);
    page.item("-o OPTIONS", &["A list, separated by commas:"]);
    page.add_text(".RS\n");
    for (name, text) in SUPPORTED_OPTIONS {
        page.item(name, &[text]);
    }
    page.add_text(".RE\n");
    let accepted: Vec<String> = IGNORED_OPTIONS.iter().map(|name| format!("`{name}`")).collect();
    page.prose(&format!(
        "Accepted, for mount(8) and systemd, and without effect here: {}, `comment=`, `x-*`, \
         `X-*`. Anything else is refused with a suggestion.",
        accepted.join(", ")
    ));
    page.section("EXIT STATUS");
    page.prose("As mount(8) has it:");
    page.item("0", &["The mount answers."]);
    page.item("1", &["Wrong usage or configuration."]);
    page.item("32", &["Mounting failed."]);
    page.section("FILES");
    for entry in page_sections::file_entries() {
        page.item(&entry.path, &[entry.purpose]);
    }
    page.section("EXAMPLES");
    page.prose("Lines of `/etc/fstab`; the replicas' own lines come before:");
    page.lines(&[
        "genomes  /genomes  fanfs  ro,allow_other,_netdev,x-systemd.requires-mounts-for=/mnt/n1  0 0",
        "/etc/fanfs/genomes.toml  /genomes  fuse.fanfs  ro,allow_other,_netdev  0 0",
    ]);
    page.prose("Mounted when it is first used, where the replicas may be late:");
    page.lines(&["genomes  /genomes  fanfs  noauto,x-systemd.automount,allow_other,_netdev  0 0"]);
    page.section("SEE ALSO");
    page.prose(&page_sections::see_also("mount.fanfs", &["fanfs-mount".into()]));
    page.finish()
}
