//! Attributes of objects (`fattr3`, RFC 1813, section 2.6), and their handles.

use nfs3_types::nfs3::{ftype3, nfs_fh3};
use nfs3_types::xdr_codec::{Opaque, Pack};

use crate::nfs::rpc::{gid_inside, uid_inside};
use crate::nfs::xdr::{DecodeError, Decoder, Result};

/// The longest handle of NFSv3 (`NFS3_FHSIZE`), and of any version (`NFS4_FHSIZE`).
const MAX_HANDLE_3: usize = nfs3_types::nfs3::NFS3_FHSIZE;
const MAX_HANDLE: usize = 128;

const MAX_NANOSECONDS: u32 = 999_999_999;

/// The length of attributes as they are sent.
const ATTRIBUTES_LEN: usize = 84;

/// A server's name for an object. Only the server knows what its bytes mean; two of them may name
/// the same object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle {
    bytes: [u8; MAX_HANDLE],
    len: u8,
}

impl FileHandle {
    /// The handle of these bytes; `None` if they are more than 128.
    pub fn from_bytes(handle: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_HANDLE];
        bytes.get_mut(..handle.len())?.copy_from_slice(handle);
        Some(Self { bytes, len: handle.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    pub(crate) fn decode(bytes: &mut Decoder<'_>) -> Result<Self> {
        Self::decode_up_to(bytes, MAX_HANDLE_3)
    }

    /// The handle, of `max` bytes at most.
    pub(crate) fn decode_up_to(bytes: &mut Decoder<'_>, max: usize) -> Result<Self> {
        match bytes.opaque(max)? {
            [] => Err(DecodeError::Invalid("an empty handle")),
            handle => Self::from_bytes(handle).ok_or(DecodeError::Invalid("a long handle")),
        }
    }

    pub(crate) fn to_xdr(self) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned(self.as_bytes().to_vec()) }
    }
}

impl Pack for FileHandle {
    fn packed_size(&self) -> usize {
        Opaque::borrowed(self.as_bytes()).packed_size()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> nfs3_types::xdr_codec::Result<usize> {
        Opaque::borrowed(self.as_bytes()).pack(out)
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl Kind {
    /// The kind with this number, in NFSv3 and NFSv4.
    pub(crate) fn from_number(number: u32) -> Result<Self> {
        let is = |kind: ftype3| number == kind as u32;
        Ok(match () {
            () if is(ftype3::NF3REG) => Self::Regular,
            () if is(ftype3::NF3DIR) => Self::Directory,
            () if is(ftype3::NF3LNK) => Self::Symlink,
            () if is(ftype3::NF3FIFO) => Self::Fifo,
            () if is(ftype3::NF3SOCK) => Self::Socket,
            () if is(ftype3::NF3CHR) => Self::CharDevice,
            () if is(ftype3::NF3BLK) => Self::BlockDevice,
            () => return Err(DecodeError::Invalid("an unknown kind of object")),
        })
    }
}

/// A time of the server: seconds since 1970 (of NFSv3 until 2106), and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of object.
    pub kind: Kind,
    /// The permission bits, set-id and sticky bits included.
    pub permissions: u16,
    /// Number of hard links.
    pub links: u32,
    /// Owner, by the ids in this process's user namespace.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that it occupies.
    pub used: u64,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// The file system that it is on, as the server numbers them.
    pub file_system: u64,
    /// Its number in that file system.
    pub number: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the data.
    pub modified: Time,
    /// Last change of the data or the attributes.
    pub changed: Time,
}

impl Attributes {
    /// Attributes that a server may leave out, as most replies have them. Those of an unknown kind
    /// of object count as left out.
    pub(crate) fn decode_optional(bytes: &mut Decoder<'_>) -> Result<Option<Self>> {
        let all = bytes.optional(|bytes| bytes.fixed(ATTRIBUTES_LEN))?;
        Ok(all.and_then(|all| Self::decode(&mut Decoder::new(all)).ok()))
    }

    pub(crate) fn decode(bytes: &mut Decoder<'_>) -> Result<Self> {
        let all = bytes.fixed(ATTRIBUTES_LEN)?;
        let bytes = &mut Decoder::new(all);
        Ok(Self {
            kind: Kind::from_number(bytes.u32()?)?,
            permissions: (bytes.u32()? & 0o7777) as u16,
            links: bytes.u32()?,
            uid: uid_inside(bytes.u32()?),
            gid: gid_inside(bytes.u32()?),
            size: bytes.u64()?,
            used: bytes.u64()?,
            device: (bytes.u32()?, bytes.u32()?),
            file_system: bytes.u64()?,
            number: bytes.u64()?,
            accessed: decode_time(bytes)?,
            modified: decode_time(bytes)?,
            changed: decode_time(bytes)?,
        })
    }
}

fn decode_time(bytes: &mut Decoder<'_>) -> Result<Time> {
    // Some servers send more for times before 1970.
    Ok(Time { seconds: bytes.u32()?.into(), nanoseconds: bytes.u32()?.min(MAX_NANOSECONDS) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Attributes of a regular file, as a server sends them.
    pub(crate) fn encoded(size: u64) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut bytes: Vec<u8> = words(&[1, 0o10_0644, 1, 1000, 100]);
        [size, 4096].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes.extend::<Vec<u8>>(words(&[0, 0]));
        [7u64, 42].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes.extend::<Vec<u8>>(words(&[1, 2, 3, 4, 5, 999_999_999]));
        bytes
    }

    #[test]
    fn attributes_are_decoded() {
        let bytes = encoded(123);
        let attributes = Attributes::decode(&mut Decoder::new(&bytes)).unwrap();
        assert_eq!(bytes.len(), ATTRIBUTES_LEN);
        assert_eq!(attributes.kind, Kind::Regular);
        assert_eq!(attributes.permissions, 0o644, "the kind is not among the permissions");
        assert_eq!((attributes.size, attributes.file_system, attributes.number), (123, 7, 42));
        assert_eq!(attributes.changed, Time { seconds: 5, nanoseconds: 999_999_999 });
    }

    #[test]
    fn impossible_attributes_are_refused() {
        let with = |at: usize, word: u32| {
            let mut bytes = encoded(0);
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
            Attributes::decode(&mut Decoder::new(&bytes))
        };
        assert!(with(0, 0).is_err() && with(0, 8).is_err(), "no such kind");
        let changed = with(ATTRIBUTES_LEN - 4, u32::MAX).unwrap().changed;
        assert_eq!(changed.nanoseconds, MAX_NANOSECONDS);
        assert!(FileHandle::from_bytes(&[0; 129]).is_none());
        let long = [&[0, 0, 0, 68][..], &[7; 68]].concat();
        assert!(FileHandle::decode(&mut Decoder::new(&long)).is_err());
        assert!(FileHandle::decode_up_to(&mut Decoder::new(&long), 128).is_ok());
        assert!(FileHandle::decode(&mut Decoder::new(&[0; 4])).is_err());
    }
}
