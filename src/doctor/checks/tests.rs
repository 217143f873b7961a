use super::*;
use crate::doctor::facts::*;

mod fixture;
/// The texts and remedies of findings.
mod words;

pub(crate) use fixture::healthy;
use fixture::{connection, export, healthy_exports, measured, nfs, reads, route, written};

type Plant = (&'static str, CheckStatus, fn(&mut DoctorFacts));

const W: CheckStatus = CheckStatus::Warn;
const B: CheckStatus = CheckStatus::Bad;

const PLANTS: &[Plant] = &[
    ("replica.answers", B, |f| f.replicas[1].state = "silent"),
    ("replica.answers", B, |f| f.replicas[1].state = "absent"),
    ("replica.answers", B, |f| f.replicas[1].state = "failed"),
    ("replica.answers", B, |f| {
        // The directory underneath the mount point.
        f.replicas[1] = ExaminedReplica {
            mount_point: Some("/".into()),
            fs_type: Some("ext4".into()),
            is_mounted: false,
            nfs: None,
            ..f.replicas[1].clone()
        };
    }),
    ("replica.volume", B, |f| {
        f.volume = Some("v".into());
        f.refused.push((vec![0, 1], "not the same file system".into(), true));
    }),
    ("replica.device", B, |f| {
        f.replicas[1].nfs = None;
        f.replicas[2].nfs = None;
        f.one_file_system.push(vec![1, 2]);
    }),
    ("nfs.connection", B, |f| {
        f.one_connection.push(vec![0, 1]);
        nfs(f, 1).addr = Some("10.0.1.2".into());
    }),
    ("nfs.connection", B, |f| {
        f.one_connection.push(vec![0, 1]);
        nfs(f, 1).server = "10.0.1.2".into();
    }),
    ("nfs.rsize", B, |f| nfs(f, 1).rsize = Some(4096)),
    ("nfs.rsize", B, |f| nfs(f, 1).rsize = Some(32 << 10)),
    ("nfs.rsize", W, |f| nfs(f, 1).rsize = Some(128 << 10)),
    ("nfs.wsize", B, |f| {
        written(f);
        nfs(f, 1).wsize = Some(8192);
    }),
    ("nfs.protocol", B, |f| nfs(f, 1).proto = Some("udp6".into())),
    ("nfs.protocol", B, |f| nfs(f, 1).version = Some("2".into())),
    ("nfs.nconnect", W, |f| {
        f.interfaces[0].speed_mbit = Some(100_000);
        f.machine.tcp_receive_buffer = Some(64 << 20);
    }),
    ("nfs.soft", W, |f| {
        nfs(f, 1).recovery = "soft";
        nfs(f, 1).fails_after_s = Some(180.0);
    }),
    ("nfs.soft", B, |f| {
        nfs(f, 1).recovery = "softerr";
        nfs(f, 1).fails_after_s = Some(15.0);
    }),
    ("nfs.soft", B, |f| {
        written(f);
        nfs(f, 1).recovery = "soft";
    }),
    ("nfs.read_only", B, |f| {
        written(f);
        nfs(f, 1).options[0] = "ro".into();
    }),
    ("nfs.read_only", W, |f| {
        written(f);
        nfs(f, 2).options[0] = "ro".into();
    }),
    ("nfs.sync", W, |f| {
        written(f);
        nfs(f, 1).sync = true;
    }),
    ("nfs.attributes", W, |f| nfs(f, 1).noac = true),
    ("nfs.attributes", W, |f| nfs(f, 1).attribute_times_s = [0; 4]),
    ("nfs.attributes", B, |f| {
        written(f);
        nfs(f, 0).attribute_times_s = [3, 600, 30, 600];
    }),
    ("nfs.attributes", W, |f| {
        f.settings.attribute_ttl_s = 10.0;
        nfs(f, 1).attribute_times_s = [1, 5, 1, 5];
    }),
    ("nfs.nosharecache", W, |f| {
        for i in 0..2 {
            f.replicas[i].source = Some("a:/".into());
            f.replicas[i].page_cache = true;
        }
        nfs(f, 1).nosharecache = true;
    }),
    ("rpc.retransmits", W, |f| nfs(f, 1).retransmits = 100),
    ("rpc.retransmits", B, |f| nfs(f, 1).retransmits = 600),
    ("rpc.timeouts", W, |f| nfs(f, 1).timeouts = 1),
    ("rpc.backlog", W, |f| nfs(f, 1).backlog = Some(3.0)),
    ("rpc.latency", W, |f| reads(f, 1).round_trip_ms = 40.0),
    ("nfs.alike", W, |f| nfs(f, 1).options.push("sec=krb5p".into())),
    ("nfs.alike", W, |f| nfs(f, 1).proto = Some("rdma".into())),
    ("nfs.alike", W, |f| nfs(f, 1).nconnect = 8),
    ("nfs.alike", W, |f| nfs(f, 1).attribute_times_s = [600; 4]),
    ("tcp.loss", B, |f| connection(f, 1).out_of_order = 2000),
    ("tcp.loss", W, |f| connection(f, 1).out_of_order = 200),
    ("tcp.loss", B, |f| connection(f, 1).retransmits = 1000),
    ("tcp.window", B, |f| connection(f, 1).min_rtt_ms = Some(30.0)),
    ("net.mtu", B, |f| {
        f.interfaces[0].mtu = Some(9000);
        (0..3).for_each(|i| {
            route(f, i).mtu = Some(9000);
            connection(f, i).mss = Some(8948);
        });
        route(f, 1).large_echo = Some(false);
    }),
    ("net.mtu", W, |f| {
        // TCP agreed on smaller segments at the start.
        f.interfaces[0].mtu = Some(9000);
        (0..3).for_each(|i| route(f, i).mtu = Some(9000));
        route(f, 1).large_echo = Some(false);
    }),
    ("net.mtu", W, |f| route(f, 1).mtu = Some(1400)),
    ("net.link", W, |f| f.interfaces[0].speed_mbit = Some(1000)),
    ("net.link", B, |f| f.interfaces[0].speed_mbit = Some(100)),
    ("cache.readahead", W, |f| f.replicas[1].read_ahead_kib = Some(128)),
    ("cache.readahead", W, |f| {
        f.volume = Some("v".into());
        f.settings.passthrough = true;
        f.replicas[1].read_ahead_kib = Some(128);
    }),
    ("clock.skew", W, |f| f.replicas[1].clock_ahead_s = Some(-3.0)),
    ("volume.daemon", B, |f| {
        f.volume = Some("genomes".into());
        f.unserved = vec![("/data".into(), "dead")];
    }),
    ("volume.daemon", B, |f| {
        f.volume = Some("genomes".into());
        f.unserved = vec![("/data".into(), "silent")];
    }),
    ("volume.daemon", W, |f| (f.volume, f.unkept) = (Some("v".into()), vec!["/d".into()])),
    ("fuse.access", B, |f| f.machine.fuse_device = false),
    ("fuse.access", B, |f| {
        f.machine.root = false;
        f.machine.fusermount3 = false;
    }),
    ("fuse.access", B, |f| {
        f.machine.root = false;
        f.settings.allow_other = true;
    }),
    ("fuse.requests", W, |f| f.machine.fuse_max_pages = Some(32)),
    ("fuse.requests", W, |f| f.settings.max_background = 12),
    ("fuse.requests", W, |f| {
        f.machine.root = false;
        f.machine.fuse_max_user_background = Some(12);
    }),
    ("machine.descriptors", W, |f| f.machine.open_files = Some(1024)),
    ("machine.kernel", B, |f| f.machine.kernel = Some("5.4.0-200-generic".into())),
    ("machine.kernel", W, |f| {
        f.settings.passthrough = true;
        f.machine.kernel = Some("6.8".into());
    }),
    ("measure.replica", B, |f| measured(f).alone[1].rate = Some(20e6)),
    ("measure.replica", W, |f| measured(f).alone[1].rate = Some(45e6)),
    ("measure.replica", B, |f| {
        measured(f).alone[1] = RateMeasurement { silent: true, ..RateMeasurement::default() };
    }),
    ("measure.replica", B, |f| {
        measured(f).alone[1] =
            RateMeasurement { error: Some("EIO".into()), ..RateMeasurement::default() };
    }),
    ("measure.latency", W, |f| measured(f).alone[1].latency_ms = Some(20.0)),
    ("measure.together", B, |f| measured(f).together.rate = Some(105e6)),
    ("measure.together", W, |f| measured(f).together.rate = Some(190e6)),
    ("export.server", W, |f| {
        export(f, 0);
        export(f, 1);
        f.one_server = Some(vec![vec![0, 1]]);
    }),
    ("export.reads", W, |f| export(f, 1).max_read = 128 << 10),
    ("export.reads", B, |f| export(f, 1).max_read = 32 << 10),
    ("export.calls", W, |f| calls(f).resends = 100),
    ("export.calls", B, |f| calls(f).late_replies = 600),
    ("tcp.loss", B, |f| {
        export(f, 1);
        connection(f, 1).out_of_order = 2000;
    }),
    ("placement.answers", W, |f| placement(f).failing = Some("no answer within 20s".into())),
    ("placement.answers", W, |f| placement(f).answer_ms = 500),
    ("placement.names", W, |f| placement(f).unmatched.push("n9".into())),
    ("placement.storage", W, |f| {
        let name = f.replicas[1].name.clone();
        placement(f).unnamed.push(name);
    }),
    ("placement.primaries", W, |f| {
        placement(f).notes.push("osd.1 on n2 has the primary affinity 0".into());
    }),
];

fn placement(facts: &mut DoctorFacts) -> &mut PlacementFacts {
    facts.placement.as_mut().expect("the volume has a provider")
}

/// The calls of a replica that is an export.
fn calls(facts: &mut DoctorFacts) -> &mut ExportCallStats {
    export(facts, 1).calls.as_mut().expect("they are counted")
}

#[test]
fn healthy_exports_have_no_findings() {
    let facts = healthy_exports();
    let CheckReport { rows, findings } = run_checks(&facts);
    assert_eq!(findings, []);
    assert!(rows.iter().all(|row| row.state == CheckStatus::Ok), "{rows:#?}");
    for id in ["tcp.loss", "net.mtu", "net.link", "clock.skew", "export.server"] {
        assert!(rows.iter().any(|row| row.id == id), "{id} does not examine exports");
    }
    let row = |facts: &DoctorFacts, id| {
        run_checks(facts).rows.into_iter().find(|row| row.id == id).expect("its row")
    };
    let mut facts = healthy_exports();
    facts.one_server = None;
    for replica in &mut facts.replicas {
        let export = replica.export.as_mut().expect("it is one");
        (export.version, export.calls) = ("3", None);
        replica.connections = Some(Vec::new());
    }
    for id in ["export.server", "export.calls", "tcp.loss"] {
        assert_eq!(row(&facts, id).state, CheckStatus::Unknown, "{id}");
    }
}

#[test]
fn a_healthy_system_has_no_findings() {
    let CheckReport { rows, findings } = run_checks(&healthy());
    assert_eq!(findings, []);
    assert!(rows.iter().all(|row| row.state == CheckStatus::Ok), "{rows:#?}");
    assert_eq!(measured_gain(&healthy()).map(|gain| (gain * 10.0).round()), Some(29.0));
}

#[test]
fn each_planted_fault_is_the_only_finding() {
    for (i, (id, status, plant)) in PLANTS.iter().enumerate() {
        let mut facts = healthy();
        plant(&mut facts);
        let CheckReport { rows, findings } = run_checks(&facts);
        assert!(!findings.is_empty(), "plant {i}, {id}: nothing found");
        // An option that only one mount has also makes that mount differ from the others.
        let is_meant = |finding: &&Finding| finding.id != "nfs.alike" || *id == "nfs.alike";
        for finding in findings.iter().filter(is_meant) {
            assert_eq!((finding.id, finding.severity), (*id, *status), "plant {i}: {findings:#?}");
            let FindingText { problem, evidence } = &finding.text;
            assert!(
                [problem, evidence, &finding.remedy].iter().all(|text| !text.is_empty()),
                "{finding:#?}"
            );
            assert!((0.0..=1.0).contains(&finding.cost), "{finding:#?}");
        }
        let row = rows.iter().find(|row| row.id == *id).expect("its row");
        assert_eq!(row.state, *status, "plant {i}");
    }
    let planted = |check: &&Check| PLANTS.iter().any(|(id, ..)| *id == check.id);
    assert_eq!(CHECKS.iter().filter(planted).count(), CHECKS.len(), "a check without a plant");
}

/// Changes of the facts that must cause no finding.
const HARMLESS: &[fn(&mut DoctorFacts)] = &[
    // Segments of 8 MiB take eight calls even with the largest rsize.
    |f| {
        f.settings.segment_size = 8 << 20;
        nfs(f, 1).rsize = Some(512 << 10);
    },
    |f| {
        f.interfaces[0].speed_mbit = Some(100_000);
        f.machine.tcp_receive_buffer = Some(64 << 20);
        (0..3).for_each(|i| nfs(f, i).proto = Some("rdma".into()));
    },
    // A server that clamps to 256 KiB: four calls per segment.
    |f| nfs(f, 1).rsize = Some(256 << 10),
    |f| nfs(f, 1).wsize = Some(4096),
    |f| {
        written(f);
        nfs(f, 0).sync = true;
        nfs(f, 0).wsize = Some(4096);
    },
    |f| nfs(f, 1).nosharecache = true,
    |f| nfs(f, 1).retransmits = 5,
    |f| {
        nfs(f, 1).calls = 50;
        nfs(f, 1).retransmits = 3;
    },
    |f| nfs(f, 1).backlog = Some(0.5),
    |f| reads(f, 1).round_trip_ms = 30.0,
    // Few READs, or READs of another size.
    |f| (reads(f, 1).round_trip_ms, reads(f, 1).calls) = (90.0, 900),
    |f| (reads(f, 1).round_trip_ms, reads(f, 1).bytes_each) = (1.0, 4096),
    |f| {
        nfs(f, 1).proto = Some("tcp6".into());
        nfs(f, 1).options.push("sec=sys".into());
        nfs(f, 1).version = Some("3".into());
    },
    |f| connection(f, 1).out_of_order = 50,
    |f| {
        connection(f, 1).segments_in = 100;
        connection(f, 1).out_of_order = 50;
    },
    |f| connection(f, 1).min_rtt_ms = Some(2.0),
    // No echo is answered, so nothing is known about large ones.
    |f| {
        route(f, 1).small_echo = Some(false);
        route(f, 1).large_echo = None;
    },
    // A firewall drops large echoes, but segments of that size arrive.
    |f| route(f, 1).large_echo = Some(false),
    // The speeds of veth (10 Gbit/s) and of a bridge (10 Mbit/s) are made up.
    |f| {
        f.interfaces[0].speed_mbit = Some(10);
        f.interfaces[0].is_virtual = true;
        f.interfaces
            .push(NetworkInterface { speed_mbit: Some(10_000), ..NetworkInterface::default() });
    },
    |f| {
        f.volume = Some("v".into());
        f.replicas[1].read_ahead_kib = Some(128);
    },
    |f| {
        f.one_connection.push(vec![0, 1]);
        nfs(f, 0).max_connect = 2;
    },
    |f| f.replicas[1].clock_ahead_s = Some(0.5),
    |f| f.machine.root = false,
    |f| f.machine.fuse_max_pages = None,
    |f| measured(f).alone[1].rate = Some(70e6),
    |f| measured(f).together.rate = Some(250e6),
    |f| measured(f).alone[1].latency_ms = Some(4.0),
    // Few files were asked about.
    |f| {
        let name = f.replicas[1].name.clone();
        placement(f).unnamed.push(name);
        placement(f).located = 23;
    },
];

#[test]
fn values_within_thresholds_are_not_reported() {
    for (i, change) in HARMLESS.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        let findings = run_checks(&facts).findings;
        assert_eq!(findings, [], "change {i}");
    }
}

