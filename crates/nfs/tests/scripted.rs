//! The client against a server that answers as a test says: errors, lies, and what real servers do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fanfs_nfs::nfs::{Client, FileHandle, Identity, Target, Tree, TreeLimits};
use nfs3_types::nfs3::{
    NFS_PROGRAM, Nfs3Option, cookieverf3, fattr3, ftype3, nfs_fh3, nfsstat3, nfstime3,
};
use nfs3_types::rpc::{auth_unix, msg_body, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use rustix::io::Errno;

const LONG: Duration = Duration::from_secs(60);
const READ_SIZE: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

/// A call that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    procedure: NFS_PROGRAM,
    uid: u32,
    /// How many calls of this procedure came before.
    earlier: usize,
}

/// The results of a call, from its arguments.
type Script = dyn Fn(Call, &mut &[u8]) -> Reply + Send + Sync;

/// A tree of a scripted server, and the calls that the server got.
struct Rig {
    tree: Tree,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Rig {
    fn new(script: impl Fn(Call, &mut &[u8]) -> Reply + Send + Sync + 'static) -> Self {
        let limits =
            TreeLimits { operation: LONG, listing: LONG, directories: LONG, read: READ_SIZE };
        Self::with_limits(limits, script)
    }

    fn with_limits(
        limits: TreeLimits,
        script: impl Fn(Call, &mut &[u8]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let seen = Arc::clone(&calls);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                serve(socket, &seen, &script);
            }
        });
        let tree = Tree::new(client(address), handle(0), limits);
        Self { tree, calls }
    }

    /// How often the server was asked for this.
    fn count(&self, procedure: NFS_PROGRAM) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.procedure == procedure).count()
    }

    fn look_up(&self, path: &str) -> Result<u64, Errno> {
        let found = self.tree.look_up(&user(1), Path::new(path));
        found.map(|found| found.attributes.number).map_err(|error| error.errno())
    }

    fn list(&self) -> Result<Vec<String>, Errno> {
        let entries = self.tree.list(&user(1), handle(0), &|| {}).map_err(|error| error.errno())?;
        Ok(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect())
    }
}

fn client(address: SocketAddr) -> Client {
    let target = Target {
        addresses: vec![address],
        connections: 1,
        reserved_port: false,
        is_patient: true,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    };
    Client::version_3(target).unwrap()
}

fn user(uid: u32) -> Identity {
    Identity { uid, gid: 1, groups: vec![1, 2] }
}

fn handle(number: u8) -> FileHandle {
    FileHandle::from_bytes(&[number; 8]).unwrap()
}

/// Answers the calls of one connection.
fn serve(mut socket: TcpStream, seen: &Mutex<Vec<Call>>, script: &Script) {
    let mut mark = [0; 4];
    while socket.read_exact(&mut mark).is_ok() {
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        socket.read_exact(&mut record).unwrap();
        let mut bytes = &*record;
        let message = rpc_msg::unpack(&mut bytes).unwrap().0;
        let msg_body::CALL(body) = message.body else { panic!("the client replies") };
        let user = auth_unix::unpack(&mut &*body.cred.body).unwrap().0;
        let procedure = NFS_PROGRAM::try_from(body.proc).unwrap();
        let mut seen = seen.lock().unwrap();
        let earlier = seen.iter().filter(|call| call.procedure == procedure).count();
        let call = Call { procedure, uid: user.uid, earlier };
        seen.push(call);
        drop(seen);
        let Reply(results) = script(call, &mut bytes);
        let header = [message.xid, 1, 0, 0, 0, 0];
        let reply: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
        let reply = [reply, results].concat();
        let mark = 0x8000_0000 | reply.len() as u32;
        if socket.write_all(&[&mark.to_be_bytes()[..], &reply].concat()).is_err() {
            return;
        }
    }
}

/// Results, as they are sent.
struct Reply(Vec<u8>);

impl Reply {
    fn ok() -> Self {
        Self::status(nfsstat3::NFS3_OK)
    }

    fn status(status: nfsstat3) -> Self {
        Self(Vec::new()).with(&(status as u32))
    }

