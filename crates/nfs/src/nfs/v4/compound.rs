//! COMPOUND: the operations of a call, and their results (RFC 8881, section 16.2).
//!
//! An operation uses the object that the one before has left. After the first failure the server
//! executes no more of them.

use nfs3_types::xdr_codec::{self, Pack};

use crate::nfs::attributes::FileHandle;
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{CallOptions, Identity, Procedure, RpcError};
use crate::nfs::xdr::Decoder;

use std::time::Instant;

const PROGRAM: u32 = 100_003;
const VERSION: u32 = 4;
const MINOR_VERSION: u32 = 1;

/// The longest tag of a reply; calls here have none.
const MAX_TAG: usize = 1024;

/// The procedures of the program.
pub(super) const NULL: u32 = 0;
pub(super) const COMPOUND: u32 = 1;

/// The length of a SEQUENCE, as it is sent.
pub(super) const SEQUENCE_LEN: usize = 36;

/// The length of a SEQUENCE's result after its status.
pub(super) const SEQUENCE_RESULT: usize = 36;

/// The stateid for reads without an open (section 8.2.3).
const ANONYMOUS_STATEID: [u8; 16] = [0; 16];

/// An operation's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Operation {
    Access = 3,
    GetAttributes = 9,
    GetHandle = 10,
    LookUp = 15,
    PutHandle = 22,
    PutRootHandle = 24,
    Read = 25,
    ReadDir = 26,
    ReadLink = 27,
    BindConnection = 41,
    ExchangeId = 42,
    CreateSession = 43,
    DestroySession = 44,
    Sequence = 53,
    ReclaimComplete = 58,
}

/// The result of an operation that the server does not know has this number.
const ILLEGAL: u32 = 10_044;

/// The options of a call of this program.
pub(super) fn call_options(number: u32, identity: &Identity, deadline: Instant) -> CallOptions<'_> {
    let procedure = Procedure { program: PROGRAM, version: VERSION, number };
    CallOptions { procedure, identity: Some(identity), deadline, receipt: None }
}

/// The operations of a call, as they are sent.
#[derive(Clone, Default)]
pub(super) struct Operations {
    count: u32,
    bytes: Vec<u8>,
}

impl Operations {
    pub(super) fn on(object: FileHandle) -> Self {
        Self::default().operation(Operation::PutHandle).opaque(object.as_bytes())
    }

    pub(super) fn on_root() -> Self {
        Self::default().operation(Operation::PutRootHandle)
    }

    pub(super) fn look_up(self, name: &[u8]) -> Self {
        self.operation(Operation::LookUp).opaque(name)
    }

    pub(super) fn handle(self) -> Self {
        self.operation(Operation::GetHandle)
    }

    pub(super) fn attributes(self, wanted: [u32; 2]) -> Self {
        self.operation(Operation::GetAttributes).bitmap(wanted)
    }

    pub(super) fn read(self, offset: u64, count: u32) -> Self {
        self.operation(Operation::Read).fixed(&ANONYMOUS_STATEID).u64(offset).u32(count)
    }

    pub(super) fn operation(mut self, operation: Operation) -> Self {
        self.count += 1;
        self.u32(operation as u32)
    }

    pub(super) fn u32(self, word: u32) -> Self {
        self.fixed(&word.to_be_bytes())
    }

    pub(super) fn u64(self, word: u64) -> Self {
        self.fixed(&word.to_be_bytes())
    }

    pub(super) fn bitmap(self, words: [u32; 2]) -> Self {
        self.u32(2).u32(words[0]).u32(words[1])
    }

    /// Bytes of a known length, a multiple of four.
    pub(super) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.u32(bytes.len() as u32).fixed(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Their length, as they are sent.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The arguments of a COMPOUND.
pub(super) struct Compound<'a> {
    /// The operation before the others, if they belong to a session.
    pub(super) sequence: Option<&'a [u8; SEQUENCE_LEN]>,
    pub(super) operations: &'a Operations,
}

impl Compound<'_> {
    fn sequence(&self) -> &[u8] {
        self.sequence.map_or(&[], |sequence| sequence)
    }
}

impl Pack for Compound<'_> {
    fn packed_size(&self) -> usize {
        // An empty tag, the minor version, and the number of operations.
        12 + self.sequence().len() + self.operations.bytes.len()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> xdr_codec::Result<usize> {
        let count = self.operations.count + u32::from(self.sequence.is_some());
        let words: Vec<u8> =
            [0, MINOR_VERSION, count].iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        for part in [&words, self.sequence(), &self.operations.bytes] {
            out.write_all(part)?;
        }
        Ok(self.packed_size())
    }
}

/// Takes what precedes the results of the operations.
///
/// # Errors
/// The status of the call if no operation was executed.
pub(super) fn begin_results(bytes: &mut Decoder<'_>) -> Result<(), NfsError> {
    let status = bytes.u32()?;
    bytes.opaque(MAX_TAG)?;
    match bytes.u32()? {
        0 => {
            Status::check(status)?;
            Err(RpcError::Malformed("a reply without results").into())
        }
        _ => Ok(()),
    }
}

/// Takes the beginning of an operation's result, which its own results follow.
///
/// # Errors
/// The operation's status.
pub(super) fn begin_result(bytes: &mut Decoder<'_>, operation: Operation) -> Result<(), NfsError> {
    let number = bytes.u32()?;
    if number != operation as u32 && number != ILLEGAL {
        return Err(RpcError::Malformed("the result of another operation").into());
    }
    Status::check(bytes.u32()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compound_counts_its_operations() {
        let operations = Operations::on_root().look_up(b"abcde").handle();
        let mut bytes = Vec::new();
        let sequence = [7; SEQUENCE_LEN];
        let compound = Compound { sequence: Some(&sequence), operations: &operations };
        assert_eq!(compound.pack(&mut bytes).unwrap(), bytes.len());
        assert_eq!(compound.packed_size(), bytes.len());
        let mut decoder = Decoder::new(&bytes);
        assert_eq!([(); 3].map(|()| decoder.u32().unwrap()), [0, 1, 4]);
        assert_eq!(decoder.fixed(SEQUENCE_LEN).unwrap(), sequence);
        assert_eq!([(); 2].map(|()| decoder.u32().unwrap()), [24, 15]);
        assert_eq!(decoder.opaque(5).unwrap(), b"abcde");
        assert_eq!(decoder.u32(), Ok(10));
        assert!(decoder.u32().is_err());
    }

    #[test]
    fn a_failed_operation_ends_the_results() {
        let begin = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let mut decoder = Decoder::new(&bytes);
            begin_results(&mut decoder)?;
            begin_result(&mut decoder, Operation::Sequence)
        };
        assert!(begin(&[0, 0, 1, 53, 0]).is_ok());
        let status = |words: &[u32]| match begin(words) {
            Err(NfsError::Status(status)) => status.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(status(&[10_052, 0, 1, 53, 10_052]).contains("10052"));
        assert!(status(&[10_021, 0, 0]).contains("10021"), "no results");
        for malformed in [&[0, 0, 0][..], &[0, 0, 1, 22, 0], &[0, 0, 1, 53]] {
            assert!(matches!(begin(malformed), Err(NfsError::Rpc(_))), "{malformed:?}");
        }
    }
}
