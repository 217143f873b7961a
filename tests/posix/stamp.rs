//! Blocks that identify themselves: they begin with the pass over the file that wrote them and the
//! block's index, and the rest follows from these two.

use std::sync::LazyLock;

/// The size of a stamp's block.
pub(crate) const BLOCK: u64 = 4096;

/// The start of a block, needed to recognize its pass.
pub(crate) const SHORTEST: u64 = 32;

/// Page-aligned memory: unaligned memory is split into requests within blocks.
pub(crate) struct Pages {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK as usize];
        let at = bytes.as_ptr().align_offset(BLOCK as usize);
        Self { bytes, at, len }
    }
}

impl std::ops::Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.at..][..self.len]
    }
}

impl std::ops::DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..][..self.len]
    }
}

/// Random bytes, 8-aligned parts of which fill the blocks. Whole blocks are copied and compared, so
/// that the test's own work is small beside that of the file system.
static FILLING: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; 1 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
});

/// The start of a block: its pass, and its index.
const NAMES: usize = 16;

/// What follows the names in a block: a part of the filling that depends on them.
fn filling(pass: u64, index: u64) -> &'static [u8] {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = pass.wrapping_mul(ODD) ^ index;
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let places = (FILLING.len() - BLOCK as usize) / 8;
    let from = (mixed >> 32) as usize % places * 8;
    &FILLING[from..from + BLOCK as usize - NAMES]
}

/// The eight bytes at one place of a block.
fn word(pass: u64, index: u64, place: usize) -> [u8; 8] {
    match place {
        0 => pass.to_le_bytes(),
        1 => index.to_le_bytes(),
        _ => filling(pass, index)[place * 8 - NAMES..][..8].try_into().unwrap(),
    }
}

/// The bytes of a file of this length at `from`, a block's start, as one pass writes them.
pub(crate) fn write(pass: u64, from: u64, buf: &mut [u8]) {
    for (i, block) in buf.chunks_mut(BLOCK as usize).enumerate() {
        let index = from / BLOCK + i as u64;
        let mut names = [0; NAMES];
        names[..8].copy_from_slice(&pass.to_le_bytes());
        names[8..].copy_from_slice(&index.to_le_bytes());
        let (start, rest) = block.split_at_mut(NAMES.min(block.len()));
        start.copy_from_slice(&names[..start.len()]);
        rest.copy_from_slice(&filling(pass, index)[..rest.len()]);
    }
}

/// The state of a block, or of the part that the file has.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// All of one pass.
    Intact(u64),
    /// Each eight bytes are of one of these passes, but not all of the same one; or zero, where
    /// that is permitted.
    Torn,
    /// Bytes that were never written there; with their start.
    Wrong(String),
}

/// Checks block `index`. `passes` are those that may have written a part of it while it was read;
/// `zeros` tells whether a part may have been cut off then.
pub(crate) fn check(
    block: &[u8],
    index: u64,
    passes: std::ops::RangeInclusive<u64>,
    zeros: bool,
) -> Found {
    let whole = &block[..block.len() / 8 * 8];
    let first = whole.first_chunk().map_or(0, |pass| u64::from_le_bytes(*pass));
    let mut expected = [0; BLOCK as usize];
    write(first, index * BLOCK, &mut expected);
    if *whole == expected[..whole.len()] {
        return Found::Intact(first);
    }
    let words = || whole.chunks_exact(8);
    let of = |pass, place: usize, got: &[u8]| word(pass, index, place) == *got;
    let other = words().enumerate().position(|(place, got)| !of(first, place, got)).unwrap();
    let known = |(place, got): (usize, &[u8])| {
        zeros && got == [0; 8] || passes.clone().rev().any(|pass| of(pass, place, got))
    };
    match words().enumerate().position(|at| !known(at)) {
        None => Found::Torn,
        Some(place) => Found::Wrong(format!(
            "block {index}, begun by pass {first}, is another's from byte {}, and of no pass of \
             {passes:?} at byte {}",
            other * 8,
            place * 8,
        )),
    }
}

#[test]
fn a_block_reveals_its_pass_and_foreign_bytes() {
    let (mut old, mut new) = ([0; 8192], [0; 8192]);
    write(7, BLOCK, &mut old);
    write(8, BLOCK, &mut new);
    let second = BLOCK as usize..;
    assert_eq!(check(&old[second.clone()], 2, 7..=8, false), Found::Intact(7));
    assert_eq!(check(&old[second.clone()][..1000], 2, 7..=8, false), Found::Intact(7));
    // A block in another's place.
    assert!(matches!(check(&old[second.clone()], 1, 7..=8, false), Found::Wrong(_)));
    let mut torn = new;
    torn[6000..6008].copy_from_slice(&old[6000..6008]);
    assert_eq!(check(&torn[second.clone()], 2, 7..=8, false), Found::Torn);
    // Of a pass that ended long ago.
    assert!(matches!(check(&torn[second.clone()], 2, 8..=9, false), Found::Wrong(_)));
    torn[6000..6008].fill(0);
    assert_eq!(check(&torn[second.clone()], 2, 7..=8, true), Found::Torn);
    assert!(matches!(check(&torn[second], 2, 7..=8, false), Found::Wrong(_)));
}
