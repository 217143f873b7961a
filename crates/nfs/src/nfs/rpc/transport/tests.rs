use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver as Outbox, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::*;
use crate::nfs::data_room::DataRoom;
use crate::nfs::rpc::pending::{
    Again, DataHead, DataReply, DataSink, MAX_LOST_CONNECTIONS, RpcError,
};
use crate::nfs::rpc::{check_may_block, decode_header};
use crate::nfs::xdr::{DecodeError, Decoder};

/// Replies that come slowly.
mod slow;

const LONG: Duration = Duration::from_secs(60);
const PROCEDURE: Procedure = Procedure { program: 1, version: 2, number: 3 };

/// The server's side of one connection.
struct Peer {
    socket: TcpStream,
    /// The argument of the last call: the room for the data of its reply.
    last_room: u32,
}

impl Peer {
    /// The transaction of the next call; `None` if the client has closed the connection.
    fn next_call(&mut self) -> Option<u32> {
        let mut mark = [0; 4];
        self.socket.read_exact(&mut mark).ok()?;
        let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.socket.read_exact(&mut call).ok()?;
        self.last_room = u32::from_be_bytes(call[call.len() - 4..].try_into().unwrap());
        Some(u32::from_be_bytes(call[..4].try_into().unwrap()))
    }

    /// Replies with data.
    fn reply(&mut self, xid: u32, data: &[u8]) {
        let _ = self.socket.write_all(&data_reply(xid, data));
    }
}

fn data_reply(xid: u32, data: &[u8]) -> Vec<u8> {
    let padded = data.len().next_multiple_of(4);
    let words = [0x8000_0000 | (28 + padded as u32), xid, 1, 0, 0, 0, 0, data.len() as u32];
    let words = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    [words, data.to_vec(), vec![0; padded - data.len()]].concat()
}

/// A server that handles each connection, in turn, as `serve` says.
struct Server {
    address: SocketAddr,
}

impl Server {
    fn start(mut serve: impl FnMut(usize, Peer) + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (number, socket) in listener.incoming().flatten().enumerate() {
                serve(number, Peer { socket, last_room: 0 });
            }
        });
        Self { address }
    }

    fn connect(&self, connections: usize) -> Transport {
        self.connect_with(connections, Target::SILENCE)
    }

    fn connect_with(&self, connections: usize, silence: Duration) -> Transport {
        let target = target(self.address, connections);
        Transport::start(Target { silence, ..target }).unwrap()
    }
}

fn target(address: SocketAddr, connections: usize) -> Target {
    Target {
        addresses: vec![address],
        connections,
        reserved_port: false,
        is_patient: true,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    }
}

/// The answer of a call, which comes later.
type Answer = Outbox<Result<Vec<u8>, RpcError>>;

fn decode(bytes: &[u8]) -> Result<DataHead, DecodeError> {
    let mut bytes = Decoder::new(bytes);
    let _ = decode_header(&mut bytes)?;
    bytes.u32().map(|data| DataHead { data: data as usize })
}

/// Sends the data of a reply.
struct Sent {
    bytes: Vec<u8>,
    sender: Sender<Result<Vec<u8>, RpcError>>,
}

impl DataSink for Sent {
    fn room(&mut self) -> &mut dyn DataRoom {
        &mut self.bytes
    }

    fn end(self: Box<Self>, reply: Result<DataReply, RpcError>) -> Option<Again> {
        let _ = self.sender.send(reply.map(|reply| self.bytes[..reply.data].to_vec()));
        None
    }
}

fn start(transport: &Transport, room: usize, time: Duration) -> Answer {
    start_while_wanted(transport, room, time, None)
}

fn start_while_wanted(
    transport: &Transport,
    room: usize,
    time: Duration,
    is_unwanted: Option<IsUnwanted>,
) -> Answer {
    let (sender, answer) = channel();
    let target = DataTarget { sink: Box::new(Sent { bytes: vec![0; room], sender }), decode };
    let deadline = Instant::now() + time;
    let options = CallOptions { procedure: PROCEDURE, identity: None, deadline, receipt: None };
    transport.call_for_data(&options, &(room as u32), target, is_unwanted);
    answer
}

