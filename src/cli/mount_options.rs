//! `-o`: the options that mount(8) and /etc/fstab use.
//!
//! mount.fuse3 adds `dev,suid` to them by itself, and mount(8) removes both, because the kernel
//! has flags only for their opposites. Therefore fanfs has `fanfs.suid` and `fanfs.dev`, which
//! both programs pass on.

use std::path::PathBuf;

use super::Failure;
use crate::daemon::MountOverrides;

/// The options of `-o`, parsed.
#[derive(Clone, Debug, Default)]
pub(super) struct ParsedMountOptions {
    /// The settings of the mount that the options override.
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

/// Options without effect in fanfs: mount(8)'s own, systemd's, and options that are always on.
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

/// Options with an effect, and their descriptions.
pub(super) const SUPPORTED_OPTIONS: &[(&str, &str)] = &[
    ("ro", "Mount read-only, even if the volume has `access = \"rw\"`."),
    (
        "rw",
        "Require a volume with `access = \"rw\"`: `fanfs mount` refuses any other. mount(8) passes \
         `rw` by default, so mount.fanfs mounts a read-only volume read-only, and warns.",
    ),
    ("allow_other", "Let other users use the mount; same as `[fuse] allow_other = true`."),
    ("noexec, exec", "Forbid or allow running programs from the mount. The default is `exec`."),
    (
        "suid, nosuid",
        "Honor or ignore set-id bits. The default is `nosuid`. mount(8) removes `suid` from the \
         options that it passes on, and mount.fuse3 adds it by itself. So `suid` works only with \
         direct calls of `fanfs mount` or `mount.fanfs`; use `fanfs.suid` elsewhere.",
    ),
    ("dev, nodev", "Honor or ignore device nodes; the default and the limits of `suid` apply."),
    (
        "fanfs.suid",
        "Honor set-id bits, also through mount(8) and /etc/fstab, with types `fanfs` and \
         `fuse.fanfs`. `nosuid`, which `user` and `users` imply, overrides it.",
    ),
    ("fanfs.dev", "Honor device nodes, as `fanfs.suid` does set-id bits; `nodev` overrides it."),
    (
        "keeper, nokeeper",
        "Start a second, small process that also holds the FUSE device open, and starts the \
         daemon again if it dies. Open files stay open (Linux 6.9). The default is `nokeeper`.",
    ),
    (
        "_netdev",
        "The replicas need the network: mount after the network is up, and unmount before it \
         goes down. systemd keeps to this order after the mount, too.",
    ),
    ("log=FILE", "The daemon's log file. The default is a file in `/run/fanfs`."),
    ("remount", "Not supported: unmount and mount again, or use `fanfs reload`."),
];

/// The names in [`SUPPORTED_OPTIONS`], in the same order.
fn supported_names() -> impl Iterator<Item = &'static str> {
    SUPPORTED_OPTIONS.iter().flat_map(|(names, _)| names.split(", "))
}

/// Whether it is an option with an effect and without a value. Otherwise `ro=0` would mean `ro`.
fn is_flag(option: &str) -> bool {
    supported_names().any(|name| name == option)
}

/// The names to suggest for a misspelled option.
fn suggested_names() -> impl Iterator<Item = &'static str> {
    let name = |name: &'static str| name.split('=').next().unwrap_or(name);
    supported_names().filter(|name| *name != "remount").map(name).chain(["fsname", "subtype"])
}

impl ParsedMountOptions {
    /// Parses comma-separated lists. An unknown option is an error; `sloppy` ignores it.
    pub(super) fn parse(lists: &[String], sloppy: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        // mount(8) sorts the options, so the order of these must not matter.
        let mut honored = HonoredFlags::default();
        let mut refused = HonoredFlags::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if option.contains('=') && is_flag(key) {
                return Err(Failure::Usage(format!(
                    "mount option `{key}` takes no value; write `{key}` alone, or remove it"
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
                    return Err(Failure::Usage("mount option `log` needs a file: log=FILE".into()));
                }
                "remount" => {
                    return Err(Failure::Usage(
                        "mount option `remount` is not supported; unmount and mount again, or use \
                         fanfs reload"
                            .into(),
                    ));
                }
                // The mount's source always shows the volume's name: other tools look for it.
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

/// Which properties of files in the mount the kernel honors.
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
    fn fstab_options_are_accepted() {
        let list =
            "ro,allow_other,noauto,_netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=60";
        assert!(parse(list).is_ok_and(|options| options.overrides.allow_other));
    }

    #[test]
    fn a_misspelled_option_is_refused_with_a_suggestion() {
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
        assert_eq!(text, "mount option `ro` takes no value; write `ro` alone, or remove it");
        assert!(parse("log=/l,fsname=f,x-systemd.idle-timeout=60,comment=a=b").is_ok());
    }

    #[test]
    fn the_last_conflicting_option_wins() {
        assert!(parse("suid,nosuid").is_ok_and(|options| !options.overrides.suid));
        assert!(parse("nosuid,suid").is_ok_and(|options| options.overrides.suid));
    }

    #[test]
    fn fanfs_suid_applies_unless_nosuid_is_set() {
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
