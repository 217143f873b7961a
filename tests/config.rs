//! The configuration through its public interface: the values of the example files, and the exact
//! errors of malformed files ([`refusals`]).

mod placement;
mod refusals;

use std::fs;
use std::path::Path;
use std::time::Duration;

use fanfs::config::units::Share;
use fanfs::config::{
    self, Access, CachePolicy, Config, ListenAddress, LockMode, LogConfig, LogFormat,
    MetricsConfig, Passthrough, TextfileConfig,
};
use fanfs::volume::{ReplicaId, VolumeMode};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../config/example.toml");
const MINIMAL: &str = include_str!("../config/minimal.toml");

fn parse(text: &str) -> Result<Config, String> {
    config::parse(text, Path::new("v.toml")).map_err(|error| error.to_string())
}

/// A valid volume, followed by `more` from line 6 on.
fn with(more: &str) -> String {
    format!("[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\npath = '/a'\n{more}")
}

#[test]
fn the_minimal_file_gets_every_default() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!(config.source, Path::new("v.toml"));
    assert_eq!(config.volume.name, "data");
    assert_eq!(config.volume.mode, VolumeMode::Shared);
    assert_eq!(config.volume.chunk_size, 256 << 20);
    assert_eq!(config.volume.access, Access::ReadOnly);
    assert_eq!(config.replicas.len(), 2);
    let second = &config.replicas[1];
    assert_eq!(second.location.directory(), Some(Path::new("/mnt/gw2/data")));
    assert_eq!((second.name.as_str(), second.node.as_str()), ("r2", "r2"));
    assert_eq!(second.weight, 1.0);
    assert_eq!((second.max_in_flight, second.max_rate), (None, None));
    assert!(second.require_mount);
    assert_eq!(config.read.segment_size, 1 << 20);
    assert_eq!(config.read.readahead_max, 64 << 20);
    assert_eq!(config.read.threads_per_replica, 8);
    assert_eq!(config.read.max_in_flight, 32 << 20);
    assert_eq!(config.read.deadline, Duration::from_secs(30));
    assert_eq!(config.read.deadline_all, Duration::from_secs(300));
    assert_eq!(config.read.attempt_deadline, Duration::from_secs(5));
    assert_eq!(config.read.compare, Share(0.001));
    assert_eq!(config.read.cache, CachePolicy::Auto);
    assert_eq!(config.read.passthrough, Passthrough::Off);
    assert_eq!(config.write.replica, ReplicaId::new(0));
    assert_eq!(config.write.deadline, Duration::from_secs(300));
    assert_eq!(config.write.lag, Duration::from_secs(65));
    assert_eq!(config.write.locks, LockMode::Forward);
    assert_eq!(config.memory.budget, 256 << 20);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(config.fuse.threads, (cpus + 4).clamp(6, 12));
    assert!(!config.fuse.allow_other);
    assert!(config.fuse.kernel_tuning);
    assert!(config.fuse.splice);
    assert_eq!(config.fuse.kernel_readahead, 1 << 20);
    assert_eq!(config.fuse.max_background, 256);
    assert_eq!(config.fuse.attribute_ttl, Duration::from_secs(1));
    assert_eq!(config.metrics, MetricsConfig { listen: None, textfile: None });
    let level = "warn,fanfs=info".to_owned();
    assert_eq!(
        config.log,
        LogConfig { level, format: LogFormat::Text, rate: 10, max_size: 10 << 20 }
    );
}

