//! `fanfs explain`: where a file's chunks are, and what to expect of it.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use bytesize::ByteSize;

use super::{
    CommandResult, Failure, absolute, mount_lookup, print_result, printable, to_json, volume,
};
use crate::backend::{Backend, DirBackend, FileKind};
use crate::config;
use crate::control;
use crate::daemon::{check_placement, explain_facts_unmounted};
use crate::explain::{ExplainFacts, Explanation, ListedChunk, explain};
use crate::mount_table::MountTable;
use crate::timeout::run_with_timeout;

/// Arguments of `fanfs explain`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A file on a mounted volume; with --volume its path in the volume
    file: PathBuf,
    /// Ask for a volume that is not mounted; rates are assumed then
    #[arg(long, value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    volume: Option<PathBuf>,
    /// Print JSON, with every chunk
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let facts = match &args.volume {
        Some(volume) => facts_of_unmounted(volume, &args.file)?,
        None => facts_of_mounted(&args.file)?,
    };
    let explanation = explain(&facts, Instant::now());
    print_result(&if args.json { to_json(&explanation)? } else { render_text(&explanation) })
}

fn facts_of_mounted(file: &Path) -> Result<ExplainFacts, Failure> {
    let path = absolute(file);
    let wrong = |error: String| Failure::failed(format!("{}: {error}", file.display()));
    // The directory may be reached through links; the file itself is not
    // followed, as a replica does not follow it either.
    let name = path.file_name().ok_or_else(|| wrong("not a file".to_owned()))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let asked = parent.to_owned();
    // The mount there may be hung.
    let parent = run_with_timeout(mount_lookup::ANSWER_TIMEOUT, move || asked.canonicalize())
        .unwrap_or_else(|| Ok(parent.to_owned()))
        .map_err(|error| wrong(error.to_string()))?;
    let path = parent.join(name);
    let table = MountTable::read().map_err(Failure::failed)?;
    let mount = table.containing(&parent).filter(|mount| mount.fs_type == "fuse.fanfs");
    let Some(mount) = mount else {
        let hint = "not on a volume of fanfs; give a file on one, or --volume";
        return Err(Failure::usage(format!("{}: {hint}", file.display())));
    };
    let inside = path.strip_prefix(&mount.mount_point).unwrap_or(&path).to_owned();
    control::query_facts(&control::socket_path(&mount.mount_point), inside)
        .map_err(|error| mount_lookup::status_error(&mount.mount_point, &error).into())
}

fn facts_of_unmounted(volume: &Path, file: &Path) -> Result<ExplainFacts, Failure> {
    let config = config::load(&volume::config_file(volume)?).map_err(Failure::usage)?;
    check_placement(&config).map_err(Failure::usage)?;
    let below = volume::path_below_mount(&config.volume.name, file);
    let file = below.as_deref().unwrap_or(file);
    let inside: PathBuf = file.components().filter(|part| *part != Component::RootDir).collect();
    if inside.components().any(|part| !matches!(part, Component::Normal(_))) {
        let what = "is not a path in the volume; write it from the volume's root, without ..";
        return Err(Failure::usage(format!("{} {what}", file.display())));
    }
    let mut last = None;
    for replica in &config.replicas {
        let looked = DirBackend::open(&replica.path).and_then(|tree| tree.stat(&inside));
        match looked {
            Ok(attr) if attr.kind == FileKind::Regular => {
                return explain_facts_unmounted(&config, &inside, &attr).map_err(Failure::failed);
            }
            Ok(_) => {
                return Err(Failure::failed(format!("{}: not a regular file", file.display())));
            }
            Err(error) => {
                last = Some(format!("replica {}: {}: {error}", replica.name, file.display()))
            }
        }
    }
    Err(Failure::failed(last.unwrap_or_default()))
}

fn format_bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn format_byte_rate(rate: f64) -> String {
    format!("{}/s", format_bytes(rate as u64))
}

/// Adds a line to a `String`, which cannot fail.
macro_rules! line {
    ($text:ident) => { $text.push('\n') };
    ($text:ident, $($arg:tt)*) => {{
        let _ = writeln!($text, $($arg)*);
    }};
}

