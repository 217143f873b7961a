//! Attributes as NFSv4 sends them (`fattr4`, RFC 8881, section 5): a bitmap, and the values of its
//! bits in order. A server leaves out attributes that it does not support.

use super::owners;
use crate::nfs::attributes::{Attributes, Kind, Time};
use crate::nfs::procedures::{Limits, ListedObject, Usage};
use crate::nfs::xdr::{DecodeError, Decoder, Result};

/// The longest values that are taken: a name of a user and of a group among them.
const MAX_VALUES: usize = 4096;

/// The longest name of a user or a group.
const MAX_OWNER: usize = 1024;

/// The words of a bitmap that are taken. Attributes in later ones are not asked for.
const MAX_WORDS: u32 = 8;

const MAX_NANOSECONDS: u32 = 999_999_999;

/// The modes of objects of a server that has no modes. ACCESS decides.
const DEFAULT_DIR_MODE: u16 = 0o555;
const DEFAULT_FILE_MODE: u16 = 0o444;

/// The bits of attributes.
mod bit {
    pub(super) const TYPE: u32 = 1;
    pub(super) const SIZE: u32 = 4;
    pub(super) const FSID: u32 = 8;
    pub(super) const LEASE_TIME: u32 = 10;
    pub(super) const RDATTR_ERROR: u32 = 11;
    pub(super) const FILEID: u32 = 20;
    pub(super) const FILES_AVAIL: u32 = 21;
    pub(super) const FILES_FREE: u32 = 22;
    pub(super) const FILES_TOTAL: u32 = 23;
    pub(super) const MAXFILESIZE: u32 = 27;
    pub(super) const MAXNAME: u32 = 29;
    pub(super) const MAXREAD: u32 = 30;
    pub(super) const MODE: u32 = 33;
    pub(super) const NUMLINKS: u32 = 35;
    pub(super) const OWNER: u32 = 36;
    pub(super) const OWNER_GROUP: u32 = 37;
    pub(super) const RAWDEV: u32 = 41;
    pub(super) const SPACE_AVAIL: u32 = 42;
    pub(super) const SPACE_FREE: u32 = 43;
    pub(super) const SPACE_TOTAL: u32 = 44;
    pub(super) const SPACE_USED: u32 = 45;
    pub(super) const TIME_ACCESS: u32 = 47;
    pub(super) const TIME_METADATA: u32 = 52;
    pub(super) const TIME_MODIFY: u32 = 53;
}

const fn bitmap(bits: &[u32]) -> [u32; 2] {
    let mut words = [0; 2];
    let mut index = 0;
    while index < bits.len() {
        words[(bits[index] / 32) as usize] |= 1 << (bits[index] % 32);
        index += 1;
    }
    words
}

/// The bits for [`Values::object`].
pub(super) const OBJECT: [u32; 2] = bitmap(&[
    bit::TYPE,
    bit::SIZE,
    bit::FSID,
    bit::FILEID,
    bit::MODE,
    bit::NUMLINKS,
    bit::OWNER,
    bit::OWNER_GROUP,
    bit::RAWDEV,
    bit::SPACE_USED,
    bit::TIME_ACCESS,
    bit::TIME_METADATA,
    bit::TIME_MODIFY,
]);

/// The bits for [`Values::listed`]. Without RDATTR_ERROR, one entry's failure is that of all.
pub(super) const LISTED: [u32; 2] = bitmap(&[bit::TYPE, bit::SIZE, bit::RDATTR_ERROR, bit::FILEID]);

/// The bits for [`Values::usage`].
pub(super) const USAGE: [u32; 2] = bitmap(&[
    bit::FILES_AVAIL,
    bit::FILES_FREE,
    bit::FILES_TOTAL,
    bit::SPACE_AVAIL,
    bit::SPACE_FREE,
    bit::SPACE_TOTAL,
]);

/// The bits for [`Values::limits`].
pub(super) const LIMITS: [u32; 2] = bitmap(&[bit::MAXFILESIZE, bit::MAXREAD]);

/// The bits for [`Values::max_name`].
pub(super) const MAX_NAME: [u32; 2] = bitmap(&[bit::MAXNAME]);

/// The bits for [`Values::lease`].
pub(super) const LEASE: [u32; 2] = bitmap(&[bit::LEASE_TIME]);

