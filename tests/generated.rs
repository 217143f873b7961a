//! Generated files that are checked in match the program's output and the documents. `FANFS_BLESS=1
//! cargo test --test generated` rewrites them.

#[allow(dead_code, reason = "tests here need less than others")]
mod needs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fanfs::config;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fanfs(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fanfs")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "fanfs {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The manual's pages, by their paths below it.
fn manual() -> BTreeMap<PathBuf, String> {
    let dir = tempfile::tempdir().unwrap();
    fanfs(&["generate", "man", dir.path().to_str().unwrap()]);
    let page = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(dir.path()).unwrap().to_owned(), text)
    };
    files_below(dir.path()).into_iter().map(page).collect()
}

fn schema() -> Value {
    serde_json::from_str(&fanfs(&["generate", "schema"])).unwrap()
}

#[test]
fn checked_in_files_match_the_generated_ones() {
    let mut fresh: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (path, text) in manual() {
        fresh.insert(Path::new("packaging/man").join(path), text);
    }
    for shell in ["bash", "zsh", "fish"] {
        let path = Path::new("packaging/completions").join(format!("fanfs.{shell}"));
        fresh.insert(path, fanfs(&["generate", "completions", shell]));
    }
    fresh.insert("config/fanfs.schema.json".into(), fanfs(&["generate", "schema"]));

    let mut kept: Vec<PathBuf> = Vec::new();
    for dir in ["packaging/man", "packaging/completions"] {
        let files = files_below(&root().join(dir)).into_iter();
        kept.extend(files.map(|path| path.strip_prefix(root()).unwrap().to_owned()));
    }
    if std::env::var_os("FANFS_BLESS").is_some() {
        for path in kept.iter().filter(|path| !fresh.contains_key(*path)) {
            fs::remove_file(root().join(path)).unwrap();
        }
        for (path, text) in &fresh {
            let path = root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        return;
    }
    let stale = fresh
        .iter()
        .filter(|(path, text)| fs::read_to_string(root().join(path)).ok().as_ref() != Some(text));
    let stale: Vec<_> = stale.map(|(path, _)| path.display().to_string()).collect();
    let extra = kept.iter().filter(|path| !fresh.contains_key(*path));
    let extra: Vec<_> = extra.map(|path| path.display().to_string()).collect();
    assert!(
        stale.is_empty() && extra.is_empty(),
        "not as generated: {stale:?}, not generated: {extra:?}; \
         write them again: FANFS_BLESS=1 cargo test --test generated"
    );
}

#[test]
fn manual_pages_are_valid_troff() {
    for (path, text) in manual() {
        let name = path.display();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        if !needs::program("groff") {
            return;
        }
        let mut groff = Command::new("groff");
        let output = groff.args(["-man", "-ww", "-z"]).arg(file.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
    }
}

/// A TOML text as JSON.
fn json(text: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

#[test]
fn the_schema_accepts_valid_configurations() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for file in ["example", "minimal"] {
        let text = fs::read_to_string(root().join(format!("config/{file}.toml"))).unwrap();
        let errors: Vec<_> = validator.iter_errors(&json(&text)).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{file}: {errors:?}");
    }
    // The example with every commented-out key.
    let example = fs::read_to_string(root().join("config/example.toml")).unwrap();
    let is_key = |line: &str| {
        let name = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let excluded =
        ["node = \"storage1", "address = ", "version = ", "connections = ", "mount_port = "];
    let all = example.lines().map(|line| match line.strip_prefix('#') {
        // Some exclude each other, and some belong to another provider.
        Some(line) if line.starts_with("[[") => line,
        Some(line) if is_key(line) && !excluded.iter().any(|key| line.starts_with(key)) => line,
        _ => line,
    });
    let all: Vec<&str> = all.collect();
    let errors: Vec<_> =
        validator.iter_errors(&json(&all.join("\n"))).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

/// Changes of a volume, whether fanfs accepts them, and whether the schema can decide that.
const CHANGES: &[(&str, bool, bool)] = &[
    ("", true, true),
    ("[read]\nsegment_size = '1MiB'", true, true),
    ("[read]\nsegment_size = '2 MiB'\nreadahead_max = '64.5MiB'", true, true),
    ("[read]\nsegment_size = '1M'", false, true),
    ("[read]\nsegment_size = 1048576", false, true),
    ("[read]\nsegmnt_size = '1MiB'", false, true),
    ("[reed]\nsegment_size = '1MiB'", false, true),
    ("[read]\nsegment_size = '3MiB'", false, false),
    ("[read]\ndeadline = '1min 30s'", true, true),
    ("[read]\ndeadline = '5 seconds'", true, true),
    ("[read]\ndeadline = '30'", false, true),
    ("[read]\ndeadline = '1ms'", false, false),
    ("[read]\ncompare = '0.1%'", true, true),
    ("[read]\ncompare = '0.1'", false, true),
    ("[read]\ncache = 'direct'", true, true),
    ("[read]\ncache = 'directly'", false, true),
    ("[read]\nthreads_per_replica = 1", false, true),
    ("[read]\nthreads_per_replica = 2.5", false, true),
    ("[fuse]\nallow_other = true\nthreads = 64", true, true),
    ("[fuse]\nallow_other = 'yes'", false, true),
    ("[fuse]\nthreads = 65", false, true),
    ("[[replica]]\npath = 'b'", false, true),
    ("[[replica]]\nname = 'b'", false, true),
    ("[[replica]]\npath = '/b'\nmax_rate = '100MB/s'\nweight = 2", true, true),
    ("[[replica]]\npath = '/b'\nmax_rate = '100MB'", false, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\nconnections = 16\nmount_port = 20048", true, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\nversion = '4.1'", true, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\nversion = '4'", false, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\nversion = '4.1'\nmount_port = 1", false, false),
    ("[[replica]]\naddress = 'gw:/b'", false, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\npath = '/b'", false, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\nconnections = 17", false, true),
    ("[[replica]]\naddress = 'nfs://gw/b'\npage_cache = 'use'", false, false),
    ("[[replica]]\npath = '/b'\nweight = 1001", false, true),
    ("[[replica]]\npath = '/b'\naliases = ['osd.3', 'h:1']", true, true),
    ("[[replica]]\npath = '/b'\naliases = ['a b']", false, true),
    ("[placement]\nprovider = 'learned'", true, true),
    ("[placement]\nprovider = 'guessed'", false, true),
    ("[placement]\nprovider = 'hdfs'\nurl = ['http://nn1:9870/', 'https://[::1]:1']", true, true),
    ("[placement]\nprovider = 'hdfs'\nurl = ['nn1:9870']", false, true),
    ("[placement]\nprovider = 'maprfs'\nurl = ['http://nn1:9870']", false, false),
    ("[[affinity]]\npath = '/x'\nreplica = 'r1'", true, true),
    ("[[affinity]]\npath = '/x'", false, true),
    ("[[affinity]]\npath = '/x'\nreplica = 'r1'\nnode = 'r1'", false, true),
];

#[test]
fn fanfs_refuses_everything_the_schema_refuses() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for (change, is_fine, is_in_schema) in CHANGES {
        let text =
            format!("[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\npath = '/a'\n{change}\n");
        let taken = config::parse(&text, Path::new("v.toml"));
        assert_eq!(taken.is_ok(), *is_fine, "{change}: {taken:?}");
        // The schema accepts what fanfs accepts; where it can decide, also the other way round.
        assert_eq!(validator.is_valid(&json(&text)), *is_fine || !is_in_schema, "{change}");
    }
}

/// A row of docs/CONFIGURATION.md: table, key, and the cells.
fn documented() -> BTreeMap<(String, String), Vec<String>> {
    let text = fs::read_to_string(root().join("docs/CONFIGURATION.md")).unwrap();
    let mut table = String::new();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            table = title.trim_matches(|c| "`[]".contains(c)).to_owned();
        }
        let line = line.replace(" | | ", " |  | ");
        let cells: Vec<String> = line.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        let key = cells[0].strip_prefix("| `").and_then(|key| key.strip_suffix('`'));
        if let (Some(key), 5) = (key, cells.len()) {
            rows.insert((table.clone(), key.to_owned()), cells);
        }
    }
    rows
}

#[test]
fn docs_list_every_key_with_unit_default_and_range() {
    let (schema, mut rows) = (schema(), documented());
    let manual = manual();
    let page = manual[Path::new("man5/fanfs.toml.5")].replace("\\-", "-");
    let mut wrong = Vec::new();
    for (table, content) in schema["properties"].as_object().unwrap() {
        assert!(content["description"].is_string(), "[{table}] has no comment in settings.rs");
        let keys = content.get("items").unwrap_or(content)["properties"].as_object().unwrap();
        for (key, member) in keys {
            let name = format!("{table}.{key}");
            assert!(member["description"].is_string(), "{name} has no comment in settings.rs");
            assert!(page.contains(&format!("\\fB{key}\\fR\n")), "{name} is not in fanfs.toml(5)");
            let Some(cells) = rows.remove(&(table.clone(), key.clone())) else {
                wrong.push(format!("{name} is missing"));
                continue;
            };
            let unit = match (member["x-unit"].as_str(), member["type"].as_str().unwrap()) {
                (Some(unit), _) => unit,
                (None, "string") => "text",
                (None, "integer") => "number",
                (None, "array") => "list of text",
                (None, kind) => kind,
            };
            if cells[1] != unit {
                wrong.push(format!("{name}: unit {}, not {unit}", cells[1]));
            }
            let default = match (&member["default"], member["x-default"].as_str()) {
                (Value::Null, Some(text)) => text.to_owned(),
                (Value::Null, None) => panic!("{name} has no default"),
                (default, _) => format!("`{default}`"),
            };
            if cells[2] != default {
                wrong.push(format!("{name}: default {}, not {default}", cells[2]));
            }
            let choices = member["enum"].as_array().into_iter().flatten();
            let choices: Vec<_> = choices.map(|choice| format!("`{choice}`")).collect();
            let range = match (choices.as_slice(), member["x-range"].as_str()) {
                ([], range) => range.unwrap_or_default().to_owned(),
                (choices, _) => choices.join(", "),
            };
            if cells[3] != range {
                wrong.push(format!("{name}: range {}, not {range}", cells[3]));
            }
        }
    }
    let unknown: Vec<_> = rows.keys().map(|(table, key)| format!("{table}.{key}")).collect();
    assert!(unknown.is_empty(), "not in settings.rs: {unknown:?}");
    assert!(wrong.is_empty(), "docs/CONFIGURATION.md:\n{}", wrong.join("\n"));
}

/// The command lines of fanfs in a page: in its code, without comments and output.
fn command_lines(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            // A message of fanfs, not a command.
            let is_output = line.contains(" WARN ") || line.contains("warning: ");
            let parts = line.split(['|', ';', '&']).filter(|_| !is_output).map(|part| {
                let part = part.trim().trim_start_matches(['#', '$', ' ']);
                part.strip_prefix("sudo ").unwrap_or(part)
            });
            // The title line of `fanfs top` has two blanks.
            let is_command = |part: &&str| part.starts_with("fanfs ") && !part.contains("top  ");
            let commands = parts.filter(is_command).map(|part| part.split("  #").next().unwrap());
            found.extend(commands.map(str::to_owned));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.filter(|span| span.starts_with("fanfs ")).map(str::to_owned));
        }
    }
    found
}

#[test]
fn commands_in_documents_exist_with_their_options() {
    let mut pages = files_below(&root().join("docs"));
    pages.extend(["README.md", "CONTRIBUTING.md", "packaging/README.md"].map(|p| root().join(p)));
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut count = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|kind| kind == "md")) {
        for line in command_lines(&fs::read_to_string(page).unwrap()) {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let command = words.iter().find(|word| !word.starts_with('-')).copied();
            let help = helps.entry(command.unwrap_or_default().to_owned()).or_insert_with(|| {
                fanfs(&command.into_iter().chain(["--help"]).collect::<Vec<_>>())
            });
            for option in words.iter().filter(|word| word.starts_with("--")) {
                let option = option.trim_matches(['[', ']', '(', ')', '.', ',']);
                let option = option.split('=').next().unwrap();
                let is_known = help.split([' ', ',', '\n', '[']).any(|word| word == option);
                assert!(is_known, "{}: {line}: {option} is unknown", page.display());
            }
            count += 1;
        }
    }
    assert!(count > 100, "only {count} commands were found");
}
