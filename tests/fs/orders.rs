//! Every order of request, journal entry, answer, kill and resend, for two requests: with a
//! scripted kernel, and daemons that follow one another by their journals.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfs::backend::{self, CreateMode, OpenAccess, RequestContext, SyncMode, WriteOpenOptions};
use fanfs::config::CachePolicy;
use fanfs::fs::{CreateRequest, Errno, Fs, HandleId, Ino, ROOT, WriteRequest, recover_journal};
use fanfs::volume::{ByteRange, ReplicaId, VolumeMode};
use tokio::runtime::Runtime;

use crate::{ask, ask_read, entry, volume};

/// A request of the kernel; `f` exists, and `new` is created.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    Lookup,
    Open,
    OpenToWrite,
    OpenDir,
    Create,
    CreateExclusive,
    Read,
    Write,
    Release,
}

use Ask::*;

/// A request, and the handle that it is on.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    ask: Ask,
    on: Option<HandleId>,
}

/// An answer.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    ino: Option<Ino>,
    handle: Option<HandleId>,
    error: Option<Errno>,
}

/// The kernel's side.
#[derive(Clone, Debug, Default)]
struct Kernel {
    lookups: Vec<Ino>,
    handles: Vec<HandleId>,
    answered: Vec<u64>,
}

/// Two requests after some that were answered.
#[derive(Debug)]
struct Case {
    before: &'static [Ask],
    asks: [Ask; 2],
    /// Whether the second one waits for the first one's answer.
    in_turn: bool,
}

const CASES: &[Case] = &[
    Case { before: &[Lookup], asks: [Open, Read], in_turn: true },
    Case { before: &[Lookup], asks: [Open, Release], in_turn: true },
    Case { before: &[Lookup], asks: [OpenToWrite, Write], in_turn: true },
    Case { before: &[Lookup], asks: [OpenToWrite, Release], in_turn: true },
    Case { before: &[Lookup], asks: [Create, Write], in_turn: true },
    Case { before: &[Lookup], asks: [CreateExclusive, Release], in_turn: true },
    Case { before: &[Lookup, Open], asks: [Read, Release], in_turn: false },
    Case { before: &[Lookup, OpenToWrite], asks: [Write, Release], in_turn: false },
    Case { before: &[Lookup], asks: [Open, Open], in_turn: false },
    Case { before: &[Lookup], asks: [Open, OpenToWrite], in_turn: false },
    Case { before: &[Lookup], asks: [Lookup, OpenDir], in_turn: false },
];

/// Length of a journal's header, and of a frame's length field.
const FORM: usize = 16;
const FRAME: usize = 4;

impl Kernel {
    fn send(&self, number: u64, ask: Ask) -> Sent {
        let is_on = matches!(ask, Read | Write | Release);
        Sent { number, ask, on: self.handles.last().copied().filter(|_| is_on) }
    }

    fn take(&mut self, sent: Sent, got: Got) {
        assert!(!self.answered.contains(&sent.number), "{sent:?} was answered twice");
        self.answered.push(sent.number);
        self.lookups.extend(got.ino);
        self.handles.extend(got.handle);
        if sent.ask == Release {
            self.handles.retain(|handle| Some(*handle) != sent.on);
        }
    }
}

/// A daemon, and its journal.
struct Daemon {
    fs: Arc<Fs>,
    journal: PathBuf,
}

struct World {
    room: tempfile::TempDir,
    runtime: Runtime,
    daemons: std::cell::Cell<usize>,
}

