//! Blocks that identify themselves: every eight bytes name the pass over the file that wrote them,
//! and the block's index.

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

fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// The eight bytes at one place of a block: first the pass and the index themselves, then a value
/// that follows from these two and the place.
fn word(pass: u64, index: u64, place: u64) -> u64 {
    match place {
        0 => pass,
        1 => index,
        _ => mixed(mixed(mixed(pass) ^ index).wrapping_add(place)) | 1,
    }
}

/// The bytes of a file of this length at `from`, a block's start, as one pass writes them.
pub(crate) fn write(pass: u64, from: u64, buf: &mut [u8]) {
    for (i, block) in buf.chunks_mut(BLOCK as usize).enumerate() {
        let index = from / BLOCK + i as u64;
        for (place, bytes) in block.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&word(pass, index, place as u64).to_le_bytes()[..bytes.len()]);
        }
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
    let words = || block.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap()));
    let first = words().next().unwrap_or_default();
    let of = |pass, place: usize, got| word(pass, index, place as u64) == got;
    let Some(other) = words().enumerate().position(|(place, got)| !of(first, place, got)) else {
        return Found::Intact(first);
    };
    let known =
        |(place, got)| zeros && got == 0 || passes.clone().rev().any(|pass| of(pass, place, got));
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
