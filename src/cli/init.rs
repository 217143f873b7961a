//! `fanfs init`: a volume file for mounts that there are.
//!
//! In go directories; each is looked at by the same survey as `fanfs check` does. What the
//! volume probably is, [`infer`] decides, purely; [`render`] writes it down with what was seen
//! as comments. Without directories, [`candidates`] lists network mounts and which of them look
//! like one volume, by the mount table alone.
//!
//! *Invariant:* what is written is accepted by [`config::load`], and `fanfs check` finds no
//! error in it: where that cannot be had, nothing is written.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use clap::ValueEnum;

use super::{CommandResult, Failure, absolute, print_result, printable, to_json, volume_name};
use crate::config;
use crate::mount_table::MountTable;
use crate::survey::{
    DEFAULT_LIMIT, ProbeResult, ReplicaSpec, Severity, Survey, SurveyRequest, survey,
};
use crate::volume::{MAX_REPLICAS, ReplicaId, VolumeMode};

mod candidates;
mod infer;
mod render;

/// Arguments of `fanfs init`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs init                                          list mounts, and what looks like one volume
  fanfs init /mnt/n1 /mnt/n2 /mnt/n3                  print a volume file for these
  fanfs init /mnt/n1 /mnt/n2 --output /etc/fanfs/genomes.toml
  fanfs init /mnt/a /mnt/b --mode copies --json       what was seen and guessed

Guessed are the volume's name, its mode, the replicas' names and nodes, and, where the cluster is
known by its mounts, the chunk size. Each guess is in the file with its reason. The replicas are
looked at, and nothing is changed on them.

Exit status: 0 done; 1 a directory is not mounted, does not answer, or the directories cannot be
one volume; 2 wrong usage.")]
pub(super) struct Args {
    /// Directories where the same data is mounted [default: list the network mounts]
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    mounts: Vec<PathBuf>,
    /// Write to FILE instead of standard output
    #[arg(long, short = 'o', value_name = "FILE", requires = "mounts")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Overwrite FILE
    #[arg(long, requires = "output")]
    force: bool,
    /// The volume's name [default: that of FILE, or of what is exported]
    #[arg(long, requires = "mounts")]
    name: Option<String>,
    /// How the replicas relate [default: by what is seen]
    #[arg(long, requires = "mounts")]
    mode: Option<ModeName>,
    /// Print JSON: what was seen and guessed, and the file's text
    #[arg(long)]
    json: bool,
}

/// A mode as an argument.
#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    /// One file system, seen through several mounts
    Shared,
    /// Independent trees with the same content
    Copies,
}

/// Names a volume where nothing else does.
const DEFAULT_NAME: &str = "data";

pub(super) fn run(args: &Args) -> CommandResult {
    if args.mounts.is_empty() {
        let table = MountTable::read()
            .map_err(|error| Failure::failed(format!("/proc/self/mountinfo: {error}")))?;
        let found = candidates::MountCandidates::new(&table);
        return print_result(&if args.json { to_json(&found)? } else { found.to_string() });
    }
    if args.mounts.len() > MAX_REPLICAS {
        let what = format!("{} directories; use at most {MAX_REPLICAS}", args.mounts.len());
        return Err(Failure::usage(what));
    }
    if let Some(name) = args.name.as_ref().filter(|name| !infer::is_valid_name(name)) {
        let what =
            "is not a name; use 1 to 64 letters, digits, `.`, `_`, `-`, a letter or digit first";
        return Err(Failure::usage(format!("{name:?} {what}")));
    }
    let wanted = args.output.as_deref().filter(|path| !args.force && path.exists());
    if let Some(path) = wanted {
        let what = format!("{} exists; choose another file, or --force", path.display());
        return Err(Failure::failed(what));
    }
    let mut survey = survey_directories(&args.mounts);
    check_survey(&survey)?;
    let mut guess = infer::infer_volume(&survey, &read_nfs_fsids());
    if let Some(mode) = args.mode {
        guess.override_mode(match mode {
            ModeName::Shared => VolumeMode::Shared,
            ModeName::Copies => VolumeMode::Copies,
        });
    }
    let stem = args.output.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
    guess.volume = match (&args.name, stem) {
        (Some(name), _) => name.clone(),
        (None, Some(stem)) if infer::is_valid_name(stem) => stem.to_owned(),
        _ => infer::infer_volume_name(&survey).unwrap_or_else(|| DEFAULT_NAME.to_owned()),
    };
    survey.request.mode = guess.mode;
    for (index, replica) in guess.replicas.iter().enumerate() {
        survey.replicas[ReplicaId::new(index)].spec.name.clone_from(&replica.name);
    }
    for finding in survey.findings() {
        match finding.severity {
            Severity::Error => return Err(Failure::failed(finding.text)),
            Severity::Warning => guess.warnings.push(finding.text),
        }
    }
    write_or_print(args, &guess)
}