    /// A status with attributes that the server leaves out, and nothing else.
    fn failure(status: nfsstat3) -> Self {
        Self::status(status).with(&false)
    }

    fn with(mut self, part: &impl Pack) -> Self {
        part.pack(&mut self.0).unwrap();
        self
    }

    /// The results of a LOOKUP.
    fn object(number: u8, kind: ftype3) -> Self {
        let attributes = Nfs3Option::Some(attributes(number, kind));
        Self::ok().with(&xdr(number)).with(&attributes).with(&false)
    }

    /// The beginning of a listing's results.
    fn listing(verifier: u8) -> Self {
        Self::ok().with(&false).with(&cookieverf3([verifier; 8]))
    }

    /// A name, and the position after it; with no attributes and no handle.
    fn name(self, name: &str, cookie: u64) -> Self {
        self.plain_name(name, cookie).with(&false).with(&false)
    }

    /// The same where the server does not offer attributes.
    fn plain_name(self, name: &str, cookie: u64) -> Self {
        let name = Opaque::borrowed(name.as_bytes());
        self.with(&true).with(&77u64).with(&name).with(&cookie)
    }

    fn end(self, is_end: bool) -> Self {
        self.with(&false).with(&is_end)
    }
}

fn xdr(number: u8) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(vec![number; 8]) }
}

fn attributes(number: u8, kind: ftype3) -> fattr3 {
    let time = nfstime3 { seconds: 1, nseconds: 2 };
    fattr3 {
        type_: kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 100,
        used: 100,
        rdev: Default::default(),
        fsid: 1,
        fileid: number.into(),
        atime: time,
        mtime: time,
        ctime: time,
    }
}

/// The name that a LOOKUP asks for.
fn name_of(arguments: &mut &[u8]) -> String {
    nfs_fh3::unpack(arguments).unwrap();
    String::from_utf8(Opaque::unpack(arguments).unwrap().0.to_vec()).unwrap()
}

/// Directories a (1), b (2) and so on, and a file with the number 9.
fn usual(arguments: &mut &[u8]) -> Reply {
    match &*name_of(arguments) {
        "file" => Reply::object(9, ftype3::NF3REG),
        "link" => Reply::object(8, ftype3::NF3LNK),
        dir => Reply::object(dir.as_bytes()[0] - b'a' + 1, ftype3::NF3DIR),
    }
}

#[test]
fn a_link_in_a_path_is_not_followed() {
    let rig = Rig::new(|_, arguments| usual(arguments));
    assert_eq!(rig.look_up("a/link"), Ok(8));
    assert_eq!(rig.look_up("a/link/file"), Err(Errno::LOOP));
    assert_eq!(rig.look_up("a/file/file"), Err(Errno::NOTDIR));
}

#[test]
fn directories_are_known_to_the_user_that_has_looked_them_up() {
    let rig = Rig::new(|_, arguments| usual(arguments));
    let look_up = |uid: u32| rig.tree.look_up(&user(uid), Path::new("a/b/file")).unwrap();
    look_up(1);
    look_up(1);
    assert_eq!(rig.count(NFS_PROGRAM::NFSPROC3_LOOKUP), 3 + 1);
    look_up(2);
    assert_eq!(rig.count(NFS_PROGRAM::NFSPROC3_LOOKUP), 4 + 3);
    let calls = rig.calls.lock().unwrap();
    assert!(calls[..4].iter().all(|call| call.uid == 1));
    assert!(calls[4..].iter().all(|call| call.uid == 2));
}

#[test]
fn a_directory_that_is_gone_is_looked_up_again() {
    for stale in [nfsstat3::NFS3ERR_STALE, nfsstat3::NFS3ERR_BADHANDLE] {
        let rig = Rig::new(move |call, arguments| match call.earlier {
            // The third is for the second file in the directory.
            2 => Reply::failure(stale),
            _ => usual(arguments),
        });
        assert_eq!(rig.look_up("a/file"), Ok(9));
        assert_eq!(rig.look_up("a/file"), Ok(9), "{stale}");
        assert_eq!(rig.count(NFS_PROGRAM::NFSPROC3_LOOKUP), 2 + 1 + 2);
    }
    let rig = Rig::new(|_, _| Reply::failure(nfsstat3::NFS3ERR_STALE));
    assert_eq!(rig.look_up("a/file"), Err(Errno::STALE), "it is not tried for ever");
}

