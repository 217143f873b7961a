//! Any program that prints where chunks are, as JSON.
//!
//! The format is in `docs/placement-exec.schema.json`: chunks with their first byte, the byte
//! after their last one, and their nodes; or stripes, whose units take turns over the cells.
//! Extra keys are refused, so that a misspelled key is noticed.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::command::{CommandTemplate, TemplateValues, path_below};
use super::{ChunkMap, ChunkMapBuilder, LocateFuture, PlacementError, Provider, Query, Result};
use crate::volume::ByteRange;

/// Runs a configured program.
pub struct ExecProvider {
    template: CommandTemplate,
    root: String,
    timeout: Duration,
}

impl ExecProvider {
    /// Runs `template` for each file; `root` is the volume's root in `{path}`.
    pub fn new(template: CommandTemplate, root: String, limit: Duration) -> Self {
        Self { template, root, timeout: limit }
    }
}

impl Provider for ExecProvider {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(async move {
            let path = path_below(&self.root, &query.path);
            let local = query.in_replica();
            let values = TemplateValues {
                path: &path,
                local: local.as_os_str().as_encoded_bytes(),
                size: query.size,
            };
            parse(&self.template.run(&values, self.timeout).await?, query.size)
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecAnswer {
    #[serde(default)]
    chunks: Vec<JsonObject<AnsweredChunk>>,
    #[serde(default)]
    stripes: Vec<JsonObject<AnsweredStripe>>,
}

/// A `T` as a JSON object; serde alone would also accept an array of its values.
struct JsonObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        from.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnsweredChunk {
    start: u64,
    end: Option<u64>,
    nodes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnsweredStripe {
    start: u64,
    end: Option<u64>,
    unit: u64,
    cells: Vec<Vec<String>>,
}

/// Reads a program's answer about a file of `size` bytes.
///
/// # Errors
/// If it does not have the documented form, or is impossible.
pub fn parse(output: &[u8], size: u64) -> Result<ChunkMap> {
    // serde would also accept an array of the values in order.
    if !output.trim_ascii_start().starts_with(b"{") {
        return Err(PlacementError::unexpected_line(1, "expected a JSON object"));
    }
    let answer: ExecAnswer = serde_json::from_slice(output)
        .map_err(|error| PlacementError::unexpected_line(error.line(), error.to_string()))?;
    let chunks = answer.chunks.into_iter().map(|JsonObject(chunk)| {
        let end = chunk.end.unwrap_or(size);
        AnsweredStripe {
            start: chunk.start,
            end: Some(end),
            unit: u64::MAX,
            cells: vec![chunk.nodes],
        }
    });
    let mut regions: Vec<AnsweredStripe> =
        chunks.chain(answer.stripes.into_iter().map(|JsonObject(stripe)| stripe)).collect();
    regions.sort_by_key(|region| region.start);
    let mut builder = ChunkMapBuilder::new();
    for region in regions {
        let whole = ByteRange::new(region.start, region.end.unwrap_or(size));
        let range = whole.intersect(ByteRange::new(0, size));
        let unit = region.unit.min(range.len());
        let cells = region.cells.iter().map(|cell| cell.iter().map(|node| &**node));
        builder.add_striped(range, unit, cells)?;
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANSWER: &str = r#"{
      "chunks": [
        {"start": 100, "nodes": ["n3"]},
        {"start": 0, "end": 60, "nodes": ["n1", "n2:5660"]}
      ],
      "stripes": [
        {"start": 60, "end": 100, "unit": 10, "cells": [["n1"], ["n2"]]}
      ]
    }"#;

    #[test]
    fn chunks_and_stripes_are_parsed_in_any_order() {
        let map = parse(ANSWER.as_bytes(), 150).unwrap();
        let chunks: Vec<_> =
            map.chunks().map(|chunk| (chunk.range.start, chunk.range.end)).collect();
        assert_eq!(chunks, [(0, 60), (60, 70), (70, 80), (80, 90), (90, 100), (100, 150)]);
        assert_eq!(
            map.nodes().iter().map(|n| &**n).collect::<Vec<_>>(),
            ["n1", "n2:5660", "n2", "n3"]
        );
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        for output in [
            "",
            "[]",
            "{\"chunk\": []}",
            "{\"chunks\": [[0, 10, [\"n\"]]]}",
            "{\"stripes\": [[0, 10, 5, [[\"n\"]]]]}",
            "[[{\"start\": 0, \"nodes\": [\"n\"]}]]",
            "{\"chunks\": [{\"start\": -1, \"nodes\": []}]}",
            "{\"chunks\": [{\"start\": 0}]}",
            "{\"chunks\": [{\"start\": 0, \"nodes\": [\"a\\n\"]}]}",
            "{\"chunks\": [{\"start\": 0, \"nodes\": [\"a\"]}, {\"start\": 1, \"nodes\": []}]}",
            "{\"stripes\": [{\"start\": 0, \"unit\": 0, \"cells\": [[\"a\"]]}]}",
        ] {
            assert!(parse(output.as_bytes(), 100).is_err(), "{output}");
        }
        assert!(parse(b"{}", 100).unwrap().is_empty());
        let error = parse(b"{\"a\\n\\u001b[1m\": 0}", 100).unwrap_err().to_string();
        assert!(error.contains("unknown field") && !error.contains(char::is_control), "{error:?}");
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(mut bytes in Just(ANSWER.as_bytes().to_vec()), cut in 0usize..300,
            at in 0usize..300, byte: u8, size: u64) {
            bytes.truncate(cut);
            if let Some(b) = bytes.get_mut(at) { *b = byte; }
            if let Ok(map) = parse(&bytes, size) {
                let mut end = 0;
                for chunk in map.chunks().take(1000) {
                    prop_assert!(chunk.range.start >= end && chunk.range.end <= size);
                    end = chunk.range.end;
                }
            }
        }
    }
}
