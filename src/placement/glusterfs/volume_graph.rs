//! What a GlusterFS client knows of its volume: the graph of its translators.
//!
//! A native mount shows it as `.meta/graphs/active/volfile`:
//!
//! ```text
//! volume arb-client-2
//!     type protocol/client
//!     option remote-host 10.77.0.3
//!     option remote-subvolume /bricks/arb
//! end-volume
//!
//! volume arb-replicate-0
//!     type cluster/replicate
//!     option arbiter-count 1
//!     subvolumes arb-client-0 arb-client-1 arb-client-2
//! end-volume
//! ```

use std::collections::HashMap;

use crate::placement::tool::{expected_error, last_line, numbered_lines};
use crate::placement::{PlacementError, Result};

/// Where a native mount shows its graph.
pub const FILE: &str = ".meta/graphs/active/volfile";

/// A brick by its host and its directory there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brick {
    /// As `volume info` names it, often an address.
    pub host: String,
    /// Its directory.
    pub directory: String,
}

/// The parts of a graph that matter for placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeGraph {
    /// The size of shards, bytes, if files are sharded.
    pub shard_size: Option<u64>,
    /// The bricks of each replicate translator; the last ones are arbiters.
    replicas: HashMap<String, ReplicateBricks>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReplicateBricks {
    bricks: Vec<Brick>,
    arbiters: usize,
}

/// One `volume` paragraph.
#[derive(Default)]
struct Paragraph<'t> {
    name: &'t str,
    kind: &'t str,
    options: HashMap<&'t str, &'t str>,
    subvolumes: Vec<&'t str>,
}

impl VolumeGraph {
    /// Reads a graph.
    ///
    /// # Errors
    /// If `text` has another form, or shows a volume whose clients do not read their own brick.
    pub fn parse(text: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut bricks = HashMap::new();
        for paragraph in paragraphs(text)? {
            let option = |key: &str| paragraph.options.get(key).copied();
            match paragraph.kind {
                "protocol/client" => {
                    let [host, directory] = ["remote-host", "remote-subvolume"]
                        .map(|key| option(key).unwrap_or_default().to_owned());
                    bricks.insert(paragraph.name, Brick { host, directory });
                }
                "cluster/replicate" if option("choose-local").is_some_and(is_off) => {
                    return refused("`cluster.choose-local` is off: gateways read any brick");
                }
                "cluster/replicate" => {
                    let arbiters = option("arbiter-count").and_then(|count| count.parse().ok());
                    let of = |name: &&str| bricks.get(name).cloned();
                    let bricks = paragraph.subvolumes.iter().filter_map(of).collect();
                    let bricks = ReplicateBricks { bricks, arbiters: arbiters.unwrap_or(0) };
                    graph.replicas.insert(paragraph.name.to_owned(), bricks);
                }
                "cluster/disperse" => {
                    return refused("the volume is dispersed: each file is on all of its bricks");
                }
                "features/shard" => {
                    let size = option("shard-block-size").map_or(Some(64 << 20), parse_size);
                    let Some(size) = size.filter(|size| *size > 0) else {
                        return refused("`shard-block-size` is not a size");
                    };
                    graph.shard_size = Some(size);
                }
                _ => {}
            }
        }
        Ok(graph)
    }

    /// Whether the brick in `directory` of `host` has no data, in the replicate translator of this
    /// name. `host` is what its machine calls itself. That may differ from the name in the graph, so
    /// it decides only between bricks of one directory.
    pub fn is_arbiter(&self, translator: &str, host: &str, directory: &str) -> bool {
        let Some(ReplicateBricks { bricks, arbiters }) = self.replicas.get(translator) else {
            return false;
        };
        let data = bricks.len().saturating_sub(*arbiters);
        let (data, arbiters) = bricks.split_at(data);
        let is_there = |brick: &Brick| brick.directory == directory;
        arbiters.iter().filter(|brick| is_there(brick)).any(|arbiter| {
            !data.iter().any(is_there) || short_name(&arbiter.host) == short_name(host)
        })
    }
}

fn refused<T>(why: &str) -> Result<T> {
    Err(PlacementError::InvalidAnswer(why.to_owned()))
}

