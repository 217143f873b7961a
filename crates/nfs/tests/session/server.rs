//! A small NFSv4.1 server. It panics, and so ends the connection, if the client breaks the rules of
//! sessions; [`Server`] reports that when it is dropped. It exports a [`Tree`].

mod tree;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use tree::{Attributes, Kind, Listed, Sample, Tree, pattern};

/// Numbers of `nfsstat4`.
pub(crate) mod status {
    pub(crate) const NOENT: u32 = 2;
    pub(crate) const NOSPC: u32 = 28;
    pub(crate) const DELAY: u32 = 10_008;
    pub(crate) const GRACE: u32 = 10_013;
    pub(crate) const MINOR_VERS_MISMATCH: u32 = 10_021;
    pub(crate) const BADSESSION: u32 = 10_052;
    pub(crate) const SEQ_MISORDERED: u32 = 10_063;
    pub(crate) const RETRY_UNCACHED_REP: u32 = 10_068;
    pub(crate) const DEADSESSION: u32 = 10_078;
}

/// The call that a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    ExchangeId,
    LookUp,
    Read,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The SEQUENCE fails; its number is not used.
    Sequence(u32),
    /// The last operation fails.
    Operation(u32),
    /// No operation is executed.
    Compound(u32),
    /// The server has no such program version.
    OnlyVersion3,
    /// The connection ends instead of the call, or instead of the reply.
    CloseBefore,
    CloseAfter,
    /// The reply is kept until [`Server::reply_late`].
    Silent,
    /// The reply names another slot.
    OtherSlot,
    /// The connection stays, and no call on it is read any more.
    Hang,
}

/// A server, and what a test may do to it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    tree: Arc<dyn Tree>,
}

#[derive(Default)]
struct State {
    slots: u32,
    sessions: HashMap<[u8; 16], Vec<SlotState>>,
    created: u32,
    /// The clients by their numbers, which begin with [`FIRST_CLIENT`].
    clients: Vec<KnownClient>,
    /// Faults to come, each for one call.
    faults: Vec<(Moment, Fault)>,
    connections: Vec<TcpStream>,
    late: Vec<(TcpStream, Vec<u8>)>,
    users: Vec<u32>,
    violation: Option<String>,
    /// Whether SEQUENCE itself says that a reply was not kept, and not the operation after it.
    replays_in_sequence: bool,
    /// Whether reads by the anonymous stateid have to wait.
    is_in_grace: bool,
    /// Whether CREATE_SESSION fails.
    creates_none: bool,
    /// Whether the next session is forgotten at once.
    forgets_next: bool,
    /// Whether new connections are refused.
    is_down: bool,
    /// Whether the server ends.
    has_ended: bool,
}

/// The number of the first client.
const FIRST_CLIENT: u64 = 77;

/// A client that has made an EXCHANGE_ID.
struct KnownClient {
    /// Its verifier and its name.
    owner: Vec<u8>,
    /// The number of its next CREATE_SESSION.
    next: u32,
    /// The reply to the one before.
    created: Output,
}

