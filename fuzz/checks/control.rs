//! Whatever comes over the control socket, and whatever the kernel says is mounted,
//! it is understood or refused in one line.
//!
//! The first byte chooses: a request, an answer, or a mount table.

use std::path::Path;

use fanfs::control::{Ask, Status};
use fanfs::explain::Facts;
use fanfs::volume::mounts::MountTable;

/// Gives the message to who reads it.
pub(crate) fn check_message(data: &[u8]) {
    let Some((&reader, message)) = data.split_first() else { return };
    match reader % 3 {
        0 => request(message),
        1 => answer(message),
        _ => table(message),
    }
}

fn request(message: &[u8]) {
    match Ask::parse(message) {
        Ok(ask) => {
            // What is understood is what was meant: written again it is the same.
            let again = serde_json::to_vec(&ask).expect("a request can be written");
            let read = Ask::parse(&again).expect("what was written can be read");
            assert_eq!(format!("{ask:?}"), format!("{read:?}"));
            let _ = ask.changes();
        }
        Err(error) => {
            assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
        }
    }
}

fn answer(message: &[u8]) {
    let _ = serde_json::from_slice::<Facts>(message);
    if let Ok(status) = serde_json::from_slice::<Status>(message) {
        let again = serde_json::to_vec(&status).expect("a status can be written");
        serde_json::from_slice::<Status>(&again).expect("what was written can be read");
    }
}

fn table(message: &[u8]) {
    let table = MountTable::parse(message);
    for path in ["/", "/mnt", "/mnt/fanfs/v", "relative"] {
        if let Some(mount) = table.containing(Path::new(path)) {
            assert!(Path::new(path).starts_with(&mount.mount_point), "{mount:?}");
            let _ = table.nfs(mount);
        }
    }
}
