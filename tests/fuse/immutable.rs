//! Volumes whose data never changes: the kernel keeps names, attributes and data, and most opens ask
//! no replica.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::io::Errno;

use crate::needs;
use crate::processes::Command;
use crate::recorder::Call;
use crate::rig::{Rig, Setup, bytes, mount, root, tree};

const IMMUTABLE: &str = "immutable = true\n";

/// A directory, a link, a small file and one of several segments.
fn rig(setup: &Setup) -> Rig {
    let room = tree();
    let at = |name: &str| root(&room).join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/small"), bytes(5000, 1)).unwrap();
    fs::write(at("large"), bytes(5 << 20, 2)).unwrap();
    symlink("d/small", at("link")).unwrap();
    mount(room, setup)
}

/// The calls of all replicas since [`Rig::record`], apart from the closes of earlier opens.
fn calls(rig: &Rig) -> Vec<Call> {
    let is_question = |call: &Call| !matches!(call, Call::Close(_));
    rig.recorded().into_iter().flatten().filter(is_question).collect()
}

/// Looks at every object below `dir`, and reads it.
fn read_all(dir: &Path) -> Vec<(std::ffi::OsString, u64, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let attributes = fs::symlink_metadata(&path).unwrap();
        let content = match attributes.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string(),
            kind if kind.is_dir() => {
                all.extend(read_all(&path));
                Default::default()
            }
            _ => Default::default(),
        };
        let data = if attributes.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        all.push((content, attributes.ino(), data));
    }
    all
}

#[test]
fn a_second_pass_over_an_immutable_volume_only_lists() {
    let is_list = |call: &Call| matches!(call, Call::List | Call::StatEntries(_));
    // In `copies` mode an open asks the copy that decides.
    let is_open = |call: &Call| matches!(call, Call::Open | Call::Attr | Call::Stat);
    for copies in [false, true] {
        let read = "cache = \"kernel\"";
        let rig = rig(&Setup { volume: IMMUTABLE, read, copies, ..Setup::default() });
        let first = read_all(&rig.at(""));
        assert!(!rig.at("none").exists());
        rig.expect_quiet();
        rig.record();
        assert!(read_all(&rig.at("")) == first, "the two passes differ");
        assert!(!rig.at("none").exists());
        let mut others = calls(&rig);
        others.retain(|call| !(is_list(call) || copies && is_open(call)));
        assert_eq!(others, [], "copies: {copies}");
    }
}

#[test]
fn an_open_of_an_immutable_file_asks_no_replica() {
    for read in ["cache = \"kernel\"", "cache = \"direct\""] {
        let rig = rig(&Setup { volume: IMMUTABLE, read, ..Setup::default() });
        for (name, content) in [("d/small", bytes(5000, 1)), ("large", bytes(5 << 20, 2))] {
            fs::metadata(rig.at(name)).unwrap();
            rig.record();
            let mut file = File::open(rig.at(name)).unwrap();
            assert_eq!(calls(&rig), [], "{name} {read}");
            let mut got = Vec::new();
            file.read_to_end(&mut got).unwrap();
            assert!(got == content, "{name} {read}");
        }
        rig.expect_quiet();
    }
}

/// The first read finds the replica that can open the file.
#[test]
fn the_first_read_of_an_immutable_file_fails_over() {
    let rig = rig(&Setup { volume: IMMUTABLE, ..Setup::default() });
    fs::metadata(rig.at("d/small")).unwrap();
    let file = File::open(rig.at("d/small")).unwrap();
    for script in &rig.scripts[..2] {
        script.add(FaultRule::always(FaultOp::Open, Fault::Errno(Errno::IO)));
    }
    let mut got = vec![0; 5000];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes(5000, 1));
}

