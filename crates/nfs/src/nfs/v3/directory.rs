//! Listings: names, with the handles and attributes of their objects (READDIRPLUS), or without where
//! the server does not offer that (READDIR).

use std::sync::atomic::Ordering;

use nfs3_types::nfs3::{NFS_PROGRAM, READDIR3args, READDIRPLUS3args, cookieverf3};

use super::{Call, Version3};
use crate::nfs::attributes::{Attributes, FileHandle};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::{
    Caller, DirEntry, LISTED_NAME_BYTES, LISTING_BYTES, ListedObject, MAX_LISTING_REPLY, MAX_NAME,
    Page, Position, is_listable, next_position,
};
use crate::nfs::rpc::{Refusal, RpcError};
use crate::nfs::xdr::{Decoder, Result};

impl Version3 {
    pub(super) fn list_page(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> std::result::Result<Page, NfsError> {
        // A position is of one of the two kinds of listings.
        let is_begin = position == Position::START;
        if self.lists_names_only.load(Ordering::Relaxed) {
            return self.list_names(caller, dir, position);
        }
        match self.list_objects(caller, dir, position) {
            Err(
                NfsError::Status(Status::NOT_SUPPORTED)
                | NfsError::Rpc(RpcError::Refused(Refusal::Procedure)),
            ) if is_begin => {
                self.lists_names_only.store(true, Ordering::Relaxed);
                self.list_names(caller, dir, position)
            }
            page => page,
        }
    }

    fn list_names(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> std::result::Result<Page, NfsError> {
        let arguments = READDIR3args {
            dir: dir.to_xdr(),
            cookie: position.cookie,
            cookieverf: cookieverf3(position.verifier),
            count: LISTED_NAME_BYTES,
        };
        let call = Call { number: NFS_PROGRAM::NFSPROC3_READDIR, max_reply: MAX_LISTING_REPLY };
        self.ask_with(caller, &call, &arguments, |bytes| decode_listing(bytes, position, false))
    }

    fn list_objects(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> std::result::Result<Page, NfsError> {
        let arguments = READDIRPLUS3args {
            dir: dir.to_xdr(),
            cookie: position.cookie,
            cookieverf: cookieverf3(position.verifier),
            dircount: LISTED_NAME_BYTES,
            maxcount: LISTING_BYTES,
        };
        let call = Call { number: NFS_PROGRAM::NFSPROC3_READDIRPLUS, max_reply: MAX_LISTING_REPLY };
        self.ask_with(caller, &call, &arguments, |bytes| decode_listing(bytes, position, true))
    }
}

/// Decodes a part of a listing, with the objects of the names or without.
pub(in crate::nfs) fn decode_listing(
    bytes: &mut Decoder<'_>,
    from: Position,
    has_objects: bool,
) -> Result<Page> {
    match has_objects {
        true => decode_page(bytes, from, decode_object),
        false => decode_page(bytes, from, |_| Ok(None)),
    }
}

/// The object of an entry, if the server sent its attributes.
fn decode_object(bytes: &mut Decoder<'_>) -> Result<Option<ListedObject>> {
    let attributes = Attributes::decode_optional(bytes)?;
    bytes.optional(FileHandle::decode)?;
    Ok(attributes.map(|Attributes { kind, size, .. }| ListedObject { kind, size }))
}

/// Decodes a part of a listing; `object` takes what follows each entry's cookie.
fn decode_page(
    bytes: &mut Decoder<'_>,
    from: Position,
    object: impl Fn(&mut Decoder<'_>) -> Result<Option<ListedObject>>,
) -> Result<Page> {
    Attributes::decode_optional(bytes)?;
    let verifier = bytes.verifier()?;
    let mut entries = Vec::new();
    let mut last = None;
    while bytes.bool()? {
        let number = bytes.u64()?;
        let name = bytes.opaque(MAX_NAME)?;
        last = Some(bytes.u64()?);
        let object = object(bytes)?;
        if is_listable(name)? {
            entries.push(DirEntry { name: name.to_vec(), number, object });
        }
    }
    let next = last.map(|cookie| Position { cookie, verifier });
    let is_end = bytes.bool()?;
    Ok(Page { entries, next: next_position(from, next, is_end)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs::xdr::DecodeError;

    struct Encoder(Vec<u8>);

    impl Encoder {
        fn new() -> Self {
            // No attributes of the directory, and a verifier.
            Self([&[0; 4][..], &[9; 8]].concat())
        }

        fn entry(mut self, name: &[u8], cookie: u64) -> Self {
            self.0.extend(1u32.to_be_bytes());
            self.0.extend(77u64.to_be_bytes());
            self.0.extend((name.len() as u32).to_be_bytes());
            self.0.extend(name);
            self.0.extend(vec![0; name.len().next_multiple_of(4) - name.len()]);
            self.0.extend(cookie.to_be_bytes());
            // Neither attributes nor a handle.
            self.0.extend([0; 8]);
            self
        }

        fn decode(mut self, is_end: bool, from: Position) -> Result<Page> {
            self.0.extend(0u32.to_be_bytes());
            self.0.extend(u32::from(is_end).to_be_bytes());
            decode_page(&mut Decoder::new(&self.0), from, decode_object)
        }
    }

    #[test]
    fn names_of_the_directory_itself_are_left_out() {
        let all = Encoder::new().entry(b".", 1).entry(b"..", 2).entry(b"...", 3);
        let page = all.decode(false, Position::START).unwrap();
        assert_eq!(page.entries.len(), 1);
        assert_eq!(page.entries[0].name, b"...");
        assert_eq!(page.next, Some(Position { cookie: 3, verifier: [9; 8] }));
        assert_eq!(Encoder::new().decode(true, Position::START).unwrap().next, None);
    }

    #[test]
    fn impossible_names_are_refused() {
        for name in [&b""[..], b"a/b", b"/", b"a\0", &[b'x'; 1025]] {
            let page = Encoder::new().entry(name, 1).decode(true, Position::START);
            assert!(matches!(page, Err(DecodeError::Invalid(_))), "{name:?}");
        }
    }

    #[test]
    fn a_listing_that_does_not_advance_is_refused() {
        let here = Position { cookie: 5, verifier: [0; 8] };
        assert!(Encoder::new().decode(false, here).is_err(), "no names, and not the end");
        assert!(Encoder::new().entry(b"a", 5).decode(false, here).is_err());
        assert!(Encoder::new().entry(b"a", 5).decode(true, here).is_ok());
    }
}
