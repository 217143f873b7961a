//! The file of a journal: the magic and the head, then entries, each after its length.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::backend::DaemonCredentials;
use crate::fs::records::{FsSnapshot, JournalEntry, UnansweredRecord};

/// The first bytes of every journal of this format.
pub(super) const MAGIC: &[u8] = b"fanfs journal 4\n";

/// The contents of a journal.
pub(in crate::fs) struct JournalContents {
    /// The bytes before the entries, or the last [`JournalEntry::Head`].
    pub(in crate::fs) head: Vec<u8>,
    pub(in crate::fs) snapshot: FsSnapshot,
    pub(in crate::fs) unanswered: UnansweredRecord,
    /// The steps after the snapshot.
    pub(in crate::fs) steps: Vec<JournalEntry>,
}

/// Adds an entry to `bytes`, after its length.
pub(in crate::fs) fn encode_frame(entry: &JournalEntry, bytes: &mut Vec<u8>) -> io::Result<()> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    *bytes = postcard::to_extend(entry, std::mem::take(bytes)).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - start - 4).map_err(io::Error::other)?;
    bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

/// Takes the next entry, if it is complete.
fn next_frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let entry = after.get(..len)?;
    *rest = &after[len..];
    Some(entry)
}

/// Writes a whole journal in place of the one at `path`, which stays if this fails. Returns the
/// file and its length.
pub(super) fn write(
    _: &DaemonCredentials,
    path: &Path,
    head: &[u8],
    snapshot: Box<FsSnapshot>,
    unanswered: UnansweredRecord,
) -> io::Result<(File, u64)> {
    let next = path.with_extension("journal-next");
    let _ = std::fs::remove_file(&next);
    let write = || {
        let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&next)?;
        // The thread's umask may be that of a caller.
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(head);
        encode_frame(&JournalEntry::Snapshot(snapshot), &mut bytes)?;
        encode_frame(&JournalEntry::Unanswered(unanswered), &mut bytes)?;
        file.write_all(&bytes)?;
        std::fs::rename(&next, path)?;
        Ok((file, bytes.len() as u64))
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&next)))
}

/// Reads the journal of a killed daemon.
///
/// # Errors If there is no journal, or it is incomplete or has another format.
pub(in crate::fs) fn read(path: &Path) -> io::Result<JournalContents> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let invalid = |what: &str| {
        let what = format!("{}: {what}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    if bytes.is_empty() {
        return Err(invalid("the killed daemon could not write the journal completely"));
    }
    let nonsense = || invalid("the journal is corrupt");
    let mut rest =
        bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("the journal has another format"))?;
    let mut head = next_frame(&mut rest).ok_or_else(nonsense)?.to_vec();
    let first = next_frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(JournalEntry::Snapshot(snapshot)) = postcard::from_bytes(first) else {
        return Err(nonsense());
    };
    let second = next_frame(&mut rest).ok_or_else(nonsense)?;
    let Ok(JournalEntry::Unanswered(unanswered)) = postcard::from_bytes(second) else {
        return Err(nonsense());
    };
    let mut steps = Vec::new();
    // The last entry may be cut off: then the kernel was not answered about it.
    while let Some(bytes) = next_frame(&mut rest) {
        match postcard::from_bytes(bytes).map_err(|_| nonsense())? {
            JournalEntry::Snapshot(_) | JournalEntry::Unanswered(_) => return Err(nonsense()),
            JournalEntry::Head(now) => head = now,
            step => steps.push(step),
        }
    }
    Ok(JournalContents { head, snapshot: *snapshot, unanswered, steps })
}
