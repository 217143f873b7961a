//! What is open written down, as another daemon goes on with it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};

use super::{Counted, DirHandle, FileHandle, Handle, Handles, Kept, OpenInode};
use crate::backend::{Attr, DirEntry, Identity, Known, OpenedLater, Written};
use crate::fs::carried::{Carried, Inheritance, Sheet, path_of, written};
use crate::fs::inode::Inodes;
use crate::fs::journal::{Entry, Journal};
use crate::fs::listing::Packed;
use crate::fs::shelf::Shelf;
use crate::fs::written::Writer;
use crate::fs::{Caching, Errno, HandleId, Ino, Listing};
use crate::read::{OpenFile, Reader};
use crate::volume::{FileVersion, Mode};

/// Tells a directory's listing from another: its names, in their order.
pub(in crate::fs) type Digest = [u8; 16];

pub(super) fn digest<'a>(names: impl Iterator<Item = &'a OsStr>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes());
        // No name contains it.
        hasher.update(&[0]);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

fn digest_of(listing: &Listing) -> Digest {
    digest(listing.from(0).map(|entry| entry.name))
}

/// An open file, which may have several handles.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct FileRecord {
    ino: u64,
    at: At,
    held: Vec<Held>,
    /// The attributes that were shown last.
    attr: Option<Attr>,
}

/// A version of a file, and how it is opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct At {
    path: OsString,
    version: FileVersion,
    who: Written,
}

/// What a replica has open of it.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    replica: u16,
    /// Whether its open showed this version.
    shows_it: bool,
    file: u32,
}

/// A handle.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct Opened {
    pub(in crate::fs) handle: u64,
    ino: u64,
    who: Written,
    what: What,
}

#[derive(Debug, Serialize, Deserialize)]
enum What {
    File { at: At, direct: bool, current: bool, writer: Option<WriterRecord> },
    Directory { begun: bool, listing: Option<(u64, Vec<DirEntry>)>, lost: Option<Digest> },
}

#[derive(Debug, Serialize, Deserialize)]
struct WriterRecord {
    readable: bool,
    /// Of [`crate::backend::SyncMode`].
    sync: u8,
    who: Written,
    trouble: Option<i32>,
    /// Whether it has not been opened since a daemon was killed: so it is not sent, and
    /// the next daemon opens it when it is first used.
    is_deferred: bool,
    file: Option<u32>,
}

impl Opened {
    /// Whether it may write.
    pub(in crate::fs) fn writes(&self) -> bool {
        matches!(self.what, What::File { writer: Some(_), .. })
    }

    pub(in crate::fs) fn id(&self) -> HandleId {
        HandleId { number: self.handle, ino: Ino(self.ino) }
    }

    /// One of a directory.
    #[cfg(test)]
    pub(in crate::fs) fn example(handle: u64) -> Self {
        let what = What::Directory { begun: false, listing: None, lost: None };
        Self { handle, ino: 2, who: None, what }
    }

    /// Nothing was sent along.
    pub(in crate::fs) fn was_lost(&mut self) {
        match &mut self.what {
            What::File { current, writer, .. } => {
                *current = false;
                if let Some(writer) = writer {
                    writer.file = None;
                }
            }
            What::Directory { listing, .. } => *listing = None,
        }
    }

    /// A directory was listed.
    pub(in crate::fs) fn was_listed(&mut self, digest: Digest) {
        if let What::Directory { lost, begun, .. } = &mut self.what {
            (*lost, *begun) = (Some(digest), true);
        }
    }
}

impl At {
    fn of(file: &OpenFile) -> Self {
        let (path, version) = (written(file.path()), file.version());
        Self { path, version, who: file.who().written() }
    }
}

impl WriterRecord {
    fn of(writer: &Writer) -> Self {
        Self {
            readable: writer.readable,
            sync: writer.sync.number(),
            who: writer.who.written(),
            trouble: writer.peek().map(Errno::raw),
            is_deferred: writer.file.is_deferred(),
            file: None,
        }
    }
}

