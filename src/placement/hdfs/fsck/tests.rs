use std::path::PathBuf;

use proptest::prelude::*;

use super::super::tests::{is_sound, list};
use super::*;

const REPLICATED: &str = include_str!("../../../../tests/fixtures/placement/hdfs-fsck.txt");
const OLD: &str = include_str!("../../../../tests/fixtures/placement/hdfs-fsck-2.x.txt");
const LOST: &str =
    include_str!("../../../../tests/fixtures/placement/hdfs-fsck-missing-corrupt.txt");
const ERASURE_CODED: &str =
    include_str!("../../../../tests/fixtures/placement/hdfs-fsck-erasure-coded.txt");
const ERASURE_CODED_LOST: &str =
    include_str!("../../../../tests/fixtures/placement/hdfs-fsck-erasure-coded-missing.txt");
const UNDER_REPLICATED: &str =
    include_str!("../../../../tests/fixtures/placement/hdfs-fsck-under-replicated.txt");
const SIZE: u64 = 10_485_760;
const BLOCK: u64 = 4_194_304;
const A: &str = "127.0.0.1:9861";
const B: &str = "127.0.0.1:9862";
const C: &str = "127.0.0.1:9863";

#[test]
fn replicated_blocks_of_hadoop_3_are_read() {
    let map = parse(REPLICATED, SIZE).unwrap();
    let expected =
        [(0, BLOCK, vec![A, B]), (BLOCK, 2 * BLOCK, vec![A, C]), (2 * BLOCK, SIZE, vec![A, C])];
    assert_eq!(list(&map), expected);
}

#[test]
fn blocks_of_hadoop_2_are_read() {
    let map = parse(OLD, SIZE).unwrap();
    let expected = [
        (0, BLOCK, vec!["10.0.0.1:50010", "10.0.0.2:50010"]),
        (BLOCK, 2 * BLOCK, vec!["10.0.0.3:50010", "10.0.0.1:50010"]),
        (2 * BLOCK, SIZE, vec!["10.0.0.2:50010"]),
    ];
    assert_eq!(list(&map), expected);
}

#[test]
fn missing_and_corrupt_blocks_are_on_no_node() {
    let map = parse(LOST, SIZE).unwrap();
    let expected = [(0, BLOCK, vec![]), (BLOCK, 2 * BLOCK, vec![]), (2 * BLOCK, SIZE, vec![A])];
    assert_eq!(list(&map), expected);
}

#[test]
fn a_block_group_is_on_every_node_that_has_a_part_of_it() {
    let map = parse(ERASURE_CODED, 12_582_912).unwrap();
    let expected = [(0, 8_388_608, vec![A, C, B]), (8_388_608, 12_582_912, vec![B, A, C])];
    assert_eq!(list(&map), expected);
    let map = parse(UNDER_REPLICATED, 12_582_912).unwrap();
    let expected = [(0, 8_388_608, vec![A, B]), (8_388_608, 12_582_912, vec![B, A])];
    assert_eq!(list(&map), expected);
    let map = parse(ERASURE_CODED_LOST, 12_582_912).unwrap();
    assert_eq!(list(&map), [(0, 8_388_608, vec![]), (8_388_608, 12_582_912, vec![])]);
}

#[test]
fn racks_and_copy_states_are_parsed() {
    let text = "/f 5 bytes, replicated: replication=2, 1 block(s):  OK\n\
        0. BP-1-a-2:blk_1_2 len=5 Live_repl=2  [/rack/10.0.0.1:9866(LIVE), \
        DatanodeInfoWithStorage[10.0.0.2:9866,DS-1,DISK](CORRUPT), \
        DatanodeInfoWithStorage[10.0.0.3:9866,DS-1,DISK](DECOMMISSIONING)]\n";
    assert_eq!(list(&parse(text, 5).unwrap()), [(0, 5, vec!["10.0.0.1:9866", "10.0.0.3:9866"])]);
}

#[test]
fn an_empty_file_has_no_chunks() {
    let text = "/f 0 bytes, replicated: replication=2, 0 block(s):  OK\n\n\nStatus: HEALTHY\n";
    assert!(parse(text, 0).unwrap().is_empty());
}

#[test]
fn file_names_that_look_like_headers_are_ignored() {
    let name = "/a bytes, 7 block(s): b. blk_1 len=3 [x]";
    let text = REPLICATED.replace("/data/f", name);
    assert_eq!(parse(&text, SIZE).unwrap(), parse(REPLICATED, SIZE).unwrap());
    let text = REPLICATED.replace("/data/f", "/a\n0. blk_1_1 len=3 repl=1 [x]\n");
    assert!(parse(&text, SIZE).is_err());
    let more = "/a 5 bytes, 1 block(s): OK\n0. blk_1_1 len=3 repl=1 [x]\n";
    assert!(parse(&format!("{more}{REPLICATED}"), SIZE).is_err());
}

#[test]
fn a_missing_file_is_recognized_if_fsck_reports_it() {
    let text = "FSCK started by root\n\n\nPath '/data/x' does not exist\n";
    assert!(matches!(parse(text, 5), Err(PlacementError::NotFound)));
    let error = parse("\n", 5).unwrap_err().to_string();
    assert!(error.contains("it is empty"), "{error}");
    let error = parse("FSCK started by root\n.Status: HEALTHY\n", 5).unwrap_err().to_string();
    assert!(error.contains("open for writing"), "{error}");
}

