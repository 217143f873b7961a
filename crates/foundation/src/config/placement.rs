//! `[placement]` and `[[affinity]]`: the placement provider, and subtrees pinned to replicas.
//!
//! A key that the chosen provider does not use is an error: a `url` beside `provider = "maprfs"`
//! would have no effect.

use std::path::PathBuf;
use std::time::Duration;

use globset::GlobSet;

use super::checks::{check_path, check_range, parse_choice};
use super::choices::{ClusterTool, PROVIDERS, ProviderKind};
use super::error::ConfigError;
use super::globs::{GlobError, glob_set, parse_glob, text_start};
use super::key_index::KeyIndex;
use super::{ReplicaConfig, defaults, raw};
use crate::volume::{ReplicaId, ReplicaSet};

/// The validated `[placement]` table.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementConfig {
    /// The provider, with its own settings.
    pub provider: ProviderConfig,
    /// The volume's root in the cluster's name space.
    pub root: String,
    /// How long the provider may take.
    pub timeout: Duration,
    /// How long an answer is valid.
    pub ttl: Duration,
    /// How long after a failure fanfs asks about the same file again.
    pub retry_after: Duration,
}

/// `placement.provider`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderConfig {
    /// No provider; all replicas are equal candidates.
    None,
    /// No provider; fanfs infers the placement from timing.
    Learned,
    /// A cluster's own tool.
    Tool {
        /// The tool.
        tool: ClusterTool,
        /// Its command line; `None`: the default one.
        command: Option<Vec<String>>,
        /// The command that prints a CephFS file's layout; `None`: the default one.
        layout_command: Option<Vec<String>>,
    },
    /// WebHDFS of the NameNodes.
    WebHdfs {
        /// One for each NameNode, without a path.
        urls: Vec<String>,
        /// `user.name`
        user: Option<String>,
        /// Certificates to trust, PEM.
        ca_file: Option<PathBuf>,
    },
    /// A file of globs, ranges and nodes.
    Table {
        /// CSV if its name ends in `.csv`, otherwise TOML.
        file: PathBuf,
    },
    /// A program that prints fanfs's own format.
    Exec {
        /// Its command line.
        command: Vec<String>,
    },
}

/// A subtree that fanfs reads through chosen replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinityConfig {
    /// A glob over paths in the volume, with a leading `/`.
    pub path: String,
    /// The replicas; at least one.
    pub replicas: ReplicaSet,
}

/// The placeholders that a command's words may contain, in braces.
pub const PLACEHOLDERS: [&str; 3] = ["path", "local", "size"];

/// An error in a command line, as text that follows the command's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its first word is missing or empty.
    #[error("names no program; write the program as the first word")]
    NoProgram,
    /// A placeholder that is not one of [`PLACEHOLDERS`].
    #[error(
        "has the unknown placeholder {{{name}}} in {word:?}; use one of {{{}}}",
        PLACEHOLDERS.join("}, {")
    )]
    UnknownPlace {
        /// The text between the braces.
        name: String,
        /// The word that contains it.
        word: String,
    },
}

/// Checks a command line.
///
/// # Errors
/// If it names no program, or has an unknown placeholder.
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

/// The texts between braces in `word`: from a `{` to the next `}`, as the command fills them in.
fn placeholders(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (name, after) = rest.split_once('{')?.1.split_once('}')?;
        rest = after;
        Some(name)
    })
}

