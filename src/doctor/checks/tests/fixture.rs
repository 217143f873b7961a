//! The facts that the tests of the checks start from: a healthy machine with healthy mounts. The
//! accessors reach the parts that tests change.

use crate::doctor::facts::*;

/// Three healthy NFS mounts of three gateways, with measured rates.
pub(crate) fn healthy() -> DoctorFacts {
    DoctorFacts {
        volume: None,
        settings: VolumeSettings {
            segment_size: 1 << 20,
            deadline_s: 30.0,
            lag_s: 65.0,
            attribute_ttl_s: 1.0,
            max_background: 256,
            ..VolumeSettings::default()
        },
        machine: healthy_machine(),
        interfaces: vec![NetworkInterface {
            name: "eth0".into(),
            speed_mbit: Some(10_000),
            mtu: Some(1500),
            is_virtual: false,
        }],
        replicas: (1..=3).map(healthy_replica).collect(),
        measured: Some(healthy_rates()),
        placement: Some(PlacementFacts {
            provider: "cephfs".into(),
            located: 100,
            answer_ms: 10,
            ..PlacementFacts::default()
        }),
        ..DoctorFacts::default()
    }
}

fn healthy_machine() -> MachineFacts {
    MachineFacts {
        kernel: Some("6.18.44-x".into()),
        root: true,
        fuse_device: true,
        fusermount3: true,
        fuse_max_pages: Some(256),
        open_files: Some(524_288),
        tcp_receive_buffer: Some(6_291_456),
        page: 4096,
        lists_connections: true,
        ..MachineFacts::default()
    }
}

fn healthy_replica(i: usize) -> ExaminedReplica {
    ExaminedReplica {
        name: format!("n{i}"),
        path: format!("/mnt/n{i}"),
        is_export: false,
        mount_point: Some(format!("/mnt/n{i}")),
        is_mounted: true,
        failure: None,
        state: "ok",
        fs_type: Some("nfs4".into()),
        source: Some(format!("10.0.{i}.2:/")),
        device: Some(format!("0:4{i}")),
        page_cache: false,
        read_ahead_kib: Some(8192),
        nfs: Some(healthy_nfs(i)),
        export: None,
        route: Some(ServerRoute {
            to: format!("10.0.{i}.2"),
            from: "10.0.0.1".into(),
            interface: Some("eth0".into()),
            mtu: Some(1500),
            small_echo: Some(true),
            large_echo: Some(true),
            echo_ms: Some(0.2),
        }),
        connections: Some(vec![TcpConnection {
            port: 800 + i as u16,
            server: format!("10.0.{i}.2"),
            segments_in: 100_000,
            segments_out: 50_000,
            min_rtt_ms: Some(0.2),
            mss: Some(1448),
            advertised_mss: Some(1448),
            received_mss: Some(1448),
            ..TcpConnection::default()
        }]),
        clock_ahead_s: Some(0.002),
    }
}

/// Makes a replica an export of the server that it is a mount of.
pub(crate) fn export(facts: &mut DoctorFacts, i: usize) -> &mut ExportFacts {
    let replica = &mut facts.replicas[i];
    let server = format!("10.0.{}.2", i + 1);
    replica.path = format!("nfs://{server}/");
    (replica.is_export, replica.nfs) = (true, None);
    (replica.mount_point, replica.fs_type, replica.source) = (None, None, None);
    replica.export.insert(ExportFacts {
        server: server.clone(),
        addresses: vec![server],
        port: 2049,
        version: "4.1",
        max_read: 1 << 20,
        calls: Some(ExportCallStats { calls: 10_000, connects: 4, ..ExportCallStats::default() }),
    })
}

/// Three exports without any problem.
pub(crate) fn healthy_exports() -> DoctorFacts {
    let mut facts = healthy();
    for i in 0..3 {
        export(&mut facts, i);
    }
    facts.one_server = Some(Vec::new());
    facts
}

fn healthy_nfs(i: usize) -> NfsFacts {
    NfsFacts {
        server: format!("10.0.{i}.2"),
        addr: Some(format!("10.0.{i}.2")),
        port: 2049,
        version: Some("4.2".into()),
        proto: Some("tcp".into()),
        rsize: Some(1 << 20),
        wsize: Some(1 << 20),
        rsize_of_server: Some(1 << 20),
        recovery: "hard",
        attribute_times_s: [3, 60, 30, 60],
        nconnect: 1,
        max_connect: 1,
        options: vec!["ro".into(), "vers=4.2".into(), "rsize=1048576".into(), "hard".into()],
        age_s: Some(1000),
        calls: 10_000,
        reads: Some(ReadCallStats {
            calls: 5000,
            bytes_each: 1 << 20,
            round_trip_ms: 8.0,
            ..ReadCallStats::default()
        }),
        backlog: Some(0.0),
        ..NfsFacts::default()
    }
}

fn healthy_rates() -> MeasuredRates {
    let rate = 100.0 * f64::from(1 << 20);
    let sample = |rate: f64| RateMeasurement {
        bytes: 3 * rate as u64,
        seconds: 3.0,
        rate: Some(rate),
        latency_ms: Some(0.5),
        direct: true,
        ..RateMeasurement::default()
    };
    MeasuredRates {
        file: "data".into(),
        size: 1 << 30,
        seconds: 3.0,
        alone: vec![sample(rate); 3],
        together: sample(2.9 * rate),
        idle: Some(0.7),
        failed: None,
    }
}

pub(super) fn nfs(facts: &mut DoctorFacts, i: usize) -> &mut NfsFacts {
    facts.replicas[i].nfs.as_mut().expect("NFS")
}

pub(super) fn reads(facts: &mut DoctorFacts, i: usize) -> &mut ReadCallStats {
    nfs(facts, i).reads.as_mut().expect("READs")
}

pub(super) fn route(facts: &mut DoctorFacts, i: usize) -> &mut ServerRoute {
    facts.replicas[i].route.as_mut().expect("a route")
}

pub(super) fn connection(facts: &mut DoctorFacts, i: usize) -> &mut TcpConnection {
    &mut facts.replicas[i].connections.as_mut().expect("connections")[0]
}

pub(super) fn measured(facts: &mut DoctorFacts) -> &mut MeasuredRates {
    facts.measured.as_mut().expect("measured")
}

/// A writable volume whose write replica is the second one.
pub(super) fn written(facts: &mut DoctorFacts) {
    facts.volume = Some("v".into());
    facts.settings.writes = true;
    facts.settings.write_replica = 1;
    for replica in facts.replicas.iter_mut().filter_map(|replica| replica.nfs.as_mut()) {
        replica.options[0] = "rw".into();
    }
}