#[test]
fn replies_may_come_in_any_order() {
    let server = Server::start(|_, mut peer| {
        let calls: Vec<u32> = (0..8).map(|_| peer.next_call().unwrap()).collect();
        for xid in calls.into_iter().rev() {
            peer.reply(xid, &xid.to_be_bytes());
        }
    });
    let transport = server.connect(1);
    let answers: Vec<Answer> = (0..8).map(|_| start(&transport, 4, LONG)).collect();
    let answers: Vec<_> = answers.iter().map(|answer| answer.recv().unwrap().unwrap()).collect();
    for pair in answers.windows(2) {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        assert_eq!(number(&pair[1]), number(&pair[0]).wrapping_add(1), "each has its own reply");
    }
}

#[test]
fn a_call_ends_at_its_deadline_and_its_late_reply_is_discarded() {
    let (reply_now, may_reply) = channel();
    let server = Server::start(move |_, mut peer| {
        let first = peer.next_call().unwrap();
        peer.reply(first, b"next");
        let late = peer.next_call().unwrap();
        // This one shows that the connection works.
        let other = peer.next_call().unwrap();
        peer.reply(other, b"next");
        may_reply.recv().unwrap();
        peer.reply(late, b"late");
        while let Some(xid) = peer.next_call() {
            peer.reply(xid, b"next");
        }
    });
    let transport = server.connect(1);
    let is_answered = || assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"next");
    is_answered();
    // Long enough for the next reply, however busy the machine is.
    let time = Duration::from_secs(2);
    let begun = Instant::now();
    let late = start(&transport, 4, time);
    is_answered();
    let late = late.recv().unwrap();
    assert!(matches!(late, Err(RpcError::Late)), "{late:?}");
    assert!(begun.elapsed() >= time);
    reply_now.send(()).unwrap();
    is_answered();
    let counters = transport.counters()[0];
    assert_eq!((counters.connected, counters.discarded), (1, 1));
}

/// Also if a part of the reply has come.
#[test]
fn a_call_that_nothing_waits_for_ends_before_its_deadline() {
    for received in [0, 500] {
        let (seen, sent) = channel();
        let server = Server::start(move |_, mut peer| {
            let unwanted = peer.next_call().unwrap();
            let reply = data_reply(unwanted, &[7; 1000]);
            peer.socket.write_all(&reply[..received]).unwrap();
            seen.send(()).unwrap();
            peer.next_call();
        });
        let transport = server.connect(1);
        let is_unwanted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_unwanted);
        let is_over: IsUnwanted = Arc::new(move || flag.load(Ordering::Relaxed));
        let answer = start_while_wanted(&transport, 1000, LONG, Some(is_over));
        sent.recv().unwrap();
        let early = answer.recv_timeout(Duration::from_millis(100));
        assert_eq!(early.err(), Some(RecvTimeoutError::Timeout), "it is wanted");
        is_unwanted.store(true, Ordering::Relaxed);
        let end = answer.recv_timeout(LONG / 2).expect("long before its deadline");
        assert!(matches!(end, Err(RpcError::Unwanted)), "{end:?}");
        assert!(!transport.shared.is_busy());
    }
}

/// A completion that waited for its own thread would wait for ever.
#[test]
fn a_completion_cannot_wait_for_a_server() {
    let server = Server::start(|_, peer| reply_at_once(peer));
    let transport = server.connect(1);
    let (sender, answer) = channel();
    let deadline = Instant::now() + LONG;
    let options = CallOptions { procedure: PROCEDURE, identity: None, deadline, receipt: None };
    let done = move |_| {
        // A debug build panics.
        let waits = std::panic::catch_unwind(|| check_may_block().is_ok());
        let _ = sender.send(waits.unwrap_or(false));
    };
    transport.call(&options, &4u32, 1000, Box::new(done));
    assert!(!answer.recv().unwrap());
    assert!(check_may_block().is_ok(), "of this thread");
}

