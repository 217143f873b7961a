//! A guess as a volume file: what was guessed as keys, and why as comments. Pure.

use std::fmt::Write;
use std::path::Path;

use super::infer::{Certainty, InferredVolume};
use crate::volume::VolumeMode;

/// Where a comment is broken, columns.
const COMMENT_WIDTH: usize = 96;

/// Where the package puts the schema.
const SCHEMA_PATH: &str = "/usr/share/fanfs/fanfs.schema.json";

/// The text of the file, which is to be `file` where that is known.
pub(super) fn render_config(guess: &InferredVolume, file: Option<&Path>) -> String {
    let mut out = format!("#:schema file://{SCHEMA_PATH}\n");
    let file = file.map_or("FILE".to_owned(), |file| file.display().to_string());
    write_comment(
        &mut out,
        &format!(
            "Written by fanfs init from {} on this machine. Next: fanfs check {file}; then fanfs \
             mount {file} MOUNTPOINT. Every key there is, with its default: man 5 fanfs.toml.",
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
            "Remark: one replica alone is read at its own rate; add a [[replica]] for each further \
             mount of the same data.",
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
        write_comment(out, &format!("  seen: {reason}"));
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
                &format!("The mounts look like those of {name}: this is its default."),
            );
            let _ = writeln!(out, "chunk_size = \"{size}\"");
        }
        None => {
            write_comment(out, "The chunk size of the cluster, where there is one.");
            out.push_str("#chunk_size = \"256MiB\"\n");
        }
    }
    out.push('\n');
    write_comment(out, "Nothing can be changed through the mount; \"rw\" in \"shared\" volumes.");
    out.push_str("access = \"ro\"\n");
}

fn mode_comment(mode: VolumeMode, certainty: Certainty) -> &'static str {
    match (mode, certainty) {
        (VolumeMode::Shared, Certainty::Seen) => {
            "All replicas are one file system, seen through several mounts."
        }
        (VolumeMode::Copies, Certainty::Seen) => {
            "The replicas are independent trees with the same content. Files are compared by size \
             and modification time, so copy with the times (rsync -a); `fanfs verify` compares the \
             bytes."
        }
        (VolumeMode::Shared, Certainty::Unknown) => {
            "It could not be told whether the replicas are one file system or copies. \"shared\" is \
             the safe one: files are compared by inode number and change time as well, and a replica \
             that shows others is left out, so two versions are never mixed. If these are \
             independent copies, only one of them will be read: write \"copies\" then."
        }
        (_, Certainty::Given) => "As given by --mode; what was seen says otherwise, or nothing.",
        (VolumeMode::Copies, Certainty::Unknown) => "Independent trees with the same content.",
    }
}

fn render_replicas(out: &mut String, guess: &InferredVolume) {
    for replica in &guess.replicas {
        out.push('\n');
        let from = match (&replica.fs_type, &replica.source) {
            (Some(fs_type), Some(source)) => format!("{fs_type}, {source}"),
            _ => "of unknown type".to_owned(),
        };
        write_comment(out, &from);
        let _ = writeln!(out, "[[replica]]\npath = {}", toml_string(&replica.path));
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
                "{} can be asked which nodes hold a file's chunks; they are then read from the \
                 replicas on those nodes. Take the # away where its tool can be run here, and give \
                 each replica's node as the cluster calls it (`node`, `aliases`).",
                cluster.name
            ),
            cluster.provider,
        ),
        None if nodes > 1 && guess.mode == VolumeMode::Shared => (
            "Which nodes hold a file's chunks, where that is a cluster and can be asked: \"maprfs\", \
             \"hdfs\", \"cephfs\", ... (man 5 fanfs.toml). \"learned\" asks nobody, and infers it \
             from timing."
                .to_owned(),
            "learned",
        ),
        None => return,
    };
    out.push('\n');
    write_comment(out, &what);
    let _ = writeln!(out, "#[placement]\n#provider = \"{provider}\"");
}

/// A value in the file.
fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Adds `text` as comment lines. What is not to be printed does not leave its line.
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
    fn comments_stay_comments() {
        let mut out = String::new();
        write_comment(&mut out, &format!("a\nb {}", "word ".repeat(40)));
        assert!(out.lines().count() > 1);
        assert!(
            out.lines().all(|line| line.starts_with("# ") && line.chars().count() <= COMMENT_WIDTH)
        );
    }
}