/// The values that a server has sent.
#[derive(Default)]
pub(super) struct Values<'a> {
    kind: Option<Kind>,
    size: Option<u64>,
    file_system: Option<(u64, u64)>,
    lease: Option<u32>,
    file_id: Option<u64>,
    files_available: Option<u64>,
    files_free: Option<u64>,
    files_total: Option<u64>,
    max_file: Option<u64>,
    max_name: Option<u32>,
    max_read: Option<u64>,
    mode: Option<u32>,
    links: Option<u32>,
    owner: Option<&'a [u8]>,
    group: Option<&'a [u8]>,
    device: Option<(u32, u32)>,
    space_available: Option<u64>,
    space_free: Option<u64>,
    space_total: Option<u64>,
    space_used: Option<u64>,
    accessed: Option<Time>,
    changed: Option<Time>,
    modified: Option<Time>,
}

impl<'a> Values<'a> {
    pub(super) fn decode(bytes: &mut Decoder<'a>) -> Result<Self> {
        let words = bytes.u32()?;
        if words > MAX_WORDS {
            return Err(DecodeError::Invalid("a bitmap of attributes that is too long"));
        }
        let words = (0..words).map(|_| bytes.u32()).collect::<Result<Vec<u32>>>()?;
        let mut source = Decoder::new(bytes.opaque(MAX_VALUES)?);
        let mut values = Self::default();
        for (index, word) in words.into_iter().enumerate() {
            for bit in (0..32).filter(|bit| word & (1 << bit) != 0) {
                values.take(index as u32 * 32 + bit, &mut source)?;
            }
        }
        Ok(values)
    }

    fn take(&mut self, bit: u32, from: &mut Decoder<'a>) -> Result<()> {
        match bit {
            // A stream's kind, for example, is none that an object can have.
            bit::TYPE => self.kind = Kind::from_number(from.u32()?).ok(),
            bit::SIZE => self.size = Some(from.u64()?),
            bit::FSID => self.file_system = Some((from.u64()?, from.u64()?)),
            bit::LEASE_TIME => self.lease = Some(from.u32()?),
            bit::RDATTR_ERROR => drop(from.u32()?),
            bit::FILEID => self.file_id = Some(from.u64()?),
            bit::FILES_AVAIL => self.files_available = Some(from.u64()?),
            bit::FILES_FREE => self.files_free = Some(from.u64()?),
            bit::FILES_TOTAL => self.files_total = Some(from.u64()?),
            bit::MAXFILESIZE => self.max_file = Some(from.u64()?),
            bit::MAXNAME => self.max_name = Some(from.u32()?),
            bit::MAXREAD => self.max_read = Some(from.u64()?),
            bit::MODE => self.mode = Some(from.u32()?),
            bit::NUMLINKS => self.links = Some(from.u32()?),
            bit::OWNER => self.owner = Some(from.opaque(MAX_OWNER)?),
            bit::OWNER_GROUP => self.group = Some(from.opaque(MAX_OWNER)?),
            bit::RAWDEV => self.device = Some((from.u32()?, from.u32()?)),
            bit::SPACE_AVAIL => self.space_available = Some(from.u64()?),
            bit::SPACE_FREE => self.space_free = Some(from.u64()?),
            bit::SPACE_TOTAL => self.space_total = Some(from.u64()?),
            bit::SPACE_USED => self.space_used = Some(from.u64()?),
            bit::TIME_ACCESS => self.accessed = Some(decode_time(from)?),
            bit::TIME_METADATA => self.changed = Some(decode_time(from)?),
            bit::TIME_MODIFY => self.modified = Some(decode_time(from)?),
            _ => return Err(DecodeError::Invalid("an attribute that was not asked for")),
        }
        Ok(())
    }

    /// All attributes of an object. It may look up its owner's name, and block.
    pub(super) fn object(&self) -> Result<Attributes> {
        let kind = self.kind.ok_or(DecodeError::Invalid("an object without a kind"))?;
        let size = self.size.ok_or(DecodeError::Invalid("an object without a size"))?;
        let times = self.modified.zip(self.changed);
        let (modified, changed) = times.ok_or(DecodeError::Invalid("an object without times"))?;
        let number = self.file_id.ok_or(DecodeError::Invalid("an object without a number"))?;
        let default_mode = match kind {
            Kind::Directory => DEFAULT_DIR_MODE,
            _ => DEFAULT_FILE_MODE,
        };
        Ok(Attributes {
            kind,
            permissions: self.mode.map_or(default_mode, |mode| (mode & 0o7777) as u16),
            links: self.links.unwrap_or(1),
            uid: owners::uid(self.owner.unwrap_or_default()),
            gid: owners::gid(self.group.unwrap_or_default()),
            size,
            used: self.space_used.unwrap_or(size),
            device: self.device.unwrap_or_default(),
            file_system: self.file_system_number(),
            number,
            accessed: self.accessed.unwrap_or(modified),
            modified,
            changed,
        })
    }

