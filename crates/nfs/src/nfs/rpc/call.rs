//! A call as it is sent: the record mark, the header with its credentials, and the arguments.

use std::sync::LazyLock;

use nfs3_types::rpc::{
    RPC_VERSION_2, auth_unix, call_body, fragment_header, msg_body, opaque_auth, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack};

use super::id_map::{gid_outside, uid_outside};

/// The most supplementary groups that AUTH_SYS can carry (RFC 5531, appendix A).
const MAX_GROUPS: usize = 16;

/// The longest machine name that AUTH_SYS can carry.
const MAX_MACHINE_NAME: usize = 255;

/// The user on whose behalf a call is made (AUTH_SYS), by the ids in this process's user namespace.
/// The server decides their rights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups. A call carries the first 16.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The user of this process.
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        }
    }
}

/// A remote procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) number: u32,
}

/// Encodes a call as one record of one fragment. Without an identity it carries no credentials.
pub(crate) fn encode_call(
    xid: u32,
    procedure: Procedure,
    identity: Option<&Identity>,
    arguments: &impl Pack,
) -> Vec<u8> {
    let body = call_body {
        rpcvers: RPC_VERSION_2,
        prog: procedure.program,
        vers: procedure.version,
        proc: procedure.number,
        cred: identity.map(credentials).unwrap_or_default(),
        verf: opaque_auth::default(),
    };
    let header = rpc_msg { xid, body: msg_body::CALL(body) };
    let len = header.packed_size() + arguments.packed_size();
    let mut record = Vec::with_capacity(4 + len);
    record.extend_from_slice(&fragment_header::new(len as u32, true).into_xdr_buf());
    let written = header.pack(&mut record).and_then(|_| arguments.pack(&mut record));
    written.expect("a Vec takes any bytes, and no call is as long as 4 GiB");
    record
}

fn credentials(identity: &Identity) -> opaque_auth<'static> {
    static MACHINE_NAME: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        name.truncate(name.trim_ascii_end().len().min(MAX_MACHINE_NAME));
        name
    });
    let Identity { uid, gid, groups } = identity;
    opaque_auth::auth_unix(&auth_unix {
        stamp: 0,
        machinename: Opaque::owned(MACHINE_NAME.clone()),
        uid: uid_outside(*uid),
        gid: gid_outside(*gid),
        gids: groups.iter().map(|group| gid_outside(*group)).take(MAX_GROUPS).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_carries_sixteen_groups() {
        let identity = Identity { uid: 1, gid: 2, groups: (100..120).collect() };
        let procedure = Procedure { program: 3, version: 4, number: 5 };
        let record = encode_call(6, procedure, Some(&identity), &7u32);
        let word = |at: usize| u32::from_be_bytes(record[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, 0x8000_0000 | (record.len() - 4));
        // The transaction, CALL, the version of RPC, and the procedure.
        assert_eq!([4, 8, 12, 16, 20, 24].map(word), [6, 0, 2, 3, 4, 5]);
        let machine_name = (word(40) as usize).next_multiple_of(4);
        let ids = 44 + machine_name;
        assert_eq!([ids, ids + 4, ids + 8].map(word), [1, 2, 16]);
        assert_eq!(word(ids + 12 + 15 * 4), 115);
        assert_eq!(word(record.len() - 4), 7);
    }
}
