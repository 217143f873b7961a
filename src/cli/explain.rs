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
    // Where no copy is spare, the column would repeat the one before it.
    let has_spare = e.nodes.iter().any(|node| node.read < node.chunks);
    let mut row = |name: &str, cells: [&str; 4]| {
        let [chunks, read, size, on] = cells;
        let read = if has_spare { format!("{read:>8} ") } else { String::new() };
        line!(text, "  {name:<28} {chunks:>8} {read}{size:>12}  {on}");
    };
    row("node", ["chunks", "read", "size", "replicas"]);
    for node in &e.nodes {
        let on = if node.replicas.is_empty() { "-".into() } else { node.replicas.join(", ") };
        let [chunks, read] = [node.chunks, node.read].map(|count| count.to_string());
        row(&printable(&node.node), [&chunks, &read, &format_bytes(node.bytes), &on]);
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
            replica.rate.map_or("-".into(), format_mib_rate)
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
const MAP_WIDTH: u64 = 64;

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

/// A map of the file with a line for each replica.
fn draw_chunk_map(text: &mut String, e: &Explanation) {
    let in_color = color::is_enabled();
    for (i, replica) in e.replicas.iter().enumerate().take(MAX_MAP_LINES) {
        let row = chunk_map_row(e, i);
        let name: String = replica.name.chars().take(20).collect();
        let row = color::paint(&row, REPLICA_COLORS[i % REPLICA_COLORS.len()], in_color);
        line!(text, "  {name:>20} {row}");
    }
    if e.replicas.len() > MAX_MAP_LINES {
        line!(text, "  {:>20} and {} more replicas", "", e.replicas.len() - MAX_MAP_LINES);
    }
    line!(text);
}

/// A replica's line of the map. Its cells are parts of the file of about one size: full if the
/// replica reads all their chunks from its own node, shaded if some of them, lightly shaded if its
/// node has only spare copies, a dot if it has none, and a question mark if that is unknown.
fn chunk_map_row(e: &Explanation, replica: usize) -> String {
    let listed = e.chunk_map.len() as u64 == e.chunks;
    let end = if listed { e.size } else { e.chunk_map.last().map_or(0, |chunk| chunk.end) };
    let longest = e.chunk_map.iter().map(|chunk| chunk.end - chunk.start).max().unwrap_or(0).max(1);
    // Whole chunks, if they have one size.
    let cell_size = longest.saturating_mul(end.div_ceil(longest).div_ceil(MAP_WIDTH).max(1));
    let cell = |cell: u64| {
        let start = cell * cell_size;
        let end = start.saturating_add(cell_size).min(end);
        let first = e.chunk_map.partition_point(|chunk| chunk.end <= start);
        let chunks = e.chunk_map[first..].iter().take_while(|chunk| chunk.start < end);
        let chunks: Vec<&ListedChunk> = chunks.collect();
        let held = chunks.iter().filter(|chunk| chunk.replicas.contains(&replica)).count();
        let known = |chunk: &&ListedChunk| chunk.end.min(end) - chunk.start.max(start);
        let is_known = chunks.iter().map(known).sum::<u64>() == end - start;
        match held {
            _ if chunks.is_empty() => '?',
            0 if chunks.iter().any(|chunk| chunk.spare.contains(&replica)) => '\u{2591}',
            0 => '.',
            held if held == chunks.len() && is_known => '\u{2588}',
            _ => '\u{2592}',
        }
    };
    (0..end.div_ceil(cell_size)).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation() -> Explanation {
        let mib = f64::from(1 << 20);
        Explanation {
            path: "/f".to_owned(),
            size: 1 << 20,
            provider: "none".to_owned(),
            chunks: 0,
            copies: Vec::new(),
            nodes: Vec::new(),
            known: 0.0,
            local: 0.0,
            replicas: Vec::new(),
            expected_rate: 43.4 * mib,
            expected_local: 0.0,
            sum_of_rates: 44.0 * mib,
            is_measured: true,
            findings: vec!["no placement provider is configured; see `[placement]`".to_owned()],
            improvements: Vec::new(),
            chunk_map: Vec::new(),
        }
    }

    #[test]
    fn the_map_shows_read_spare_absent_and_unknown_chunks() {
        let chunk = |start: u64, replicas: &[usize], spare: &[usize]| ListedChunk {
            start,
            end: start + 10,
            nodes: Vec::new(),
            read: replicas.len(),
            replicas: replicas.to_vec(),
            spare: spare.to_vec(),
        };
        let mut e = explanation();
        e.size = 48;
        e.chunk_map = vec![chunk(0, &[0], &[1]), chunk(10, &[1], &[0]), chunk(30, &[2], &[])];
        e.chunks = 3;
        let rows = [0, 1, 2].map(|replica| chunk_map_row(&e, replica));
        assert_eq!(rows, ["\u{2588}\u{2591}?.?", "\u{2591}\u{2588}?.?", "..?\u{2588}?"]);
        // More chunks than cells.
        e.chunk_map = (0..640).map(|i| chunk(i * 10, &[usize::from(i >= 325)], &[])).collect();
        (e.size, e.chunks) = (6400, 640);
        let row = chunk_map_row(&e, 1);
        assert_eq!(row.chars().count(), 64);
        assert_eq!(row.chars().filter(|cell| *cell == '\u{2592}').count(), 1);
        assert!(row.starts_with("....") && row.ends_with('\u{2588}'));
    }

    #[test]
    fn the_estimate_and_the_sum_are_separate_lines() {
        let text = render_text(&explanation(), 40);
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
