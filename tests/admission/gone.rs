//! A replica's mount is detached in service, and the mounts inside it go with it.
//!
//! The daemon's open root still answers, but without the nested mounts. Through it, names
//! in them would be missing, and a new file would lie below the mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::with_mounts;
use super::world::World;

/// A volume with a nested mount `inner` in each replica; `kept` is a second mount of `n3`.
struct Nested(World);

impl Drop for Nested {
    fn drop(&mut self) {
        self.detach("kept");
    }
}

impl Nested {
    fn new() -> Self {
        Self::with_lag("0s")
    }

    /// The kernel asks for attributes again before each use.
    fn with_short_lived_attributes() -> Self {
        Self::with_settings("0s", "[fuse]\nattribute_ttl = \"0s\"\n")
    }

    fn with_lag(lag: &str) -> Self {
        Self::with_settings(lag, "")
    }

    fn with_settings(lag: &str, more: &str) -> Self {
        let world = World::new("");
        fs::create_dir(world.path("tree/inner")).unwrap();
        fs::create_dir(world.path("nested")).unwrap();
        for i in 0..10 {
            fs::write(world.path(&format!("nested/g{i}")), "nested").unwrap();
        }
        let text = fs::read_to_string(world.path("v.toml")).unwrap();
        let text = text.replace("[write]\n", "[write]\nreplica = \"n1\"\n");
        let text = text.replace("lag = \"0s\"", &format!("lag = \"{lag}\""));
        fs::write(world.path("v.toml"), text + more).unwrap();
        let nested = Self(world);
        fs::create_dir(nested.0.path("kept")).unwrap();
        mount_bind(nested.0.path("n3"), nested.0.path("kept")).unwrap();
        ["n1", "n2", "n3"].iter().for_each(|name| nested.mount_inner(name));
        nested.0.expect(&["mount", "v.toml", "mnt", "-o", "log=log"]);
        nested.0.expect_all_in_service();
        nested
    }

    fn mount_inner(&self, name: &str) {
        mount_bind(self.0.path("nested"), self.0.path(name).join("inner")).unwrap();
    }

    fn detach(&self, name: &str) {
        unmount(self.0.path(name), UnmountFlags::DETACH).unwrap();
    }

    fn mount_again(&self, name: &str) {
        let from = if name == "n3" { "kept" } else { "tree" };
        mount_bind(self.0.path(from), self.0.path(name)).unwrap();
        self.mount_inner(name);
    }

    fn expect_absent(&self, names: &[&str]) {
        self.0.eventually("they are absent", || {
            let health = self.0.health();
            names.iter().all(|name| health.get(*name).is_some_and(|state| state == "absent"))
        });
    }

    /// No file was created below the nested mount.
    fn expect_nothing_below(&self) {
        let names = |path: &Path| fs::read_dir(path).unwrap().count();
        assert_eq!(names(&self.0.path("tree/inner")), 0, "below the mount\n{}", self.0.log());
    }

    /// A write works, and the file lies in the nested mount.
    fn expect_writes(&self, name: &str) {
        let at = format!("mnt/inner/{name}");
        self.0.eventually("it can be written", || fs::write(self.0.path(&at), "w").is_ok());
        assert_eq!(fs::read(self.0.path("nested").join(name)).unwrap(), b"w");
        self.expect_nothing_below();
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

/// To read the mount table takes a descriptor.
#[test]
fn a_loss_without_free_descriptors_is_noticed_later() {
    with_mounts("gone::a_loss_without_free_descriptors_is_noticed_later", || {
        let nested = Nested::new();
        let world = &nested.0;
        let daemon = Pid::from_raw(world.daemon() as i32);
        let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Nofile).maximum };
        let usual = prlimit(daemon, Resource::Nofile, none).unwrap();
        nested.detach("n2");
        world.eventually("the table could not be read", || world.log().contains("the mount table"));
        prlimit(daemon, Resource::Nofile, usual).unwrap();
        nested.expect_absent(&["n2"]);
        nested.mount_again("n2");
        world.expect_all_in_service();
        world.expect_whole();
    });
}

#[test]
fn a_lost_write_replica_is_never_changed() {
    with_mounts("gone::a_lost_write_replica_is_never_changed", || {
        let nested = Nested::new();
        let world = &nested.0;
        nested.expect_writes("before");
        nested.detach("n1");
        nested.expect_absent(&["n1"]);
        let made = fs::write(world.path("mnt/inner/made"), "made");
        nested.expect_nothing_below();
        assert_eq!(errno(made), Some(Errno::IO));
        assert_eq!(errno(fs::create_dir(world.path("mnt/made"))), Some(Errno::IO));
        assert!(!world.path("tree/made").exists());
        // The other replicas can be read.
        assert_eq!(fs::read(world.path("mnt/inner/g0")).unwrap(), b"nested");
        nested.mount_again("n1");
        world.expect_all_in_service();
        nested.expect_writes("after");
        world.expect_whole();
    });
}

