//! Placement and affinities from the user's view: unusable ones are refused, used ones are shown.

use std::fs;

use crate::machine::attempts;
use crate::room::Room;

fn table(room: &Room) -> String {
    let table = room.path("table.csv");
    format!("[placement]\nprovider = \"table\"\nfile = \"{}\"", table.display())
}

/// `fanfs check` and `fanfs mount`, in the foreground and not, refuse `v.toml` for the error in its
/// placement.
fn refused(room: &Room, expected: &str) {
    let begin = format!("fanfs: v.toml: [placement]: {expected}");
    let absolute = format!("fanfs: {}", room.path("v.toml: [placement]: ").display()) + expected;
    for args in [
        &["check", "v.toml"][..],
        &["check", "v.toml", "--json"],
        &["mount", "v.toml", "mnt", "--foreground"],
        &["mount", "v.toml", "mnt"],
    ] {
        let output = room.fanfs(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        // The daemon gets the absolute path.
        assert!(said.starts_with(&begin) || said.starts_with(&absolute), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    room.expect_gone();
}

#[test]
fn an_unusable_table_is_refused() {
    let room = Room::new();
    room.volume("v.toml", "", &table(&room));
    let at = format!("table {}: ", room.path("table.csv").display());
    refused(&room, &format!("{at}No such file or directory"));
    fs::write(room.path("table.csv"), "path,start,end,nodes\n/a,0,1,n1\n").unwrap();
    refused(&room, &format!("{at}line 2: "));
    fs::write(room.path("table.csv"), "path,start,end,nodes\n/**,,,r1\n").unwrap();
    room.expect(&["check", "v.toml"]);
}

#[test]
fn unreadable_certificates_are_refused() {
    let room = Room::new();
    let ca = room.path("ca.pem");
    let more = format!(
        "[placement]\nprovider = \"hdfs\"\nurl = [\"https://nn1:9871\"]\nca_file = \"{}\"",
        ca.display()
    );
    room.volume("v.toml", "", &more);
    refused(&room, &ca.display().to_string());
    fs::write(&ca, "no certificate").unwrap();
    refused(&room, &ca.display().to_string());
}

fn status(room: &Room) -> (String, serde_json::Value) {
    let text = String::from_utf8(room.expect(&["status", "mnt"]).stdout).unwrap();
    let json = room.expect(&["status", "mnt", "--json"]).stdout;
    (text, serde_json::from_slice(&json).unwrap())
}

#[test]
fn status_shows_placement_and_affinities() {
    let room = Room::new();
    fs::write(room.path("tree/big"), vec![7; 4 << 20]).unwrap();
    fs::create_dir(room.path("tree/a")).unwrap();
    fs::write(room.path("table.csv"), "path,start,end,nodes\n/big,,,r1 r2 elsewhere\n").unwrap();
    let rule = "[[affinity]]\npath = \"/a/**\"\nreplica = \"r2\"";
    room.volume("v.toml", "", &format!("{}\n{rule}", table(&room)));
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(fs::read_dir(room.path("mnt/a")).unwrap().count(), 0);
    fs::read(room.path("mnt/hello")).unwrap();
    room.eventually("the table has been asked", || {
        fs::File::open(room.path("mnt/big")).unwrap();
        std::io::Read::read(&mut fs::File::open(room.path("mnt/big")).unwrap(), &mut [0]).unwrap();
        status(&room).1["placement"]["answers"].as_u64().unwrap() >= 2
    });
    assert_eq!(fs::read(room.path("mnt/big")).unwrap().len(), 4 << 20);
    let (text, json) = status(&room);
    let answers = json["placement"]["answers"].as_u64().unwrap();
    let line = format!("  placement: table, 2 files, {answers} answers, 0 failures; 100% of ");
    assert!(text.contains(&line) && text.contains(" MiB read locally\n"), "{text}");
    let warning = "  warning: no replica is on elsewhere; see `aliases`\n";
    assert!(text.contains(warning), "{text}");
    let calls = json["affinities"][0]["calls"].as_u64().unwrap();
    assert!(calls > 0);
    assert!(text.contains(&format!("  affinity /a/** -> r2: {calls} calls, ")), "{text}");
    assert_eq!(json["placement"]["provider"], "table");
    assert_eq!(json["placement"]["unmatched"][0], "elsewhere");
    assert_eq!(json["affinities"][0]["replicas"][0], "r2");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn status_warns_of_a_failing_provider() {
    let room = Room::new();
    fs::write(room.path("tree/big"), vec![7; 8 << 20]).unwrap();
    let more = "[placement]\nprovider = \"exec\"\ncommand = [\"sh\", \"-c\", \"echo it is away >&2; exit 4\"]";
    room.volume("v.toml", "", more);
    room.expect(&["mount", "v.toml", "mnt"]);
    assert_eq!(fs::read(room.path("mnt/big")).unwrap().len(), 8 << 20);
    room.eventually("it has failed", || status(&room).1["placement"]["failures"] == 1);
    let (text, json) = status(&room);
    assert!(text.contains("  placement: exec, 1 file, 0 answers, 1 failure\n"), "{text}");
    let failing = "sh failed (exit status: 4): it is away";
    assert!(text.contains(&format!("  warning: placement query failed: {failing}\n")), "{text}");
    assert_eq!(json["placement"]["failing"], failing);
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn status_omits_unset_placement() {
    attempts(show_status_without_placement);
}

fn show_status_without_placement() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    fs::read(room.path("mnt/hello")).unwrap();
    let (text, json) = status(&room);
    for word in ["placement", "affinity", "locally", "warning"] {
        assert!(!text.contains(word), "{text}");
    }
    assert_eq!(json["placement"]["provider"], "none");
    assert_eq!(json["affinities"], serde_json::json!([]));
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn without_a_provider_unknown_chunks_are_not_mentioned() {
    let room = Room::new();
    let output = room.expect(&["explain", "--volume", "v.toml", "/hello"]).stdout;
    let text = String::from_utf8(output).unwrap();
    assert_eq!(text.lines().next(), Some("/hello: 6 B, placement unknown"));
    for untrue in ["0 chunks", "0 B", "0% of it", "read locally"] {
        assert!(!text.contains(untrue), "{untrue}: {text}");
    }
    assert!(text.contains("no placement provider is configured"), "{text}");
    // A provider knows them, so the output says where they are.
    room.volume("v.toml", "", &table(&room));
    fs::write(room.path("table.csv"), "path,start,end,nodes\n/hello,,,r1\n").unwrap();
    let output = room.expect(&["explain", "--volume", "v.toml", "/hello"]).stdout;
    let text = String::from_utf8(output).unwrap();
    let first = "/hello: 6 B in 1 chunk, placement by table";
    assert_eq!(text.lines().next(), Some(first), "{text}");
    assert!(text.contains("% of it read locally"), "{text}");
}
