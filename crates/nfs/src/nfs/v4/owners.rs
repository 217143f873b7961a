//! Users and groups as NFSv4 names them (RFC 8881, section 5.9): `1000`, or `name@domain`.
//!
//! Servers of AUTH_SYS usually send numbers. A name is looked up on this machine, whatever its
//! domain: it only shows an owner, and the server decides on every access. A name that is unknown
//! here has the id 65534. So has one whose lookup takes long, until it is there: this machine may ask
//! a directory service, and one thread waits for it.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lru::LruCache;
use nix::unistd::{Group, User};
use parking_lot::Mutex;

use crate::nfs::rpc::{gid_inside, uid_inside};

/// The id of unknown names, as the kernel's client shows them.
const UNKNOWN: u32 = 65_534;

/// The names that are kept, at most, and for how long.
const MAX_KNOWN: NonZeroUsize = NonZeroUsize::new(1024).expect("it is above 0");
const KEPT: Duration = Duration::from_secs(600);

/// The same after a lookup that failed, and after one that took long.
const KEPT_AFTER_ERROR: Duration = Duration::from_secs(5);
const KEPT_AFTER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a caller waits for a lookup, and how many lookups wait at most.
const PATIENCE: Duration = Duration::from_millis(100);
const MAX_WAITING: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NameKind {
    User,
    Group,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Name {
    kind: NameKind,
    text: Vec<u8>,
}

#[derive(Clone, Copy)]
struct KnownId {
    id: u32,
    until: Instant,
}

struct Lookup {
    name: Name,
    found: SyncSender<u32>,
}

static KNOWN: LazyLock<Mutex<LruCache<Name, KnownId>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_KNOWN)));

/// The thread that looks names up; `None` if it could not be started.
static LOOKUPS: LazyLock<Option<SyncSender<Lookup>>> = LazyLock::new(|| {
    let (sender, lookups) = sync_channel::<Lookup>(MAX_WAITING);
    let run = move || {
        for Lookup { name, found } in lookups {
            let id = known(&name).unwrap_or_else(|| {
                let looked_up = look_up(&name);
                let id = looked_up.unwrap_or(UNKNOWN);
                keep(&name, id, if looked_up.is_some() { KEPT } else { KEPT_AFTER_ERROR });
                id
            });
            let _ = found.send(id);
        }
    };
    let thread = std::thread::Builder::new().name("fanfs-owners".to_owned());
    thread.spawn(run).ok().map(|_| sender)
});

/// The user's id in this process's user namespace.
pub(super) fn uid(owner: &[u8]) -> u32 {
    number(owner).map_or_else(|| id_of(NameKind::User, owner), uid_inside)
}

/// The group's id in this process's user namespace.
pub(super) fn gid(group: &[u8]) -> u32 {
    number(group).map_or_else(|| id_of(NameKind::Group, group), gid_inside)
}

fn number(owner: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(owner).ok()?;
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn id_of(kind: NameKind, owner: &[u8]) -> u32 {
    let name = owner.split(|byte| *byte == b'@').next().unwrap_or_default();
    if name.is_empty() {
        return UNKNOWN;
    }
    let name = Name { kind, text: name.to_vec() };
    if let Some(id) = known(&name) {
        return id;
    }
    let (sender, found) = sync_channel(1);
    let lookup = Lookup { name: name.clone(), found: sender };
    match &*LOOKUPS {
        Some(lookups) if lookups.try_send(lookup).is_ok() => {
            let id = found.recv_timeout(PATIENCE);
            if id.is_err() {
                // The lookup goes on, and its callers do not wait again so soon.
                keep(&name, UNKNOWN, KEPT_AFTER_TIMEOUT);
            }
            id.unwrap_or(UNKNOWN)
        }
        _ => UNKNOWN,
    }
}

fn known(name: &Name) -> Option<u32> {
    let now = Instant::now();
    KNOWN.lock().get(name).filter(|known| now < known.until).map(|known| known.id)
}

fn keep(name: &Name, id: u32, time: Duration) {
    KNOWN.lock().put(name.clone(), KnownId { id, until: Instant::now() + time });
}

/// The id of a name; `None` if the lookup fails. May block for long.
fn look_up(name: &Name) -> Option<u32> {
    let Ok(text) = std::str::from_utf8(&name.text) else { return Some(UNKNOWN) };
    let id = match name.kind {
        NameKind::User => User::from_name(text).ok()?.map(|user| user.uid.as_raw()),
        NameKind::Group => Group::from_name(text).ok()?.map(|group| group.gid.as_raw()),
    };
    Some(id.unwrap_or(UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        assert_eq!((uid(b"1234"), gid(b"77")), (uid_inside(1234), gid_inside(77)));
        for unknown in [&b""[..], b"@", b"no such user here@x", b"\xff@x", b"-1", b"4294967296"] {
            assert_eq!((uid(unknown), gid(unknown)), (UNKNOWN, UNKNOWN), "{unknown:?}");
        }
        // Its lookup may take longer than a caller waits.
        let until = Instant::now() + Duration::from_secs(60);
        while (uid(b"root@example.com"), gid(b"root@localdomain")) != (0, 0) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
