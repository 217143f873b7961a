//! `-o`: the options that mount(8) and /etc/fstab know, and being called as
//! mount(8)'s helper.
//!
//! mount(8) calls `mount.fanfs SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t
//! TYPE]` for type `fanfs`; for type `fuse.fanfs` mount.fuse3 calls `fanfs SOURCE TARGET -o
//! OPTIONS`, and adds `dev,suid` to them by itself where nobody asked for it. mount(8) takes
//! both away, as the kernel has flags for their opposites alone. So there are `fanfs.suid`
//! and `fanfs.dev`, which both programs pass on.
//!
//! *Invariant:* `mount.fanfs` ends with mount(8)'s exit statuses, 1 for usage and 32 for a
//! mount that failed; everything else with those of [`super::EXIT_STATUS`].

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Cli, CommandResult, Failure, absolute, mount, print_result, volume};
use crate::config;
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

/// The names in [`SUPPORTED_OPTIONS`] that can be meant by a misspelt one.
fn suggested_names() -> impl Iterator<Item = &'static str> {
    let lists =
        SUPPORTED_OPTIONS.iter().map(|(names, _)| *names).filter(|names| *names != "remount");
    let name = |name: &'static str| name.split('=').next().unwrap_or(name);
    lists.flat_map(|names| names.split(", ")).map(name).chain(["fsname", "subtype"])
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

/// What mount(8) or mount.fuse3 wants.
pub(super) enum HelperAction {
    /// A mount, in this mount name space.
    Mount {
        args: Box<mount::Args>,
        name_space: Option<OsString>,
    },
    /// `-f`: all but the mount.
    Fake(PathBuf),
    Help,
    Version,
}

/// A call by mount(8) or mount.fuse3.
pub(super) struct HelperCall {
    action: Result<HelperAction, Failure>,
    /// Whether mount(8) has called, and is told what it understands.
    is_from_mount: bool,
}

impl HelperCall {
    /// Does what was wanted. The failure comes with the exit status for the caller.
    pub(super) fn run(self) -> Result<ExitCode, (Failure, u8)> {
        let done = self.action.and_then(|wish| match wish {
            HelperAction::Help => print_help(),
            HelperAction::Version => {
                print_result(&format!("mount.fanfs {}\n", env!("CARGO_PKG_VERSION")))
            }
            HelperAction::Fake(volume) => {
                config::load(&volume).map_err(Failure::usage)?;
                Ok(ExitCode::SUCCESS)
            }
            HelperAction::Mount { mut args, name_space } => {
                if let Some(name_space) = name_space {
                    // There, the current directory is another one.
                    args.volume = absolute(&args.volume);
                    args.mount_point = absolute(&args.mount_point);
                    enter_name_space(&name_space)?;
                }
                mount::run(*args)
            }
        });
        done.map_err(|failure| {
            let status = match (&failure, self.is_from_mount) {
                (Failure::Usage(_), true) => 1,
                (Failure::Failed(_), true) => 32,
                (failure, false) => failure.exit_status(),
            };
            (failure, status)
        })
    }
}

/// The call, where mount(8) or mount.fuse3 calls.
pub(super) fn detect_helper_call(args: &[OsString]) -> Option<HelperCall> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    let of_mount = matches!(name, "mount.fanfs" | "mount.fuse.fanfs");
    if !of_mount && !is_mount_fuse3_call(args) {
        return None;
    }
    Some(HelperCall {
        action: Invocation::parse(&args[1..]).and_then(|call| call.action(of_mount)),
        is_from_mount: of_mount,
    })
}

/// `fanfs SOURCE TARGET ...`: no command contains a slash or a dot, and none takes `-o`
/// right behind an absolute path.
fn is_mount_fuse3_call(args: &[OsString]) -> bool {
    let word = |i: usize| args.get(i).and_then(|word| word.to_str()).filter(|w| !w.is_empty());
    let Some(source) = word(1) else { return false };
    let Some(target) = word(2) else { return false };
    if source.starts_with('-') {
        return false;
    }
    let is_command = || Cli::command().get_subcommands().any(|c| c.get_name() == source);
    source.contains(['/', '.', '#'])
        || (target.starts_with('/') && word(3) == Some("-o") && !is_command())
}

