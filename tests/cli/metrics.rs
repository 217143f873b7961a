//! Metrics as another process fetches them, and their removal at the end. `tests/observability/run`
//! does the same with a Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fanfs::metrics::METRICS;
use rustix::process::{Pid, Signal, kill_process};

use crate::loopback::own_address;
use crate::machine::{attempts, timed};
use crate::needs;
use crate::room::Room;

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let answer = ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    (!answer.is_empty()).then_some(answer)
}

/// The value of a metric that has these labels.
pub(crate) fn value(text: &str, start: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(start))?.trim().parse().ok()
}

fn listening(listen: &str) -> String {
    format!("[metrics]\nlisten = \"{listen}\"\n")
}

#[test]
fn reads_appear_in_the_metrics() {
    attempts(read_and_fetch_metrics);
}

fn read_and_fetch_metrics() {
    let (room, address) = (Room::new(), own_address());
    room.volume("v.toml", "", &listening(&address.to_string()));
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/hello")).unwrap();
    let text = get(address, "/metrics").unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{text}");
    assert_eq!(value(&text, "fanfs_read_bytes_total{volume=\"v\"}"), Some(6.0));
    assert_eq!(value(&text, "fanfs_read_duration_seconds_count{volume=\"v\"}"), Some(1.0));
    let of = |replica: &str| {
        value(&text, &format!("fanfs_replica_reads_total{{volume=\"v\",replica=\"{replica}\"}}"))
    };
    assert_eq!(of("r1").unwrap() + of("r2").unwrap(), 1.0);
    // Every declared metric of such a volume is present: it has no affinity rules and no exports, and
    // six bytes measure no bandwidth.
    let is_absent = |name: &str| {
        name.contains("affinity")
            || name.starts_with("fanfs_nfs_")
            || name.contains("estimated_bandwidth")
    };
    for metric in METRICS.iter().filter(|metric| !is_absent(metric.name)) {
        assert!(text.contains(&format!("# TYPE {} ", metric.name)), "{}", metric.name);
    }
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert!(status["counters"]["read_latency"]["max_us"].as_u64().unwrap() > 0, "{status}");
    assert!(get(address, "/").unwrap().contains("/metrics"));
    assert!(get(address, "/healthz").unwrap().ends_with("\r\n\r\nok\n"));
    assert!(get(address, "/metrics/").unwrap().starts_with("HTTP/1.1 404 "));
    let stream = TcpStream::connect(address).unwrap();
    let refused = ask(stream, "DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET, HEAD"),
        "{refused}"
    );
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_incomplete_metrics_request_is_cut_off() {
    let (room, address) = (Room::new(), own_address());
    room.volume("v.toml", "", &listening(&address.to_string()));
    room.expect(&["mount", "v.toml", "mnt"]);
    let connect = || TcpStream::connect(address).unwrap();
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    let large = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let ((), took) = timed(|| {
        room.eventually("another client is answered", || {
            get(address, "/metrics").is_some_and(|text| text.contains("fanfs_reads_total"))
        });
        // A peer that sends too much is cut off as well, with an error.
        assert!(!ask(connect(), &large).contains("fanfs_reads_total"));
        fs::read(room.path("mnt/hello")).unwrap();
    });
    assert!(took < Duration::from_secs(30), "{took:?}");
    drop(silent);
    room.expect(&["umount", "mnt"]);
}

#[test]
fn the_metrics_socket_and_file_go_with_the_mount() {
    let room = Room::new();
    let (socket, file) = (room.path("v.metrics"), room.path("v.prom"));
    let more = format!(
        "{}textfile = \"{}\"\ninterval = \"1s\"\n",
        listening(&format!("unix:{}", socket.display())),
        file.display()
    );
    room.volume("v.toml", "", &more);
    // The files of a killed daemon do not block the next one.
    drop(UnixListener::bind(&socket).unwrap());
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/hello")).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\
                   Accept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let text = ask(UnixStream::connect(&socket).unwrap(), request);
    assert!(text.contains("application/openmetrics-text; version=1.0.0"), "{text}");
    assert!(text.contains("\nfanfs_reads_total{volume=\"v\"} 1\n"), "{text}");
    let written = || fs::read_to_string(&file).unwrap_or_default();
    room.eventually("the file says so as well", || {
        written().contains("fanfs_reads_total{volume=\"v\"} 1\n")
    });
    assert!(!written().contains("process_"), "node_exporter has those itself");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o644);
    room.expect(&["reload", "mnt"]);
    room.eventually("the next daemon says so", || {
        let answer = UnixStream::connect(&socket).map(|stream| ask(stream, request));
        answer.is_ok_and(|text| text.contains("\nfanfs_reads_total{volume=\"v\"} 0\n"))
    });
    room.eventually("and writes so", || written().contains("fanfs_reads_total{volume=\"v\"} 0\n"));
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    assert!(!socket.exists() && !file.exists());
    let left: Vec<_> =
        fs::read_dir(room.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with(".fanfs")), "{left:?}");
}