#[test]
fn every_key_is_read() {
    let config = parse(
        r#"
        [volume]
        name = "v-2.x_y"
        mode = "copies"
        chunk_size = "4MiB"
        access = "ro"
        [[replica]]
        path = "/a"
        name = "a"
        node = "10.0.0.1:2049"
        weight = 2
        max_in_flight = "2MiB"
        max_rate = "100MB/s"
        require_mount = false
        [[replica]]
        path = "/b"
        node = "n"
        [[replica]]
        path = "/c"
        name = "c"
        [read]
        segment_size = "2MiB"
        readahead_max = "0B"
        threads_per_replica = 2
        max_in_flight = "4MiB"
        deadline = "1min"
        deadline_all = "4min"
        attempt_deadline = "50ms"
        cache = "direct"
        passthrough = "whole-file"
        [write]
        replica = "n"
        deadline = "2min"
        lag = "0s"
        locks = "local"
        [memory]
        budget = "32MiB"
        [fuse]
        threads = 64
        allow_other = true
        kernel_tuning = false
        splice = false
        kernel_readahead = "0B"
        attribute_ttl = "0s"
        [metrics]
        listen = "[::1]:19469"
        textfile = "/a/v.prom"
        interval = "1min"
        [log]
        level = "debug,fanfs::scheduler=trace"
        format = "json"
        rate = 0
        max_size = "0B"
        "#,
    )
    .unwrap();
    assert_eq!(config.volume.name, "v-2.x_y");
    assert_eq!(config.volume.mode, VolumeMode::Copies);
    assert_eq!(config.volume.chunk_size, 4 << 20);
    let named: Vec<_> = config.replicas.iter().map(|r| (&r.name[..], &r.node[..])).collect();
    assert_eq!(named, [("a", "10.0.0.1:2049"), ("n", "n"), ("c", "c")]);
    let first = &config.replicas[0];
    assert_eq!(first.weight, 2.0);
    assert_eq!((first.max_in_flight, first.max_rate), (Some(2 << 20), Some(100_000_000)));
    assert!(!first.require_mount);
    assert_eq!(config.read.segment_size, 2 << 20);
    assert_eq!(config.read.readahead_max, 0);
    assert_eq!(config.read.threads_per_replica, 2);
    assert_eq!(config.read.max_in_flight, 4 << 20);
    assert_eq!(config.read.deadline, Duration::from_secs(60));
    assert_eq!(config.read.deadline_all, Duration::from_secs(240));
    assert_eq!(config.read.attempt_deadline, Duration::from_millis(50));
    assert_eq!(config.read.cache, CachePolicy::Direct);
    assert_eq!(config.read.passthrough, Passthrough::WholeFile);
    assert_eq!(config.write.replica, ReplicaId::new(1));
    assert_eq!(config.write.deadline, Duration::from_secs(120));
    assert_eq!((config.write.lag, config.write.locks), (Duration::ZERO, LockMode::Local));
    assert_eq!(config.memory.budget, 32 << 20);
    assert_eq!(config.fuse.threads, 64);
    assert!(config.fuse.allow_other);
    assert!(!config.fuse.kernel_tuning);
    assert!(!config.fuse.splice);
    assert_eq!(config.fuse.kernel_readahead, 0);
    assert_eq!(config.fuse.attribute_ttl, Duration::ZERO);
    let listen = ListenAddress::Tcp("[::1]:19469".parse().unwrap());
    let textfile = TextfileConfig { path: "/a/v.prom".into(), interval: Duration::from_secs(60) };
    assert_eq!(config.metrics, MetricsConfig { listen: Some(listen), textfile: Some(textfile) });
    let level = "debug,fanfs::scheduler=trace".to_owned();
    assert_eq!(config.log, LogConfig { level, format: LogFormat::Json, rate: 0, max_size: 0 });
}

#[test]
fn metrics_listen_on_the_configured_address() {
    for (written, meant) in [
        ("19469", "127.0.0.1:19469"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::]:19469", "[::]:19469"),
        ("unix:/run/x.metrics", "unix:/run/x.metrics"),
    ] {
        let config = parse(&with(&format!("[metrics]\nlisten = '{written}'"))).unwrap();
        assert_eq!(config.metrics.listen.unwrap().to_string(), meant);
    }
}

