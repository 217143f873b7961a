//! Which keys a file has, their positions, and whether fanfs knows them.
//!
//! serde reports an unknown field without its table and a wrong value without its key. The outline
//! has the file's keys in full dotted form with their positions in the text. With it, each later
//! error can name the key and the line.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeArray, DeTable, DeValue};

use super::error::{ConfigError, Problem, line_of};
use super::raw;

/// The keys of one file. Dotted form: `read.cache`, `replica[2].path`. Replicas count from 1, as in
/// the default names `r1`, `r2`.
pub(super) struct KeyIndex<'a> {
    file: &'a Path,
    text: &'a str,
    /// In the file's order.
    keys: Vec<Key>,
}

struct Key {
    /// Full dotted form.
    path: String,
    /// The table that contains it; `None` for tables and top-level keys.
    table: Option<String>,
    name: String,
    kind: KeyKind,
    /// The position of the key; for the n-th table of an array, the whole table.
    span: Range<usize>,
    /// The position of the value.
    value_span: Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    /// `[name]`
    Table,
    /// `[[name]]`
    TableArray,
    /// One of the tables of an array; it has no name of its own to check.
    TableElement,
    Value,
}

impl KeyKind {
    fn of_value(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Table(_) => Self::Table,
            DeValue::Array(array) if array.iter().all(|e| e.get_ref().is_table()) => {
                Self::TableArray
            }
            _ => Self::Value,
        }
    }
}

impl<'a> KeyIndex<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str, root: &DeTable<'_>) -> Self {
        let mut outline = Self { file, text, keys: Vec::new() };
        outline.add_table(None, "", root);
        // TOML tables iterate in alphabetical order, but errors must come in the order of the file.
        outline.keys.sort_by_key(|key| key.span.start);
        outline
    }

    /// Adds the keys of `table` and of the tables in it.
    fn add_table(&mut self, table: Option<&str>, prefix: &str, content: &DeTable<'_>) {
        for (key, value) in content.iter() {
            let name: &str = key.get_ref();
            let path = format!("{prefix}{}", bare_or_quoted(name));
            let kind = KeyKind::of_value(value.get_ref());
            if table.is_none() {
                match value.get_ref() {
                    DeValue::Table(content) => {
                        self.add_table(Some(name), &format!("{path}."), content);
                    }
                    DeValue::Array(array) if kind == KeyKind::TableArray => {
                        self.add_tables(name, &path, array);
                    }
                    _ => {}
                }
            }
            let table = table.map(str::to_owned);
            let name = name.to_owned();
            self.keys.push(Key {
                path,
                table,
                name,
                kind,
                span: key.span(),
                value_span: value.span(),
            });
        }
    }

    fn add_tables(&mut self, name: &str, path: &str, array: &DeArray<'_>) {
        for (index, element) in array.iter().enumerate() {
            let DeValue::Table(content) = element.get_ref() else { continue };
            let path = format!("{path}[{}]", index + 1);
            self.add_table(Some(name), &format!("{path}."), content);
            let span = element.span();
            self.keys.push(Key {
                path,
                table: None,
                name: name.to_owned(),
                kind: KeyKind::TableElement,
                span: span.clone(),
                value_span: span,
            });
        }
    }

    /// Refuses the first key or table that fanfs does not know.
    pub(super) fn check_known(&self) -> Result<(), ConfigError> {
        self.keys.iter().try_for_each(|key| match &key.table {
            None => self.check_table(key),
            Some(table) => self.check_key(key, table),
        })
    }

    fn check_table(&self, key: &Key) -> Result<(), ConfigError> {
        let wanted = if raw::is_list(&key.name) { KeyKind::TableArray } else { KeyKind::Table };
        if key.kind == KeyKind::TableElement {
            return Ok(());
        }
        if raw::tables().contains(&key.name.as_str()) {
            return match wanted {
                _ if key.kind == wanted => Ok(()),
                KeyKind::TableArray => {
                    let what =
                        format!("must be a list of tables; begin each one with [[{0}]]", key.name);
                    Err(self.refuse(&key.path, what))
                }
                _ => {
                    let what = format!("must be one table; begin it once, with [{}]", key.name);
                    Err(self.refuse(&key.path, what))
                }
            };
        }
        let known = || format!("the tables are {}", join(raw::tables().iter().map(table_header)));
        let near = || nearest(&key.name, raw::tables()).map(|near| table_header(&near));
        let path = &key.path;
        let problem = match key.kind {
            KeyKind::Value => Problem::UnknownKey {
                key: path.clone(),
                hint: other_table_hint(&key.name, None).unwrap_or_else(known),
            },
            _ => Problem::UnknownTable {
                table: match key.kind {
                    KeyKind::TableArray => format!("[[{path}]]"),
                    _ => format!("[{path}]"),
                },
                hint: near().map_or_else(known, |near| format!("did you mean {near}?")),
            },
        };
        Err(ConfigError::new(self.file, Some(self.line(key)), problem))
    }

    fn check_key(&self, key: &Key, table: &str) -> Result<(), ConfigError> {
        let known = raw::keys(table);
        // An unknown table has its own error, so its keys cause none. The table comes before its
        // keys, except for dotted and out-of-order ones.
        if known.contains(&key.name.as_str()) || known.is_empty() {
            return Ok(());
        }
        let hint = other_table_hint(&key.name, Some(table))
            .or_else(|| nearest(&key.name, known).map(|near| format!("did you mean `{near}`?")))
            .unwrap_or_else(|| {
                let keys = join(known.iter().map(|key| format!("`{key}`")));
                format!("{} has the keys {keys}", table_header(&table))
            });
        let problem = Problem::UnknownKey { key: key.path.clone(), hint };
        Err(ConfigError::new(self.file, Some(self.line(key)), problem))
    }

    /// The error for a value that serde refused, with its key.
    pub(super) fn type_error(&self, error: &toml::de::Error) -> ConfigError {
        // serde names Rust's types, which an operator does not know.
        let what = error
            .message()
            .replace(" as i128,", ",")
            .replace("expected i64", "expected a whole number")
            .replace("expected f64", "expected a number")
            .replace("expected a boolean", "expected true or false, without quotes")
            .replace("invalid type: map,", "invalid type: table,");
        let holds = |key: &&Key, at: usize| key.value_span.start <= at && at < key.value_span.end;
        let key = error.span().and_then(|span| {
            let holding = self.keys.iter().filter(|key| holds(key, span.start));
            holding.min_by_key(|key| key.value_span.len())
        });
        match key {
            Some(key) => self.refuse(&key.path, what),
            None => {
                ConfigError::new(self.file, None, Problem::Syntax { found: String::new(), what })
            }
        }
    }

    /// The error for the value of `key`, a dotted form.
    pub(super) fn refuse(&self, key: &str, what: impl Into<String>) -> ConfigError {
        let problem = Problem::Refused { key: key.to_owned(), what: what.into() };
        ConfigError::new(self.file, self.nearest_line(key), problem)
    }

    /// The error for `value` of `key`, which contradicts `other`. It has the line of `key`, or of
    /// `other` if `key` has its default.
    pub(super) fn conflict(
        &self,
        key: &str,
        value: impl Display,
        other: &str,
        what: &str,
    ) -> ConfigError {
        let written = self.find(key);
        let origin = if written.is_none() { ", the default," } else { "" };
        let line = written.or_else(|| self.find(other)).map(|key| self.line(key));
        let what = format!("{value}{origin} {what}");
        ConfigError::new(self.file, line, Problem::Refused { key: key.to_owned(), what })
    }

    /// The error for a file without `key`, a dotted form.
    pub(super) fn missing(&self, key: &str, advice: &'static str) -> ConfigError {
        let problem = Problem::Missing { key: key.to_owned(), advice };
        ConfigError::new(self.file, self.nearest_line(key), problem)
    }

    /// The file that the outline describes.
    pub(super) fn file(&self) -> &Path {
        self.file
    }

    /// The line of a key, or of its table if the file does not have the key.
    fn nearest_line(&self, path: &str) -> Option<usize> {
        let table = path.split_once('.').map_or(path, |(table, _)| table);
        self.find(path).or_else(|| self.find(table)).map(|key| self.line(key))
    }

    fn find(&self, path: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.path == path)
    }

    fn line(&self, key: &Key) -> usize {
        line_of(self.text.as_bytes(), key.span.start)
    }
}

