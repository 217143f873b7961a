//! Commands that measure replicas, over NFS servers without a mount.

use std::fs;

use serde_json::Value;

use crate::loopback::own_address;
use crate::machine::attempts;
use crate::nfs_server::{BadReads, NfsServer};
use crate::nfs4_server::Server;
use crate::room::Room;

/// A volume `exports.toml` of two servers of one tree, which has the file `d/large` of 24 MiB.
struct Exports {
    room: Room,
    servers: [NfsServer; 2],
}

impl Exports {
    fn new() -> Self {
        let room = Room::new();
        let root = room.path("served");
        fs::create_dir_all(root.join("d")).unwrap();
        // More than are looked at in one go.
        for i in 0..150 {
            fs::write(root.join(format!("d/small{i}")), "x").unwrap();
        }
        let data: Vec<u8> = (0..3_u64 << 20).flat_map(u64::to_le_bytes).collect();
        fs::write(root.join("d/large"), data).unwrap();
        let servers = [(); 2].map(|()| NfsServer::new(&root, None));
        let mut volume = "[volume]\nname = \"exports\"\nmode = \"shared\"\n".to_owned();
        for server in &servers {
            volume.push_str(&format!("[[replica]]\n{}", server.replica_keys()));
        }
        fs::write(room.path("exports.toml"), volume).unwrap();
        Self { room, servers }
    }

    /// The report of a short bench.
    fn bench(&self, deadline: &str) -> Value {
        let loads = ["--block", "64KiB", "--random-block", "4KiB", "--readers", "2"];
        self.report(&[&["bench", "--rounds", "1", "--deadline", deadline], &loads[..]].concat())
    }

    /// The report of doctor, which measures for a short time.
    fn measure(&self, deadline: &str) -> Value {
        self.report(&["doctor", "--measure", "--deadline", deadline])
    }