#[test]
fn an_unusable_metrics_address_fails_before_mounting() {
    let room = Room::new();
    let here = UnixListener::bind(room.path("here")).unwrap();
    fs::write(room.path("file"), "mine").unwrap();
    let unix = |name: &str| listening(&format!("unix:{}", room.path(name).display()));
    let textfile = "[metrics]\ntextfile = \"/nowhere/v.prom\"\n".to_owned();
    let hold = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listening(&hold.local_addr().unwrap().to_string());
    let address = hold.local_addr().unwrap().to_string();
    for (more, key, place) in [
        (port, "metrics.listen", address),
        (listening("192.0.2.1:19469"), "metrics.listen", "192.0.2.1:19469".to_owned()),
        (unix("here"), "metrics.listen", room.path("here").display().to_string()),
        (unix("file"), "metrics.listen", "it exists and is not a socket".to_owned()),
        (unix("none/socket"), "metrics.listen", "none/socket".to_owned()),
        (textfile, "metrics.textfile", "/nowhere/v.prom".to_owned()),
    ] {
        room.volume("v.toml", "", &more);
        let output = room.fanfs(&["mount", "v.toml", "mnt"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let is_refused = said.contains(&format!("v.toml: key `{key}`: ")) && said.contains(&place);
        assert!(is_refused && said.lines().count() == 1, "{said}");
        assert!(room.mounted().is_none() && room.daemons().is_empty());
    }
    assert_eq!(fs::read_to_string(room.path("file")).unwrap(), "mine");
    drop(here);
}

#[test]
fn a_reload_changes_the_metrics_address() {
    let (room, first, second) = (Room::new(), own_address(), own_address());
    let socket = room.path("v.metrics");
    room.volume("v.toml", "", &listening(&first.to_string()));
    room.expect(&["mount", "v.toml", "mnt"]);
    // The same address again, while another client keeps asking there.
    for _ in 0..3 {
        room.expect(&["reload", "mnt"]);
        room.eventually("it answers", || get(first, "/metrics").is_some());
    }
    room.volume("v.toml", "", &listening(&format!("unix:{}", socket.display())));
    room.expect(&["reload", "mnt"]);
    room.eventually("it answers at the socket", || UnixStream::connect(&socket).is_ok());
    room.eventually("and there no more", || get(first, "/metrics").is_none());
    let taken = TcpListener::bind(second).unwrap();
    room.volume("v.toml", "", &listening(&second.to_string()));
    room.expect(&["reload", "mnt"]);
    room.eventually("the socket is gone", || !socket.exists());
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    room.eventually("the log reports it", || {
        let log = room.log();
        log.lines().any(|line| {
            line.contains("WARN")
                && line.contains("metrics.listen")
                && line.contains(&second.to_string())
        })
    });
    drop(taken);
    room.eventually("it answers there", || get(second, "/metrics").is_some());
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn metrics_continue_after_a_kill_of_the_daemon() {
    let (room, address) = (Room::new(), own_address());
    room.volume("v.toml", "", &listening(&address.to_string()));
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper"]);
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let pid = Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    room.eventually("the next one answers", || get(address, "/metrics").is_some());
    room.eventually("it can be unmounted", || {
        room.fanfs(&["umount", "mnt"]).output().unwrap().status.success()
    });
    room.expect_gone();
}

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name)
}

/// The names of fanfs metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !word(c)).filter(|name| name.starts_with("fanfs_"));
    words.map(str::to_owned).collect()
}

#[test]
fn rules_and_dashboard_use_existing_metrics() {
    let dashboard = fs::read_to_string(packaged("grafana/fanfs.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(!panel["description"].as_str().unwrap_or_default().is_empty(), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}");
            expressions.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    assert!(expressions.len() > 20);
    let rules = fs::read_to_string(packaged("prometheus/fanfs.rules.yml")).unwrap();
    let tests = fs::read_to_string(packaged("prometheus/fanfs.rules.test.yml")).unwrap();
    for name in named(&expressions.join("\n")).into_iter().chain(named(&rules)).chain(named(&tests))
    {
        let of_histogram =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        let is_there = |name: &str| METRICS.iter().any(|metric| metric.name == name);
        assert!(is_there(&name) || of_histogram.is_some_and(is_there), "there is no metric {name}");
    }
    // Each alert is tried.
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

#[test]
fn promtool_finds_no_problems() {
    attempts(check_metrics_with_promtool);
}

fn check_metrics_with_promtool() {
    if !needs::program("promtool") {
        return;
    }
    let (room, address) = (Room::new(), own_address());
    room.volume("v.toml", "", &listening(&address.to_string()));
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/hello")).unwrap();
    let text = get(address, "/metrics").unwrap();
    room.expect(&["umount", "mnt"]);
    let (_, metrics) = text.split_once("\r\n\r\n").unwrap();
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let said = check.wait_with_output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty() && said.stdout.is_empty(), "{said:?}");
    for (what, file) in [("check", "fanfs.rules.yml"), ("test", "fanfs.rules.test.yml")] {
        let said = Command::new("promtool")
            .args([what, "rules", file])
            .current_dir(packaged("prometheus"))
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
    }
}