#[test]
fn the_limits_themselves_are_accepted() {
    let replicas: String = (1..64).map(|n| format!("[[replica]]\npath = '/r{n}'\n")).collect();
    assert_eq!(parse(&with(&replicas)).unwrap().replicas.len(), 64);
    for valid in [
        "weight = 0.001",
        "weight = 1000",
        "max_rate = '64KiB/s'",
        "[read]\nsegment_size = '64KiB'",
        "[read]\nsegment_size = '16MiB'",
        "[read]\nreadahead_max = '1MiB'",
        "[read]\nthreads_per_replica = 256",
        "[read]\nmax_in_flight = '1MiB'",
        "[read]\ndeadline = '100ms'\nattempt_deadline = '100ms'",
        "[read]\ndeadline = '1h'\nattempt_deadline = '1h'",
        "[memory]\nbudget = '16MiB'",
        "[fuse]\nthreads = 1\nkernel_readahead = '64MiB'\nattribute_ttl = '1h'",
    ] {
        assert!(parse(&with(valid)).is_ok(), "{valid}: {:?}", parse(&with(valid)));
    }
    let long_name = MINIMAL.replace("\"data\"", &format!("{:?}", "n".repeat(64)));
    assert!(parse(&long_name).is_ok());
    assert!(parse(&long_name.replace("nn\"", "nnn\"")).is_err());
}

/// Keys of a replica without a mount.
const EXPORTS_OWN: [&str; 4] = ["address", "version", "connections", "mount_port"];

/// Keys of `[placement]` that only some providers use, and of `[[affinity]]`.
const PROVIDERS_OWN: [&str; 11] = [
    "root",
    "aliases",
    "command",
    "layout_command",
    "url",
    "user",
    "ca_file",
    "file =",
    "path = \"/scratch",
    "replica = ",
    "node = ",
];

/// The example with all commented-out keys enabled, except the keys in `except`.
fn uncommented(except: &[&str]) -> String {
    let is_key =
        |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ");
    let line = |line: &'static str| match line.strip_prefix('#') {
        Some(key) if is_key(key) && !except.iter().any(|e| key.starts_with(e)) => key,
        _ => line,
    };
    EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_shows_the_real_defaults() {
    let as_shipped = parse(EXAMPLE).unwrap();
    assert_eq!(as_shipped.replicas.len(), 3);
    let no_default =
        ["max_in_flight = \"16MiB\"", "max_rate", "threads =", "listen", "textfile", "interval"];
    let spelled_out = uncommented(&[&no_default[..], &PROVIDERS_OWN[..], &EXPORTS_OWN].concat());
    assert_eq!(
        spelled_out.lines().filter(|line| line.starts_with(char::is_alphabetic)).count(),
        44
    );
    assert_eq!(parse(&spelled_out).unwrap(), as_shipped);

    let with_limits = uncommented(&[&PROVIDERS_OWN[..], &EXPORTS_OWN].concat());
    let first = &parse(&with_limits).unwrap().replicas[0];
    assert_eq!((first.max_in_flight, first.max_rate), (Some(16 << 20), Some(100 << 20)));
}

#[test]
fn an_export_has_defaults_and_keeps_its_locks_here() {
    let text =
        "[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\naddress = 'nfs://gw1:20049//a/b/'\n";
    let config = parse(text).unwrap();
    let replica = &config.replicas[0];
    let export = replica.location.export().unwrap();
    assert_eq!(export.address.to_string(), "nfs://gw1:20049/a/b");
    assert_eq!((export.version, export.connections, export.mount_port), (None, 4, None));
    assert_eq!((replica.name.as_str(), replica.require_mount), ("r1", false));
    assert_eq!(config.write.locks, LockMode::Local);
    let more = parse(&format!("{text}connections = 16\nmount_port = 65535\n")).unwrap();
    let export = more.replicas[0].location.export().unwrap();
    assert_eq!((export.connections, export.mount_port), (16, Some(65535)));
    let newer = parse(&format!("{text}version = '4.1'\n")).unwrap();
    let export = newer.replicas[0].location.export().unwrap();
    assert_eq!(export.version.map(|version| version.to_string()).as_deref(), Some("NFSv4.1"));
    // Beside a directory, which keeps the locks.
    let mixed = parse(&with("[[replica]]\naddress = 'nfs://gw1/a'\n")).unwrap();
    assert_eq!(mixed.write.locks, LockMode::Forward);
    let shown: Vec<String> =
        mixed.replicas.iter().map(|replica| replica.location.to_string()).collect();
    assert_eq!(shown, ["/a", "nfs://gw1/a"]);
}