    /// The report of a command.
    fn report(&self, args: &[&str]) -> Value {
        let args = [args, &["exports.toml", "--seconds", "1", "--json"]].concat();
        let mut command = self.room.fanfs(&args);
        let output = command.env("TMPDIR", self.room.path("mnt")).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

#[test]
fn bench_reads_exports_directly_and_through_fanfs() {
    let exports = Exports::new();
    let report = exports.bench("1min");
    assert_eq!(
        (&report["file"], &report["failed"]),
        (&"d/large".into(), &false.into()),
        "{report}"
    );
    assert_eq!(report["replicas"].as_array().unwrap().len(), 2);
    for replica in report["replicas"].as_array().unwrap() {
        assert_eq!(replica["raw_reads"], "NFS", "{replica}");
        assert!(replica["path"].as_str().unwrap().starts_with("nfs://"), "{replica}");
    }
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<&str> = rows.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    for kind in ["alone", "sum", "fanfs"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let is_read = |row: &Value| row["mib_per_second"]["median"].as_f64().is_some_and(|it| it > 0.0);
    assert!(rows.iter().all(is_read), "{report}");
}

#[test]
fn a_hung_or_absent_server_costs_its_own_rows_only() {
    attempts(|| {
        let exports = Exports::new();
        // Nothing listens there.
        let absent = own_address();
        let port = absent.port();
        let mut volume = fs::read_to_string(exports.room.path("exports.toml")).unwrap();
        volume.push_str(&format!(
            "[[replica]]\naddress = \"nfs://{absent}/\"\nmount_port = {port}\n"
        ));
        fs::write(exports.room.path("exports.toml"), volume).unwrap();
        exports.servers[1].hang(true);
        let report = exports.bench("5s");
        assert_eq!(report["failed"], true, "{report}");
        let why = |i: usize| report["replicas"][i]["failure"].as_str().unwrap_or("").to_owned();
        assert_eq!(why(0), "", "{report}");
        assert!(why(1).contains("answer") && why(2).contains("refused"), "{report}");
        let rows = report["rows"].as_array().unwrap();
        let is_read = |row: &Value| row["mib_per_second"]["median"].as_f64() > Some(0.0);
        assert!(rows.iter().any(|row| row["kind"] == "fanfs" && is_read(row)), "{report}");

        let report = exports.measure("5s");
        let measured = &report["facts"]["measured"];
        let bytes = |i: usize| measured["alone"][i]["bytes"].as_u64();
        assert_eq!((measured["failed"].as_str(), bytes(1), bytes(2)), (None, Some(0), Some(0)));
        assert!(bytes(0) > Some(0), "{measured}");
    });
}

#[test]
fn a_server_that_reads_nothing_is_asked_once() {
    attempts(|| {
        let exports = Exports::new();
        let volume = fs::read_to_string(exports.room.path("exports.toml")).unwrap();
        let limits =
            "[read]\nattempt_deadline = \"1s\"\ndeadline = \"1s\"\ndeadline_all = \"3s\"\n";
        fs::write(exports.room.path("exports.toml"), format!("{volume}{limits}")).unwrap();
        exports.servers[1].set_bad_reads(BadReads { hung_from: 0, ..BadReads::NONE });
        let report = exports.bench("1min");
        let failures = report["rows"].as_array().unwrap().iter().flat_map(|row| {
            let failures = row["failures"].as_array().unwrap();
            failures.iter().map(|failure| failure.to_string()).collect::<Vec<_>>()
        });
        let failures: Vec<String> = failures.collect();
        let count = |what: &str| failures.iter().filter(|failure| failure.contains(what)).count();
        assert_eq!(count("did not answer in time"), 1, "{failures:?}");
        assert!(count("earlier pass") > 1, "{failures:?}");
    });
}

#[test]
fn doctor_measures_exports() {
    attempts(|| {
        let exports = Exports::new();
        let report = exports.measure("1min");
        let measured = &report["facts"]["measured"];
        assert_eq!((&measured["file"], &measured["failed"]), (&"d/large".into(), &Value::Null));
        assert_eq!(measured["alone"].as_array().unwrap().len(), 2);
        for replica in measured["alone"].as_array().unwrap() {
            assert_eq!((&replica["error"], &replica["silent"]), (&Value::Null, &false.into()));
            assert!(replica["bytes"].as_u64().unwrap() > 0, "{measured}");
        }
    });
}

#[test]
fn fio_cannot_read_exports() {
    let exports = Exports::new();
    // No replica is asked first.
    exports.servers.iter().for_each(|server| server.hang(true));
    for how in [&["--fio", "jobs"][..], &["--run-fio"]] {
        let args = [&["bench", "exports.toml", "--deadline", "10min"], how].concat();
        let output = exports.room.fanfs(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let is_missing = how == ["--run-fio"] && said.contains("which is not in $PATH");
        assert!(said.contains("fio reads mounts only") || is_missing, "{said}");
    }
    assert!(!exports.room.path("jobs").exists());
}

/// Replica `a` and `c` are addresses of one server, `b` is another one.
#[test]
fn doctor_knows_the_servers_of_exports() {
    let room = Room::new();
    let one = Server::start();
    let (other, again) = (Server::start(), one.at_another_address());
    let servers = [&one, &other, &again].map(|server| server.address);
    let mut volume = "[volume]\nname = \"v\"\nmode = \"shared\"\n".to_owned();
    for (name, address) in ["a", "b", "c"].into_iter().zip(servers) {
        volume +=
            &format!("[[replica]]\nname = \"{name}\"\naddress = \"nfs://{address}/export\"\n");
    }
    fs::write(room.path("v.toml"), volume).unwrap();
    let doctor = |what: &str| -> Value {
        let output = room.fanfs(&["doctor", what, "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let report = doctor("v.toml");
    let facts = &report["facts"];
    assert_eq!(facts["one_server"], serde_json::json!([[0, 2]]), "{report}");
    let export = &facts["replicas"][0]["export"];
    assert_eq!((&export["version"], &export["calls"]), (&"4.1".into(), &Value::Null), "{export}");
    assert_eq!(export["port"], servers[0].port(), "{export}");
    assert!(export["max_read"].as_u64().is_some_and(|most| most > 1 << 19), "{export}");
    assert_eq!(facts["replicas"][0]["route"]["interface"], "lo", "{facts}");
    let finding =
        report["findings"].as_array().unwrap().iter().find(|f| f["id"] == "export.server");
    assert_eq!(finding.unwrap()["replicas"], serde_json::json!(["a", "c"]), "{report}");
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/file")).unwrap();
    let report = doctor("v.toml");
    let replica = &report["facts"]["replicas"][0];
    assert!(replica["export"]["calls"]["calls"].as_u64() > Some(0), "{replica}");
    room.expect(&["umount", "mnt"]);
    // The same without a volume.
    let report = doctor(&format!("nfs://{},{}/export", servers[0], servers[1]));
    assert_eq!(report["facts"]["one_server"], serde_json::json!([]), "{report}");
    assert_eq!(report["facts"]["replicas"][1]["export"]["version"], "4.1", "{report}");
}