impl Handle {
    /// Writes it down: with its listing, or with what stands for that.
    fn record(&self, handle: u64, inodes: Option<&Inodes>, with_listing: bool) -> Opened {
        match self {
            Self::File(file) => Opened {
                handle,
                ino: file.ino.0,
                who: file.who.written(),
                what: What::File {
                    at: At::of(&file.inode.current()),
                    direct: file.caching == Caching::Direct,
                    current: inodes
                        .and_then(|inodes| inodes.cached(file.ino))
                        .is_some_and(|cached| cached.is(&file.cached)),
                    writer: file.writer.as_deref().map(WriterRecord::of),
                },
            },
            Self::Directory(dir) => {
                let kept = dir.kept.lock();
                // A window is collected again by whoever goes on.
                let whole = kept.listing.as_ref().filter(|listing| listing.packed.is_whole());
                let listing = whole.filter(|_| with_listing);
                let listing = listing.map(|l| (l.parent.0, l.packed.entries()));
                let lost = match whole {
                    Some(whole) if !with_listing => Some(digest_of(whole)),
                    Some(_) => None,
                    None => kept.lost,
                };
                Opened {
                    handle,
                    ino: dir.ino.0,
                    who: dir.who.written(),
                    what: What::Directory { begun: kept.begun, listing, lost },
                }
            }
        }
    }
}

impl Handles {
    /// Writes down what is opened and closed from now on.
    pub(in crate::fs) fn write_down(&self, journal: Arc<Journal>) {
        self.unsettled.write_down(Arc::clone(&journal));
        let _ = self.journal.set(journal);
    }

