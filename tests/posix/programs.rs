//! Programs that people run on a file system, and that check themselves whether it works.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::tool::{bounded, ended, succeeds};
use super::tree;

/// Random writes, each block with its checksum, read back and compared: through the page cache,
/// around it, through a mapping, and many at a time; 64 MiB in seven processes at once.
pub(crate) fn fio(dir: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let room = tempfile::Builder::new().prefix("fio-").tempdir_in(dir).unwrap();
    let jobs = format!(
        "[global]\ndirectory={}\nbsrange=4k-1m\nblockalign=4k\nrw=randwrite\nrandseed=7\n\
         verify=crc32c\ndo_verify=1\nverify_fatal=1\nverify_state_save=0\n\
         [cached]\nengine=psync\nsize=10m\nnumjobs=2\nend_fsync=1\n\
         [direct]\nengine=psync\nsize=10m\nnumjobs=2\ndirect=1\n\
         [mapped]\nengine=mmap\nsize=8m\n\
         [deep]\nengine=libaio\niodepth=16\nsize=8m\ndirect=1\n\
         [mixed]\nengine=psync\nsize=8m\nrw=randrw\nverify_backlog=16\n",
        room.path().display()
    );
    let jobs = jobs.replace("\nengine=", "\nioengine=");
    fs::write(scratch.path().join("jobs.fio"), jobs).unwrap();
    let log = scratch.path().join("fio.log");
    let mut command = bounded(60, "fio", scratch.path());
    let output = command.args(["--output=fio.log", "jobs.fio"]).output().unwrap();
    let log = fs::read_to_string(log).unwrap_or_default();
    let bad = |line: &&str| line.contains("verify") || line.contains("error=");
    let complaints: Vec<_> = log.lines().filter(bad).take(20).collect();
    let fine = output.status.success() && complaints.is_empty();
    assert!(fine, "fio on {}: {}\n{}", dir.display(), complaints.join("\n"), ended(&output));
    room.close().unwrap();
}

/// Groups of stress-ng's stressors that work on files in a directory; those of a
/// group at the same time. Why the others are left out:
///
/// - bind-mount, binderfs, eventfd, getdent, handle, procfs, fstat (looks at
///   /dev): do not touch the directory;
/// - fanotify, ioprio: are about privileges and about scheduling;
/// - io: is sync(2) for the whole machine, without a check;
/// - dup: is about descriptors;
/// - verity, fiemap: are ioctls of some file systems, and skipped on the others;
/// - chattr, inode-flags: are ioctls too, and a mount that passes them on may be
///   left with a file that is immutable;
/// - lease: is the kernel's affair;
/// - fsize: wants RLIMIT_FSIZE kept by fallocate, which a FUSE server cannot know;
///   fails now and then on bindfs.
///
/// Of the other classes those are here that read and write files. Not mmap,
/// msync, fault, madvise, which take 256 MiB (fsx and fio write through
/// mappings), nor io-uring, which fails on ext4.
const STRESSORS: &[&[(&str, &str)]] = &[
    // Names.
    &[
        ("dentry", "--dentries=512"),
        ("dir", "--dir-dirs=512"),
        ("dirdeep", "--dirdeep-inodes=2048"),
        ("filename", "--filename-opts=probe"),
        ("link", ""),
        ("mknod", ""),
        ("rename", ""),
        ("symlink", ""),
        ("touch", ""),
        ("dirmany", ""),
    ],
    // Attributes and locks of a file.
    &[
        ("access", ""),
        ("chdir", "--chdir-dirs=256"),
        ("chmod", ""),
        ("chown", ""),
        ("dnotify", ""),
        ("fcntl", ""),
        ("file-ioctl", ""),
        ("flock", ""),
        ("inotify", ""),
        ("locka", ""),
        ("lockf", ""),
        ("lockofd", ""),
        ("open", ""),
        ("utime", ""),
        ("xattr", ""),
    ],
    // Content.
    &[
        ("aio", ""),
        ("aiol", ""),
        ("copy-file", "--copy-file-bytes=128m"),
        ("fallocate", "--fallocate-bytes=16m"),
        ("fpunch", ""),
        ("hdd", "--hdd-bytes=16m"),
        ("iomix", "--iomix-bytes=16m"),
        ("readahead", "--readahead-bytes=16m"),
        ("revio", "--revio-bytes=16m"),
        ("seek", "--seek-size=16m"),
        ("sendfile", "--sendfile-size=1m"),
        ("sync-file", "--sync-file-bytes=16m"),
    ],
];