/// Prints the file or puts it where it belongs.
fn write_or_print(args: &Args, guess: &infer::InferredVolume) -> CommandResult {
    let file = args.output.as_deref();
    let text = render::render_config(guess, file);
    // What cannot be written down is found here.
    let source = file.unwrap_or(Path::new("fanfs init"));
    config::parse(&text, source).map_err(Failure::usage)?;
    if let Some(path) = file {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).create_new(!args.force);
        options
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        for warning in &guess.warnings {
            super::cancellation::print_message(&format!("fanfs: warning: {}", printable(warning)));
        }
    }
    match (args.json, file) {
        (true, _) => print_result(&to_json(&guess.report(text))?),
        (false, None) => print_result(&text),
        (false, Some(path)) => {
            let volume = path
                .file_stem()
                .filter(|_| path.parent() == Some(volume_name::CONFIG_DIR.as_ref()));
            let volume = volume.map_or(path.display().to_string(), |n| n.display().to_string());
            print_result(&format!("wrote {}; next: fanfs check {volume}\n", path.display()))
        }
    }
}

/// Looks at all directories. Names and sizes are asked for whatever the mode is: they say
/// what it is.
fn survey_directories(mounts: &[PathBuf]) -> Survey {
    let subject = |path: &PathBuf| ReplicaSpec {
        name: path.display().to_string(),
        path: normalize_path(path),
        require_mount: true,
    };
    let minimal = config::parse(MINIMAL_CONFIG, Path::new("")).expect("a minimal volume is valid");
    let question = SurveyRequest {
        replicas: mounts.iter().map(subject).collect(),
        mode: VolumeMode::Copies,
        segment_size: minimal.read.segment_size,
        deadline: minimal.read.deadline,
        write_replica: None,
        lag: minimal.write.lag,
        mount_point: None,
    };
    survey(question, DEFAULT_LIMIT)
}

/// A volume with every default.
const MINIMAL_CONFIG: &str = "volume = { name = 'v', mode = 'shared' }\nreplica = [{ path = '/' }]";

/// The path as it is to be written. A `..` in it is refused in a volume, as what it leads to
/// depends on symbolic links.
fn normalize_path(path: &Path) -> PathBuf {
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    let canonical = if has_parent { path.canonicalize().ok() } else { None };
    canonical.unwrap_or_else(|| absolute(path))
}

/// The errors of single directories, and of one that is there twice.
fn check_survey(survey: &Survey) -> Result<(), Failure> {
    let mut seen: Vec<(&Path, &Path)> = Vec::new();
    for (_, sight) in survey.replicas.iter() {
        let path = sight.spec.path.as_path();
        let shown = path.display();
        if path.to_str().is_none() {
            let what = format!("{path:?} is not UTF-8, and a volume file is; mount it elsewhere");
            return Err(Failure::failed(what));
        }
        if sight.mount.as_ref().is_some_and(|mount| mount.fs_type == "fuse.fanfs") {
            let what = format!("{shown} is on a volume of fanfs; give the mounts below it");
            return Err(Failure::usage(what));
        }
        let canonical = match &sight.probe_result {
            ProbeResult::Directory(root) => root.canonical.as_path(),
            ProbeResult::Absent => return Err(Failure::failed(format!("{shown} does not exist"))),
            ProbeResult::NotADirectory => {
                return Err(Failure::failed(format!("{shown} is not a directory")));
            }
            ProbeResult::Failed(why) => {
                return Err(Failure::failed(format!("{shown} cannot be opened: {why}")));
            }
            ProbeResult::TimedOut => {
                let what = format!("{shown} did not answer within {:?}", survey.limit);
                return Err(Failure::failed(what));
            }
        };
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == canonical) {
            let what =
                format!("{shown} and {} are one directory; give each mount once", other.display());
            return Err(Failure::usage(what));
        }
        seen.push((canonical, path));
        if survey.table_error.is_none() && !sight.is_mounted() {
            let what = format!(
                "{shown} is not a mount, nor on a network file system; mount it, or write the \
                 volume by hand, with `require_mount = false`"
            );
            return Err(Failure::failed(what));
        }
    }
    Ok(())
}

/// The file systems that servers say they export, by the mount's device number.
fn read_nfs_fsids() -> Vec<infer::NfsFsid> {
    let text = std::fs::read_to_string("/proc/fs/nfsfs/volumes").unwrap_or_default();
    infer::parse_nfs_fsids(&text)
}
