//! The hash that spreads block numbers and offsets.

/// One step of SplitMix64 (Steele, Lea, Flood 2014): adjacent numbers have unrelated hashes.
pub fn splitmix64(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation with the seed 0.
    #[test]
    fn the_output_matches_the_reference_implementation() {
        let step = 0x9e37_79b9_7f4a_7c15;
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(step), 0x6e78_9e6a_a1b9_65f4);
    }
}
