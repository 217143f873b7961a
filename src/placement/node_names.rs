//! The replicas that a node's name refers to.
//!
//! Providers name nodes by host name, by address or by `host:port`, in upper or lower case,
//! with or without a domain. A replica's node has the names in `node` and `aliases`, and that
//! of the server that the replica is mounted from. A name without a domain matches one with a
//! domain, if it refers to only one node.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::volume::{ReplicaId, ReplicaSet};

/// The names of the replicas' nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeNames {
    by_full_name: HashMap<String, ReplicaSet>,
    /// By the part before the first dot; `None` if two nodes share it.
    by_short_name: HashMap<String, Option<(String, ReplicaSet)>>,
    display_names: Vec<String>,
}

impl NodeNames {
    /// No names yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that replica `id` is on the node `name`.
    pub fn add(&mut self, id: ReplicaId, name: &str) {
        if !self.display_names.iter().any(|known| known == name) {
            self.display_names.push(name.to_owned());
        }
        let host = host_of(name);
        for key in [name.to_lowercase(), host.clone()] {
            let set = self.by_full_name.entry(key).or_default();
            *set = set.with(id);
        }
        if let Some(label) = short_name(&host) {
            let node = (host.clone(), ReplicaSet::EMPTY);
            let known = self.by_short_name.entry(label.to_owned()).or_insert(Some(node));
            match known {
                Some((node, set)) if *node == host => *set = set.with(id),
                _ => *known = None,
            }
        }
    }

    /// The replicas on the node that a provider calls `name`.
    pub fn find(&self, name: &str) -> ReplicaSet {
        let host = host_of(name);
        let full =
            self.by_full_name.get(&name.to_lowercase()).or_else(|| self.by_full_name.get(&host));
        if let Some(set) = full {
            return *set;
        }
        let Some(label) = short_name(&host) else { return ReplicaSet::EMPTY };
        match self.by_short_name.get(label) {
            // One of the two names must be without a domain.
            Some(Some((node, set))) if node == label || host == label => *set,
            _ => ReplicaSet::EMPTY,
        }
    }

    /// All names as they were added, for display.
    pub fn display_names(&self) -> &[String] {
        &self.display_names
    }
}

/// `name` in lower case without its port.
fn host_of(name: &str) -> String {
    let name = name.to_lowercase();
    if let Some((address, _)) = name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address.to_owned();
    }
    match name.split_once(':') {
        // More than one colon is an IPv6 address.
        Some((host, port)) if !port.contains(':') => host.to_owned(),
        _ => name,
    }
}

/// The part of a host name before its domain; an address has none.
fn short_name(host: &str) -> Option<&str> {
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    host.split('.').next().filter(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(nodes: &[&str]) -> NodeNames {
        let mut names = NodeNames::new();
        for (i, node) in nodes.iter().enumerate() {
            names.add(ReplicaId::new(i), node);
        }
        names
    }

    fn found(names: &NodeNames, name: &str) -> Vec<usize> {
        names.find(name).iter().map(ReplicaId::index).collect()
    }

    #[test]
    fn names_match_by_host_address_and_host_with_port() {
        let names = names(&["storage1.example.com", "10.0.0.2", "fe80::1"]);
        for name in ["storage1.example.com", "Storage1.Example.COM:5660", "storage1", "storage1:1"]
        {
            assert_eq!(found(&names, name), [0], "{name}");
        }
        assert_eq!(found(&names, "10.0.0.2:9866"), [1]);
        assert_eq!(found(&names, "[fe80::1]:2049"), [2]);
        for name in ["storage1.other.com", "storage11", "10.0.0.22", "10", "", ":", "[", "fe80"] {
            assert_eq!(found(&names, name), [0; 0], "{name}");
        }
    }

    #[test]
    fn an_ambiguous_short_name_matches_no_node() {
        let names = names(&["a.x", "a.y", "b"]);
        assert_eq!(found(&names, "a"), [0; 0]);
        assert_eq!(found(&names, "a.y"), [1]);
        assert_eq!(found(&names, "b.anything"), [2]);
    }

    #[test]
    fn a_node_name_matches_all_its_replicas() {
        let names = names(&["n1", "n1", "n2"]);
        assert_eq!(found(&names, "n1.example.com"), [0, 1]);
    }
}
