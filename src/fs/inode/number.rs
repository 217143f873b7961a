//! Numbers of files in `copies` mode, of which several may have had one name.

use std::ffi::OsStr;

use super::{Ino, Inodes, ROOT, made};
use crate::volume::Mode;

/// Files that had one name one after the other, and are still open: of so many the last
/// keeps its number when those before it are closed.
const REPLACED: usize = 16;

impl Inodes {
    /// The number of what has this name, of whose path `first` is made. A file that was
    /// replaced while it is open keeps that number, and what replaced it has the next one.
    pub(super) fn number_by_name(&self, first: Ino, parent: Ino, name: &OsStr) -> Ino {
        let numbers = || std::iter::successors(Some(first), |number| Some(made(&number.0)));
        let named = self.named(parent, name);
        if let Some(known) = named.filter(|known| numbers().take(REPLACED).any(|n| n == *known)) {
            return known;
        }
        let is_free = |number: &Ino| !self.nodes.get(number).is_some_and(|node| node.is_nameless);
        numbers().find(is_free).unwrap_or(first)
    }

    /// The number to show for a name in a listing, which says `ino` of it.
    pub(in crate::fs) fn listed(&self, parent: Ino, name: &OsStr, ino: u64) -> Ino {
        match self.mode {
            Mode::Shared if ino > ROOT.0 => Ino(ino),
            Mode::Shared => made(&(0u64, ino)),
            Mode::Copies => {
                let first = made(&self.path(parent).unwrap_or_default().join(name));
                self.number_by_name(first, parent, name)
            }
        }
    }
}
