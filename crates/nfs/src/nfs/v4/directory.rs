//! READDIR: names, with the kinds and sizes of their objects.

use super::Version4;
use super::attributes::{LISTED, Values};
use super::compound::{Operation, Operations, begin_result};
use crate::nfs::attributes::FileHandle;
use crate::nfs::error::NfsError;
use crate::nfs::procedures::{
    Caller, DirEntry, LISTED_NAME_BYTES, LISTING_BYTES, MAX_LISTING_REPLY, MAX_NAME, Page,
    Position, is_listable, next_position,
};
use crate::nfs::xdr::{Decoder, Result};

impl Version4 {
    pub(super) fn list_page(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> std::result::Result<Page, NfsError> {
        let operations = Operations::on(dir)
            .operation(Operation::ReadDir)
            .u64(position.cookie)
            .fixed(&position.verifier)
            .u32(LISTED_NAME_BYTES)
            .u32(LISTING_BYTES.min(self.max_read()))
            .bitmap(LISTED);
        self.ask_with(caller, &operations, MAX_LISTING_REPLY, |bytes| {
            begin_result(bytes, Operation::PutHandle)?;
            begin_result(bytes, Operation::ReadDir)?;
            Ok(decode_page(bytes, position)?)
        })
    }
}

/// Decodes a part of a listing.
pub(in crate::nfs) fn decode_page(bytes: &mut Decoder<'_>, from: Position) -> Result<Page> {
    let verifier = bytes.verifier()?;
    let mut entries = Vec::new();
    let mut last = None;
    while bytes.bool()? {
        let cookie = bytes.u64()?;
        last = Some(Position { cookie, verifier });
        let name = bytes.opaque(MAX_NAME)?;
        // What the server says of one object must not hide the others.
        let (number, object) = Values::decode(bytes)?.listed();
        if is_listable(name)? {
            entries.push(DirEntry { name: name.to_vec(), number, object });
        }
    }
    let is_end = bytes.bool()?;
    Ok(Page { entries, next: next_position(from, last, is_end)? })
}