/// The arguments of a helper, as mount(8) has them.
#[derive(Default)]
struct Invocation {
    /// What comes without a flag: the volume and the mount point.
    places: Vec<OsString>,
    /// `-o`
    option_lists: Vec<String>,
    /// `-s`
    sloppy: bool,
    /// `-f`
    fake: bool,
    /// `-N`
    name_space: Option<OsString>,
    /// `-h` or `-V`, which comes before anything else.
    information: Option<HelperAction>,
}

impl Invocation {
    fn parse(args: &[OsString]) -> Result<Self, Failure> {
        let mut call = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("-h" | "--help") => call.information = Some(HelperAction::Help),
                Some("-V" | "--version") => call.information = Some(HelperAction::Version),
                Some("-o") => {
                    let list = args.next().and_then(|list| list.to_str());
                    let missing = || Failure::Usage("`-o` wants a list of options".into());
                    call.option_lists.push(list.ok_or_else(missing)?.to_owned());
                }
                Some("-t") => drop(args.next()),
                Some("-N") => {
                    let missing = || Failure::Usage("`-N` wants a mount name space".into());
                    call.name_space = Some(args.next().ok_or_else(missing)?.clone());
                }
                Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                    call.add_flags(&flags[1..])?;
                }
                _ => call.places.push(arg.clone()),
            }
            if call.information.is_some() {
                break;
            }
        }
        Ok(call)
    }

    fn add_flags(&mut self, flags: &str) -> Result<(), Failure> {
        for flag in flags.chars() {
            match flag {
                's' => self.sloppy = true,
                'f' => self.fake = true,
                // No mtab to leave alone, nothing more to say.
                'n' | 'v' => {}
                flag => return Err(Failure::Usage(format!("flag `-{flag}` is not known"))),
            }
        }
        Ok(())
    }

    /// What is wanted; `of_mount` where mount(8) calls, not mount.fuse3.
    fn action(mut self, of_mount: bool) -> Result<HelperAction, Failure> {
        if let Some(information) = self.information {
            return Ok(information);
        }
        let [volume, mount_point] = <[OsString; 2]>::try_from(self.places).map_err(|_| {
            Failure::Usage("usage: mount.fanfs VOLUME MOUNTPOINT [-o OPTIONS]; see --help".into())
        })?;
        if !of_mount {
            // mount.fuse3 puts `dev,suid` into the list for root by itself, so there
            // no user has asked for them.
            for list in &mut self.option_lists {
                let asked = list.split(',').filter(|option| !matches!(*option, "dev" | "suid"));
                *list = asked.collect::<Vec<_>>().join(",");
            }
        }
        let volume = volume
            .to_str()
            .and_then(|v| v.strip_prefix("fanfs#"))
            .map_or(volume.clone(), Into::into);
        let volume = volume::config_file_for_helper(Path::new(&volume));
        ParsedMountOptions::parse(&self.option_lists, self.sloppy)?;
        if self.fake {
            return Ok(HelperAction::Fake(volume));
        }
        let args = mount::Args {
            volume,
            mount_point: mount_point.into(),
            options: self.option_lists,
            foreground: false,
            log: None,
            hidden: mount::HiddenArgs::of_helper(self.sloppy),
            by_mount: true,
        };
        Ok(HelperAction::Mount { args: Box::new(args), name_space: self.name_space })
    }
}

/// Enters the mount name space of a process, or the one that a file stands for. There is one
/// thread yet, as that demands.
fn enter_name_space(name_space: &OsStr) -> Result<(), Failure> {
    let text = name_space.to_string_lossy();
    let path = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => PathBuf::from(format!("/proc/{text}/ns/mnt")),
        false => PathBuf::from(name_space),
    };
    let entered = File::open(&path).and_then(|file| {
        use std::os::fd::AsFd;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))?)
    });
    entered.map_err(|e| Failure::failed(format!("mount name space {}: {e}", path.display())))
}

