//! A tree with everything that an archive must restore, and the attributes of a tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode, XattrFlags};
use rustix::io::Errno;

/// The attributes of one entry that must be restored. The size and the link count of a directory
/// are up to the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Type and permissions.
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    size: u64,
    /// The first path with the same inode, for entries with several links.
    same_as: Option<PathBuf>,
    links: u64,
    target: Option<PathBuf>,
    content: Option<blake3::Hash>,
    attributes: BTreeMap<String, String>,
}

/// The entries below `root` by their path.
pub(crate) fn entries(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut paths = vec![root.to_owned()];
    while let Some(path) = paths.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            let below = fs::read_dir(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            paths.extend(below.map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(root).unwrap().to_owned();
        found.insert(name, path);
    }
    let mut first = BTreeMap::new();
    let mut entries = BTreeMap::new();
    for (name, path) in found {
        entries.insert(name.clone(), entry(&name, &path, &mut first));
    }
    entries
}

fn entry(name: &Path, path: &Path, first: &mut BTreeMap<u64, PathBuf>) -> Entry {
    let about = path.symlink_metadata().unwrap();
    let several = !about.is_dir() && about.nlink() > 1;
    let same_as = several.then(|| first.entry(about.ino()).or_insert(name.to_owned()).clone());
    Entry {
        mode: about.mode(),
        owner: (about.uid(), about.gid()),
        modified: (about.mtime(), about.mtime_nsec()),
        size: if about.is_dir() { 0 } else { about.size() },
        same_as,
        links: if about.is_dir() { 0 } else { about.nlink() },
        target: about.is_symlink().then(|| fs::read_link(path).unwrap()),
        content: about.is_file().then(|| blake3::hash(&fs::read(path).unwrap())),
        attributes: attributes(path),
    }
}

/// The user's extended attributes.
fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0; 4096];
    let len = match rustix::fs::llistxattr(path, &mut *names) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(error) => panic!("the attributes of {path:?}: {error}"),
    };
    let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut *value).unwrap();
        value[..len].escape_ascii().to_string()
    };
    names.map(|name| (name.escape_ascii().to_string(), value(name))).collect()
}

/// Panics unless `copy` equals `root`; names the first differences.
pub(crate) fn expect_same(what: &str, root: &Path, copy: &Path) {
    let (wanted, found) = (entries(root), entries(copy));
    let mut differences = Vec::new();
    for name in wanted.keys().chain(found.keys().filter(|name| !wanted.contains_key(*name))) {
        let (wanted, found) = (wanted.get(name), found.get(name));
        if wanted != found {
            differences.push(format!("{name:?}\n  wanted {wanted:?}\n  found  {found:?}"));
        }
    }
    let first = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{what}: {} entries differ:\n{first}", differences.len());
}

/// Fills `root`, which it creates.
pub(crate) fn plant(root: &Path) {
    let names: &[&[u8]] = &[
        b"plain",
        b"with space",
        b" leading and trailing ",
        b"new\nline",
        b"-rf",
        b"quote'\"\\",
        b"*?[a]",
        b"latin1-\xe4\xff",
        "\u{e4}\u{4e16}\u{1f980}".as_bytes(),
        &[b'n'; 255],
        b"...",
        b"\x01\x7f",
    ];
    for (i, dir) in ["", "a", "a/b", "a/b/c", "empty"].iter().enumerate() {
        fs::create_dir(root.join(dir)).unwrap();
        if *dir == "empty" {
            continue;
        }
        for (j, name) in names.iter().enumerate() {
            let path = root.join(dir).join(OsStr::from_bytes(name));
            fs::write(&path, bytes(j * j * 1009, i as u64)).unwrap();
        }
    }
    for mode in [0o0, 0o200, 0o400, 0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o7777] {
        let path = root.join(format!("a/mode-{mode:o}"));
        fs::write(&path, format!("{mode:o}")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    for (name, target) in
        [("up", "../with space"), ("dangling", "nowhere"), ("dir", "b"), ("abs", "/dev/null")]
    {
        symlink(target, root.join("a").join(name)).unwrap();
    }
    symlink("t".repeat(4000), root.join("a/long")).unwrap();
    for name in ["linked", "a/linked", "a/b/c/linked", "empty/linked"] {
        fs::hard_link(root.join("plain"), root.join(name)).unwrap();
    }
    let pipe = root.join("a/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from(0o640), 0).unwrap();

    let set = |name: &str, attribute: &str, value: &[u8]| {
        let path = root.join(name);
        rustix::fs::setxattr(&path, attribute, value, XattrFlags::CREATE)
            .unwrap_or_else(|e| panic!("{path:?} takes no attributes: {e}"));
    };
    set("plain", "user.empty", b"");
    set("plain", "user.binary", &[0, 1, 2, 255, 0]);
    set("a/b", "user.of a directory", b"yes");
    set("a/mode-644", "user.long", &bytes(2000, 9));

    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(&bytes(5000, 7), 1 << 20).unwrap();
    age(root);
}

/// Gives each file and directory its own time, from 1970 to beyond 2038, with nanoseconds;
/// directories after their content.
fn age(root: &Path) {
    let mut names: Vec<_> = entries(root).into_keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.components().count()));
    for (i, name) in names.iter().enumerate() {
        let path = root.join(name);
        let about = path.symlink_metadata().unwrap();
        if about.is_file() || about.is_dir() {
            let since = Duration::new(1 + i as u64 * 48_000_000, 1 + (i as u32 * 7_654_321));
            let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + since);
            File::open(&path).unwrap().set_times(times).unwrap();
        }
    }
}

/// Bytes that differ at every offset and are the same in each run.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut content);
    content
}
