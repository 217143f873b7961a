//! Reads a file from an NFS server and writes it to standard output; shows the rate.
//!
//!     cargo run --release -p fanfs-nfs --example nfs_cat -- nfs://SERVER/EXPORT PATH [4.1 | MOUNT_PORT]
//!
//! Eight reads of 1 MiB are in flight, over two connections.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fanfs_nfs::nfs::{
    Caller, Client, DEFAULT_NFS_PORT, DataRoom, FileHandle, Identity, MountRequest, NfsAddress,
    Ports, ReadResult, ReadSink, SubmittedRead, Target, Tree, TreeLimits,
};

const BLOCK: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();
const IN_FLIGHT: usize = 8;
const CONNECTIONS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(30);

type Answer = Receiver<(Vec<u8>, ReadResult)>;

/// Sends a block and its result to the thread that writes.
struct Block {
    bytes: Vec<u8>,
    sender: SyncSender<(Vec<u8>, ReadResult)>,
}

impl ReadSink for Block {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.bytes
    }

    fn end(self: Box<Self>, result: ReadResult) {
        let _ = self.sender.send((self.bytes, result));
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfs_cat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: NfsAddress = arguments.next().ok_or("nfs://SERVER/EXPORT is missing")?.parse()?;
    let path = arguments.next().ok_or("the path of a file is missing")?;
    let version = arguments.next();
    let me = Identity::of_process();
    let addresses = address.resolve()?;
    let caller = Caller { identity: &me, deadline: Instant::now() + TIMEOUT };
    let target = |port: u16| Target {
        addresses: addresses.iter().map(|address| SocketAddr::new(address.ip(), port)).collect(),
        connections: CONNECTIONS,
        reserved_port: true,
        is_patient: false,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    };
    let (client, root) = if version.as_deref() == Some("4.1") {
        let client = Client::version_4_1(target(address.port.unwrap_or(DEFAULT_NFS_PORT)), caller)?;
        let root = client.find_export(caller, &address.export)?.handle;
        (client, root)
    } else {
        let mounted = MountRequest {
            server: addresses[0],
            ports: Ports {
                nfs: address.port,
                mount: version.map(|port| port.parse()).transpose()?,
            },
            identity: &me,
            reserved_port: true,
            deadline: caller.deadline,
        }
        .mount(&address.export)?;
        (Client::version_3(target(mounted.nfs_port))?, mounted.root)
    };
    let limits =
        TreeLimits { operation: TIMEOUT, listing: TIMEOUT, directories: TIMEOUT, read: BLOCK };
    let tree = Tree::new(client, root, limits);
    let file = tree.look_up(&me, Path::new(&path))?;
    let begun = Instant::now();
    let bytes = copy(&tree, &me, file.handle, file.attributes.size)?;
    let took = begun.elapsed();
    let rate = bytes as f64 / took.as_secs_f64() / 1e6;
    eprintln!("{bytes} bytes in {:.3} s, {rate:.1} MB/s", took.as_secs_f64());
    Ok(())
}

/// Copies the file to standard output.
fn copy(tree: &Tree, me: &Identity, file: FileHandle, size: u64) -> Result<u64, Box<dyn Error>> {
    let mut output = io::stdout().lock();
    let mut reads: VecDeque<Answer> = VecDeque::new();
    let mut free: Vec<Vec<u8>> = (0..IN_FLIGHT).map(|_| vec![0; BLOCK.get()]).collect();
    let mut asked = 0;
    let mut written = 0;
    while written < size {
        while asked < size
            && let Some(bytes) = free.pop()
        {
            let (sender, answer) = sync_channel(1);
            let sink = Box::new(Block { bytes, sender });
            tree.submit_read(me, file, SubmittedRead { offset: asked, sink, is_unwanted: None });
            reads.push_back(answer);
            asked += BLOCK.get() as u64;
        }
        let Some(answer) = reads.pop_front() else { break };
        let (mut bytes, end) = answer.recv()?;
        let mut filled = end?.bytes;
        // A server may send less than a block before the end of the file.
        let wanted = (size - written).min(BLOCK.get() as u64) as usize;
        while filled < wanted {
            let room = &mut bytes[filled..wanted];
            filled += tree.read(me, file, written + filled as u64, room)?.bytes;
        }
        output.write_all(&bytes[..wanted])?;
        written += wanted as u64;
        free.push(bytes);
    }
    Ok(written)
}
