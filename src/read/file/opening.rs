//! Opening a file on a replica, at the version that is read.
//!
//! A descriptor that the replica has open is looked at first, then the file's name. Another
//! client may have removed the file, or replaced it. Then the name leads elsewhere, and the
//! descriptor is the only way to the data. Over NFSv4 such a descriptor may be *mute*: reads
//! go on, as the server keeps an open file, and fstat(2) fails with ESTALE. What is read from
//! it belongs to the version that it showed last: removing the file's name has changed its
//! ctime and nothing of its data. A mute descriptor therefore serves that version, at
//! whatever ctime.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::{OpenFile, REFUSED_FOR};
use crate::backend::{Attr, Backend, BackendError, BackendFile, Target, inside};
use crate::read::slot::{Held, Opened};
use crate::volume::{FileVersion, Mode, ReplicaId};

/// Whether a descriptor that says nothing of its file can be read all the same.
fn can_be_read(file: &dyn BackendFile) -> bool {
    file.read_at(0, &mut [0]).is_ok()
}

/// Whether the server does not know the file by its handle any more.
fn is_mute<T>(attr: &Result<T, BackendError>) -> bool {
    matches!(attr, Err(BackendError::Os(Errno::STALE)))
}

impl OpenFile {
    /// The file as replica `id` has it open; opens it where needed. Blocks; call
    /// it on that replica's pool.
    ///
    /// # Errors
    /// [`BackendError::Version`] where the replica shows another version, and
    /// whatever its open fails with.
    pub fn on(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        if self.marks.kept_off().contains(id) {
            return Err(BackendError::Version);
        }
        self.compared_on(id, backend)
    }

    /// The same, also where the replica is kept off the file: what it has is compared,
    /// and not delivered.
    ///
    /// # Errors
    /// As [`OpenFile::on`]'s.
    pub(in crate::read) fn compared_on(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let slot = &self.replicas[id];
        if let Held::Open(file) = &*slot.held.lock() {
            return Ok(Arc::clone(file));
        }
        // The pool knows the file also where this waits for another open of it.
        inside(&self.path);
        let mut refused = slot.opening.lock();
        let older = match &*slot.held.lock() {
            Held::Open(file) => return Ok(Arc::clone(file)),
            Held::Older(file, opened) => Some((Arc::clone(file), *opened)),
            Held::Nothing => None,
        };
        if refused.is_some_and(|until| Instant::now() < until) {
            return Err(BackendError::Version);
        }
        let _assumed = self.who().assume()?;
        let error = match self.opened_on(id, older, backend) {
            Ok(file) => {
                self.opened_by(id, Arc::clone(&file));
                return Ok(file);
            }
            Err(error @ BackendError::Version) => error,
            Err(error) => return Err(error),
        };
        let held = slot.held.lock();
        // An open that began later has brought it meanwhile.
        if let Held::Open(file) = &*held {
            return Ok(Arc::clone(file));
        }
        *refused = Some(Instant::now() + REFUSED_FOR);
        self.refused.put(id, true);
        Err(error)
    }

    /// Whether `attr` are of the version that is read.
    fn agrees(&self, attr: &Attr) -> bool {
        self.is_version(attr) && self.origin.may_be(self.mode, attr)
    }

