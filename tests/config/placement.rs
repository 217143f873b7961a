//! `[placement]`, `[[affinity]]` and the names of nodes.

use std::time::Duration;

use fanfs::config::ClusterTool;
use fanfs::config::placement::ProviderConfig;
use fanfs::volume::{ReplicaId, ReplicaSet};

use super::{parse, with};

fn provider(text: &str) -> ProviderConfig {
    parse(&with(&format!("[placement]\n{text}"))).unwrap().placement.provider
}

#[test]
fn no_provider_is_used_unless_configured() {
    let placement = parse(&with("")).unwrap().placement;
    assert_eq!(placement.provider, ProviderConfig::None);
    assert_eq!(placement.root, "/");
    assert_eq!(
        (placement.timeout, placement.ttl),
        (Duration::from_secs(20), Duration::from_secs(600))
    );
}

#[test]
fn a_provider_that_asks_a_mount_elsewhere_serves_exports() {
    let volume = "[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\naddress = 'nfs://gw/x'\n";
    for tool in ["cephfs", "glusterfs", "lustre", "beegfs"] {
        parse(&format!("{volume}[placement]\nprovider = '{tool}'\nroot = '/mnt/x'\n")).unwrap();
    }
}

#[test]
fn each_provider_takes_its_own_keys() {
    let tool = |tool| ProviderConfig::Tool { tool, command: None, layout_command: None };
    assert_eq!(provider("provider = 'maprfs'\nroot = '/vol'"), tool(ClusterTool::MapRfs));
    assert_eq!(provider("provider = 'lustre'"), tool(ClusterTool::Lustre));
    assert_eq!(provider("provider = 'learned'\nttl = '1min'"), ProviderConfig::Learned);
    assert_eq!(
        provider(
            "provider = 'hdfs'\nurl = ['http://nn1:9870', 'https://[fe80::1]:9871/']\nuser = 'u'"
        ),
        ProviderConfig::WebHdfs {
            urls: vec!["http://nn1:9870".into(), "https://[fe80::1]:9871/".into()],
            user: Some("u".into()),
            ca_file: None,
        }
    );
    let command = vec!["hdfs".to_owned(), "fsck".to_owned(), "{path}".to_owned()];
    assert_eq!(
        provider("provider = 'hdfs'\ncommand = ['hdfs', 'fsck', '{path}']"),
        ProviderConfig::Tool {
            tool: ClusterTool::Hdfs,
            command: Some(command),
            layout_command: None
        }
    );
    assert_eq!(
        provider("provider = 'table'\nfile = '/t.csv'"),
        ProviderConfig::Table { file: "/t.csv".into() }
    );
}

#[test]
fn every_example_in_the_docs_is_accepted() {
    let text = include_str!("../../docs/PLACEMENT.md");
    let blocks = |language: &str| {
        let fence = format!("\n```{language}\n");
        let blocks = text.split(&*fence).skip(1);
        blocks.map(|block| block.split("\n```").next().unwrap()).collect::<Vec<_>>()
    };
    let mut providers = 0;
    for block in blocks("toml") {
        let text = match block {
            table if table.starts_with("[[file]]") => {
                fanfs::placement::table::parse_toml(table).unwrap();
                continue;
            }
            own if own.contains("[volume]") => {
                own.replace("[volume]", "[volume]\nname = 'd'\nmode = 'shared'")
            }
            part => format!("[volume]\nname = 'd'\nmode = 'shared'\n{part}"),
        };
        let replica = "\n[[replica]]\npath = '/mnt/x'\nnode = 'storage1.example.com'\n";
        parse(&(text + replica)).unwrap();
        providers += usize::from(block.contains("[placement]"));
    }
    assert!(providers >= 11, "{providers}");
    for block in blocks("json") {
        fanfs::placement::exec::parse(block.as_bytes(), u64::MAX).unwrap();
    }
    for block in blocks("csv") {
        fanfs::placement::table::parse_csv(block).unwrap();
    }
}

