//! Where a Ceph cluster keeps the objects of each pool.
//!
//! One run of `ceph --format=json` answers [`COMMANDS`], whatever the number of files and objects,
//! as one JSON value for each:
//!
//! ```text
//! [{"pool_id":3,"pool_name":"cephfs_data","pg_num":32,"object_hash":2, ...}, ...]
//! {"nodes":[{"id":-3,"name":"n1","type":"host","children":[0]},{"id":0,"name":"osd.0", ...}]}
//! {"pg_stats":[{"pgid":"3.10","acting":[1,2],"acting_primary":1, ...}, ...]}
//! ```
//!
//! The primary OSD of an object's placement group serves all reads of it. (In an erasure coded pool
//! it gathers the other parts.) The other copies are spare. Nodes are the hosts in the CRUSH map;
//! an OSD below no host is a node by its own name, `osd.2`.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::object_hash::{RJENKINS, placement_group};
use crate::placement::chunks::{Copies, MAX_COPIES};
use crate::placement::tool::expected_error;
use crate::placement::{PlacementError, Result};

/// The commands that `ceph` reads from its standard input.
pub const COMMANDS: &str = "osd pool ls detail\nosd tree\npg dump pgs_brief\n";

/// The most placement groups of a pool; Ceph's own limit is 65536 unless it is raised.
const MAX_GROUPS: u32 = 1 << 24;

/// The most OSDs with a low primary affinity that are listed.
const MAX_LOW_AFFINITIES: usize = 8;

/// The state of a cluster, as far as placement depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMap {
    pools: Vec<Pool>,
    /// The OSDs of each placement group, by the pool's number and the group's.
    groups: HashMap<(u64, u32), Group>,
    /// The host of each OSD, or its own name if it is below none.
    hosts: HashMap<i64, String>,
    /// OSDs that serve fewer reads than they could, one line each.
    low_affinities: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Pool {
    pool_id: u64,
    pool_name: String,
    pg_num: u32,
    object_hash: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The OSD that serves reads.
    primary: i64,
    /// All that have a copy or a part.
    acting: Vec<i64>,
}

#[derive(Deserialize)]
struct Tree {
    nodes: Vec<TreeNode>,
}

#[derive(Deserialize)]
struct TreeNode {
    id: i64,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    children: Vec<i64>,
    /// The chance, 0 to 1, that an OSD is the primary of a group that it could be the primary of.
    primary_affinity: Option<f64>,
}

/// The states of all groups: in an object, or a list before Ceph 14.
struct Groups(Vec<GroupState>);

impl<'de> Deserialize<'de> for Groups {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct GroupsVisitor;
        impl<'de> Visitor<'de> for GroupsVisitor {
            type Value = Vec<GroupState>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `pg_stats`, or a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                list: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list))
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut states = None;
                while let Some(key) = map.next_key::<String>()? {
                    match &*key {
                        "pg_stats" => states = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                states.ok_or_else(|| serde::de::Error::missing_field("pg_stats"))
            }
        }
        from.deserialize_any(GroupsVisitor).map(Self)
    }
}

#[derive(Deserialize)]
struct GroupState {
    pgid: String,
    acting: Vec<i64>,
    acting_primary: i64,
}

impl ClusterMap {
    /// Reads the answers to [`COMMANDS`].
    ///
    /// # Errors
    /// If `output` has another form; the first command that failed has no answer.
    pub fn parse(output: &[u8]) -> Result<Self> {
        let mut answers = serde_json::Deserializer::from_slice(output);
        let pools: Vec<Pool> = next_answer(&mut answers, "`osd pool ls detail`")?;
        let tree: Tree = next_answer(&mut answers, "`osd tree`")?;
        let groups: Groups = next_answer(&mut answers, "`pg dump pgs_brief`")?;
        if let Some(pool) = pools.iter().find(|pool| !(1..=MAX_GROUPS).contains(&pool.pg_num)) {
            let what = format!("pool {} has {} placement groups", pool.pool_id, pool.pg_num);
            return Err(PlacementError::InvalidAnswer(what));
        }
        let osds = tree.nodes.iter().filter(|node| node.kind == "osd");
        let mut hosts: HashMap<i64, String> = osds.map(|osd| (osd.id, osd.name.clone())).collect();
        for host in tree.nodes.iter().filter(|node| node.kind == "host") {
            hosts.extend(host.children.iter().map(|osd| (*osd, host.name.clone())));
        }
        let Groups(states) = groups;
        if let Some(state) = states.iter().find(|state| state.acting.len() > MAX_COPIES) {
            let what = format!("a placement group has {} OSDs", state.acting.len());
            return Err(PlacementError::InvalidAnswer(what));
        }
        let groups = states.into_iter().filter_map(|state| {
            let group = Group { primary: state.acting_primary, acting: state.acting };
            Some((parse_group_id(&state.pgid)?, group))
        });
        let groups = groups.collect();
        let low_affinities = low_affinities(&tree.nodes, &hosts);
        Ok(Self { pools, groups, hosts, low_affinities })
    }

