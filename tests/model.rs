//! Random trees and random operations, through a real mount, against a model.
//!
//! The model is the tree as it was created: what each name is, and what each file holds. The mount
//! has three replicas, small segments and a small budget, so that boundaries, joins, readahead and
//! eviction occur all the time. The replicas are directories, or servers of NFSv4.1 and NFSv3.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfs::backend::{Backend, DirBackend};
use fanfs::config;
use fanfs::daemon::{Mount, MountOverrides};
use fanfs::volume::{ReplicaMap, ReplicaSet};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::export_server::{ExportServer, Versions};
use crate::processes;

/// The object that a name in the model refers to.
#[derive(Clone, Debug)]
enum Node {
    Directory,
    File {
        content: Vec<u8>,
    },
    Symlink {
        target: String,
    },
    /// Another name of the file at this path.
    Link {
        to: String,
    },
}

#[derive(Clone, Debug)]
enum Operation {
    Look(usize),
    List(usize),
    Open(usize),
    Read { handle: usize, at: u32, len: u32 },
    Sequential { handle: usize, block: u32 },
    Close(usize),
    Missing(usize),
}

type Model = BTreeMap<String, Node>;

/// Makes a tree from a list of seeds: each gives a place and an object.
fn build(seeds: &[(u8, u8, u32)]) -> Model {
    let mut model = Model::new();
    for (i, (place, what, size)) in seeds.iter().enumerate() {
        let of = |wanted: fn(&Node) -> bool| -> Vec<String> {
            model.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path.clone()).collect()
        };
        let directories = of(|node| matches!(node, Node::Directory));
        let files = of(|node| matches!(node, Node::File { .. }));
        let parent = usize::from(*place) % (directories.len() + 1);
        let parent = directories.get(parent).map_or(String::new(), |dir| format!("{dir}/"));
        let node = match what % 6 {
            0 | 1 => Node::Directory,
            2 => Node::Symlink { target: format!("../{size}") },
            3 if !files.is_empty() => {
                Node::Link { to: files[*size as usize % files.len()].clone() }
            }
            _ => {
                let mut content = vec![0; *size as usize % 400_000];
                blake3::Hasher::new().update(&i.to_le_bytes()).finalize_xof().fill(&mut content);
                Node::File { content }
            }
        };
        model.insert(format!("{parent}n{i}"), node);
    }
    model
}

fn write(model: &Model, root: &Path) {
    // Names sort after the directory that contains them, but not after the file that they are
    // another name of.
    let (links, rest): (Vec<_>, Vec<_>) =
        model.iter().partition(|(_, node)| matches!(node, Node::Link { .. }));
    for (path, node) in rest.into_iter().chain(links) {
        let path = root.join(path);
        match node {
            Node::Directory => fs::create_dir(path).unwrap(),
            Node::File { content } => fs::write(path, content).unwrap(),
            Node::Symlink { target } => symlink(target, path).unwrap(),
            Node::Link { to } => fs::hard_link(root.join(to), path).unwrap(),
        }
    }
}

fn content<'a>(model: &'a Model, path: &str) -> Option<&'a [u8]> {
    match &model[path] {
        Node::File { content } => Some(content),
        Node::Link { to } => content(model, to),
        Node::Directory | Node::Symlink { .. } => None,
    }
}

fn children(model: &Model, dir: &str) -> BTreeSet<String> {
    let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    let below = model.keys().filter_map(|path| path.strip_prefix(&prefix));
    below.filter(|rest| !rest.contains('/')).map(str::to_owned).collect()
}

/// The configuration of a volume of three replicas, each with its keys.
fn configuration(replica_keys: impl Fn(usize) -> String) -> config::Config {
    let mut text =
        "[volume]\nname = \"model\"\nmode = \"shared\"\nchunk_size = \"1MiB\"\n".to_owned();
    for i in 0..3 {
        text.push_str(&format!("[[replica]]\n{}", replica_keys(i)));
    }
    text.push_str(
        "[read]\nsegment_size = \"64KiB\"\nreadahead_max = \"256KiB\"\ncache = \"direct\"\n",
    );
    text.push_str("[memory]\nbudget = \"1MiB\"\n");
    config::parse(&text, Path::new("model")).unwrap()
}

fn extra() -> MountOverrides {
    MountOverrides { no_control: true, ..MountOverrides::default() }
}

fn mount_directories(room: &Path) -> Mount {
    let config = configuration(|i| format!("path = \"/model/{i}\"\n"));
    let open = || Arc::new(DirBackend::open(&room.join("tree")).unwrap()) as Arc<dyn Backend>;
    let backends: ReplicaMap<_> = (0..3).map(|_| open()).collect();
    Mount::start_with_backends(config, backends, &room.join("mnt"), &extra()).unwrap()
}

fn mount_exports(room: &Path, servers: &[ExportServer]) -> Mount {
    let config = configuration(|i| servers[i].replica_keys());
    Mount::start_from_config(config, ReplicaSet::EMPTY, &room.join("mnt"), &extra()).unwrap()
}

struct Run<'a> {
    model: &'a Model,
    at: PathBuf,
    handles: Vec<(File, &'a [u8])>,
}