/// Only the write replica is asked about recent changes. A change that was not tried does not
/// count.
#[test]
fn after_an_untried_change_other_replicas_still_serve() {
    let name = "gone::after_an_untried_change_other_replicas_still_serve";
    with_mounts(name, || {
        let nested = Nested::with_lag("10min");
        let world = &nested.0;
        nested.detach("n1");
        nested.expect_absent(&["n1"]);
        let [made, there] = ["mnt/inner/made", "mnt/inner/g0"].map(|name| world.path(name));
        let tries = [
            fs::write(&made, "made"),
            fs::create_dir(&made),
            fs::remove_file(&there),
            fs::rename(&there, &made),
            fs::hard_link(&there, &made),
            fs::set_permissions(&there, std::os::unix::fs::PermissionsExt::from_mode(0o600)),
            fs::write(&there, "written"),
        ];
        assert!(tries.into_iter().all(|tried| errno(tried) == Some(Errno::IO)));
        assert_eq!(fs::read(&there).unwrap(), b"nested");
        assert!(fs::read_dir(world.path("mnt/inner")).unwrap().count() > 0);
        nested.expect_nothing_below();
        nested.mount_again("n1");
        world.expect_all_in_service();
        nested.expect_writes("after");
    });
}

#[test]
fn if_all_mounts_are_gone_a_nested_name_is_an_error() {
    with_mounts("gone::if_all_mounts_are_gone_a_nested_name_is_an_error", || {
        let nested = Nested::with_short_lived_attributes();
        let world = &nested.0;
        let open = File::open(world.path("mnt/f03")).unwrap();
        let all = ["n1", "n2", "n3"];
        all.iter().for_each(|name| nested.detach(name));
        nested.expect_absent(&all);
        for i in 0..5 {
            let seen = fs::metadata(world.path(&format!("mnt/inner/g{i}")));
            assert_eq!(errno(seen), Some(Errno::IO), "g{i}");
        }
        let made = fs::write(world.path("mnt/inner/made"), "made");
        nested.expect_nothing_below();
        assert_eq!(errno(made), Some(Errno::IO));
        // Open files stay open, and show their attributes.
        let mut start = [0; 6];
        open.read_exact_at(&mut start, 0).unwrap();
        assert_eq!(open.metadata().unwrap().len(), 84_000);
        assert_eq!(&start, b"file 3");
        all.iter().for_each(|name| nested.mount_again(name));
        world.expect_all_in_service();
        assert_eq!(fs::read(world.path("mnt/inner/g9")).unwrap(), b"nested");
        nested.expect_writes("after");
        world.expect_whole();
    });
}

#[test]
fn a_quickly_replaced_mount_is_used() {
    with_mounts("gone::a_quickly_replaced_mount_is_used", || {
        let nested = Nested::new();
        for i in 0..10 {
            nested.detach("n1");
            nested.mount_again("n1");
            // The daemon has read the mount table now: it creates nothing below.
            nested.0.expect_all_in_service();
            nested.expect_writes(&format!("w{i}"));
        }
        nested.0.expect_whole();
    });
}

/// All replicas agree with one another, but not with those of the daemon before.
#[test]
fn an_upgrade_rejects_a_different_file_system() {
    with_mounts("gone::an_upgrade_rejects_a_different_file_system", || {
        let nested = Nested::new();
        let (world, all) = (&nested.0, ["n1", "n2", "n3"]);
        let other = world.path("other-file-system");
        fs::create_dir(&other).unwrap();
        mount("tmpfs", &other, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(other.join("f00"), "of another file system").unwrap();
        for name in all {
            nested.detach(name);
            mount_bind(&other, world.path(name)).unwrap();
        }
        nested.expect_absent(&all);
        let refused = world.run(&["upgrade", "mnt"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("than before"), "{said}");
        nested.expect_absent(&all);
        assert_eq!(errno(fs::read(world.path("mnt/f00"))), Some(Errno::IO));
        assert_eq!(errno(fs::write(world.path("mnt/made"), "made")), Some(Errno::IO));
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1, "it was written");
        for name in all {
            nested.detach(name);
            nested.mount_again(name);
        }
        world.expect_all_in_service();
        world.expect_whole();
    });
}
