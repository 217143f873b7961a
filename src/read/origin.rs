//! What tells an open file from another that is at its path by now: when it was made, and
//! whether any name leads to it.
//!
//! A version tells them apart for readers. What follows a file from version to version, a
//! change of it, needs the file itself: file systems use the number of a removed file again.

use std::sync::OnceLock;

use crate::backend::{Attr, Timestamp, is_other};
use crate::volume::Mode;

#[derive(Default)]
pub(super) struct Origin {
    born: OnceLock<Timestamp>,
    nameless: OnceLock<()>,
}

impl Origin {
    pub(super) fn is_born(&self, born: Option<Timestamp>) {
        if let Some(born) = born {
            self.born.get_or_init(|| born);
        }
    }

    pub(super) fn is_nameless(&self) {
        self.nameless.get_or_init(|| ());
    }

    /// That of an older version of the file.
    pub(super) fn inherit(&self, older: &Self) {
        self.is_born(older.born.get().copied());
        if older.nameless.get().is_some() {
            self.is_nameless();
        }
    }

    /// Whether `attr` may be the file's. Each copy of a file was made at another time.
    pub(super) fn may_be(&self, mode: Mode, attr: &Attr) -> bool {
        mode == Mode::Copies || !is_other(self.born.get().copied(), attr.born)
    }

    /// Whether a name leads to it.
    pub(super) fn has_name(&self) -> bool {
        self.nameless.get().is_none()
    }
}
