use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::file::MAGIC;
use super::*;
use crate::fs::journal_replay::recover_journal;
use crate::fs::records::HandleRecord;
use crate::volume::VolumeMode;

fn handles(path: &Path) -> io::Result<usize> {
    recover_journal(path, VolumeMode::Shared).map(|(_, snapshot)| snapshot.handle_count())
}

fn try_begin(path: &Path) -> io::Result<Journal> {
    let journal = Journal::default();
    let record = || journal.record_from(FsSnapshot::default(), UnansweredRecord::default());
    journal.start(path, b"head".to_vec(), record)?;
    Ok(journal)
}

fn begin(path: &Path) -> Journal {
    try_begin(path).unwrap()
}

impl Journal {
    fn queue_open(&self, number: u64) -> Unflushed {
        self.append(|| JournalEntry::Open(0, Box::new(HandleRecord::example(number))))
    }

    fn open(&self, number: u64) {
        self.flush(self.queue_open(number));
    }

    fn queue_empty_rewrite(&self) -> Unflushed {
        self.push(QueuedEntry::Rewrite(Box::default(), UnansweredRecord::default(), None))
    }

    fn rewrite(&self) {
        self.flush(self.queue_empty_rewrite());
    }
}

#[test]
fn a_flush_also_writes_entries_queued_by_others() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    let journal = begin(&path);
    let first = journal.queue_open(1);
    let second = journal.queue_open(2);
    assert_eq!(handles(&path).unwrap(), 0);
    journal.flush(first);
    assert_eq!(handles(&path).unwrap(), 2);
    let begun = std::fs::metadata(&path).unwrap().len();
    journal.flush(second);
    journal.flush(journal.all_queued());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), begun, "there was nothing to write");
}

/// A thread whose entry another thread writes returns once it is written.
#[test]
fn no_flush_returns_before_its_entry_is_in_the_file() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    let journal = begin(&path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (journal, path) = (&journal, &path);
            scope.spawn(move || {
                for number in 0..50 {
                    journal.open(100 * thread + number);
                    let (_, snapshot) = recover_journal(path, VolumeMode::Shared).unwrap();
                    let own = |handle: &&HandleRecord| handle.number / 100 == thread;
                    let own = snapshot.handles.iter().filter(own).count();
                    assert_eq!(own as u64, number + 1);
                }
            });
        }
    });
}

#[test]
fn entries_around_a_rewrite_go_to_the_right_file() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    let old = room.path().join("old");
    let journal = begin(&path);
    std::fs::hard_link(&path, &old).unwrap();
    let mut queued = journal.queue_open(1);
    for number in [2, 3] {
        queued = journal.queue_open(number);
    }
    assert_eq!((handles(&old).unwrap(), handles(&path).unwrap()), (0, 0));
    let _ = journal.queue_empty_rewrite();
    let last = journal.queue_open(4);
    journal.flush(queued);
    journal.flush(last);
    assert_eq!((handles(&old).unwrap(), handles(&path).unwrap()), (3, 1));
}

/// The snapshot of a rewrite is a copy of all tables.
#[test]
fn a_due_rewrite_is_queued_once() {
    let room = tempfile::tempdir().unwrap();
    let journal = begin(&room.path().join("j"));
    for _ in 0..2 {
        journal.file.lock().rewrite_at_len = 0;
        journal.open(1);
        let claim = journal.claim_rewrite().expect("it is due");
        journal.open(2);
        assert!(journal.claim_rewrite().is_none(), "it is being queued");
        let queued = journal.queue_rewrite(claim, FsSnapshot::default(), Default::default());
        assert!(journal.claim_rewrite().is_none(), "it is queued");
        journal.flush(queued);
        assert!(journal.claim_rewrite().is_none(), "it was done");
    }
}

/// Without this the journal would grow forever. If it were due at once, each call would panic.
#[test]
fn a_rewrite_that_panics_is_due_again_at_double_length() {
    let room = tempfile::tempdir().unwrap();
    let journal = begin(&room.path().join("j"));
    journal.file.lock().rewrite_at_len = 0;
    journal.open(1);
    let snapshot = || {
        let _claim = journal.claim_rewrite().expect("it is due");
        panic!("a test");
    };
    catch_unwind(AssertUnwindSafe(snapshot)).unwrap_err();
    assert!(journal.claim_rewrite().is_none());
    journal.open(2);
    let len = journal.file.lock().len;
    let claim = (3..100).find_map(|number| {
        journal.open(number);
        journal.claim_rewrite()
    });
    assert!(claim.is_some());
    assert!(journal.file.lock().len >= 2 * len);
}

