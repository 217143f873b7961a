//! A backend with scripted faults: delays, errnos, hangs, short reads.
//!
//! A test shares the script and may change it during calls. A hung or delayed call continues as
//! soon as the script is healed.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::decorator::{CallTarget, forward_calls};
use super::{
    Attr, Backend, BackendFile, CreateOptions, EntryRef, EntryVisitor, FileMutation, FileParts,
    Lock, LockRequest, ObjectRef, OwnedFileParts, Result, SeekTo, StatFs, SubmitResult,
    SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};
use crate::volume::ByteRange;

/// The calls that a rule affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Positioned reads.
    Read,
    /// Opens, including those for writing.
    Open,
    /// All changes to the replica except opens. That includes flushes, and exec(2) causes one for
    /// each copy of a descriptor that it closes.
    Mutation,
    /// Writes to files, which are also mutations.
    Write,
    /// Closes of files. They cannot fail, but they can be late or hang.
    Close,
    /// All other calls.
    Metadata,
    /// Answers of open files about their attributes, after the file was asked. They can be late.
    FileAttrAnswer,
    /// Every call, except closes. Calls, not their answers.
    Any,
}

impl FaultOp {
    fn includes(self, op: Self) -> bool {
        match self {
            Self::Any => !matches!(op, Self::Close | Self::FileAttrAnswer),
            Self::Mutation => matches!(op, Self::Mutation | Self::Write),
            one => one == op,
        }
    }
}

/// The effect of a rule on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call takes this much longer, or until the script is healed.
    Delay(Duration),
    /// The call fails.
    Errno(Errno),
    /// The call does not return until the script is healed.
    Hang,
    /// A read returns at most this many bytes.
    ShortRead(usize),
}

/// A fault and the calls that it affects.
#[derive(Clone, Copy, Debug)]
pub struct FaultRule {
    /// The affected calls.
    pub op: FaultOp,
    /// Their fault.
    pub fault: Fault,
    /// The number of matching calls that succeed first.
    pub after: u64,
    /// The number of calls that then get the fault.
    pub count: u64,
    /// If set, only reads that begin in this range.
    pub within: Option<ByteRange>,
    /// If set, only calls about this path or a path beneath it. The empty path means
    /// the root alone.
    pub path: Option<&'static str>,
}

impl FaultRule {
    /// Affects every call of `op` from now on.
    pub fn always(op: FaultOp, fault: Fault) -> Self {
        Self { op, fault, after: 0, count: u64::MAX, within: None, path: None }
    }

    /// The same rule for calls about `path` or a path beneath it. The empty path means
    /// the root alone.
    #[must_use]
    pub fn beneath(self, path: &'static str) -> Self {
        Self { path: Some(path), ..self }
    }

    /// `path` is `None` for a file that came from another process; no rule with a path matches it.
    fn is_match(&self, op: FaultOp, path: Option<&Path>, offset: Option<u64>) -> bool {
        let inside =
            |range: ByteRange| offset.is_some_and(|at| range.start <= at && at < range.end);
        self.op.includes(op)
            && self.within.is_none_or(inside)
            && self.path.is_none_or(|of| path.is_some_and(|path| is_beneath(path, of)))
    }
}

/// The empty path means the root alone.
fn is_beneath(path: &Path, of: &str) -> bool {
    if of.is_empty() { path.as_os_str().is_empty() } else { path.starts_with(of) }
}

/// The faults of one backend; a test and the backend share it.
#[derive(Default)]
pub struct FaultScript {
    rules: Mutex<Vec<FaultRule>>,
    healed: Condvar,
}

impl FaultScript {
    /// Adds a rule. A call gets the first matching rule whose count is not used up.
    pub fn add(&self, rule: FaultRule) {
        self.rules.lock().push(rule);
    }

    /// Removes all rules and lets hung and delayed calls continue.
    pub fn heal(&self) {
        self.rules.lock().clear();
        self.healed.notify_all();
    }

    /// Heals, and makes `rule` the only rule. No call gets in between.
    pub fn replace(&self, rule: FaultRule) {
        *self.rules.lock() = vec![rule];
        self.healed.notify_all();
    }

    /// Whether any rule has used up its count.
    pub fn is_exhausted(&self) -> bool {
        self.rules.lock().iter().any(|rule| rule.count == 0)
    }

    /// Applies the script to a call: sleeps, blocks or fails. Returns the most bytes that a read
    /// may deliver.
    fn apply(&self, op: FaultOp, path: &Path) -> Result<usize> {
        self.apply_at(op, Some(path), None)
    }

    /// Applies the rules that have a path to one entry of a call about several entries. The rules
    /// for the whole call have already been applied.
    fn apply_to_entry(&self, path: &Path) -> Result<usize> {
        let names = |rule: &FaultRule| rule.path.is_some();
        if !self.rules.lock().iter().any(names) {
            return Ok(usize::MAX);
        }
        self.apply(FaultOp::Metadata, path)
    }

