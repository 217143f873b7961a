//! Which attributes of a file the kernel may hold.
//!
//! The kernel believes what it was told for `attribute_ttl`, and an answer to an open
//! tells it no attributes: what was opened at another version would be read to the size
//! of the one before. So every version that the kernel may have been told of is noted,
//! and those that opens find. As long as it is one, the kernel holds that or none. Of
//! several nobody knows which: of answers that come at the same time the kernel takes
//! the first and drops the others. Before an open is answered then, the kernel is told
//! to forget what it holds.
//!
//! That is a system call, so it is made with the table unlocked. The versions stay noted
//! until the kernel has been told: another open that is entered meanwhile finds several
//! noted as well, and tells the kernel once more before it is answered. They are dropped
//! afterwards, unless more were noted in the meantime; the kernel may hold those.
//!
//! *Invariant:* the kernel holds attributes of no version but those noted. What was
//! noted before it was told to forget, and comes to it later, it does not take: it
//! asked for that before (`fuse_reverse_inval_inode` counts `attr_version` on).

use super::{Ino, Inodes};
use crate::volume::FileVersion;

/// The versions of a file that the kernel may hold attributes of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KernelAttrs {
    #[default]
    Unset,
    Single(FileVersion),
    /// More than one, or it is not known which.
    Ambiguous {
        /// The number of the one that was noted last.
        last: u64,
    },
}

/// The kernel is to be told to forget the attributes of a file.
#[derive(Clone, Copy, Debug)]
#[must_use = "the kernel holds other attributes than the open has found"]
pub(in crate::fs) struct AttrNotice {
    ino: Ino,
    /// The number of the attributes that were noted last before.
    last: u64,
}

impl Inodes {
    /// The kernel is told attributes of this version, or an open has found it.
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

    /// The notice that the kernel gets before an open is answered, if it may hold attributes
    /// of another version. [`Inodes::finish_attr_notice`] it when the kernel has it.
    pub(in crate::fs) fn attr_notice(&self, ino: Ino) -> Option<AttrNotice> {
        match self.nodes.get(&ino)?.kernel_attrs {
            KernelAttrs::Ambiguous { last } => Some(AttrNotice { ino, last }),
            KernelAttrs::Unset | KernelAttrs::Single(_) => None,
        }
    }

    /// The kernel holds nothing any more that was noted before the notice.
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
    fn the_kernel_forgets_once_after_it_may_have_been_told_of_another_version() {
        for mode in [VolumeMode::Shared, VolumeMode::Copies] {
            let mut t = Inodes::new(mode);
            let found = attr(11, FileKind::Regular, 1);
            let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
            let old = found.version();
            let new = FileVersion { size: 5, ..old };
            (0..2).for_each(|_| t.record_kernel_attrs(f, old));
            assert!(!forgets(&mut t, f), "it was told of one version");
            t.record_kernel_attrs(f, new);
            assert_eq!((forgets(&mut t, f), forgets(&mut t, f)), (true, false));
            t.record_kernel_attrs(f, new);
            assert!(!forgets(&mut t, f));
            // Nobody knows whether the kernel took the last, or one before.
            t.record_kernel_attrs(f, old);
            t.record_kernel_attrs(f, new);
            assert!(forgets(&mut t, f));
        }
    }

    #[test]
    fn what_is_noted_during_a_notice_stays_noted() {
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
    fn copies_with_other_numbers_are_one_version() {
        let mut t = Inodes::new(VolumeMode::Copies);
        let found = attr(11, FileKind::Regular, 1);
        let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.record_kernel_attrs(f, found.version());
        t.record_kernel_attrs(f, FileVersion { ino: 12, ctime: (9, 9), ..found.version() });
        assert!(!forgets(&mut t, f));
    }

    #[test]
    fn what_the_daemon_before_told_is_not_known() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let found = attr(11, FileKind::Regular, 1);
        let f = t.remember(ROOT, "f".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.record_kernel_attrs(f, found.version());
        let mut again = Inodes::restore(VolumeMode::Shared, t.snapshot());
        again.record_kernel_attrs(f, found.version());
        assert_eq!((forgets(&mut again, f), forgets(&mut again, f)), (true, false));
    }
}
