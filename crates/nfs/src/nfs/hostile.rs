//! What a hostile server can send: any bytes are taken apart as a connection's are, and decoded as
//! each procedure's results are. For the fuzz target and the tests.

use std::collections::HashMap;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::blocking::decode_results;
use super::data_room::DataRoom;
use super::data_room::test_room::{TestRoom, UNTOUCHED};
use super::error::NfsError;
use super::mount;
use super::procedures::{Page, Position};
use super::rpc::RpcError;
use super::rpc::hostile::{
    Again, Calls, DataReply, DataSink, DataTarget, PendingCall, Receiver, ReplyTarget, Source,
};
use super::{v3, v4};

/// The calls that wait for the server's replies have the numbers below this.
const CALLS: u32 = 24;

/// The longest reply without data of each kind of call.
const MAX_MESSAGES: [usize; 6] = [4 << 10, 8 << 10, 1 << 20, 1 << 20, 4 << 10, 1 << 20];

/// Lets a server send `data` to a client with one call of each kind in flight, or more.
///
/// # Panics
/// If a call completes twice or never, if bytes land where they do not belong, or if the results
/// have what no caller expects of a server, such as a name with `/`.
#[allow(unreachable_pub, reason = "only the fuzz target sees it")]
pub fn check_server_bytes(data: &[u8]) {
    let Some((&pieces, bytes)) = data.split_first() else { return };
    let ends = receive(bytes, pieces.into());
    // Not in the completions, whose panics the transport contains.
    let mut numbers: Vec<u32> = ends.iter().map(|end| end.number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..CALLS), "a call completes twice, or never");
    ends.iter().for_each(check_end);
}

/// How all calls end if a server sends these bytes.
fn receive(bytes: &[u8], pieces: usize) -> Vec<End> {
    let ends = Ends::default();
    let deadline = Instant::now() + Duration::from_secs(3600);
    let call = |number: u32| {
        let record = Vec::new();
        (number, PendingCall::new(number, record, deadline, target(number, &ends)))
    };
    let mut calls = Waiting((0..CALLS).map(call).collect());
    let mut receiver = Receiver::new();
    let mut server = Server { bytes, pieces, round: 0 };
    while receiver.receive(&mut server, &mut calls).is_ok() {}
    drop(receiver.into_unfinished());
    drop(calls);
    std::mem::take(&mut ends.lock())
}

/// The end of a call.
struct End {
    number: u32,
    outcome: Outcome,
}

enum Outcome {
    /// A reply without data.
    Message(Vec<u8>),
    /// A reply with data, and the buffer.
    Data(DataReply, Vec<u8>),
    Failed(RpcError),
}

/// The calls that have ended.
type Ends = Arc<Mutex<Vec<End>>>;

fn kind_of(number: u32) -> usize {
    number as usize % (MAX_MESSAGES.len() + 2)
}

/// Whether a read is one of NFSv4.
fn is_version_4(number: u32) -> bool {
    number >= CALLS / 2
}

/// Most calls are for a reply without data.
fn target(number: u32, ends: &Ends) -> ReplyTarget {
    let ends = Arc::clone(ends);
    let kind = kind_of(number);
    match MAX_MESSAGES.get(kind) {
        Some(&max) => {
            let done = move |reply: Result<Vec<u8>, RpcError>| {
                let outcome = reply.map_or_else(Outcome::Failed, Outcome::Message);
                ends.lock().push(End { number, outcome });
            };
            ReplyTarget::Message { max, done: Box::new(done) }
        }
        None => {
            let room = if kind == MAX_MESSAGES.len() { 64 } else { 4096 };
            // Some have a pipe, which takes all, or a page.
            let room = match number / 8 % 3 {
                0 => TestRoom::memory(room),
                1 => TestRoom::piped(room, 1 << 20),
                _ => TestRoom::piped(room, 1),
            };
            let sink = Box::new(Sink { room, number, ends });
            let decode = if is_version_4(number) {
                v4::hostile::decode_data_head
            } else {
                v3::decode_data_head
            };
            ReplyTarget::Data(DataTarget { sink, decode })
        }
    }
}

