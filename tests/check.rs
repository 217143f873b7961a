//! `fanfs check`'s survey over real mounts.
//!
//! Each test runs itself again as a child in a private mount namespace, so its mounts disappear
//! with the child, however it ends. Where that is not permitted the test prints so and passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanfs::cli::check::CheckReport;
use fanfs::config::placement::ProviderConfig;
use fanfs::config::units::Share;
use fanfs::config::{
    Access, CachePolicy, Config, FuseConfig, LockMode, MemoryConfig, Passthrough, PlacementConfig,
    ReadConfig, ReplicaConfig, VolumeConfig, WriteConfig,
};
use fanfs::survey::{Severity, survey};
use fanfs::volume::{ReplicaId, VolumeMode};
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};

use crate::machine::{attempts, timed};
use crate::needs;
use crate::processes::Command;

/// All replicas answer, so no test waits this long.
const LIMIT: Duration = Duration::from_secs(60);

/// The limit where a replica never answers.
const SHORT_LIMIT: Duration = Duration::from_secs(1);

const DIRECTORY: &str = "FANFS_TEST_CHECK_DIRECTORY";
const RAN: &str = "ran";

/// Runs `body` in a scratch directory where it may mount.
fn with_mounts(test: &str, body: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        body(Path::new(&directory));
        fs::write(Path::new(&directory).join(RAN), "").expect("write");
        return;
    }
    let may_mount = Command::new("unshare").args(["-m", "true"]).status();
    let may_mount = may_mount.is_ok_and(|status| status.success());
    if !needs::machine(may_mount, "the right to `unshare -m`") {
        return;
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let status = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .arg(std::env::current_exe().expect("this test's path"))
        .args(["--exact", &format!("check::{test}"), "--nocapture"])
        .env(DIRECTORY, scratch.path().canonicalize().expect("canonical"))
        .status()
        .expect("unshare runs");
    assert!(status.success(), "{test} failed in its mount namespace");
    // A child that finds no test of that name also succeeds.
    assert!(scratch.path().join(RAN).exists(), "{test} is not the test's name");
}

fn directory(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).expect("create a directory");
    path
}

fn tmpfs(path: PathBuf) -> PathBuf {
    let path = directory(path);
    mount("tmpfs", &path, "tmpfs", MountFlags::empty(), None).expect("mount a tmpfs");
    path
}

fn config(mode: VolumeMode, paths: &[&Path]) -> Config {
    let replicas = paths.iter().map(|path| ReplicaConfig {
        name: path.file_name().expect("a name").to_string_lossy().into_owned(),
        location: path.to_path_buf().into(),
        node: "localhost".into(),
        aliases: Vec::new(),
        weight: 1.0,
        max_in_flight: None,
        max_rate: None,
        page_cache: fanfs::config::PageCache::Auto,
        require_mount: true,
    });
    Config {
        source: "test.toml".into(),
        volume: VolumeConfig {
            name: "test".into(),
            mode,
            chunk_size: 1 << 28,
            access: Access::ReadOnly,
            min_replicas: 1,
            immutable: false,
        },
        replicas: replicas.collect(),
        read: ReadConfig {
            segment_size: 1 << 20,
            readahead_max: 0,
            threads_per_replica: 1,
            max_in_flight: 1 << 20,
            deadline: Duration::from_secs(30),
            deadline_all: Duration::from_secs(300),
            attempt_deadline: Duration::from_secs(10),
            compare: Share(0.0),
            cache: CachePolicy::Kernel,
            passthrough: Passthrough::Off,
        },
        write: WriteConfig {
            replica: ReplicaId::new(0),
            deadline: Duration::from_secs(300),
            lag: Duration::ZERO,
            locks: LockMode::Forward,
        },
        memory: MemoryConfig { budget: 1 << 30 },
        fuse: FuseConfig {
            threads: 1,
            allow_other: false,
            kernel_tuning: false,
            splice: true,
            kernel_readahead: 0,
            max_background: 64,
            attribute_ttl: Duration::from_secs(1),
        },
        metrics: fanfs::config::MetricsConfig::default(),
        log: fanfs::config::LogConfig::default(),
        placement: PlacementConfig {
            provider: ProviderConfig::None,
            root: "/".into(),
            timeout: Duration::from_secs(20),
            ttl: Duration::from_secs(600),
            retry_after: Duration::from_secs(30),
        },
        affinities: Vec::new(),
    }
}

