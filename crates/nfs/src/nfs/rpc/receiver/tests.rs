use std::collections::HashMap;
use std::io::{IoSliceMut, Read};
use std::sync::mpsc::{Receiver as Outbox, channel};
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::nfs::data_room::DataRoom;
use crate::nfs::data_room::test_room::TestRoom;
use crate::nfs::rpc::decode_header;
use crate::nfs::rpc::pending::{Again, DataHead, DataSink, DataTarget, ReplyTarget};
use crate::nfs::xdr::Decoder;

/// A numeral of a fixed sequence, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// A socket that has these bytes, and delivers some at a time.
struct Chunks<'a> {
    bytes: &'a [u8],
    random: Random,
    largest: usize,
}

impl Read for Chunks<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(room)])
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut left = (1 + self.random.below(self.largest)).min(self.bytes.len());
        let mut delivered = 0;
        for room in rooms {
            let part = left.min(room.len());
            room[..part].copy_from_slice(&self.bytes[..part]);
            self.bytes = &self.bytes[part..];
            left -= part;
            delivered += part;
        }
        Ok(delivered)
    }
}

impl Source for Chunks<'_> {
    fn splice_to(&mut self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Option<usize>> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let most = (1 + self.random.below(self.largest)).min(self.bytes.len()).min(len);
        match rustix::io::write(pipe, &self.bytes[..most]) {
            Err(Errno::AGAIN) => Ok(None),
            written => {
                let written = written?;
                self.bytes = &self.bytes[written..];
                Ok(Some(written))
            }
        }
    }
}

#[derive(Default)]
struct Table {
    calls: HashMap<u32, PendingCall>,
    unknown: usize,
    completed: usize,
}

impl Calls for Table {
    fn take(&mut self, xid: u32) -> Option<PendingCall> {
        let call = self.calls.remove(&xid);
        self.unknown += usize::from(call.is_none());
        call
    }

    fn completed(&mut self, _: usize) {
        self.completed += 1;
    }

    fn repeat(&mut self, _: PendingCall) {
        unreachable!("no sink here asks for it");
    }
}

/// What a call has got.
#[derive(Debug, PartialEq)]
enum Got {
    Message(Vec<u8>),
    Data(Vec<u8>),
    Error(String),
}

/// Reports the data of a reply.
struct Reported {
    xid: u32,
    room: TestRoom,
    report: std::sync::mpsc::Sender<(u32, Got)>,
}

impl DataSink for Reported {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.room
    }

    fn end(mut self: Box<Self>, reply: Result<DataReply, RpcError>) -> Option<Again> {
        let got = match reply {
            Ok(reply) => Got::Data(self.room.taken(reply.data)),
            Err(error) => Got::Error(error.to_string()),
        };
        self.report.send((self.xid, got)).unwrap();
        None
    }
}

/// A connection whose calls report their replies.
struct Rig {
    table: Table,
    receiver: Receiver,
    got: Outbox<(u32, Got)>,
    report: std::sync::mpsc::Sender<(u32, Got)>,
}

/// The data of these replies follows its length.
fn decode(bytes: &[u8]) -> Result<DataHead, DecodeError> {
    let mut bytes = Decoder::new(bytes);
    let _ = decode_header(&mut bytes)?;
    bytes.u32().map(|data| DataHead { data: data as usize })
}

impl Rig {
    fn new() -> Self {
        let (report, got) = channel();
        Self { table: Table::default(), receiver: Receiver::new(), got, report }
    }