/// A slot: its last number, and the call that had it.
#[derive(Clone, Default)]
struct SlotState {
    last: u32,
    call: Vec<u8>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with_slots(16)
    }

    pub(crate) fn with_slots(slots: u32) -> Self {
        Self::exporting(Arc::new(Sample), slots)
    }

    pub(crate) fn exporting(tree: Arc<dyn Tree>, slots: u32) -> Self {
        Self::listen(Arc::new(Mutex::new(State { slots, ..State::default() })), tree)
    }

    pub(crate) fn at_another_address(&self) -> Self {
        Self::listen(Arc::clone(&self.state), Arc::clone(&self.tree))
    }

    fn listen(state: Arc<Mutex<State>>, tree: Arc<dyn Tree>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let own = (Arc::clone(&state), Arc::clone(&tree));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (state, tree) = own.clone();
                let Ok(mut now) = state.lock() else { return };
                if now.has_ended {
                    return;
                }
                if now.is_down {
                    continue;
                }
                now.connections.push(socket.try_clone().unwrap());
                drop(now);
                std::thread::spawn(move || serve(socket, &state, &tree));
            }
        });
        Self { address, state, tree }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    pub(crate) fn inject(&self, moment: Moment, fault: Fault) {
        self.with(|state| state.faults.push((moment, fault)));
    }

    pub(crate) fn replay_in_sequence(&self, does: bool) {
        self.with(|state| state.replays_in_sequence = does);
    }

    pub(crate) fn set_grace(&self, is_in_grace: bool) {
        self.with(|state| state.is_in_grace = is_in_grace);
    }

    pub(crate) fn create_none(&self, creates_none: bool) {
        self.with(|state| state.creates_none = creates_none);
    }

    /// Creates one more session, and does not know it.
    pub(crate) fn forget_next_session(&self) {
        self.with(|state| state.forgets_next = true);
    }

    /// Accepts connections, and ends them at once.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.with(|state| state.is_down = is_down);
    }

    pub(crate) fn forget_sessions(&self) {
        self.with(|state| state.sessions.clear());
    }

    pub(crate) fn close_connections(&self) {
        self.with(|state| {
            state.late.clear();
            for socket in state.connections.drain(..) {
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
        });
    }

    pub(crate) fn reply_late(&self) {
        self.with(|state| {
            for (mut socket, reply) in state.late.drain(..) {
                socket.write_all(&reply).unwrap();
            }
        });
    }

    pub(crate) fn late_replies_left(&self) -> usize {
        self.with(|state| state.late.len())
    }

    pub(crate) fn sessions_created(&self) -> u32 {
        self.with(|state| state.created)
    }

    pub(crate) fn open_sessions(&self) -> usize {
        self.with(|state| state.sessions.len())
    }

    /// The users of calls about objects.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.with(|state| state.users.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let is_poisoned = self.state.is_poisoned();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended = true;
        let violation = state.violation.clone();
        for socket in state.connections.drain(..) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        drop(state);
        // The listening thread sees the end, and lets go of the address.
        let _ = TcpStream::connect(self.address);
        if !std::thread::panicking() {
            assert!(!is_poisoned, "the server does not understand a call");
            assert_eq!(violation, None, "the client breaks the rules of sessions");
        }
    }
}

/// Takes values from a call.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn fixed(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.fixed(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.fixed(8).try_into().unwrap())
    }

    fn opaque(&mut self) -> &'a [u8] {
        let len = self.u32() as usize;
        &self.fixed(len.next_multiple_of(4))[..len]
    }
}

/// Values of a reply.
#[derive(Clone, Default)]
struct Output(Vec<u8>);

impl Output {
    fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_be_bytes()));
        self
    }

    fn u64(mut self, word: u64) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn opaque(self, bytes: &[u8]) -> Self {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.words(&[bytes.len() as u32]).fixed(bytes).fixed(&[0; 3][..padding])
    }
}

/// The root of the server's name space, above the export.
const ROOT: u64 = u64::MAX;

/// A handle that leads to nothing.
const NO_OBJECT: u64 = 0;

fn handle(object: u64) -> [u8; 100] {
    let mut bytes = [object as u8; 100];
    bytes[..8].copy_from_slice(&object.to_be_bytes());
    bytes
}