impl<'a> Run<'a> {
    fn path(&self, pick: usize) -> Option<&'a String> {
        let n = self.model.len();
        if n == 0 { None } else { self.model.keys().nth(pick % n) }
    }

    fn step(&mut self, operation: &Operation) {
        match *operation {
            Operation::Look(pick) => self.look(pick),
            Operation::List(pick) => self.list(pick),
            Operation::Missing(pick) => {
                let path = self.path(pick).map_or("x".to_owned(), |path| format!("{path}-none"));
                let error = fs::symlink_metadata(self.at.join(path)).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            }
            Operation::Open(pick) => {
                let Some(path) = self.path(pick) else { return };
                if let Some(bytes) = content(self.model, path) {
                    self.handles.push((File::open(self.at.join(path)).unwrap(), bytes));
                }
            }
            Operation::Read { handle, at, len } => {
                let n = self.handles.len();
                if n == 0 {
                    return;
                }
                let (file, bytes) = &self.handles[handle % n];
                let at = at as usize % (bytes.len() + 1000);
                let mut buf = vec![0; len as usize % 200_000];
                let got = file.read_at(&mut buf, at as u64).unwrap();
                let expected = bytes.get(at..).unwrap_or_default();
                let expected = &expected[..expected.len().min(buf.len())];
                assert!(buf[..got] == *expected, "{got} bytes at {at} of {}", bytes.len());
            }
            Operation::Sequential { handle, block } => {
                let n = self.handles.len();
                if n == 0 {
                    return;
                }
                let (file, bytes) = &self.handles[handle % n];
                let mut buf = vec![0; 1000 + block as usize % 100_000];
                let mut at = 0;
                while let n @ 1.. = file.read_at(&mut buf, at as u64).unwrap() {
                    assert!(buf[..n] == bytes[at..at + n], "at {at}");
                    at += n;
                }
                assert_eq!(at, bytes.len());
            }
            Operation::Close(pick) => {
                let n = self.handles.len();
                if n > 0 {
                    self.handles.swap_remove(pick % n);
                }
            }
        }
    }

    fn look(&self, pick: usize) {
        let Some(path) = self.path(pick) else { return };
        let found = fs::symlink_metadata(self.at.join(path)).unwrap();
        match &self.model[path] {
            Node::Directory => assert!(found.is_dir()),
            Node::Symlink { target } => {
                assert_eq!(fs::read_link(self.at.join(path)).unwrap(), Path::new(target));
            }
            Node::File { content } => assert_eq!(found.len(), content.len() as u64),
            Node::Link { to } => {
                assert_eq!(found.ino(), fs::symlink_metadata(self.at.join(to)).unwrap().ino());
            }
        }
    }

    fn list(&self, pick: usize) {
        let dir = self.path(pick).filter(|path| matches!(self.model[*path], Node::Directory));
        let dir = dir.map_or("", |dir| dir);
        let found: BTreeSet<String> = fs::read_dir(self.at.join(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, children(self.model, dir));
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => any::<usize>().prop_map(Operation::Look),
        1 => any::<usize>().prop_map(Operation::List),
        2 => any::<usize>().prop_map(Operation::Open),
        6 => (any::<usize>(), any::<u32>(), any::<u32>())
            .prop_map(|(handle, at, len)| Operation::Read { handle, at, len }),
        2 => (any::<usize>(), any::<u32>())
            .prop_map(|(handle, block)| Operation::Sequential { handle, block }),
        1 => any::<usize>().prop_map(Operation::Close),
        1 => any::<usize>().prop_map(Operation::Missing),
    ]
}

/// A tree to be built, and what happens in it.
fn story() -> impl Strategy<Value = (Model, Vec<Operation>)> {
    let seeds = proptest::collection::vec(any::<(u8, u8, u32)>(), 0..40);
    (seeds.prop_map(|seeds| build(&seeds)), proptest::collection::vec(operation(), 0..120))
}

/// The room of a mount, with the tree.
fn room(model: &Model) -> TempDir {
    let room = tempfile::tempdir().unwrap();
    fs::create_dir(room.path().join("tree")).unwrap();
    fs::create_dir(room.path().join("mnt")).unwrap();
    write(model, &room.path().join("tree"));
    room
}

fn run(model: &Model, operations: &[Operation], room: &Path, mount: Mount) {
    let mut run = Run { model, at: room.join("mnt"), handles: Vec::new() };
    for operation in operations {
        run.step(operation);
        let gauges = mount.status().gauges;
        assert!(gauges.buffer_memory <= gauges.buffer_budget);
    }
    drop(run);
    processes::stop(mount).unwrap();
}

fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases, max_shrink_iters: 200, failure_persistence: None, ..config }
}

proptest! {
    // Each case mounts once; together they take some ten seconds.
    #![proptest_config(cases(128))]

    #[test]
    fn the_mount_matches_the_model((model, operations) in story()) {
        let room = room(&model);
        run(&model, &operations, room.path(), mount_directories(room.path()));
    }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn a_mount_of_exports_matches_the_model((model, operations) in story()) {
        let room = room(&model);
        let tree = room.path().join("tree");
        let server = |i| ExportServer::new(Versions::Both, i, &tree, None);
        let servers: Vec<_> = (0..3).map(server).collect();
        run(&model, &operations, room.path(), mount_exports(room.path(), &servers));
    }
}
