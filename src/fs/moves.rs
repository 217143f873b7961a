//! Calls below something that is renamed here at the same time.
//!
//! Replicas are asked by path. A rename changes the path on the write replica, and in the
//! tables ([`super::inode`]) once the answer is there. A call that has the old path comes too
//! late in between: the path leads nowhere, or to another object, and the call fails. A
//! local file system would carry it out, as it knows the directory by its inode. So such a
//! call waits until the rename has ended, and is made again with the path that its inodes
//! have then.
//!
//! Not the other way round, with calls that wait until a rename below which they are has
//! ended, and renames that wait for calls: every call would pay for that, and one that hangs
//! would hold up others.
//!
//! *Invariant:* a call is made again only after an error that says that it was not carried
//! out, and only if something that its path leads through was renamed since it began. So a
//! change is still made once at most, and calls end: each repetition takes a rename, and
//! none begins after the deadline.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno as E;
use tokio::sync::Notify;

use super::{Answer, Errno, Fs, Ino};

/// Renames that are under way, and those that ended last.
#[derive(Default)]
pub(super) struct Moves {
    state: Mutex<State>,
    /// One has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    under_way: Vec<Arc<Move>>,
    /// So many have ended.
    count: u64,
    /// The last of them, the oldest first.
    last: VecDeque<Arc<Move>>,
}

/// So many that have ended are remembered one by one. Of a call that was overtaken by more
/// it is not known whether one of them concerns it, so they count as if one did.
const LAST: usize = 256;

/// A rename of one path to another.
struct Move {
    from: PathBuf,
    to: PathBuf,
}

/// A rename that is under way. When this is dropped it has ended, and the tables have
/// followed it.
pub(super) struct UnderWay {
    fs: Arc<Fs>,
    own: Arc<Move>,
    /// Whether it was refused, so that nothing has moved.
    pub(super) is_refused: bool,
}

/// How things stood when a call began.
pub(super) struct Begun {
    /// When the first try did.
    pub(super) at: Instant,
    inos: Vec<Ino>,
    /// Where they were.
    paths: Vec<PathBuf>,
    /// Renames that had ended.
    count: u64,
}

/// The next step after a call has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It failed for another reason.
    Over,
    /// A rename is under way.
    Wait,
    /// To be made again.
    Again,
}

/// What takes the answer of a call that may be made again.
pub(super) type Done<T> = Box<dyn FnOnce(Answer<T>) + Send>;
type Call<T> = Arc<dyn Fn(&Arc<Fs>, Done<T>) + Send + Sync>;

impl Move {
    fn concerns(&self, path: &Path) -> bool {
        path.starts_with(&self.from) || path.starts_with(&self.to)
    }
}

impl State {
    fn has_ended_since(&self, count: u64, concerns: impl Fn(&Move) -> bool) -> bool {
        let new = self.count - count;
        match usize::try_from(new) {
            Ok(new) if new <= self.last.len() => {
                self.last.iter().rev().take(new).any(|one| concerns(one))
            }
            _ => true,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let moves = &self.fs.moves;
        {
            let mut state = moves.state.lock();
            state.under_way.retain(|other| !Arc::ptr_eq(other, &self.own));
            if !self.is_refused {
                state.count += 1;
                if state.last.len() >= LAST {
                    state.last.pop_front();
                }
                state.last.push_back(Arc::clone(&self.own));
            }
        }
        moves.ended.notify_waiters();
    }
}

/// Whether the error may be that of a path that does not lead to its inode any more. The
/// replica has not carried out what ends so.
fn may_be_of_a_path(errno: Errno) -> bool {
    let such = [E::NOENT, E::NOTDIR, E::STALE];
    such.iter().any(|error| error.raw_os_error() == errno.raw())
}

impl Fs {
    /// A rename begins.
    pub(super) fn moves(self: &Arc<Self>, from: PathBuf, to: PathBuf) -> UnderWay {
        let own = Arc::new(Move { from, to });
        self.moves.state.lock().under_way.push(Arc::clone(&own));
        UnderWay { fs: Arc::clone(self), own, is_refused: false }
    }

    /// A call begins that names `inos` by their paths.
    pub(super) fn begin(&self, inos: &[Ino]) -> Begun {
        self.begin_again(Instant::now(), inos.to_vec())
    }

    fn begin_again(&self, at: Instant, inos: Vec<Ino>) -> Begun {
        // First, so that none is missed.
        let count = self.moves.state.lock().count;
        let paths = self.paths_of(&inos);
        Begun { at, inos, paths, count }
    }

