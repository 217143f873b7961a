//! Files that are open for writing, and what is read of them.
//!
//! As long as any handle may write a file, all of its handles read it from the
//! write replica, past everything that is kept of it here: what was written is
//! seen at once, and what another replica has of it by then is seen by nobody.
//!
//! *Invariants:*
//! - A read and a write of one file exclude each other, as on an NFS mount, so no
//!   answer is half of one write.
//! - A change that nobody got an answer to may still be under way. While it is,
//!   no other change of that file is begun: it could be overtaken. That holds for a
//!   change that an earlier daemon may be making, too ([`super::unsettled`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::append::Appends;
use super::arrivals::Arrivals;
use super::handle::FileHandle;
use super::unsettled::Unsettled;
use super::{Answer, Errno, Fs, Ino, ReadData};
use crate::backend::{
    Backend, BackendError, BackendFile, Identity, Lane, SeekTo, SyncMode, has_a_part,
};
use crate::buffer::Buffer;
use crate::read::Term;
use crate::telemetry::counters::count;
use crate::volume::ByteRange;

/// The error of a call for which this process has no memory.
const OUT_OF_MEMORY: BackendError = BackendError::Os(rustix::io::Errno::NOMEM);

/// A handle that may write.
pub(super) struct Writer {
    /// As the write replica has it open for this handle alone.
    pub(super) file: Arc<dyn BackendFile>,
    /// Whether it can be read through.
    pub(super) readable: bool,
    /// When a write through it is done.
    pub(super) sync: SyncMode,
    /// In whose name.
    pub(super) who: Identity,
    /// What the next fsync(2) or close(2) is to say.
    trouble: Mutex<Option<Errno>>,
    /// When its last change was noted.
    noted: Mutex<Option<Instant>>,
}

impl Writer {
    pub(super) fn new(
        file: Arc<dyn BackendFile>,
        readable: bool,
        sync: SyncMode,
        who: Identity,
    ) -> Self {
        Self { file, readable, sync, who, trouble: Mutex::new(None), noted: Mutex::new(None) }
    }

    /// A change may have been lost.
    pub(super) fn fails(&self, errno: Errno) {
        *self.trouble.lock() = Some(errno);
    }

    /// What is to be said of changes before now, once.
    pub(super) fn trouble(&self) -> Option<Errno> {
        self.trouble.lock().take()
    }

    /// The same, and it still is to be said.
    pub(super) fn peek(&self) -> Option<Errno> {
        *self.trouble.lock()
    }

    /// Whether a change at `now` has to be noted, as the last one was `often` ago.
    pub(super) fn is_to_note(&self, now: Instant, often: std::time::Duration) -> bool {
        let mut noted = self.noted.lock();
        let due = noted.is_none_or(|at| now.saturating_duration_since(at) >= often);
        if due {
            *noted = Some(now);
        }
        due
    }
}

/// How often a change looks whether earlier daemons are through with its file.
const LOOK: Duration = Duration::from_millis(10);

/// Keeps reads and changes of one file apart. It lives as long as the file is open, or
/// a change of it is under way.
pub(super) struct Gate {
    ino: Ino,
    unsettled: Arc<Unsettled>,
    lock: RwLock<()>,
    /// Changes that have not come to an end.
    running: AtomicUsize,
    /// Whether any of them was given up.
    given_up: AtomicBool,
    /// O_DIRECT appends, which arrive in parts.
    pub(super) appends: Mutex<Appends>,
    /// Writes that later reads wait for.
    pub(super) arrivals: Arrivals,
}

/// A change that is under way; it is not any more when this is dropped.
pub(super) struct UnderWay {
    gate: Arc<Gate>,
    /// Whether who asked for it has been told that it did not end in time.
    given_up: AtomicBool,
}

impl Gate {
    pub(super) fn new(ino: Ino, unsettled: Arc<Unsettled>) -> Self {
        Self {
            ino,
            unsettled,
            lock: RwLock::default(),
            running: AtomicUsize::default(),
            given_up: AtomicBool::default(),
            appends: Mutex::default(),
            arrivals: Arrivals::default(),
        }
    }

    /// A change begins; `None` where it could be overtaken by an older one. Of an earlier
    /// daemon's changes, only a change that came `again` may begin; [`UnderWay::enter`]
    /// then waits.
    pub(super) fn begin_change(self: &Arc<Self>, again: bool) -> Option<Arc<UnderWay>> {
        if again {
            self.unsettled.comes_again(self.ino);
        } else if self.unsettled.holds(self.ino) {
            return None;
        }
        self.begin()
    }

    /// The same for what sets no data or attributes; earlier daemons do not matter to it.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Arc<UnderWay>> {
        let others = self.running.fetch_add(1, Ordering::AcqRel);
        let under_way = UnderWay { gate: Arc::clone(self), given_up: AtomicBool::new(false) };
        if others == 0 {
            self.given_up.store(false, Ordering::Release);
        }
        (!self.given_up.load(Ordering::Acquire)).then(|| Arc::new(under_way))
    }

    /// Whether a change is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Waits until nothing is being changed. Blocks.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// The same, if nothing is being changed now.
    pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }
}