/// A key in TOML syntax; a quoted key has its line breaks escaped.
fn bare_or_quoted(name: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    match name.is_empty() || !name.bytes().all(bare) {
        true => format!("{name:?}"),
        false => name.to_owned(),
    }
}

fn table_header(table: &&str) -> String {
    if raw::is_list(table) { format!("[[{table}]]") } else { format!("[{table}]") }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Suggests a table other than `here` that has a key with exactly this name.
fn other_table_hint(name: &str, here: Option<&str>) -> Option<String> {
    if raw::tables().contains(&name) {
        return None;
    }
    let mut others = raw::tables().iter().filter(|table| Some(**table) != here);
    let table = others.find(|table| raw::keys(table).contains(&name))?;
    Some(format!("did you mean `{name}` in {}?", table_header(table)))
}

/// The known word that `word` probably means: one that begins with it and is at most two letters
/// longer, or the one with the fewest typing errors, at most one per three letters.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = word.to_lowercase();
    let distance = |known: &&str| strsim::damerau_levenshtein(&lower, known);
    let is_begun = |known: &&&str| known.starts_with(&*lower) && known.len() <= lower.len() + 2;
    if let Some(begun) = known.iter().find(is_begun).filter(|_| !lower.is_empty()) {
        return Some(begun);
    }
    let near = known.iter().min_by_key(|known| distance(known))?;
    let errors = distance(near);
    (errors <= (near.len() / 3).max(1)).then_some(*near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_keys_are_suggested() {
        let known = ["segment_size", "cache", "deadline"];
        assert_eq!(nearest("segmnt_size", &known), Some("segment_size"));
        assert_eq!(nearest("CACHE", &known), Some("cache"));
        assert_eq!(nearest("dealdine", &known), Some("deadline"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("4", &["3", "4.1"]), Some("4.1"), "its beginning");
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn the_key_index_finds_the_line_of_each_key() {
        let text =
            "[volume]\nname = 'a'\n\n[[replica]]\npath = 'b'\n[[replica]]\n\"pa\\nth\" = 1\n";
        let root = DeTable::parse(text).unwrap();
        let outline = KeyIndex::new(Path::new("f"), text, root.get_ref());
        let line = |key: &str| outline.nearest_line(key);
        assert_eq!(line("volume.name"), Some(2));
        assert_eq!(line("volume.mode"), Some(1));
        assert_eq!(line("replica[1].path"), Some(5));
        assert_eq!(line("replica[2].path"), Some(6));
        assert_eq!(line(r#"replica[2]."pa\nth""#), Some(7));
        assert_eq!(line("read.cache"), None);
    }
}
