//! The bytes of records in the present format, which must not change.

use std::collections::BTreeSet;

use super::*;
use crate::backend::{Attr, DirEntry, FileKind, Generation};
use crate::fs::journal::encode_frame;
use crate::volume::{FileId, FileVersion};

const VERSION: FileVersion = FileVersion { ino: 21, size: 22, mtime: (23, 24), ctime: (25, 26) };

fn version() -> VersionRecord {
    VersionRecord {
        path: "d/f".into(),
        version: VERSION,
        credentials: Some((29, 30, vec![31, 32])),
    }
}

fn attr() -> Attr {
    Attr {
        id: FileId { dev: 41, ino: 42 },
        kind: FileKind::Symlink,
        perm: 0o43,
        nlink: 44,
        uid: 45,
        gid: 46,
        rdev: (47, 48),
        size: 49,
        blocks: 50,
        blksize: 51,
        atime: (52, 53),
        mtime: (54, 55),
        ctime: (56, 57),
        generation: Generation::from_birth_time((27, 28)),
    }
}

fn inodes() -> InodesRecord {
    let node = |kernel_cache| InodeRecord {
        ino: 1,
        names: vec![(2, "n".into())],
        lookups: 3,
        natural_ino: 4,
        is_removed: true,
        is_nameless: false,
        generation: Generation::from_birth_time((27, 28)),
        domain: 5,
        kind: FileKind::Fifo,
        kernel_cache,
        has_small_block_reads: true,
    };
    let caches = [
        KernelCacheRecord::Empty,
        KernelCacheRecord::Version(VERSION, true),
        KernelCacheRecord::Mixed,
    ];
    InodesRecord { nodes: caches.map(node).into(), substitutes: vec![(6, 7)] }
}

fn file() -> FileRecord {
    FileRecord {
        ino: 11,
        version: version(),
        replica_files: vec![ReplicaFileRecord { replica: 12, is_verified: true, file: 13 }],
        attr: Some(attr()),
    }
}

fn open_file() -> HandleRecord {
    let writer = WriterRecord {
        readable: true,
        sync: 2,
        credentials: None,
        deferred_error: Some(5),
        is_deferred: true,
        file: Some(61),
    };
    HandleRecord {
        number: 63,
        ino: 64,
        credentials: None,
        kind: HandleKindRecord::File {
            version: version(),
            is_direct: true,
            is_current: false,
            writer: Some(writer),
        },
    }
}

fn open_directory() -> HandleRecord {
    let entry = DirEntry { name: "e".into(), ino: 62, kind: FileKind::Socket };
    HandleRecord {
        number: 65,
        ino: 66,
        credentials: Some((1, 2, vec![])),
        kind: HandleKindRecord::Directory {
            is_started: true,
            listing: Some((67, vec![entry])),
            lost_digest: Some([9; 16]),
        },
    }
}

fn lock_owner() -> LockOwnerRecord {
    LockOwnerRecord { ino: 71, owner: 72, handles: BTreeSet::from([73, 74]), file: 75 }
}

fn changes() -> RecentChangesRecord {
    RecentChangesRecord { marks: vec![(81, 82)], filters: vec![(83, vec![84, 85])] }
}

