//! The `fanfs` program; see [`fanfs::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    fanfs::cli::main(std::env::args_os().collect())
}