#[test]
fn hostile_lines_are_errors() {
    let after = |line: &str| parse(&format!("/f 5 bytes, 2 block(s): OK\n{line}\n"), 5);
    let lines = [
        "0. blk_1_1",
        "0. blk_1_1 len=x repl=1 [a]",
        "0. blk_1_1 len=-5 repl=1 [a]",
        "0. blk_1_1 len=5 repl=1",
        "0. blk_1_1 len=5 repl=1 [a",
        "0. blk_1_1 len=5 repl=1 [a]]",
        "0. blk_1_1 len=5 repl=1 [DatanodeInfoWithStorage[a]",
        "1. blk_1_1 len=5 repl=1 [a]",
        "0. blk_1_1 len=5 repl=1 [a]\n0. blk_1_1 len=5 repl=1 [a]",
        "0. blk_1_1 len=5 repl=1 [a]\n1. blk_1_1 len=18446744073709551615 repl=1 [a]",
        "0. blk_1_1 len=5 repl=1 [a]\n1. blk_1_1 len=5 repl=1 [a]\n2. blk_1_1 len=5 repl=1 [a]",
        "0. blk_1_1 len=5 repl=1 [a]",
    ];
    for line in lines {
        let error = after(line).expect_err(line).to_string();
        assert!(error.len() < 200 && !error.contains('\n'), "{line}: {error}");
    }
    let copies = vec!["a"; MAX_COPIES + 1].join(", ");
    assert!(after(&format!("0. blk_1_1 len=5 repl=1 [{copies}]")).is_err());
    assert!(parse("/f 5 bytes, 99999999999 block(s): OK\n", 5).is_err());
}

#[test]
fn every_truncation_before_the_last_block_is_an_error() {
    let end = REPLICATED.find("\n\n\nStatus").unwrap();
    for cut in 0..end {
        assert!(parse(&REPLICATED[..cut], SIZE).is_err(), "{cut}");
    }
    assert!(parse(&REPLICATED[..end], SIZE).is_ok());
}

#[tokio::test]
async fn fsck_errors_name_no_file() {
    let limit = Duration::from_secs(10);
    let fsck = |script: &str| {
        let words = ["sh", "-c", script, "sh", "{path}"].map(str::to_owned).to_vec();
        Fsck::new(CommandTemplate::new(words).unwrap(), "/data".to_owned(), limit)
    };
    let query = Query {
        inode: 0,
        path: PathBuf::from("secret f"),
        size: 5,
        replica: PathBuf::from("/mnt/a"),
    };
    let answering = "[ \"$1\" = '/data/secret f' ] || exit 3\n\
        echo \"$1 5 bytes, 1 block(s):  OK\"; echo '0. blk_1_1 len=5 repl=1 [10.0.0.1:50010]'";
    let map = fsck(answering).locate(&query).await.unwrap();
    assert_eq!(list(&map), [(0, 5, vec!["10.0.0.1:50010"])]);
    let failing = "echo \"to http://nn/fsck?path=$1\" >&2; \
        echo \"java.net.ConnectException: no $1\" >&2; exit 255";
    let error = fsck(failing).locate(&query).await.unwrap_err().to_string();
    assert_eq!(error, "sh failed (exit status: 255): java.net.ConnectException");
    let error = fsck("echo $1 >&2; exit 1").locate(&query).await.unwrap_err().to_string();
    assert_eq!(error, "sh failed (exit status: 1): run it by hand to see why");
    // fsck exits with 1 for a bad block; its output about the other blocks counts.
    let bad = format!("{answering}; exit 1");
    assert_eq!(list(&fsck(&bad).locate(&query).await.unwrap()), list(&map));
    let error = fsck(&format!("{answering}; exit 2")).locate(&query).await.unwrap_err();
    assert_eq!(error.without_file_names(), "sh failed (exit status: 2)");
    assert!(CommandTemplate::new(COMMAND.iter().map(|word| (*word).to_owned()).collect()).is_ok());
}

/// Arbitrary text, or an answer with some of it changed and its end cut off.
fn hostile(answer: &'static str) -> impl Strategy<Value = String> {
    let bytes = prop_oneof![any::<u8>(), b'0'..=b'9', Just(b'['), Just(b']'), Just(b'\n')];
    let changes = proptest::collection::vec((0..answer.len(), bytes), 0..6);
    let mutated = (changes, 0..=answer.len(), any::<bool>()).prop_map(|(changes, cut, cuts)| {
        let mut bytes = answer.as_bytes().to_vec();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes.truncate(if cuts { cut } else { bytes.len() });
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let line = "([0-3]\\. (BP-1:)?blk_[0-9_]{0,3}|/f [0-9] bytes, [0-3] block\\(s\\):)\
        ( len=[0-9]{0,20})? ?(MISSING!)?(\\[[a-c,:/()\\[\\] ]{0,12}\\]?)?";
    let lines = proptest::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"));
    prop_oneof![1 => any::<String>(), 4 => mutated, 4 => lines]
}

proptest! {
    #[test]
    fn no_fsck_output_causes_panics_or_overlaps(
        answer in prop_oneof![hostile(REPLICATED), hostile(ERASURE_CODED), hostile(LOST)],
        size in prop_oneof![Just(SIZE), any::<u64>()],
    ) {
        if let Ok(map) = parse(&answer, size) {
            prop_assert!(is_sound(&map, size));
        }
    }
}
