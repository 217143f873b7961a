//! Renders a guessed volume as a configuration, with the evidence as comments. A pure function.

use std::fmt::Write;
use std::path::Path;

use super::infer::{Certainty, InferredVolume};
use crate::volume::VolumeMode;

/// The maximum width of a comment, columns.
const COMMENT_WIDTH: usize = 96;

/// The path of the schema in the package.
const SCHEMA_PATH: &str = "/usr/share/fanfs/fanfs.schema.json";

/// The text of the configuration. `file` is its future path, if it is known.
pub(super) fn render_config(guess: &InferredVolume, file: Option<&Path>) -> String {
    let mut out = format!("#:schema file://{SCHEMA_PATH}\n");
    let file = file.map_or("FILE".to_owned(), |file| file.display().to_string());
    write_comment(
        &mut out,
        &format!(
            "Written by fanfs init from {} on this machine. Next: fanfs check {file}, then fanfs \
             mount {file} MOUNTPOINT. man 5 fanfs.toml lists all keys and their defaults.",
            match guess.replicas.len() {
                1 => "one mount".to_owned(),
                n => format!("{n} mounts"),
            }
        ),
    );
    out.push('\n');
    for warning in &guess.warnings {
        write_comment(&mut out, &format!("Warning: {warning}"));
    }
    if guess.replicas.len() == 1 {
        write_comment(
            &mut out,
            "Note: with one replica, the volume is only as fast as that replica. Add a [[replica]] \
             for each further mount of the same data.",
        );
    }
    if !guess.warnings.is_empty() || guess.replicas.len() == 1 {
        out.push('\n');
    }
    render_volume(&mut out, guess);
    render_replicas(&mut out, guess);
    render_placement(&mut out, guess);
    out
}

fn render_volume(out: &mut String, guess: &InferredVolume) {
    let _ = writeln!(out, "[volume]\nname = {}\n", toml_string(&guess.volume));
    write_comment(out, mode_comment(guess.mode, guess.certainty));
    for reason in &guess.reasons {
        write_comment(out, &format!("  evidence: {reason}"));
    }
    let mode = match guess.mode {
        VolumeMode::Shared => "shared",
        VolumeMode::Copies => "copies",
    };
    let _ = writeln!(out, "mode = \"{mode}\"\n");
    match guess.cluster.and_then(|cluster| Some((cluster.name, cluster.chunk_size?))) {
        Some((name, size)) => {
            write_comment(
                out,
                &format!("The mounts look like {name}. This is its default chunk size."),
            );
            let _ = writeln!(out, "chunk_size = \"{size}\"");
        }
        None => {
            write_comment(out, "If the data is on a cluster, its chunk size.");
            out.push_str("#chunk_size = \"256MiB\"\n");
        }
    }
    out.push('\n');
    write_comment(out, "Read-only. \"rw\" allows changes; only \"shared\" volumes support it.");
    out.push_str("access = \"ro\"\n");
}

fn mode_comment(mode: VolumeMode, certainty: Certainty) -> &'static str {
    match (mode, certainty) {
        (VolumeMode::Shared, Certainty::Seen) => {
            "All replicas are one file system, seen through several mounts."
        }
        (VolumeMode::Copies, Certainty::Seen) => {
            "The replicas are independent trees with the same content. fanfs compares files by \
             size and modification time, so preserve the times when you copy (rsync -a). `fanfs \
             verify` compares the bytes."
        }
        (VolumeMode::Shared, Certainty::Unknown) => {
            "fanfs init could not find out whether the replicas are one file system or copies. \
             \"shared\" is the safe choice: fanfs also compares files by inode number and change \
             time, and leaves out a replica that differs, so it never mixes two versions. If these \
             are independent copies, fanfs reads only one of them: then change it to \"copies\"."
        }
        (_, Certainty::Given) => "Chosen with --mode. The mounts do not confirm it.",
        (VolumeMode::Copies, Certainty::Unknown) => "Independent trees with the same content.",
    }
}

fn render_replicas(out: &mut String, guess: &InferredVolume) {
    for replica in &guess.replicas {
        out.push('\n');
        let from = match (&replica.fs_type, &replica.source) {
            (Some(fs_type), Some(source)) => format!("{fs_type}, {source}"),
            _ if replica.is_export => "an NFS server that fanfs reads without a mount".to_owned(),
            _ => "of unknown type".to_owned(),
        };
        write_comment(out, &from);
        let key = if replica.is_export { "address" } else { "path" };
        let _ = writeln!(out, "[[replica]]\n{key} = {}", toml_string(&replica.path));
        match &replica.node {
            Some(node) => {
                let _ = writeln!(out, "node = {}", toml_string(node));
                if replica.name != *node {
                    let _ = writeln!(out, "name = {}", toml_string(&replica.name));
                }
            }
            None => {
                let _ = writeln!(out, "name = {}", toml_string(&replica.name));
            }
        }
    }
}

fn render_placement(out: &mut String, guess: &InferredVolume) {
    let nodes = guess.replicas.iter().filter(|replica| replica.node.is_some()).count();
    let (what, provider) = match guess.cluster {
        Some(cluster) => (
            format!(
                "fanfs can ask {} which nodes hold a file's chunks, and read them from the \
                 replicas on those nodes. If the cluster's tool works on this machine, remove the \
                 # below. Set each replica's `node` and `aliases` to the cluster's names for its \
                 node.",
                cluster.name
            ),
            cluster.provider,
        ),
        None if nodes > 1 && guess.mode == VolumeMode::Shared => (
            "If the data is on a cluster, the provider tells fanfs which nodes hold a file's \
             chunks: \"maprfs\", \"hdfs\", \"cephfs\", ... (man 5 fanfs.toml). \"learned\" asks no \
             cluster, and infers it from timing."
                .to_owned(),
            "learned",
        ),
        None => return,
    };
    out.push('\n');
    write_comment(out, &what);
    let _ = writeln!(out, "#[placement]\n#provider = \"{provider}\"");
}

/// `text` as a TOML string.
fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Adds `text` as comment lines. Control characters are replaced, so that no text can leave its
/// comment.
fn write_comment(out: &mut String, text: &str) {
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let indent = text.len() - text.trim_start().len();
    let mut line = format!("#{:indent$}", "");
    let mut has_word = false;
    for word in text.split_whitespace() {
        if has_word && line.chars().count() + 1 + word.chars().count() > COMMENT_WIDTH {
            let _ = writeln!(out, "{line}");
            line = format!("#{:indent$}", "");
        }
        let _ = write!(line, " {word}");
        has_word = true;
    }
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_comments_wrap_and_stay_comments() {
        let mut out = String::new();
        write_comment(&mut out, &format!("a\nb {}", "word ".repeat(40)));
        assert!(out.lines().count() > 1);
        assert!(
            out.lines().all(|line| line.starts_with("# ") && line.chars().count() <= COMMENT_WIDTH)
        );
    }
}