    /// OSDs with a primary affinity below 1, one line each, and the number of further ones.
    pub fn low_affinities(&self) -> &[String] {
        &self.low_affinities
    }

    /// The pool of this name, or number where a client does not know the name.
    ///
    /// # Errors
    /// If there is none, or if it places objects by an unknown hash.
    pub fn pool(&self, name: &str) -> Result<PoolMap<'_>> {
        let by_name = self.pools.iter().find(|pool| pool.pool_name == name);
        let by_number = || self.pools.iter().find(|pool| pool.pool_id.to_string() == name);
        let Some(pool) = by_name.or_else(by_number) else {
            return Err(PlacementError::InvalidAnswer("it has no pool of that name".to_owned()));
        };
        if pool.object_hash != RJENKINS {
            let what = format!("pool {} has the object hash {}", pool.pool_id, pool.object_hash);
            return Err(PlacementError::InvalidAnswer(what));
        }
        Ok(PoolMap { cluster: self, pool })
    }

    /// The node of an OSD; `None` for the mark of a missing one.
    fn node(&self, osd: i64) -> Option<&str> {
        // A missing OSD is -1, or 2147483647 in a list.
        (0..i64::from(i32::MAX)).contains(&osd).then_some(())?;
        self.hosts.get(&osd).map(String::as_str)
    }
}

/// Where one pool's objects are.
#[derive(Clone, Copy)]
pub struct PoolMap<'m> {
    cluster: &'m ClusterMap,
    pool: &'m Pool,
}

impl<'m> PoolMap<'m> {
    /// The nodes of an object; `None` if they are unknown, as while its group has no primary.
    pub fn locate(&self, namespace: &str, object: &str) -> Option<Copies<'m>> {
        let group = placement_group(namespace, object, self.pool.pg_num);
        let group = self.cluster.groups.get(&(self.pool.pool_id, group))?;
        let others = group.acting.iter().filter(|osd| **osd != group.primary);
        Some(Copies {
            read: vec![self.cluster.node(group.primary)?],
            spare: others.filter_map(|osd| self.cluster.node(*osd)).collect(),
        })
    }
}

fn low_affinities(nodes: &[TreeNode], hosts: &HashMap<i64, String>) -> Vec<String> {
    let affinity = |node: &TreeNode| node.primary_affinity.filter(|affinity| *affinity < 0.999);
    let low = nodes.iter().filter_map(|node| Some((node, affinity(node)?)));
    let mut lines: Vec<String> = low
        .map(|(node, affinity)| {
            let host = hosts.get(&node.id).map_or("no host", |host| host);
            format!("{} on {host} has the primary affinity {affinity}", node.name)
        })
        .collect();
    if lines.len() > MAX_LOW_AFFINITIES {
        let further = lines.len() - MAX_LOW_AFFINITIES;
        lines.truncate(MAX_LOW_AFFINITIES);
        lines.push(format!("{further} further OSDs have one below 1"));
    }
    lines
}

fn next_answer<'de, T: Deserialize<'de>>(
    answers: &mut serde_json::Deserializer<serde_json::de::SliceRead<'de>>,
    command: &str,
) -> Result<T> {
    T::deserialize(answers).or_else(|error| {
        expected_error(error.line().max(1), &format!("the JSON that {command} prints"))
    })
}

