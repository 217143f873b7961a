use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{DaemonInfo, FORMAT, Status, sample};

const SCHEMA_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/status.schema.json");

/// The schema of a status, made from its types and their comments.
fn schema() -> Value {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Status>();
    schema.insert("title".to_owned(), "fanfs status --json".into());
    schema.to_value()
}

#[test]
fn the_checked_in_schema_matches_the_types() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("FANFS_BLESS").is_some() {
        return std::fs::write(SCHEMA_PATH, text).unwrap();
    }
    let kept = std::fs::read_to_string(SCHEMA_PATH).unwrap();
    assert!(kept == text, "FANFS_BLESS=1 cargo test --lib status writes {SCHEMA_PATH} again");
}

#[test]
fn a_status_is_valid_by_its_schema_and_survives_a_round_trip() {
    let status = sample::status(["n1", "n2"]);
    let json = serde_json::to_value(&status).unwrap();
    let schema = jsonschema::validator_for(&schema()).unwrap();
    let errors: Vec<String> = schema.iter_errors(&json).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(json["format"], FORMAT);
    let back: Status = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), json);
    // A key that is missing or has another type is an error.
    for (key, wrong) in [("format", None), ("time_s", Some(Value::from("now")))] {
        let mut json = json.clone();
        let object = json.as_object_mut().unwrap();
        match wrong {
            Some(wrong) => drop(object.insert(key.to_owned(), wrong)),
            None => drop(object.remove(key)),
        }
        assert!(!schema.is_valid(&json), "{key}");
    }
}

/// fuzz/seed makes inputs of it.
#[test]
fn a_recorded_status_is_of_this_format() {
    let status: Status =
        serde_json::from_str(include_str!("../../tests/fixtures/status.json")).unwrap();
    assert_eq!((status.format, status.replicas.len()), (FORMAT, 2));
}

#[test]
fn the_daemon_of_another_version_can_be_identified() {
    let old = include_str!("../../tests/fixtures/status-without-format.json");
    assert!(serde_json::from_str::<Status>(old).is_err());
    let info: DaemonInfo = serde_json::from_str(old).unwrap();
    assert_eq!((info.pid, &*info.version, info.keeper), (27512, "0.1.0", None));
    let now = serde_json::to_string(&sample::status(["n1"])).unwrap();
    let info: DaemonInfo = serde_json::from_str(&now).unwrap();
    assert_eq!((info.pid, &*info.replicas[0].name), (4711, "n1"));
}