    /// Where that is written down, if it is.
    pub(in crate::fs) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Nothing is opened or closed while this lives.
    pub(in crate::fs) fn hold_still(&self) -> MutexGuard<'_, ()> {
        self.still.lock()
    }

    pub(super) fn opened(&self, id: u64, handle: &Handle, request: u64) {
        if let Some(journal) = self.journal.get() {
            let record = Box::new(handle.record(id, None, false));
            journal.enter(request, record.id().into(), &Entry::Open(request, record));
        }
    }

    /// A directory was listed.
    pub(in crate::fs) fn listed(&self, handle: u64, listing: &Listing) {
        if let Some(journal) = self.journal.get()
            && listing.packed.is_whole()
        {
            journal.append(&Entry::Listed(handle, digest_of(listing)));
        }
    }

    pub(super) fn closed(&self, id: u64) {
        if let Some(journal) = self.journal.get() {
            journal.append(&Entry::Close(id));
        }
    }

    /// Whether a file is being changed, or may be.
    pub(in crate::fs) fn is_changing(&self) -> bool {
        !self.being_changed().is_empty()
    }

    /// The files that are being changed, or may be.
    fn being_changed(&self) -> Vec<u64> {
        let gates = self.gates.lock();
        let live = gates.iter().filter_map(|(ino, gate)| Some((ino, gate.upgrade()?)));
        live.filter(|(_, gate)| gate.is_busy()).map(|(ino, _)| ino.0).collect()
    }

    /// The files that this daemon or an earlier one may change after the next one has
    /// taken over.
    fn unsettled(&self) -> Vec<u64> {
        let mut files = self.unsettled.files().lock().all();
        files.extend(self.being_changed());
        files
    }

    /// Writes down what is open.
    pub(in crate::fs) fn carry(&self, inodes: &Inodes, sheet: &mut Sheet) {
        let open = self.open.lock();
        for (id, handle) in open.iter() {
            let mut record = handle.record(id, Some(inodes), sheet.is_sent);
            if let (Handle::File(file), What::File { writer: Some(record), .. }) =
                (handle, &mut record.what)
                && let Some(writer) = &file.writer
            {
                record.file = sheet.send(&writer.file);
            }
            sheet.carried.opened.push(record);
        }
        for (ino, counted) in self.inodes.lock().iter() {
            let current = counted.inode.current();
            let held = current.held().into_iter().filter_map(|(replica, shows_it, file)| {
                let file = sheet.send(&file)?;
                Some(Held { replica: replica.index() as u16, shows_it, file })
            });
            let held = held.collect();
            let (at, attr) = (At::of(&current), current.last_attr());
            sheet.carried.files.push(FileRecord { ino: ino.0, at, held, attr });
        }
        sheet.carried.last = self.numbers.last();
        if sheet.is_sent {
            sheet.carried.unsettled = self.unsettled();
        }
    }

    /// Whether the kernel reads any file by itself.
    pub(in crate::fs) fn lends(&self) -> bool {
        self.inodes.lock().values().any(|counted| counted.inode.backing().is_some())
    }

    /// Goes on with what was written down.
    ///
    /// # Errors
    /// What cannot be gone on with.
    pub(in crate::fs) fn restore(
        &self,
        inodes: &mut Inodes,
        (reader, shelf): (&Reader, &Shelf),
        mode: Mode,
        carried: &mut Carried,
        heir: &mut Inheritance<'_>,
    ) -> Result<(), String> {
        let issued = carried.opened.iter().map(|opened| opened.handle);
        self.numbers.differ_from(issued.chain([carried.last]));
        let mut records: HashMap<u64, FileRecord> =
            carried.files.drain(..).map(|file| (file.ino, file)).collect();
        for Opened { handle, ino, who, what } in carried.opened.drain(..) {
            let (ino, who) = (Ino(ino), Identity::read(who));
            match what {
                What::Directory { begun, listing, lost } => {
                    let (listing, lost) = match listing {
                        Some((parent, entries)) => {
                            let packed = Packed::again(shelf, &entries);
                            let listing =
                                packed.map(|packed| Listing { ino, parent: Ino(parent), packed });
                            let names = || entries.iter().map(|entry| &*entry.name);
                            let lost = listing.is_none().then(|| digest(names()));
                            (listing.map(Arc::new), lost)
                        }
                        None => (None, lost),
                    };
                    let kept = Kept { listing, used: None, begun, lost };
                    let kept = parking_lot::Mutex::new(kept);
                    let dir = Handle::Directory(Arc::new(DirHandle { ino, who, kept }));
                    self.open.lock().insert(handle, dir);
                }
                What::File { at, direct, current, writer } => {
                    let writer = writer.map(|record| again(record, &at, inodes, ino, heir));
                    let writer = writer.transpose()?;
                    let record = records.remove(&ino.0);
                    let caching = if direct { Caching::Direct } else { Caching::Kernel };
                    let inode = self.reopen(inodes, reader, mode, ino, (at, record), caching, heir);
                    if let Some(writer) = &writer {
                        inode.begin_writing(Arc::clone(writer));
                    }
                    let cached = inodes.cached(ino).filter(|_| current).cloned();
                    let file = FileHandle {
                        ino,
                        inode,
                        cached: cached.unwrap_or_default(),
                        caching,
                        blocks: Arc::default(),
                        read: Arc::new(reader.handle()),
                        who,
                        closing: Arc::default(),
                        writer,
                    };
                    self.open.lock().insert(handle, Handle::File(file));
                }
            }
        }
        Ok(())
    }

    /// The open file of one more handle.
    #[allow(clippy::too_many_arguments)]
    fn reopen(
        &self,
        known: &Inodes,
        reader: &Reader,
        mode: Mode,
        ino: Ino,
        (at, record): (At, Option<FileRecord>),
        caching: Caching,
        heir: &mut Inheritance<'_>,
    ) -> Arc<OpenInode> {
        let mut inodes = self.inodes.lock();
        let counted = inodes.entry(ino).or_insert_with(|| {
            let (at, held, attr) = match record {
                Some(record) => (record.at, record.held, record.attr),
                None => (at, Vec::new(), None),
            };
            let is_named = known.path(ino).is_some();
            let path = path_of(known, ino, at.path);
            let file = reader.file(path, at.version, mode, Identity::read(at.who));
            let file = file.of(known.generation(ino));
            let file = if is_named { file } else { file.nameless() };
            attr.iter().for_each(|attr| file.has_shown(attr));
            for Held { replica, shows_it, file: index } in held {
                let Some(replica) = heir.replica(replica) else { continue };
                match heir.file(replica, Some(index)) {
                    Some(open) if shows_it => file.opened_by(replica, open),
                    Some(open) => file.holds(replica, open),
                    None => {}
                }
            }
            let inode = Arc::new(OpenInode::new(file, None, self.gate(ino)));
            Counted { inode, handles: 0, direct: 0 }
        });
        counted.count(caching, 1);
        Arc::clone(&counted.inode)
    }
}

/// A handle that may write goes on doing so; one whose descriptor was lost opens the
/// file again when it is next used, if it is still that file.
fn again(
    record: WriterRecord,
    at: &At,
    inodes: &Inodes,
    ino: Ino,
    heir: &mut Inheritance<'_>,
) -> Result<Arc<Writer>, String> {
    let Some(write) = heir.write else {
        return Err("files are open for writing, and nothing may be written".to_owned());
    };
    let sync = crate::backend::SyncMode::of(record.sync);
    let file = match heir.file(write.replica, record.file) {
        Some(file) => file,
        None if heir.lost || record.is_deferred => {
            // Another file may be where it was, with its number.
            let path = inodes.path(ino);
            let known = Known { ino: at.version.ino, generation: inodes.generation(ino) };
            let backend = heir.caller.replica(write.replica).backend();
            Arc::new(OpenedLater::new(backend, path, known, record.readable, sync))
        }
        None => return Err("a file that is open for writing could not be sent".to_owned()),
    };
    let writer = Writer::new(file, record.readable, sync, Identity::read(record.who));
    if let Some(errno) = record.trouble {
        writer.fails(Errno::from_raw(errno));
    }
    Ok(Arc::new(writer))
}