#[test]
fn an_unreadable_file_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |name: &str, content: Option<&[u8]>| {
        let path = dir.path().join(name);
        if let Some(content) = content {
            fs::write(&path, content).unwrap();
        }
        let error = config::load(&path).unwrap_err().to_string();
        error.strip_prefix(dir.path().to_str().unwrap()).unwrap().to_owned()
    };
    assert_eq!(
        refusal("none.toml", None),
        "/none.toml: cannot be read: No such file or directory (os error 2); check the path"
    );
    assert_eq!(
        refusal("", None),
        "/: cannot be read: Is a directory (os error 21); name a file in it"
    );
    assert_eq!(
        refusal("latin1.toml", Some(b"[volume]\nname = 'caf\xe9'\n")),
        "/latin1.toml:2: is not UTF-8; save it as UTF-8 text"
    );
    assert_eq!(
        refusal("big.toml", Some(&b"#".repeat((1 << 20) + 1))),
        "/big.toml: is larger than 1MiB; use a volume's configuration file (TOML)"
    );
    assert_eq!(
        refusal("line\nbreak.toml", Some(b"[reed]\n")),
        r"/line\nbreak.toml:1: table [reed] is not known; did you mean [read]?"
    );
}

#[test]
fn a_file_parses_like_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.toml");
    fs::write(&path, EXAMPLE).unwrap();
    assert_eq!(config::load(&path).unwrap(), config::parse(EXAMPLE, &path).unwrap());
}

/// A text after `key = `, valid or not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[\"'\\[{]{0,2}\\PC{0,12}[\"'\\]}]{0,2}",
        "'[0-9.]{1,22} ?[KMGTPE]?i?B?(/s)?'",
        "'[0-9]{1,20} ?(ns|us|ms|s|min|h|days|years)( [0-9]+s)?'",
        "-?[0-9]{1,25}",
        any::<f64>().prop_map(|number| format!("{number:?}")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        one_line(&text)?;
    }

    #[test]
    fn no_damage_to_a_valid_file_makes_the_parser_panic(
        at in 0..EXAMPLE.len(), cut in 0..200usize, insert in "(\\PC|\n){0,20}",
    ) {
        let example = uncommented(&[]);
        prop_assert!(example.is_ascii(), "or the cuts below must look for boundaries");
        let start = at.min(example.len());
        let end = (start + cut).min(example.len());
        one_line(&format!("{}{insert}{}", &example[..start], &example[end..]))?;
    }

    #[test]
    fn no_value_makes_the_parser_panic(key in 0..28usize, value in value()) {
        let example = uncommented(&[]);
        let is_key = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
        let line = example.lines().filter(is_key).nth(key).expect("28 keys are in the example");
        let name = line.split(" = ").next().unwrap();
        one_line(&example.replacen(line, &format!("{name} = {value}"), 1))?;
    }
}

/// Parses `text`, and checks that an error is one line that names the file.
fn one_line(text: &str) -> Result<(), TestCaseError> {
    if let Err(error) = parse(text) {
        prop_assert!(error.starts_with("v.toml:"), "{}", error);
        prop_assert!(!error.contains(['\n', '\r']), "{}", error);
    }
    Ok(())
}
