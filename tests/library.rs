//! The library's parts without a mount, with simulated time.

mod config;
mod conformance;
mod hostile;
mod locator;
mod loopback;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[allow(dead_code, reason = "tests here need less than others")]
mod nfs_server;
mod sim;
mod sim_faults;
mod simulate;

use std::fs;
use std::path::Path;

/// Cargo does not look for test binaries (`autotests = false`), so a file that no binary
/// has would never run.
#[test]
fn every_file_of_tests_is_in_a_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let files = fs::read_dir(root.join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<(String, String)> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect();
    let is_binary = |name: &str| manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
    let roots: Vec<&String> =
        sources.iter().filter(|(name, _)| is_binary(name)).map(|(_, text)| text).collect();
    for (name, _) in &sources {
        let line = format!("mod {name};");
        let is_module = roots.iter().any(|text| text.lines().any(|found| found == line));
        assert!(is_binary(name) || is_module, "no test binary has tests/{name}.rs");
    }
    assert!(roots.len() > 5, "Cargo.toml names its tests in another way");
}
