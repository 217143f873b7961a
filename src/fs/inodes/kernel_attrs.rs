//! Which attributes of a file the kernel may hold.
//!
//! The kernel trusts attributes for `attribute_ttl`, and the reply to an open has none. So the
//! kernel would read a file that was opened at another version up to the size of the earlier one.
//! This module therefore notes every version that the kernel may have received, and every version
//! that an open finds. If only one is noted, the kernel holds that version or none. If several are
//! noted, it is unknown which one it holds: of replies that arrive together the kernel takes the
//! first and drops the others. Then the daemon makes the kernel forget its attributes before it
//! answers an open.
//!
//! That is a system call, so it is made with the table unlocked. The versions stay noted until the
//! kernel has forgotten them. An open that is entered meanwhile also finds several noted, and sends
//! its own notice before it is answered. The versions are dropped afterwards, unless more were
//! noted in the meantime, because the kernel may hold those.
//!
//! *Invariant:* the kernel holds attributes only of versions that are noted. It does not take
//! attributes from before the notice that reach it later: it asked for them before the notice
//! (`fuse_reverse_inval_inode` increments `attr_version`).

use super::{Ino, Inodes};
use crate::volume::FileVersion;

/// The versions of a file that the kernel may hold attributes of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KernelAttrs {
    #[default]
    Unset,
    Single(FileVersion),
    /// More than one, or an unknown one.
    Ambiguous {
        /// The number of the last attributes noted.
        last: u64,
    },
}

/// A notice that makes the kernel forget the attributes of a file.
#[derive(Clone, Copy, Debug)]
#[must_use = "the kernel holds other attributes than the open has found"]
pub(in crate::fs) struct AttrNotice {
    ino: Ino,
    /// The number of the last attributes noted before the notice.
    last: u64,
}

impl Inodes {
    /// Notes a version that a reply to the kernel has, or that an open has found.
    pub(in crate::fs) fn record_kernel_attrs(&mut self, ino: Ino, version: FileVersion) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        self.noted_attrs += 1;
        node.kernel_attrs = match node.kernel_attrs {
            KernelAttrs::Unset => KernelAttrs::Single(version),
            KernelAttrs::Single(one) if one.is_same_version(&version, self.mode) => {
                KernelAttrs::Single(one)
            }
            KernelAttrs::Single(_) | KernelAttrs::Ambiguous { .. } => {
                KernelAttrs::Ambiguous { last: self.noted_attrs }
            }
        };
    }

    /// The only version that the kernel may hold attributes of.
    pub(in crate::fs) fn sole_kernel_version(&self, ino: Ino) -> Option<FileVersion> {
        match self.nodes.get(&ino)?.kernel_attrs {
            KernelAttrs::Single(version) => Some(version),
            KernelAttrs::Unset | KernelAttrs::Ambiguous { .. } => None,
        }
    }

    /// The notice that the kernel must get before an open is answered, if it may hold attributes of
    /// another version. Call [`Inodes::finish_attr_notice`] when the kernel has it.
    pub(in crate::fs) fn attr_notice(&self, ino: Ino) -> Option<AttrNotice> {
        match self.nodes.get(&ino)?.kernel_attrs {
            KernelAttrs::Ambiguous { last } => Some(AttrNotice { ino, last }),
            KernelAttrs::Unset | KernelAttrs::Single(_) => None,
        }
    }

    /// The kernel no longer holds attributes that were noted before the notice.
    pub(in crate::fs) fn finish_attr_notice(&mut self, notice: AttrNotice) {
        let AttrNotice { ino, last } = notice;
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.kernel_attrs == (KernelAttrs::Ambiguous { last })
        {
            node.kernel_attrs = KernelAttrs::Unset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROOT;
    use super::super::tests::attr;
    use super::*;
    use crate::backend::FileKind;
    use crate::volume::{ReplicaId, VolumeMode};

    fn forgets(t: &mut Inodes, ino: Ino) -> bool {
        let notice = t.attr_notice(ino);
        notice.is_some_and(|notice| {
            t.finish_attr_notice(notice);
            true
        })
    }

    #[test]
    fn a_second_version_makes_the_kernel_drop_attributes_once() {
        for mode in [VolumeMode::Shared, VolumeMode::Copies] {
            let mut t = Inodes::new(mode);
            let found = attr(11, FileKind::Regular, 1);
            let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
            let old = found.version();
            let new = FileVersion { size: 5, ..old };
            (0..2).for_each(|_| t.record_kernel_attrs(f, old));
            assert!(!forgets(&mut t, f), "it has had one version");
            t.record_kernel_attrs(f, new);
            assert_eq!((forgets(&mut t, f), forgets(&mut t, f)), (true, false));
            t.record_kernel_attrs(f, new);
            assert!(!forgets(&mut t, f));
            // The kernel may have taken the last attributes, or earlier ones.
            t.record_kernel_attrs(f, old);
            t.record_kernel_attrs(f, new);
            assert!(forgets(&mut t, f));
        }
    }

    #[test]
    fn attributes_recorded_during_a_notice_are_kept() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let found = attr(11, FileKind::Regular, 1);
        let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        let versions = [1, 2].map(|size| FileVersion { size, ..found.version() });
        versions.into_iter().for_each(|version| t.record_kernel_attrs(f, version));
        let first = t.attr_notice(f).unwrap();
        t.record_kernel_attrs(f, versions[1]);
        let second = t.attr_notice(f).unwrap();
        t.finish_attr_notice(first);
        assert!(t.attr_notice(f).is_some(), "the other open is answered after its own notice");
        t.finish_attr_notice(second);
        assert!(t.attr_notice(f).is_none());
    }

    #[test]
    fn copies_with_differing_inode_numbers_are_one_version() {
        let mut t = Inodes::new(VolumeMode::Copies);
        let found = attr(11, FileKind::Regular, 1);
        let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.record_kernel_attrs(f, found.version());
        t.record_kernel_attrs(f, FileVersion { ino: 12, ctime: (9, 9), ..found.version() });
        assert!(!forgets(&mut t, f));
    }

    #[test]
    fn attributes_sent_by_an_earlier_daemon_are_unknown() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let found = attr(11, FileKind::Regular, 1);
        let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.record_kernel_attrs(f, found.version());
        let mut again = Inodes::restore(VolumeMode::Shared, t.snapshot());
        again.record_kernel_attrs(f, found.version());
        assert_eq!((forgets(&mut again, f), forgets(&mut again, f)), (true, false));
    }
}
