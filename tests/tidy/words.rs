//! Words that the project's English does without, because plainer or more exact ones exist.
//! CONTRIBUTING.md has the rules of style.

use std::fs;
use std::path::Path;

/// Each with what to write in its place.
const WORDS: [(&str, &str); 13] = [
    ("anew", "again"),
    ("anybody", "the reader, the caller, any process"),
    ("everybody", "all readers, all users"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mending", "fixing"),
    ("mends", "fixes"),
    ("nobody", "no reader, no process"),
    ("somebody", "a reader, a caller, a process"),
    ("someone", "a reader, a caller, a process"),
    ("told", "notified, reported, sent"),
    ("whoever", "the process that"),
    ("whom", "the process that"),
];

/// The text without spans in backticks and without one-word string literals: these
/// are names, for example of the user `nobody`.
fn without_names(line: &str) -> String {
    let mut kept = String::new();
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 0 {
            kept.push_str(part);
        }
    }
    let is_word = |part: &&str| part.chars().all(|c| c.is_alphanumeric());
    kept.split('"').filter(|part| !is_word(part)).collect::<Vec<_>>().join(" ")
}

/// The places of [`WORDS`] in a text, words within identifiers among them.
fn found(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code && path.ends_with(".md") {
            continue;
        }
        let line = without_names(line).to_lowercase();
        for word in line.split(|c: char| !c.is_alphanumeric()) {
            if let Some((word, better)) = WORDS.iter().find(|(listed, _)| *listed == word) {
                found.push(format!("{path}:{}: {word}; write: {better}", index + 1));
            }
        }
    }
    found
}

/// The places in all sources, documents and settings of the repository.
pub(super) fn violations(root: &Path) -> Vec<String> {
    fn walk(root: &Path, dir: &Path, all: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let skipped = ["target", ".git", "tests/tidy/words.rs"];
            let is_data = ["corpus", "artifacts", "fixtures", "recorded", "book", "target"]
                .iter()
                .any(|data| path.ends_with(data));
            if skipped.contains(&&*name) || is_data {
                continue;
            }
            if path.is_dir() {
                walk(root, &path, all);
            } else if [".rs", ".md", ".toml", ".yml", ".service"].iter().any(|e| name.ends_with(e))
            {
                all.extend(found(&name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut all = Vec::new();
    walk(root, root, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_list_are_found_and_names_are_not() {
        assert_eq!(found("a.rs", "// Nobody waits.").len(), 1);
        assert_eq!(found("a.rs", "fn it_is_mended() {}").len(), 1);
        assert_eq!(found("a.rs", "panic!(\"{x} was told\")").len(), 1);
        assert_eq!(found("a.rs", "// maps root to `nobody`"), [""; 0]);
        assert_eq!(found("a.rs", "user(\"nobody\")"), [""; 0]);
        assert_eq!(found("a.md", "```\nrunuser -u nobody\n```\n"), [""; 0]);
    }
}
