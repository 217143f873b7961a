//! The header of a reply: whether the server has executed the call.

use nfs3_types::rpc::{accept_stat, auth_stat, msg_type, reject_stat, reply_stat};
use thiserror::Error;

use crate::nfs::xdr::{DecodeError, Decoder, Result};

/// The longest verifier (RFC 5531, section 8.2).
const MAX_VERIFIER: usize = 400;

/// A call that the server did not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The server does not offer the program.
    #[error("the server does not offer this service")]
    Program,
    /// The server offers other versions of the program.
    #[error("the server offers versions {lowest} to {highest} of this service only")]
    Version {
        /// The lowest version that it offers.
        lowest: u32,
        /// The highest one.
        highest: u32,
    },
    /// The server does not know the procedure.
    #[error("the server does not know this procedure")]
    Procedure,
    /// The server could not decode the arguments.
    #[error("the server could not decode the call")]
    Arguments,
    /// The server failed, for example for want of memory.
    #[error("the server could not execute the call")]
    System,
    /// The server speaks another version of RPC.
    #[error("the server does not speak version 2 of RPC")]
    RpcVersion,
    /// The server wants stronger credentials than AUTH_SYS, or a source port below 1024.
    #[error("the server wants stronger credentials than AUTH_SYS, or a source port below 1024")]
    WeakCredentials,
    /// The server refused the credentials; the number is RFC 5531's `auth_stat`.
    #[error("the server refused the credentials (auth_stat {0})")]
    Credentials(u32),
}

/// Decodes a reply's header, after which the results follow if the call was executed.
///
/// # Errors
/// [`DecodeError::Short`] as long as `bytes` has only a part of the header.
pub(crate) fn decode_header(bytes: &mut Decoder<'_>) -> Result<std::result::Result<(), Refusal>> {
    let _xid = bytes.u32()?;
    if bytes.u32()? != msg_type::REPLY as u32 {
        return Err(DecodeError::Invalid("a message that is no reply"));
    }
    let status = bytes.u32()?;
    if status == reply_stat::MSG_DENIED as u32 {
        return decode_denial(bytes).map(Err);
    }
    if status != reply_stat::MSG_ACCEPTED as u32 {
        return Err(DecodeError::Invalid("a reply that is neither accepted nor denied"));
    }
    let _flavor = bytes.u32()?;
    let _verifier = bytes.opaque(MAX_VERIFIER)?;
    let outcome = bytes.u32()?;
    let is = |one: accept_stat| outcome == one as u32;
    Ok(Err(if is(accept_stat::SUCCESS) {
        return Ok(Ok(()));
    } else if is(accept_stat::PROG_UNAVAIL) {
        Refusal::Program
    } else if is(accept_stat::PROG_MISMATCH) {
        Refusal::Version { lowest: bytes.u32()?, highest: bytes.u32()? }
    } else if is(accept_stat::PROC_UNAVAIL) {
        Refusal::Procedure
    } else if is(accept_stat::GARBAGE_ARGS) {
        Refusal::Arguments
    } else if is(accept_stat::SYSTEM_ERR) {
        Refusal::System
    } else {
        return Err(DecodeError::Invalid("an unknown outcome of a call"));
    }))
}

fn decode_denial(bytes: &mut Decoder<'_>) -> Result<Refusal> {
    let reason = bytes.u32()?;
    if reason == reject_stat::RPC_MISMATCH as u32 {
        return Ok(Refusal::RpcVersion);
    }
    if reason != reject_stat::AUTH_ERROR as u32 {
        return Err(DecodeError::Invalid("an unknown reason for a denial"));
    }
    Ok(match bytes.u32()? {
        weak if weak == auth_stat::AUTH_TOOWEAK as u32 => Refusal::WeakCredentials,
        other => Refusal::Credentials(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(words: &[u32]) -> Result<std::result::Result<(), Refusal>> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        decode_header(&mut Decoder::new(&bytes))
    }

    #[test]
    fn outcomes_differ() {
        assert_eq!(decode(&[9, 1, 0, 0, 0, 0]), Ok(Ok(())));
        assert_eq!(decode(&[9, 1, 0, 0, 4, 0xabcd, 0]), Ok(Ok(())), "with a verifier");
        assert_eq!(decode(&[9, 1, 0, 0, 0, 1]), Ok(Err(Refusal::Program)));
        let versions = Refusal::Version { lowest: 4, highest: 4 };
        assert_eq!(decode(&[9, 1, 0, 0, 0, 2, 4, 4]), Ok(Err(versions)));
        assert_eq!(decode(&[9, 1, 1, 0, 2, 2]), Ok(Err(Refusal::RpcVersion)));
        assert_eq!(decode(&[9, 1, 1, 1, 5]), Ok(Err(Refusal::WeakCredentials)));
        assert_eq!(decode(&[9, 1, 1, 1, 1]), Ok(Err(Refusal::Credentials(1))));
    }

    #[test]
    fn other_messages_are_refused() {
        for words in [&[9, 0][..], &[9, 1, 2], &[9, 1, 0, 0, 0, 6], &[9, 1, 0, 0, 401]] {
            assert!(matches!(decode(words), Err(DecodeError::Invalid(_))), "{words:?}");
        }
        for words in [&[][..], &[9], &[9, 1], &[9, 1, 0], &[9, 1, 0, 0, 0], &[9, 1, 1]] {
            let needed = words.len() * 4 + 4;
            assert_eq!(decode(words), Err(DecodeError::Short(needed)), "{words:?}");
        }
        assert_eq!(decode(&[9, 1, 0, 0, 8, 1]), Err(DecodeError::Short(28)));
    }
}
