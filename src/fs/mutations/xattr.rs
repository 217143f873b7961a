//! Sets and removes extended attributes. A value counts toward the payload budget until its change
//! has ended.

use std::ffi::OsStr;
use std::sync::Arc;

use super::Mutations;
use crate::backend::{Lane, RequestContext, TreeMutation};
use crate::fs::error::FsResult;
use crate::fs::ino::Ino;
use crate::fs::payload_budget::OnFull;

/// A value to set, and the flags of setxattr(2).
#[derive(Clone)]
struct XattrValue {
    bytes: Arc<[u8]>,
    flags: u32,
}

impl Mutations {
    /// setxattr(2) with a value and its flags, or removexattr(2) without. Blocks while there is no
    /// room for the value; the future does not block.
    pub fn setxattr(
        self: &Arc<Self>,
        caller: RequestContext,
        ino: Ino,
        name: &OsStr,
        value: Option<(&[u8], u32)>,
    ) -> impl Future<Output = FsResult<()>> + Send + 'static + use<> {
        let own = Arc::clone(self);
        let name = name.to_owned();
        let charge = value
            .map(|(value, _)| self.payload_budget.charge(value.len() as u64, OnFull::WaitOrFail));
        // Copied only if there is room for it.
        let value = match charge {
            Some(Ok(_)) => value.map(|(bytes, flags)| XattrValue { bytes: bytes.into(), flags }),
            _ => None,
        };
        async move {
            let charge = charge.transpose()?;
            let mutation = |object| {
                let name = name.clone();
                match value.clone() {
                    Some(XattrValue { bytes: value, flags }) => {
                        TreeMutation::SetXattr { object, name, value, flags }
                    }
                    None => TreeMutation::RemoveXattr { object, name },
                }
            };
            own.change_inode(caller, ino, Lane::Metadata, charge, mutation).await
        }
    }
}