    /// The file at this version: `older`, which is open there, or what has its name.
    fn opened_on(
        &self,
        id: ReplicaId,
        older: Option<(Arc<dyn BackendFile>, Opened)>,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let still_is =
            |file: &Arc<dyn BackendFile>| file.attr().is_ok_and(|attr| self.agrees(&attr));
        if let Some((file, _)) = older.as_ref().filter(|(file, _)| !self.anew && still_is(file)) {
            return Ok(Arc::clone(file));
        }
        let mut opened = self.open_by_name(backend);
        if self.is_elsewhere(&opened) && self.mode == Mode::Shared {
            // What this mount takes for the names there may be older than the file.
            let dir = self.path.parent().unwrap_or(Path::new(""));
            if backend.refresh(&Target::named(dir)).is_ok() {
                opened = self.open_by_name(backend);
            }
        }
        if let Some((file, at)) = older.filter(|_| self.is_elsewhere(&opened))
            && (self.anew && still_is(&file) || self.is_served_by_mute(&file, at))
        {
            return Ok(file);
        }
        match opened {
            Ok((file, attr)) if self.agrees(&attr) => {
                self.origin.is_of(attr.generation);
                Ok(file)
            }
            Ok((_, attr)) => {
                self.log_another(id, &attr);
                Err(BackendError::Version)
            }
            // It is there for the others; a replica without it does not have
            // this version either.
            Err(error) if error.is_definite() || is_mute::<()>(&Err(error)) => {
                Err(BackendError::Version)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the name leads to another file, or to none.
    fn is_elsewhere<T>(&self, opened: &Result<(T, Attr), BackendError>) -> bool {
        match opened {
            Ok((_, attr)) => {
                let is_another = attr.id.ino != self.version.ino;
                self.mode == Mode::Shared && is_another || !self.origin.may_be(self.mode, attr)
            }
            Err(error) => matches!(error, BackendError::Os(Errno::NOENT | Errno::STALE)),
        }
    }

    /// Whether this version can be read from a mute descriptor, which was `at` a version.
    fn is_served_by_mute(&self, file: &Arc<dyn BackendFile>, at: Opened) -> bool {
        let is_it = |at: FileVersion| {
            FileVersion { ctime: self.version.ctime, ..at }.agrees(&self.version, self.mode)
        };
        matches!(at, Opened::At(at) if is_it(at)) && is_mute(&file.attr()) && can_be_read(&**file)
    }

    /// In a volume of copies, a copy that differs is a fault of the volume. In a shared one
    /// the file was changed or replaced, which is ordinary.
    fn log_another(&self, id: ReplicaId, attr: &Attr) {
        let (replica, version) = (id.index(), self.version);
        match self.mode {
            Mode::Copies => tracing::warn!(
                replica,
                expected_size = version.size,
                size = attr.size,
                expected_mtime = version.mtime.0,
                mtime = attr.mtime.0,
                "a replica shows another version of a file and is kept off it"
            ),
            Mode::Shared => tracing::debug!(replica, "a replica shows another version of a file"),
        }
        tracing::debug!(path = ?self.path, "the file in question");
    }

    fn open_by_name(
        &self,
        backend: &dyn Backend,
    ) -> Result<(Arc<dyn BackendFile>, Attr), BackendError> {
        match self.origin.has_name() {
            true => backend.open(&self.path),
            false => Err(Errno::NOENT.into()),
        }
    }

    /// The file as replica `id` has it open, at whatever version it is now; opens
    /// it where needed, as [`OpenFile::on`] does.
    ///
    /// # Errors
    /// As [`OpenFile::on`].
    pub fn held_or_on(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        match self.held_by(id) {
            Some(file) => Ok(file),
            None => self.on(id, backend),
        }
    }

    /// The file as replica `id` has it, at whatever version it is now; opens it
    /// where needed, and keeps it open. Blocks, as [`OpenFile::on`] does.
    ///
    /// # Errors
    /// [`BackendError::Version`] where another file has its name, or no name is left.
    pub fn as_it_is(
        &self,
        id: ReplicaId,
        backend: &dyn Backend,
    ) -> Result<Arc<dyn BackendFile>, BackendError> {
        let slot = &self.replicas[id];
        if let Some(file) = slot.held.lock().file() {
            return Ok(Arc::clone(file));
        }
        let _alone = slot.opening.lock();
        if let Some(file) = slot.held.lock().file() {
            return Ok(Arc::clone(file));
        }
        let _assumed = self.who().assume()?;
        if !self.origin.has_name() {
            return Err(BackendError::Version);
        }
        let (file, attr) = backend.open(&self.path)?;
        if attr.id.ino != self.version.ino || !self.origin.may_be(self.mode, &attr) {
            return Err(BackendError::Version);
        }
        *slot.held.lock() = Held::Older(Arc::clone(&file), Opened::At(attr.version()));
        Ok(file)
    }

    /// Its attributes on replica `id`, at whatever version it is now; opens it where
    /// needed. A mute descriptor stands for a file without a name.
    ///
    /// # Errors
    /// As [`OpenFile::on`].
    pub fn attr_on(&self, id: ReplicaId, backend: &dyn Backend) -> Result<Attr, BackendError> {
        let file = self.held_or_on(id, backend)?;
        let attr = file.attr();
        match self.last_attr().filter(|_| is_mute(&attr) && can_be_read(&*file)) {
            Some(last) => Ok(Attr { nlink: 0, ..last }),
            None => attr,
        }
    }
}
