//! `[placement]` and `[[affinity]]`: who is asked where chunks are, and what is
//! pinned where.
//!
//! A key that the chosen provider does not use is refused: whoever writes `url`
//! beside `provider = "maprfs"` believes that it does something.

use std::path::PathBuf;
use std::time::Duration;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::checks::{check_path, check_range, parse_choice};
use super::choices::{ClusterTool, PROVIDERS, ProviderKind};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::{ReplicaConfig, defaults, raw};
use crate::volume::{ReplicaId, ReplicaSet};

/// Who is asked where chunks are.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementConfig {
    /// The provider, with what it alone needs.
    pub provider: ProviderConfig,
    /// The volume's root in the cluster's own name space.
    pub root: String,
    /// How long the provider may take.
    pub timeout: Duration,
    /// How long an answer counts.
    pub ttl: Duration,
    /// How long after a failure it is asked about the same file again.
    pub retry_after: Duration,
}

/// `placement.provider`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderConfig {
    /// No provider is asked; every replica is a candidate like any other.
    None,
    /// No provider is asked; the placement is inferred from timing.
    Learned,
    /// A cluster's own tool.
    Tool {
        /// Which.
        tool: ClusterTool,
        /// Its command line, where it is not the usual one.
        command: Option<Vec<String>>,
        /// The command that prints a CephFS file's layout, where it is not the
        /// usual one.
        layout_command: Option<Vec<String>>,
    },
    /// A namenode's WebHDFS.
    WebHdfs {
        /// One for each namenode, without a path.
        urls: Vec<String>,
        /// `user.name`
        user: Option<String>,
        /// Certificates to trust, PEM.
        ca_file: Option<PathBuf>,
    },
    /// A file of globs, ranges and nodes.
    Table {
        /// TOML, or CSV where it is named so.
        file: PathBuf,
    },
    /// A program that prints fanfs's own format.
    Exec {
        /// Its command line.
        command: Vec<String>,
    },
}

/// A subtree that is read through certain replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinityConfig {
    /// A glob over paths in the volume, with a leading `/`.
    pub path: String,
    /// The replicas; at least one.
    pub replicas: ReplicaSet,
}

/// The places that a command's words may have, in braces.
pub const PLACEHOLDERS: [&str; 6] = ["path", "local", "object", "pool", "offset", "size"];

/// What is wrong with a command line: one line, to be put behind the command's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its first word is missing or empty.
    #[error("names no program")]
    NoProgram,
    /// It has a place that is not one of [`PLACEHOLDERS`].
    #[error(
        "has the unknown place {{{name}}} in {word:?}; use one of {{{}}}",
        PLACEHOLDERS.join("}, {")
    )]
    UnknownPlace {
        /// What stands between the braces.
        name: String,
        /// The word that it is in.
        word: String,
    },
}

/// Checks a command line.
///
/// # Errors
/// Where it names no program, or has an unknown place.
pub fn check_command(words: &[String]) -> Result<(), CommandError> {
    if words.first().is_none_or(String::is_empty) {
        return Err(CommandError::NoProgram);
    }
    for word in words {
        for name in placeholders(word) {
            let plain = name.strip_suffix(":sh").unwrap_or(name);
            if !PLACEHOLDERS.contains(&plain) {
                let name = name.to_owned();
                return Err(CommandError::UnknownPlace { name, word: word.clone() });
            }
        }
    }
    Ok(())
}

/// What stands between braces in `word`: from the first `{` to the next `}`,
/// as it is filled in.
fn placeholders(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (name, after) = rest.split_once('{')?.1.split_once('}')?;
        rest = after;
        Some(name)
    })
}

/// The keys that this provider uses, besides those that all do.
fn keys_of(provider: ProviderKind) -> &'static [&'static str] {
    match provider {
        ProviderKind::None | ProviderKind::Learned => &[],
        ProviderKind::Tool(ClusterTool::CephFs) => &["command", "layout_command", "root"],
        ProviderKind::Tool(_) => &["command", "root"],
        ProviderKind::Hdfs => &["url", "user", "ca_file", "command", "root"],
        ProviderKind::Table => &["file"],
        ProviderKind::Exec => &["command", "root"],
    }
}