/// The object of a handle.
fn object(handle: &[u8]) -> u64 {
    handle.get(..8).map_or(NO_OBJECT, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

/// The attributes of an object, as far as they are wanted.
fn encode(found: &Attributes, wanted: [u32; 2]) -> Output {
    let mut given = [0u32; 2];
    let mut values = Output::default();
    for bit in 0..64u32 {
        let (word, mask) = ((bit / 32) as usize, 1 << (bit % 32));
        if wanted[word] & mask == 0 {
            continue;
        }
        let before = values.0.len();
        let time = |values: Output, (seconds, nanoseconds): (i64, u32)| {
            values.u64(seconds as u64).words(&[nanoseconds])
        };
        values = match bit {
            1 => values.words(&[found.kind as u32]),
            4 => values.u64(found.size),
            8 => values.u64(found.file_system).u64(9),
            10 => values.words(&[30]),
            20 => values.u64(found.number),
            27 => values.u64(u64::MAX),
            29 => values.words(&[255]),
            30 => values.u64(1 << 20),
            33 => values.words(&[found.mode]),
            35 => values.words(&[found.links]),
            36 => values.opaque(found.owner.to_string().as_bytes()),
            37 => values.opaque(found.group.to_string().as_bytes()),
            44 => values.u64(1 << 30),
            47 => time(values, found.accessed),
            52 => time(values, found.changed),
            53 => time(values, found.modified),
            _ => values,
        };
        if values.0.len() > before {
            given[word] |= mask;
        }
    }
    Output::default().words(&[2, given[0], given[1]]).opaque(&values.0)
}

/// Answers the calls of one connection.
fn serve(mut socket: TcpStream, state: &Arc<Mutex<State>>, tree: &Arc<dyn Tree>) {
    let writer = Arc::new(Mutex::new(socket.try_clone().unwrap()));
    let mut mark = [0; 4];
    while socket.read_exact(&mut mark).is_ok() {
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        if socket.read_exact(&mut record).is_err() {
            return;
        }
        if !tree.answers_at_once() {
            let (state, tree) = (Arc::clone(state), Arc::clone(tree));
            let writer = Arc::clone(&writer);
            std::thread::spawn(move || {
                let answer = || answer(&record, &state, &*tree);
                let reply = std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer));
                let mut writer = writer.lock().unwrap();
                let _ = match reply {
                    Ok(Ok(reply)) => writer.write_all(&reply.record()),
                    Ok(Err(Closing)) | Err(_) => writer.shutdown(std::net::Shutdown::Both),
                };
            });
            continue;
        }
        let reply = match answer(&record, state, &**tree) {
            Ok(reply) => reply,
            Err(Closing) => {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                return;
            }
        };
        let bytes = reply.record();
        if reply.hangs {
            // Until the client closes it.
            let _ = std::io::copy(&mut socket, &mut std::io::sink());
            return;
        }
        if reply.is_late {
            let socket = socket.try_clone().unwrap();
            state.lock().unwrap().late.push((socket, bytes));
        } else if socket.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// The connection ends.
struct Closing;

struct Answer {
    bytes: Vec<u8>,
    is_late: bool,
    hangs: bool,
}

impl Answer {
    fn now(bytes: Vec<u8>) -> Self {
        Self { bytes, is_late: false, hangs: false }
    }

    /// The reply with its record mark.
    fn record(&self) -> Vec<u8> {
        let mark = 0x8000_0000 | self.bytes.len() as u32;
        [&mark.to_be_bytes()[..], &self.bytes].concat()
    }
}

fn answer(record: &[u8], state: &Mutex<State>, tree: &dyn Tree) -> Result<Answer, Closing> {
    let mut input = Input(record);
    let xid = input.u32();
    let [_call, _rpc, _program, version, procedure] = [(); 5].map(|()| input.u32());
    let _flavor = input.u32();
    let mut credentials = Input(input.opaque());
    let _stamp = credentials.u32();
    credentials.opaque();
    let user = credentials.u32();
    let _verifier = (input.u32(), input.opaque());
    let header = Output::default().words(&[xid, 1, 0, 0, 0]);
    if version != 4 {
        return Ok(Answer::now(header.words(&[2, 4, 4]).0));
    }
    if procedure == 0 {
        return Ok(Answer::now(header.words(&[0]).0));
    }
    let mut call = Compound::new(input, user, tree);
    let delayed = call.pass();
    let mut state = state.lock().unwrap();
    let fault = delayed.err().map(Fault::Operation).or_else(|| call.take_fault(&mut state));
    match fault {
        Some(Fault::CloseBefore) => return Err(Closing),
        Some(Fault::OnlyVersion3) => {
            return Ok(Answer::now(header.words(&[2, 3, 3]).0));
        }
        Some(Fault::Compound(status)) => {
            return Ok(Answer::now(header.words(&[0, status, 0, 0]).0));
        }
        _ => {}
    }
    let results = call.execute(&mut state, fault);
    if fault == Some(Fault::CloseAfter) {
        return Err(Closing);
    }
    let bytes = header.words(&[0]).fixed(&results.0).0;
    let is = |one: Fault| fault == Some(one);
    Ok(Answer { bytes, is_late: is(Fault::Silent), hangs: is(Fault::Hang) })
}

/// A COMPOUND.
struct Compound<'a> {
    input: Input<'a>,
    count: u32,
    user: u32,
    tree: &'a dyn Tree,
    /// Whether it was executed before, and its reply was not kept.
    is_replay: bool,
}

impl<'a> Compound<'a> {
    fn new(mut input: Input<'a>, user: u32, tree: &'a dyn Tree) -> Self {
        input.opaque();
        assert_eq!(input.u32(), 1, "the minor version");
        let count = input.u32();
        Self { input, count, user, tree, is_replay: false }
    }

    /// Waits as long as the tree wants.
    fn pass(&self) -> Result<(), u32> {
        let mut input = Input(self.input.0);
        // Calls about sessions are answered at once, except for the renewal of the lease.
        if input.u32() != 53 {
            return Ok(());
        }
        input.fixed(32);
        if self.count < 3 || input.u32() != 22 {
            return self.tree.pass(Kind::Other);
        }
        input.opaque();
        match input.u32() {
            15 => self.tree.pass(Kind::LookUp),
            25 => {
                input.fixed(16);
                self.tree.pass(Kind::Read { offset: input.u64() })
            }
            _ => self.tree.pass(Kind::Other),
        }
    }

    /// The fault that waits for such a call.
    fn take_fault(&self, state: &mut State) -> Option<Fault> {
        let mut input = Input(self.input.0);
        let mut is = |moment: Moment| {
            let at = state.faults.iter().position(|(at, _)| *at == moment)?;
            Some(state.faults.remove(at).1)
        };
        match input.u32() {
            42 => return is(Moment::ExchangeId),
            53 => drop(input.fixed(32)),
            _ => return None,
        }
        if self.count < 3 || input.u32() != 22 {
            return None;
        }
        input.opaque();
        match input.u32() {
            15 => is(Moment::LookUp),
            25 => is(Moment::Read),
            _ => None,
        }
    }

    fn execute(&mut self, state: &mut State, fault: Option<Fault>) -> Output {
        let whole = self.input.0.to_vec();
        let mut results = Output::default();
        let mut executed = 0;
        let mut last = 0;
        let mut current = NO_OBJECT;
        for index in 0..self.count {
            let number = self.input.u32();
            let fails = match fault {
                Some(Fault::Operation(status)) if index + 1 == self.count => Some(status),
                // Of a LOOKUP, the operations after it are not executed.
                Some(Fault::Operation(status)) if matches!(number, 15 | 25) => Some(status),
                _ => None,
            };
            let result = match (fails, number) {
                (Some(status), _) => Err(status),
                (None, 53) => self.sequence(state, fault, &whole),
                (None, _) if self.is_replay => Err(status::RETRY_UNCACHED_REP),
                (None, _) => self.operation(number, &mut current, state),
            };
            executed += 1;
            last = result.as_ref().err().copied().unwrap_or(0);
            results = results.words(&[number, last]);
            match result {
                Ok(result) => results = results.fixed(&result.0),
                Err(_) => break,
            }
        }
        Output::default().words(&[last, 0, executed]).fixed(&results.0)
    }

    fn sequence(
        &mut self,
        state: &mut State,
        fault: Option<Fault>,
        whole: &[u8],
    ) -> Result<Output, u32> {
        let id: [u8; 16] = self.input.fixed(16).try_into().unwrap();
        let [sequence, slot, highest, _cached] = [(); 4].map(|()| self.input.u32());
        if let Some(Fault::Sequence(status)) = fault {
            if matches!(status, status::BADSESSION | status::DEADSESSION) {
                state.sessions.remove(&id);
            }
            return Err(status);
        }
        let Some(slots) = state.sessions.get_mut(&id) else { return Err(status::BADSESSION) };
        let own = &mut slots[slot as usize];
        let violation = match sequence.wrapping_sub(own.last) {
            1 => None,
            0 if own.call == whole && state.replays_in_sequence => {
                return Err(status::RETRY_UNCACHED_REP);
            }
            0 if own.call == whole => {
                self.is_replay = true;
                None
            }
            0 => Some("two calls have one number"),
            // Where calls wait, one of an ended connection may come after those that follow it.
            before if before > u32::MAX / 2 && !self.tree.answers_at_once() => {
                return Err(status::SEQ_MISORDERED);
            }
            _ => Some("a number was left out"),
        };
        let violation = violation.or((highest < slot).then_some("a wrong highest slot"));
        if let Some(violation) = violation {
            state.violation = Some(violation.to_owned());
            return Err(status::SEQ_MISORDERED);
        }
        *own = SlotState { last: sequence, call: whole.to_vec() };
        let shown = if fault == Some(Fault::OtherSlot) { slot + 1 } else { slot };
        let most = state.slots - 1;
        Ok(Output::default().fixed(&id).words(&[sequence, shown, most, most, 0]))
    }

    fn operation(
        &mut self,
        number: u32,
        current: &mut u64,
        state: &mut State,
    ) -> Result<Output, u32> {
        let (input, tree) = (&mut self.input, self.tree);
        let output = Output::default();
        if matches!(number, 3 | 15 | 25 | 26 | 27) && !state.users.contains(&self.user) {
            state.users.push(self.user);
        }
        Ok(match number {
            3 => {
                let wanted = input.u32();
                output.words(&[wanted, wanted])
            }
            9 => {
                assert_eq!(input.u32(), 2);
                let found = match *current {
                    ROOT => Attributes::ROOT,
                    current => tree.attributes(current)?,
                };
                encode(&found, [input.u32(), input.u32()])
            }
            10 => output.opaque(&handle(*current)),
            15 => {
                let name = input.opaque();
                *current = match *current {
                    ROOT => tree.export(),
                    current => tree.look_up(current, name)?,
                };
                output
            }
            22 => {
                *current = object(input.opaque());
                output
            }
            24 => {
                *current = ROOT;
                output
            }
            25 => {
                match input.fixed(16) {
                    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] if state.is_in_grace => {
                        return Err(status::GRACE);
                    }
                    stateid => assert!(stateid == [0; 16] || stateid == [0xff; 16]),
                }
                let (offset, count) = (input.u64(), input.u32() as usize);
                let (data, is_end) = tree.read(*current, offset, count)?;
                output.words(&[u32::from(is_end)]).opaque(&data)
            }
            26 => list(input, *current, tree)?,
            27 => output.opaque(&tree.read_link(*current)?),
            41 => {
                let id: [u8; 16] = input.fixed(16).try_into().unwrap();
                input.fixed(8);
                match state.sessions.contains_key(&id) {
                    true => output.fixed(&id).words(&[1, 0]),
                    false => return Err(status::BADSESSION),
                }
            }
            42 => {
                let owner = [input.fixed(8), input.opaque()].concat();
                input.fixed(12);
                let known = state.clients.iter().position(|client| client.owner == owner);
                let index = known.unwrap_or_else(|| {
                    let created = Output::default();
                    state.clients.push(KnownClient { owner, next: 1, created });
                    state.clients.len() - 1
                });
                output
                    .u64(FIRST_CLIENT + index as u64)
                    .words(&[state.clients[index].next, 0, 0])
                    .u64(0)
                    .opaque(b"m")
                    .opaque(b"s")
                    .words(&[0])
            }
            43 => {
                if state.creates_none {
                    return Err(status::NOSPC);
                }
                let (number, sequence) = (input.u64(), input.u32());
                input.fixed(4 + 28 + 28 + 12);
                let client = &mut state.clients[(number - FIRST_CLIENT) as usize];
                match sequence.cmp(&client.next) {
                    Ordering::Equal => client.next += 1,
                    // The reply was lost.
                    Ordering::Less if sequence + 1 == client.next => {
                        return Ok(client.created.clone());
                    }
                    // A call that was sent again, after others.
                    Ordering::Less => return Err(status::SEQ_MISORDERED),
                    Ordering::Greater => {
                        state.violation = Some("a CREATE_SESSION was left out".to_owned());
                        return Err(status::SEQ_MISORDERED);
                    }
                }
                state.created += 1;
                let id = u128::from(state.created).to_be_bytes();
                if !std::mem::take(&mut state.forgets_next) {
                    state.sessions.insert(id, vec![SlotState::default(); state.slots as usize]);
                }
                let channel = [0, 65_536, 1 << 20, 0, 16, state.slots, 0];
                let created = output.fixed(&id).words(&[1, 0]).words(&channel).words(&channel);
                state.clients[(number - FIRST_CLIENT) as usize].created = created.clone();
                created
            }
            44 => {
                let id: [u8; 16] = input.fixed(16).try_into().unwrap();
                state.sessions.remove(&id);
                output
            }
            58 => {
                input.fixed(4);
                output
            }
            other => panic!("operation {other}"),
        })
    }
}

/// A part of the names.
fn list(input: &mut Input<'_>, dir: u64, tree: &dyn Tree) -> Result<Output, u32> {
    let cookie = input.u64() as usize;
    input.fixed(8 + 8);
    assert_eq!(input.u32(), 2);
    let wanted = [input.u32(), input.u32()];
    let all = match dir {
        ROOT => vec![Listed { name: b"export".to_vec(), found: tree.attributes(tree.export()) }],
        dir => tree.list(dir)?,
    };
    // The cookies 0 to 2 have another meaning.
    let from = cookie.saturating_sub(2);
    let to = (from + tree.names_in_part()).min(all.len());
    let mut output = Output::default().fixed(&[5; 8]);
    for (index, Listed { name, found }) in all.iter().enumerate().take(to).skip(from) {
        output = output.words(&[1]).u64(index as u64 + 3).opaque(name);
        output = match found {
            Ok(found) => output.fixed(&encode(found, wanted).0),
            // The server can tell only why it tells nothing else.
            Err(status) => output.words(&[2, 1 << 11, 0]).opaque(&status.to_be_bytes()),
        };
    }
    Ok(output.words(&[0, u32::from(to == all.len())]))
}
