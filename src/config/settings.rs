//! The file as it is written: what serde sees, before anything is checked.
//!
//! Every key is optional here, the required ones too: their absence is reported
//! by [`super::validate`], which knows what to advise. Numbers are signed and
//! wide for the same reason: "-1 is out of range; use 2 to 256" says more than
//! "expected usize".
//!
//! *Invariant:* the fields of these structs are the only list of known keys;
//! [`keys_of`] reads it from serde, so suggestions cannot lag behind.

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor, value::Error as ValueError};

use super::units::{Rate, Share, Size, Time};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    pub(super) volume: Volume,
    pub(super) replica: Vec<Replica>,
    pub(super) read: Read,
    pub(super) write: Write,
    pub(super) memory: Memory,
    pub(super) fuse: Fuse,
    pub(super) metrics: Metrics,
    pub(super) log: Log,
    pub(super) placement: Placement,
    pub(super) affinity: Vec<Affinity>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Volume {
    pub(super) name: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) chunk_size: Option<Size>,
    pub(super) access: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Replica {
    pub(super) path: Option<String>,
    pub(super) name: Option<String>,
    pub(super) node: Option<String>,
    pub(super) aliases: Option<Vec<String>>,
    pub(super) weight: Option<f64>,
    pub(super) max_in_flight: Option<Size>,
    pub(super) max_rate: Option<Rate>,
    pub(super) page_cache: Option<String>,
    pub(super) require_mount: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Read {
    pub(super) segment_size: Option<Size>,
    pub(super) readahead_max: Option<Size>,
    pub(super) threads_per_replica: Option<i64>,
    pub(super) max_in_flight: Option<Size>,
    pub(super) deadline: Option<Time>,
    pub(super) attempt_deadline: Option<Time>,
    pub(super) compare: Option<Share>,
    pub(super) cache: Option<String>,
    pub(super) passthrough: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Write {
    pub(super) replica: Option<String>,
    pub(super) deadline: Option<Time>,
    pub(super) lag: Option<Time>,
    pub(super) locks: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Memory {
    pub(super) budget: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fuse {
    pub(super) threads: Option<i64>,
    pub(super) allow_other: Option<bool>,
    pub(super) kernel_tuning: Option<bool>,
    pub(super) splice: Option<bool>,
    pub(super) kernel_readahead: Option<Size>,
    pub(super) max_background: Option<i64>,
    pub(super) attribute_ttl: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) listen: Option<String>,
    pub(super) textfile: Option<String>,
    pub(super) interval: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) level: Option<String>,
    pub(super) format: Option<String>,
    pub(super) rate: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Placement {
    pub(super) provider: Option<String>,
    pub(super) root: Option<String>,
    pub(super) command: Option<Vec<String>>,
    pub(super) layout_command: Option<Vec<String>>,
    pub(super) url: Option<Vec<String>>,
    pub(super) user: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) file: Option<String>,
    pub(super) timeout: Option<Time>,
    pub(super) ttl: Option<Time>,
    pub(super) retry_after: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Affinity {
    pub(super) path: Option<String>,
    pub(super) replica: Option<String>,
    pub(super) node: Option<String>,
}

/// The tables a file may have, in the order the documentation has them.
pub(super) fn tables() -> &'static [&'static str] {
    keys_of::<Settings>()
}

/// The keys that `table` may have; none where there is no such table.
pub(super) fn keys(table: &str) -> &'static [&'static str] {
    match table {
        "volume" => keys_of::<Volume>(),
        "replica" => keys_of::<Replica>(),
        "read" => keys_of::<Read>(),
        "write" => keys_of::<Write>(),
        "memory" => keys_of::<Memory>(),
        "fuse" => keys_of::<Fuse>(),
        "metrics" => keys_of::<Metrics>(),
        "log" => keys_of::<Log>(),
        "placement" => keys_of::<Placement>(),
        "affinity" => keys_of::<Affinity>(),
        _ => &[],
    }
}

/// Whether there may be several tables of this name.
pub(super) fn is_list(table: &str) -> bool {
    matches!(table, "replica" | "affinity")
}

/// The field names that `T`'s derived `Deserialize` asks for.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Ends in an error by design: the fields are known before any value is.
    let _ = T::deserialize(FieldNames(&mut fields));
    fields
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = fields;
        Err(de::Error::custom("only the names were wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ValueError> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_keys() {
        assert_eq!(
            tables(),
            [
                "volume",
                "replica",
                "read",
                "write",
                "memory",
                "fuse",
                "metrics",
                "log",
                "placement",
                "affinity"
            ]
        );
        for table in tables() {
            assert!(!keys(table).is_empty(), "{table} is missing in `keys`");
        }
        assert_eq!(keys("memory"), ["budget"]);
        assert_eq!(keys("volume")[1], "mode");
    }

    #[test]
    fn the_example_shows_every_key_in_its_table() {
        let example = include_str!("../../config/example.toml");
        for table in tables() {
            let (single, double) = (format!("\n[{table}]\n"), format!("\n[[{table}]]\n"));
            let optional = format!("\n#[[{table}]]\n");
            let starts = [&single, &double, &optional];
            let start = starts.iter().find_map(|start| example.find(&***start)).expect(table);
            let section = &example[start + 3..];
            let ends = ["\n[", "\n#[["].iter().filter_map(|end| section.find(end));
            let section = &section[..ends.min().unwrap_or(section.len())];
            for key in keys(table) {
                let shown =
                    |line: &str| line.trim_start_matches('#').starts_with(&format!("{key} = "));
                assert!(section.lines().any(shown), "{table}.{key} is not in config/example.toml");
            }
        }
    }
}
