//! fanfs.toml(5), generated from the configuration's schema.

use serde_json::Value;

use super::man_page::ManPage;
use super::page_sections;
use crate::config::schema;

/// The kinds of values and their notation.
const UNITS: &[(&str, &str)] = &[
    (
        "size",
        "`\"1MiB\"`, `\"0B\"`, `\"1.5GiB\"`: B; KB, MB, GB, TB, PB (powers of 1000); KiB, MiB, GiB, \
         TiB, PiB (powers of 1024); at most 1PiB.",
    ),
    ("rate", "`\"100MiB/s\"`: a size per second."),
    ("duration", "`\"250ms\"`, `\"30s\"`, `\"1min 30s\"`: us, ms, s, min, h."),
    ("share", "`\"1%\"`, `\"0.1%\"`: 0 to 100 %."),
    ("number", "`8`, `1.0`: no unit, and no quotes."),
    ("boolean", "`true`, `false`: no quotes."),
    ("text", "`\"shared\"`: in quotes."),
];

/// The page.
pub(super) fn page() -> String {
    let schema = schema::schema();
    let mut page = ManPage::new("fanfs.toml", "5");
    page.section("NAME");
    page.prose("fanfs.toml - configuration of a fanfs volume");
    page.section("SYNOPSIS");
    page.prose("/etc/fanfs/NAME.toml");
    page.section("DESCRIPTION");
    page.prose(
        "A volume's configuration is one TOML file. It describes the volume, its replicas, and how \
         fanfs divides, schedules and limits reads. fanfs reads the file when the volume is \
         mounted, checked or reloaded. `fanfs init` writes a configuration for existing mounts; \
         `fanfs check` checks it and the replicas.",
    );
    page.prose(
        "Unknown keys and tables are errors, because a misspelled limit would have no effect. \
         fanfs reports the first problem on one line, and exits with status 2.",
    );
    page.section("UNITS");
    page.prose(
        "Sizes, rates, durations and shares need a unit, spelled exactly as below: `1048576`, \
         `\"1M\"` and `\"1mib\"` are errors.",
    );
    for (name, text) in UNITS {
        page.item(name, &[text]);
    }
    for (name, keys) in schema::tables() {
        add_table(&mut page, name, keys, &schema["properties"][name]);
    }
    page.section("FILES");
    for entry in page_sections::file_entries() {
        page.item(&entry.path, &[entry.purpose]);
    }
    page.section("EXAMPLES");
    page.prose("A minimal configuration:");
    let least = include_str!("../../../config/minimal.toml").lines();
    let least: Vec<&str> = least.filter(|line| !line.starts_with('#')).collect();
    page.lines(least.join("\n").trim().split('\n').collect::<Vec<_>>().as_slice());
    page.prose("`/usr/share/doc/fanfs/examples/example.toml` shows every key.");
    page.section("SEE ALSO");
    page.prose(&page_sections::see_also(
        "fanfs.toml",
        &["fanfs-check".into(), "fanfs-init".into()],
    ));
    page.finish()
}

fn str_field<'a>(member: &'a Value, key: &str) -> &'a str {
    member[key].as_str().unwrap_or_default()
}

fn add_table(page: &mut ManPage, name: &str, keys: &[&str], table: &Value) {
    let items = table.get("items");
    page.section(&if items.is_some() { format!("[[{name}]]") } else { format!("[{name}]") });
    page.prose(str_field(table, "description"));
    for key in keys {
        let member = &items.unwrap_or(table)["properties"][key];
        page.item(key, &[&key_facts(member), str_field(member, "description")]);
    }
}

/// Unit, default and range of a key, on one line.
fn key_facts(member: &Value) -> String {
    let mut facts = vec![value_unit(member)];
    match (member.get("default"), str_field(member, "x-default")) {
        (Some(default), _) => facts.push(format!("default `{}`", toml_literal(default))),
        (None, text) if text.starts_with("required") || text.contains("is required") => {
            facts.push(text.to_owned());
        }
        (None, text) => facts.push(format!("default: {text}")),
    }
    let choices = member["enum"].as_array().into_iter().flatten();
    let choices: Vec<String> =
        choices.map(|choice| format!("`{}`", toml_literal(choice))).collect();
    match (choices.as_slice(), str_field(member, "x-range")) {
        ([], "") => {}
        ([], range) => facts.push(range.to_owned()),
        (choices, _) => facts.push(format!("one of {}", choices.join(", "))),
    }
    format!("{}.", facts.join("; "))
}

/// The value in TOML notation.
fn toml_literal(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            format!("{:?}", number.as_f64().unwrap_or_default())
        }
        value => value.to_string(),
    }
}

fn value_unit(member: &Value) -> String {
    match (str_field(member, "x-unit"), str_field(member, "type")) {
        ("", "string") => "text".to_owned(),
        ("", "integer") => "number".to_owned(),
        ("", "array") => "list of text".to_owned(),
        ("", kind) => kind.to_owned(),
        (unit, _) => unit.to_owned(),
    }
}