fn unanswered() -> UnansweredRecord {
    let handle = UnansweredEntry::Handle { number: 92, ino: 93 };
    UnansweredRecord(vec![(91, handle), (94, UnansweredEntry::Lookup(95))])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(record: &impl Serialize) -> String {
    hex(&postcard::to_stdvec(record).unwrap())
}

const INODES: &str = "0301010200016e0304010001361c000503000101010200016e0304010001361c00050301\
    15162e18321a010101010200016e0304010001361c0005030201010607";
const FILE: &str = "0b0003642f6615162e18321a011d1e021f20010c010d01292a02232c2d2e2f3031323368\
    356c37703901361c00";
const OPEN_FILE: &str = "3f4000000003642f6615162e18321a011d1e021f20010001010200010a01013d";
const OPEN_DIRECTORY: &str = "41420101020001010143010001653e040109090909090909090909090909090909";
const LOCK_OWNER: &str = "474802494a4b";
const CHANGES: &str = "0151520153025455";
const UNANSWERED: &str = "025b005c5d5e015f";

#[test]
fn snapshots_keep_their_binary_format() {
    assert_eq!(encoded(&inodes()), INODES);
    assert_eq!(encoded(&file()), FILE);
    assert_eq!(encoded(&open_file()), OPEN_FILE);
    assert_eq!(encoded(&open_directory()), OPEN_DIRECTORY);
    assert_eq!(encoded(&lock_owner()), LOCK_OWNER);
    assert_eq!(encoded(&changes()), CHANGES);
    assert_eq!(encoded(&unanswered()), UNANSWERED);
    let snapshot = FsSnapshot {
        inodes: inodes(),
        files: vec![file()],
        handles: vec![open_file(), open_directory()],
        lock_owners: vec![lock_owner()],
        last_handle: 101,
        changes: changes(),
        write_replica: Some(102),
        lock_replica: Some(103),
        is_daemon_killed: true,
        unanswered: unanswered(),
        unsettled: vec![104],
    };
    let expected = format!(
        "{INODES}01{FILE}02{OPEN_FILE}{OPEN_DIRECTORY}01{LOCK_OWNER}65{CHANGES}0166016701\
         {UNANSWERED}0168"
    );
    assert_eq!(encoded(&snapshot), expected);
    assert_eq!(SNAPSHOT_FORMAT, 5);
}

#[test]
fn journals_keep_their_binary_format() {
    let unlink = |ino, removed| InodeEvent::Unlink { parent: 7, name: "n".into(), ino, removed };
    let lookup = InodeEvent::Lookup {
        request: 1,
        ino: 2,
        parent: 3,
        name: "n".into(),
        replica: 4,
        found: (&attr()).into(),
    };
    let rename =
        InodeEvent::Rename { from: (9, "a".into()), to: (10, "b".into()), moved: Some(11) };
    let entries = [
        (JournalEntry::Snapshot(Box::default()), "0e0000000000000000000000000000000000"),
        (JournalEntry::Inode(lookup), "11000000010001020300016e04292a022c01361c00"),
        (JournalEntry::Inode(InodeEvent::Forget { ino: 5, count: 6 }), "0400000001010506"),
        (
            JournalEntry::Inode(unlink(Some(8), LinkRemoval::OtherLinksLeft)),
            "0900000001020700016e010800",
        ),
        (JournalEntry::Inode(unlink(None, LinkRemoval::StillOpen)), "0800000001020700016e0001"),
        (JournalEntry::Inode(unlink(None, LinkRemoval::ObjectRemoved)), "0800000001020700016e0002"),
        (JournalEntry::Inode(rename), "0c0000000103090001610a000162010b"),
        (JournalEntry::Listed(13, [7; 16]), "12000000030d07070707070707070707070707070707"),
        (JournalEntry::Close(14), "02000000040e"),
        (JournalEntry::Changed(15), "02000000050f"),
        (JournalEntry::RolledBack(16), "020000000710"),
        (JournalEntry::Head(vec![17, 18]), "0400000008021112"),
        (JournalEntry::Unsettled(19, true), "03000000091301"),
    ];
    let frame = |entry: &JournalEntry| {
        let mut bytes = Vec::new();
        encode_frame(entry, &mut bytes).unwrap();
        hex(&bytes)
    };
    for (entry, expected) in entries {
        assert_eq!(frame(&entry), expected, "{entry:?}");
    }
    let open = JournalEntry::Open(12, Box::new(open_file()));
    assert_eq!(frame(&open), format!("22000000020c{OPEN_FILE}"));
    assert_eq!(frame(&JournalEntry::Unanswered(unanswered())), format!("0900000006{UNANSWERED}"));
}
