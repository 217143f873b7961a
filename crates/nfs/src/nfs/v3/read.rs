//! READ: the data goes into the caller's buffer.

use std::time::Duration;

use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::xdr_codec::{self, Pack};

use super::call_options;
use crate::nfs::attributes::{Attributes, FileHandle};
use crate::nfs::blocking::{FIRST_JUKEBOX_WAIT, take_wait};
use crate::nfs::data_room::DataRoom;
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::{Caller, PieceToRead, ReadEnd, ReadResult, ReadSink};
use crate::nfs::rpc::{
    Again, DataHead, DataReply, DataSink, DataTarget, IsUnwanted, RpcError, Transport,
    decode_header,
};
use crate::nfs::xdr::{DecodeError, Decoder, Result};

/// Begins a read.
pub(super) fn submit(
    transport: &Transport,
    caller: Caller<'_>,
    read: PieceToRead,
    is_unwanted: Option<IsUnwanted>,
) {
    let PieceToRead { file, offset, mut sink } = read;
    let wanted = sink.room().capacity();
    let count = u32::try_from(wanted).unwrap_or(u32::MAX);
    let arguments = ReadArguments { file, offset, count };
    let options = call_options(caller, NFS_PROGRAM::NFSPROC3_READ);
    let sink = Box::new(ReadCall { sink, wanted, wait: FIRST_JUKEBOX_WAIT });
    let target = DataTarget { sink, decode: decode_data_head };
    transport.call_for_data(&options, &arguments, target, is_unwanted);
}

/// A read in flight.
struct ReadCall {
    sink: Box<dyn ReadSink>,
    wanted: usize,
    /// How long it waits if the server cannot read yet.
    wait: Duration,
}

impl DataSink for ReadCall {
    fn room(&mut self) -> &mut dyn DataRoom {
        self.sink.room()
    }

    fn end(mut self: Box<Self>, reply: std::result::Result<DataReply, RpcError>) -> Option<Again> {
        match read_end(reply, self.wanted) {
            Err(error) if error.is_jukebox() => {
                let after = take_wait(&mut self.wait);
                Some(Again { sink: self, after })
            }
            result => {
                self.sink.end(result);
                None
            }
        }
    }
}

/// `READ3args`, without a copy of the handle.
struct ReadArguments {
    file: FileHandle,
    offset: u64,
    count: u32,
}

impl Pack for ReadArguments {
    fn packed_size(&self) -> usize {
        self.file.packed_size() + self.offset.packed_size() + self.count.packed_size()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> xdr_codec::Result<usize> {
        Ok(self.file.pack(out)? + self.offset.pack(out)? + self.count.pack(out)?)
    }
}

/// The results before the data, or those of a read that failed.
enum ReadHead {
    Data { is_end: bool, data: usize },
    Failed(NfsError),
}

/// Decodes all bytes of a reply before its data.
fn decode_head(bytes: &[u8]) -> Result<ReadHead> {
    let mut bytes = Decoder::new(bytes);
    if let Err(refusal) = decode_header(&mut bytes)? {
        return Ok(ReadHead::Failed(RpcError::from(refusal).into()));
    }
    if let Err(error) = Status::check(bytes.u32()?) {
        return Ok(ReadHead::Failed(error));
    }
    Attributes::decode_optional(&mut bytes)?;
    let count = bytes.u32()?;
    let is_end = bytes.bool()?;
    match bytes.u32()? == count {
        true => Ok(ReadHead::Data { is_end, data: count as usize }),
        false => Err(DecodeError::Invalid("two lengths of the data that differ")),
    }
}

pub(in crate::nfs) fn decode_data_head(bytes: &[u8]) -> Result<DataHead> {
    decode_head(bytes).map(|head| match head {
        ReadHead::Data { data, .. } => DataHead { data },
        ReadHead::Failed(_) => DataHead { data: 0 },
    })
}

pub(in crate::nfs) fn read_end(
    reply: std::result::Result<DataReply, RpcError>,
    wanted: usize,
) -> ReadResult {
    let reply = reply?;
    match decode_head(&reply.head)? {
        ReadHead::Failed(error) => Err(error),
        // A reader would ask for the same bytes for ever.
        ReadHead::Data { data: 0, is_end: false, .. } if wanted > 0 => {
            Err(RpcError::Malformed("no data, and not the end of the file").into())
        }
        ReadHead::Data { is_end, .. } => Ok(ReadEnd { bytes: reply.data, is_end }),
    }
}