/// The open asked no replica, so the first read has the answer to it.
#[test]
fn the_first_read_returns_that_the_open_was_refused() {
    let rig = rig(&Setup { volume: IMMUTABLE, ..Setup::default() });
    fs::metadata(rig.at("large")).unwrap();
    let file = File::open(rig.at("large")).unwrap();
    for script in &rig.scripts {
        script.add(FaultRule::always(FaultOp::Open, Fault::Errno(Errno::ACCESS)));
    }
    let mut got = vec![0; 5 << 20];
    let refused = file.read_exact_at(&mut got, 0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // No replica is left out because of it.
    let replicas = rig.status().replicas;
    assert!(replicas.iter().all(|replica| replica.counters.disagreements == 0), "{replicas:?}");
    rig.scripts.iter().for_each(|script| script.heal());
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes(5 << 20, 2));
}

/// The application has opened the file, so read(2) does not fail for want of a descriptor.
#[test]
fn a_read_waits_for_a_descriptor() {
    let rig = rig(&Setup { volume: IMMUTABLE, ..Setup::default() });
    fs::metadata(rig.at("large")).unwrap();
    let file = File::open(rig.at("large")).unwrap();
    for script in &rig.scripts {
        let rule = FaultRule::always(FaultOp::Open, Fault::Errno(Errno::MFILE));
        script.add(FaultRule { count: 3, ..rule });
    }
    let mut got = vec![0; 5 << 20];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes(5 << 20, 2));
    // Replicas that were refused a descriptor again may have come too late.
    assert!(rig.scripts.iter().any(|script| script.is_exhausted()));
    drop(file);
    rig.expect_quiet();
}

#[test]
fn the_kernel_checks_permissions_of_an_immutable_volume() {
    if !needs::root() {
        return;
    }
    let rig = rig(&Setup { volume: IMMUTABLE, ..Setup::default() });
    for (name, mode) in [("d/small", 0o600), ("d", 0o700), ("large", 0o604)] {
        fs::set_permissions(rig.source(0, name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(rig.at("").parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    // As root first: the kernel then knows all of them.
    read_all(&rig.at(""));
    let by_other_user = |command: &str| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", command]);
        setpriv.current_dir(rig.at("")).output().unwrap().status.success()
    };
    assert!(!by_other_user("cat d/small") && !by_other_user("ls d"));
    assert!(by_other_user("cat large > /dev/null && ls . > /dev/null"));
}

/// Without `immutable` for the time that `attribute_ttl` says.
#[test]
fn a_missing_name_is_remembered_like_a_known_one() {
    for (rest, is_remembered) in
        [("[fuse]\nattribute_ttl = \"1h\"", true), ("[fuse]\nattribute_ttl = \"0s\"", false)]
    {
        let rig = rig(&Setup { rest, ..Setup::default() });
        assert!(!rig.at("d/new").exists());
        fs::write(rig.source(0, "d/new"), "new").unwrap();
        rig.record();
        assert_eq!(rig.at("d/new").exists(), !is_remembered, "{rest}");
        assert_eq!(calls(&rig).contains(&Call::Stat), !is_remembered, "{rest}");
    }
}

/// A name that was created here exists at once, however it was looked up before.
#[test]
fn a_remembered_missing_name_can_be_created() {
    let rest = "[fuse]\nattribute_ttl = \"1h\"";
    let rig = rig(&Setup { rest, write: true, ..Setup::default() });
    for name in ["file", "exclusive", "dir", "moved", "hard", "soft"] {
        assert!(!rig.at(name).exists());
    }
    fs::write(rig.at("file"), "file").unwrap();
    File::create_new(rig.at("exclusive")).unwrap();
    fs::create_dir(rig.at("dir")).unwrap();
    fs::hard_link(rig.at("file"), rig.at("hard")).unwrap();
    symlink("file", rig.at("soft")).unwrap();
    fs::rename(rig.at("exclusive"), rig.at("moved")).unwrap();
    for name in ["file", "dir", "moved", "hard", "soft"] {
        assert!(rig.at(name).exists(), "{name}");
    }
    assert!(!rig.at("exclusive").exists());
    assert_eq!(fs::read(rig.at("hard")).unwrap(), b"file");
}