    fn apply_at(&self, op: FaultOp, path: Option<&Path>, offset: Option<u64>) -> Result<usize> {
        let mut rules = self.rules.lock();
        let is_met = |rule: &&mut FaultRule| rule.count > 0 && rule.is_match(op, path, offset);
        let Some(rule) = rules.iter_mut().find(is_met) else {
            return Ok(usize::MAX);
        };
        if rule.after > 0 {
            rule.after -= 1;
            return Ok(usize::MAX);
        }
        rule.count -= 1;
        match rule.fault {
            Fault::Errno(errno) => Err(errno.into()),
            Fault::ShortRead(most) => Ok(most),
            Fault::Delay(time) => {
                // `heal` ends the delay early.
                self.healed.wait_for(&mut rules, time);
                Ok(usize::MAX)
            }
            Fault::Hang => {
                self.healed.wait(&mut rules);
                Ok(usize::MAX)
            }
        }
    }
}

/// The decorator.
pub struct FaultInjector<B> {
    inner: B,
    script: Arc<FaultScript>,
}

impl<B> FaultInjector<B> {
    /// Wraps `inner` with the faults of `script`.
    pub fn new(inner: B, script: Arc<FaultScript>) -> Self {
        Self { inner, script }
    }

    fn before_call(&self, target: CallTarget<'_>) -> Result<()> {
        self.script.apply(FaultOp::Metadata, &target.path()).map(drop)
    }

    fn file(&self, path: Option<&Path>, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(FaultInjectorFile {
            inner,
            path: path.map(Path::to_owned),
            script: Arc::clone(&self.script),
        })
    }
}

impl<B: Backend> Backend for FaultInjector<B> {
    forward_calls! {
        stat stat_entry list check_open_dir revalidate_dir read_link get_xattr list_xattr
        stat_fs check_mount is_in_service connections handle_unmount mount_id flush_closes
    }

    /// The script makes threads wait.
    fn reads_without_threads(&self) -> bool {
        false
    }

    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.script.apply(FaultOp::Metadata, dir.path())?;
        let mut found = self.inner.stat_entries(dir, names)?;
        for (name, attr) in names.iter().zip(&mut found) {
            if let Err(error) = self.script.apply_to_entry(&dir.path().join(name)) {
                *attr = Err(error);
            }
        }
        Ok(found)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        self.script.apply(FaultOp::Open, path)?;
        let (inner, attr) = self.inner.open(path)?;
        Ok((self.file(Some(path), inner), attr))
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        self.script.apply(FaultOp::Open, path)?;
        let opened = self.inner.open_to_write(path, how)?;
        Ok(WritableFile { file: self.file(Some(path), opened.file), ..opened })
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        let path = name.path();
        self.script.apply(FaultOp::Open, &path)?;
        let opened = self.inner.create(name, how, create)?;
        Ok(WritableFile { file: self.file(Some(&path), opened.file), ..opened })
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        self.script.apply(FaultOp::Mutation, Path::new(""))?;
        self.inner.mutate(change)
    }

    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(None, self.inner.adopt(parts)?))
    }
}

struct FaultInjectorFile {
    inner: Arc<dyn BackendFile>,
    /// The path at which it was opened; `None` for a file that another process opened.
    path: Option<PathBuf>,
    script: Arc<FaultScript>,
}

impl FaultInjectorFile {
    fn apply(&self, op: FaultOp) -> Result<()> {
        self.script.apply_at(op, self.path.as_deref(), None).map(drop)
    }

    /// Returns the most bytes that a read from `offset` may deliver.
    fn apply_to_read(&self, offset: u64) -> Result<usize> {
        self.script.apply_at(FaultOp::Read, self.path.as_deref(), Some(offset))
    }
}

impl Drop for FaultInjectorFile {
    fn drop(&mut self) {
        let _ = self.apply(FaultOp::Close);
    }
}

impl BackendFile for FaultInjectorFile {
    fn attr(&self) -> Result<Attr> {
        self.apply(FaultOp::Metadata)?;
        let attr = self.inner.attr()?;
        self.apply(FaultOp::FileAttrAnswer)?;
        Ok(attr)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let most = self.apply_to_read(offset)?.min(buf.len());
        self.inner.read_at(offset, &mut buf[..most])
    }

    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        match self.apply_to_read(offset) {
            Ok(most) => self.inner.splice_at(offset, pipe, most.min(len)),
            Err(error) => Some(Err(error)),
        }
    }

    /// `None`: the kernel's own reads would bypass the script.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn parts(&self) -> FileParts<'_> {
        self.inner.parts()
    }

    fn is_deferred(&self) -> bool {
        self.inner.is_deferred()
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.apply(FaultOp::Metadata)?;
        self.inner.seek(offset, to)
    }

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        self.apply(match change {
            FileMutation::Write { .. } => FaultOp::Write,
            _ => FaultOp::Mutation,
        })?;
        self.inner.mutate(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.apply(FaultOp::Metadata)?;
        self.inner.lock(request)
    }
}