fn paragraphs(text: &str) -> Result<Vec<Paragraph<'_>>> {
    let mut all = Vec::new();
    let mut open: Option<Paragraph<'_>> = None;
    for (number, line) in numbered_lines(text) {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, &mut open) {
            ("", _) => {}
            ("volume", None) => {
                open = Some(Paragraph { name: rest.trim(), ..Paragraph::default() })
            }
            ("end-volume", Some(_)) => all.extend(open.take()),
            ("type", Some(paragraph)) => paragraph.kind = rest.trim(),
            ("subvolumes", Some(paragraph)) => {
                paragraph.subvolumes = rest.split_whitespace().collect();
            }
            ("option", Some(paragraph)) => {
                let (key, value) =
                    rest.trim().split_once(char::is_whitespace).unwrap_or((rest, ""));
                paragraph.options.insert(key, value.trim());
            }
            _ => return expected_error(number, "a volume file of GlusterFS (`volume NAME`, ...)"),
        }
    }
    if open.is_some() || all.is_empty() {
        return expected_error(last_line(text), "`end-volume`");
    }
    Ok(all)
}

fn is_off(value: &str) -> bool {
    ["off", "no", "false", "0", "disable"].iter().any(|off| value.eq_ignore_ascii_case(off))
}

/// A size as GlusterFS writes it: `64MB` has 64 x 1024 x 1024 bytes.
fn parse_size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match &*unit.to_ascii_uppercase() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn short_name(host: &str) -> &str {
    match host.parse::<std::net::IpAddr>() {
        Ok(_) => host,
        Err(_) => host.split('.').next().unwrap_or(host),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    macro_rules! fixture {
        ($name:literal) => {
            include_str!(concat!(
                "../../../tests/fixtures/placement/glusterfs-volfile-",
                $name,
                ".txt"
            ))
        };
    }
    pub(in super::super) const ARBITER: &str = fixture!("arb");
    pub(in super::super) const SHARDED: &str = fixture!("shard");
    const DISPERSED: &str = fixture!("disp");

    #[test]
    fn the_graph_of_a_live_volume_shows_its_arbiter() {
        let graph = VolumeGraph::parse(ARBITER).unwrap();
        let is_arbiter = |host: &str, directory: &str| {
            graph.is_arbiter("arb-replicate-0", host, &format!("/work/lab/gl/data/{directory}/arb"))
        };
        assert!(is_arbiter("n3", "n3"));
        assert!(!is_arbiter("n1", "n1") && !is_arbiter("n2", "n2"));
        assert!(!graph.is_arbiter("other-replicate-0", "n3", "/work/lab/gl/data/n3/arb"));
        assert_eq!(graph.shard_size, None);
    }

    #[test]
    fn of_bricks_in_one_directory_the_host_decides() {
        let named = (1..=3).fold(ARBITER.to_owned(), |text, i| {
            text.replace(&format!("10.77.0.{i}"), &format!("n{i}.example.com"))
                .replace(&format!("data/n{i}/arb"), "data/arb")
        });
        let graph = VolumeGraph::parse(&named).unwrap();
        let is_arbiter = |host| graph.is_arbiter("arb-replicate-0", host, "/work/lab/gl/data/arb");
        assert!(is_arbiter("n3") && is_arbiter("n3.example.com"));
        assert!(!is_arbiter("n1"));
    }

    #[test]
    fn shards_have_a_size() {
        let sized = |size: &str| {
            let text = SHARDED.replace("shard-block-size 4MB", &format!("shard-block-size {size}"));
            VolumeGraph::parse(&text).map(|graph| graph.shard_size)
        };
        assert_eq!(sized("4MB").unwrap(), Some(4 << 20));
        assert_eq!(sized("1gb").unwrap(), Some(1 << 30));
        assert_eq!(sized("5000").unwrap(), Some(5000));
        for wrong in ["0", "4XB", "99999999999TB", "MB"] {
            assert!(sized(wrong).is_err(), "{wrong}");
        }
        let usual = SHARDED.replace("option shard-block-size 4MB", "");
        assert_eq!(VolumeGraph::parse(&usual).unwrap().shard_size, Some(64 << 20));
    }

    #[test]
    fn volumes_whose_gateways_do_not_read_their_own_brick_are_refused() {
        let error = VolumeGraph::parse(DISPERSED).unwrap_err().to_string();
        assert!(error.contains("the volume is dispersed"), "{error}");
        let any = ARBITER.replace("option arbiter-count 1", "option choose-local off");
        let error = VolumeGraph::parse(&any).unwrap_err().to_string();
        assert!(error.contains("`cluster.choose-local` is off"), "{error}");
    }

    #[test]
    fn text_of_another_form_is_refused() {
        for text in ["", "\n", "volume a\n", "end-volume", "volume a\nvolume b\n", "x y"] {
            assert!(VolumeGraph::parse(text).is_err(), "{text:?}");
        }
    }
}