/// Checks `[placement]`.
pub(super) fn validate(
    written: raw::Placement,
    outline: &KeyIndex<'_>,
) -> Result<PlacementConfig, ConfigError> {
    let name = written.provider.as_deref().unwrap_or("none");
    let kind = parse_choice(outline, "placement.provider", name, &PROVIDERS)?;
    let given = [
        ("command", written.command.is_some()),
        ("layout_command", written.layout_command.is_some()),
        ("root", written.root.is_some()),
        ("url", written.url.is_some()),
        ("user", written.user.is_some()),
        ("ca_file", written.ca_file.is_some()),
        ("file", written.file.is_some()),
    ];
    for (key, given) in given {
        if given && !keys_of(kind).contains(&key) {
            let what = format!("is not used by provider {name:?}; remove it");
            return Err(outline.refuse(&format!("placement.{key}"), what));
        }
    }
    for (key, command) in
        [("command", &written.command), ("layout_command", &written.layout_command)]
    {
        if let Some(command) = command {
            let key = format!("placement.{key}");
            check_command(command).map_err(|error| outline.refuse(&key, error.to_string()))?;
        }
    }
    let root = written.root.clone().unwrap_or_else(|| "/".to_owned());
    check_path(outline, "placement.root", &root)?;
    let timeout = written.timeout.unwrap_or(defaults::PLACEMENT_TIMEOUT);
    check_range(outline, "placement.timeout", timeout, defaults::PLACEMENT_TIMEOUT_RANGE)?;
    let ttl = written.ttl.unwrap_or(defaults::PLACEMENT_TTL);
    check_range(outline, "placement.ttl", ttl, defaults::PLACEMENT_TTL_RANGE)?;
    let retry_after = written.retry_after.unwrap_or(defaults::PLACEMENT_RETRY_AFTER);
    check_range(outline, "placement.retry_after", retry_after, defaults::PLACEMENT_TTL_RANGE)?;
    Ok(PlacementConfig {
        provider: provider(kind, written, outline)?,
        root,
        timeout: timeout.0,
        ttl: ttl.0,
        retry_after: retry_after.0,
    })
}

fn provider(
    kind: ProviderKind,
    written: raw::Placement,
    outline: &KeyIndex<'_>,
) -> Result<ProviderConfig, ConfigError> {
    let file = |key: &'static str, value: Option<String>| {
        value.map(|path| check_path(outline, key, &path).map(|()| PathBuf::from(path))).transpose()
    };
    Ok(match kind {
        ProviderKind::None => ProviderConfig::None,
        ProviderKind::Learned => ProviderConfig::Learned,
        ProviderKind::Tool(tool) => ProviderConfig::Tool {
            tool,
            command: written.command,
            layout_command: written.layout_command,
        },
        ProviderKind::Table => {
            let advice = "give the TOML or CSV file with the table";
            let missing = || outline.missing("placement.file", advice);
            ProviderConfig::Table {
                file: file("placement.file", written.file)?.ok_or_else(missing)?,
            }
        }
        ProviderKind::Exec => {
            let advice = "give the program and its arguments, such as [\"where-is\", \"{path}\"]";
            let missing = || outline.missing("placement.command", advice);
            ProviderConfig::Exec { command: written.command.ok_or_else(missing)? }
        }
        ProviderKind::Hdfs => match (written.url, written.command) {
            (Some(_), Some(_)) => {
                let what = "cannot stand beside `placement.url`; remove one";
                return Err(outline.refuse("placement.command", what));
            }
            (None, command) if command.is_some() => {
                for (key, given) in
                    [("user", written.user.is_some()), ("ca_file", written.ca_file.is_some())]
                {
                    if given {
                        let what = "is used with `placement.url` only; remove it";
                        return Err(outline.refuse(&format!("placement.{key}"), what));
                    }
                }
                ProviderConfig::Tool { tool: ClusterTool::Hdfs, command, layout_command: None }
            }
            (None, _) => {
                let advice = "give the namenodes, such as [\"http://nn1:9870\"], \
                              or in `command` how to run hdfs fsck";
                return Err(outline.missing("placement.url", advice));
            }
            (Some(urls), None) => {
                check_urls(&urls, outline)?;
                ProviderConfig::WebHdfs {
                    urls,
                    user: written.user,
                    ca_file: file("placement.ca_file", written.ca_file)?,
                }
            }
        },
    })
}

