//! READ: the data goes into the caller's buffer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::compound::{
    Compound, Operation, Operations, SEQUENCE_LEN, SEQUENCE_RESULT, begin_result,
};
use super::session::{SequenceError, SlotUse};
use super::sessions::Sessions;
use crate::nfs::blocking::{FIRST_JUKEBOX_WAIT, take_wait};
use crate::nfs::data_room::DataRoom;
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::{Caller, PieceToRead, ReadEnd, ReadResult, ReadSink};
use crate::nfs::rpc::{
    Again, DataHead, DataReply, DataSink, DataTarget, IsUnwanted, Renewal, RpcError, decode_header,
};
use crate::nfs::xdr::{Decoder, Result};

/// The longest tag that may precede the results.
const MAX_TAG: usize = 256;

/// Begins a read. Without a slot it ends at once, with [`NfsError::NoSession`]: a transport's thread
/// cannot wait for one.
pub(super) fn submit(
    sessions: &Arc<Sessions>,
    caller: Caller<'_>,
    read: PieceToRead,
    is_unwanted: Option<IsUnwanted>,
) {
    let PieceToRead { file, offset, mut sink } = read;
    let Some(slot) = sessions.try_use_slot() else { return sink.end(Err(NfsError::NoSession)) };
    let wanted = sink.room().capacity();
    let count = u32::try_from(wanted).unwrap_or(u32::MAX).min(slot.max_read());
    let operations = Operations::on(file).read(offset, count);
    let sequence = slot.sequence();
    let compound = Compound { sequence: Some(&sequence), operations: &operations };
    let options = slot.call_options(caller);
    let call = ReadCall {
        sink,
        wanted,
        sessions: Arc::downgrade(sessions),
        slot: Some(slot),
        after_sequence: operations.len(),
        wait: FIRST_JUKEBOX_WAIT,
        bypasses_locks: false,
        has_ended: false,
    };
    let target = DataTarget { sink: Box::new(call), decode: decode_data_head };
    sessions.transport.call_for_data(&options, &compound, target, is_unwanted);
}

/// A read in flight.
struct ReadCall {
    sink: Box<dyn ReadSink>,
    wanted: usize,
    sessions: Weak<Sessions>,
    /// `None` if the call needs another one.
    slot: Option<Arc<SlotUse>>,
    /// The bytes of the call after its SEQUENCE.
    after_sequence: usize,
    /// How long it waits if the server cannot read yet.
    wait: Duration,
    /// Whether it is made again with the stateid that also a server in its grace period accepts.
    bypasses_locks: bool,
    /// Whether it ends without a session.
    has_ended: bool,
}

/// The stateid by which a read ignores locks (READ bypass, section 8.2.3).
const BYPASS_STATEID: [u8; 16] = [0xff; 16];

/// The bytes of a READ after its stateid: offset and count.
const AFTER_STATEID: usize = 12;

impl ReadCall {
    fn result(
        &self,
        slot: &SlotUse,
        reply: &DataReply,
    ) -> std::result::Result<ReadEnd, SequenceError> {
        let mut bytes = Decoder::new(&reply.head);
        slot.take_head(&mut bytes)?;
        Ok(read_end(&mut bytes, reply.data, self.wanted)?)
    }

    fn again(mut self: Box<Self>) -> Option<Again> {
        let after = take_wait(&mut self.wait);
        Some(Again { sink: self, after })
    }
}

impl DataSink for ReadCall {
    fn room(&mut self) -> &mut dyn DataRoom {
        self.sink.room()
    }

    fn end(mut self: Box<Self>, reply: std::result::Result<DataReply, RpcError>) -> Option<Again> {
        let result = match (reply, self.slot.take()) {
            (Err(_), _) if self.has_ended => Err(NfsError::NoSession),
            (Err(error), _) => Err(error.into()),
            (Ok(_), None) => Err(NfsError::NoSession),
            (Ok(reply), Some(slot)) => match self.result(&slot, &reply) {
                Ok(end) => Ok(end),
                Err(SequenceError::Wait) => {
                    // The same call again.
                    self.slot = Some(slot);
                    return self.again();
                }
                Err(SequenceError::OtherSlot) => return self.again(),
                Err(SequenceError::NoSession) => Err(NfsError::NoSession),
                Err(SequenceError::Failed(NfsError::Status(Status::GRACE)))
                    if !self.bypasses_locks =>
                {
                    self.bypasses_locks = true;
                    return Some(Again { sink: self, after: Duration::ZERO });
                }
                Err(SequenceError::Failed(error)) if error.is_jukebox() => return self.again(),
                Err(SequenceError::Failed(error)) => Err(error),
            },
        };
        self.sink.end(result);
        None
    }

    fn renew(&mut self, record: &mut [u8]) -> Renewal {
        let Some(sessions) = self.sessions.upgrade() else { return Renewal::Never };
        if self.slot.is_none() {
            self.slot = sessions.try_use_slot();
        }
        let Some(slot) = &self.slot else {
            // A transport's thread creates no session.
            self.has_ended = sessions.has_ended();
            return if self.has_ended { Renewal::Never } else { Renewal::Later };
        };
        let end = record.len() - self.after_sequence;
        record[end - SEQUENCE_LEN..end].copy_from_slice(&slot.sequence());
        if self.bypasses_locks {
            let end = record.len() - AFTER_STATEID;
            record[end - BYPASS_STATEID.len()..end].copy_from_slice(&BYPASS_STATEID);
        }
        Renewal::Ready(Some(Arc::clone(slot) as _))
    }
}

/// Takes what follows the result of the SEQUENCE. Of `wanted` bytes, `data` have come.
pub(super) fn read_end(bytes: &mut Decoder<'_>, data: usize, wanted: usize) -> ReadResult {
    begin_result(bytes, Operation::PutHandle)?;
    begin_result(bytes, Operation::Read)?;
    let is_end = bytes.bool()?;
    match data == 0 && !is_end && wanted > 0 {
        // A reader would ask for the same bytes for ever.
        true => Err(RpcError::Malformed("no data, and not the end of the file").into()),
        false => Ok(ReadEnd { bytes: data, is_end }),
    }
}

/// Finds the length of the data. After a failure there is none.
pub(in crate::nfs) fn decode_data_head(bytes: &[u8]) -> Result<DataHead> {
    /// The lengths of the results before that of the READ.
    const BEFORE: [usize; 2] = [SEQUENCE_RESULT, 0];
    const NONE: DataHead = DataHead { data: 0 };
    let bytes = &mut Decoder::new(bytes);
    if decode_header(bytes)?.is_err() {
        return Ok(NONE);
    }
    let _status = bytes.u32()?;
    bytes.opaque(MAX_TAG)?;
    if bytes.u32()? == 0 {
        return Ok(NONE);
    }
    for len in BEFORE {
        let _number = bytes.u32()?;
        if bytes.u32()? != 0 {
            return Ok(NONE);
        }
        bytes.fixed(len)?;
    }
    let _number = bytes.u32()?;
    if bytes.u32()? != 0 {
        return Ok(NONE);
    }
    let _is_end = bytes.bool()?;
    Ok(DataHead { data: bytes.u32()? as usize })
}