/// The keys that this provider uses, besides the common ones.
fn keys_of(provider: ProviderKind) -> &'static [&'static str] {
    match provider {
        ProviderKind::None | ProviderKind::Learned => &[],
        ProviderKind::Tool(ClusterTool::CephFs | ClusterTool::GlusterFs) => {
            &["command", "layout_command", "root"]
        }
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
            let what = format!("has no effect with provider {name:?}; remove it");
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
            let advice = "set it to the TOML or CSV file with the table";
            let missing = || outline.missing("placement.file", advice);
            ProviderConfig::Table {
                file: file("placement.file", written.file)?.ok_or_else(missing)?,
            }
        }
        ProviderKind::Exec => {
            let advice = "name the program and its arguments, such as [\"where-is\", \"{path}\"]";
            let missing = || outline.missing("placement.command", advice);
            ProviderConfig::Exec { command: written.command.ok_or_else(missing)? }
        }
        ProviderKind::Hdfs => match (written.url, written.command) {
            (Some(_), Some(_)) => {
                let what = "excludes `placement.url`; remove one of them";
                return Err(outline.refuse("placement.command", what));
            }
            (None, command) if command.is_some() => {
                for (key, given) in
                    [("user", written.user.is_some()), ("ca_file", written.ca_file.is_some())]
                {
                    if given {
                        let what = "has no effect without `placement.url`; remove it";
                        return Err(outline.refuse(&format!("placement.{key}"), what));
                    }
                }
                ProviderConfig::Tool { tool: ClusterTool::Hdfs, command, layout_command: None }
            }
            (None, _) => {
                let advice = "list the NameNodes, such as [\"http://nn1:9870\"], \
                              or set `command` to a command that runs hdfs fsck";
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
        return Err(outline.refuse(
            "placement.url",
            "names no NameNode; add at least one, such as \"http://nn1:9870\"",
        ));
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
                "{url:?} is not a NameNode's address; use http://HOST:PORT or https://HOST:PORT"
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
        let what = format!(
            "the globs of all rules are too large together: {error}; use fewer or shorter ones"
        );
        outline.refuse("affinity[1].path", what)
    })?;
    Ok(rules)
}

/// The globs of affinity rules.
#[derive(Clone, Debug, Default)]
pub struct RuleGlobs {
    /// All globs. A rule for everything below a directory has a second one for the directory.
    pub globs: GlobSet,
    /// The index of each glob's rule.
    pub rule_of: Vec<usize>,
}

/// Compiles the globs of affinity rules.
///
/// # Errors
/// If one is not a valid glob, or they are too large to match.
pub fn rule_globs(paths: &[&str]) -> Result<RuleGlobs, GlobError> {
    let mut globs = Vec::new();
    let mut rule_of = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        for glob in [Some(*path), path.strip_suffix("/**")].into_iter().flatten() {
            let glob = if glob.is_empty() { "/" } else { glob };
            globs.push(parse_glob(glob)?);
            rule_of.push(index);
        }
    }
    Ok(RuleGlobs { globs: glob_set(globs)?, rule_of })
}

fn affinity(
    number: usize,
    written: raw::Affinity,
    replicas: &[ReplicaConfig],
    outline: &KeyIndex<'_>,
) -> Result<AffinityConfig, ConfigError> {
    let key = |name: &str| format!("affinity[{number}].{name}");
    let advice = "set it to a glob over paths in the volume, such as \"/a/**\"";
    let path = written.path.ok_or_else(|| outline.missing(&key("path"), advice))?;
    let start = text_start(&path);
    if !path.starts_with('/') {
        let what = format!(
            "{start:?} does not start with /, the volume's root; write the path from there"
        );
        return Err(outline.refuse(&key("path"), what));
    }
    rule_globs(&[&path])
        .map_err(|error| outline.refuse(&key("path"), format!("{start:?} {error}")))?;
    let (name, wanted) = match (&written.replica, &written.node) {
        (Some(replica), None) => ("replica", replica),
        (None, Some(node)) => ("node", node),
        (Some(_), Some(_)) => {
            let what = "excludes `replica`; remove one of them";
            return Err(outline.refuse(&key("node"), what));
        }
        (None, None) => {
            return Err(outline.missing(&key("replica"), "set `replica` or `node`"));
        }
    };
    let is_meant = |replica: &ReplicaConfig| match name {
        "replica" => replica.name == *wanted,
        _ => replica.node == *wanted || replica.aliases.contains(wanted),
    };
    let meant = replicas.iter().enumerate().filter(|(_, replica)| is_meant(replica));
    let set = meant.fold(ReplicaSet::EMPTY, |set, (i, _)| set.with(ReplicaId::new(i)));
    if set.is_empty() {
        let mut known: Vec<&str> = replicas
            .iter()
            .map(|replica| if name == "replica" { &*replica.name } else { &*replica.node })
            .collect();
        known.dedup();
        let what = format!(
            "no replica has the {} {wanted:?}; use {}",
            if name == "replica" { "name" } else { "node" },
            known.join(" or ")
        );
        return Err(outline.refuse(&key(name), what));
    }
    Ok(AffinityConfig { path, replicas: set })
}