/// Each of [`STRESSORS`], one process of it, for two seconds.
pub(crate) fn stress(dir: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let room = tempfile::Builder::new().prefix("stress-").tempdir_in(dir).unwrap();
    for group in STRESSORS {
        let mut command = bounded(60, "stress-ng", scratch.path());
        command.args(["--verify", "--timeout", "2", "--temp-path"]).arg(room.path());
        for (name, option) in *group {
            command.arg(format!("--{name}")).arg("1");
            command.args(Some(*option).filter(|option| !option.is_empty()));
        }
        let output = command.output().unwrap();
        let said = [&*output.stdout, &*output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let bad = |line: &&str| line.contains(" fail: ") || line.contains(" error: ");
        let complaints: Vec<_> = said.lines().filter(bad).take(20).collect();
        assert!(
            output.status.success() && complaints.is_empty(),
            "stress-ng on {}: {}\n{}",
            dir.display(),
            complaints.join("\n"),
            ended(&output)
        );
        let left: Vec<_> = fs::read_dir(room.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "stress-ng could not remove {left:?}");
    }
    room.close().unwrap();
}

/// A repository of `FILES` files: committed, branched, cloned, packed.
pub(crate) fn git(dir: &Path) {
    const FILES: usize = 200;
    let room = tempfile::Builder::new().prefix("git-").tempdir_in(dir).unwrap();
    let (here, there) = (room.path().join("here"), room.path().join("there"));
    let git = |at: &Path, arguments: &str| {
        let mut command = bounded(60, "git", at);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        command.args(["-c", "gc.autoDetach=false", "-c", "maintenance.auto=false"]);
        succeeds(command.args(arguments.split(' ')))
    };
    let clean = |at: &Path| assert_eq!(git(at, "status --porcelain"), "", "{}", at.display());
    let name = |i: usize| here.join(format!("d{}/file{i}", i % 17));

    git(room.path(), "init -q -b main here");
    for i in 0..FILES {
        fs::create_dir_all(name(i).parent().unwrap()).unwrap();
        fs::write(name(i), tree::bytes(i * 37, i as u64)).unwrap();
    }
    git(&here, "add -A");
    git(&here, "commit -q -m first");
    clean(&here);
    let first = tree_of(&here);

    git(&here, "switch -q -c side");
    git(&here, "rm -q -r d5");
    for i in (0..FILES).step_by(3).filter(|i| i % 17 != 5) {
        fs::write(name(i), tree::bytes(i * 11 + 1, 1000 + i as u64)).unwrap();
    }
    git(&here, "mv d6 moved");
    git(&here, "commit -q -a -m second");
    clean(&here);
    let second = tree_of(&here);
    for (branch, files) in [("main", &first), ("side", &second), ("main", &first)] {
        git(&here, &format!("switch -q {branch}"));
        clean(&here);
        assert!(tree_of(&here) == *files, "other files on {branch} than were committed");
    }

    git(room.path(), "clone -q --no-local here there");
    git(&here, "gc -q --prune=now");
    for at in [&here, &there] {
        git(at, "fsck --full --strict");
        clean(at);
    }
    git(&there, "switch -q side");
    assert!(tree_of(&there) == second, "the clone has other files");
    room.close().unwrap();
}

/// The content of each file outside `.git`.
fn tree_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let names = tree::entries(dir).into_keys().filter(|name| !name.starts_with(".git"));
    let files = names.filter(|name| dir.join(name).is_file());
    files.map(|name| (name.clone(), fs::read(dir.join(&name)).unwrap())).collect()
}

