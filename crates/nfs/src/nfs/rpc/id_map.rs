//! User and group ids of this process's user namespace, as the world outside sees them, and back.
//!
//! In a container of an ordinary user, that user is often root, and only a server's answer shows
//! that it is not. A kernel mount sends the ids outside, and so does fanfs. Of nested namespaces it
//! knows the innermost.

use std::fs;
use std::sync::LazyLock;

/// The id for users that have none on the other side.
const OVERFLOW_ID: u32 = 65_534;

static UIDS: LazyLock<IdMap> = LazyLock::new(|| IdMap::read("/proc/self/uid_map"));
static GIDS: LazyLock<IdMap> = LazyLock::new(|| IdMap::read("/proc/self/gid_map"));

/// The user's id outside this process's user namespace.
pub(super) fn uid_outside(uid: u32) -> u32 {
    UIDS.outside(uid)
}

/// The group's id outside this process's user namespace.
pub(super) fn gid_outside(gid: u32) -> u32 {
    GIDS.outside(gid)
}

/// The user in this process's user namespace whose id outside this is.
pub(crate) fn uid_inside(uid: u32) -> u32 {
    UIDS.inside(uid)
}

/// The group in this process's user namespace whose id outside this is.
pub(crate) fn gid_inside(gid: u32) -> u32 {
    GIDS.inside(gid)
}

/// Ranges of ids; none if the map cannot be read.
struct IdMap(Vec<IdRange>);

struct IdRange {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdRange {
    /// The id of the range that begins at `to`, for an id of that which begins at `from`.
    fn translate(&self, id: u32, from: u32, to: u32) -> Option<u32> {
        to.checked_add(id.checked_sub(from).filter(|offset| *offset < self.count)?)
    }
}

impl IdMap {
    fn read(path: &str) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Parses the lines of a map: the first id inside, the first one outside, and their number.
    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some(IdRange { inside: next()?, outside: next()?, count: next()? })
        };
        Self(text.lines().filter_map(range).collect())
    }

    fn outside(&self, id: u32) -> u32 {
        self.find(id, |range| range.translate(id, range.inside, range.outside))
    }

    fn inside(&self, id: u32) -> u32 {
        self.find(id, |range| range.translate(id, range.outside, range.inside))
    }

    fn find(&self, id: u32, translate: impl Fn(&IdRange) -> Option<u32>) -> u32 {
        match self.0.is_empty() {
            true => id,
            false => self.0.iter().find_map(translate).unwrap_or(OVERFLOW_ID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_outside() {
        let rootless = IdMap::parse("         0       1000          1\n      1 100000 65536\n");
        assert_eq!(
            [0, 1, 1000, 65536, 65537].map(|id| rootless.outside(id)),
            [1000, 100_000, 100_999, 165_535, OVERFLOW_ID]
        );
        let whole = IdMap::parse("         0          0 4294967295\n");
        assert_eq!([0, 1000, 4_294_967_294].map(|id| whole.outside(id)), [0, 1000, 4_294_967_294]);
        assert_eq!(IdMap::parse("").outside(7), 7, "without /proc");
        assert_eq!([1000, 100_000, 0].map(|id| rootless.inside(id)), [0, 1, OVERFLOW_ID]);
    }
}