#[test]
fn a_name_leads_to_the_directory_that_has_it_now() {
    let rig = Rig::new(|call, arguments| match &*name_of(arguments) {
        "x" => Reply::object(call.earlier as u8, ftype3::NF3DIR),
        _ => {
            // The handle of the directory that was looked up last.
            Reply::object(9, ftype3::NF3REG)
        }
    });
    assert_eq!(rig.look_up("x"), Ok(0));
    assert_eq!(rig.look_up("x"), Ok(1), "the last component is always asked for");
    assert_eq!(rig.look_up("x/file"), Ok(9));
    assert_eq!(rig.count(NFS_PROGRAM::NFSPROC3_LOOKUP), 3, "the directory is known");
}

#[test]
fn attributes_that_a_server_leaves_out_are_asked_for() {
    let rig = Rig::new(|call, _| match call.procedure {
        NFS_PROGRAM::NFSPROC3_LOOKUP => Reply::ok().with(&xdr(5)).with(&false).with(&false),
        _ => Reply::ok().with(&attributes(5, ftype3::NF3REG)),
    });
    assert_eq!(rig.look_up("file"), Ok(5));
}

#[test]
fn a_call_that_must_wait_is_made_again() {
    let rig = Rig::new(|call, arguments| match call.earlier {
        0 | 1 => Reply::failure(nfsstat3::NFS3ERR_JUKEBOX),
        _ => usual(arguments),
    });
    assert_eq!(rig.look_up("file"), Ok(9));
}

#[test]
fn a_server_without_attributes_in_listings_lists_names() {
    let rig = Rig::new(|call, _| match call.procedure {
        NFS_PROGRAM::NFSPROC3_READDIRPLUS => Reply::failure(nfsstat3::NFS3ERR_NOTSUPP),
        _ => Reply::listing(1).plain_name("one", 1).plain_name("two", 2).end(true),
    });
    assert_eq!(rig.list().unwrap(), ["one", "two"]);
    assert_eq!(rig.list().unwrap(), ["one", "two"]);
    assert_eq!(rig.count(NFS_PROGRAM::NFSPROC3_READDIRPLUS), 1);
}

/// The position, and the server's mark of the listing, of a call.
fn position_of(arguments: &mut &[u8]) -> (u64, u8) {
    nfs_fh3::unpack(arguments).unwrap();
    let cookie = u64::unpack(arguments).unwrap().0;
    (cookie, cookieverf3::unpack(arguments).unwrap().0.0[0])
}

#[test]
fn a_listing_begins_again_when_the_directory_changes() {
    let rig = Rig::new(|call, arguments| match (position_of(arguments), call.earlier) {
        ((0, _), _) => Reply::listing(7).name("one", 1).end(false),
        (_, 1) => Reply::failure(nfsstat3::NFS3ERR_BAD_COOKIE),
        ((1, 7), _) => Reply::listing(7).name("two", 2).end(true),
        (other, _) => panic!("{other:?}"),
    });
    assert_eq!(rig.list().unwrap(), ["one", "two"]);
}

#[test]
fn a_directory_that_always_changes_is_listed_once() {
    // A position is good without the server's mark only. In the end the server begins again.
    let rig = Rig::new(|_, arguments| match position_of(arguments) {
        (0, _) => Reply::listing(7).name("one", 1).end(false),
        (_, 7) => Reply::failure(nfsstat3::NFS3ERR_BAD_COOKIE),
        (1, _) => Reply::listing(7).name("two", 2).name("one", 3).end(false),
        _ => Reply::listing(7).name("three", 4).end(true),
    });
    assert_eq!(rig.list().unwrap(), ["one", "two", "three"]);
}

