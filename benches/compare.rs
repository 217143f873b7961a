//! fanfs against what a user would pick instead.

use std::process::ExitCode;

use clap::Parser as _;

#[path = "compare/daemon.rs"]
mod daemon;
#[path = "compare/null.rs"]
mod null;

/// Why it cannot go on, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.to_string())
    }
}

#[derive(clap::Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// What cargo adds
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    Null(null::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Null(args)) => null::run(args),
        None => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// "2GiB" in bytes.
fn size_of(text: &str) -> Result<u64, String> {
    text.parse::<bytesize::ByteSize>().map(|size| size.0)
}