impl UnderWay {
    /// Waits until nothing else is being read or changed. Blocks.
    ///
    /// # Errors
    /// [`BackendError::Late`] where nobody waits for it any more: it is not to be
    /// done after what was asked for later.
    pub(super) fn enter(&self) -> crate::backend::Result<RwLockWriteGuard<'_, ()>> {
        while self.gate.unsettled.holds(self.gate.ino) && !self.is_over() {
            std::thread::sleep(LOOK);
        }
        let alone = self.gate.lock.write();
        match self.is_over() {
            true => Err(BackendError::Late),
            false => Ok(alone),
        }
    }

    /// Whether it is not to be begun any more.
    fn is_over(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.gate.unsettled.is_left()
    }

    /// Who asked for it is about to be told this.
    pub(super) fn ends<T>(&self, answer: &crate::backend::Result<T>) {
        if matches!(answer, Err(BackendError::Late)) && !self.given_up.swap(true, Ordering::AcqRel)
        {
            self.gate.given_up.store(true, Ordering::Release);
            self.gate.unsettled.gives_up(self.gate.ino);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if *self.given_up.get_mut() {
            self.gate.unsettled.ended(self.gate.ino);
        }
        self.gate.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Fs {
    /// Reads a file that is being written, after the writes that arrived before.
    pub(super) fn read_written(
        self: &Arc<Self>,
        file: FileHandle,
        through: Option<Arc<Writer>>,
        asked: (ByteRange, Instant),
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let gate = Arc::clone(&file.inode.gate);
        self.after_writes(&gate, asked.1, move |fs| {
            fs.read_written_now(file, through, asked, done);
        });
    }

    fn read_written_now(
        self: &Arc<Self>,
        file: FileHandle,
        through: Option<Arc<Writer>>,
        (range, since): (ByteRange, Instant),
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let (gate, reader) = (Arc::clone(&file.inode.gate), Arc::clone(&self.reader));
        let read = move |file: &dyn BackendFile| {
            // There are no more of these than threads.
            let mut bytes = reader.buffer(range.len()).ok_or(OUT_OF_MEMORY)?;
            let _together = gate.read();
            let (mut filled, mut ended) = (0, false);
            while filled < bytes.len() {
                let at = range.start + filled as u64;
                match file.read_at(at, &mut bytes[filled..])? {
                    0 if at >= file.attr()?.size => break,
                    // Somebody else has made it longer just now; or the replica ends
                    // it before its own size, and is not believed.
                    0 if !ended => ended = true,
                    0 => return Err(BackendError::Short),
                    n => (filled, ended) = (filled + n, false),
                }
                has_a_part();
            }
            Ok((bytes, filled))
        };
        let fs = Arc::clone(self);
        self.on_written(
            file,
            through,
            (Lane::Read, since),
            read,
            move |answer: Answer<(Buffer, usize)>| {
                fs.counters.read_latency.record(since.elapsed());
                match &answer {
                    Ok((_, filled)) => {
                        count(&fs.counters.reads);
                        let delivered = &fs.counters.bytes_delivered;
                        delivered.fetch_add(*filled as u64, Ordering::Relaxed);
                    }
                    Err(_) => count(&fs.counters.read_errors),
                }
                done(answer.map(|(bytes, filled)| ReadData::memory(bytes, filled)));
                fs.intake.settle();
            },
        );
    }

    /// The next data or hole of a file that is being written.
    pub(super) fn seek_written(
        self: &Arc<Self>,
        file: FileHandle,
        through: Option<Arc<Writer>>,
        offset: u64,
        to: SeekTo,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let seek = move |file: &dyn BackendFile| file.seek(offset, to);
        self.on_written(file, through, (Lane::Metadata, Instant::now()), seek, done);
    }

    /// Looks into a file that is being written, where it is.
    fn on_written<T: Send + 'static>(
        self: &Arc<Self>,
        file: FileHandle,
        through: Option<Arc<Writer>>,
        (lane, since): (Lane, Instant),
        op: impl Fn(&dyn BackendFile) -> crate::backend::Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        let write = match self.write_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let mut once = self.once(write, lane, &file.who);
        once.term = Term::new(since, self.policy.deadlines);
        let look = move |backend: &dyn Backend| match &through {
            Some(writer) => op(&*writer.file),
            None => {
                let current = file.inode.current();
                current.open_for(&file.who);
                op(&*current.as_it_is(write.replica, backend)?)
            }
        };
        self.caller.call_once(once, look, move |answer| done(answer.map_err(Errno::from)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_while_something_given_up_is_under_way() {
        let gate = Arc::new(Gate::new(Ino(1), Arc::default()));
        let lost = gate.begin().unwrap();
        let other = gate.begin().unwrap();
        lost.ends::<()>(&Err(BackendError::Late));
        assert!(lost.enter().is_err() && other.enter().is_ok());
        drop(other);
        assert!(gate.begin().is_none());
        drop(lost);
        assert!(gate.begin().is_some());
    }
}
