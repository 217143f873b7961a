//! A minimal FUSE server: one file, and every read of it is answered from one constant buffer. Its
//! cost is the cost of FUSE itself, so it is the floor for fanfs.
//!
//! The constant buffer stays in the processor's cache. With a file's own bytes, held in memory, the
//! server is the floor for a server that moves data.
//!
//! *Invariant:* the kernel sees the same as with fanfs: the same INIT flags, limits, mount options,
//! flags of an open file, session threads and clones of the device. Configurable values come from
//! fanfs's defaults. Values fixed in `src/fuse.rs`, `src/fuse/adapter.rs` and `src/fuse/mount.rs`
//! are repeated here and must change with them.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum;
use fanfs::config::{self, Config};
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::daemon::raise_readahead;
use super::{Failure, size_of};

/// The file's name below the mount point.
pub(super) const FILE: &str = "file";

/// As `REQUESTS_IN_BUDGET` of `src/daemon.rs`.
const REQUESTS_IN_BUDGET: u64 = 8;

/// Serve the null file system alone, until it is unmounted or interrupted
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// An empty directory; the file is MOUNTPOINT/file
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,
    /// The cache of file data
    #[arg(long, value_enum, default_value_t = Cache::Direct)]
    cache: Cache,
    /// Session threads [default: as many as fanfs starts here]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Give each of the session's threads a clone of the device, as fanfs does not
    #[arg(long)]
    clone_fd: bool,
    /// Background requests that the kernel may have in flight [default: as fanfs]
    #[arg(long, value_name = "N")]
    max_background: Option<u16>,
    /// Most bytes that one read may ask for [default: as fanfs]
    #[arg(long, value_name = "SIZE", value_parser = size_of)]
    max_request: Option<u64>,
    /// The file's size
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "4GiB")]
    size: u64,
    /// Answer with this file's bytes, held in memory, instead of one constant
    #[arg(long, value_name = "FILE")]
    content: Option<PathBuf>,
}

/// The cache of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cache {
    /// No cache, as `cache = "direct"`
    Direct,
    /// The kernel's page cache, as `cache = "kernel"`
    Kernel,
}

/// fanfs's default configuration.
pub(super) fn defaults() -> Config {
    let text = "[volume]\nname = \"null\"\nmode = \"copies\"\n[[replica]]\npath = \"/\"\n";
    config::parse(text, Path::new("null")).expect("a volume without options")
}

struct Null {
    cache: Cache,
    ttl: Duration,
    max_background: u16,
    max_request: u64,
    size: u64,
    /// A constant server keeps only one reply's worth of bytes.
    content: Vec<u8>,
    is_constant: bool,
}

/// Mounts, serves, and unmounts at a signal.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let defaults = defaults();
    let threads = args.threads.unwrap_or(defaults.fuse.threads);
    let null = Null {
        cache: args.cache,
        ttl: defaults.fuse.attribute_ttl,
        max_background: args.max_background.unwrap_or(defaults.fuse.max_background),
        max_request: args.max_request.unwrap_or(defaults.memory.budget / REQUESTS_IN_BUDGET),
        size: args.size,
        content: args.content.as_ref().map(std::fs::read).transpose()?.unwrap_or_default(),
        is_constant: args.content.is_none(),
    };
    let device = attach(&args.mount_point)?;
    let mut config = fuser::Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = args.clone_fd;
    let acl = fuser::SessionACL::Owner;
    let session = fuser::Session::from_fd(null, device, acl, config).and_then(|session| {
        std::thread::Builder::new().name("fuse".to_owned()).spawn(move || session.run())
    });
    let served = session.map_err(Failure::from).and_then(|session| {
        raise_readahead(&args.mount_point, defaults.fuse.kernel_readahead)?;
        wait(&session)
    });
    // If another program has unmounted it, there is nothing to detach.
    let _ = fanfs::fuse::unmount(&args.mount_point, true);
    served
}

/// Waits until the session ends or a signal arrives.
fn wait(session: &std::thread::JoinHandle<std::io::Result<()>>) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        while !session.is_finished() {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        Ok(())
    })
}

/// As `src/fuse/mount.rs` does for root.
fn attach(mount_point: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| Failure(format!("cannot open /dev/fuse: {errno}")))?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    let data = CString::new(data).expect("numbers");
    let flags = MountFlags::RDONLY | MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("null", mount_point, "fuse.null", flags, Some(data.as_c_str()))
        .map_err(|errno| Failure(format!("cannot mount on {}: {errno}", mount_point.display())))?;
    Ok(device)
}

impl Null {
    fn attributes(&self, number: INodeNo) -> FileAttr {
        let root = number == INodeNo::ROOT;
        FileAttr {
            ino: number,
            size: if root { 0 } else { self.size },
            blocks: if root { 0 } else { self.size / 512 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if root { FileType::Directory } else { FileType::RegularFile },
            perm: if root { 0o755 } else { 0o644 },
            nlink: if root { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            // The values of tmpfs, which fanfs passes on.
            blksize: 4096,
            flags: 0,
        }
    }
}

impl fuser::Filesystem for Null {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_background(self.max_background);
        let most = u32::try_from(self.max_request).unwrap_or(u32::MAX);
        let granted = match config.set_max_write(most) {
            Ok(_) => most,
            Err(limit) => {
                let _ = config.set_max_write(limit);
                limit
            }
        };
        if self.is_constant {
            // Not zero, so that reads do not come from the zero page.
            self.content = vec![0xa5; granted as usize];
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&self.ttl, &self.attributes(INodeNo(2)), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _req: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&self.ttl, &self.attributes(number));
    }

    fn open(&self, _req: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let cache = match self.cache {
            Cache::Direct => FopenFlags::FOPEN_DIRECT_IO,
            Cache::Kernel => FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(FileHandle(1), FopenFlags::FOPEN_NOFLUSH | cache);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.size.saturating_sub(offset).min(size.into()) as usize;
        let start = if self.is_constant { 0 } else { offset as usize };
        let content = self.content.get(start..).unwrap_or_default();
        reply.data(&content[..len.min(content.len())]);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}
