//! `fanfs generate`: the generated files of a package, and mount units for systemd.
//!
//! The sources are the definitions that the program itself uses: the command line, the mount
//! options ([`super::mount_options`]), and the keys of a configuration
//! ([`crate::config::schema`]). Copies are in `packaging/` and `config/`. tests/generated.rs
//! compares them, and `FANFS_BLESS=1 cargo test --test generated` updates them.
//!
//! *Invariant:* the output depends only on the program: not on the date, the host name or the
//! width of the terminal. (Units depend on their arguments.)

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::{Cli, CommandResult, Failure, print_result, to_json};
use crate::config::schema;

mod helper_page;
mod man;
mod man_page;
mod page_sections;
mod units;
mod volume_page;

/// Arguments of `fanfs generate`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs generate completions bash > /etc/bash_completion.d/fanfs
  fanfs generate man /usr/local/share/man   for `man fanfs` without a package
  fanfs generate units genomes /genomes --output /etc/systemd/system")]
pub(super) struct Args {
    #[command(subcommand)]
    what: Artifact,
}

#[derive(Subcommand)]
enum Artifact {
    /// Write the man pages into DIR/man1, DIR/man5 and DIR/man8
    Man {
        /// The directory; created if it does not exist
        #[arg(value_hint = clap::ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: CompletionShell,
    },
    /// Print the JSON schema of a volume's configuration
    Schema,
    /// Print a .mount and an .automount unit for systemd, or write them into a directory
    Units(units::Args),
}

/// The shells that have completions.
#[derive(Clone, Copy, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.what {
        Artifact::Man { dir } => write_files(dir, &man::pages(cli_command())),
        Artifact::Completions { shell } => print_result(&completions(*shell)),
        Artifact::Schema => print_result(&to_json(&schema::schema())?),
        Artifact::Units(args) => units::run(args),
    }
}

/// The command line without `help COMMAND`, which would add another page and another completion
/// for each command.
fn cli_command() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

fn completions(language: CompletionShell) -> String {
    let shell = match language {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli_command(), "fanfs", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// A generated file.
struct GeneratedFile {
    /// Relative to the directory that it is written to.
    path: String,
    text: String,
}

/// Writes the files below `dir`, and creates their directories.
fn write_files(dir: &Path, files: &[GeneratedFile]) -> CommandResult {
    for file in files {
        let path = dir.join(&file.path);
        let parent = path.parent().unwrap_or(dir);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, &file.text))
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    Ok(std::process::ExitCode::SUCCESS)
}
