//! `-o`: the options that mount(8) and /etc/fstab know, and being called as
//! mount(8)'s helper.
//!
//! mount(8) calls `mount.fanfs SOURCE TARGET [-sfnv] [-o OPTIONS]` for type
//! `fanfs`; for type `fuse.fanfs` mount.fuse3 calls `fanfs SOURCE TARGET -o
//! OPTIONS`, and adds `dev,suid` to them by itself where nobody asked for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Failure, mount};
use crate::daemon::Extra;

/// What `-o` can say.
#[derive(Clone, Debug, Default)]
pub(super) struct MountOptions {
    /// What the mount takes of them.
    pub(super) extra: Extra,
    /// `log=FILE`
    pub(super) log: Option<PathBuf>,
    /// `keeper`
    pub(super) keeper: bool,
}

/// Options that change nothing here: mount(8)'s own, systemd's, and such as are
/// always the case.
const ACCEPTED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
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

/// Options that do something.
const KNOWN: &[&str] =
    &["ro", "rw", "allow_other", "suid", "dev", "noexec", "keeper", "log", "fsname", "subtype"];

impl MountOptions {
    /// Reads comma-separated lists. Unknown options are refused, or ignored
    /// where the caller is `sloppy`.
    pub(super) fn parse(lists: &[String], sloppy: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            match key {
                "ro" => options.extra.read_only = true,
                // mount(8) says so by itself; the volume's `access` is what allows it.
                "rw" => options.extra.read_only = false,
                "allow_other" => options.extra.allow_other = true,
                "suid" => options.extra.suid = true,
                "nosuid" => options.extra.suid = false,
                "dev" => options.extra.dev = true,
                "nodev" => options.extra.dev = false,
                "noexec" => options.extra.noexec = true,
                "exec" => options.extra.noexec = false,
                "keeper" => options.keeper = true,
                "nokeeper" => options.keeper = false,
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
                key if ACCEPTED.contains(&key)
                    || key.starts_with("x-")
                    || key.starts_with("X-") => {}
                key if sloppy => tracing::debug!(option = key, "ignored"),
                key => return Err(Failure::Usage(unknown(key))),
            }
        }
        Ok(options)
    }
}

fn unknown(option: &str) -> String {
    let near = KNOWN
        .iter()
        .chain(ACCEPTED)
        .map(|known| (strsim::damerau_levenshtein(option, known), known))
        .filter(|(distance, _)| *distance <= 2)
        .min();
    match near {
        Some((_, known)) => {
            format!("mount option `{option}` is not known; did you mean `{known}`?")
        }
        None => format!("mount option `{option}` is not known; docs/CONFIGURATION.md lists them"),
    }
}

/// The arguments of `fanfs mount`, where mount(8) or mount.fuse3 calls.
pub(super) fn as_helper(args: &[OsString]) -> Option<Result<mount::Args, Failure>> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    let helper = matches!(name, "mount.fanfs" | "mount.fuse.fanfs");
    if !helper {
        // `fanfs SOURCE TARGET ...`: no command contains a slash or a dot.
        let source = args.get(1)?.to_str()?;
        let target = args.get(2)?.to_str()?;
        let is_path = source.contains(['/', '.', '#']) && !source.starts_with('-');
        if !is_path || target.is_empty() {
            return None;
        }
    }
    Some(helper_args(&args[1..], helper))
}

fn helper_args(args: &[OsString], helper: bool) -> Result<mount::Args, Failure> {
    let mut places = Vec::new();
    let mut lists = Vec::new();
    let mut sloppy = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let list = args.next().and_then(|list| list.to_str());
                let list =
                    list.ok_or_else(|| Failure::Usage("`-o` wants a list of options".into()))?;
                lists.push(list.to_owned());
            }
            Some("-t") => drop(args.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags[1..].chars() {
                    match flag {
                        's' => sloppy = true,
                        // No mtab to leave alone, nothing more to say.
                        'n' | 'v' => {}
                        'f' => return Err(Failure::Usage("`-f` (fake) is not supported".into())),
                        flag => return Err(Failure::Usage(format!("flag `-{flag}` is not known"))),
                    }
                }
            }
            _ => places.push(arg.clone()),
        }
    }
    let [volume, mount_point] = <[OsString; 2]>::try_from(places).map_err(|_| {
        Failure::Usage("usage: mount.fanfs VOLUME.toml MOUNTPOINT [-o OPTIONS]".into())
    })?;
    if !helper {
        // mount.fuse3 puts `dev,suid` into the list for root by itself, so there
        // they are nobody's wish.
        lists.push("nodev,nosuid".to_owned());
    }
    let volume =
        volume.to_str().and_then(|v| v.strip_prefix("fanfs#")).map_or(volume.clone(), Into::into);
    Ok(mount::Args {
        volume: volume.into(),
        mount_point: mount_point.into(),
        options: lists,
        foreground: false,
        log: None,
        ready: false,
        sloppy,
        kept: false,
        successor: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, Failure> {
        MountOptions::parse(&[list.to_owned()], false)
    }

    #[test]
    fn what_fstab_says_is_accepted() {
        let list =
            "ro,allow_other,noauto,_netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=60";
        assert!(parse(list).is_ok_and(|options| options.extra.allow_other));
    }

    #[test]
    fn a_misspelt_option_is_refused_with_a_suggestion() {
        let text = parse("allow_othr").err().map(|failure| failure.text()).unwrap();
        assert_eq!(text, "mount option `allow_othr` is not known; did you mean `allow_other`?");
        assert!(MountOptions::parse(&["allow_othr".into()], true).is_ok());
    }

    #[test]
    fn the_last_of_contradicting_options_counts() {
        assert!(parse("suid,nosuid").is_ok_and(|options| !options.extra.suid));
        assert!(parse("nosuid,suid").is_ok_and(|options| options.extra.suid));
    }

    fn helper(args: &[&str]) -> Option<Result<mount::Args, Failure>> {
        as_helper(&args.iter().map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn called_by_mount_and_by_mount_fuse3() {
        let args = helper(&["/sbin/mount.fanfs", "v.toml", "/mnt", "-s", "-o", "rw,suid"]).unwrap();
        assert!(args.is_ok_and(|a| a.sloppy
            && a.options == ["rw,suid"]
            && a.volume == Path::new("v.toml")));
        let args = helper(&["fanfs", "/etc/v.toml", "/mnt", "-o", "rw,dev,suid"]).unwrap();
        let options = args.map(|a| MountOptions::parse(&a.options, false)).unwrap_or_else(Err);
        assert!(options.is_ok_and(|o| !o.extra.suid && !o.extra.dev));
        assert!(
            helper(&["fanfs", "fanfs#/etc/v.toml", "/mnt"])
                .unwrap()
                .is_ok_and(|a| a.volume == Path::new("/etc/v.toml"))
        );
    }

    #[test]
    fn commands_are_no_sources() {
        for args in [
            &["fanfs", "mount", "v.toml", "/mnt"][..],
            &["fanfs"],
            &["fanfs", "--help"],
            &["fanfs", "status", "/mnt"],
        ] {
            assert!(helper(args).is_none(), "{args:?}");
        }
    }
}