/// The pool and the group in `3.1f`.
fn parse_group_id(text: &str) -> Option<(u64, u32)> {
    let (pool, group) = text.split_once('.')?;
    Some((pool.parse().ok()?, u32::from_str_radix(group, 16).ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const CLUSTER: &str =
        include_str!("../../../tests/fixtures/placement/cephfs-cluster.json");
    /// With a further pool, erasure coded, and without osd.1.
    pub(in super::super) const DEGRADED: &str =
        include_str!("../../../tests/fixtures/placement/cephfs-cluster-degraded.json");

    fn parse(text: &str) -> ClusterMap {
        ClusterMap::parse(text.as_bytes()).unwrap()
    }

    /// The answers of `ceph osd map` on that cluster: of `["cephfs_data", "10000000000.00000000"]`
    /// with acting [1, 2], and so on.
    #[test]
    fn objects_are_where_the_cluster_says() {
        let map = parse(CLUSTER);
        let pool = map.pool("cephfs_data").unwrap();
        for (namespace, object, read, spare) in [
            ("", "10000000000.00000000", "n2", "n3"),
            ("", "10000000000.00000001", "n2", "n1"),
            ("", "10000000000.00000003", "n2", "n3"),
            ("team-a", "100000001f8.00000000", "n1", "n2"),
        ] {
            let copies = Copies { read: vec![read], spare: vec![spare] };
            assert_eq!(pool.locate(namespace, object), Some(copies), "{object}");
        }
        assert!(map.pool("3").is_ok(), "by its number");
        let error = map.pool("none").err().unwrap().to_string();
        assert_eq!(error, "the answer is invalid: it has no pool of that name");
    }

    #[test]
    fn a_missing_osd_has_no_copy_and_parts_of_a_code_are_spare() {
        let map = parse(DEGRADED);
        let replicated = map.pool("cephfs_data").unwrap().locate("", "10000000000.00000000");
        assert_eq!(replicated, Some(Copies { read: vec!["n3"], spare: vec![] }));
        let coded = map.pool("ecdata").unwrap().locate("", "100000001fa.00000001");
        assert_eq!(coded, Some(Copies { read: vec!["n3"], spare: vec!["n1"] }));
    }

    #[test]
    fn an_object_without_primary_or_group_is_unknown() {
        let primary = |text: &str| text.replace("\"acting_primary\":1", "\"acting_primary\":-1");
        let located = |text: &str| {
            parse(text).pool("cephfs_data").unwrap().locate("", "10000000000.00000000").is_some()
        };
        assert!(located(CLUSTER));
        assert!(!located(&primary(CLUSTER)));
        assert!(!located(&CLUSTER.replace("\"3.10\"", "\"3.11\"")));
        assert!(!located(&CLUSTER.replace("\"3.10\"", "\"x\"")));
        let no_host = parse(&CLUSTER.replace("\"children\":[1]", "\"children\":[]"));
        let copies = no_host.pool("cephfs_data").unwrap().locate("", "10000000000.00000000");
        assert_eq!(copies.unwrap().read, ["osd.1"]);
        assert!(!located(
            &CLUSTER.replace("\"type\":\"osd\"", "\"type\":\"x\"").replace("[1]", "[]")
        ));
    }

    #[test]
    fn low_primary_affinities_are_listed() {
        assert_eq!(parse(CLUSTER).low_affinities(), [""; 0]);
        let low = CLUSTER.replacen("\"primary_affinity\":1}", "\"primary_affinity\":0.25}", 1);
        assert_eq!(parse(&low).low_affinities(), ["osd.0 on n1 has the primary affinity 0.25"]);
    }

    #[test]
    fn the_old_form_of_the_groups_is_read() {
        let at = CLUSTER.find("{\"pg_ready\"").or(CLUSTER.find("{\"pg_stats\"")).unwrap();
        let list = CLUSTER[at..].find('[').unwrap() + at;
        let end = CLUSTER.rfind(']').unwrap() + 1;
        let old = format!("{}{}", &CLUSTER[..at], &CLUSTER[list..end]);
        assert_eq!(parse(&old), parse(CLUSTER));
    }

    #[test]
    fn the_answer_that_is_missing_is_named() {
        let lines: Vec<&str> = CLUSTER.lines().filter(|line| !line.is_empty()).collect();
        let [pools, tree, groups] = lines[..] else { panic!("{} lines", lines.len()) };
        for (answers, missing) in [
            (vec![], "`osd pool ls detail`"),
            (vec![tree, groups], "`osd pool ls detail`"),
            (vec![pools, groups], "`osd tree`"),
            (vec![pools, tree], "`pg dump pgs_brief`"),
        ] {
            let error = ClusterMap::parse(answers.join("\n").as_bytes()).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("expected the JSON that {missing} prints")),
                "{error}"
            );
        }
        let none = CLUSTER.replace("\"pg_num\":32,", "\"pg_num\":0,");
        let error = ClusterMap::parse(none.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "the answer is invalid: pool 3 has 0 placement groups");
        let map = parse(&CLUSTER.replace("\"object_hash\":2", "\"object_hash\":1"));
        assert!(map.pool("cephfs_data").is_err());
    }
}
