use proptest::prelude::*;

use super::super::tests::{is_sound, list};
use super::*;

const FILE_BLOCKS: &[u8] =
    include_bytes!("../../../../tests/fixtures/placement/hdfs-file-block-locations.json");
const LOST: &[u8] = include_bytes!(
    "../../../../tests/fixtures/placement/hdfs-file-block-locations-missing-corrupt.json"
);
const LOCATED: &[u8] =
    include_bytes!("../../../../tests/fixtures/placement/hdfs-located-blocks.json");
const SIZE: u64 = 10_485_760;
const BLOCK: u64 = 4_194_304;

fn three() -> Vec<(u64, u64, Vec<&'static str>)> {
    vec![
        (0, BLOCK, vec!["node1", "node2"]),
        (BLOCK, 2 * BLOCK, vec!["node1", "node3"]),
        (2 * BLOCK, SIZE, vec!["node1", "node3"]),
    ]
}

/// The chunks with their nodes sorted: the NameNode shuffles them for every answer.
fn sorted(map: &ChunkMap) -> Vec<(u64, u64, Vec<&str>)> {
    let mut chunks = list(map);
    chunks.iter_mut().for_each(|chunk| chunk.2.sort_unstable());
    chunks
}

#[test]
fn file_block_locations_of_hadoop_3_are_read() {
    assert_eq!(sorted(&parse_file_block_locations(FILE_BLOCKS, SIZE).unwrap()), three());
}

#[test]
fn located_blocks_are_read() {
    assert_eq!(sorted(&parse_located_blocks(LOCATED, SIZE).unwrap()), three());
}

#[test]
fn a_grown_file_is_truncated_to_the_requested_size() {
    let map = parse_file_block_locations(FILE_BLOCKS, BLOCK + 1).unwrap();
    assert_eq!(list(&map).iter().map(|chunk| chunk.1).collect::<Vec<_>>(), [BLOCK, BLOCK + 1]);
    assert!(parse_located_blocks(LOCATED, 0).unwrap().is_empty());
}

#[test]
fn missing_and_corrupt_blocks_are_on_no_node() {
    let map = parse_file_block_locations(LOST, SIZE).unwrap();
    let expected =
        [(0, BLOCK, vec![]), (BLOCK, 2 * BLOCK, vec![]), (2 * BLOCK, SIZE, vec!["node1"])];
    assert_eq!(list(&map), expected);
    let located = br#"{"LocatedBlocks":{"locatedBlocks":[{"block":{"numBytes":5},"startOffset":0,
        "isCorrupt":true,"locations":[{"hostName":"node1"}]}]}}"#;
    assert_eq!(list(&parse_located_blocks(located, 5).unwrap()), [(0, 5, vec![])]);
}

#[test]
fn addresses_replace_missing_host_names() {
    let answer = br#"{"BlockLocations":{"BlockLocation":[
        {"offset":5,"length":5,"hosts":null,"names":["10.0.0.1:9866"]},
        {"offset":0,"length":5,"hosts":[""],"names":["10.0.0.2:9866",""]}]}}"#;
    let map = parse_file_block_locations(answer, 10).unwrap();
    assert_eq!(list(&map), [(0, 5, vec!["10.0.0.2:9866"]), (5, 10, vec!["10.0.0.1:9866"])]);
    let answer = br#"{"LocatedBlocks":{"locatedBlocks":[{"block":{"numBytes":5},"startOffset":0,
        "locations":[{"name":"10.0.0.1:50010"},{"hostName":"node2","name":"10.0.0.2:50010"}]}]}}"#;
    let map = parse_located_blocks(answer, 10).unwrap();
    assert_eq!(list(&map), [(0, 5, vec!["10.0.0.1:50010", "node2"])]);
}

#[test]
fn an_invalid_answer_is_an_error_that_does_not_quote_it() {
    let long = format!(r#"{{"BlockLocations":"{}"}}"#, "secret".repeat(100));
    let many = format!(
        r#"{{"BlockLocations":{{"BlockLocation":[{{"offset":0,"length":1,"hosts":[{}"a"]}}]}}}}"#,
        r#""a","#.repeat(MAX_COPIES)
    );
    let answers = [
        "",
        "null",
        "<html>secret</html>",
        r#"{"BlockLocations":{}}"#,
        r#"{"BlockLocations":{"BlockLocation":[{"offset":-1,"length":1}]}}"#,
        r#"{"BlockLocations":{"BlockLocation":[{"offset":0,"length":1e30}]}}"#,
        r#"{"BlockLocations":{"BlockLocation":[{"offset":0,"length":1,"hosts":["a\nb"]}]}}"#,
        &long,
        &many,
    ];
    for answer in answers {
        let error = parse_file_block_locations(answer.as_bytes(), 10).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, PlacementError::InvalidAnswer(_)), "{said}");
        assert!(!said.contains("secret") && said.len() < 200, "{said}");
        assert!(parse_located_blocks(answer.as_bytes(), 10).is_err());
    }
    let overlap = br#"{"BlockLocations":{"BlockLocation":[{"offset":0,"length":6,"hosts":["a"]},
        {"offset":5,"length":18446744073709551615,"hosts":["b"]}]}}"#;
    assert!(parse_file_block_locations(overlap, 10).is_err());
}

#[test]
fn every_truncation_is_an_error() {
    for cut in 0..FILE_BLOCKS.len() {
        assert!(parse_file_block_locations(&FILE_BLOCKS[..cut], SIZE).is_err(), "{cut}");
    }
    for cut in (0..LOCATED.len()).step_by(7) {
        assert!(parse_located_blocks(&LOCATED[..cut], SIZE).is_err(), "{cut}");
    }
}

/// Arbitrary bytes, or an answer with some bytes changed and its end cut off.
fn hostile(answer: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let digits = prop_oneof![any::<u8>(), b'0'..=b'9', Just(b'"'), Just(b',')];
    let changes = proptest::collection::vec((0..answer.len(), digits), 0..6);
    let mutated =
        (changes, 0..=answer.len(), any::<bool>()).prop_map(move |(changes, cut, cuts)| {
            let mut bytes = answer.to_vec();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            bytes.truncate(if cuts { cut } else { bytes.len() });
            bytes
        });
    prop_oneof![1 => proptest::collection::vec(any::<u8>(), 0..200), 4 => mutated]
}

proptest! {
    #[test]
    fn file_block_locations_never_panic_nor_overlap(
        answer in hostile(FILE_BLOCKS), size in prop_oneof![Just(SIZE), any::<u64>()],
    ) {
        if let Ok(map) = parse_file_block_locations(&answer, size) {
            prop_assert!(is_sound(&map, size));
        }
    }

    #[test]
    fn located_blocks_never_panic_nor_overlap(
        answer in hostile(LOCATED), size in prop_oneof![Just(SIZE), any::<u64>()],
    ) {
        if let Ok(map) = parse_located_blocks(&answer, size) {
            prop_assert!(is_sound(&map, size));
        }
    }
}
