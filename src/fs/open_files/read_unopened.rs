//! Reads of files that the kernel has not opened.
//!
//! Where data never changes, and every caller has the daemon's own rights, an open has nothing to
//! decide. So the kernel may leave OPEN and RELEASE out (`FUSE_NO_OPEN_SUPPORT`). It looks a file up
//! and reads it.
//!
//! A small file is read as a whole by one call that opens it too. For other files this module opens
//! a handle, of which the kernel does not know, and closes it when it was not used for a while, when
//! too many are open, and when the kernel forgets its inode. Such handles are in no journal, and no
//! handover passes them on: the next daemon opens its own.
//!
//! *Invariant:* no handle is closed while a read uses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::open::OpenRequest;
use super::open_immutable::ReadFile;
use super::{OpenFiles, ReadCaller, ReadReply, ReleasedFiles};
use crate::backend::collect_closes;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::FileHandle;
use crate::fs::ino::Ino;
use crate::fs::kernel_open::KernelOpen;
use crate::read::ReadBytes;
use crate::replicas::task;
use crate::volume::ByteRange;

/// Handles that are kept at once, at most. More are open only while reads use them.
const MAX_HANDLES: usize = 512;

/// The share of the process's descriptors that these handles may take.
const DESCRIPTOR_SHARE: u64 = 4;

/// A handle that was not used for so long is closed.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// The handles that the kernel does not know.
pub(super) struct ImplicitHandles {
    most: usize,
    state: Mutex<ImplicitState>,
}

struct ImplicitState {
    /// Iterates from the last used one to the first.
    files: LruCache<Ino, ImplicitFile>,
    /// Whether a task closes those that are idle.
    is_swept: bool,
}

struct ImplicitFile {
    handle: HandleId,
    file: Arc<FileHandle>,
    used_at: Instant,
}

impl ImplicitFile {
    /// Whether no read uses it: only the table of handles and this value have it.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.file) <= 2
    }
}

impl ImplicitHandles {
    /// `replicas` is the number of descriptors that a file may take.
    pub(super) fn new(replicas: usize) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let affordable = descriptors / DESCRIPTOR_SHARE / replicas.max(1) as u64;
        let most = usize::try_from(affordable).map_or(MAX_HANDLES, |most| most.min(MAX_HANDLES));
        let state = ImplicitState { files: LruCache::unbounded(), is_swept: false };
        Self { most, state: Mutex::new(state) }
    }

    fn get(&self, ino: Ino) -> Option<(HandleId, Arc<FileHandle>)> {
        let mut state = self.state.lock();
        let known = state.files.get_mut(&ino)?;
        known.used_at = Instant::now();
        Some((known.handle, Arc::clone(&known.file)))
    }

    /// Takes the handles that no read uses and that were last used `idle` ago or earlier.
    fn take_unused(&self, idle: Duration) -> Vec<HandleId> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_due = |file: &ImplicitFile| {
            file.is_unused() && now.saturating_duration_since(file.used_at) >= idle
        };
        let due = state.files.iter().filter(|(_, file)| is_due(file)).map(|(ino, _)| *ino);
        let due: Vec<Ino> = due.collect();
        due.into_iter().filter_map(|ino| Some(state.files.pop(&ino)?.handle)).collect()
    }

    /// Whether the task that closes idle handles is to go on.
    fn continues_sweeping(&self) -> bool {
        let mut state = self.state.lock();
        state.is_swept = !state.files.is_empty();
        state.is_swept
    }
}

impl ImplicitState {
    /// Takes the handles that are too many, the longest unused first.
    fn take_surplus(&mut self, most: usize) -> Vec<HandleId> {
        let mut surplus = Vec::new();
        while self.files.len() > most {
            let unused = self.files.iter().rev().find(|(_, file)| file.is_unused());
            let Some(ino) = unused.map(|(ino, _)| *ino) else { break };
            surplus.extend(self.files.pop(&ino).map(|file| file.handle));
        }
        surplus
    }
}

