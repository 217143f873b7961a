//! Decodes replies as each operation does, for the checks of hostile bytes.

use super::attributes::Values;
use super::compound::{Operation, SEQUENCE_RESULT, begin_result, begin_results};
use super::session::SessionTerms;
use super::{decode_found, directory, read};
use crate::nfs::blocking::decode_results;
use crate::nfs::error::NfsError;
use crate::nfs::procedures::{Object, Page, Position, ReadResult, decode_link_target};
use crate::nfs::rpc::DataReply;
use crate::nfs::xdr::Decoder;

pub(in crate::nfs) use super::read::decode_data_head;

/// The results after that of the SEQUENCE, which may be any.
fn decode<T>(
    reply: &[u8],
    decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, NfsError>,
) -> Result<T, NfsError> {
    decode_results(reply, |bytes| {
        begin_results(bytes)?;
        begin_result(bytes, Operation::Sequence)?;
        bytes.fixed(SEQUENCE_RESULT)?;
        decode(bytes)
    })
}

pub(in crate::nfs) fn decode_small_results(reply: &[u8]) {
    let _ = decode_results(reply, |bytes| {
        begin_results(bytes)?;
        SessionTerms::decode_replies(bytes)
    });
    let _ = find(reply);
    let _ = decode(reply, |bytes| {
        begin_result(bytes, Operation::PutHandle)?;
        begin_result(bytes, Operation::GetAttributes)?;
        let values = Values::decode(bytes)?;
        let _ = (values.object(), values.usage(), values.limits(), values.lease());
        Ok(())
    });
    let link = decode(reply, |bytes| {
        begin_result(bytes, Operation::PutHandle)?;
        begin_result(bytes, Operation::ReadLink)?;
        Ok(decode_link_target(bytes)?)
    });
    assert!(link.is_err() || link.is_ok_and(|link| !link.contains(&0)));
}

/// The object of a LOOKUP's reply.
pub(in crate::nfs) fn find(reply: &[u8]) -> Result<Object, NfsError> {
    decode(reply, decode_found)
}

pub(in crate::nfs) fn decode_page(reply: &[u8], from: Position) -> Result<Page, NfsError> {
    decode(reply, |bytes| {
        begin_result(bytes, Operation::PutHandle)?;
        begin_result(bytes, Operation::ReadDir)?;
        Ok(directory::decode_page(bytes, from)?)
    })
}

pub(in crate::nfs) fn read_end(reply: &DataReply, wanted: usize) -> ReadResult {
    decode(&reply.head, |bytes| read::read_end(bytes, reply.data, wanted))
}
