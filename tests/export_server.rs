//! Servers of both versions of NFS in this process that export a directory.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::nfs_server::NfsServer;
use crate::nfs_server::mirror::{CallKind, Habits, Mirror, MirrorEntry};
use crate::nfs4_server::{Attributes, Kind, Listed, Server, Tree};

/// The version of NFS that the servers of a volume have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    Nfs3,
    Nfs4,
    /// One after the other.
    Both,
}

impl Versions {
    pub(crate) const ALL: [Self; 3] = [Self::Nfs3, Self::Nfs4, Self::Both];

    fn is_4(self, replica: usize) -> bool {
        match self {
            Self::Nfs3 => false,
            Self::Nfs4 => true,
            Self::Both => replica.is_multiple_of(2),
        }
    }
}

/// A server of one replica.
pub(crate) enum ExportServer {
    Nfs3(Mutex<NfsServer>),
    Nfs4 { server: Server, habits: watch::Sender<Habits> },
}

impl ExportServer {
    /// Exports `root`, or `other` while it is turned.
    pub(crate) fn new(
        versions: Versions,
        replica: usize,
        root: &Path,
        other: Option<&Path>,
    ) -> Self {
        if !versions.is_4(replica) {
            return Self::Nfs3(Mutex::new(NfsServer::new(root, other)));
        }
        let (habits, seen) = watch::channel(Habits::GOOD);
        let clock = tokio::runtime::Builder::new_multi_thread();
        let clock = { clock }.worker_threads(1).enable_time().build().expect("a runtime");
        let export = Export { mirror: Mirror::new(root, other, seen), clock };
        Self::Nfs4 { server: Server::exporting(Arc::new(export), SLOTS), habits }
    }

    /// The keys of a `[[replica]]` of a configuration.
    pub(crate) fn replica_keys(&self) -> String {
        match self {
            Self::Nfs3(server) => server.lock().replica_keys(),
            Self::Nfs4 { server, .. } => format!("address = \"nfs://{}/export\"\n", server.address),
        }
    }

    /// Changes its behaviour.
    pub(crate) fn behave(&self, change: impl FnOnce(&mut Habits)) {
        match self {
            Self::Nfs3(server) => server.lock().behave(change),
            Self::Nfs4 { habits, .. } => habits.send_modify(change),
        }
    }

    /// Ends it, or starts it again.
    pub(crate) fn set_down(&self, is_down: bool) {
        match self {
            Self::Nfs3(server) if is_down => server.lock().stop(),
            Self::Nfs3(server) => server.lock().start(),
            Self::Nfs4 { server, .. } => {
                server.set_down(is_down);
                if is_down {
                    server.close_connections();
                    server.forget_sessions();
                }
            }
        }
    }
}

/// Fewer than there are reads at a time.
const SLOTS: u32 = 8;

/// A mirror, as NFSv4.1 shows it.
struct Export {
    mirror: Mirror,
    clock: Runtime,
}

fn attributes(found: &Metadata) -> Attributes {
    let kind = match found.file_type() {
        kind if kind.is_dir() => 2,
        kind if kind.is_symlink() => 5,
        _ => 1,
    };
    Attributes {
        kind,
        size: found.size(),
        file_system: found.dev(),
        number: found.ino(),
        mode: found.mode() & 0o7777,
        links: found.nlink() as u32,
        owner: found.uid(),
        group: found.gid(),
        accessed: (found.atime(), found.atime_nsec() as u32),
        modified: (found.mtime(), found.mtime_nsec() as u32),
        changed: (found.ctime(), found.ctime_nsec() as u32),
    }
}

impl Tree for Export {
    fn export(&self) -> u64 {
        self.mirror.root_ino()
    }

    fn pass(&self, kind: Kind) -> Result<(), u32> {
        let clock = self.clock.handle();
        match kind {
            Kind::LookUp => clock.block_on(self.mirror.pass(CallKind::LookUp)),
            Kind::Read { offset } => clock.block_on(self.mirror.pass_read(offset)),
            Kind::Other => clock.block_on(self.mirror.pass(CallKind::Other)),
        }
    }

    fn answers_at_once(&self) -> bool {
        false
    }

    fn look_up(&self, dir: u64, name: &[u8]) -> Result<u64, u32> {
        self.mirror.look_up(dir, name).map(|found| found.ino())
    }

    fn attributes(&self, object: u64) -> Result<Attributes, u32> {
        self.mirror.find(object).map(|(_, found)| attributes(&found))
    }

    fn read(&self, file: u64, offset: u64, count: usize) -> Result<(Vec<u8>, bool), u32> {
        self.mirror.read(file, offset, count)
    }

    fn list(&self, dir: u64) -> Result<Vec<Listed>, u32> {
        let entries = self.mirror.list(dir)?;
        let listed =
            |entry: MirrorEntry| Listed { name: entry.name, found: Ok(attributes(&entry.found)) };
        Ok(entries.into_iter().map(listed).collect())
    }

    fn names_in_part(&self) -> usize {
        16
    }

    fn read_link(&self, link: u64) -> Result<Vec<u8>, u32> {
        self.mirror.read_link(link)
    }
}