    fn paths_of(&self, inos: &[Ino]) -> Vec<PathBuf> {
        let inodes = self.inodes.lock();
        inos.iter().filter_map(|ino| inodes.path(*ino)).collect()
    }

    fn verdict(&self, begun: &Begun) -> Verdict {
        if begun.at.elapsed() >= self.policy.deadlines.some {
            return Verdict::Over;
        }
        let now = self.paths_of(&begun.inos);
        let concerns = |one: &Move| now.iter().chain(&begun.paths).any(|path| one.concerns(path));
        let state = self.moves.state.lock();
        match () {
            () if state.under_way.iter().any(|one| concerns(one)) => Verdict::Wait,
            () if state.has_ended_since(begun.count, concerns) => Verdict::Again,
            () => Verdict::Over,
        }
    }

    /// Does `then` with whether a call that has failed with this error is to be made again,
    /// once the renames are over that concern it. `is_change`: it would change something.
    pub(super) fn once_moved(
        self: &Arc<Self>,
        (begun, is_change): (Begun, bool),
        error: Errno,
        then: impl FnOnce(&Arc<Self>, Option<Begun>) + Send + 'static,
    ) {
        let verdict = match may_be_of_a_path(error) {
            true => self.verdict(&begun),
            false => Verdict::Over,
        };
        let again = |fs: &Self, verdict, begun: Begun| {
            (verdict == Verdict::Again).then(|| fs.begin_again(begun.at, begun.inos))
        };
        if verdict != Verdict::Wait {
            return then(self, again(self, verdict, begun));
        }
        // Until the change is queued, so that no handover comes in between.
        let waiting = is_change.then(|| self.caller.changes.wait());
        let fs = Arc::clone(self);
        self.locks.runtime().spawn(async move {
            let until = tokio::time::Instant::from_std(begun.at + fs.policy.deadlines.some);
            let verdict = loop {
                // Before the look, so that an end after it is not missed.
                let ended = fs.moves.ended.notified();
                match fs.verdict(&begun) {
                    Verdict::Wait => drop(tokio::time::timeout_at(until, ended).await),
                    verdict => break verdict,
                }
            };
            then(&fs, again(&fs, verdict, begun));
            drop(waiting);
        });
    }

    /// Has `call`, which names `inos` by their paths, answered; made again where a rename
    /// came between.
    pub(super) fn by_path<T: Send + 'static>(
        self: &Arc<Self>,
        (inos, is_change): (&[Ino], bool),
        call: impl Fn(&Arc<Self>, Done<T>) + Send + Sync + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        match self.can_write() {
            true => self.attempt(self.begin(inos), is_change, Arc::new(call), Box::new(done)),
            // Nothing is renamed here.
            false => call(self, Box::new(done)),
        }
    }

    fn attempt<T: Send + 'static>(
        self: &Arc<Self>,
        begun: Begun,
        is_change: bool,
        call: Call<T>,
        done: Done<T>,
    ) {
        let (fs, next) = (Arc::clone(self), Arc::clone(&call));
        call(
            self,
            Box::new(move |answer| match answer {
                Err(error) => {
                    fs.once_moved((begun, is_change), error, move |fs, again| match again {
                        Some(begun) => fs.attempt(begun, is_change, next, done),
                        None => done(Err(error)),
                    })
                }
                answer => done(answer),
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_concerns_what_is_below_either_name_and_nothing_beside_it() {
        let one = Move { from: "a/b".into(), to: "c".into() };
        let concerned = ["a/b", "a/b/x", "c", "c/x/y"].map(|path| one.concerns(path.as_ref()));
        let others = ["", "a", "a/x", "a/bc", "cc"].map(|path| one.concerns(path.as_ref()));
        assert_eq!((concerned, others), ([true; 4], [false; 5]));
    }

    #[test]
    fn renames_that_ended_before_a_call_began_do_not_count_and_forgotten_ones_do() {
        let end = |state: &mut State, from: &str| {
            state.count += 1;
            state.last.push_back(Arc::new(Move { from: from.into(), to: "z".into() }));
        };
        let mut state = State::default();
        end(&mut state, "a");
        end(&mut state, "b");
        let since = |state: &State, count, path: &str| {
            state.has_ended_since(count, |one| one.concerns(path.as_ref()))
        };
        assert!(since(&state, 0, "a/x") && since(&state, 1, "b/x"));
        assert!(!since(&state, 1, "a/x") && !since(&state, 2, "b/x") && !since(&state, 0, "c"));
        state.last.pop_front();
        assert!(since(&state, 0, "c") && !since(&state, 1, "c"));
    }
}
