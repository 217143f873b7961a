//! Sets and removes extended attributes. A value counts towards the payload budget until
//! its change has ended.

use std::ffi::OsStr;
use std::sync::Arc;

use crate::backend::{Lane, RequestContext, TreeMutation};
use crate::fs::payload_budget::OnFull;
use crate::fs::{Fs, FsResult, Ino};

impl Fs {
    /// setxattr(2), or removexattr(2) where there is no `value`.
    pub fn setxattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        name: &OsStr,
        value: Option<(&[u8], u32)>,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let charge = |(value, _): (&[u8], u32)| {
            self.payload_budget.charge(value.len() as u64, OnFull::WaitOrFail)
        };
        let room = match value.map(charge).transpose() {
            Ok(room) => room,
            Err(errno) => return done(Err(errno)),
        };
        let (name, value) =
            (name.to_owned(), value.map(|(value, flags)| (Arc::<[u8]>::from(value), flags)));
        self.change_inode(who, ino, (Lane::Metadata, room), done, move |object| {
            let name = name.clone();
            match value.clone() {
                Some((value, flags)) => TreeMutation::SetXattr { object, name, value, flags },
                None => TreeMutation::RemoveXattr { object, name },
            }
        });
    }
}
