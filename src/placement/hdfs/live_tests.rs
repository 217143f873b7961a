//! Both providers against a real HDFS. `tests/hdfs/check` starts one and runs these tests,
//! which are ignored otherwise.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tests::list;
use super::*;
use crate::placement::command::CommandTemplate;
use crate::placement::{PlacementError, Provider, Query};

const SIZE: u64 = 10_485_760;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("${name}: run tests/hdfs/check"))
}

fn query(path: &str) -> Query {
    Query { path: path.into(), size: SIZE, replica: PathBuf::from("/mnt/a"), inode: 0 }
}

fn web() -> WebHdfs {
    let settings = WebHdfsSettings {
        urls: variable("HDFS_URLS").split(' ').map(str::to_owned).collect(),
        user: Some("root".to_owned()),
        ca_file: std::env::var_os("HDFS_CA").map(PathBuf::from),
        root: "/data".to_owned(),
        timeout: Duration::from_secs(20),
    };
    WebHdfs::new(settings).unwrap()
}

fn fsck() -> Fsck {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hdfs/lab");
    let words = [lab.to_str().unwrap(), "fsck", &variable("HDFS_DIR"), "{path}"];
    let template = CommandTemplate::new(words.map(str::to_owned).to_vec()).unwrap();
    Fsck::new(template, "/data".to_owned(), Duration::from_secs(60))
}

/// The chunks with the sorted numbers of their nodes: node1 is 127.0.0.1:9861.
fn numbered(map: &ChunkMap) -> Vec<(u64, u64, Vec<char>)> {
    let numbers = |nodes: Vec<&str>| {
        let mut numbers: Vec<_> = nodes.iter().filter_map(|node| node.chars().last()).collect();
        numbers.sort_unstable();
        numbers
    };
    list(map).into_iter().map(|(start, end, nodes)| (start, end, numbers(nodes))).collect()
}

#[tokio::test]
#[ignore = "needs the HDFS of tests/hdfs/check"]
async fn all_three_answers_agree() {
    for path in ["f", "a b%20\u{e9};#+,'", "one", "ec"] {
        let path = query(path);
        let new = numbered(&web().locate(&path).await.unwrap());
        assert_eq!(new.last().unwrap().1, SIZE);
        assert!(new.iter().all(|chunk| !chunk.2.is_empty()), "{new:?}");
        let old = web();
        old.force_old_op();
        assert_eq!(numbered(&old.locate(&path).await.unwrap()), new);
        // fsck does not find names with characters that HTML quotes.
        if !path.path.to_string_lossy().contains('\'') {
            assert_eq!(numbered(&fsck().locate(&path).await.unwrap()), new);
        }
    }
}

#[tokio::test]
#[ignore = "needs the HDFS of tests/hdfs/check"]
async fn a_missing_file_is_not_found_in_hdfs() {
    let error = web().locate(&query("none")).await.unwrap_err();
    assert!(matches!(error, PlacementError::NotFound), "{error}");
    let error = fsck().locate(&query("none")).await.unwrap_err().to_string();
    assert!(error.contains("it is empty"), "{error}");
}
