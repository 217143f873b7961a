//! Calls by mount(8) and mount.fuse3, whose arguments differ from those of `fanfs mount`.
//!
//! For type `fanfs`, mount(8) calls `mount.fanfs SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o
//! OPTIONS] [-t TYPE]`. For type `fuse.fanfs`, mount.fuse3 calls `fanfs SOURCE TARGET -o
//! OPTIONS`.
//!
//! *Invariant:* `mount.fanfs` ends with mount(8)'s exit statuses: 1 for usage, 32 for a mount
//! that failed. Every other call ends with those of [`super::EXIT_STATUS`].

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::mount_exports::ExportList;
use super::mount_options::{ParsedMountOptions, SUPPORTED_OPTIONS};
use super::{Cli, CommandResult, Failure, absolute, mount, print_result, volume_name};
use crate::config;
use crate::control;

/// The action that mount(8) or mount.fuse3 requests.
pub(super) enum HelperAction {
    /// A mount, in `name_space` if that is set.
    Mount {
        args: Box<mount::Args>,
        name_space: Option<OsString>,
    },
    /// `-f`: everything except the mount itself.
    Fake(PathBuf),
    Help,
    Version,
}

/// A call by mount(8) or mount.fuse3.
pub(super) struct HelperCall {
    action: Result<HelperAction, Failure>,
    /// Whether mount(8) is the caller: it expects its own exit statuses.
    is_from_mount: bool,
}

impl HelperCall {
    /// Carries out the action. A failure comes with the exit status for the caller.
    pub(super) fn run(self) -> Result<ExitCode, (Failure, u8)> {
        let done = self.action.and_then(|wish| match wish {
            HelperAction::Help => print_help(),
            HelperAction::Version => {
                print_result(&format!("mount.fanfs {}\n", env!("CARGO_PKG_VERSION")))
            }
            HelperAction::Fake(volume) => {
                match ExportList::parse(&volume) {
                    Some(exports) => config::parse(&exports?.to_config(), &volume),
                    None => config::load(&volume),
                }
                .map_err(Failure::usage)?;
                Ok(ExitCode::SUCCESS)
            }
            HelperAction::Mount { mut args, name_space } => {
                control::check_runtime_dir().map_err(Failure::usage)?;
                if let Some(name_space) = name_space {
                    // The current directory changes with the mount namespace.
                    if ExportList::parse(&args.volume).is_none() {
                        args.volume = absolute(&args.volume);
                    }
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

/// The call, if mount(8) or mount.fuse3 is the caller.
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

/// Whether the arguments are `fanfs SOURCE TARGET ...`: no command's name contains a slash, a
/// dot or a `#`, and a mount has `-o` after an absolute path.
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

/// The arguments of a mount helper, as mount(8) defines them.
#[derive(Default)]
struct Invocation {
    /// The arguments that are not flags: the volume and the mount point.
    places: Vec<OsString>,
    /// `-o`
    option_lists: Vec<String>,
    /// `-s`
    sloppy: bool,
    /// `-f`
    fake: bool,
    /// `-N`
    name_space: Option<OsString>,
    /// `-h` or `-V`, which take precedence over everything else.
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
                    let missing = || Failure::Usage("`-o` needs a list of options".into());
                    call.option_lists.push(list.ok_or_else(missing)?.to_owned());
                }
                Some("-t") => drop(args.next()),
                Some("-N") => {
                    let missing = || Failure::Usage("`-N` needs a mount namespace".into());
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
                // fanfs writes no mtab, and has no more verbose output.
                'n' | 'v' => {}
                flag => return Err(Failure::Usage(format!("flag `-{flag}` is not known"))),
            }
        }
        Ok(())
    }

    /// The requested action. `of_mount` says that mount(8) is the caller, not mount.fuse3.
    fn action(mut self, of_mount: bool) -> Result<HelperAction, Failure> {
        if let Some(information) = self.information {
            return Ok(information);
        }
        let [volume, mount_point] = <[OsString; 2]>::try_from(self.places).map_err(|_| {
            Failure::Usage("usage: mount.fanfs VOLUME MOUNTPOINT [-o OPTIONS]; see --help".into())
        })?;
        if !of_mount {
            // For root, mount.fuse3 adds `dev,suid` by itself: the user did not ask for them.
            for list in &mut self.option_lists {
                let asked = list.split(',').filter(|option| !matches!(*option, "dev" | "suid"));
                *list = asked.collect::<Vec<_>>().join(",");
            }
        }
        let volume = volume
            .to_str()
            .and_then(|v| v.strip_prefix("fanfs#"))
            .map_or(volume.clone(), Into::into);
        let volume = match ExportList::parse(Path::new(&volume)) {
            Some(exports) => {
                exports?;
                volume.into()
            }
            None => volume_name::config_file_for_helper(Path::new(&volume)),
        };
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

/// Enters the mount namespace of a process, or the one that a file stands for. The kernel
/// demands that the process has a single thread, as it has at this point.
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
    let shown = path.display();
    entered.map_err(|e| Failure::failed(format!("cannot enter mount namespace {shown}: {e}")))
}

fn print_help() -> CommandResult {
    let mut text = "\
Mount a fanfs volume. mount(8) calls this program for file systems of type fanfs.

Usage: mount -t fanfs VOLUME MOUNTPOINT [-o OPTIONS]
       mount.fanfs VOLUME MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTIONS]

VOLUME is a configuration file, the NAME of /etc/fanfs/NAME.toml, or NFS servers with one
export: SERVER,SERVER:/EXPORT.

  -s            ignore unknown mount options
  -f            check the configuration, and mount nothing
  -n, -v        accepted, no effect
  -N NAMESPACE  mount in this mount namespace: a process id, or a file
  -o OPTIONS    mount options, separated by commas:
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

    fn helper(args: &[&str]) -> Option<Result<mount::Args, Failure>> {
        let helper = detect_helper_call(&args.iter().map(Into::into).collect::<Vec<_>>())?;
        Some(helper.action.map(|wish| match wish {
            HelperAction::Mount { args, .. } => *args,
            _ => panic!("{args:?} is a mount"),
        }))
    }

    #[test]
    fn every_mount_flag_is_accepted() {
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
    fn mount_fuse3_accepts_a_volume_name() {
        let args = helper(&["fanfs", "genomes", "/genomes", "-o", "rw"]).unwrap();
        assert!(args.is_ok_and(|args| args.volume == Path::new("/etc/fanfs/genomes.toml")));
        assert!(helper(&["fanfs", "mount", "/genomes", "-o", "rw"]).is_none());
    }

    #[test]
    fn arguments_of_mount_and_mount_fuse3_are_parsed() {
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
    fn command_names_are_not_mount_sources() {
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
