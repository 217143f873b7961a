//! The client against another project's server, in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use fanfs_nfs::nfs::{
    Client, Identity, Kind, MountError, MountRequest, NfsError, Ports, Rights, Target, Tree,
    TreeLimits,
};
use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(60);
/// Less than most reads here.
const READ_SIZE: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();
const FILE_LEN: usize = 3_000_001;
const MANY: usize = 3000;

/// A server with some files, and its tree.
struct Rig {
    tree: Tree,
    ports: Ports,
    me: Identity,
    _runtime: Runtime,
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 509) as u8).collect()
}

impl Rig {
    fn new(connections: usize) -> Self {
        let mut files = MemFsConfig::default();
        files.add_file("/large", pattern(FILE_LEN));
        files.add_file("/empty", "");
        files.add_dir("/dir");
        files.add_dir("/dir/inner");
        files.add_file("/dir/inner/small", "small file");
        files.add_dir("/many");
        (0..MANY).for_each(|i| files.add_file(&format!("/many/a longer name {i}"), ""));
        let runtime = Runtime::new().unwrap();
        let listen = NFSTcpListener::bind("127.0.0.1:0", MemFs::new(files).unwrap());
        let listener = runtime.block_on(listen).unwrap();
        let port = listener.get_listen_port();
        runtime.spawn(async move { listener.handle_forever().await });
        let ports = Ports { nfs: Some(port), mount: Some(port) };
        let me = Identity::of_process();
        let mounted = mount_request(ports, &me).mount(b"/").unwrap();
        let target = Target {
            addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, mounted.nfs_port))],
            connections,
            reserved_port: false,
            is_patient: true,
            silence: Target::SILENCE,
            max_backoff: Target::MAX_BACKOFF,
        };
        let limits =
            TreeLimits { operation: LONG, listing: LONG, directories: LONG, read: READ_SIZE };
        let tree = Tree::new(Client::version_3(target).unwrap(), mounted.root, limits);
        Self { tree, ports, me, _runtime: runtime }
    }

    fn read_all(&self, path: &str, step: usize) -> Vec<u8> {
        let file = self.tree.look_up(&self.me, Path::new(path)).unwrap();
        let mut all = Vec::new();
        let mut buffer = vec![0; step];
        loop {
            let offset = all.len() as u64;
            let end = self.tree.read(&self.me, file.handle, offset, &mut buffer).unwrap();
            all.extend(&buffer[..end.bytes]);
            if end.is_end {
                return all;
            }
        }
    }

    fn error(&self, path: &str) -> rustix::io::Errno {
        self.tree.look_up(&self.me, Path::new(path)).unwrap_err().errno()
    }
}

fn mount_request(ports: Ports, identity: &Identity) -> MountRequest<'_> {
    let deadline = Instant::now() + LONG;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    MountRequest { server, ports, identity, reserved_port: false, deadline }
}

#[test]
fn files_are_read_whole_and_in_parts() {
    let rig = Rig::new(1);
    for step in [1 << 20, 99_999, 4096 * 50] {
        assert!(rig.read_all("large", step) == pattern(FILE_LEN), "in steps of {step}");
    }
    assert_eq!(rig.read_all("dir/inner/small", 4), b"small file");
    assert_eq!(rig.read_all("empty", 10), b"");
}

#[test]
fn many_reads_share_several_connections() {
    let rig = Rig::new(3);
    let file = rig.tree.look_up(&rig.me, Path::new("large")).unwrap();
    let whole = pattern(FILE_LEN);
    let read_all_over = &|thread: usize| {
        let mut buffer = vec![0; 60_000];
        for i in 0..40 {
            let offset = (thread * 40 + i) * 7919 % FILE_LEN;
            let read = rig.tree.read(&rig.me, file.handle, offset as u64, &mut buffer);
            let bytes = read.unwrap().bytes;
            assert!(bytes > 0 && buffer[..bytes] == whole[offset..offset + bytes]);
        }
    };
    // A quick server leaves few reads in flight, and one connection may carry them.
    let until = Instant::now() + LONG;
    while rig.tree.client().counters().iter().any(|connection| connection.received == 0) {
        assert!(Instant::now() < until, "one connection is never used");
        std::thread::scope(|scope| {
            (0..8).for_each(|thread| drop(scope.spawn(move || read_all_over(thread))));
        });
    }
}

