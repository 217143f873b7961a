//! `fanfs explain`: the placement of a file's chunks, and the estimated bandwidth of its reads.

use std::fmt::Write;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use anstyle::AnsiColor;

use super::output_width::{output_width, wrap_indented};
use super::{
    CommandResult, Failure, absolute, color, mount_lookup, print_result, printable, to_json, volume,
};
use crate::backend::FileKind;
use crate::config;
use crate::control;
use crate::daemon::{OpenReplicaError, check_placement, explain_facts_unmounted, open_replica};
use crate::explain::{ExplainFacts, Explanation, ListedChunk, explain};
use crate::format::{format_bytes, format_count, format_mib_rate, format_percent};
use crate::mount_table::MountTable;
use crate::timeout::run_with_timeout;

/// Arguments of `fanfs explain`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A file on a mounted volume; with --volume its path in the volume
    file: PathBuf,
    /// Explain a file of this volume, which need not be mounted; bandwidths are assumed then
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
    print_result(&match args.json {
        true => to_json(&explanation)?,
        false => render_text(&explanation, output_width()),
    })
}

fn facts_of_mounted(file: &Path) -> Result<ExplainFacts, Failure> {
    let path = absolute(file);
    let wrong = |error: String| Failure::failed(format!("{}: {error}", file.display()));
    // The directory may be reached through symbolic links. The file itself is not followed, because
    // a replica does not follow it either.
    let name = path.file_name().ok_or_else(|| wrong("not a file".to_owned()))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let asked = parent.to_owned();
    // The mount there may be hung.
    let parent = run_with_timeout(mount_lookup::ANSWER_TIMEOUT, move || asked.canonicalize())
        .unwrap_or_else(|| Ok(parent.to_owned()))
        .map_err(|error| wrong(error.to_string()))?;
    let path = parent.join(name);
    let table = MountTable::read().map_err(Failure::failed)?;
    let volume_with = |path| table.containing(path).filter(|mount| mount.fs_type == "fuse.fanfs");
    if volume_with(&path).is_some_and(|mount| mount.mount_point == path) {
        return Err(Failure::usage(format!(
            "{}: this is the root of a volume; name a file on it",
            file.display()
        )));
    }
    let Some(mount) = volume_with(&parent) else {
        let hint = "not on a mounted volume; name a file on one, or use --volume";
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
        let looked = open_replica(&config, replica)
            .and_then(|tree| tree.stat(&inside).map_err(OpenReplicaError::from));
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

/// Adds a line to a `String`, which cannot fail.
macro_rules! line {
    ($text:ident) => { $text.push('\n') };
    ($text:ident, $($arg:tt)*) => {{
        let _ = writeln!($text, $($arg)*);
    }};
}

fn render_text(e: &Explanation, width: usize) -> String {
    let mut text = String::new();
    render_title(&mut text, e);
    line!(text);
    if is_placed(e) {
        draw_chunk_map(&mut text, e);
        render_nodes(&mut text, e);
        line!(text);
        render_copies(&mut text, e);
        line!(text);
    }
    render_replicas(&mut text, e);
    line!(text);
    render_forecast(&mut text, e, width);
    for finding in &e.findings {
        line!(text, "- {}", wrap_indented(&printable(finding), 2, width));
    }
    render_improvements(&mut text, e, width);
    text
}

/// Whether the placement of the file's chunks is known.
fn is_placed(e: &Explanation) -> bool {
    e.chunks > 0
}

fn render_title(text: &mut String, e: &Explanation) {
    let path = printable(&e.path);
    let size = format_bytes(e.size);
    match is_placed(e) {
        true => {
            let chunks = format_count(e.chunks, "chunk");
            line!(text, "{path}: {size} in {chunks}, placement by {}", e.provider)
        }
        false if e.size == 0 => line!(text, "{path}: empty"),
        false => line!(text, "{path}: {size}, placement unknown"),
    }
}

/// What each node holds.
fn render_nodes(text: &mut String, e: &Explanation) {
    line!(text, "  {:<28} {:>8} {:>8} {:>12}  replicas", "node", "chunks", "first", "size");
    for node in &e.nodes {
        let on = if node.replicas.is_empty() { "-".into() } else { node.replicas.join(", ") };
        line!(
            text,
            "  {:<28} {:>8} {:>8} {:>12}  {on}",
            printable(&node.node),
            node.chunks,
            node.first,
            format_bytes(node.bytes)
        );
    }
}

/// How many chunks have how many copies, as a histogram.
fn render_copies(text: &mut String, e: &Explanation) {
    let most = e.copies.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (copies, count) in &e.copies {
        let bar = "#".repeat((count * 40).div_ceil(most) as usize);
        let noun = if *copies == 1 { "copy" } else { "copies" };
        line!(text, "  {copies:>3} {noun:<6} {count:>8}  {bar}");
    }
}

/// The estimated share of each replica.
fn render_replicas(text: &mut String, e: &Explanation) {
    line!(text, "  {:<28} {:>8} {:>12} {:>12}", "replica", "share", "local", "bandwidth");
    for replica in &e.replicas {
        let share = format_percent(replica.planned);
        line!(
            text,
            "  {:<28} {share:>8} {:>12} {:>12}",
            replica.name,
            if is_placed(e) { format_bytes(replica.bytes) } else { "-".into() },
            format_mib_rate(replica.rate)
        );
    }
}

/// The estimated bandwidth of one reader, and the most that the replicas could deliver.
fn render_forecast(text: &mut String, e: &Explanation, width: usize) {
    let basis = if e.is_measured { "measured" } else { "partly assumed" };
    let local = match is_placed(e) {
        true => format!(", {} of it read locally", format_percent(e.expected_local)),
        false => String::new(),
    };
    let expected = format_mib_rate(e.expected_rate);
    let estimate = format!("One sequential reader: est. bandwidth {expected}{local}.");
    line!(text, "{}", wrap_indented(&estimate, 0, width));
    let sum = format_mib_rate(e.sum_of_rates);
    let sum = format!("Sum of the replicas' bandwidths: {sum} ({basis}).");
    line!(text, "{}", wrap_indented(&sum, 0, width));
}

fn render_improvements(text: &mut String, e: &Explanation, width: usize) {
    if !e.improvements.is_empty() {
        line!(text, "Changes that make it faster:");
    }
    for improvement in &e.improvements {
        let what = printable(&improvement.what);
        let rate = format_mib_rate(improvement.rate);
        let change = format!("{what}: {rate} (speedup {:.1})", improvement.gain);
        line!(text, "- {}", wrap_indented(&change, 2, width));
    }
}

/// The most cells of a line of the chunk map.
const MAP_WIDTH: usize = 64;

/// The most replicas in the chunk map.
const MAX_MAP_LINES: usize = 16;

/// Colors that can be distinguished on light and dark backgrounds.
const REPLICA_COLORS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Green,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// A map of the file with a line for each replica. A cell is full if the replica's node holds all
/// chunks of the cell, and shaded if it holds some of them.
fn draw_chunk_map(text: &mut String, e: &Explanation) {
    let in_color = color::is_enabled();
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
        let row = color::paint(&row, REPLICA_COLORS[i % REPLICA_COLORS.len()], in_color);
        line!(text, "  {name:>20} {row}");
    }
    if e.replicas.len() > MAX_MAP_LINES {
        line!(text, "  {:>20} and {} more replicas", "", e.replicas.len() - MAX_MAP_LINES);
    }
    line!(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_and_the_sum_are_separate_lines() {
        let mib = f64::from(1 << 20);
        let explanation = Explanation {
            path: "/f".to_owned(),
            size: 1 << 20,
            provider: "none".to_owned(),
            chunks: 0,
            copies: Vec::new(),
            nodes: Vec::new(),
            local: 0.0,
            replicas: Vec::new(),
            expected_rate: 43.4 * mib,
            expected_local: 0.0,
            sum_of_rates: 44.0 * mib,
            is_measured: true,
            findings: vec!["no placement provider is configured; see `[placement]`".to_owned()],
            improvements: Vec::new(),
            chunk_map: Vec::new(),
        };
        let text = render_text(&explanation, 40);
        let end = "
One sequential reader: est. bandwidth
43.4 MiB/s.
Sum of the replicas' bandwidths: 44.0
MiB/s (measured).
- no placement provider is configured;
  see `[placement]`
";
        assert!(text.ends_with(end), "{text}");
    }
}
