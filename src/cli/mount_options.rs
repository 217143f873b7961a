//! `-o`: the options that mount(8) and /etc/fstab know.
//!
//! mount.fuse3 adds `dev,suid` to them by itself, and mount(8) takes both away, as the kernel
//! has flags for their opposites alone. So there are `fanfs.suid` and `fanfs.dev`, which both
//! programs pass on.

use std::path::PathBuf;

use super::Failure;
use crate::daemon::MountOverrides;

/// What `-o` can say.
#[derive(Clone, Debug, Default)]
pub(super) struct ParsedMountOptions {
    /// What the mount takes of them.
    pub(super) overrides: MountOverrides,
    /// `log=FILE`
    pub(super) log: Option<PathBuf>,
    /// `keeper`
    pub(super) keeper: bool,
    /// `_netdev`
    pub(super) netdev: bool,
    /// `rw`, without a later `ro`
    pub(super) wants_write: bool,
}

/// Options that change nothing here: mount(8)'s own, systemd's, and such as are
/// always the case.
pub(super) const IGNORED_OPTIONS: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "noowner",
    "async",
    "sync",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "default_permissions",
    "nonempty",
    "nosuid",
    "nodev",
    "exec",
];

/// Options that do something, and what.
pub(super) const SUPPORTED_OPTIONS: &[(&str, &str)] = &[
    ("ro", "Nothing can be changed, whatever the volume's `access` says."),
    (
        "rw",
        "The volume has `access = \"rw\"`; refused where it has not. mount(8) says this by itself, \
         so there a volume that is read-only is mounted so, with a warning.",
    ),
    ("allow_other", "Other users may use the mount, as `[fuse] allow_other = true`."),
    ("noexec, exec", "Whether programs may be run from the mount; `exec` by default."),
    (
        "suid, nosuid",
        "Whether set-id bits are honoured; `nosuid` by default. mount(8) removes `suid` from the \
         options that it passes on, and mount.fuse3 adds it by itself, so it has an effect for \
         `fanfs mount` and `mount.fanfs` alone; see `fanfs.suid`.",
    ),
    ("dev, nodev", "Whether device nodes are honoured; as `suid`."),
    (
        "fanfs.suid",
        "Set-id bits are honored: as `suid`, for mount(8) and /etc/fstab, with type `fanfs` and \
         with type `fuse.fanfs`. `nosuid`, which `user` and `users` imply, wins over it.",
    ),
    ("fanfs.dev", "Device nodes are honored; as `fanfs.suid`."),
    (
        "keeper, nokeeper",
        "A second, small process has the FUSE device open as well, and starts the daemon again \
         when it dies: what is open stays so (Linux 6.9). Not the default.",
    ),
    (
        "_netdev",
        "The replicas need the network: at the start of the machine after it, at its end before \
         it, also for systemd once it is mounted.",
    ),
    ("log=FILE", "Where the daemon logs; a file in `/run/fanfs` by default."),
    ("remount", "Refused: unmount and mount again, or `fanfs reload`."),
];

/// The names in [`SUPPORTED_OPTIONS`], as there.
fn supported_names() -> impl Iterator<Item = &'static str> {
    SUPPORTED_OPTIONS.iter().flat_map(|(names, _)| names.split(", "))
}

/// Whether it does something, and takes no value: `ro=0` would be taken for `ro`.
fn is_flag(option: &str) -> bool {
    supported_names().any(|name| name == option)
}

/// The names that can be meant by a misspelt one.
fn suggested_names() -> impl Iterator<Item = &'static str> {
    let name = |name: &'static str| name.split('=').next().unwrap_or(name);
    supported_names().filter(|name| *name != "remount").map(name).chain(["fsname", "subtype"])
}

