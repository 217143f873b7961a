//! Any message on the control socket, and any mount table from the kernel, is parsed or refused in
//! one line.
//!
//! The first byte selects a request, an answer, or a mount table.

use std::path::Path;

use fanfs::control::ControlRequest;
use fanfs::explain::ExplainFacts;
use fanfs::mount_table::MountTable;
use fanfs::status::Status;

/// Passes the message to its parser.
pub(crate) fn check_message(data: &[u8]) {
    let Some((&reader, message)) = data.split_first() else { return };
    match reader % 3 {
        0 => check_request(message),
        1 => check_response(message),
        _ => check_mount_table(message),
    }
}

fn check_request(message: &[u8]) {
    match ControlRequest::parse(message) {
        Ok(request) => {
            // A parsed message keeps its meaning: written and parsed again it is the same.
            let again = serde_json::to_vec(&request).expect("a request can be written");
            let read = ControlRequest::parse(&again).expect("the written form can be read");
            assert_eq!(format!("{request:?}"), format!("{read:?}"));
            let _ = request.is_mutating();
        }
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
        }
    }
}

fn check_response(message: &[u8]) {
    let _ = serde_json::from_slice::<ExplainFacts>(message);
    if let Ok(status) = serde_json::from_slice::<Status>(message) {
        let again = serde_json::to_vec(&status).expect("a status can be written");
        serde_json::from_slice::<Status>(&again).expect("the written form can be read");
    }
}

fn check_mount_table(message: &[u8]) {
    let table = MountTable::parse(message);
    for path in ["/", "/mnt", "/mnt/fanfs/v", "relative"] {
        if let Some(mount) = table.containing(Path::new(path)) {
            assert!(Path::new(path).starts_with(&mount.mount_point), "{mount:?}");
            let _ = table.nfs(mount);
        }
    }
}