    /// The two halves in one number: servers that use only one of them have equal ones elsewhere.
    pub(super) fn file_system_number(&self) -> u64 {
        let (major, minor) = self.file_system.unwrap_or_default();
        major ^ minor.rotate_left(32)
    }

    /// The number of an object in a listing, and what else the listing shows of it.
    pub(super) fn listed(&self) -> (u64, Option<ListedObject>) {
        let object = self.kind.zip(self.size).map(|(kind, size)| ListedObject { kind, size });
        (self.file_id.unwrap_or(0), object)
    }

    /// Size and use of a file system; 0 is "unknown".
    pub(super) fn usage(&self) -> Usage {
        let free_bytes = self.space_free.or(self.space_available).unwrap_or(0);
        Usage {
            bytes: self.space_total.unwrap_or(0),
            free_bytes,
            available_bytes: self.space_available.unwrap_or(free_bytes),
            files: self.files_total.unwrap_or(0),
            free_files: self.files_free.or(self.files_available).unwrap_or(0),
        }
    }

    /// The limits, of which a session's may be lower.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            max_read: self.max_read.map_or(u32::MAX, |most| most.min(u32::MAX.into()) as u32),
            max_file: self.max_file.unwrap_or(u64::MAX),
        }
    }

    pub(super) fn max_name(&self) -> u32 {
        self.max_name.unwrap_or(0)
    }

    /// The lease in seconds.
    pub(super) fn lease(&self) -> Option<u32> {
        self.lease
    }
}

fn decode_time(bytes: &mut Decoder<'_>) -> Result<Time> {
    let seconds = bytes.u64()? as i64;
    Ok(Time { seconds, nanoseconds: bytes.u32()?.min(MAX_NANOSECONDS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bits: &[u32], values: &[&[u8]]) -> Vec<u8> {
        let values = values.concat();
        let words = bitmap(bits);
        let mut bytes: Vec<u8> = [2, words[0], words[1], values.len() as u32]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        bytes.extend(values);
        bytes
    }

    #[test]
    fn values_follow_the_order_of_their_bits() {
        let bytes = encoded(
            &[
                bit::TYPE,
                bit::SIZE,
                bit::FSID,
                bit::FILEID,
                bit::MODE,
                bit::OWNER,
                bit::TIME_METADATA,
                bit::TIME_MODIFY,
            ],
            &[
                &1u32.to_be_bytes(),
                &100u64.to_be_bytes(),
                &1u64.to_be_bytes(),
                &2u64.to_be_bytes(),
                &42u64.to_be_bytes(),
                &0o100_644u32.to_be_bytes(),
                &[0, 0, 0, 4],
                b"1000",
                &(-1i64).to_be_bytes(),
                &7u32.to_be_bytes(),
                &5u64.to_be_bytes(),
                &u32::MAX.to_be_bytes(),
            ],
        );
        let attributes = Values::decode(&mut Decoder::new(&bytes)).unwrap().object().unwrap();
        assert_eq!((attributes.kind, attributes.size, attributes.number), (Kind::Regular, 100, 42));
        assert_eq!((attributes.permissions, attributes.uid), (0o644, 1000));
        assert_eq!(attributes.changed, Time { seconds: -1, nanoseconds: 7 });
        assert_eq!(attributes.modified.nanoseconds, MAX_NANOSECONDS);
        assert_eq!(attributes.accessed, attributes.modified, "it was left out");
        assert_eq!(attributes.file_system, 1 ^ 2u64.rotate_left(32));
    }

    #[test]
    fn impossible_values_are_refused() {
        let decode = |bytes: &[u8]| Values::decode(&mut Decoder::new(bytes)).map(drop);
        let stream = encoded(&[bit::TYPE, bit::SIZE], &[&9u32.to_be_bytes(), &[0; 8]]);
        let stream = Values::decode(&mut Decoder::new(&stream)).unwrap();
        assert!(stream.object().is_err() && stream.listed().1.is_none(), "no such kind");
        assert!(decode(&encoded(&[bit::SIZE], &[&[0; 4]])).is_err(), "too short");
        assert!(decode(&encoded(&[3], &[&[0; 8]])).is_err(), "it was not asked for");
        assert!(decode(&[0, 0, 0, 9]).is_err(), "a long bitmap");
        let nothing = encoded(&[], &[]);
        let values = Values::decode(&mut Decoder::new(&nothing)).unwrap();
        assert!(values.object().is_err());
        assert_eq!(values.listed(), (0, None));
    }
}