impl OpenFiles {
    /// Reads a range of a file that the kernel has not opened, like [`OpenFiles::read`].
    pub fn read_unopened<R: ReadReply>(
        self: &Arc<Self>,
        ino: Ino,
        range: ByteRange,
        caller: ReadCaller<'_, R>,
        kernel: impl KernelOpen + 'static,
        reply: R,
    ) {
        if let Some((handle, file)) = self.implicit.get(ino) {
            return self.read_file(handle, file, range, caller, reply);
        }
        let since = Instant::now();
        let whole =
            self.wants_content(ino).filter(|version| range.start == 0 && range.end >= version.size);
        let process = caller.process;
        let files = Arc::clone(self);
        let read = async move {
            let mut opened = None;
            if let Some(version) = whole {
                let request = OpenRequest::by_daemon(ino, whole);
                opened = files.read_whole(&request, version, since).await;
            }
            if let Some(content) = opened.as_mut().and_then(|opened| opened.content.take()) {
                return files.tables.reader.deliver_read(content, since, |bytes| {
                    reply.send(Ok(ReadBytes::Slice(bytes)));
                });
            }
            match files.file_to_read(ino, opened, &kernel).await {
                Ok((handle, file)) => {
                    let caller = ReadCaller { process, small_reads: None };
                    files.read_file(handle, file, range, caller, reply);
                }
                Err(error) => reply.send(Err(error)),
            }
        };
        // The reply is sent before the file is closed.
        let dropped = collect_closes(|| task::run_on_session_thread(read));
        self.finish_release(ReleasedFiles { dropped, writer: None });
    }

    /// The handle by which an unopened file is read. Opens it if there is none; `opened` is the file
    /// if a replica has opened it.
    pub(super) async fn file_to_read(
        self: &Arc<Self>,
        ino: Ino,
        opened: Option<ReadFile>,
        kernel: &impl KernelOpen,
    ) -> FsResult<(HandleId, Arc<FileHandle>)> {
        if let Some(known) = self.implicit.get(ino) {
            return Ok(known);
        }
        let request = OpenRequest::by_daemon(ino, None);
        let handle = match self.enter_immutable(&request, opened) {
            Some(opened) => opened.handle,
            None => self.open_to_read(request, kernel).await?.handle,
        };
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let own = (handle, Arc::clone(&file));
        let (known, surplus, starts_sweep) = {
            let mut state = self.implicit.state.lock();
            match state.files.get(&ino) {
                // Another read has opened it meanwhile.
                Some(known) => ((known.handle, Arc::clone(&known.file)), vec![handle], false),
                None => {
                    state.files.put(ino, ImplicitFile { handle, file, used_at: Instant::now() });
                    let surplus = state.take_surplus(self.implicit.most);
                    (own, surplus, !std::mem::replace(&mut state.is_swept, true))
                }
            }
        };
        surplus.into_iter().for_each(|handle| self.release(handle));
        if starts_sweep {
            self.start_sweep();
        }
        Ok(known)
    }

    /// Closes the handle of a file that the kernel has forgotten.
    pub fn forget_unopened(self: &Arc<Self>, ino: Ino) {
        let forgotten = self.implicit.state.lock().files.pop(&ino);
        // On the replicas' threads: more files are to be forgotten.
        if let Some(ImplicitFile { handle, .. }) = forgotten {
            self.release(handle);
        }
    }

    /// Closes the handles of unopened files that no read uses.
    pub fn close_unopened(self: &Arc<Self>) {
        self.close_idle_unopened(Duration::ZERO);
    }

    fn close_idle_unopened(self: &Arc<Self>, idle: Duration) {
        self.implicit.take_unused(idle).into_iter().for_each(|handle| self.release(handle));
    }

    /// Starts the task that closes idle handles until none is left.
    fn start_sweep(self: &Arc<Self>) {
        let files = Arc::downgrade(self);
        self.calls.runtime.spawn(async move {
            loop {
                tokio::time::sleep(IDLE_TIME / 2).await;
                let Some(files) = files.upgrade() else { return };
                files.close_idle_unopened(IDLE_TIME);
                if !files.implicit.continues_sweeping() {
                    return;
                }
            }
        });
    }
}