impl World {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        fs::create_dir(room.path().join("tree")).unwrap();
        fs::write(room.path().join("tree/f"), "f's").unwrap();
        fs::write(room.path().join("tree/other"), "another's").unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        Self { room, runtime, daemons: std::cell::Cell::new(0) }
    }

    /// A daemon: it continues from a journal if one exists.
    fn daemon(&self, left: Option<&[u8]>) -> Daemon {
        let number = self.daemons.get();
        self.daemons.set(number + 1);
        let fs = volume(&self.room.path().join("tree"), CachePolicy::Kernel, &self.runtime);
        if let Some(left) = left {
            let carried = recovered(self.room.path(), left).unwrap();
            let map = |old: u16| Some(ReplicaId::new(old.into()));
            fs.restore(carried, Vec::new(), &map).unwrap();
        }
        let journal = self.room.path().join(format!("journal-{number}"));
        fs.start_journal(&journal, b"head".to_vec()).unwrap();
        Daemon { fs, journal }
    }
}

fn recovered(room: &Path, left: &[u8]) -> std::io::Result<fanfs::fs::FsSnapshot> {
    let path = room.join("left");
    fs::write(&path, left).unwrap();
    recover_journal(&path, VolumeMode::Shared).map(|(_, carried)| carried)
}

impl Daemon {
    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.journal).unwrap()
    }

    /// Executes a request, which is new or resent, and answers it.
    fn carry_out(&self, kernel: &Kernel, sent: Sent, is_again: bool) -> Got {
        if is_again {
            self.fs.open_files.roll_back_request(sent.number);
            // As `fuse::resend` refuses it: it cannot be made twice.
            if sent.ask == CreateExclusive {
                return Got { error: Some(Errno::TIMEDOUT), ..Got::default() };
            }
        }
        let fs = &self.fs;
        let who = RequestContext { request: sent.number, ..RequestContext::DAEMON };
        let f = || kernel.lookups[0];
        let on = || sent.on.unwrap();
        let got = match sent.ask {
            Lookup => ask(fs.namespace.lookup(who, entry("f")))
                .map(|entry| Got { ino: Some(entry.ino), ..Got::default() }),
            Open => {
                ask(fs.open_files.open(who, f(), false, &())).map(|opened| opened.handle.into())
            }
            OpenToWrite => ask(fs.open_files.open_to_write(who, f(), how(), &()))
                .map(|opened| opened.handle.into()),
            OpenDir => ask(fs.namespace.opendir(who, ROOT)).map(Got::from),
            Create | CreateExclusive => {
                let exclusive = sent.ask == CreateExclusive;
                let perm = CreateMode { perm: 0o644, umask: 0 };
                let create = backend::CreateOptions { exclusive, perm };
                let request = CreateRequest { at: entry("new"), open: how(), create };
                ask(fs.mutations.create(who, request)).map(|created| Got {
                    ino: Some(created.entry.ino),
                    ..created.opened.handle.into()
                })
            }
            Read => ask_read(fs, on(), ByteRange::at(0, 100)).map(|data| {
                assert_eq!(data, b"f's", "{sent:?}");
                Got::default()
            }),
            Write => ask(fs.mutations.write(on(), written())).map(|_| Got::default()),
            Release => {
                fs.open_files.release(on());
                Ok(Got::default())
            }
        };
        got.unwrap_or_else(|error| Got { error: Some(error), ..Got::default() })
    }

    /// The kernel uses each handle that it has, and gives everything back.
    fn ends(self, mut kernel: Kernel, case: &Case) {
        let fs = &self.fs;
        // Its number may not be one that the kernel has.
        let who = RequestContext::DAEMON;
        let other = ask(fs.namespace.lookup(who, entry("other"))).unwrap().ino;
        let decoy = ask(fs.open_files.open(who, other, false, &())).unwrap().handle;
        assert!(!kernel.handles.iter().any(|handle| handle.number == decoy.number));
        for handle in kernel.handles.drain(..) {
            if handle.ino != ROOT {
                let data = ask_read(fs, handle, ByteRange::at(0, 100)).unwrap();
                let is_own = handle.ino == kernel.lookups[0];
                let own: &[&[u8]] = if is_own { &[b"f's"] } else { &[b"", b"f's"] };
                assert!(own.contains(&&*data), "{data:?}");
            }
            fs.open_files.release(handle);
        }
        fs.open_files.release(decoy);
        for ino in kernel.lookups.into_iter().chain([other]) {
            fs.namespace.forget(ino, 1);
        }
        let left = fs.gauges();
        assert_eq!((left.handles, left.inodes), (0, 1), "left behind after {case:?}");
        let room = self.journal.parent().unwrap();
        assert_eq!(recovered(room, &self.bytes()).unwrap().handle_count(), 0, "{case:?}");
    }
}