#[test]
fn unusable_provider_keys_are_refused() {
    for (text, expected) in [
        (
            "provider = 'hfds'",
            "v.toml:7: key `placement.provider`: \"hfds\" is not valid; use \"none\" or \"maprfs\" or \"hdfs\" or \"cephfs\" or \"glusterfs\" or \"lustre\" or \"beegfs\" or \"table\" or \"exec\" or \"learned\" (did you mean \"hdfs\"?)",
        ),
        (
            "url = ['http://nn1:9870']",
            "v.toml:7: key `placement.url`: has no effect with provider \"none\"; remove it",
        ),
        (
            "provider = 'maprfs'\nfile = '/t'",
            "v.toml:8: key `placement.file`: has no effect with provider \"maprfs\"; remove it",
        ),
        (
            "provider = 'table'",
            "v.toml:6: key `placement.file` is missing; set it to the TOML or CSV file with the table",
        ),
        (
            "provider = 'table'\nfile = 't.csv'",
            "v.toml:8: key `placement.file`: \"t.csv\" is not absolute; start it with /",
        ),
        (
            "provider = 'exec'",
            "v.toml:6: key `placement.command` is missing; name the program and its arguments, such as [\"where-is\", \"{path}\"]",
        ),
        (
            "provider = 'exec'\ncommand = []",
            "v.toml:8: key `placement.command`: names no program; write the program as the first word",
        ),
        (
            "provider = 'exec'\ncommand = ['x', '{file}']",
            "v.toml:8: key `placement.command`: has the unknown placeholder {file} in \"{file}\"; use one of {path}, {local}, {size}",
        ),
        (
            "provider = 'hdfs'",
            "v.toml:6: key `placement.url` is missing; list the NameNodes, such as [\"http://nn1:9870\"], or set `command` to a command that runs hdfs fsck",
        ),
        (
            "provider = 'hdfs'\nurl = ['nn1:9870']",
            "v.toml:8: key `placement.url`: \"nn1:9870\" is not a NameNode's address; use http://HOST:PORT or https://HOST:PORT",
        ),
        (
            "provider = 'hdfs'\nurl = ['http://nn1:9870/webhdfs']",
            "v.toml:8: key `placement.url`: \"http://nn1:9870/webhdfs\" is not a NameNode's address; use http://HOST:PORT or https://HOST:PORT",
        ),
        (
            "provider = 'hdfs'\nurl = []",
            "v.toml:8: key `placement.url`: names no NameNode; add at least one, such as \"http://nn1:9870\"",
        ),
        (
            "provider = 'hdfs'\nurl = ['http://a']\ncommand = ['b']",
            "v.toml:9: key `placement.command`: excludes `placement.url`; remove one of them",
        ),
        (
            "provider = 'hdfs'\ncommand = ['b']\nuser = 'c'",
            "v.toml:9: key `placement.user`: has no effect without `placement.url`; remove it",
        ),
        ("ttl = '1ms'", "v.toml:7: key `placement.ttl`: 1ms is out of range; use 1s to 7days"),
        (
            "timeout = '2h'",
            "v.toml:7: key `placement.timeout`: 2h is out of range; use 100ms to 1h",
        ),
        (
            "timeout = 5",
            "v.toml:7: key `placement.timeout`: 5 has no unit; give one, such as \"30s\"",
        ),
    ] {
        assert_eq!(parse(&with(&format!("[placement]\n{text}"))).unwrap_err(), expected);
    }
    let twice = parse(&with("[[placement]]\nprovider = 'none'")).unwrap_err();
    assert_eq!(
        twice,
        "v.toml:6: key `placement`: must be one table; begin it once, with [placement]"
    );
}

#[test]
fn affinities_name_replicas_or_nodes() {
    let text = "node = 'n1'\naliases = ['10.0.0.1', 'n1:5660']\n[[replica]]\npath = '/b'\nname = 'b'\nnode = 'n1'\n[[replica]]\npath = '/c'\n";
    let set =
        |ids: &[usize]| ids.iter().fold(ReplicaSet::EMPTY, |set, id| set.with(ReplicaId::new(*id)));
    let rules = "[[affinity]]\npath = '/x/**'\nnode = '10.0.0.1'\n[[affinity]]\npath = '/y/*'\nreplica = 'b'\n[[affinity]]\npath = '/**'\nnode = 'n1'\n";
    let config = parse(&with(&format!("{text}{rules}"))).unwrap();
    assert_eq!(config.replicas[0].aliases, ["10.0.0.1", "n1:5660"]);
    let replicas: Vec<_> = config.affinities.iter().map(|rule| rule.replicas).collect();
    assert_eq!(replicas, [set(&[0]), set(&[1]), set(&[0, 1])]);
    for (rule, expected) in [
        (
            "path = 'x'\nnode = 'n1'",
            "v.toml:15: key `affinity[1].path`: \"x\" does not start with /, the volume's root; write the path from there",
        ),
        (
            "path = '/x[a'\nnode = 'n1'",
            "v.toml:15: key `affinity[1].path`: \"/x[a\" is not a glob: unclosed character class; missing ']'",
        ),
        ("path = '/x'", "v.toml:14: key `affinity[1].replica` is missing; set `replica` or `node`"),
        (
            "node = 'n1'",
            "v.toml:14: key `affinity[1].path` is missing; set it to a glob over paths in the volume, such as \"/a/**\"",
        ),
        (
            "path = '/x'\nnode = 'n9'",
            "v.toml:16: key `affinity[1].node`: no replica has the node \"n9\"; use n1 or r3",
        ),
        (
            "path = '/x'\nreplica = 'a'\nnode = 'n1'",
            "v.toml:17: key `affinity[1].node`: excludes `replica`; remove one of them",
        ),
        (
            "path = '/x'\nreplicas = 'a'",
            "v.toml:16: key `affinity[1].replicas` is not known; did you mean `replica`?",
        ),
    ] {
        assert_eq!(parse(&with(&format!("{text}[[affinity]]\n{rule}\n"))).unwrap_err(), expected);
    }
    // Each is a glob, but all of them together are too large.
    let rule = format!("[[affinity]]\npath = '/{}b'\nnode = 'n1'\n", "a".repeat(16_000));
    let error = parse(&with(&format!("{text}{}", rule.repeat(140)))).map(drop).unwrap_err();
    assert!(error.contains("bytes, and the limit is"), "{error}");
    assert!(error.starts_with("v.toml:15: key `affinity[1].path`: the globs of"), "{error}");
    let rule = format!("[[affinity]]\npath = '/{}b'\nnode = 'n1'\n", "[!a]".repeat(5000));
    let error = parse(&with(&format!("{text}{rule}"))).map(drop).unwrap_err();
    assert!(
        error.contains("is too long for a glob: 20002 bytes; use") && error.len() < 1000,
        "{error:.1000}"
    );
    let table = parse(&with("[affinity]\npath = '/x'")).unwrap_err();
    assert_eq!(
        table,
        "v.toml:6: key `affinity`: must be a list of tables; begin each one with [[affinity]]"
    );
    let alias = parse(&with("aliases = ['a b']")).unwrap_err();
    assert!(
        alias.contains("replica[1].aliases") && alias.contains("is not a valid name"),
        "{alias}"
    );
}