#[test]
fn a_lost_connections_calls_are_sent_again() {
    let (tell, seen) = channel();
    let server = Server::start(move |number, mut peer| {
        let xid = peer.next_call().unwrap();
        tell.send(xid).unwrap();
        let reply = data_reply(xid, &[5; 1000]);
        // The first connection ends in the middle of the data.
        let sent = if number == 0 { 500 } else { reply.len() };
        peer.socket.write_all(&reply[..sent]).unwrap();
        if number > 0 {
            peer.next_call();
        }
    });
    let transport = server.connect(1);
    assert_eq!(start(&transport, 1000, LONG).recv().unwrap().unwrap(), vec![5; 1000]);
    assert_eq!(seen.recv().unwrap(), seen.recv().unwrap(), "with its transaction number");
    let counters = transport.counters()[0];
    assert_eq!((counters.connected, counters.resent), (2, 1));
}

#[test]
fn a_server_that_closes_instead_of_replying_gets_a_call_a_few_times() {
    let (tell, seen) = channel();
    let server = Server::start(move |_, mut peer| {
        peer.next_call();
        let _ = tell.send(());
    });
    let impatient = Target { is_patient: false, ..target(server.address, 1) };
    let transport = Transport::start(impatient).unwrap();
    let answer = start(&transport, 4, LONG).recv().unwrap();
    assert!(matches!(answer, Err(RpcError::Lost)), "{answer:?}");
    assert_eq!(seen.try_iter().count(), 1 + MAX_LOST_CONNECTIONS as usize);
}

#[test]
fn a_server_that_refuses_connections_is_waited_for_only_by_the_patient() {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let ask = |is_patient: bool, time: Duration| {
        let addresses = vec![address, address];
        let target = Target { addresses, is_patient, ..target(address, 1) };
        let transport = Transport::start(target).unwrap();
        let answer = start(&transport, 4, time).recv().unwrap();
        let Err(RpcError::Unreachable { server, error }) = answer else { panic!("{answer:?}") };
        assert_eq!((server, error.kind()), (address.to_string(), io::ErrorKind::ConnectionRefused));
    };
    ask(false, LONG);
    let time = Duration::from_millis(400);
    let begun = Instant::now();
    ask(true, time);
    assert!(begun.elapsed() >= time);
}

#[test]
fn a_stopped_transport_completes_its_calls() {
    let server = Server::start(|_, mut peer| while peer.next_call().is_some() {});
    let transport = server.connect(2);
    let answers: Vec<Answer> = (0..4).map(|_| start(&transport, 4, LONG)).collect();
    let early = answers[0].recv_timeout(Duration::from_millis(50));
    assert!(early.is_err_and(|error| error == RecvTimeoutError::Timeout));
    drop(transport);
    for answer in answers {
        assert!(matches!(answer.recv().unwrap(), Err(RpcError::Stopped)));
    }
}

#[test]
fn a_byte_at_a_time_harms_only_its_own_call() {
    let server = Server::start(|number, mut peer| {
        std::thread::spawn(move || {
            while let Some(xid) = peer.next_call() {
                let reply = data_reply(xid, b"data");
                match number {
                    0 => reply.iter().for_each(|byte| {
                        let _ = peer.socket.write_all(&[*byte]);
                        std::thread::sleep(Duration::from_millis(20));
                    }),
                    _ => peer.socket.write_all(&reply).unwrap(),
                }
            }
        });
    });
    let transport = server.connect(2);
    // The slow connection has more to carry, so the other calls go on the other one.
    let slow = start(&transport, 1 << 20, Duration::from_millis(200));
    for _ in 0..20 {
        assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"data");
    }
    assert!(matches!(slow.recv().unwrap(), Err(RpcError::Late)));
}

