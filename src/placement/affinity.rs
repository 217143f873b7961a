//! Subtrees that are pinned to replicas, for data and for metadata.
//!
//! Rules are globs over paths in the volume; `*` does not cross a `/`, `**` does. The first
//! rule that matches counts. A rule for everything below a directory also covers the directory
//! itself, because most readers list it first.

use std::path::Path;

use globset::GlobSet;

use crate::config::AffinityConfig;
use crate::config::placement::{RuleGlobs, rule_globs};
use crate::volume::ReplicaSet;

/// All rules of a volume.
#[derive(Clone, Debug, Default)]
pub struct AffinityRules {
    rules: Vec<AffinityConfig>,
    globs: GlobSet,
    /// The rule that each glob is part of.
    rule_of: Vec<usize>,
}

/// The rule that a path falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Its index in the rules.
    pub rule: usize,
    /// The replicas that it names.
    pub replicas: ReplicaSet,
}

impl AffinityRules {
    /// The rules in the order of the configuration, which has checked them.
    pub fn new(rules: &[AffinityConfig]) -> Self {
        let paths: Vec<&str> = rules.iter().map(|rule| &*rule.path).collect();
        let RuleGlobs { globs, rule_of } = rule_globs(&paths).unwrap_or_default();
        Self { rules: rules.to_vec(), globs, rule_of }
    }

    /// The rules.
    pub fn rules(&self) -> &[AffinityConfig] {
        &self.rules
    }

    /// The rule for `path`, relative to the volume's root.
    pub fn find(&self, path: &Path) -> Option<Pin> {
        if self.rules.is_empty() {
            return None;
        }
        let matches = self.globs.matches(Path::new("/").join(path));
        let rule = matches.into_iter().map(|glob| self.rule_of[glob]).min()?;
        Some(Pin { rule, replicas: self.rules[rule].replicas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::ReplicaId;

    fn rule(path: &str, replica: usize) -> AffinityConfig {
        let replicas = ReplicaSet::EMPTY.with(ReplicaId::new(replica));
        AffinityConfig { path: path.to_owned(), replicas }
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let rules = [rule("/a/b/**", 1), rule("/a/**", 0), rule("/*.db", 2)];
        let affinities = AffinityRules::new(&rules);
        let found = |path: &str| affinities.find(Path::new(path)).map(|pin| pin.rule);
        assert_eq!(found("a/b/c/d"), Some(0));
        assert_eq!(found("a/b"), Some(0));
        assert_eq!(found("a/x"), Some(1));
        assert_eq!(found("a"), Some(1));
        assert_eq!(found("x.db"), Some(2));
        assert_eq!(found("deep/x.db"), None);
        assert_eq!(found("ab"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn the_whole_volume_can_be_pinned() {
        let affinities = AffinityRules::new(&[rule("/**", 0)]);
        assert!(affinities.find(Path::new("")).is_some());
        assert!(affinities.find(Path::new("x/y")).is_some());
    }
}
