//! Users and groups as NFSv4 names them (RFC 8881, section 5.9): `1000`, or `name@domain`.
//!
//! Servers of AUTH_SYS usually send numbers. A name is looked up on this machine, whatever its
//! domain: it only shows an owner, and the server decides on every access. A name that is unknown
//! here is shown as nobody.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lru::LruCache;
use nix::unistd::{Group, User};
use parking_lot::Mutex;

use crate::nfs::rpc::{gid_inside, uid_inside};

/// Nobody, and its group.
const NOBODY: u32 = 65_534;

/// The names that are kept, at most, and for how long. A lookup may ask a directory service.
const MAX_KNOWN: NonZeroUsize = NonZeroUsize::new(1024).expect("it is above 0");
const KEPT: Duration = Duration::from_secs(600);

/// The ids of names.
type Known = Mutex<LruCache<Vec<u8>, KnownId>>;

#[derive(Clone, Copy)]
struct KnownId {
    id: u32,
    until: Instant,
}

static USERS: LazyLock<Known> = LazyLock::new(|| Mutex::new(LruCache::new(MAX_KNOWN)));
static GROUPS: LazyLock<Known> = LazyLock::new(|| Mutex::new(LruCache::new(MAX_KNOWN)));

/// The user's id in this process's user namespace.
pub(super) fn uid(owner: &[u8]) -> u32 {
    match number(owner) {
        Some(id) => uid_inside(id),
        None => known(&USERS, owner, |name| Some(User::from_name(name).ok()??.uid.as_raw())),
    }
}

/// The group's id in this process's user namespace.
pub(super) fn gid(group: &[u8]) -> u32 {
    match number(group) {
        Some(id) => gid_inside(id),
        None => known(&GROUPS, group, |name| Some(Group::from_name(name).ok()??.gid.as_raw())),
    }
}

fn number(owner: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(owner).ok()?;
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn known(kept: &Known, owner: &[u8], look_up: impl Fn(&str) -> Option<u32>) -> u32 {
    let now = Instant::now();
    if let Some(found) = kept.lock().get(owner).filter(|found| now < found.until) {
        return found.id;
    }
    let name = owner.split(|byte| *byte == b'@').next().unwrap_or_default();
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty());
    // Without the lock: it may block.
    let id = name.and_then(look_up).unwrap_or(NOBODY);
    kept.lock().put(owner.to_vec(), KnownId { id, until: now + KEPT });
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        assert_eq!((uid(b"1234"), gid(b"77")), (uid_inside(1234), gid_inside(77)));
        assert_eq!((uid(b"root@example.com"), gid(b"root@localdomain")), (0, 0));
        for unknown in [&b""[..], b"@", b"no such user here@x", b"\xff@x", b"-1", b"4294967296"] {
            assert_eq!((uid(unknown), gid(unknown)), (NOBODY, NOBODY), "{unknown:?}");
        }
    }
}
