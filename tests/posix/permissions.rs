//! Permissions: thousands of small cases, run on a replica's own directory and on the mount, with
//! equal results.
//!
//! The cases are those of `permissions.py`, which can also be run by hand. It becomes each user in
//! turn, so it needs root.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::python::{self, Python};

use crate::needs;
use crate::processes::Command;

/// The selected cases, about one of this many: some 3,000. `FANFS_EVERY=1` runs all of
/// them (74,000).
const EVERY: &str = "24";

/// The results of each case in both directories.
pub(crate) struct Compared {
    pub(crate) cases: usize,
    /// One line for each case with different results.
    pub(crate) differences: Vec<String>,
}

/// An empty directory, and the same directory by a path where root may do everything: that path is
/// used to build the cases and to look at the results. Both may be one path.
pub(crate) type Place<'a> = (&'a Path, &'a Path);

/// Runs the cases in `oracle` and in `mount`, two directories of the same backing. Returns `None`
/// without root or Python.
///
/// Results of the operations in `except` may differ: operations that the mount does not offer, and
/// refuses.
pub(crate) fn compare(oracle: Place<'_>, mount: Place<'_>, except: &[&str]) -> Option<Compared> {
    if !needs::root() {
        return None;
    }
    let python = python::find()?;
    let right = outcomes(python, oracle);
    let got = outcomes(python, mount);
    assert!(right.keys().eq(got.keys()), "the two runs had different cases");
    // If nothing is permitted, all results are equal.
    let allowed = right.values().filter(|is| is["result"].as_str().unwrap().starts_with("ok"));
    assert!(allowed.count() > right.len() / 3, "hardly anything was allowed");
    let excepted = |case: &str| except.contains(&case.split(" | ").nth(1).unwrap());
    let differences = right
        .iter()
        .filter(|(case, is)| got[*case] != **is && !excepted(case))
        .map(|(case, is)| difference(case, is, &got[case]))
        .collect();
    Some(Compared { cases: right.len(), differences })
}

/// The same, with equal results required; prints every difference.
pub(crate) fn expect_same(oracle: Place<'_>, mount: Place<'_>, except: &[&str]) {
    let Some(compared) = compare(oracle, mount, except) else { return };
    compared.differences.iter().for_each(|line| println!("{line}"));
    let (differ, cases) = (compared.differences.len(), compared.cases);
    assert!(cases >= 3000, "only {cases} cases");
    assert!(differ == 0, "{differ} of {cases} cases came out differently");
    println!("{cases} cases came out alike");
}

fn outcomes(python: Python, (dir, build): Place<'_>) -> BTreeMap<String, Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix/permissions.py");
    let every = std::env::var("FANFS_EVERY").unwrap_or_else(|_| EVERY.to_owned());
    let mut command = Command::new(python.0);
    command.arg(script).arg(dir).arg("--build").arg(build).args(["--every", &every]);
    let ended = command.output().unwrap();
    let (out, err) = (String::from_utf8(ended.stdout).unwrap(), ended.stderr);
    let err = String::from_utf8_lossy(&err);
    assert!(ended.status.success(), "in {}: {err}", dir.display());
    let parsed = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.map(|case| (case["case"].as_str().unwrap().to_owned(), case)).collect()
}

/// Only the differing part, of the names in the case's directory too.
fn difference(case: &str, right: &Value, got: &Value) -> String {
    let mut line = case.to_owned();
    if right["result"] != got["result"] {
        line += &format!("\n    result {}, should be {}", got["result"], right["result"]);
    }
    for view in ["state", "seen"] {
        let (right, got) = (&right[view], &got[view]);
        let names = right.as_object().unwrap().keys().chain(got.as_object().unwrap().keys());
        let names: std::collections::BTreeSet<_> = names.collect();
        for name in names.into_iter().filter(|name| right[*name] != got[*name]) {
            line += &format!("\n    {view} of {name} {}, should be {}", got[name], right[name]);
        }
    }
    line
}
