//! The volume file's JSON schema, from the comments and attributes of [`raw`].
//!
//! Editors (taplo, and VS Code through it) complete and check a volume file with it, and
//! fanfs.toml(5) is written from it. It says what JSON schema can say: keys, types, units,
//! choices, what is required. What it cannot, keys that contradict each other and ranges of
//! quantities, is [`super::validate`]'s, and stands in it as text under names of our own:
//! `x-unit`, `x-default` (a default that is no fixed value) and `x-range`.
//!
//! *Invariant:* whatever [`super::load`] accepts, the schema accepts.

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

/// The tables and their keys, in the order of the documents; JSON has them in another.
pub fn tables() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    raw::tables().iter().map(|table| (*table, raw::keys(table)))
}

/// What a Rust type says and a TOML file cannot: that a key is null, or how wide a number is.
/// And comments come as paragraphs instead of lines.
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
        // That of an `Option`.
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
        // serde takes `2` for a float, and so does JSON; an integer's width is no news.
        schema.remove("format");
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
        }
        transform_subschemas(self, schema);
    }
}
