//! `fanfs init`: writes the configuration of a volume for existing mounts.
//!
//! The inputs are directories. The survey of `fanfs check` probes each. From the survey,
//! [`infer`] decides what the volume probably is, as a pure function. [`render`] writes the
//! configuration, with the evidence as comments. Without directories, [`candidates`] lists the
//! network mounts, and groups those that look like one volume, using only the mount table.
//!
//! *Invariant:* [`config::load`] accepts every file written here, and `fanfs check` finds no
//! error in it. If such a file is not possible, nothing is written.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use clap::ValueEnum;

use super::{CommandResult, Failure, absolute, print_result, printable, to_json, volume_name};
use crate::config;
use crate::mount_table::MountTable;
use crate::nfs::NfsAddress;
use crate::survey::{
    DEFAULT_LIMIT, NfsExport, ProbeResult, ReplicaLocation, ReplicaSpec, Severity, Survey,
    SurveyRequest, survey,
};
use crate::volume::{MAX_REPLICAS, ReplicaId, VolumeMode};

mod candidates;
mod exports;
mod infer;
mod render;

/// Arguments of `fanfs init`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs init probes the directories, or NFS servers' exports, and guesses the volume's name and mode, the replicas' names and \
nodes, and the chunk size if the mounts show which cluster it is. The file contains the evidence \
as comments. The command changes nothing on the replicas.

Examples:
  fanfs init                                     list mounts that fit together
  fanfs init /mnt/n1 /mnt/n2 /mnt/n3             print a volume's configuration
  fanfs init nfs://gw1/cluster nfs://gw2/cluster print that of a volume without mounts
  fanfs init nfs://gw1                           list the exports of a server
  fanfs init /mnt/a /mnt/b --mode copies --json  print guesses and evidence

Exit status: 0 done; 1 a directory is not mounted or does not answer, the directories cannot be \
one volume, or FILE exists; 2 wrong usage.")]
pub(super) struct Args {
    /// Directories where the same data is mounted, or nfs://SERVER/EXPORT, where it is
    /// [default: list the network mounts]
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    mounts: Vec<PathBuf>,
    /// Write to FILE instead of standard output
    #[arg(long, short = 'o', value_name = "FILE", requires = "mounts")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Overwrite FILE
    #[arg(long, requires = "output")]
    force: bool,
    /// The volume's name [default: the name of FILE, or else of the exported directory]
    #[arg(long, requires = "mounts")]
    name: Option<String>,
    /// How the replicas relate [default: guessed from the mounts]
    #[arg(long, requires = "mounts")]
    mode: Option<ModeName>,
    /// Print JSON: the guesses, their evidence and the text of the file
    #[arg(long)]
    json: bool,
}

/// The value of `--mode`.
#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    /// One file system, seen through several mounts
    Shared,
    /// Independent trees with the same content
    Copies,
}

/// The volume's name if nothing suggests a better one.
const DEFAULT_NAME: &str = "data";