fn check_urls(urls: &[String], outline: &KeyIndex<'_>) -> Result<(), ConfigError> {
    if urls.is_empty() {
        return Err(outline.refuse("placement.url", "names no namenode; give at least one"));
    }
    for url in urls {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.trim_end_matches('/'));
        let fine = host.is_some_and(|host| {
            !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:[]".contains(&b))
        });
        if !fine {
            let what = format!(
                "{url:?} is not a namenode's address; write http://HOST:PORT or https://HOST:PORT"
            );
            return Err(outline.refuse("placement.url", what));
        }
    }
    Ok(())
}

pub(super) fn affinities(
    written: Vec<raw::Affinity>,
    replicas: &[ReplicaConfig],
    outline: &KeyIndex<'_>,
) -> Result<Vec<AffinityConfig>, ConfigError> {
    let rules = (1..).zip(written);
    let rules: Vec<AffinityConfig> = rules
        .map(|(number, rule)| affinity(number, rule, replicas, outline))
        .collect::<Result<_, _>>()?;
    let paths: Vec<&str> = rules.iter().map(|rule| &*rule.path).collect();
    rule_globs(&paths).map_err(|error| {
        let what = format!("the globs of all rules together are too much: {}", error.kind());
        outline.refuse("affinity[1].path", what)
    })?;
    Ok(rules)
}

/// The globs of affinity rules.
#[derive(Clone, Debug, Default)]
pub struct RuleGlobs {
    /// All globs: a rule for everything below a directory has one for the directory itself
    /// as well.
    pub globs: GlobSet,
    /// The rule that each glob is part of, an index.
    pub rule_of: Vec<usize>,
}

/// The globs of affinity rules.
///
/// # Errors
/// Where one of them is no glob, or they are too large to be matched.
pub fn rule_globs(paths: &[&str]) -> Result<RuleGlobs, globset::Error> {
    let mut globs = GlobSetBuilder::new();
    let mut rule_of = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        for glob in [Some(*path), path.strip_suffix("/**")].into_iter().flatten() {
            let glob = if glob.is_empty() { "/" } else { glob };
            globs.add(GlobBuilder::new(glob).literal_separator(true).build()?);
            rule_of.push(index);
        }
    }
    Ok(RuleGlobs { globs: globs.build()?, rule_of })
}

fn affinity(
    number: usize,
    written: raw::Affinity,
    replicas: &[ReplicaConfig],
    outline: &KeyIndex<'_>,
) -> Result<AffinityConfig, ConfigError> {
    let key = |name: &str| format!("affinity[{number}].{name}");
    let advice = "give a glob over paths in the volume, such as \"/a/**\"";
    let path = written.path.ok_or_else(|| outline.missing(&key("path"), advice))?;
    if !path.starts_with('/') {
        let what = format!("{path:?} does not start with /, the volume's root");
        return Err(outline.refuse(&key("path"), what));
    }
    rule_globs(&[&path]).map_err(|error| {
        let start: String = path.chars().take(80).collect();
        outline.refuse(&key("path"), format!("{start:?} is not a glob: {}", error.kind()))
    })?;
    let (name, wanted) = match (&written.replica, &written.node) {
        (Some(replica), None) => ("replica", replica),
        (None, Some(node)) => ("node", node),
        (Some(_), Some(_)) => {
            let what = "cannot stand beside `replica`; remove one";
            return Err(outline.refuse(&key("node"), what));
        }
        (None, None) => {
            return Err(outline.missing(&key("replica"), "say which replica or which node"));
        }
    };
    let is_meant = |replica: &ReplicaConfig| match name {
        "replica" => replica.name == *wanted,
        _ => replica.node == *wanted || replica.aliases.contains(wanted),
    };
    let meant = replicas.iter().enumerate().filter(|(_, replica)| is_meant(replica));
    let set = meant.fold(ReplicaSet::EMPTY, |set, (i, _)| set.with(ReplicaId::new(i)));
    if set.is_empty() {
        let known: Vec<&str> = replicas
            .iter()
            .map(|replica| if name == "replica" { &*replica.name } else { &*replica.node })
            .collect();
        let what = format!(
            "no replica has the {} {wanted:?}; there is {}",
            if name == "replica" { "name" } else { "node" },
            known.join(", ")
        );
        return Err(outline.refuse(&key(name), what));
    }
    Ok(AffinityConfig { path, replicas: set })
}