fn print_help() -> CommandResult {
    let mut text = "\
Mounts a volume of fanfs; mount(8) calls this for type fanfs.

Usage: mount -t fanfs VOLUME MOUNTPOINT [-o OPTIONS]
       mount.fanfs VOLUME MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTIONS]

VOLUME is a volume file, or the NAME of /etc/fanfs/NAME.toml.

  -s            ignore options that are not known
  -f            mount nothing; say whether the configuration is valid
  -n, -v        accepted, without effect
  -N NAMESPACE  the mount name space: a process's id, or a file
  -o OPTIONS    a list, separated by commas:
"
    .to_owned();
    for (name, what) in SUPPORTED_OPTIONS {
        let _ = writeln!(text, "     {name:<16}  {}", what.replace('`', ""));
    }
    text.push_str("\nIn /etc/fstab:\n  genomes  /genomes  fanfs  ro,allow_other,_netdev  0 0\n");
    text.push_str("\nExit status: 0 mounted, 1 wrong usage or configuration, 32 failed.\n");
    print_result(&text)
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

    fn helper(args: &[&str]) -> Option<Result<mount::Args, Failure>> {
        let helper = detect_helper_call(&args.iter().map(Into::into).collect::<Vec<_>>())?;
        Some(helper.action.map(|wish| match wish {
            HelperAction::Mount { args, .. } => *args,
            _ => panic!("{args:?} is a mount"),
        }))
    }

    #[test]
    fn every_flag_of_mount_is_known() {
        let wish = |args: &[&str]| {
            let all = ["mount.fanfs", "v.toml", "/mnt"].iter().chain(args).map(Into::into);
            detect_helper_call(&all.collect::<Vec<_>>()).unwrap().action
        };
        assert!(matches!(wish(&["-f", "-v"]), Ok(HelperAction::Fake(_))));
        assert!(matches!(wish(&["-h"]), Ok(HelperAction::Help)));
        assert!(matches!(wish(&["--version"]), Ok(HelperAction::Version)));
        let all = wish(&["-nvs", "-N", "/proc/1/ns/mnt", "-o", "ro", "-t", "fanfs"]);
        assert!(
            matches!(all, Ok(HelperAction::Mount { name_space: Some(_), args }) if args.hidden.sloppy)
        );
        for wrong in [&["-N"][..], &["-o"], &["-x"], &["more"], &["-o", "remount"]] {
            assert!(matches!(wish(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_name_can_be_given_to_mount_fuse3() {
        let args = helper(&["fanfs", "genomes", "/genomes", "-o", "rw"]).unwrap();
        assert!(args.is_ok_and(|args| args.volume == Path::new("/etc/fanfs/genomes.toml")));
        assert!(helper(&["fanfs", "mount", "/genomes", "-o", "rw"]).is_none());
    }

    #[test]
    fn called_by_mount_and_by_mount_fuse3() {
        let args = helper(&["/sbin/mount.fanfs", "v.toml", "/mnt", "-s", "-o", "rw,suid"]).unwrap();
        assert!(args.is_ok_and(|a| a.hidden.sloppy
            && a.options == ["rw,suid"]
            && a.volume == Path::new("v.toml")));
        let args = helper(&["fanfs", "/etc/v.toml", "/mnt", "-o", "rw,dev,suid"]).unwrap();
        let options =
            args.map(|a| ParsedMountOptions::parse(&a.options, false)).unwrap_or_else(Err);
        assert!(options.is_ok_and(|o| !o.overrides.suid && !o.overrides.dev));
        let list = "rw,fanfs.suid,dev,suid,fanfs.dev";
        let args = helper(&["fanfs", "/etc/v.toml", "/mnt", "-o", list]).unwrap();
        let options =
            args.map(|a| ParsedMountOptions::parse(&a.options, false)).unwrap_or_else(Err);
        assert!(options.is_ok_and(|o| o.overrides.suid && o.overrides.dev));
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
