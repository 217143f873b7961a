//! Attributes after changes through the mount, while the kernel trusts its cached attributes for an
//! hour.

use std::fs::{self, File, Metadata, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, FallocateFlags, StatxFlags, XattrFlags, copy_file_range, fallocate, statx,
};

use super::caller::Caller;
use crate::needs;
use crate::rig::{self, Setup};

const HOUR: &str = "[fuse]\nattribute_ttl = \"1h\"\n";

/// A POSIX access control list as an extended attribute: `struct posix_acl_xattr_header` and
/// entries of tag, permissions and id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NO_ID: u32 = u32::MAX;

/// `u::rw-,u:4321:rwx,g::r--,m::rwx,o::---`
fn with_a_user() -> Vec<u8> {
    list(&[(1, 6, NO_ID), (2, 7, 4321), (4, 4, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID)])
}

/// `u::rwx,g::---,o::---`, which is equal to a mode.
fn a_mode() -> Vec<u8> {
    list(&[(1, 7, NO_ID), (4, 0, NO_ID), (0x20, 0, NO_ID)])
}

const ACCESS: &str = "system.posix_acl_access";

/// The changed object: its path in the mount, and a descriptor of it.
type Change = fn(&Path, &File);

/// [`Caller::User`] makes the changes that need another user, through root's descriptor.
const OF_A_FILE: &[(&str, Change)] = &[
    ("setfacl", |path, _| {
        rustix::fs::setxattr(path, ACCESS, &with_a_user(), XattrFlags::empty()).unwrap();
    }),
    ("setfacl by descriptor", |_, file| {
        rustix::fs::fsetxattr(file, ACCESS, &with_a_user(), XattrFlags::empty()).unwrap();
    }),
    ("setfacl of a mode", |path, _| {
        rustix::fs::setxattr(path, ACCESS, &a_mode(), XattrFlags::empty()).unwrap();
    }),
    ("setfacl -b", |path, _| {
        rustix::fs::setxattr(path, ACCESS, &with_a_user(), XattrFlags::empty()).unwrap();
        fs::metadata(path).unwrap();
        rustix::fs::removexattr(path, ACCESS).unwrap();
    }),
    ("setfattr", |path, _| {
        rustix::fs::setxattr(path, "user.name", b"value", XattrFlags::empty()).unwrap();
    }),
    ("chmod", |path, _| fs::set_permissions(path, Permissions::from_mode(0o711)).unwrap()),
    ("chown", |path, _| std::os::unix::fs::chown(path, Some(7), Some(8)).unwrap()),
    ("link", |path, _| fs::hard_link(path, path.with_extension("link")).unwrap()),
    ("fallocate", |_, file| fallocate(file, FallocateFlags::empty(), 0, 65536).unwrap()),
    ("fallocate by a user", |_, file| {
        let set = || fallocate(file, FallocateFlags::KEEP_SIZE, 0, 65536).unwrap();
        Caller::User.does(set);
    }),
    ("punch hole by a user", |_, file| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Caller::User.does(|| fallocate(file, flags, 0, 8192).unwrap());
    }),
    ("copy_file_range by a user", |path, file| {
        let from = File::open(path.with_file_name("from")).unwrap();
        Caller::User.does(|| copy_file_range(&from, None, file, None, 10_000).unwrap());
    }),
    ("write by a user", |_, file| Caller::User.does(|| file.write_all_at(b"new", 0).unwrap())),
    ("ftruncate by a user", |_, file| Caller::User.does(|| file.set_len(100).unwrap())),
];

const OF_A_DIRECTORY: &[(&str, Change)] = &[
    ("setfacl", OF_A_FILE[0].1),
    ("setfacl -d", |path, _| {
        let name = "system.posix_acl_default";
        rustix::fs::setxattr(path, name, &with_a_user(), XattrFlags::empty()).unwrap();
    }),
    ("mkdir", |path, _| fs::create_dir(path.join("new")).unwrap()),
    ("create", |path, _| fs::write(path.join("new"), "").unwrap()),
    ("unlink", |path, _| fs::remove_file(path.join("file")).unwrap()),
    ("rmdir", |path, _| fs::remove_dir(path.join("dir")).unwrap()),
    ("mv", |path, _| fs::rename(path.join("dir"), path.with_extension("moved")).unwrap()),
];

/// Permissions, links, owner, size, blocks, and times of change.
fn shown(of: &Metadata) -> [i64; 10] {
    let numbers = [of.nlink(), u64::from(of.uid()), u64::from(of.gid()), of.size(), of.blocks()];
    let [links, uid, gid, size, blocks] = numbers.map(|number| number as i64);
    let (mode, modified) = (i64::from(of.mode()), (of.mtime(), of.mtime_nsec()));
    let (seconds, nanos) = modified;
    [mode, links, uid, gid, size, blocks, seconds, nanos, of.ctime(), of.ctime_nsec()]
}

/// The mode of the object at `path`, without a request for other attributes.
fn mode(path: &Path) -> u16 {
    let found = statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    found.stx_mode
}

#[test]
fn every_change_is_visible_in_attributes_at_once() {
    if !needs::root() {
        return;
    }
    let setup = Setup { write: true, plain: true, rest: HOUR, ..Setup::default() };
    let rig = rig::mount(rig::tree(), &setup);
    fs::write(rig.source(0, "from"), vec![7; 20_000]).unwrap();
    let files = OF_A_FILE.iter().map(|change| (false, change));
    let all = files.chain(OF_A_DIRECTORY.iter().map(|change| (true, change)));
    let mut wrong = Vec::new();
    for (i, (is_dir, (what, change))) in all.enumerate() {
        let (path, source) = (rig.at(format!("o{i}")), rig.source(0, format!("o{i}")));
        let file = if is_dir {
            fs::create_dir_all(source.join("dir")).unwrap();
            fs::write(source.join("file"), "").unwrap();
            File::open(&path).unwrap()
        } else {
            fs::write(&source, vec![1; 20_000]).unwrap();
            fs::set_permissions(&source, Permissions::from_mode(0o6755)).unwrap();
            File::options().read(true).write(true).open(&path).unwrap()
        };
        fs::metadata(&path).unwrap();
        change(&path, &file);
        // The kernel requests only the attributes that it no longer trusts.
        let (got, right) = (mode(&path), mode(&source));
        if got != right {
            wrong.push(format!("mode alone after {what}: {got:o}, should be {right:o}"));
        }
        let got = [fs::metadata(&path).unwrap(), file.metadata().unwrap()].map(|of| shown(&of));
        let right = shown(&fs::metadata(&source).unwrap());
        if got != [right; 2] {
            wrong.push(format!("after {what}: {got:?}, should be {right:?}"));
        }
        drop(file);
        let (got, right) = (fs::metadata(&path).unwrap(), fs::metadata(&source).unwrap());
        if shown(&got) != shown(&right) {
            wrong.push(format!("closed after {what}: {:?}, not {:?}", shown(&got), shown(&right)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    rig.expect_quiet();
}