    fn expect(&mut self, xid: u32, target: ReplyTarget) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = PendingCall::new(xid, Vec::new(), deadline, target);
        self.table.calls.insert(xid, call);
    }

    fn expect_message(&mut self, xid: u32, max: usize) {
        let report = self.report.clone();
        let done = Box::new(move |reply: Result<Vec<u8>, RpcError>| {
            let got = reply.map_or_else(|error| Got::Error(error.to_string()), Got::Message);
            report.send((xid, got)).unwrap();
        });
        self.expect(xid, ReplyTarget::Message { max, done });
    }

    fn expect_data(&mut self, xid: u32, room: usize) {
        self.expect_data_in(xid, TestRoom::memory(room));
    }

    fn expect_data_in(&mut self, xid: u32, room: TestRoom) {
        let report = self.report.clone();
        let sink = Box::new(Reported { xid, room, report });
        let target = DataTarget { sink, decode };
        self.expect(xid, ReplyTarget::Data(target));
    }

    /// Receives all of the bytes, at most `largest` at a time.
    fn receive(&mut self, bytes: &[u8], largest: usize, seed: u64) {
        let mut socket = Chunks { bytes, random: Random(seed), largest };
        while self.receiver.receive(&mut socket, &mut self.table).is_ok() {}
        assert!(socket.bytes.is_empty());
    }

    fn all_got(&self) -> Vec<(u32, Got)> {
        self.got.try_iter().collect()
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A reply's header, and then `body`.
fn reply(xid: u32, body: &[u8]) -> Vec<u8> {
    [words(&[xid, 1, 0, 0, 0, 0]), body.to_vec()].concat()
}

/// A reply with data, padded.
fn data_reply(xid: u32, data: &[u8]) -> Vec<u8> {
    let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
    reply(xid, &[words(&[data.len() as u32]), data.to_vec(), padding].concat())
}

/// A record of fragments of at most `largest` bytes; some of them are empty.
fn record(bytes: &[u8], largest: usize, random: &mut Random) -> Vec<u8> {
    let mut record = Vec::new();
    let mut left = bytes;
    loop {
        let len = random.below(largest + 1).min(left.len());
        let part = &left[..len];
        left = &left[len..];
        let last = if left.is_empty() { LAST_FRAGMENT } else { 0 };
        record.extend(words(&[len as u32 | last]));
        record.extend(part);
        if left.is_empty() {
            return record;
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn replies_are_the_same_however_they_arrive() {
    let data = pattern(50_001);
    let message = reply(2, &pattern(3000));
    for seed in 0..100 {
        let mut random = Random(seed);
        let largest = [3, 40, 5000, 1 << 20][random.below(4)];
        let all = [
            data_reply(1, &data),
            message.clone(),
            data_reply(99, &pattern(20_000)),
            data_reply(3, &[]),
            data_reply(4, b"end"),
        ];
        let bytes: Vec<u8> =
            all.iter().flat_map(|reply| record(reply, largest, &mut random)).collect();
        let mut rig = Rig::new();
        // The pipe takes all of it, or a part.
        rig.expect_data_in(
            1,
            match random.below(3) {
                0 => TestRoom::memory(data.len()),
                1 => TestRoom::piped(data.len(), 1 << 20),
                _ => TestRoom::piped(data.len(), 8 << 10),
            },
        );
        rig.expect_message(2, message.len());
        rig.expect_data(3, 10);
        rig.expect_data(4, 3);
        let chunk = [1, 7, 300, 1 << 20][random.below(4)];
        rig.receive(&bytes, chunk, seed);
        let expected = [
            (1, Got::Data(data.clone())),
            (2, Got::Message(message.clone())),
            (3, Got::Data(Vec::new())),
            (4, Got::Data(b"end".to_vec())),
        ];
        assert_eq!(rig.all_got(), expected, "seed {seed}");
        assert_eq!((rig.table.unknown, rig.table.completed), (1, 4));
    }
}

#[test]
fn a_reply_that_lies_fails_alone() {
    let too_long = words(&[11, 1, 0, 0, 0, 0, 5, 0, 0]);
    let endless = words(&[12, 1, 0, 0, 0, 0, 4]);
    let no_reply = words(&[13, 0, 0, 0, 0, 0]);
    let verifier = [words(&[14, 1, 0, 0, 401]), vec![0; 500]].concat();
    let mut random = Random(0);
    for (xid, lie) in [(11, too_long), (12, endless), (13, no_reply), (14, verifier)] {
        let next = data_reply(20, b"next");
        let bytes = [record(&lie, 1 << 20, &mut random), record(&next, 9, &mut random)].concat();
        let mut rig = Rig::new();
        rig.expect_data(xid, 4);
        rig.expect_data(20, 4);
        rig.receive(&bytes, 5, 1);
        let got = rig.all_got();
        assert!(
            matches!(&got[0], (_, Got::Error(error)) if error.contains("malformed")),
            "{got:?}"
        );
        assert_eq!(got[1..], [(20, Got::Data(b"next".to_vec()))]);
    }
}

#[test]
fn a_message_above_its_limit_fails_without_its_bytes() {
    let mut rig = Rig::new();
    rig.expect_message(1, 1000);
    let bytes = record(&reply(1, &pattern(100_000)), 1 << 20, &mut Random(0));
    rig.receive(&bytes, 1 << 20, 0);
    assert!(matches!(&rig.all_got()[..], [(1, Got::Error(error))] if error.contains("too long")));
}

#[test]
fn an_expired_calls_buffer_is_not_touched_any_more() {
    let bytes = record(&data_reply(1, &[0xaa; 1000]), 1 << 20, &mut Random(0));
    let begun = bytes.len() - 700;
    let mut rig = Rig::new();
    rig.expect_data(1, 1000);
    rig.receive(&bytes[..begun], 1 << 20, 0);
    let now = Instant::now();
    assert!(rig.receiver.take_ended(now).is_none(), "it has time left");
    let mut call = rig.receiver.take_ended(now + Duration::from_secs(61)).unwrap();
    assert!(rig.receiver.take_ended(now + Duration::from_secs(61)).is_none());
    rig.expect_data(2, 4);
    let next = record(&data_reply(2, b"next"), 1 << 20, &mut Random(0));
    rig.receive(&[&bytes[begun..], &next].concat(), 100, 0);
    assert_eq!(rig.all_got(), [(2, Got::Data(b"next".to_vec()))]);
    let buffer = call.data_target().unwrap().sink.room().use_memory().unwrap();
    assert!(buffer[..300].iter().all(|byte| *byte == 0xaa));
    assert!(buffer[300..].iter().all(|byte| *byte == 0xee));
}

#[test]
fn an_unfinished_call_is_kept_for_the_next_connection() {
    for received in [4, 10, 40, 200] {
        let bytes = record(&data_reply(1, &[0xaa; 1000]), 1 << 20, &mut Random(0));
        let mut rig = Rig::new();
        rig.expect_data(1, 1000);
        rig.receive(&bytes[..received], 1 << 20, 0);
        let left = rig.receiver.into_unfinished().or(rig.table.calls.remove(&1));
        assert_eq!(left.map(|call| call.xid), Some(1), "after {received} bytes");
    }
}

#[test]
fn a_reply_that_comes_again_replaces_the_part_before() {
    let data = pattern(40_000);
    for received in [30, 45, 9000, 30_000] {
        let again = |data: &[u8]| record(&data_reply(1, data), 1 << 20, &mut Random(0));
        let mut rig = Rig::new();
        rig.expect_data_in(1, TestRoom::piped(40_000, 1 << 20));
        rig.receive(&again(&pattern(39_999))[..received], 1 << 20, 0);
        let call = rig.receiver.into_unfinished().or(rig.table.calls.remove(&1)).unwrap();
        rig.receiver = Receiver::new();
        rig.table.calls.insert(1, call);
        rig.receive(&again(&data), 5000, 0);
        assert_eq!(rig.all_got(), [(1, Got::Data(data.clone()))], "after {received} bytes");
    }
}

#[test]
fn a_reply_without_memory_fails_alone() {
    for piped in [8 << 10, 1 << 20] {
        let mut rig = Rig::new();
        rig.expect_data_in(1, TestRoom::piped(40_000, piped).without_memory());
        rig.expect_data(2, 4);
        let mut random = Random(0);
        let bytes = [
            record(&data_reply(1, &pattern(40_000)), 1 << 20, &mut random),
            record(&data_reply(2, b"next"), 9, &mut random),
        ];
        rig.receive(&bytes.concat(), 5000, 0);
        let got = rig.all_got();
        if piped < 40_000 {
            let fails = matches!(&got[0], (1, Got::Error(error)) if error.contains("no memory"));
            assert!(fails, "{got:?}");
        } else {
            assert_eq!(got[0], (1, Got::Data(pattern(40_000))));
        }
        assert_eq!(got[1..], [(2, Got::Data(b"next".to_vec()))]);
    }
}