impl From<HandleId> for Got {
    fn from(handle: HandleId) -> Self {
        Self { handle: Some(handle), ..Self::default() }
    }
}

/// Opened for writing and reading.
fn how() -> WriteOpenOptions {
    WriteOpenOptions {
        access: OpenAccess::ReadWrite,
        truncate: false,
        sync: SyncMode::No,
        expected: None,
    }
}

/// The bytes that are already there.
fn written() -> WriteRequest<'static> {
    let (offset, data, who) = (0, &b"f's"[..], None);
    WriteRequest {
        offset,
        data,
        append: false,
        is_part: false,
        whole: true,
        is_resent: false,
        caller: who,
    }
}

/// Where entries end, from `begin` on.
fn ends(bytes: &[u8], begin: usize) -> Vec<usize> {
    let (mut at, mut ends) = (FORM, vec![begin]);
    while let Some(len) = bytes.get(at..at + FRAME) {
        at += FRAME + u32::from_le_bytes(len.try_into().unwrap()) as usize;
        if at > begin {
            ends.push(at);
        }
    }
    ends
}

/// A kill: the journal's content, the kernel's knowledge, and its unanswered requests.
struct Kill {
    left: Vec<u8>,
    kernel: Kernel,
    unanswered: Vec<Sent>,
}

/// Kills a daemon at each entry that it wrote for requests that it executed; of the answers due by
/// then, any subset reached the kernel.
fn kills(daemon: &Daemon, begin: usize, kernel: &Kernel, done: &[(Sent, Got, usize)]) -> Vec<Kill> {
    let bytes = daemon.bytes();
    let mut kills = Vec::new();
    for end in ends(&bytes, begin) {
        for answers in 0..1u32 << done.len() {
            let is_answered = |i: usize| answers & (1 << i) != 0;
            if done.iter().enumerate().any(|(i, (.., due))| is_answered(i) && *due > end) {
                continue;
            }
            let mut kernel = kernel.clone();
            let mut unanswered = Vec::new();
            for (i, (sent, got, _)) in done.iter().enumerate() {
                match is_answered(i) {
                    true => kernel.take(*sent, *got),
                    false => unanswered.push(*sent),
                }
            }
            kills.push(Kill { left: bytes[..end].to_vec(), kernel, unanswered });
        }
    }
    kills
}

impl Case {
    /// The first daemon has executed some of the requests, in this order.
    fn run(&self, world: &World, order: &[usize], cases: &mut usize) {
        let (daemon, mut kernel) = (world.daemon(None), Kernel::default());
        for (i, ask) in self.before.iter().enumerate() {
            let sent = kernel.send(2 * i as u64 + 2, *ask);
            let got = daemon.carry_out(&kernel, sent, false);
            kernel.take(sent, got);
        }
        let begin = daemon.bytes().len();
        let number = |i: usize| 100 + 2 * i as u64;
        let (mut done, mut now) = (Vec::new(), kernel.clone());
        for i in order {
            let sent = now.send(number(*i), self.asks[*i]);
            let got = daemon.carry_out(&now, sent, false);
            done.push((sent, got, daemon.bytes().len()));
            if self.in_turn {
                now.take(sent, got);
            }
        }
        self.cuts(world, &daemon.bytes(), begin);
        for mut kill in kills(&daemon, begin, &kernel, &done) {
            let first = (number(0), number(1));
            if self.in_turn {
                let is_answered = |number| kill.kernel.answered.contains(&number);
                // The second one was not sent before the first one's answer.
                let was_due = kill.left.len() >= done.first().map_or(begin, |(.., due)| *due);
                if done.len() == 2 && !is_answered(first.0) {
                    if is_answered(first.1) || was_due && kill.left.len() > done[0].2 {
                        continue;
                    }
                    kill.unanswered.retain(|sent| sent.number == first.0);
                }
            } else {
                // Requests that this daemon has not started.
                for i in (0..2).filter(|i| !order.contains(i)) {
                    kill.unanswered.push(kernel.send(number(i), self.asks[i]));
                }
            }
            if order.is_empty() && self.in_turn {
                kill.unanswered.push(kernel.send(number(0), self.asks[0]));
            }
            self.go_on(world, kill, 2, cases);
        }
    }

