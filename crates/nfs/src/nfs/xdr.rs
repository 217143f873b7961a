//! Decodes XDR (RFC 4506) from bytes that a server sent. Every length is checked against the bytes
//! that are there before anything is allocated.

use thiserror::Error;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum DecodeError {
    /// They end early. Counted from the first byte, this many are needed for the next value.
    #[error("it ends early")]
    Short(usize),
    /// A value that the protocol does not allow.
    #[error("{0}")]
    Invalid(&'static str),
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// Takes values from bytes, in order.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.position.saturating_add(len);
        let taken = self.bytes.get(self.position..end).ok_or(DecodeError::Short(end))?;
        self.position = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// The bytes that were not taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("a truth value that is neither 0 nor 1")),
        }
    }

    /// Exactly `len` bytes, a multiple of four.
    pub(crate) fn fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        self.take(len)
    }

    /// Eight bytes that mean nothing to a client.
    pub(crate) fn verifier(&mut self) -> Result<[u8; 8]> {
        self.array()
    }

    /// Bytes of variable length, `max` at most.
    pub(crate) fn opaque(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(DecodeError::Invalid("a length above its limit"));
        }
        let padded = self.take(len.next_multiple_of(4))?;
        Ok(&padded[..len])
    }

    /// The value, if the server says that it is present.
    pub(crate) fn optional<T>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.bool()? {
            true => value(self).map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_length_allocates_nothing() {
        let bytes = [0xff; 8];
        assert_eq!(
            Decoder::new(&bytes).opaque(usize::MAX),
            Err(DecodeError::Short(4 + 0xffff_ffffusize.next_multiple_of(4)))
        );
        assert!(matches!(Decoder::new(&bytes).opaque(64), Err(DecodeError::Invalid(_))));
    }

    #[test]
    fn opaque_bytes_are_padded() {
        let bytes = [0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 7];
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.opaque(3), Ok(&[1, 2, 3][..]));
        assert_eq!(decoder.u32(), Ok(7));
        assert_eq!(decoder.u32(), Err(DecodeError::Short(16)));
    }
}