fn check(mode: VolumeMode, paths: &[&Path], limit: Duration) -> CheckReport {
    let config = config(mode, paths);
    let report = CheckReport::new(&config, &survey(config.survey_request(None), limit));
    eprintln!("{report}");
    report
}

fn errors(report: &CheckReport) -> Vec<&str> {
    let errors = report.findings.iter().filter(|remark| remark.severity == Severity::Error);
    errors.map(|remark| remark.text.as_str()).collect()
}

#[test]
fn impossible_passthrough_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(VolumeMode::Shared, &[dir.path()]);
    let found = |config: &Config| {
        let report = CheckReport::new(config, &survey(config.survey_request(None), LIMIT));
        report.findings.iter().any(|remark| remark.text.contains("has a max_rate"))
    };
    config.replicas[0].max_rate = Some(1 << 20);
    assert!(!found(&config), "it is not configured");
    config.read.passthrough = Passthrough::WholeFile;
    assert!(found(&config));
    config.replicas[0].max_rate = None;
    assert!(!found(&config));
}

#[test]
fn two_bind_mounts_of_one_directory_are_one_file_system() {
    with_mounts("two_bind_mounts_of_one_directory_are_one_file_system", |scratch| {
        let data = tmpfs(scratch.join("data"));
        let (a, b) = (directory(scratch.join("a b")), directory(scratch.join("b")));
        for replica in [&a, &b] {
            mount_bind(&data, replica).expect("bind mount");
        }
        let report = check(VolumeMode::Shared, &[&a, &b], LIMIT);
        assert_eq!(errors(&report), [""; 0]);
        assert!(report.findings.iter().any(|r| r.text.contains("are on one file system")));
        let row = &report.replicas[0];
        assert_eq!((row.state, row.fs_type.as_deref()), ("ok", Some("tmpfs")));
        assert_eq!(row.mount_point.as_deref(), a.to_str(), "the octal escape is undone");
    });
}

#[test]
fn two_file_systems_are_not_a_shared_volume() {
    with_mounts("two_file_systems_are_not_a_shared_volume", |scratch| {
        let (a, b) = (tmpfs(scratch.join("a")), tmpfs(scratch.join("b")));
        let report = check(VolumeMode::Shared, &[&a, &b], LIMIT);
        let [error] = errors(&report)[..] else { panic!("not one error: {report}") };
        for row in &report.replicas {
            let inode = row.root_inode.expect("an inode number");
            assert!(error.contains(&format!("{} has root inode {inode} ", row.name)), "{error}");
        }
        assert!(error.contains("mode = \"copies\""), "{error}");
    });
}

#[test]
fn copies_with_differing_content_are_reported() {
    with_mounts("copies_with_differing_content_are_reported", |scratch| {
        let (a, b) = (tmpfs(scratch.join("a")), tmpfs(scratch.join("b")));
        for replica in [&a, &b] {
            fs::write(replica.join("same"), "same").expect("write");
        }
        let differ =
            |report: &CheckReport| report.findings.iter().any(|r| r.text.contains("differ:"));
        assert!(!differ(&check(VolumeMode::Copies, &[&a, &b], LIMIT)));
        fs::write(b.join("same"), "longer").expect("write");
        let report = check(VolumeMode::Copies, &[&a, &b], LIMIT);
        assert!(differ(&report) && errors(&report).is_empty());
    });
}

#[test]
fn a_directory_that_is_not_a_mount_point_is_an_error() {
    with_mounts("a_directory_that_is_not_a_mount_point_is_an_error", |scratch| {
        let (a, b) = (tmpfs(scratch.join("a")), directory(scratch.join("b")));
        let report = check(VolumeMode::Shared, &[&a, &b, &scratch.join("nowhere")], LIMIT);
        let errors = errors(&report);
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors.iter().any(|text| text.contains("nowhere) does not exist")), "{errors:?}");
        assert!(errors.iter().any(|text| text.contains("mount it: `mount ")), "{errors:?}");
    });
}