fn check_end(end: &End) {
    match &end.outcome {
        Outcome::Message(reply) => check_results(kind_of(end.number), reply),
        Outcome::Data(reply, bytes) => {
            let rest = &bytes[reply.data..];
            assert!(rest.iter().all(|byte| *byte == UNTOUCHED), "more bytes than it says");
            let end = match is_version_4(end.number) {
                true => v4::hostile::read_end(reply, bytes.len()),
                false => v3::read_end(Ok(reply.clone()), bytes.len()),
            };
            if let Ok(end) = end {
                assert!(end.bytes > 0 || end.is_end, "{end:?}");
            }
        }
        Outcome::Failed(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Decodes a reply as each procedure does.
fn check_results(kind: usize, reply: &[u8]) {
    assert!(reply.len() <= MAX_MESSAGES[kind]);
    match kind {
        0 => {
            v3::decode_small_results(reply);
            v4::hostile::decode_small_results(reply);
        }
        1 => {
            v4::hostile::decode_small_results(reply);
            let link = decode_results(reply, |bytes| Ok(v3::decode_link(bytes)?));
            assert!(link.is_err() || link.is_ok_and(|link| !link.contains(&0)));
        }
        2 | 3 => {
            let from = Position::START;
            let page: Result<Page, NfsError> = decode_results(reply, |bytes| {
                // The status of the call.
                bytes.u32()?;
                Ok(v3::decode_listing(bytes, from, kind == 2)?)
            });
            page.iter().for_each(|page| check_page(page, from));
            let page = v4::hostile::decode_page(reply, from);
            page.iter().for_each(|page| check_page(page, from));
        }
        4 => {
            mount::decode_any_reply(reply);
            v4::hostile::decode_small_results(reply);
        }
        _ => {
            let exports = decode_results(reply, |bytes| Ok(mount::decode_exports(bytes)?));
            assert!(exports.is_err() || exports.is_ok_and(|all| all.len() <= reply.len()));
        }
    }
}

fn check_page(page: &Page, from: Position) {
    for entry in &page.entries {
        let name = &entry.name;
        assert!(!name.is_empty() && !name.iter().any(|byte| matches!(byte, b'/' | 0)), "{name:?}");
        assert!(name != b"." && name != b"..");
    }
    assert!(page.next.is_none_or(|next| next.cookie != from.cookie), "it leads to itself");
}

/// A read's caller.
struct Sink {
    room: TestRoom,
    number: u32,
    ends: Ends,
}

impl DataSink for Sink {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.room
    }

    fn end(self: Box<Self>, reply: Result<DataReply, RpcError>) -> Option<Again> {
        let Self { mut room, number, ends } = *self;
        let outcome = match reply {
            Ok(reply) => Outcome::Data(reply, room.all().to_vec()),
            Err(error) => Outcome::Failed(error),
        };
        ends.lock().push(End { number, outcome });
        None
    }
}

struct Waiting(HashMap<u32, PendingCall>);

impl Calls for Waiting {
    fn take(&mut self, xid: u32) -> Option<PendingCall> {
        self.0.remove(&xid)
    }

    fn completed(&mut self, _: usize) {}

    fn repeat(&mut self, _: PendingCall) {
        unreachable!("no sink here asks for it");
    }
}

/// Delivers the bytes in pieces of several sizes, which the first byte of the input decides.
struct Server<'a> {
    bytes: &'a [u8],
    pieces: usize,
    round: usize,
}

impl Read for Server<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(room)])
    }

    fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.round += 1;
        let size = match self.pieces {
            0 => usize::MAX,
            pieces => 1 + pieces * self.round % 97,
        };
        let mut left = size.min(self.bytes.len());
        let mut delivered = 0;
        for room in rooms {
            let (part, rest) = self.bytes.split_at(left.min(room.len()));
            room[..part.len()].copy_from_slice(part);
            self.bytes = rest;
            left -= part.len();
            delivered += part.len();
        }
        Ok(delivered)
    }
}

impl Source for Server<'_> {
    fn splice_to(&mut self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Option<usize>> {
        let before = self.bytes;
        let mut bytes = vec![0; len];
        let received = self.read(&mut bytes)?;
        let moved = rustix::io::write(pipe, &bytes[..received]).ok();
        self.bytes = &before[moved.unwrap_or(0)..];
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bodies of replies, in hexadecimal.
    const REPLIES: &str = include_str!("../../tests/fixtures/replies.hex");

    /// Replies that each kind of call can have, as records.
    fn replies() -> Vec<u8> {
        let body = |line: &str| -> Vec<u8> {
            let (_, digits) = line.split_once(' ').unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            (0..digits.len()).step_by(2).map(byte).collect()
        };
        let record = |body: Vec<u8>| {
            let mark = 0x8000_0000 | body.len() as u32;
            [&mark.to_be_bytes()[..], &body].concat()
        };
        REPLIES.lines().flat_map(|line| record(body(line))).collect()
    }

    /// A fixed sequence, so that a failure can be repeated.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % limit
        }
    }

    #[test]
    fn no_bytes_of_a_server_do_harm() {
        const TELLING: [u8; 6] = [0, 1, 4, 0x7f, 0x80, 0xff];
        let replies = replies();
        let mut random = Random(7);
        for round in 0..20_000 {
            let mut input = vec![(round % 256) as u8];
            input.extend(&replies);
            for _ in 0..random.below(6) {
                if input.len() < 2 {
                    break;
                }
                let at = random.below(input.len());
                match random.below(4) {
                    0 => input[at] = TELLING[random.below(TELLING.len())],
                    1 => input[at] = random.below(256) as u8,
                    2 => input.truncate(at.max(1)),
                    _ => {
                        let end = (at + 4 * random.below(8)).min(input.len());
                        input.drain(at..end);
                    }
                }
            }
            check_server_bytes(&input);
        }
    }

    /// Unchanged, they reach all decoders: otherwise the changes would test little.
    #[test]
    fn the_unchanged_replies_are_taken() {
        let ends = receive(&replies(), 0);
        let names: Vec<&str> =
            REPLIES.lines().map(|line| line.split_once(' ').unwrap().0).collect();
        let taken = ends.iter().filter(|end| !matches!(end.outcome, Outcome::Failed(_))).count();
        assert_eq!(taken, names.len() - 1, "all but the late one are of a call");
        let page = ends.iter().find(|end| end.number == 2).map(|end| &end.outcome);
        let Some(Outcome::Message(listing)) = page else { panic!("no listing") };
        let page: Result<Page, NfsError> = decode_results(listing, |bytes| {
            bytes.u32()?;
            Ok(v3::decode_listing(bytes, Position::START, true)?)
        });
        assert_eq!(page.unwrap().entries.len(), 2);
        let of = |number: u32| &ends.iter().find(|end| end.number == number).unwrap().outcome;
        let Outcome::Message(listing) = of(0x12) else { panic!("no listing of NFSv4") };
        assert_eq!(v4::hostile::decode_page(listing, Position::START).unwrap().entries.len(), 2);
        let Outcome::Data(reply, bytes) = of(0x0e) else { panic!("no data of NFSv4") };
        assert_eq!(v4::hostile::read_end(reply, bytes.len()).unwrap().bytes, 8);
        let Outcome::Message(found) = of(0x10) else { panic!("no object of NFSv4") };
        assert_eq!(v4::hostile::find(found).unwrap().attributes.size, 123);
    }
}