impl ParsedMountOptions {
    /// Reads comma-separated lists. Unknown options are refused, or ignored
    /// where the caller is `sloppy`.
    pub(super) fn parse(lists: &[String], sloppy: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        // mount(8) sorts the options, so it does not matter which of these is the last.
        let mut honored = HonoredFlags::default();
        let mut refused = HonoredFlags::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if option.contains('=') && is_flag(key) {
                return Err(Failure::Usage(format!(
                    "mount option `{key}` takes no value; write `{key}` alone, or leave it out"
                )));
            }
            match key {
                // Only the volume's `access` allows writes.
                "ro" | "rw" => {
                    options.wants_write = key == "rw";
                    options.overrides.read_only = !options.wants_write;
                }
                "allow_other" => options.overrides.allow_other = true,
                "suid" => options.overrides.suid = true,
                "nosuid" => {
                    options.overrides.suid = false;
                    refused.suid = true;
                }
                "dev" => options.overrides.dev = true,
                "nodev" => {
                    options.overrides.dev = false;
                    refused.dev = true;
                }
                "fanfs.suid" => honored.suid = true,
                "fanfs.dev" => honored.dev = true,
                "noexec" => options.overrides.noexec = true,
                "exec" => options.overrides.noexec = false,
                "keeper" => options.keeper = true,
                "nokeeper" => options.keeper = false,
                "_netdev" => options.netdev = true,
                "log" if !value.is_empty() => options.log = Some(value.into()),
                "log" => {
                    return Err(Failure::Usage("mount option `log` wants a file: log=FILE".into()));
                }
                "remount" => {
                    return Err(Failure::Usage(
                        "mount option `remount` is not supported; unmount and mount again".into(),
                    ));
                }
                // The volume's name is shown, as other tools look for it.
                "fsname" | "subtype" | "comment" => {}
                key if IGNORED_OPTIONS.contains(&key)
                    || key.starts_with("x-")
                    || key.starts_with("X-") => {}
                key if sloppy => tracing::debug!(option = key, "ignored"),
                key => return Err(Failure::Usage(unknown_option_text(key))),
            }
        }
        options.overrides.suid |= honored.suid && !refused.suid;
        options.overrides.dev |= honored.dev && !refused.dev;
        Ok(options)
    }
}

/// What of the files in the mount counts.
#[derive(Clone, Copy, Debug, Default)]
struct HonoredFlags {
    suid: bool,
    dev: bool,
}

fn unknown_option_text(option: &str) -> String {
    let near = suggested_names()
        .chain(IGNORED_OPTIONS.iter().copied())
        .map(|known| (strsim::damerau_levenshtein(option, known), known))
        .filter(|(distance, _)| *distance <= 2)
        .min();
    match near {
        Some((_, known)) => {
            format!("mount option `{option}` is not known; did you mean `{known}`?")
        }
        None => format!("mount option `{option}` is not known; mount.fanfs(8) lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<ParsedMountOptions, Failure> {
        ParsedMountOptions::parse(&[list.to_owned()], false)
    }

    #[test]
    fn what_fstab_says_is_accepted() {
        let list =
            "ro,allow_other,noauto,_netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=60";
        assert!(parse(list).is_ok_and(|options| options.overrides.allow_other));
    }

    #[test]
    fn a_misspelt_option_is_refused_with_a_suggestion() {
        let text = parse("allow_othr").err().map(|failure| failure.text()).unwrap();
        assert_eq!(text, "mount option `allow_othr` is not known; did you mean `allow_other`?");
        assert!(ParsedMountOptions::parse(&["allow_othr".into()], true).is_ok());
    }

    #[test]
    fn a_flag_with_a_value_is_refused() {
        for list in ["ro=0", "rw,keeper=0", "allow_other=no", "_netdev=", "nosuid=1"] {
            assert!(parse(list).is_err_and(|failure| failure.exit_status() == 2), "{list}");
        }
        let text = parse("ro=0").err().map(|failure| failure.text()).unwrap();
        assert_eq!(text, "mount option `ro` takes no value; write `ro` alone, or leave it out");
        assert!(parse("log=/l,fsname=f,x-systemd.idle-timeout=60,comment=a=b").is_ok());
    }

    #[test]
    fn the_last_of_contradicting_options_counts() {
        assert!(parse("suid,nosuid").is_ok_and(|options| !options.overrides.suid));
        assert!(parse("nosuid,suid").is_ok_and(|options| options.overrides.suid));
    }

    #[test]
    fn fanfs_suid_counts_unless_nosuid_is_given_anywhere() {
        let extra = |list: &str| parse(list).map(|options| options.overrides).unwrap_or_default();
        let flags = |list: &str| (extra(list).suid, extra(list).dev);
        assert_eq!(flags("fanfs.suid"), (true, false));
        assert_eq!(flags("rw,fanfs.dev"), (false, true));
        for list in ["nosuid,fanfs.suid", "fanfs.suid,nosuid", "suid,nosuid,fanfs.suid"] {
            assert_eq!(flags(list), (false, false), "{list}");
        }
        assert_eq!(flags("nodev,fanfs.dev"), (false, false));
    }
}