fn render_text(e: &Explanation) -> String {
    let mut text = String::new();
    let is_placed = e.chunks > 0;
    let path = printable(&e.path);
    match is_placed {
        true => line!(
            text,
            "{path}: {} in {} chunks, placement by {}",
            format_bytes(e.size),
            e.chunks,
            e.provider
        ),
        false if e.size == 0 => line!(text, "{path}: empty"),
        false => line!(text, "{path}: {}, where its chunks are is not known", format_bytes(e.size)),
    }
    line!(text);
    if is_placed {
        draw_chunk_map(&mut text, e);
        line!(text, "  {:<28} {:>8} {:>8} {:>12}  replicas", "node", "chunks", "first", "bytes");
        for node in &e.nodes {
            let on = if node.replicas.is_empty() { "-".into() } else { node.replicas.join(", ") };
            line!(
                text,
                "  {:<28} {:>8} {:>8} {:>12}  {on}",
                node.node,
                node.chunks,
                node.first,
                format_bytes(node.bytes)
            );
        }
        line!(text);
        let most = e.copies.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        for (copies, count) in &e.copies {
            let bar = "#".repeat((count * 40).div_ceil(most) as usize);
            let noun = if *copies == 1 { "copy" } else { "copies" };
            line!(text, "  {copies:>3} {noun:<6} {count:>8}  {bar}");
        }
        line!(text);
    }
    line!(text, "  {:<28} {:>8} {:>12} {:>12}", "replica", "planned", "holds", "rate");
    for replica in &e.replicas {
        let planned = format!("{:.0} %", replica.planned * 100.0);
        line!(
            text,
            "  {:<28} {planned:>8} {:>12} {:>12}",
            replica.name,
            if is_placed { format_bytes(replica.bytes) } else { "-".into() },
            format_byte_rate(replica.rate)
        );
    }
    line!(text);
    let basis = if e.is_measured { "as measured" } else { "partly assumed" };
    let local = match is_placed {
        true => format!(", {:.0} % of it read locally", e.expected_local * 100.0),
        false => String::new(),
    };
    line!(
        text,
        "One sequential reader may expect {} of {} ({basis}){local}.",
        format_byte_rate(e.expected_rate),
        format_byte_rate(e.sum_of_rates)
    );
    for finding in &e.findings {
        line!(text, "- {finding}");
    }
    if !e.improvements.is_empty() {
        line!(text, "Faster would be:");
    }
    for improvement in &e.improvements {
        line!(
            text,
            "- {}: {} ({:.1} times)",
            improvement.what,
            format_byte_rate(improvement.rate),
            improvement.gain
        );
    }
    text
}

/// Cells of the picture of a file.
const MAP_WIDTH: usize = 64;

/// Replicas that the picture has a line for.
const MAX_MAP_LINES: usize = 16;

/// Colours that can be told apart on light and dark ground.
const ANSI_COLORS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// A picture of the file, a line for each replica: full where its node holds
/// all chunks of the cell, half where it holds some.
fn draw_chunk_map(text: &mut String, e: &Explanation) {
    let in_colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let cells = e.chunk_map.len().min(MAP_WIDTH);
    for (i, replica) in e.replicas.iter().enumerate().take(MAX_MAP_LINES) {
        let cell = |cell: usize| {
            let part = |n: usize| n * e.chunk_map.len() / cells;
            let chunks: &[ListedChunk] = &e.chunk_map[part(cell)..part(cell + 1)];
            match chunks.iter().filter(|chunk| chunk.replicas.contains(&i)).count() {
                0 => '.',
                held if held == chunks.len() => '\u{2588}',
                _ => '\u{2592}',
            }
        };
        let row: String = (0..cells).map(cell).collect();
        let name: String = replica.name.chars().take(20).collect();
        match in_colour {
            true => {
                line!(text, "  {name:>20} \x1b[{}m{row}\x1b[0m", ANSI_COLORS[i % ANSI_COLORS.len()])
            }
            false => line!(text, "  {name:>20} {row}"),
        }
    }
    if e.replicas.len() > MAX_MAP_LINES {
        line!(text, "  {:>20} and {} more replicas", "", e.replicas.len() - MAX_MAP_LINES);
    }
    line!(text);
}
