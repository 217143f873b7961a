//! Hostile files, answers and messages, without a fuzzer: the checks of the fuzz targets
//! (`fuzz/checks`), on their corpora and on random changes of these.
//!
//! `FANFS_HOSTILE_SECONDS=600` runs ten minutes per target, instead of a few thousand changes;
//! `FANFS_SEED=7` selects other changes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "../fuzz/checks/config.rs"]
mod config;
#[path = "../fuzz/checks/control.rs"]
mod control;
#[path = "../fuzz/checks/placement.rs"]
mod placement;

/// Changed inputs for each target.
const CHANGED: usize = 4000;

/// Longest input, bytes.
const LONGEST: usize = 64 * 1024;

/// A small generator, so that failures repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let room = tempfile::tempdir().unwrap();
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seed");
    let made = Command::new("bash").arg(seed).arg(room.path()).status().unwrap();
    assert!(made.success(), "fuzz/seed");
    let files = fs::read_dir(room.path().join(name)).unwrap();
    let mut inputs: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
    inputs.sort();
    assert!(inputs.len() >= 6, "{name}: {} inputs", inputs.len());
    inputs
}

/// Words that parsers look for, and extreme numbers.
const TELLING: [&[u8]; 18] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"9223372036854775808",
    b"1e999",
    b"\"",
    b"{",
    b"]",
    b"\n",
    b"\0",
    b"\xff",
    b"../",
    b"{path}",
    b"[[replica]]",
    b"=",
    b"\\",
    b"\x1b[2J",
    b",",
];

fn changed(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        let end = at + random.below((input.len() - at).min(200) + 1);
        match random.below(7) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.below(256) as u8,
            2 => drop(input.drain(at..end)),
            3 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            4 => {
                let word = TELLING[random.below(TELLING.len())];
                input.splice(at..end.min(at + random.below(12)), word.iter().copied());
            }
            5 => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len());
                let part = other[from..(from + random.below(500)).min(other.len())].to_vec();
                input.splice(at..end, part);
            }
            _ => input.truncate(at.max(1)),
        }
    }
    input.truncate(LONGEST);
    input
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs `check` on the corpus and on changes of it.
fn run(name: &str, check: fn(&[u8])) {
    let inputs = corpus(name);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ number("FANFS_SEED").unwrap_or(1));
    let until = number("FANFS_HOSTILE_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let mut seen = 0;
    inputs.iter().for_each(|input| check(input));
    while until.map_or(seen < CHANGED, |until| Instant::now() < until) {
        let input = changed(&inputs, &mut random);
        if std::panic::catch_unwind(|| check(&input)).is_err() {
            let text = String::from_utf8_lossy(&input);
            panic!("changed input {seen} of {name}: {text:?}");
        }
        seen += 1;
    }
    println!("{name}: {} inputs, {seen} changed ones", inputs.len());
}

#[test]
fn hostile_volume_files_are_parsed_or_refused() {
    run("config", config::check_volume);
}

#[test]
fn hostile_provider_answers_are_parsed_or_refused() {
    run("placement", placement::check_answer);
}

#[test]
fn hostile_messages_and_mount_tables_are_handled() {
    run("control", control::check_message);
}