#[test]
fn missing_facts_are_reported_as_unknown() {
    let mut facts = healthy();
    facts.machine.lists_connections = false;
    facts.interfaces[0].speed_mbit = None;
    for replica in &mut facts.replicas {
        replica.route = None;
        replica.read_ahead_kib = None;
        replica.clock_ahead_s = None;
        replica.nfs.as_mut().expect("NFS").age_s = None;
    }
    measured(&mut facts).failed = Some("no file".into());
    let CheckReport { rows, findings } = run_checks(&facts);
    assert_eq!(findings, []);
    let unknown: Vec<_> =
        rows.iter().filter(|row| row.state == CheckStatus::Unknown).map(|row| row.id).collect();
    assert_eq!(
        unknown,
        [
            "rpc.retransmits",
            "rpc.timeouts",
            "rpc.backlog",
            "rpc.latency",
            "tcp.loss",
            "tcp.window",
            "net.mtu",
            "net.link",
            "cache.readahead",
            "clock.skew",
            "measure.replica",
            "measure.latency",
            "measure.together"
        ]
    );
    assert!(rows.iter().all(|row| row.state != CheckStatus::Unknown || row.note.is_some()));
}

#[test]
fn the_loss_of_few_segments_is_shown() {
    let mut facts = healthy();
    let lossy = connection(&mut facts, 1);
    lossy.out_of_order = 2000;
    (lossy.segments_out, lossy.retransmits) = (90, 9);
    let findings = run_checks(&facts).findings;
    let evidence = &findings[0].text.evidence;
    assert!(evidence.contains("9 of 90 sent segments were retransmitted (10.00%)"), "{evidence}");
}

#[test]
fn without_nfs_there_are_no_nfs_checks() {
    let mut facts = healthy();
    facts.interfaces.clear();
    for replica in &mut facts.replicas {
        *replica = ExaminedReplica {
            name: replica.name.clone(),
            state: replica.state,
            ..ExaminedReplica::default()
        };
    }
    let CheckReport { rows, findings } = run_checks(&facts);
    assert_eq!(findings, []);
    let foreign =
        |row: &&CheckResult| ["nfs", "rpc", "tcp", "net"].iter().any(|p| row.id.starts_with(p));
    assert_eq!(rows.iter().find(foreign), None);
    assert!(rows.iter().any(|row| row.id == "measure.together"));
}
