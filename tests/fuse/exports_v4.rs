//! Volumes of NFSv4.1 exports.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::replicas::health::HealthState;
use fanfs::volume::ReplicaSet;

use crate::nfs4_server::{Fault, Moment, Server, pattern};
use crate::rig::PATIENCE;

struct Rig {
    mount: Mount,
    servers: Vec<Server>,
    room: tempfile::TempDir,
}

impl Rig {
    /// A volume of this many servers. Of every other one, the configuration does not say the version.
    fn new(servers: usize) -> Self {
        let room = tempfile::tempdir().unwrap();
        let servers: Vec<_> = (0..servers).map(|_| Server::start()).collect();
        let mut text = "[volume]\nname = 'test'\nmode = 'shared'\n".to_owned();
        for (index, server) in servers.iter().enumerate() {
            text += &format!("[[replica]]\naddress = 'nfs://{}/export'\n", server.address);
            text += if index % 2 == 0 { "" } else { "version = '4.1'\n" };
        }
        text += "[read]\ncache = 'direct'\n";
        let config = config::parse(&text, Path::new("test")).unwrap();
        let extra = MountOverrides { no_control: true, ..MountOverrides::default() };
        let at = room.path().join("mnt");
        fs::create_dir(&at).unwrap();
        let mount = Mount::start_from_config(config, ReplicaSet::EMPTY, &at, &extra).unwrap();
        Self { mount, servers, room }
    }

    fn read(&self) -> std::io::Result<bool> {
        Ok(fs::read(self.room.path().join("mnt/file"))? == pattern())
    }

    fn expect_health(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let replicas = self.mount.status().replicas;
            if replicas.iter().all(|replica| replica.health == HealthState::Healthy) {
                return;
            }
            assert!(Instant::now() < until, "they do not recover");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn exports_of_nfsv4_servers_are_read_as_one_volume() {
    let rig = Rig::new(2);
    assert!(rig.read().unwrap());
    let at = rig.room.path().join("mnt");
    let mut names: Vec<_> =
        fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "file", "hidden", "link"]);
    assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("file"));
    assert_eq!(fs::metadata(at.join("file")).unwrap().len(), pattern().len() as u64);
}

#[test]
fn servers_that_restart_fail_no_read() {
    let rig = Rig::new(2);
    let file = fs::File::open(rig.room.path().join("mnt/file")).unwrap();
    for round in 0..6 {
        for server in &rig.servers {
            server.forget_sessions();
            server.set_grace(round % 2 == 0);
            if round % 3 == 0 {
                server.close_connections();
            }
        }
        let mut data = vec![0; pattern().len()];
        file.read_exact_at(&mut data, 0).unwrap();
        assert!(data == pattern() && rig.read().unwrap());
    }
    rig.expect_health();
}

#[test]
fn a_server_that_is_silent_delays_no_reader_for_long() {
    let rig = Rig::new(2);
    assert!(rig.read().unwrap());
    for moment in [Moment::Read, Moment::LookUp] {
        rig.servers[0].inject(moment, Fault::Silent);
        assert!(rig.read().unwrap(), "{moment:?}");
    }
    rig.servers[0].reply_late();
    std::thread::sleep(Duration::from_millis(50));
    assert!(rig.read().unwrap());
    rig.expect_health();
}