/// The snapshot is a copy of all tables, under all their locks.
#[test]
fn an_ended_journal_requests_at_most_one_snapshot() {
    for seals in [true, false] {
        let room = tempfile::tempdir().unwrap();
        let journal = begin(&room.path().join("j"));
        journal.file.lock().rewrite_at_len = 0;
        journal.open(1);
        if seals {
            journal.seal();
        } else {
            journal.invalidate(&mut journal.file.lock(), io::Error::other("a test"));
        }
        for _ in 0..2 {
            if let Some(claim) = journal.claim_rewrite() {
                let _ = journal.queue_rewrite(claim, FsSnapshot::default(), Default::default());
            }
        }
        assert!(journal.claim_rewrite().is_none());
    }
}

#[test]
fn a_failed_rewrite_leaves_the_journal_unchanged() {
    let room = tempfile::tempdir().unwrap();
    let (dir, kept) = (room.path().join("run"), room.path().join("kept"));
    std::fs::create_dir(&dir).unwrap();
    let journal = begin(&dir.join("j"));
    std::fs::hard_link(dir.join("j"), &kept).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    journal.open(1);
    journal.rewrite();
    journal.open(2);
    assert_eq!(handles(&kept).unwrap(), 2);
    let _ = journal.queue_open(3);
    let _ = journal.queue_empty_rewrite();
    journal.open(4);
    assert_eq!(handles(&kept).unwrap(), 4);
}

#[test]
fn the_last_head_applies_and_survives_a_rewrite() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    let head = || recover_journal(&path, VolumeMode::Shared).unwrap().0;
    let journal = begin(&path);
    let begun = std::fs::metadata(&path).unwrap().len();
    journal.update_head(|| Ok(b"head".to_vec()));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), begun, "it has not changed");
    journal.update_head(|| Ok(b"second".to_vec()));
    journal.open(1);
    journal.update_head(|| Ok(b"third".to_vec()));
    assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 1));
    journal.rewrite();
    assert_eq!((head(), handles(&path).unwrap()), (b"third".to_vec(), 0));
}

#[test]
fn a_journal_with_a_failed_head_update_is_refused() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    begin(&path).update_head(|| Err(io::ErrorKind::Other.into()));
    assert!(handles(&path).is_err());
}

/// A file that cannot grow, as on a file system that is full.
#[test]
fn a_journal_with_a_missing_entry_is_refused() {
    let memory = File::from(memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap());
    let seen = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let room = tempfile::tempdir().unwrap();
    let journal = begin(&room.path().join("j"));
    std::fs::write(&seen, std::fs::read(room.path().join("j")).unwrap()).unwrap();
    journal.file.lock().file = Some(OpenOptions::new().append(true).open(&seen).unwrap());
    journal.open(1);
    assert_eq!(handles(Path::new(&seen)).unwrap(), 1);
    fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
    let _ = journal.queue_open(2);
    journal.open(3);
    assert_eq!(handles(Path::new(&seen)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(!journal.is_recording());
    // It is as another daemon's file there: this journal is elsewhere.
    let before = std::fs::read(room.path().join("j")).unwrap();
    journal.rewrite();
    assert_eq!(
        std::fs::read(room.path().join("j")).unwrap(),
        before,
        "nothing is recorded any more"
    );
}

#[test]
fn a_journal_of_a_panicked_writer_is_refused() {
    let room = tempfile::tempdir().unwrap();
    let (path, kept) = (room.path().join("j"), room.path().join("kept"));
    let journal = begin(&path);
    std::fs::hard_link(&path, &kept).unwrap();
    let _ = journal.push(QueuedEntry::Panic);
    journal.open(1);
    assert!(handles(&kept).is_err() && !path.exists() && !journal.is_recording());

    // The same for a journal that replaces an older one.
    begin(&path).open(1);
    let journal = Journal::default();
    let record = || journal.push(QueuedEntry::Panic);
    assert!(journal.start(&path, b"head".to_vec(), record).is_err());
    assert!(handles(&path).is_err());
}

#[test]
fn a_daemon_keeps_its_successors_journal() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    let before = begin(&path);
    before.open(1);
    let late = [before.queue_open(2), before.queue_empty_rewrite()];
    before.seal();
    let next = begin(&path);
    next.open(2);
    next.open(3);
    late.into_iter().for_each(|entry| before.flush(entry));
    before.rewrite();
    before.flush(before.append(|| JournalEntry::Close(2)));
    before.update_head(|| Ok(b"another".to_vec()));
    before.update_head(|| Err(io::ErrorKind::Other.into()));
    assert_eq!(handles(&path).unwrap(), 2);
}

#[test]
fn a_failed_start_invalidates_the_old_journal() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    drop(begin(&path));
    assert_eq!(handles(&path).unwrap(), 0);
    // A directory blocks the name of the new file.
    std::fs::create_dir_all(path.with_extension("journal-next").join("sub")).unwrap();
    assert!(try_begin(&path).is_err() && handles(&path).is_err());
}

#[test]
fn a_journal_of_another_format_is_refused() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("j");
    drop(begin(&path));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[MAGIC.len()..]).unwrap();
    assert!(handles(&path).unwrap_err().to_string().contains("another form"));
    // A cut entry was not answered, but an incomplete beginning makes the journal invalid.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(handles(&path).is_err());
}
