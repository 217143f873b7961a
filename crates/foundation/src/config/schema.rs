//! The volume file's JSON schema, from the comments and attributes of [`raw`].
//!
//! Editors (taplo, and VS Code through it) complete and check a volume file with it, and fanfs
//! generates fanfs.toml(5) from it. JSON schema expresses keys, types, units, choices and required
//! keys. It cannot express keys that contradict each other and ranges of quantities; those are in
//! [`super::validate`]. The schema has them as text under names of its own: `x-unit`, `x-default`
//! (a default that is not a fixed value) and `x-range`.
//!
//! *Invariant:* the schema accepts every file that [`super::load`] accepts.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::Value;

use super::raw::{self, RawConfig};

/// The schema, in the dialect that taplo reads (draft 7).
pub fn schema() -> Value {
    let generator = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = generator.into_generator().into_root_schema_for::<RawConfig>();
    TomlTransform.transform(&mut schema);
    schema.insert("title".to_owned(), "fanfs volume".into());
    schema.to_value()
}

/// The tables and their keys in the order of the documents, which JSON does not keep.
pub fn tables() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    raw::tables().iter().map(|table| (*table, raw::keys(table)))
}

/// Removes what a Rust type has and a TOML file has not: nulls and the width of a number. It also
/// joins the lines of a comment.
struct TomlTransform;

impl Transform for TomlTransform {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|kind| kind != "null");
            if let [kind] = types.as_slice() {
                let kind = kind.clone();
                schema.insert("type".to_owned(), kind);
            }
        }
        // The default of an `Option`.
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
        // serde and JSON both accept `2` for a float, and an integer's width is of no use here.
        schema.remove("format");
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
        }
        transform_subschemas(self, schema);
    }
}