/// A FUSE mount whose daemon never answers FUSE_INIT: open(2) waits forever.
#[test]
fn a_hung_mount_does_not_hang_the_survey() {
    with_mounts("a_hung_mount_does_not_hang_the_survey", |scratch| {
        use std::os::fd::AsRawFd;
        let Ok(daemon) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
            needs::machine(false, "/dev/fuse");
            return;
        };
        let (a, hung) = (tmpfs(scratch.join("a")), directory(scratch.join("hung")));
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", daemon.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("no NUL");
        mount("test", &hung, "fuse.hung", MountFlags::empty(), Some(&*options)).expect("mount");

        // The other replica has to answer within the limit.
        attempts(|| {
            let (report, took) = timed(|| check(VolumeMode::Shared, &[&a, &hung], SHORT_LIMIT));
            assert!(took < Duration::from_secs(30), "{took:?}");
            assert_eq!(report.replicas[0].state, "ok");
            let row = &report.replicas[1];
            assert_eq!((row.state, row.fs_type.as_deref()), ("silent", Some("fuse.hung")));
            assert!(errors(&report)[0].contains("did not answer within 1s"), "{report}");
        });
        // Closing the device ends the connection, and so the blocked thread.
        drop(daemon);
    });
}

#[test]
fn the_report_is_an_aligned_table_and_json() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let report = check(VolumeMode::Shared, &[&scratch.path().join("gone")], LIMIT);
    let text = report.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2].find("NODE"), lines[3].find("localhost"), "{text}");
    assert!(lines.last().is_some_and(|line| line.starts_with("error: replica gone (")), "{text}");
    let json = serde_json::to_value(&report).expect("serializes");
    assert_eq!(json["mode"], "shared");
    assert_eq!(json["replicas"][0]["state"], "absent");
    assert_eq!(json["replicas"][0]["root_inode"], serde_json::Value::Null);
    assert_eq!(json["findings"][0]["severity"], "error");
    assert_eq!(json["findings"][0]["replicas"][0], "gone");
}

fn warnings(report: &CheckReport) -> Vec<&str> {
    let warnings = report.findings.iter().filter(|remark| remark.severity == Severity::Warning);
    // The tmpfs is on no network.
    let local = |text: &&str| !text.contains("not on a network") && !text.contains("file system");
    warnings.map(|remark| remark.text.as_str()).filter(local).collect()
}

#[test]
fn read_only_replicas_of_a_writable_volume_are_named() {
    with_mounts("read_only_replicas_of_a_writable_volume_are_named", |scratch| {
        let data = tmpfs(scratch.join("data"));
        let paths = ["a", "b"].map(|name| directory(scratch.join(name)));
        for path in &paths {
            mount_bind(&data, path).expect("bind mount");
        }
        let report = |access| {
            let mut config = config(VolumeMode::Shared, &[&paths[0], &paths[1]]);
            config.volume.access = access;
            let report = CheckReport::new(&config, &survey(config.survey_request(None), LIMIT));
            eprintln!("{report}");
            report
        };
        let read_only =
            |path: &Path| mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "");
        let good = report(Access::ReadWrite);
        assert_eq!((errors(&good), warnings(&good)), (vec![], vec![]));
        read_only(&paths[1]).expect("remount");
        let one = report(Access::ReadWrite);
        assert_eq!(errors(&one), [""; 0]);
        let [text] = warnings(&one)[..] else { panic!("not one warning: {one}") };
        assert!(
            text.starts_with("replica b (") && text.contains(" is mounted read-only"),
            "{text}"
        );
        read_only(&paths[0]).expect("remount");
        let both = report(Access::ReadWrite);
        assert!(errors(&both)[0].starts_with("replica a ("), "{both}");
        assert_eq!(warnings(&both).len(), 1, "{both}");
        let reads = report(Access::ReadOnly);
        assert_eq!((errors(&reads), warnings(&reads)), (vec![], vec![]));
    });
}

#[test]
fn copies_over_three_paths_to_one_tree_are_named() {
    with_mounts("copies_over_three_paths_to_one_tree_are_named", |scratch| {
        let data = tmpfs(scratch.join("data"));
        fs::write(data.join("file"), "same").expect("write");
        let paths = ["a", "b", "c"].map(|name| directory(scratch.join(name)));
        for path in &paths {
            mount_bind(&data, path).expect("bind mount");
        }
        let [a, b, c] = &paths;
        let report = check(VolumeMode::Copies, &[a, b, c], LIMIT);
        let [text] = warnings(&report)[..] else { panic!("not one warning: {report}") };
        assert!(text.starts_with("replicas a, b and c appear to be one directory tree"), "{text}");
        assert_eq!(warnings(&check(VolumeMode::Shared, &[a, b, c], LIMIT)), [""; 0]);
        // Two trees with the same content.
        let copy = tmpfs(scratch.join("copy"));
        fs::write(copy.join("file"), "same").expect("write");
        assert_eq!(warnings(&check(VolumeMode::Copies, &[a, &copy], LIMIT)), [""; 0]);
    });
}