/// Serves each connection on a thread of its own: replies at once.
fn reply_at_once(mut peer: Peer) {
    std::thread::spawn(move || {
        while let Some(xid) = peer.next_call() {
            peer.reply(xid, b"data");
        }
    });
}

/// Calls until each connection was used.
fn use_all(transport: &Transport) {
    loop {
        let answers: Vec<Answer> = (0..16).map(|_| start(transport, 4, LONG)).collect();
        for answer in answers {
            assert_eq!(answer.recv().unwrap().unwrap(), b"data");
        }
        if transport.counters().iter().all(|counters| counters.received > 0) {
            return;
        }
    }
}

#[test]
fn idle_connections_are_kept() {
    let server = Server::start(|_, peer| reply_at_once(peer));
    let silence = Duration::from_millis(100);
    let transport = server.connect_with(4, silence);
    use_all(&transport);
    std::thread::sleep(2 * silence);
    use_all(&transport);
    assert!(transport.counters().iter().all(|counters| counters.connected == 1));
}

#[test]
fn connections_that_end_together_are_one_loss() {
    let mut peers = Vec::new();
    let server = Server::start(move |number, peer| match number {
        // Those of the server before its restart.
        0..4 => {
            peers.push(peer);
            if number == 3 {
                std::thread::sleep(Duration::from_millis(50));
                peers.clear();
            }
        }
        _ => reply_at_once(peer),
    });
    let transport = server.connect(4);
    assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"data");
}

#[test]
fn a_connection_that_swallows_calls_is_replaced() {
    let mut swallowing = Vec::new();
    let server = Server::start(move |number, peer| match number {
        0 => swallowing.push(peer),
        _ => reply_at_once(peer),
    });
    // Long before its silence is noticed.
    let transport = server.connect_with(1, LONG);
    let time = Duration::from_millis(1500);
    assert!(matches!(start(&transport, 4, time).recv().unwrap(), Err(RpcError::Late)));
    assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"data");
}

#[test]
fn a_panic_of_one_completion_ends_no_other_call() {
    let server = Server::start(|_, peer| reply_at_once(peer));
    let transport = server.connect(1);
    let deadline = Instant::now() + LONG;
    let options = CallOptions { procedure: PROCEDURE, identity: None, deadline, receipt: None };
    transport.call(&options, &7u32, 1000, Box::new(|_| panic!("not the transport's fault")));
    assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"data");
}

/// While other calls succeed on the other connections.
#[test]
fn a_call_that_ends_each_connection_is_given_up() {
    let server = Server::start(|_, mut peer| {
        std::thread::spawn(move || {
            while let Some(xid) = peer.next_call() {
                // The reply would be as long as the room for it: the poisonous one has much.
                if peer.last_room > 1000 {
                    return;
                }
                peer.reply(xid, b"data");
            }
        });
    });
    let max_backoff = Duration::from_millis(100);
    let target = Target { is_patient: false, max_backoff, ..target(server.address, 3) };
    let transport = Transport::start(target).unwrap();
    let poison = start(&transport, 2000, LONG);
    let poison = loop {
        let answer = start(&transport, 4, LONG).recv().unwrap();
        assert!(matches!(answer, Ok(_) | Err(RpcError::Lost)), "{answer:?}");
        if let Ok(poison) = poison.try_recv() {
            break poison;
        }
    };
    assert!(matches!(poison, Err(RpcError::Lost)), "{poison:?}");
}

#[test]
fn calls_that_end_before_they_are_sent_leave_nothing_behind() {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let transport = Transport::start(target(address, 1)).unwrap();
    let time = Duration::from_millis(1);
    let answers: Vec<Answer> = (0..100).map(|_| start(&transport, 4, time)).collect();
    assert!(answers.iter().all(|answer| answer.recv().unwrap().is_err()));
    assert!(!transport.shared.connections[0].has_unsent());
}
