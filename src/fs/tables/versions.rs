//! The versions of open files follow the attributes that the kernel gets.

use super::{AttrOwner, OpenFileCheck, Tables};
use crate::backend::{Attr, FileKind};
use crate::fs::entry_name::InodeAttr;
use crate::fs::ino::Ino;

impl Tables {
    /// The reply with these attributes of a known inode, after [`Tables::apply_attrs`].
    pub(in crate::fs) fn attr_reply(
        &self,
        ino: Ino,
        attr: Attr,
        looked: &OpenFileCheck,
        asked: u64,
    ) -> InodeAttr {
        self.apply_attrs(ino, &attr, looked, asked);
        InodeAttr { ino, attr }
    }

    /// Call this before the kernel gets `attr` of this inode: handles that have it open read that
    /// version from now on. The handles stay if the attributes are not the open file's. They also
    /// stay if the inode was changed here after `asked` changes; then the kernel's version may be
    /// later than theirs, and they look it up before they read past their own end.
    pub(in crate::fs) fn apply_attrs(
        &self,
        ino: Ino,
        attr: &Attr,
        looked: &OpenFileCheck,
        asked: u64,
    ) {
        if attr.kind != FileKind::Regular {
            return;
        }
        // Before the handles: an open that begins meanwhile sees this version, or is found below.
        self.inodes.lock().record_kernel_attrs(ino, attr.version());
        let Some(open) = self.handles.find_inode(ino) else { return };
        open.gate.appends.lock().raise_kernel_end(attr.size);
        open.count_kernel_attrs();
        let mode = self.policy.mode;
        let version = attr.version();
        let current = open.current();
        let path = current.path().to_owned();
        let who = current.credentials();
        let retired = {
            // Held, so that opens and this call have the same order in both tables.
            let mut inodes = self.inodes.lock();
            if self.attr_owner(ino, attr, looked) != AttrOwner::OpenFile {
                return;
            }
            if !inodes.is_unchanged_since(ino, asked) {
                open.mark_unconfirmed();
                return;
            }
            let retired = open.adopt_version(version, mode, || {
                self.reader.new_open_file(path, version, mode, who)
            });
            if retired.is_some() {
                inodes.mark_cache_mixed(ino);
            }
            open.current().set_last_attr(attr);
            retired
        };
        if let Some(old) = retired {
            self.reader.retire_file(&old);
        }
    }
}
