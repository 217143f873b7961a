//! Changes that arrive while a reply is being sent.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fanfs::backend::{OpenAccess, RequestContext, SyncMode, WriteOpenOptions};
use fanfs::config::CachePolicy;
use fanfs::fs::{FsResult, OpenedFile, ReadBytes, ReadCaller, WriteRequest};
use fanfs::volume::ByteRange;

use crate::{answer, ask, entry, open, volume};

/// Time in which a wrong write would happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// A reply may consist of pages of the write replica, which a write would change while
/// they are sent.
#[test]
fn a_write_does_not_start_while_a_reply_is_sent() {
    let tree = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let path = tree.path().join("f");
    fs::write(&path, "old").unwrap();
    let fs = volume(tree.path(), CachePolicy::Direct, &runtime);
    let me = RequestContext::DAEMON;
    let ino = answer(fs.namespace.lookup(me, entry("f"))).ino;
    let reader = open(&fs, ino);
    let (answered, written) = channel();
    let (sent, reply) = channel();
    let (of, file) = (Arc::clone(&fs), path.clone());
    let respond = move |data: FsResult<ReadBytes<'_>>| {
        let how = WriteOpenOptions {
            access: OpenAccess::Write,
            truncate: false,
            sync: SyncMode::No,
            expected: None,
        };
        std::thread::spawn(move || {
            let writer: OpenedFile = answer(of.open_files.open_to_write(me, ino, how, &()));
            let request = WriteRequest {
                offset: 0,
                data: b"new",
                append: false,
                is_part: false,
                whole: true,
                is_resent: false,
                caller: None,
            };
            answered.send(ask(of.mutations.write(writer.handle, request))).unwrap();
        });
        std::thread::sleep(A_WHILE);
        sent.send((data.unwrap().to_vec().unwrap(), fs::read(file).unwrap())).unwrap();
    };
    let caller = ReadCaller { process: 0, small_reads: None };
    fs.open_files.read(reader.handle, ByteRange::at(0, 3), caller, respond);
    let (data, meanwhile) = reply.recv().unwrap();
    assert_eq!((&data[..], &meanwhile[..]), (&b"old"[..], &b"old"[..]), "it was written meanwhile");
    assert_eq!(written.recv().unwrap(), Ok(3));
    assert_eq!(fs::read(&path).unwrap(), b"new");
}
