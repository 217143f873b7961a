//! From an object's name to its placement group.
//!
//! Clients of Ceph compute it themselves: the hash `rjenkins` (Robert Jenkins's lookup2) of the
//! name, then its low bits, folded so that a pool may have any number of groups
//! (`ceph_str_hash_rjenkins` in `ceph_hash.cc`, `ceph_stable_mod` in `rados.h`).

/// The only hash of objects that pools have been made with.
pub const RJENKINS: u32 = 2;

/// The golden ratio, an arbitrary value to begin with.
const START: u32 = 0x9e37_79b9;

/// The placement group of an object among `groups` of its pool.
pub fn placement_group(namespace: &str, object: &str, groups: u32) -> u32 {
    let hash = match namespace {
        "" => hash_name(object.as_bytes()),
        _ => hash_name(format!("{namespace}\u{1f}{object}").as_bytes()),
    };
    fold_hash(hash, groups)
}

/// `hash` modulo the next power of two, or half of it where that has no group.
fn fold_hash(hash: u32, groups: u32) -> u32 {
    let mask = groups.next_power_of_two() - 1;
    if hash & mask < groups { hash & mask } else { hash & (mask >> 1) }
}

fn hash_name(name: &[u8]) -> u32 {
    let (words, rest) = name.as_chunks::<12>();
    let [mut a, mut b, mut c] = [START, START, 0u32];
    let mut add = |bytes: &[u8; 12], length: u32| {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        a = a.wrapping_add(word(0));
        b = b.wrapping_add(word(4));
        c = c.wrapping_add(word(8)).wrapping_add(length);
        [a, b, c] = mix([a, b, c]);
        c
    };
    for bytes in words {
        add(bytes, 0);
    }
    // The lowest byte of the last word is the length's.
    let mut last = [0; 12];
    for (at, byte) in rest.iter().enumerate() {
        last[if at < 8 { at } else { at + 1 }] = *byte;
    }
    add(&last, name.len() as u32)
}

fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    for [first, second, third] in [[13, 8, 13], [12, 16, 5], [3, 10, 15]] {
        a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> first);
        b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << second);
        c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> third);
    }
    [a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_a_live_cluster() {
        // `raw_pgid` in the answers of `ceph osd map` of Ceph 16.2.15.
        for (name, hash) in [
            ("10000000000.00000000", 0xf0b5_6f30),
            ("10000000000.00000001", 0x5338_8f2a),
            ("10000000000.00000002", 0x4ef5_17c5),
            ("10000000000.00000003", 0x131b_020f),
            ("team-a\u{1f}100000001f8.00000000", 0x3cf2_f517),
        ] {
            assert_eq!(hash_name(name.as_bytes()), hash, "{name}");
        }
        assert_eq!(placement_group("", "10000000000.00000000", 32), 0x10);
        assert_eq!(placement_group("team-a", "100000001f8.00000000", 32), 0x17);
    }

    #[test]
    fn names_of_any_length_are_hashed() {
        // From the same cluster.
        for (name, hash) in [
            ("a", 0x29ee_c818),
            ("ab", 0x9879_ac41),
            ("abc", 0x251e_4793),
            ("abcd", 0x5ae6_1fa5),
            ("abcde", 0x03a9_6866),
            ("abcdef", 0xde92_2732),
            ("abcdefg", 0xb9e6_762c),
            ("abcdefgh", 0x053f_775e),
            ("abcdefghi", 0x3a7b_0a5f),
            ("abcdefghij", 0xc9ca_c242),
            ("abcdefghijk", 0xe52b_8e4c),
            ("abcdefghijkl", 0x0b1b_3ea5),
            ("abcdefghijklm", 0x3122_b031),
            ("abcdefghijklmn", 0xfec3_30e0),
            ("abcdefghijklmno", 0x11dc_cf31),
            ("abcdefghijklmnop", 0xfa1e_cf51),
            ("abcdefghijklmnopq", 0x25df_ecf2),
            ("abcdefghijklmnopqr", 0x6731_df7e),
            ("abcdefghijklmnopqrs", 0x4b65_a544),
            ("abcdefghijklmnopqrst", 0xf2a2_e1cf),
            ("abcdefghijklmnopqrstu", 0x30a9_43f8),
            ("abcdefghijklmnopqrstuv", 0xbf6c_0b42),
            ("abcdefghijklmnopqrstuvw", 0x68e5_ff21),
            ("abcdefghijklmnopqrstuvwx", 0xd663_8b78),
            ("abcdefghijklmnopqrstuvwxy", 0x720b_6730),
        ] {
            assert_eq!(hash_name(name.as_bytes()), hash, "{name}");
        }
    }

    #[test]
    fn groups_of_any_number_are_all_used() {
        assert_eq!([0, 1, 7, 8, 15].map(|hash| fold_hash(hash, 12)), [0, 1, 7, 8, 7]);
        for groups in 1..70 {
            let mut used: Vec<u32> = (0..256).map(|hash| fold_hash(hash, groups)).collect();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used, (0..groups).collect::<Vec<_>>());
        }
    }
}