/// A crate and its target directory: built once, found up to date, built again after a change of
/// its source.
pub(crate) fn cargo(dir: &Path) {
    let room = tempfile::Builder::new().prefix("cargo-").tempdir_in(dir).unwrap();
    let source = room.path().join("src");
    fs::create_dir(&source).unwrap();
    let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    fs::write(room.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(source.join("lib.rs"), "pub fn number() -> u32 { 41 }\n").unwrap();
    fs::write(source.join("main.rs"), "fn main() { print!(\"{}\", tiny::number()); }\n").unwrap();

    let build = || {
        let mut command = bounded(60, "cargo", room.path());
        command.args(["build", "-v", "--offline"]).env("CARGO_TARGET_DIR", "target");
        let output = command.output().unwrap();
        assert!(output.status.success(), "cargo build: {}", ended(&output));
        String::from_utf8_lossy(&output.stderr).contains("Fresh tiny")
    };
    let runs = || succeeds(&mut bounded(10, "./target/debug/tiny", room.path()));
    assert!(!build(), "fresh before it was built");
    assert_eq!(runs(), "41");
    assert!(build(), "built a second time though nothing has changed");
    fs::write(source.join("lib.rs"), "pub fn number() -> u32 { 42 }\n").unwrap();
    assert!(!build(), "the change was not seen");
    assert_eq!(runs(), "42");
    assert!(build(), "built again though nothing has changed");
    room.close().unwrap();
}

/// Databases with each kind of journal: two processes write, one reads, and none ever sees half a
/// transaction.
pub(crate) fn sqlite(dir: &Path) {
    let room = tempfile::Builder::new().prefix("sqlite-").tempdir_in(dir).unwrap();
    for journal in ["delete", "truncate", "persist", "wal"] {
        let name = format!("{journal}.db");
        let sqlite = || {
            let mut command = bounded(60, "sqlite3", room.path());
            command.args(["-batch", "-bail", "-cmd", ".timeout 30000", &name]);
            command
        };
        let answer = |question: &str| succeeds(sqlite().arg(question)).trim().to_owned();
        let mode = answer(&format!(
            "PRAGMA journal_mode={journal}; CREATE TABLE t(id INTEGER PRIMARY KEY, worker TEXT, \
             amount INTEGER, filler BLOB); CREATE INDEX i ON t(worker, amount);"
        ));
        assert_eq!(mode, journal, "the journal cannot be had");

        // Each transaction adds two rows whose sum is zero.
        let write = |worker: &str| {
            let one = |i: u32| {
                format!(
                    "BEGIN IMMEDIATE; INSERT INTO t(worker, amount, filler) \
                     VALUES('{worker}', {i}, randomblob({})); \
                     INSERT INTO t(worker, amount) VALUES('{worker}', -{i}); COMMIT;\n",
                    i * 53 % 9000
                )
            };
            (1..=100).map(one).collect::<String>()
        };
        let read = "SELECT count(*) % 2, total(amount) FROM t;\n".repeat(200);
        let journal_mode = format!("PRAGMA journal_mode={journal};\n");
        let scripts = [journal_mode.clone() + &write("a"), journal_mode + &write("b"), read];
        let started = scripts.map(|script| {
            let path = tempfile::NamedTempFile::new().unwrap();
            fs::write(path.path(), script).unwrap();
            let mut command = sqlite();
            command.stdin(File::open(path.path()).unwrap());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let outputs = started.map(|child| child.wait_with_output().unwrap());
        for output in &outputs {
            assert!(output.status.success(), "sqlite3 {name}: {}", ended(output));
        }
        let seen = String::from_utf8_lossy(&outputs[2].stdout);
        assert!(seen.lines().all(|line| line == "0|0.0"), "{name}: half a transaction: {seen}");

        assert_eq!(answer("PRAGMA integrity_check"), "ok", "{name}");
        let sums =
            "SELECT worker, count(*), sum(abs(amount)) FROM t GROUP BY worker ORDER BY worker";
        assert_eq!(answer(sums), "a|200|10100\nb|200|10100", "{name}");
        answer("DELETE FROM t WHERE id % 3 = 0; VACUUM;");
        assert_eq!(answer("PRAGMA integrity_check"), "ok", "{name}, after VACUUM");
    }
    room.close().unwrap();
}

/// A tree packed elsewhere, unpacked in `dir`, packed there and unpacked elsewhere: all three are
/// equal.
pub(crate) fn tar(dir: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let room = tempfile::Builder::new().prefix("tar-").tempdir_in(dir).unwrap();
    let (source, back) = (scratch.path().join("source"), scratch.path().join("back"));
    let here = room.path().join("here");
    tree::plant(&source);
    for (from, to) in [(&source, &here), (&here, &back)] {
        let archive = scratch.path().join("archive.tar");
        let tar = |dir: &Path| {
            let mut command = bounded(60, "tar", dir);
            command.args(["--xattrs", "--xattrs-include=user.*", "--numeric-owner", "--sparse"]);
            command
        };
        succeeds(tar(from).args(["--format=posix", "-cf"]).arg(&archive).arg("."));
        fs::create_dir(to).unwrap();
        succeeds(tar(to).arg("-xpf").arg(&archive));
        tree::expect_same("after tar", from, to);
    }
    tree::expect_same("after both ways", &source, &back);
    room.close().unwrap();
}

/// `cp -a` of such a tree and of a file that is almost only holes: into `dir`,
/// within it, and back.
pub(crate) fn cp(dir: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let room = tempfile::Builder::new().prefix("cp-").tempdir_in(dir).unwrap();
    let source = scratch.path().join("source");
    tree::plant(&source);
    let holes = File::create(source.join("holes")).unwrap();
    holes.set_len(256 << 20).unwrap();
    for at in [0, 64 << 20, (200 << 20) + 123] {
        holes.write_all_at(&tree::bytes(100_000, at), at).unwrap();
    }
    let ways = [
        (source.clone(), room.path().join("here")),
        (room.path().join("here"), room.path().join("again")),
        (room.path().join("again"), scratch.path().join("back")),
    ];
    for (from, to) in ways {
        succeeds(bounded(60, "cp", scratch.path()).arg("-a").arg(&from).arg(&to));
        tree::expect_same("after cp -a", &source, &to);
        let taken = to.join("holes").metadata().unwrap().blocks() * 512;
        assert!(taken < 4 << 20, "{}: the holes have become {taken} bytes", to.display());
    }
    room.close().unwrap();
}