#[test]
fn a_listing_without_an_end_ends_at_its_deadline() {
    let listing = Duration::from_millis(300);
    let limits = TreeLimits { operation: LONG, listing, directories: LONG, read: READ_SIZE };
    let rig = Rig::with_limits(limits, |call, _| {
        Reply::listing(7).name("again", 1 + call.earlier as u64).end(false)
    });
    let begun = Instant::now();
    assert_eq!(rig.list(), Err(Errno::TIMEDOUT));
    assert!(begun.elapsed() >= listing);
    let loops =
        Rig::new(|call, _| Reply::listing(7).name("again", 1 + call.earlier as u64 % 2).end(false));
    assert_eq!(loops.list().unwrap_err(), Errno::IO);
}

#[test]
fn a_read_that_lies_fails() {
    let replies: [fn() -> Reply; 3] = [
        // Nothing, and not the end.
        || Reply::ok().with(&false).with(&0u32).with(&false).with(&0u32),
        // More than was asked for.
        || Reply::ok().with(&false).with(&9u32).with(&true).with(&Opaque::borrowed(b"too much!")),
        // Two lengths.
        || Reply::ok().with(&false).with(&3u32).with(&true).with(&Opaque::borrowed(b"four")),
    ];
    for reply in replies {
        let rig = Rig::new(move |_, _| reply());
        let mut buffer = [0; 4];
        let read = rig.tree.read(&user(1), handle(9), 0, &mut buffer);
        assert_eq!(read.unwrap_err().errno(), Errno::IO);
    }
    let rig = Rig::new(|_, _| {
        Reply::ok().with(&false).with(&4u32).with(&false).with(&Opaque::borrowed(b"true"))
    });
    let mut buffer = [0; 4];
    let end = rig.tree.read(&user(1), handle(9), 0, &mut buffer).unwrap();
    assert_eq!((end.bytes, end.is_end, &buffer), (4, false, b"true"));
}

#[test]
fn a_read_in_pieces_ends_before_the_first_gap() {
    let limits = TreeLimits {
        operation: LONG,
        listing: LONG,
        directories: LONG,
        read: NonZeroUsize::new(4).unwrap(),
    };
    // The second piece of four bytes is short, and so the third does not follow it.
    let rig = Rig::with_limits(limits, |call, arguments| {
        let mut arguments = &arguments[arguments.len() - 12..];
        let (offset, _) = u64::unpack(&mut arguments).unwrap();
        let data: &[u8] = match offset {
            _ if call.uid == 2 && offset == 0 => return Reply::status(nfsstat3::NFS3ERR_IO),
            _ if call.uid == 3 && offset > 0 => return Reply::status(nfsstat3::NFS3ERR_IO),
            4 => b"56",
            _ => b"1234",
        };
        let end = Reply::ok().with(&false).with(&(data.len() as u32));
        end.with(&(offset == 8)).with(&Opaque::borrowed(data))
    });
    let mut buffer = [0; 12];
    let end = rig.tree.read(&user(1), handle(9), 0, &mut buffer).unwrap();
    assert_eq!((end.bytes, end.is_end, &buffer[..6]), (6, false, &b"123456"[..]));
    let first_fails = rig.tree.read(&user(2), handle(9), 0, &mut buffer);
    assert_eq!(first_fails.unwrap_err().errno(), Errno::IO);
    let others_fail = rig.tree.read(&user(3), handle(9), 0, &mut buffer).unwrap();
    assert_eq!((others_fail.bytes, others_fail.is_end), (4, false));
}

#[test]
fn a_read_that_must_wait_is_made_again() {
    let rig = Rig::new(|call, _| match call.earlier {
        // Without the attributes that every failure should have.
        0 => Reply::status(nfsstat3::NFS3ERR_JUKEBOX),
        _ => Reply::ok().with(&false).with(&2u32).with(&true).with(&Opaque::borrowed(b"ok")),
    });
    let mut buffer = [0; 4];
    let end = rig.tree.read(&user(1), handle(9), 0, &mut buffer).unwrap();
    assert_eq!((end.bytes, end.is_end, &buffer[..2]), (2, true, &b"ok"[..]));
}