#[test]
fn names_are_listed_once() {
    let rig = Rig::new(1);
    let names = |path: &str| {
        let dir = rig.tree.look_up(&rig.me, Path::new(path)).unwrap();
        assert_eq!(dir.attributes.kind, Kind::Directory);
        let mut names: Vec<_> = rig.tree.list(&rig.me, dir.handle, &|| {}).unwrap();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names
    };
    let root = names("");
    let expected: [&[u8]; 4] = [b"dir", b"empty", b"large", b"many"];
    assert!(root.iter().map(|entry| &*entry.name).eq(expected));
    let large = rig.tree.look_up(&rig.me, Path::new("large")).unwrap().attributes;
    assert_eq!((large.size, large.number), (FILE_LEN as u64, root[2].number));
    assert_eq!((root[0].kind, root[2].kind), (Some(Kind::Directory), Some(Kind::Regular)));
    let many = names("many");
    assert_eq!(many.len(), MANY);
    assert!(many.windows(2).all(|pair| pair[0].name != pair[1].name));
}

#[test]
fn paths_lead_down_only() {
    use rustix::io::Errno;
    let rig = Rig::new(1);
    assert_eq!(rig.error("missing"), Errno::NOENT);
    assert_eq!(rig.error("dir/missing/x"), Errno::NOENT);
    assert_eq!(rig.error("large/x"), Errno::NOTDIR);
    for path in ["/dir", "..", "dir/../large", "dir/.."] {
        assert_eq!(rig.error(path), Errno::INVAL, "{path}");
    }
    let found = rig.tree.look_up(&rig.me, Path::new("dir/inner/small")).unwrap();
    rig.tree.forget(Path::new("dir/inner"));
    assert_eq!(rig.tree.look_up(&rig.me, Path::new("dir/inner/small")).unwrap(), found);
    let dir = |path: &str| rig.tree.directory(rig.tree.caller(&rig.me), Path::new(path), true);
    let inner = dir("dir/inner").unwrap();
    assert_eq!(inner.dir, rig.tree.look_up(&rig.me, Path::new("dir/inner")).unwrap());
    assert!(inner.is_known && !dir("").unwrap().is_known);
    assert_eq!(dir("large").unwrap_err().errno(), Errno::NOTDIR);
}

#[test]
fn several_names_are_looked_up_at_once() {
    let rig = Rig::new(2);
    let dir = rig.tree.look_up(&rig.me, Path::new("many")).unwrap().handle;
    let names: Vec<String> = (0..200).map(|i| format!("a longer name {}", i * 2)).collect();
    let mut asked: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    asked[70] = b"missing";
    let found = rig.tree.client().look_up_all(rig.tree.caller(&rig.me), dir, &asked);
    assert_eq!(found.len(), asked.len());
    for (name, found) in asked.iter().zip(found) {
        match found {
            Ok(found) => {
                let one = rig.tree.client().look_up(rig.tree.caller(&rig.me), dir, name);
                assert_eq!(found, one.unwrap());
            }
            Err(error) => {
                assert_eq!((*name, error.errno()), (&b"missing"[..], rustix::io::Errno::NOENT));
            }
        }
    }
}

#[test]
fn the_server_tells_rights_limits_and_usage() {
    let rig = Rig::new(1);
    let (client, root) = (rig.tree.client(), rig.tree.root());
    let caller = rig.tree.caller(&rig.me);
    client.ping(caller).unwrap();
    assert!(client.access(caller, root, Rights::READ).unwrap().contains(Rights::READ));
    assert!(client.limits(caller, root).unwrap().max_read >= 4096);
    let usage = client.usage(caller, root).unwrap();
    assert!(usage.available_bytes <= usage.bytes);
}

#[test]
fn exports_are_found_or_the_error_says_why() {
    let rig = Rig::new(1);
    let request = mount_request(rig.ports, &rig.me);
    let exports = request.exports().unwrap();
    assert!(exports.iter().any(|export| export.path == b"/"), "{exports:?}");
    assert!(matches!(request.mount(b"missing"), Err(MountError::NoExport)));
    let ports = Ports { mount: Some(1), ..rig.ports };
    let refused = mount_request(ports, &rig.me).mount(b"/").unwrap_err();
    let MountError::Service { error: NfsError::Rpc(_), .. } = &refused else {
        panic!("{refused}");
    };
    assert!(refused.to_string().contains("127.0.0.1:1"), "{refused}");
}