pub(super) fn run(args: &Args) -> CommandResult {
    if args.mounts.is_empty() {
        let table = MountTable::read()
            .map_err(|error| Failure::failed(format!("/proc/self/mountinfo: {error}")))?;
        let found = candidates::MountCandidates::new(&table);
        return print_result(&if args.json { to_json(&found)? } else { found.to_string() });
    }
    if let [one] = &*args.mounts
        && let Some(exports) = exports::ServerExports::of_server(one)?
    {
        return print_result(&if args.json { to_json(&exports)? } else { exports.to_string() });
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
        let what = "exists; choose another file, or overwrite it with --force";
        return Err(Failure::failed(format!("{} {what}", path.display())));
    }
    check_addresses(&args.mounts)?;
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

/// Writes the file to `--output`, or prints it.
fn write_or_print(args: &Args, guess: &infer::InferredVolume) -> CommandResult {
    let file = args.output.as_deref();
    let text = render::render_config(guess, file);
    // A configuration that fanfs itself refuses must not be written.
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

/// Surveys all directories. It always lists names and sizes, because they show the mode.
fn survey_directories(mounts: &[PathBuf]) -> Survey {
    let subject = |path: &PathBuf| ReplicaSpec {
        name: path.display().to_string(),
        location: location(path),
        require_mount: !is_address(path),
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

/// Whether an argument is the address of an export.
fn is_address(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"nfs://")
}

/// Checks that all addresses are valid.
fn check_addresses(mounts: &[PathBuf]) -> Result<(), Failure> {
    for address in mounts.iter().filter(|path| is_address(path)) {
        let shown = address.display();
        let text = address.to_str().unwrap_or_default();
        if let Err(error) = text.parse::<NfsAddress>() {
            return Err(Failure::usage(format!("{shown} is not valid: {error}")));
        }
    }
    Ok(())
}

/// The location of a replica, after [`check_addresses`].
fn location(path: &Path) -> ReplicaLocation {
    let minimal = |address| NfsExport { address, version: None, connections: 1, mount_port: None };
    match path.to_str().filter(|_| is_address(path)).and_then(|text| text.parse().ok()) {
        Some(address) => ReplicaLocation::Export(minimal(address)),
        None => normalize_path(path).into(),
    }
}

/// A configuration in which every setting has its default.
const MINIMAL_CONFIG: &str = "volume = { name = 'v', mode = 'shared' }\nreplica = [{ path = '/' }]";

/// The path to write into the file. A configuration must not contain `..`, because its target
/// depends on symbolic links.
fn normalize_path(path: &Path) -> PathBuf {
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    let canonical = if has_parent { path.canonicalize().ok() } else { None };
    canonical.unwrap_or_else(|| absolute(path))
}

/// Checks each directory, and that no directory is listed twice.
fn check_survey(survey: &Survey) -> Result<(), Failure> {
    let mut seen: Vec<(&Path, &ReplicaLocation)> = Vec::new();
    for (_, sight) in survey.replicas.iter() {
        let shown = &sight.spec.location;
        let path = sight.spec.location.to_path();
        if path.to_str().is_none() {
            let what = "is not UTF-8, as a configuration must be; mount it elsewhere";
            return Err(Failure::failed(format!("{path:?} {what}")));
        }
        if sight.mount.as_ref().is_some_and(|mount| mount.fs_type == "fuse.fanfs") {
            let what = format!("{shown} is on a fanfs volume; list the mounts of its replicas");
            return Err(Failure::usage(what));
        }
        let canonical = match &sight.probe_result {
            ProbeResult::Directory(root) => root.canonical.as_path(),
            ProbeResult::Absent => return Err(Failure::failed(format!("{shown} does not exist"))),
            ProbeResult::NotADirectory => {
                return Err(Failure::failed(format!("{shown} is not a directory")));
            }
            ProbeResult::Failed(why) => {
                return Err(Failure::failed(format!("cannot open {shown}: {why}")));
            }
            ProbeResult::TimedOut => {
                let what = format!("{shown} did not answer within {:?}", survey.limit);
                return Err(Failure::failed(what));
            }
        };
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == canonical) {
            let what = format!("{shown} and {other} are one directory; list each mount once");
            return Err(Failure::usage(what));
        }
        seen.push((canonical, shown));
        if survey.table_error.is_none() && !sight.is_mounted() {
            let what = format!(
                "{shown} is neither a mount nor on a network file system; mount it, or write the \
                 configuration by hand, with `require_mount = false`"
            );
            return Err(Failure::failed(what));
        }
    }
    Ok(())
}

/// The fsids that NFS servers report, by the mount's device number.
fn read_nfs_fsids() -> Vec<infer::NfsFsid> {
    let text = std::fs::read_to_string("/proc/fs/nfsfs/volumes").unwrap_or_default();
    infer::parse_nfs_fsids(&text)
}