    /// An entry that was cut off does not count.
    fn cuts(&self, world: &World, bytes: &[u8], begin: usize) {
        let handles =
            |end: usize| recovered(world.room.path(), &bytes[..end]).unwrap().handle_count();
        let ends = ends(bytes, begin);
        for cut in begin..bytes.len() {
            let whole = ends.iter().rfind(|end| **end <= cut).unwrap();
            assert_eq!(handles(cut), handles(*whole), "{self:?} at {cut}");
        }
    }

    /// The next daemon gets the unanswered requests again, in either order; it may be killed as
    /// well.
    fn go_on(&self, world: &World, kill: Kill, more: usize, cases: &mut usize) {
        let mut orders = vec![kill.unanswered.clone()];
        if kill.unanswered.len() == 2 {
            orders.push(kill.unanswered.iter().rev().copied().collect());
        }
        for (turn, order) in orders.into_iter().enumerate() {
            *cases += 1;
            let (daemon, mut kernel) = (world.daemon(Some(&kill.left)), kill.kernel.clone());
            let begin = daemon.bytes().len();
            let mut done = Vec::new();
            for sent in &order {
                let got = daemon.carry_out(&kernel, *sent, true);
                done.push((*sent, got, daemon.bytes().len()));
            }
            // A kill before anything happened is the same as the one before.
            let is_new = |next: &Kill| next.left.len() > begin;
            if more > 1 && turn == 0 {
                for next in kills(&daemon, begin, &kernel, &done).into_iter().filter(is_new) {
                    self.go_on(world, next, more - 1, cases);
                }
            }
            for (sent, got, _) in done {
                self.is_fine(sent, got);
                kernel.take(sent, got);
            }
            // The request that had to wait for an answer is sent now.
            if self.in_turn && !kernel.answered.contains(&102) && !kernel.handles.is_empty() {
                let sent = kernel.send(102, self.asks[1]);
                let got = daemon.carry_out(&kernel, sent, false);
                self.is_fine(sent, got);
                kernel.take(sent, got);
            }
            daemon.ends(kernel, self);
        }
    }

    /// A request fails only if it cannot be repeated, or its handle was released.
    fn is_fine(&self, sent: Sent, got: Got) {
        let is_released = sent.ask != Release && self.asks.contains(&Release);
        let is_timeout = got.error == Some(Errno::TIMEDOUT) && sent.ask == CreateExclusive;
        let is_late = got.error == Some(Errno::BADF) && is_released;
        assert!(got.error.is_none() || is_timeout || is_late, "{sent:?}: {got:?} in {self:?}");
    }
}

#[test]
fn no_order_of_requests_and_kills_leaves_anything_behind() {
    let mut cases = 0;
    for case in CASES {
        let orders: &[&[usize]] = match case.in_turn {
            true => &[&[], &[0], &[0, 1]],
            false => &[&[], &[0], &[1], &[0, 1], &[1, 0]],
        };
        for order in orders {
            case.run(&World::new(), order, &mut cases);
        }
    }
    assert!(cases > 200, "{cases}");
}
